"""kvstream for asyncio: the classes of the library, with methods to await.

::

    async with kvstream.aio.open("data") as store:
        jobs = store.stream("jobs")
        await jobs.add({"task": "mail", "to": "ann"})
        workers = await jobs.create_group("workers", start="0", exist_ok=True)
        async for job in workers.consumer("worker-1").listen():
            await workers.ack(job)

Methods have the arguments, results and errors of those of Store, Stream, Group and Consumer; an
iterator begins with its first step. A blocked read costs no thread. A short call runs in the thread
of the event loop, a long one, such as ``check``, in another thread. A store belongs to the tasks of
one event loop.

A task that is cancelled in a blocked read leaves nothing behind. An entry that was delivered to it
just before stays pending with its consumer, whose next ``listen`` or ``history`` returns it. A
write whose task is cancelled may have been done.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial, wraps
from importlib import import_module
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

from kvstream.aio.engines import AsyncEngine, LoopEngine, LoopRemoteEngine, in_greenlet, in_thread
from kvstream.engine.coerce import AnyPath, Level, Name, server_url
from kvstream.errors import InvalidArgument
from kvstream.group import Consumer, Group
from kvstream.store import Store
from kvstream.stream import Stream
from kvstream.types.clock import Clock
from kvstream.types.ids import IDLike
from kvstream.types.options import Durability
from kvstream.types.records import Entry

__all__ = ["AsyncConsumer", "AsyncGroup", "AsyncStore", "AsyncStream", "open"]

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F")

_END: Any = object()


class _Face(Generic[F]):
    """An object of the library, and the engine that runs its methods for tasks."""

    __slots__ = ("_engine", "_sync")

    def __init__(self, engine: AsyncEngine, sync: F) -> None:
        self._engine = engine
        self._sync = sync

    def __repr__(self) -> str:
        return f"<Async{repr(self._sync)[1:]}"


def _awaited(
    method: Callable[Concatenate[F, P], T],
) -> Callable[Concatenate[_Face[F], P], Coroutine[Any, Any, T]]:
    """Return the method that awaits a method of the library."""

    @wraps(method)
    async def call(self: _Face[F], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._engine.task_call(method, self._sync, *args, **kwargs)

    return call


def _long(
    method: Callable[Concatenate[F, P], T], alone: bool = True
) -> Callable[Concatenate[_Face[F], P], Coroutine[Any, Any, T]]:
    """Return the method that awaits one which takes long; ``alone``: other calls wait."""

    @wraps(method)
    async def call(self: _Face[F], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._engine.task_call_long(
            partial(method, self._sync, *args, **kwargs), alone
        )

    return call


def _stepped(
    method: Callable[Concatenate[F, P], Iterator[T]],
) -> Callable[Concatenate[_Face[F], P], AsyncIterator[T]]:
    """Return the method whose asynchronous iterator yields what that of the library yields."""

    @wraps(method)
    async def steps(self: _Face[F], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        iterator = await self._engine.task_call(method, self._sync, *args, **kwargs)
        try:
            while (found := await self._engine.task_call(next, iterator, _END)) is not _END:
                yield found
        finally:
            cast(Generator[T, None, None], iterator).close()

    return steps


class AsyncConsumer(_Face[Consumer]):
    """A consumer, by its name; its first read creates it."""

    __slots__ = ()

    @property
    def name(self) -> bytes:
        return self._sync.name

    ack = _awaited(Consumer.ack)
    autoclaim = _awaited(Consumer.autoclaim)
    claim = _awaited(Consumer.claim)
    delete = _awaited(Consumer.delete)
    history = _awaited(Consumer.history)
    listen = _stepped(Consumer.listen)
    nack = _awaited(Consumer.nack)
    pending = _awaited(Consumer.pending)
    read = _awaited(Consumer.read)


class AsyncGroup(_Face[Group]):
    """A consumer group, by its name; see Group."""

    __slots__ = ()

    @property
    def name(self) -> bytes:
        return self._sync.name

    def consumer(self, name: Name) -> AsyncConsumer:
        """Return a consumer by name; its first read creates it."""
        return AsyncConsumer(self._engine, self._sync.consumer(name))

    ack = _awaited(Group.ack)
    ack_delete = _awaited(Group.ack_delete)
    autoclaim = _awaited(Group.autoclaim)
    backlog = _awaited(Group.backlog)
    claim = _awaited(Group.claim)
    consumers = _awaited(Group.consumers)
    create_consumer = _awaited(Group.create_consumer)
    delete_consumer = _awaited(Group.delete_consumer)
    destroy = _awaited(Group.destroy)
    info = _awaited(Group.info)
    nack = _awaited(Group.nack)
    pending = _awaited(Group.pending)
    pending_range = _awaited(Group.pending_range)
    set_id = _awaited(Group.set_id)


class AsyncStream(_Face[Stream]):
    """A handle on the stream of a key, which need not exist yet; see Stream."""

    __slots__ = ()

    @property
    def key(self) -> bytes:
        return self._sync.key

    async def length(self) -> int:
        """Return the number of entries, as ``len`` does for a Stream."""
        return await self._engine.task_call(len, self._sync)

    def __aiter__(self) -> AsyncIterator[Entry]:
        return self.scan()

    async def create_group(
        self,
        name: Name,
        start: IDLike = "$",
        *,
        mkstream: bool = True,
        entries_read: int | None = None,
        exist_ok: bool = False,
    ) -> AsyncGroup:
        """Create a consumer group that reads the entries after ``start``; see Stream."""
        create = partial(self._sync.create_group, mkstream=mkstream, entries_read=entries_read)
        group = await self._engine.task_call(create, name, start, exist_ok=exist_ok)
        return AsyncGroup(self._engine, group)

    def group(self, name: Name) -> AsyncGroup:
        """Return a handle on a group; whether it exists is not checked."""
        return AsyncGroup(self._engine, self._sync.group(name))

    add = _awaited(Stream.add)
    add_many = _awaited(Stream.add_many)
    configure = _awaited(Stream.configure)
    count_after = _awaited(Stream.count_after)
    delete = _awaited(Stream.delete)
    delete_entries = _awaited(Stream.delete_entries)
    get = _awaited(Stream.get)
    groups = _awaited(Stream.groups)
    info = _awaited(Stream.info)
    info_full = _awaited(Stream.info_full)
    range = _awaited(Stream.range)
    read = _awaited(Stream.read)
    revrange = _awaited(Stream.revrange)
    scan = _stepped(Stream.scan)
    set_id = _awaited(Stream.set_id)
    tail = _stepped(Stream.tail)
    trim = _awaited(Stream.trim)


class AsyncStore(_Face[Store]):
    """An open store, and one of its numbered databases, for the tasks of one event loop.

    Calls raise the errors of Store.
    """

    __slots__ = ()

    @property
    def db(self) -> int:
        return self._sync.db

    @property
    def blocking(self) -> Store:
        """The store in a directory, for code that blocks: use it in other threads only."""
        if not isinstance(self._engine, LoopEngine):
            raise InvalidArgument("open a server with kvstream.open for code that blocks")
        return self._sync

    def select(self, db: int) -> "AsyncStore":
        """Return the same open store with another database selected."""
        return AsyncStore(self._engine, self._sync.select(db))

    def stream(self, key: Name) -> AsyncStream:
        """Return a handle on the stream of a key; the first ``add`` creates the stream."""
        return AsyncStream(self._engine, self._sync.stream(key))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """Run everything that this task does in the ``async with`` block as one atomic commit.

        An exception, cancellation too, rolls it back. Other tasks and threads wait meanwhile, so
        await only calls of the store inside. A task that is started inside is refused. On a server
        other tasks go on, and it is MULTI and EXEC, as Store.transaction says.
        """
        async with self._engine.transaction_of_task():
            block = self._sync.transaction()
            await in_greenlet(block.__enter__)
            try:
                yield self
            except BaseException as error:
                end = partial(block.__exit__, type(error), error, error.__traceback__)
                if not await in_greenlet(end):
                    raise
            else:
                await in_greenlet(block.__exit__, None, None, None)

    async def close(self) -> None:
        """Make everything durable and unlock the directory; a second call does nothing.

        Blocked reads raise StoreClosed.
        """
        await self._close(discard=False)

    async def _close(self, discard: bool) -> None:
        await self._engine.task_close(discard)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the store; after an error, remove a new directory without any write."""
        await self._close(discard=error is not None)

    bulk_append = _long(Store.bulk_append)
    bulk_load = _long(Store.bulk_load)
    bulk_ticket = _awaited(Store.bulk_ticket)
    check = _long(Store.check)
    checkpoint = _long(Store.checkpoint, alone=False)
    compact = _long(Store.compact, alone=False)
    copy = _long(Store.copy)
    delete = _awaited(Store.delete)
    discard_load = _long(Store.discard_load)
    dump = _long(Store.dump)
    exists = _awaited(Store.exists)
    expire = _awaited(Store.expire)
    expire_at = _awaited(Store.expire_at)
    flush = _awaited(Store.flush)
    flush_all = _awaited(Store.flush_all)
    key_infos = _stepped(Store.key_infos)
    keys = _awaited(Store.keys)
    load = _long(Store.load)
    persist = _awaited(Store.persist)
    read = _awaited(Store.read)
    read_group = _awaited(Store.read_group)
    rename = _awaited(Store.rename)
    restore = _long(Store.restore)
    rows = _awaited(Store.rows)
    scan_keys = _stepped(Store.scan_keys)
    size = _awaited(Store.size)
    stats = _awaited(Store.stats)
    sync = _long(Store.sync, alone=False)
    ttl = _awaited(Store.ttl)
    type = _awaited(Store.type)
    unfinished_loads = _awaited(Store.unfinished_loads)


class _LoopStore(Store):
    _engine_type = LoopEngine


class Opening:
    """A store that is opened by ``async with`` or ``await``."""

    def __init__(self, opening: Callable[[], Coroutine[Any, Any, AsyncStore]]) -> None:
        self._opening = opening
        self._store: AsyncStore | None = None

    def __await__(self) -> Generator[Any, Any, AsyncStore]:
        return self._opening().__await__()

    async def __aenter__(self) -> AsyncStore:
        self._store = await self
        return self._store

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._store is not None
        await self._store.__aexit__(kind, error, traceback)


def open(
    place: AnyPath,
    *,
    db: int | None = None,
    durability: Level | None = None,
    read_only: bool = False,
    create: bool = True,
    clock: Clock | None = None,
    shared: bool = False,
    wait_s: float | None = None,
    **options: Any,
) -> Opening:
    """Open the store at ``place``, in a directory or on a server, as ``kvstream.open`` does.

    The result is for ``async with``, or to ``await`` a store that the caller closes.
    """
    url = server_url(place)
    if url is None:
        level = Durability.EVERYSEC if durability is None else durability
        if shared:
            settings = {"durability": level, "read_only": read_only, "create": create, **options}
            return Opening(lambda: _open_shared(place, db or 0, settings, clock, wait_s))
        if wait_s is not None:
            raise InvalidArgument("wait_s is for shared=True: the seconds to wait for an owner")
        opening = partial(
            _LoopStore.open,
            place,
            durability=level,
            db=db or 0,
            read_only=read_only,
            create=create,
            clock=clock,
            **options,
        )
        return Opening(lambda: _open_directory(opening))
    given = {
        "durability": durability,
        "read_only": read_only or None,
        "clock": clock,
        "shared": shared or None,
        "wait_s": wait_s,
        **options,
    }
    for name, value in given.items():
        if value is not None:
            raise InvalidArgument(f"{name} is for a store in a directory: a server has its own")
    return Opening(lambda: _open_server(url, db))


async def _open_directory(opening: Callable[[], Store]) -> AsyncStore:
    """Open a store in a thread: its log may be long."""
    opened: list[Store] = []

    def run() -> None:
        opened.append(opening())
        if abandoned:
            opened.pop().close()

    abandoned: list[bool] = []
    try:
        await in_thread(run)
    except BaseException:
        abandoned.append(True)
        if opened:
            opened.pop().close()
        raise
    store = opened.pop()
    engine = store.engine
    assert isinstance(engine, LoopEngine)
    return AsyncStore(engine, store)


async def _import_redis() -> None:
    with suppress(ModuleNotFoundError):  # connecting names the package
        await in_thread(partial(import_module, "redis.asyncio"))  # takes long


async def _open_shared(
    place: AnyPath,
    db: int,
    settings: dict[str, Any],
    clock: Clock | None,
    wait_s: float | None,
) -> AsyncStore:
    await _import_redis()
    shared = await in_thread(partial(import_module, "kvstream.aio.shared"))
    engine = await in_greenlet(shared.open_loop_shared, place, settings, clock, wait_s)
    return AsyncStore(engine, Store(engine, db))


async def _open_server(url: str, db: int | None) -> AsyncStore:
    await _import_redis()
    engine = await in_greenlet(LoopRemoteEngine.open, url, db)
    return AsyncStore(engine, Store(engine, engine.db))
