"""The implementations that the tests compare, each as a callable ``run(*argv) -> reply``."""

import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Protocol

import hiredis

from kvstream.commands.replies import ErrorReply as CommandError
from kvstream.engine.engine import Engine
from kvstream.meta.reply_cache import ReplyCache
from kvstream.operations import checks
from kvstream.resp.replies import write_rows
from kvstream.types.options import Durability, StoreOptions
from kvstream.types.records import Fault
from tests.commands.dispatcher import Dispatcher, flatten
from tests.folders import as_killed
from tests.model.commands import run
from tests.model.database import Redis
from tests.model.replies import ErrorReply
from tests.operations.redis7 import update_error
from tests.operations.replies import Argument, Error, Reply, encode
from tests.patience import PATIENCE_S

SERVER = ["redis-server", "--port", "0", "--save", "", "--appendonly", "no"]
CONFIGURATION = {"stream-node-max-entries": 100, "stream-node-max-bytes": 4096}
START_MS = 1_700_000_000_000


class Clock:
    """A clock in milliseconds that moves only when the test advances it."""

    def __init__(self) -> None:
        self.ms = START_MS

    def now_ms(self) -> int:
        return self.ms

    def advance(self, ms: int) -> None:
        self.ms += ms


class Subject(Protocol):
    """An implementation: call it with a command; its clock is manual, except that of redis."""

    clock: Clock

    def __call__(self, *argv: Argument) -> Reply: ...


class Model:
    """The model of tests/model, by default on a manual clock."""

    def __init__(self, clock: Clock | None = None, old: bool = False) -> None:
        self.clock = clock or Clock()
        self.redis = Redis(self.clock.now_ms, old)

    def __call__(self, *argv: Argument) -> Reply:
        return plain(run(self.redis, *encode(argv)))


class Kvstream:
    """A store in its own directory, called through its dispatcher."""

    def __init__(self, directory: Path, hot_memory: int = 1 << 20) -> None:
        """``hot_memory`` limits the memory for recently read records, possibly to a single one."""
        self.clock = Clock()
        self._parent = directory
        self._hot_memory = hot_memory
        self.lives = 0
        self._open(directory / "life-0")

    def _open(self, directory: Path) -> None:
        self.directory = directory
        # The compared results do not depend on fsync, nor do the files that a crash leaves.
        options = StoreOptions(durability=Durability.NO)
        self.engine = Engine(directory, options, self.clock)
        self.engine.catalog.reply_cache = cache = ReplyCache(self._hot_memory, write_rows)
        cache.rows_min = 1
        self._dispatcher = Dispatcher(self.engine)

    def __call__(self, *argv: Argument) -> Reply:
        reply = flatten(self._dispatcher.execute(encode(argv)))
        return Error(reply.line) if isinstance(reply, CommandError) else reply

    def faults(self) -> list[Fault]:
        """Return what ``check`` finds wrong in the store."""
        return self.engine.run(checks.check)

    def crash(self) -> None:
        """Continue from the files that kill -9 would leave at this moment."""
        self.lives += 1
        image = self._parent / f"life-{self.lives}"
        as_killed(self.directory, image)
        self.close()
        self._open(image)

    def reopen(self) -> None:
        """Close the store properly and open it again."""
        self.lives += 1
        self.engine.close()
        self._open(self.directory)

    def close(self) -> None:
        self.engine.close()
        shutil.rmtree(self.directory)


def plain(reply: Reply) -> Reply:
    """Return a reply of the model in the common form."""
    if isinstance(reply, ErrorReply):
        return Error(reply.text)
    if isinstance(reply, list | tuple):
        return [plain(item) for item in reply]
    return reply


class RedisServer:
    """A redis-server of this machine, started for the tests and spoken to in RESP2.

    Error texts that 8.10 has reworded are returned in the words of 8.10.
    """

    clock = Clock()  # does not move

    def __init__(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="kvstream-redis-")
        path = Path(self._directory, "socket")
        self._process = subprocess.Popen(
            [*SERVER, "--unixsocket", str(path), "--dir", self._directory],
            stdout=subprocess.DEVNULL,
        )
        self._socket = socket.socket(socket.AF_UNIX)
        self._connect(path)
        self._reader = hiredis.Reader()

    def _connect(self, path: Path) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._socket.connect(str(path))
                return
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.01)

    def __call__(self, *argv: Argument) -> Reply:
        parts = encode(argv)
        frame = b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
        self._socket.sendall(b"*%d\r\n" % len(parts) + frame)
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(1 << 16))
        if isinstance(reply, hiredis.ReplyError):
            return update_error(parts[0], Error(str(reply).encode()))
        return reply

    def __enter__(self) -> "RedisServer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)
