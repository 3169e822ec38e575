"""Clients of an executor without sockets: bytes in, bytes out, and a manual clock."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hiredis

from kvstream.commands.command import Table
from kvstream.engine.engine import Engine
from kvstream.meta import unfinished_loads
from kvstream.operations import keyspace
from kvstream.operations.checks import check
from kvstream.resp.requests import RequestReader
from kvstream.server.commands import TABLE
from kvstream.server.options import ServerOptions
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.executor import Executor
from kvstream.server.runtime.loop import NoLoop
from kvstream.types.clock import Clock
from kvstream.types.options import Durability, StoreOptions
from kvstream.types.thresholds import DEFAULT, Thresholds
from tests.patience import PATIENCE_S


def request(*words: bytes | str) -> bytes:
    """Return a request as clients send it."""
    given = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(given) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in given)


class _Ends:
    """The transport of a Talker."""

    def __init__(self, talker: "Talker") -> None:
        self.send, self.pending_output = talker.hear, talker.pending_output
        self.close = self.abort = talker.close
        self.pause, self.resume = talker.pause, talker.resume


class Talker:
    """A client, its requests and the replies to them."""

    def __init__(self, server: "Server", number: int) -> None:
        self.server = server
        self._said = b""
        self.closed = False
        self.holds: list[str] = []
        self.client = Client(server.executor, number, RequestReader(), _Ends(self), server.now)
        server.executor.add(self.client)

    def hear(self, data: bytes) -> None:
        self._said += data

    def close(self) -> None:
        self.closed = True

    def pending_output(self) -> int:
        """Return how much of the output the client has not read."""
        return 0

    def pause(self) -> None:
        """Note that the server reads no more."""
        self.holds.append("held")

    def resume(self) -> None:
        """Note that the server reads again."""
        self.holds.append("read")

    def send(self, *words: bytes | str) -> None:
        """Send a request; it runs in the next turn."""
        self.send_bytes(request(*words))

    def send_bytes(self, data: bytes) -> None:
        self.server.executor.receive(self.client, data)

    @property
    def has_heard(self) -> bool:
        """Return whether there is output since the last call of ``heard``."""
        return bool(self._said)

    def heard(self) -> bytes:
        """Return the output since the last call."""
        said, self._said = self._said, b""
        return said

    def ask(self, *words: bytes | str) -> bytes:
        """Send a request, run a turn, and return the output."""
        self.send(*words)
        self.server.turn()
        return self.heard()

    def leave(self) -> None:
        self.server.executor.forget(self.client)


class Server(NoLoop):
    """An executor on a store of its own."""

    def __init__(
        self,
        directory: Path,
        durability: Durability = Durability.EVERYSEC,
        clock: Clock | None = None,
        thresholds: Thresholds = DEFAULT,
        commands: Table = TABLE,
    ) -> None:
        self.now = 1000.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self.engine = Engine(directory, StoreOptions(durability=durability), clock, thresholds)
        self.executor = Executor(self.engine, commands, ServerOptions(), self)
        self._clients = 0

    def clock(self) -> float:
        return self.now if self._loop is None else self._loop.time()

    def post(self, function: Callable[[], None]) -> None:
        if self._loop is None or threading.get_ident() == self._thread:
            function()
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(function)

    def run_in_loop(self) -> None:
        """Take the time of the running event loop, and calls of other threads in it."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def client(self) -> Talker:
        self._clients += 1
        return Talker(self, self._clients)

    def turn(self) -> None:
        """Run turns until no work is left."""
        executor = self.executor
        while executor.run() or executor.streaming.write() or executor.pending:
            pass

    def wait(self, seconds: float) -> None:
        """Advance the clock, and run the due work."""
        self.now += seconds
        self.executor.expire()
        self.turn()


@contextmanager
def sound(directory: Path, clock: Clock | None = None, **sizes: Any) -> Iterator[Server]:
    """A server whose store is checked at the end, with nothing incomplete left in it.

    Requests sent together run in one turn, on any machine. ``sizes`` are fields of Thresholds.
    """
    server = Server(directory, clock=clock, thresholds=Thresholds(turn_s=PATIENCE_S, **sizes))
    yield server
    assert server.engine.run(check) == []
    while server.engine.run(keyspace.sweep, 100):
        pass
    assert server.engine.run(check) == []
    assert server.engine.run(lambda txn: list(unfinished_loads.all_of(txn))) == []
    server.engine.close()


class Worker(Talker):
    """A client whose long commands run in steps."""

    def __init__(self, server: Server, number: int) -> None:
        super().__init__(server, number)
        self.client.pages = True

    def begin(self, *words: str) -> None:
        """Send a command that is paused, and run its first step."""
        self.send(*words)
        self.step()
        assert self.client.reply_unfinished

    def step(self) -> None:
        """Run one turn, and at most one step."""
        self.server.executor.run()

    def end(self, meanwhile: Callable[[], object] = lambda: None) -> Any:
        """Run steps until the command is answered, calling a function between them."""
        steps = 0
        while self.server.executor.incremental.is_busy:
            meanwhile()
            self.step()
            steps += 1
            assert steps < 1000
        self.server.turn()
        return parsed(self.heard())


class Other(Talker):
    """A client that asks without waiting for commands of others."""

    def ask(self, *words: bytes | str) -> bytes:
        self.send(*words)
        said = b""
        while not said:
            self.server.executor.run()
            said = self.heard()
        return said


def parsed(reply: bytes) -> Any:
    reader = hiredis.Reader()
    reader.feed(reply)
    value = reader.gets()
    assert reader.gets() is False
    return value
