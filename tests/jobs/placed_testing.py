"""The test mode of jobs on a shared directory and on a server, whose workers die at any request.

The engine that owns the store is in this process, so its clock can be turned. A worker dies before
a write, or after it: then the write was done, and nobody has its reply.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

from kvstream import Jobs
from kvstream.engine import timer_thread
from kvstream.engine.engine import Engine
from kvstream.jobs.testing import TIMERS, Testing, first_timer
from kvstream.layout.keys import qualified
from kvstream.operations.checks import check
from kvstream.remote.connection import Connection
from kvstream.remote.engine import RemoteEngine
from kvstream.shared.engine import SharedEngine
from kvstream.store import Store
from kvstream.types.options import StoreOptions
from tests.jobs.test_workflow_replays import Killed
from tests.server.conftest import Served

T = TypeVar("T")

READS = frozenset(
    {"CLIENT", "EXISTS", "GET", "INFO", "TIME", "TYPE", "XLEN", "XPENDING", "XRANGE", "XREAD"}
)
"""Commands that write nothing, and XREADGROUP: a job that it has delivered is lost anyway."""
WAIT_S = 30.0


class Life:
    """How many writes a worker still makes, in the thread that runs the test."""

    def __init__(self) -> None:
        self.left: int | None = None
        """None: it lives."""
        self.writes_last = False
        """Whether the last write is done before it dies."""
        self._dead = False
        self._thread = threading.get_ident()

    def run(self, act: Callable[[], T], *, repeats: bool = True) -> T:
        """Make a write, or die; ``repeats``: it may be done though it raises."""
        if self.left is None or threading.get_ident() != self._thread:
            return act()
        if self.left == 0:
            if self.writes_last and repeats and not self._dead:
                act()
            self._dead = True
            raise Killed
        self.left -= 1
        return act()

    def begin(self, left: int | None, writes_last: bool = False) -> None:
        self.left, self.writes_last, self._dead = left, writes_last, False


class PlacedTesting(Testing):
    """The test mode of jobs in a store that others can reach, too."""

    def __init__(self, jobs: Jobs, place: str) -> None:
        super().__init__(jobs)
        self.life = Life()
        self._place = place
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        folder = tempfile.mkdtemp(prefix="kvstream-jobs-")
        self._ends.callback(shutil.rmtree, folder, ignore_errors=True)
        made = self._share if self._place == "shared" else self._serve
        engine: Any = made(Path(folder) / "store")
        self._ends.callback(engine.close)
        self.jobs.testing = self
        self.jobs.use(Store(engine, 0))
        self.jobs.declare()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.jobs.use(None)
        finally:
            self.jobs.testing = None
            self._ends.close()

    def run_and_die(self, writes: int, writes_last: bool) -> bool:
        """Run what is due, and die after some writes; return whether it has died."""
        self.life.begin(writes, writes_last)
        try:
            self.run()
        except Killed:
            return True
        finally:
            self.life.begin(None)
        return False

    def check(self) -> list[Any]:
        """Return what is wrong in the store."""
        return list(self._owner.run(check))

    def _remote(self) -> type[RemoteEngine]:
        """Return a class of clients that die with the worker."""
        life = self.life

        class MortalConnection(Connection):
            def _execute(self, *words: Any) -> Any:
                if words[0] in READS or words[0] == "XREADGROUP":
                    return super()._execute(*words)
                return life.run(lambda: super(MortalConnection, self)._execute(*words))

            def _all(self, send: Callable[[Any], list[Any]], writing: bool) -> list[Any]:
                if not writing:
                    return super()._all(send, writing)
                return life.run(lambda: super(MortalConnection, self)._all(send, writing))

            def transact(self, link: Any, commands: Any) -> list[Any]:
                return life.run(lambda: super(MortalConnection, self).transact(link, commands))

        class Mortal(RemoteEngine):
            connection_type = MortalConnection

        return Mortal

    def _serve(self, folder: Path) -> RemoteEngine:
        served = Served(folder, clock=self.clock)
        self._ends.callback(served.stop)
        self._owner = served.engine
        client = self._remote().open(f"redis://127.0.0.1:{served.port}")
        client.clock = self.clock  # TIME is that of the system
        return client

    def _share(self, folder: Path) -> SharedEngine:
        clock, life = self.clock, self.life

        class Owned(Engine):
            def __init__(self, directory: Path, options: StoreOptions) -> None:
                super().__init__(directory, options, clock=clock)

            def _commit(self, txn: Any) -> int:
                return life.run(lambda: int(super(Owned, self)._commit(txn)), repeats=False)

        class Shared(SharedEngine):
            engine_type, server_type = Owned, self._remote()

        shared = Shared(folder, StoreOptions(), WAIT_S)
        shared.clock = shared.local_clock = clock
        assert shared.own_engine is not None
        self._owner = shared.own_engine
        return shared

    def _fire(self) -> None:
        while self._owner.run(timer_thread.run_due, TIMERS):
            pass

    def _first_due(self, key: bytes) -> int:
        return self._owner.run(first_timer, qualified(0, key))
