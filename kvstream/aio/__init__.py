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

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from functools import partial, wraps
from importlib import import_module
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from kvstream.aio.engines import (
    AsyncEngine,
    LoopEngine,
    LoopRemoteEngine,
    in_greenlet,
    in_thread,
    open_in_thread,
)
from kvstream.engine.coerce import Asked, Name, PlaceSettings, Seconds, opening_of
from kvstream.engine.decoding import Decoder, decoder_of
from kvstream.engine.lease_renewal import Stop
from kvstream.engine.queue_arguments import Duration, QueueOptions
from kvstream.errors import InvalidArgument
from kvstream.group import Consumer, Group
from kvstream.queue import Message, Queue
from kvstream.queue import take as take_of
from kvstream.store import Store
from kvstream.stream import Stream
from kvstream.surface import Public
from kvstream.types.ids import IDLike, StreamID
from kvstream.types.records import Entry, Fields, LeaseOutcome, S
from kvstream.types.urls import AnyPath, sentinels_of, show_instead

__all__ = [
    "AsyncConsumer",
    "AsyncGroup",
    "AsyncMessage",
    "AsyncQueue",
    "AsyncStore",
    "AsyncStream",
    "open",
    "take",
]


def __dir__() -> list[str]:
    return __all__


P = ParamSpec("P")
T = TypeVar("T")
F_co = TypeVar("F_co", covariant=True)

_END: Any = object()


class _AsyncProxy(Public, Generic[F_co]):
    """An object of the library, and the engine that runs its methods for tasks."""

    __slots__ = ("_engine", "_sync")

    def __init__(self, engine: AsyncEngine, sync: F_co) -> None:
        self._engine = engine
        self._sync = sync

    def __repr__(self) -> str:
        return f"<Async{repr(self._sync)[1:]}"


class _SyncAttribute(Generic[T]):
    """An attribute that is read from the object of the library."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, proxy: _AsyncProxy[Any] | None, owner: type | None = None) -> T:
        return cast(T, self if proxy is None else getattr(proxy._sync, self._name))


def _wrap_call(
    method: Callable[Concatenate[F_co, P], T],
) -> Callable[Concatenate[_AsyncProxy[F_co], P], Coroutine[Any, Any, T]]:
    """Return the method that awaits a method of the library."""

    @wraps(method)
    async def call(self: _AsyncProxy[F_co], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._engine.task_call(method, self._sync, *args, **kwargs)

    return call


def _wrap_long_call(
    method: Callable[Concatenate[F_co, P], T], alone: bool = True
) -> Callable[Concatenate[_AsyncProxy[F_co], P], Coroutine[Any, Any, T]]:
    """Return the method that awaits a long method; with ``alone`` other calls wait meanwhile."""

    @wraps(method)
    async def call(self: _AsyncProxy[F_co], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._engine.task_call_long(
            partial(method, self._sync, *args, **kwargs), alone
        )

    return call


def _wrap_iterator(
    method: Callable[Concatenate[F_co, P], Iterator[T]],
) -> Callable[Concatenate[_AsyncProxy[F_co], P], AsyncIterator[T]]:
    """Return the method that makes an asynchronous iterator of the library's iterator."""

    @wraps(method)
    async def steps(
        self: _AsyncProxy[F_co], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncIterator[T]:
        iterator = await self._engine.task_call(method, self._sync, *args, **kwargs)
        try:
            while (item := await self._engine.task_call(next, iterator, _END)) is not _END:
                yield item
        finally:
            cast(Generator[T, None, None], iterator).close()

    return steps


@asynccontextmanager
async def _in_task(
    engine: AsyncEngine, begin: Callable[[], AbstractContextManager[object]]
) -> AsyncIterator[None]:
    """Run a block of the running task inside a transaction of the library."""
    async with engine.transaction_of_task():
        block = begin()
        await in_greenlet(block.__enter__)
        try:
            yield
        except BaseException as error:
            end = partial(block.__exit__, type(error), error, error.__traceback__)
            if not await in_greenlet(end):
                raise
        else:
            await in_greenlet(block.__exit__, None, None, None)


class AsyncConsumer(_AsyncProxy[Consumer[S]], Generic[S]):
    """A consumer, by its name; its first read creates it."""

    __slots__ = ()

    name = _SyncAttribute[S]()

    ack = _wrap_call(Consumer[S].ack)
    autoclaim = _wrap_call(Consumer[S].autoclaim)
    claim = _wrap_call(Consumer[S].claim)
    delete = _wrap_call(Consumer[S].delete)
    history = _wrap_call(Consumer[S].history)
    listen = _wrap_iterator(Consumer[S].listen)
    nack = _wrap_call(Consumer[S].nack)
    pending = _wrap_call(Consumer[S].pending)
    read = _wrap_call(Consumer[S].read)


class AsyncGroup(_AsyncProxy[Group[S]], Generic[S]):
    """A consumer group, by its name; see Group."""

    __slots__ = ()

    name = _SyncAttribute[S]()

    def consumer(self, name: Name) -> AsyncConsumer[S]:
        """Return a consumer by name; its first read creates it."""
        return AsyncConsumer(self._engine, self._sync.consumer(name))

    ack = _wrap_call(Group[S].ack)
    ack_delete = _wrap_call(Group[S].ack_delete)
    autoclaim = _wrap_call(Group[S].autoclaim)
    backlog = _wrap_call(Group[S].backlog)
    claim = _wrap_call(Group[S].claim)
    consumers = _wrap_call(Group[S].consumers)
    create_consumer = _wrap_call(Group[S].create_consumer)
    delete_consumer = _wrap_call(Group[S].delete_consumer)
    destroy = _wrap_call(Group[S].destroy)
    drop_policy = _wrap_call(Group[S].drop_policy)
    info = _wrap_call(Group[S].info)
    nack = _wrap_call(Group[S].nack)
    pause = _wrap_call(Group[S].pause)
    pending = _wrap_call(Group[S].pending)
    pending_range = _wrap_call(Group[S].pending_range)
    policy = _wrap_call(Group[S].policy)
    remove_consumer = _wrap_call(Group[S].remove_consumer)
    resume = _wrap_call(Group[S].resume)
    seek = _wrap_call(Group[S].seek)
    set_id = _wrap_call(Group[S].set_id)
    set_policy = _wrap_call(Group[S].set_policy)


class AsyncStream(_AsyncProxy[Stream[S]], Generic[S]):
    """A handle on the stream of a key, which need not exist yet; see Stream."""

    __slots__ = ()

    key = _SyncAttribute[S]()

    async def length(self) -> int:
        """Return the number of entries, as ``len`` does for a Stream."""
        return await self._engine.task_call(len, self._sync)

    def __aiter__(self) -> AsyncIterator[Entry[S]]:
        return self.scan()

    async def create_group(
        self,
        name: Name,
        start: IDLike = "$",
        *,
        mkstream: bool = True,
        entries_read: int | None = None,
        exist_ok: bool = False,
    ) -> AsyncGroup[S]:
        """Create the group ``name``, which reads the entries after ``start``; see Stream."""
        create = partial(self._sync.create_group, mkstream=mkstream, entries_read=entries_read)
        group = await self._engine.task_call(create, name, start, exist_ok=exist_ok)
        return AsyncGroup(self._engine, group)

    def group(self, name: Name) -> AsyncGroup[S]:
        """Return a handle on the group ``name``; whether it exists is not checked."""
        return AsyncGroup(self._engine, self._sync.group(name))

    add = _wrap_call(Stream[S].add)
    add_many = _wrap_call(Stream[S].add_many)
    cancel = _wrap_call(Stream[S].cancel)
    configure = _wrap_call(Stream[S].configure)
    count = _wrap_call(Stream[S].count)
    count_after = _wrap_call(Stream[S].count_after)
    delayed = _wrap_call(Stream[S].delayed)
    delayed_count = _wrap_call(Stream[S].delayed_count)
    delete = _wrap_call(Stream[S].delete)
    delete_entries = _wrap_call(Stream[S].delete_entries)
    delete_schedule = _wrap_call(Stream[S].delete_schedule)
    drop_retention = _wrap_call(Stream[S].drop_retention)
    get = _wrap_call(Stream[S].get)
    groups = _wrap_call(Stream[S].groups)
    info = _wrap_call(Stream[S].info)
    info_full = _wrap_call(Stream[S].info_full)
    iter_batches = _wrap_iterator(Stream[S].iter_batches)
    move = _wrap_call(Stream[S].move)
    range = _wrap_call(Stream[S].range)
    read = _wrap_call(Stream[S].read)
    retention = _wrap_call(Stream[S].retention)
    revrange = _wrap_call(Stream[S].revrange)
    run_schedule = _wrap_call(Stream[S].run_schedule)
    scan = _wrap_iterator(Stream[S].scan)
    schedule = _wrap_call(Stream[S].schedule)
    schedules = _wrap_call(Stream[S].schedules)
    set_id = _wrap_call(Stream[S].set_id)
    set_retention = _wrap_call(Stream[S].set_retention)
    tail = _wrap_iterator(Stream[S].tail)
    to_arrow = _wrap_long_call(Stream[S].to_arrow, alone=False)
    to_pandas = _wrap_long_call(Stream[S].to_pandas, alone=False)
    to_polars = _wrap_long_call(Stream[S].to_polars, alone=False)
    trim = _wrap_call(Stream[S].trim)


class AsyncStore(_AsyncProxy[Store[S]], Generic[S]):
    """An open store, and one of its numbered databases, for the tasks of one event loop.

    Calls raise the errors of Store.
    """

    __slots__ = ()
    _internal = Store._internal | {"call", "plain"}

    db = _SyncAttribute[int]()

    @property
    def plain(self) -> Store[S]:
        """The store for a function that ``call`` runs."""
        return self._sync

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that uses ``plain``; suspend the task where it would block the thread."""
        return await self._engine.task_call(function, *args, **kwargs)

    @property
    def blocking(self) -> Store[S]:
        """The store in a directory, for code that blocks: use it in other threads only."""
        if not isinstance(self._engine, LoopEngine):
            raise InvalidArgument(
                f"code that blocks opens {self._sync._engine.place} with kvstream.open: blocking "
                "is of a directory that is not shared"
            )
        return self._sync

    def select(self, db: int) -> AsyncStore[S]:
        """Return the same open store with another database selected."""
        return AsyncStore(self._engine, self._sync.select(db))

    def stream(self, key: Name) -> AsyncStream[S]:
        """Return a handle on the stream of a key; the first ``add`` creates the stream."""
        return AsyncStream(self._engine, self._sync.stream(key))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """Run everything that this task does in the ``async with`` block as one atomic commit.

        An exception, cancellation too, rolls it back. Other tasks and threads wait meanwhile, so
        await only calls of the store inside. A task that is started inside is refused. On a server
        other tasks go on, and it is MULTI and EXEC, as Store.transaction says.
        """
        async with _in_task(self._engine, self._sync.transaction):
            yield self

    async def close(self) -> None:
        """Make everything durable and unlock the directory; a second call does nothing.

        Blocked reads raise StoreClosed.
        """
        await self._engine.task_close(discard=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Close the store; after an error, remove a new directory without any write."""
        await self._engine.task_close(discard=error is not None)

    bulk_append = _wrap_long_call(Store[S].bulk_append)
    bulk_load = _wrap_long_call(Store[S].bulk_load)
    bulk_ticket = _wrap_call(Store[S].bulk_ticket)
    check = _wrap_long_call(Store[S].check)
    checkpoint = _wrap_long_call(Store[S].checkpoint, alone=False)
    compact = _wrap_long_call(Store[S].compact, alone=False)
    copy = _wrap_long_call(Store[S].copy)
    delete = _wrap_call(Store[S].delete)
    discard_load = _wrap_long_call(Store[S].discard_load)
    dump = _wrap_long_call(Store[S].dump)
    exists = _wrap_call(Store[S].exists)
    expire = _wrap_call(Store[S].expire)
    expire_at = _wrap_call(Store[S].expire_at)
    flush = _wrap_call(Store[S].flush)
    flush_all = _wrap_call(Store[S].flush_all)
    key_infos = _wrap_iterator(Store[S].key_infos)
    keys = _wrap_call(Store[S].keys)
    load = _wrap_long_call(Store[S].load)
    persist = _wrap_call(Store[S].persist)
    read = _wrap_call(Store[S].read)
    read_group = _wrap_call(Store[S].read_group)
    rename = _wrap_call(Store[S].rename)
    restore = _wrap_long_call(Store[S].restore)
    rows = _wrap_call(Store[S].rows)
    scan_keys = _wrap_iterator(Store[S].scan_keys)
    size = _wrap_call(Store[S].size)
    stats = _wrap_call(Store[S].stats)
    sync = _wrap_long_call(Store[S].sync, alone=False)
    ttl = _wrap_call(Store[S].ttl)
    type = _wrap_call(Store[S].type)
    unfinished_loads = _wrap_call(Store[S].unfinished_loads)


class AsyncMessage(_AsyncProxy[Message[S]], Generic[S]):
    """A message that was delivered to a consumer of a queue, and its lease; see Message."""

    __slots__ = ("queue",)

    def __init__(self, queue: AsyncQueue[S], sync: Message[S]) -> None:
        super().__init__(queue._engine, sync)
        self.queue = queue

    age = _SyncAttribute[float]()
    consumer = _SyncAttribute[S]()
    deliveries = _SyncAttribute[int]()
    fields = _SyncAttribute[Fields[S]]()
    flat = _SyncAttribute[tuple[S, ...]]()
    id = _SyncAttribute[StreamID]()
    key = _SyncAttribute[S]()
    pairs = _SyncAttribute[tuple[tuple[S, S], ...]]()
    token = _SyncAttribute[tuple[StreamID, int]]()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncStore[S]]:
        """Run all that this task does in the block, and the ack, as one commit; see Message."""
        async with _in_task(self._engine, self._sync.transaction):
            yield self.queue.store

    ack = _wrap_call(Message[S].ack)
    extend = _wrap_call(Message[S].extend)
    nack = _wrap_call(Message[S].nack)


class AsyncQueue(_AsyncProxy[Queue[S]], Generic[S]):
    """A queue of messages, by its name, for the tasks of one event loop; see Queue. ::

    emails = AsyncQueue(store, "emails", lease=30, max_deliveries=5)
    async for message in emails.listen():
        async with message.transaction():
            await store.stream("sent").add(message.fields)
    """

    __slots__ = ("store",)

    def __init__(self, store: AsyncStore[S], name: Name, **options: Unpack[QueueOptions]) -> None:
        """Describe a queue; the options are those of Queue."""
        if not isinstance(store, AsyncStore):
            raise InvalidArgument(
                f"an AsyncQueue has an AsyncStore, not {show_instead(store)}: open one with "
                "kvstream.aio.open; kvstream.Queue has a Store"
            )
        super().__init__(store._engine, Queue(store._sync, name, **options))
        self.store = store

    consumer = _SyncAttribute[S]()
    group = _SyncAttribute[S]()
    name = _SyncAttribute[S]()
    priorities = _SyncAttribute[tuple[str, ...]]()

    def streams(self) -> list[AsyncStream[S]]:
        """Return the streams of the priorities, the most urgent first."""
        return [AsyncStream(self._engine, stream) for stream in self._sync.streams()]

    def groups(self) -> list[AsyncGroup[S]]:
        """Return the group of each stream."""
        return [AsyncGroup(self._engine, group) for group in self._sync.groups()]

    async def dead_stream(self) -> AsyncStream[S]:
        """Return the stream of the dead letters."""
        stream = await self._engine.task_call(self._sync.dead_stream)
        return AsyncStream(self._engine, stream)

    async def get(self, count: int = 1, block: Seconds | None = None) -> list[AsyncMessage[S]]:
        """Lease up to ``count`` messages; [] if there are none. See Queue."""
        messages = await self._engine.task_call(self._sync.get, count, block)
        return [AsyncMessage(self, message) for message in messages]

    async def get_one(self, block: Seconds | None = None) -> AsyncMessage[S] | None:
        """Lease one message; None if there is none. See Queue."""
        message = await self._engine.task_call(self._sync.get_one, block)
        return None if message is None else AsyncMessage(self, message)

    async def listen(
        self, count: int = 1, *, poll: Seconds = 1.0, stop: Stop | None = None
    ) -> AsyncIterator[AsyncMessage[S]]:
        """Yield messages for ever; settle each with ``ack``, ``nack`` or ``transaction``."""
        heard = cast(Generator[Message[S]], self._sync.listen(count, poll=poll, stop=stop))
        try:
            while (message := await self._engine.task_call(next, heard, _END)) is not _END:
                yield AsyncMessage(self, message)
        finally:
            await self._engine.task_call(heard.close)

    async def ack(self, *messages: AsyncMessage[S]) -> list[LeaseOutcome]:
        """Acknowledge messages; return the outcome of each."""
        return await self._engine.task_call(self._sync.ack, *_unwrap(messages))

    async def nack(
        self,
        *messages: AsyncMessage[S],
        delay: Duration | None = None,
        fatal: bool = False,
        error: BaseException | str | None = None,
        traceback: str | None = None,
    ) -> list[LeaseOutcome]:
        """Give messages back; return the outcome of each. See Message."""
        nack = partial(self._sync.nack, delay=delay, fatal=fatal, error=error, traceback=traceback)
        return await self._engine.task_call(nack, *_unwrap(messages))

    async def extend(self, *messages: AsyncMessage[S]) -> list[LeaseOutcome]:
        """Renew leases; return the outcome of each."""
        return await self._engine.task_call(self._sync.extend, *_unwrap(messages))

    cancel = _wrap_call(Queue[S].cancel)
    cancel_redrive = _wrap_call(Queue[S].cancel_redrive)
    dead = _wrap_call(Queue[S].dead)
    info = _wrap_call(Queue[S].info)
    pause = _wrap_call(Queue[S].pause)
    purge = _wrap_call(Queue[S].purge)
    put = _wrap_call(Queue[S].put)
    put_many = _wrap_call(Queue[S].put_many)
    redrive = _wrap_call(Queue[S].redrive)
    redrive_status = _wrap_call(Queue[S].redrive_status)
    dead_by_error = _wrap_call(Queue[S].dead_by_error)
    resume = _wrap_call(Queue[S].resume)


async def take(
    queues: Sequence[AsyncQueue[S]], count: int = 1, block: Seconds | None = None
) -> list[AsyncMessage[S]]:
    """Lease up to ``count`` messages of several queues with one read; see ``Queue.get``.

    The queues are of one store and database, and have the same group and consumer.
    """
    if not queues:
        raise InvalidArgument("take needs at least one queue")
    of = {queue._sync: queue for queue in queues}
    messages = await queues[0]._engine.task_call(take_of, [*of], count, block)
    return [AsyncMessage(of[message.queue], message) for message in messages]


def _unwrap(messages: Sequence[AsyncMessage[S]]) -> list[Message[S]]:
    """Return the messages of the Queue; other values stay as they are, for it to refuse."""
    return [getattr(each, "_sync", each) for each in cast(Sequence[Any], messages)]


class _LoopStore(Store[S]):
    engine_type = LoopEngine


class Opening(Generic[S]):
    """A store that is opened by ``async with`` or ``await``."""

    def __init__(self, opening: Callable[[], Coroutine[Any, Any, AsyncStore[S]]]) -> None:
        self._opening = opening
        self._store: AsyncStore[S] | None = None

    if not TYPE_CHECKING:  # a checker would take every name

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"{name!r} is of the store, which is not open yet: "
                "async with kvstream.aio.open(place) as store",
                name=name,
                obj=self,
            )

    def __await__(self) -> Generator[Any, Any, AsyncStore[S]]:
        return self._opening().__await__()

    async def __aenter__(self) -> AsyncStore[S]:
        self._store = await self
        return self._store

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        assert self._store is not None
        await self._store.__aexit__(kind, error, traceback)


@overload
def open(
    place: AnyPath, *, decode: Literal[False] = ..., **options: Unpack[PlaceSettings]
) -> Opening[bytes]: ...
@overload
def open(
    place: AnyPath, *, decode: Literal[True], errors: str = ..., **options: Unpack[PlaceSettings]
) -> Opening[str]: ...
@overload
def open(
    place: AnyPath, *, decode: bool, errors: str = ..., **options: Unpack[PlaceSettings]
) -> Opening[bytes] | Opening[str]: ...
def open(
    place: AnyPath, *, decode: bool = False, errors: str = "strict", **options: Any
) -> Opening[Any]:
    """Open the store at ``place``, in a directory or on a server, as ``kvstream.open`` does.

    The result is for ``async with``, or to ``await`` a store that the caller closes.
    """
    asked, decoder = opening_of(place, **options), decoder_of(decode, errors)
    if asked.url is not None:
        return Opening(partial(_open_server, asked.url, asked, decoder))
    if asked.shared:
        return Opening(partial(_open_shared, place, asked, decoder))
    settings = {"db": asked.db or 0, "clock": asked.clock, **asked.settings}
    opening = partial(_LoopStore.open, place, decode=decode, errors=errors, **settings)
    return Opening(partial(_open_directory, opening))


_openings: dict[tuple[asyncio.AbstractEventLoop, AnyPath, str], asyncio.Task[AsyncStore]] = {}
"""The stores of ``StoreOfLoop``, by the loop, the place and the options."""
_users: Counter[asyncio.Task[AsyncStore]] = Counter()


class StoreOfLoop:
    """The store of the running loop at a place, for one ``async with``; open while it has users.

    It is a class: a loop that ends closes generators, so a generator would close its store then.
    """

    def __init__(self, place: AnyPath, **options: Any) -> None:
        self._place, self._options = place, options

    async def __aenter__(self) -> AsyncStore:
        loop = asyncio.get_running_loop()
        self._key = loop, self._place, repr(sorted(self._options.items()))
        opening = _openings.get(self._key)
        if opening is None:
            opening = loop.create_task(open(self._place, **self._options)._opening())
            _openings[self._key] = opening
        self._opening = opening
        _users[opening] += 1
        try:
            return await asyncio.shield(opening)
        except BaseException:
            await self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self._leave()

    async def _leave(self) -> None:
        opening = self._opening
        _users[opening] -= 1
        if not _users[opening]:
            del _users[opening], _openings[self._key]
            if opening.cancel():
                await asyncio.wait([opening])
            elif opening.exception() is None:
                await opening.result().close()


async def _open_directory(opening: Callable[[], Store[Any]]) -> AsyncStore[Any]:
    """Open a store in a thread: its log may be long."""
    store = await open_in_thread(opening)
    engine = store.engine
    assert isinstance(engine, LoopEngine)
    return AsyncStore(engine, store)


async def _import_redis() -> None:
    with suppress(ModuleNotFoundError):  # connecting names the package
        await in_thread(partial(import_module, "redis.asyncio"))  # takes long


async def _open_shared(place: AnyPath, asked: Asked, decoder: Decoder[S]) -> AsyncStore[S]:
    await _import_redis()
    shared = await in_thread(partial(import_module, "kvstream.aio.shared"))
    engine = await in_greenlet(
        shared.LoopSharedEngine.open, place, asked.settings, asked.clock, asked.wait_s
    )
    return AsyncStore(engine, Store(engine, asked.db or 0, decoder))


async def _open_server(url: str, asked: Asked, decoder: Decoder[S]) -> AsyncStore[S]:
    await _import_redis()
    if sentinels_of(url) is not None:
        failover = await in_thread(partial(import_module, "kvstream.aio.failover"))
        found = await in_greenlet(
            failover.LoopFailoverEngine.open, url, asked.db, asked.wait_s, asked.replicas
        )
        return AsyncStore(found, Store(found, found.db, decoder))
    opens = partial(LoopRemoteEngine.open, url, asked.db, replicas=asked.replicas)
    engine = await in_greenlet(opens)
    return AsyncStore(engine, Store(engine, engine.db, decoder))
