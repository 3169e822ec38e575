"""Engines whose blocking calls suspend the task that makes them, not the thread of its event loop.

The classes of ``kvstream.aio`` run the methods of Store, Stream, Group and Consumer unchanged, each
call in a greenlet. Wherever such a method would block the thread, in a blocked read, an fsync or a
reply of a server, ``wait`` switches back to the task's coroutine, which awaits the event instead.
Everything else runs inline in the thread of the loop.

``LoopEngine`` is the engine of a directory. Tasks share the thread, which owns the engine's lock,
so a ``Gate`` keeps the other tasks out of a transaction. ``LoopRemoteEngine`` is that of a server:
a task that waits for a reply has a connection of its own.
"""

import asyncio
import os
import select
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context, ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast

from greenlet import GreenletExit, getcurrent, greenlet

from kvstream.engine.engine import Engine
from kvstream.engine.interface import AnyEngine
from kvstream.engine.lease_renewal import every_in_thread
from kvstream.engine.waiters import Signal, Waiter
from kvstream.errors import InvalidArgument, StoreClosed, UnknownOutcome
from kvstream.meta.wakeups import Wake
from kvstream.remote.connection import NAME_CLASSES, Connection, Link, ignore_unknown_command
from kvstream.remote.engine import RemoteEngine
from kvstream.remote.server_errors import mark_unsent
from kvstream.types.clock import Clock, call_later
from kvstream.types.options import StoreOptions

if TYPE_CHECKING:
    import redis

P = ParamSpec("P")
T = TypeVar("T")


class _Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=_Closable)

IDLE_MAX = 64
"""Greenlets kept for later calls: a new one costs ten times as much as a call."""
TURN_CALLS = 50
"""Calls without a wait, about a millisecond, after which other tasks of the loop get their turn."""
_LONGEST_S = 365 * 86_400.0
"""Longest wait of a timer: event loops refuse waits of centuries."""


# --- calls in greenlets ---------------------------------------------------------------------------


class _Worker(greenlet):
    """A greenlet that runs one call after another."""

    call: Callable[[], Any] | None = None
    """None once it has ended."""
    result: Any = None
    failure: BaseException | None = None

    def run(self) -> None:
        while True:
            assert self.call is not None
            assert self.parent is not None
            try:
                self.result = self.call()
            except GreenletExit:  # nobody has a reference to it
                raise
            except BaseException as error:
                self.failure = error
            self.call = None
            self.parent.switch(None)


class _Idle(threading.local):
    """The greenlets of a thread that run no call."""

    def __init__(self) -> None:
        self.workers: list[_Worker] = []


_idle = _Idle()


async def in_greenlet(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function that may call ``wait``; return its result."""
    idle = _idle.workers
    worker = idle.pop() if idle else _Worker()
    here = getcurrent()
    if worker.parent is not here:
        worker.parent = here
    worker.gr_context = here.gr_context
    worker.call = partial(function, *args, **kwargs)
    wanted = worker.switch()
    while worker.call is not None:
        try:
            value = await wanted
        except BaseException as error:  # CancelledError among them: the function cleans up
            wanted = worker.throw(error)
        else:
            wanted = worker.switch(value)
    result, error, worker.result, worker.failure = worker.result, worker.failure, None, None
    if len(idle) < IDLE_MAX:
        idle.append(worker)
    if error is not None:
        try:
            raise error
        finally:
            del error
    return result


def suspends() -> bool:
    """Return whether this code runs in a call of ``in_greenlet``."""
    return isinstance(getcurrent(), _Worker)


def wait(event: Awaitable[T]) -> T:
    """Suspend the calling task until ``event`` is done; return its result."""
    current = getcurrent()
    assert isinstance(current, _Worker)
    assert current.parent is not None
    return current.parent.switch(event)  # type: ignore[no-any-return]


async def _sleep(seconds: float) -> None:
    over = asyncio.Event()
    timer = call_later(asyncio.get_running_loop(), seconds, over.set)
    try:
        await over.wait()
    finally:
        timer.cancel()


def pause(seconds: float) -> None:
    """Sleep; in a call of ``in_greenlet`` the task sleeps."""
    if suspends():
        wait(_sleep(seconds))
    else:
        time.sleep(seconds)


async def in_thread(function: Callable[[], T], after: Callable[[], object] = lambda: None) -> T:
    """Run a function in a thread, then ``after`` in the loop, even if the task is cancelled."""
    running = asyncio.get_running_loop().run_in_executor(None, function)

    def end(future: "asyncio.Future[T]") -> None:
        after()
        if not future.cancelled():
            future.exception()  # else asyncio may log that nobody has retrieved it

    running.add_done_callback(end)
    return await asyncio.shield(running)


async def open_in_thread(opening: Callable[[], C]) -> C:
    """Open something in a thread; close it again if the task was cancelled meanwhile."""
    opened, abandoned = list[C](), list[bool]()

    def close() -> None:
        with suppress(IndexError):  # not open yet, or closed by the other thread
            opened.pop().close()

    def run() -> None:
        opened.append(opening())
        if abandoned:
            close()

    try:
        await in_thread(run)
    except BaseException:
        abandoned.append(True)
        close()
        raise
    return opened.pop()


class LoopSignal(Signal):
    """Wakes a waiting task."""

    def __init__(self, gate: "Gate") -> None:
        self._gate = gate
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._future: asyncio.Future[bool] | None = None
        self._is_set = False

    def set(self) -> None:
        """Wake the task; called in any thread."""
        if threading.get_ident() == self._thread:
            self._fire(True)
        else:
            with suppress(RuntimeError):  # the loop is closed, and the task gone
                self._loop.call_soon_threadsafe(self._fire, True)

    def _fire(self, arrived: bool) -> None:
        self._is_set = self._is_set or arrived
        if self._future is not None and not self._future.done():
            self._future.set_result(arrived)

    def wait(self, seconds: float | None) -> bool:
        """Suspend the task; return once no other one has a transaction open."""
        if not self._is_set:
            self._future, timer = self._loop.create_future(), None
            if seconds is not None:
                timer = call_later(self._loop, min(seconds, _LONGEST_S), self._fire, False)
            try:
                wait(self._future)
            finally:
                self._future = None
                if timer is not None:
                    timer.cancel()
        if self._gate.is_shut:
            wait(self._gate.wait_open())
        return self._is_set


# --- whose turn it is -----------------------------------------------------------------------------

_inside: ContextVar[object] = ContextVar("inside", default=None)
"""The task whose transaction the code is in; tasks that it starts inherit this."""


def _refuse_child(owner: object) -> None:
    if owner is not None and _inside.get() is owner and asyncio.current_task() is not owner:
        raise InvalidArgument(
            "a transaction is of one task: await its calls in the task that opened it, or start "
            "other tasks before it"
        )


class Gate:
    """Lets one task alone use an engine during its transaction, and all tasks at other times."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._open = asyncio.Event()
        self._open.set()
        self.owner: object = None
        """The task or thread that alone uses the engine."""

    @property
    def is_shut(self) -> bool:
        """Whether the calling task must wait in ``passed``."""
        return self.owner is not None and self.owner is not asyncio.current_task()

    async def wait_open(self) -> None:
        """Wait until the calling task may use the engine."""
        while self.is_shut:
            _refuse_child(self.owner)
            await self._open.wait()

    async def take(self, owner: object) -> None:
        """Wait until no task keeps others out, in order of arrival; then keep others out."""
        if self.owner is asyncio.current_task():
            raise InvalidArgument("a transaction is open in this task already")
        _refuse_child(self.owner)
        await self._turn.acquire()
        self.owner = owner
        self._open.clear()

    def release(self, owner: object) -> None:
        """Admit other tasks, unless they were admitted before."""
        if self.owner is owner:
            self.owner = None
            self._open.set()  # tasks that only pass come before the next owner
            self._turn.release()


# --- engines --------------------------------------------------------------------------------------


class AsyncEngine(AnyEngine, Protocol):
    """An engine for the tasks of one event loop."""

    async def task_call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a method of the library; suspend the task where it would block the thread."""
        ...

    async def task_call_long(self, function: Callable[[], T], alone: bool) -> T:
        """Run a method that takes long; ``alone``: it has the engine's lock all the time."""
        ...

    async def task_close(self, discard: bool) -> None:
        """Close the store."""
        ...

    def transaction_of_task(self) -> Any:
        """Return a context, inside which the task may open a transaction."""
        ...


_background: "set[asyncio.Task[None]]" = set()
"""Tasks that nobody awaits: an event loop keeps no reference."""


def every_in_task(
    task_call: Callable[..., Awaitable[object]], seconds: float, call: Callable[[], object]
) -> Callable[[], None]:
    """Call a function every ``seconds``, in a task if this is one; see ``AnyEngine.every``."""
    if not suspends():
        return every_in_thread(seconds, call)
    loop, woken, has_ended = asyncio.get_running_loop(), asyncio.Event(), False

    async def run() -> None:
        while not has_ended:
            timer = call_later(loop, seconds, woken.set)
            try:
                await woken.wait()
            finally:
                timer.cancel()
            if not has_ended:
                woken.clear()
                await task_call(call)

    def end() -> None:
        nonlocal has_ended
        has_ended = True
        woken.set()

    # With a context of its own: it is not part of a transaction in which it begins.
    task = loop.create_task(run(), context=Context())
    _background.add(task)
    task.add_done_callback(_background.discard)
    return end


class LoopEngine(Engine):
    """An open store, for the tasks of one event loop and for other threads."""

    def __init__(
        self, directory: Path, options: StoreOptions | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(directory, options, clock)
        self.gate = Gate()
        self.signal = self._loop_signal
        self.database.pause_by(pause)
        self._calls = 0
        """Calls since the last ``sleep(0)``: calls may not suspend, and other tasks need a turn."""
        self._committed: tuple[int, dict[bytes, Wake]] | None = None
        """The sequence number and changed keys of a transaction that has just been committed."""
        self._cancelled: list[Waiter] = []
        """Waiters of tasks that were cancelled while a thread had the lock."""

    async def task_call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._calls += 1
        if self._calls >= TURN_CALLS:
            self._calls = 0
            await asyncio.sleep(0)
        if self.gate.owner is not None:
            await self.gate.wait_open()
        return await in_greenlet(function, *args, **kwargs)

    async def task_call_long(self, function: Callable[[], T], alone: bool) -> T:
        """Run a function in a thread, or inside this task's transaction in the loop's own."""
        if self.gate.owner is not None and not self.gate.is_shut:
            return await in_greenlet(function)
        if not alone:
            await self.gate.wait_open()
            return await in_thread(function)
        thread = object()
        await self.gate.take(thread)
        return await in_thread(function, lambda: self._end_thread(thread))

    async def task_close(self, discard: bool) -> None:
        await self.task_call_long(partial(self.close, discard), alone=True)

    def _end_thread(self, thread: object) -> None:
        self.gate.release(thread)
        while self._cancelled:
            super().cancel(self._cancelled.pop())

    @asynccontextmanager
    async def transaction_of_task(self) -> AsyncIterator[None]:
        """Keep other tasks out of the transaction that this task opens inside.

        The others go on while this task waits for the fsync.
        """
        task = asyncio.current_task()
        await self.gate.take(task)
        _inside.set(task)
        try:
            yield
        finally:
            committed, self._committed = self._committed, None
            _inside.set(None)
            self.gate.release(task)
        if committed is not None:
            try:
                await self.task_call(self._wait_durable, *committed)
            except BaseException:
                self._unserved |= committed[1]
                raise

    def every(self, seconds: float, call: Callable[[], object]) -> Callable[[], None]:
        return every_in_task(self.task_call, seconds, call)

    sleep = staticmethod(pause)

    # --- where a thread would block -------------------------------------------------------------

    def _loop_signal(self) -> Signal:
        return LoopSignal(self.gate) if suspends() else Signal()

    def cancel(self, waiter: Waiter, reason: Wake = Wake.CANCELLED) -> bool:
        """Take a waiter out of the queue; later, if a thread has the lock for long."""
        if suspends() and type(self.gate.owner) is object:
            self._cancelled.append(waiter)
            return False
        return super().cancel(waiter, reason)

    def _wait_durable(self, sequence: int, signals: dict[bytes, Wake]) -> None:
        if not suspends():
            return super()._wait_durable(sequence, signals)
        if self.gate.owner is asyncio.current_task():  # ``transaction_of_task`` waits
            self._committed = sequence, signals
            return
        awaited = sequence or self.seen_sequence
        if self.committer.delays(awaited):
            wait(self._durable(awaited))
        if signals:
            if self.gate.is_shut:
                wait(self.gate.wait_open())
            self.serve(signals)

    async def _durable(self, sequence: int) -> None:
        """Wait until a write is durable."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def end(error: UnknownOutcome | None = None) -> None:
            if future.done():  # the task was cancelled
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        def tell(error: UnknownOutcome | None = None) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(end, error)

        self.committer.after(sequence, tell, tell)
        await future


# --- servers --------------------------------------------------------------------------------------


async def _begin(connection: Any) -> None:
    """Log in on a new connection, and make errors name their class."""
    await connection.on_connect()
    await connection.send_command(*NAME_CLASSES)
    with ignore_unknown_command():
        await connection.read_response()


class LoopLink(Link):
    """One connection to a server, whose replies a task awaits; redis.asyncio connects and frames.

    A task that is cancelled before the reply closes it: the next command would get that reply.
    """

    __slots__ = ("_reply_s", "_writer")

    def __init__(self, client: "redis.Redis") -> None:
        from redis.asyncio import connection
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        pool = client.connection_pool
        settings = pool.connection_kwargs | {
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "redis_connect_func": _begin,
        }
        self._reply_s = settings.get("socket_timeout")
        # ``_await_reply`` keeps this timeout. redis.asyncio's own would be 5 seconds, as long as a
        # blocked read waits, and makes it send by ``wait_for``, which before Python 3.12 loses
        # cancellations.
        settings["socket_timeout"] = None
        self._connection = getattr(connection, pool.connection_class.__name__)(**settings)
        try:
            wait(self._await_reply(self._connection.connect()))
        except BaseException as error:
            self._connection._close()
            mark_unsent(error)
            raise
        self._writer = self._connection._writer
        self._ended = select.poll()
        self._ended.register(self._writer.get_extra_info("socket").fileno(), select.POLLIN)
        self._unread = self._look_for_unread()

    def _look_for_unread(self) -> Callable[[], object]:
        connection = self._connection
        arrived = connection._reader._buffer  # the loop has read it from the socket
        reader = getattr(connection._parser, "_reader", None)  # hiredis's
        return lambda: arrived or (reader is not None and reader.has_data())

    def is_open(self) -> bool:
        """Return False if the server has ended it, or sent a reply twice."""
        return not (self._writer.is_closing() or self._ended.poll(0) or self._unread())

    def close(self) -> None:
        """Close it at once: a task that is being cancelled does not wait.

        The loop closes the socket later. The server must not deliver to it what others add before.
        """
        writer = self._connection._writer
        if writer is not None:
            descriptor = writer.get_extra_info("socket").fileno()
            with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as same:
                same.shutdown(socket.SHUT_RDWR)
        self._connection._close()

    end = close

    def _write(self, data: Sequence[bytes]) -> None:
        self._writer.writelines(data)
        wait(self._await_reply(self._writer.drain()))

    def _read(self) -> Any:
        return wait(self._await_reply(self._connection.read_response()))

    async def _await_reply(self, event: Awaitable[T]) -> T:
        from redis import exceptions

        try:
            async with asyncio.timeout(self._reply_s):
                return await event
        except TimeoutError:
            raise exceptions.TimeoutError("Timeout reading from socket") from None
        except OSError as error:
            raise exceptions.ConnectionError(str(error)) from None


class LoopConnection(Connection):
    """Sends the commands of the tasks of an event loop to one database of a server."""

    _link = LoopLink

    def __init__(self, client: "redis.Redis", db: int | None = None) -> None:
        super().__init__(client, db)
        self._used: set[Link] = set()

    def take(self) -> Link:
        if self._closed:
            raise StoreClosed
        link = super().take()
        self._used.add(link)
        return link

    def give_back(self, link: Link) -> None:
        self._used.discard(link)
        super().give_back(link)

    def close(self) -> None:
        """Close all connections; reads that wait on them end."""
        super().close()
        while self._used:
            self._used.pop().close()


class OfTask:
    """The open transaction of the running task, and in a shared store its server."""

    def __init__(self) -> None:
        self._open: dict[object, Any] = {}

    def _get(self) -> Any:
        if self._open:
            task = running_task()
            if task in self._open:
                return self._open[task]
            owner = _inside.get()
            _refuse_child(owner if owner in self._open else None)
        return None

    def _set(self, value: Any) -> None:
        task = asyncio.current_task()
        if value is None:
            self._open.pop(task, None)
        else:
            self._open[task] = value

    transaction = property(_get, _set)
    server = property(_get, _set)


class TaskLock:
    """A lock of the tasks of one event loop, which its holder may take again.

    Outside of ``in_greenlet``, such as at the end of the program, no task runs, and it does
    nothing.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._holder: object = None
        self._depth = 0

    def __enter__(self) -> None:
        if not suspends():
            return
        task = asyncio.current_task()
        if self._holder is not task:
            wait(self._lock.acquire())
            self._holder = task
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        if not suspends():
            return
        self._depth -= 1
        if not self._depth:
            self._holder = None
            self._lock.release()


def running_task() -> object:
    """Return the running task; None in a thread without a loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


class RemoteCalls:
    """How the tasks of an event loop call an engine whose calls go to another process."""

    async def task_call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await in_greenlet(function, *args, **kwargs)

    async def task_call_long(self, function: Callable[[], T], alone: bool) -> T:
        """Run a function as any other: the server does the work."""
        return await in_greenlet(function)

    async def task_close(self, discard: bool) -> None:
        await in_greenlet(cast(AnyEngine, self).close, discard)

    def every(self, seconds: float, call: Callable[[], object]) -> Callable[[], None]:
        return every_in_task(self.task_call, seconds, call)

    @asynccontextmanager
    async def transaction_of_task(self) -> AsyncIterator[None]:
        """Refuse calls of tasks that this task starts inside."""
        outer = _inside.get()
        _inside.set(asyncio.current_task())
        try:
            yield
        finally:
            _inside.set(outer)


class LoopRemoteEngine(RemoteCalls, RemoteEngine):
    """A server, for the tasks of one event loop."""

    connection_type = LoopConnection
    sleep = staticmethod(pause)
    _new_local: Callable[[], Any] = OfTask
