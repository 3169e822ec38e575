"""The host: the executor that all clients of one store in this process share.

A thread that sends runs the turn itself, under the host's lock. What must not wait for that lock
is posted instead: what asyncio's clients send, and what other threads have found for a blocked one.
It is done by whoever holds the lock, or by the host's own thread, which looks after deadlines as
well. The lock is always taken before the engine's; a thread that may have the engine's only tries.

This module knows neither redis-py nor asyncio.
"""

import errno
import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NoReturn, Protocol, cast

from kvstream.commands.args import Argv
from kvstream.commands.command import Answer, Command, Container, Session
from kvstream.engine.engine import Engine
from kvstream.engine.waiters import Signal
from kvstream.errors import InvalidArgument, RequestError, StoreClosed
from kvstream.meta.txn import Txn
from kvstream.resp.requests import RequestReader
from kvstream.server.commands.table import TABLE
from kvstream.server.options import ServerOptions
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.executor import Executor
from kvstream.storage import directory
from kvstream.types.options import ENTRY_BYTES_MAX

OPTIONS = ServerOptions(
    port=0, output_max=0, maxmemory_clients=0, stream_entry_max_bytes=ENTRY_BYTES_MAX
)
"""No port, entries as large as the library takes, and no limit of replies that were not read: they
are in the memory of who reads them."""
TICK_S = 1.0
"""How often idle clients are looked for, and rates are taken."""
CLOSED = "the store is closed"


class End(Protocol):
    """A client's end of a connection. The host calls it under its lock; it must not raise."""

    def send(self, data: bytes) -> None:
        """Take bytes of replies."""
        ...

    def close(self) -> None:
        """Take no more, once what was sent has been read."""
        ...

    def break_off(self, reason: str) -> None:
        """Take no more: the host has ended."""
        ...

    def pending(self) -> int:
        """Return the bytes that have been sent and not been read."""
        ...


class Host:
    """The clients of one store in this process, and what they wait for."""

    def __init__(self, engine: Engine, unlocked: Callable[[], None]) -> None:
        """``unlocked`` is called by the host's thread, now and then, while that has no lock."""
        self.engine = engine
        self.executor = Executor(engine, COMMANDS, post=self.post, options=OPTIONS)
        self.ended = ""
        """Why there is nothing more to be had; empty while there is."""
        self._ends: dict[Client, End] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._posted: deque[Callable[[], None]] = deque()
        self._owner = 0
        self._alarm = Signal()
        self._ticks_at = self._wakes_at = self.executor.clock() + TICK_S
        self._unlocked = unlocked
        directory.register(self)
        self._thread = threading.Thread(target=self._watch, name="kvstream-clients", daemon=True)
        self._thread.start()

    # --- connections ----------------------------------------------------------------------------

    def welcome(self, end: End) -> Client | None:
        """Let a client in; None where that is refused, as its end is told."""
        with self._lock:
            self._refuse_ended()
            executor = self.executor
            refusal = executor.limits.refusal(is_local=True)
            if refusal is not None:
                end.send(refusal)
                end.close()
                return None
            number = next(self._numbers)
            now = executor.clock()
            client = Client(executor, number, RequestReader(), end.send, end.close, now)
            client.send = partial(self._send, client, end)
            client.pending_output, client.abort = end.pending, end.close
            client.is_local = True
            client.address = client.local_address = f"inprocess:{number}"
            self._ends[client] = end
            executor.add(client)
            return client

    def talk(self, client: Client, data: bytes) -> None:
        """Take what a client sends and run what is there to be run, in this thread."""
        self._refuse_transaction()
        with self._lock:
            self._owner = threading.get_ident()
            try:
                self._refuse_ended()
                self.executor.received(client, data)
                self._settle()
            except StoreClosed:
                self.end(CLOSED)
                self._refuse_ended()
            except BaseException:
                self._hang_up()
                raise
            finally:
                self._owner = 0

    def submit(self, function: Callable[[], None]) -> None:
        """Have the host's thread call what brings requests; this one waits for nothing."""
        self._refuse_transaction()
        self._refuse_ended()
        self.hand_over(function)

    def hand_over(self, function: Callable[[], None]) -> None:
        """Have a function called under the lock, by who has it or by the host's thread."""
        self._posted.append(function)
        self._alarm.set()

    def between_turns(self, function: Callable[[], None]) -> None:
        """Call a function while no turn runs, so that no thread holds clients by what it does."""
        with self._lock:
            before, self._owner = self._owner, threading.get_ident()
            try:
                function()
            finally:
                self._owner = before

    def wake(self) -> None:
        """Have the host's thread look after everything."""
        self._alarm.set()

    def is_busy_here(self) -> bool:
        """Tell whether this thread has the host's lock or the engine's."""
        return self._owner == threading.get_ident() or self.engine.is_held_here()

    def leave(self, client: Client) -> None:
        """Forget a client whose connection has ended: soon, for a turn may be looking at it."""
        if not self.ended:
            self.hand_over(partial(self._forget, client))

    def _forget(self, client: Client) -> None:
        self._ends.pop(client, None)
        self.executor.gone(client)

    def _send(self, client: Client, end: End, data: bytes) -> None:
        """Send replies; who reads too slowly is cut off."""
        end.send(data)
        client.bytes_out += len(data)
        self.executor.statistics.bytes_out += len(data)
        if not self.executor.limits.admits(client):
            end.close()

    # --- turns ----------------------------------------------------------------------------------

    def post(self, function: Callable[[], None]) -> None:
        """Have a function called under the lock: now where this thread has it.

        Others may have the engine's lock, and must not wait for this one: it is done for them.
        """
        if self._owner == threading.get_ident():
            function()
        else:
            self.hand_over(function)

    def _do_posted(self) -> None:
        while self._posted:
            self._posted.popleft()()

    def _settle(self) -> None:
        """Run turns until nothing is left to be run."""
        executor = self.executor
        self._do_posted()
        while executor.run() or self._posted:
            self._do_posted()
        due = executor.due()
        if due is not None and due < self._wakes_at:
            self._wakes_at = due
            self._alarm.set()

    def _hang_up(self) -> None:
        """Close every connection that a turn which was cut short may owe a reply.

        Those that wait for news, and have not been served, may go on waiting.
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
                self._look_after()
            except StoreClosed:
                self.end(CLOSED)
            except Exception:  # nobody may wait for a reply that will not come
                with self._lock:
                    self._hang_up()
                report = threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
                threading.excepthook(report)
            self._unlocked()

    def _look_after(self) -> None:
        """Do what is due, and what was left by others."""
        executor = self.executor
        with self._lock:
            self._owner = threading.get_ident()
            try:
                if self.ended:
                    return
                executor.expire()
                if executor.clock() >= self._ticks_at:
                    executor.tick()
                    self._ticks_at = executor.clock() + TICK_S
                self._wakes_at = self._ticks_at
                self._settle()
            finally:
                self._owner = 0

    # --- the end --------------------------------------------------------------------------------

    def end(self, reason: str = CLOSED, quietly: bool = False) -> None:
        """Let go of all clients; a second call does nothing. The store stays as it is.

        ``quietly``: who waits is told nothing, and waits on.
        """
        with self._lock:
            if self.ended:
                return
            self.ended = reason
            for client, end in list(self._ends.items()):
                self.executor.gone(client)
                if not quietly:
                    end.break_off(reason)
            self._ends.clear()
        directory.unregister(self)
        self._alarm.set()

    def join(self) -> None:
        """Wait for the host's thread, and for what clients have begun, once it has ended."""
        self.executor.saving.join()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def refuse_after_fork(self) -> None:
        """Be of no use in a forked child: lock and thread are its parent's."""
        self.ended = directory.FORKED
        self._lock = threading.RLock()
        self._posted.clear()

    def _refuse_ended(self) -> None:
        if self.ended:
            raise ConnectionResetError(errno.ECONNRESET, self.ended)

    def _refuse_transaction(self) -> None:
        """Requests run in transactions of their own, for which this thread would wait for ever."""
        if self.engine.is_open_here():
            raise InvalidArgument(
                "a transaction of the store is open in this thread: inside it use the methods of "
                "the Store, or use MULTI and EXEC of the client instead of it"
            )


_CLIENT = cast(Container, TABLE[b"client"])


def _shutdown(txn: Txn, session: Session, argv: Argv) -> NoReturn:
    """Refused: the store is in the process of its clients, and is closed with the last of them."""
    raise RequestError("SHUTDOWN: the store is in this process, and is closed with its last client")


def _tracking(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Refused: the program may write to the store beside its clients, and nobody would say so."""
    if argv[2].lower() == b"on":
        raise RequestError("keys are not tracked in the process of the store: cache none of them")
    return _CLIENT.subcommands[b"tracking"].run(txn, session, argv)


def _commands() -> dict[bytes, Command | Container]:
    """Return the server's table but for what makes no sense without one."""
    shutdown = replace(cast(Command, TABLE[b"shutdown"]), run=_shutdown)
    tracking = replace(_CLIENT.subcommands[b"tracking"], run=_tracking)
    client = replace(_CLIENT, subcommands={**_CLIENT.subcommands, b"tracking": tracking})
    return {**TABLE, b"shutdown": shutdown, b"client": client}


COMMANDS = _commands()
