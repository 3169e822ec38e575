"""The host: the executor that all clients of one store in this process share.

A thread that sends requests runs the turn itself, under the host's lock. Callers that must not wait
for the lock queue a function: requests of asyncio clients, and results that another thread found
for a blocked client. The thread that holds the lock runs it, or the host's own thread, which also
keeps deadlines. The host's lock is always taken before the engine's; a thread that may hold the
engine's only tries.

This module knows neither redis-py nor asyncio.
"""

import errno
import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NoReturn, Protocol, cast

from kvstream.commands.args import Argv
from kvstream.commands.command import Answer, Command, Container, Session
from kvstream.engine.engine import Engine
from kvstream.engine.lock import CallLock
from kvstream.engine.waiters import Signal
from kvstream.errors import InvalidArgument, ReentrantCall, RequestError, StoreClosed
from kvstream.logs import emit_deferred
from kvstream.meta.txn import Txn
from kvstream.resp.requests import RequestReader
from kvstream.server.commands import TABLE
from kvstream.server.options import ServerOptions
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.executor import Executor
from kvstream.server.runtime.loop import NoLoop
from kvstream.storage import directory
from kvstream.storage.contexts import contextmanager
from kvstream.types.options import ENTRY_BYTES_MAX

OPTIONS = ServerOptions(
    port=0, output_max=0, maxmemory_clients=0, stream_entry_max_bytes=ENTRY_BYTES_MAX
)
"""No port, entries as large as in the library, and no limit on unread replies, as they are in the
reader's own memory."""
TICK_S = 1.0
"""Seconds between two checks for idle clients; rates are sampled then, too."""
CLOSED = "the store is closed"


class Endpoint(Protocol):
    """The client's side of a connection. The host calls it under its lock; it must not raise."""

    def send(self, data: bytes) -> None:
        """Take the bytes of replies."""
        ...

    def close(self) -> None:
        """End the connection after the replies that were sent."""
        ...

    def fail(self, reason: str) -> None:
        """End the connection because the host has ended."""
        ...

    def pending(self) -> int:
        """Return the number of bytes that were sent and are unread."""
        ...


class _Transport:
    """The way from a client to its endpoint, which counts the replies."""

    def __init__(self, executor: Executor, end: Endpoint) -> None:
        self._executor = executor
        self._send, self.close, self.abort = end.send, end.close, end.close
        self.pending_output = end.pending
        self.client: Client | None = None

    def send(self, data: bytes) -> None:
        """Send replies; drop a client that reads too slowly."""
        self._send(data)
        client, executor = self.client, self._executor
        if client is None:
            return
        client.bytes_out += len(data)
        executor.statistics.bytes_out += len(data)
        if not executor.limits.admits(client):
            self.close()

    def pause(self) -> None:
        """Do nothing: the caller sends when it likes."""

    def resume(self) -> None:
        """Do nothing, as ``pause``."""


class Host(NoLoop):
    """The clients of one store in this process, and their executor."""

    def __init__(self, engine: Engine, on_idle: Callable[[], None]) -> None:
        """``on_idle`` is called by the host's thread after each round, without its lock."""
        self.engine = engine
        self.executor = Executor(engine, COMMANDS, OPTIONS, self)
        self.ended = ""
        """The reason why the host has ended; empty while it runs."""
        self._ends: dict[Client, Endpoint] = {}
        self._numbers = itertools.count(1)
        self._lock = CallLock()
        self._posted: deque[Callable[[], None]] = deque()
        self._owner = 0
        self._alarm = Signal()
        self._ticks_at = self._wakes_at = self.executor.clock() + TICK_S
        self._on_idle = on_idle
        directory.register(self)
        self._thread = threading.Thread(target=self._watch, name="kvstream-clients", daemon=True)
        self._thread.start()

    # --- connections ----------------------------------------------------------------------------

    def connect(self, end: Endpoint) -> Client | None:
        """Take a new client; return None if it is refused. Its endpoint gets the error."""
        with self._working():
            self._refuse_ended()
            executor = self.executor
            refusal = executor.limits.refusal(is_local=True)
            if refusal is not None:
                end.send(refusal)
                end.close()
                return None
            number = next(self._numbers)
            transport = _Transport(executor, end)
            client = Client(executor, number, RequestReader(), transport, executor.clock())
            transport.client = client
            client.is_local = True
            client.address = client.local_address = f"inprocess:{number}"
            self._ends[client] = end
            executor.add(client)
            return client

    def receive(self, client: Client, data: bytes) -> None:
        """Take a client's requests and run them in this thread.

        Raises ReentrantCall in the middle of another call of this thread.
        """
        self.refuse_within()
        self._refuse_transaction()
        with self._working():
            try:
                self._refuse_ended()
                self.executor.receive(client, data)
                self._settle()
            except StoreClosed:
                self.end(CLOSED)
                self._refuse_ended()
            except BaseException:
                self._drop_unanswered()
                raise
        emit_deferred()

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Keep the lock for a block, in which the thread may make no other call of the store."""
        entered, thread = self.engine.entered, threading.get_ident()
        with self._lock:
            before, self._owner = self._owner, thread
            is_outer = thread not in entered
            entered[thread] = True
            try:
                yield
            finally:
                self._owner = before
                if is_outer:
                    entered.pop(thread, None)

    def refuse_within(self) -> None:
        """Raise ReentrantCall in the middle of another call of this thread."""
        if self._lock.is_held_here():
            raise ReentrantCall
        self.engine.refuse_within()

    def submit(self, function: Callable[[], None]) -> None:
        """Run a function that brings requests in the host's thread; return at once."""
        self._refuse_transaction()
        self._refuse_ended()
        self.enqueue(function)

    def enqueue(self, function: Callable[[], None]) -> None:
        """Queue a function to be called under the lock, by its holder or by the host's thread."""
        self._posted.append(function)
        self._alarm.set()

    def between_turns(self, function: Callable[[], None]) -> None:
        """Call a function while no turn runs, so that no thread references clients in a turn."""
        with self._working():
            function()

    def wake(self) -> None:
        """Wake the host's thread."""
        self._alarm.set()

    def is_busy_here(self) -> bool:
        """Return whether this thread holds the host's lock or the engine's."""
        return self._owner == threading.get_ident() or self.engine.is_held_here()

    def disconnect(self, client: Client) -> None:
        """Forget a client whose connection has ended, after a turn that may still use it."""
        if not self.ended:
            self.enqueue(partial(self._forget, client))

    def _forget(self, client: Client) -> None:
        self._ends.pop(client, None)
        self.executor.forget(client)

    # --- turns ----------------------------------------------------------------------------------

    def post(self, function: Callable[[], None]) -> None:
        """Call a function under the lock: now if this thread holds it, or else soon.

        This never waits for the lock, as the caller may hold the engine's.
        """
        if self._owner == threading.get_ident():
            function()
        else:
            self.enqueue(function)

    def _do_posted(self) -> None:
        while self._posted:
            self._posted.popleft()()

    def _settle(self) -> None:
        """Run turns until no requests are left."""
        executor = self.executor
        self._do_posted()
        while executor.run() or self._posted:
            self._do_posted()
        due = executor.due()
        if due is not None and due < self._wakes_at:
            self._wakes_at = due
            self._alarm.set()

    def _drop_unanswered(self) -> None:
        """Close every connection that may miss a reply of an interrupted turn.

        Blocked clients that were not served go on waiting.
        """
        for client in list(self.executor.clients.values()):
            if client.block is None or client.block.waiter.done:
                self.executor.drop(client)

    # --- the host's own thread ------------------------------------------------------------------

    def _watch(self) -> None:
        clock = self.executor.clock
        while not self.ended:
            self._alarm.wait(self._wakes_at - clock())
            try:
                self._run_due()
            except StoreClosed:
                self.end(CLOSED)
            except Exception:  # no client may wait for a reply that will not come
                with self._lock:
                    self._drop_unanswered()
                report = threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
                threading.excepthook(report)
            self._on_idle()

    def _run_due(self) -> None:
        """Run due turns and queued functions."""
        executor = self.executor
        with self._working():
            if self.ended:
                return
            executor.expire()
            if executor.clock() >= self._ticks_at:
                executor.tick()
                self._ticks_at = executor.clock() + TICK_S
            self._wakes_at = self._ticks_at
            self._settle()
        emit_deferred()

    # --- the end --------------------------------------------------------------------------------

    def end(self, reason: str = CLOSED, quietly: bool = False) -> None:
        """Disconnect all clients; a second call does nothing. The store stays open.

        ``quietly``: blocked clients get no error, and go on waiting.
        """
        with self._lock:
            if self.ended:
                return
            self.ended = reason
            for client, end in list(self._ends.items()):
                self.executor.forget(client)
                if not quietly:
                    end.fail(reason)
            self._ends.clear()
            self.executor.notifications.end()
        directory.unregister(self)
        self._alarm.set()

    def join(self) -> None:
        """Wait for the host's thread and for checkpoints that clients have begun."""
        self.executor.checkpoints.join()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def refuse_after_fork(self) -> None:
        """Make the host unusable in a forked child: lock and thread are the parent's."""
        self.ended = directory.FORKED
        self._lock = CallLock()
        self._posted.clear()

    def _refuse_ended(self) -> None:
        if self.ended:
            raise ConnectionResetError(errno.ECONNRESET, self.ended)

    def _refuse_transaction(self) -> None:
        """Refuse a request in a transaction of this thread: each would wait for the other."""
        if self.engine.is_open_here():
            raise InvalidArgument(
                "a transaction of the store is open in this thread: inside it use the methods of "
                "the Store, or use MULTI and EXEC of the client instead of it"
            )


_CLIENT = cast(Container, TABLE[b"client"])


def _shutdown(txn: Txn, session: Session, argv: Argv) -> NoReturn:
    """Refuse SHUTDOWN: the store is in its clients' process, and is closed with the last client."""
    raise RequestError("SHUTDOWN: the store is in this process, and is closed with its last client")


def _tracking(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Refuse CLIENT TRACKING ON: the program may write to the store without its clients' notice."""
    if argv[2].lower() == b"on":
        raise RequestError("keys are not tracked in the process of the store: cache none of them")
    return _CLIENT.subcommands[b"tracking"].run(txn, session, argv)  # type: ignore[return-value]


def _commands() -> dict[bytes, Command | Container]:
    """Return the server's command table without the commands that need a server process."""
    shutdown = replace(cast(Command, TABLE[b"shutdown"]), run=_shutdown)
    tracking = replace(_CLIENT.subcommands[b"tracking"], run=_tracking)
    client = replace(_CLIENT, subcommands={**_CLIENT.subcommands, b"tracking": tracking})
    return {**TABLE, b"shutdown": shutdown, b"client": client}


COMMANDS = _commands()
