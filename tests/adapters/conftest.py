"""The places of the adapters, and workers of frameworks that a test kills while they run tasks."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import kvstream
from kvstream import Store, StoreLocked
from kvstream.adapters.tasks import Tasks
from tests import forking
from tests.patience import PATIENCE_S, until
from tests.serving import ServerProcess

LEASE_S = 1.0
"""How long a killed worker's task waits in these tests."""
KILLS = {"directory": 2, "server": 1}
"""Workers that are killed; in a directory the killed one may have been its owner."""
TASKS = 10
"""Tasks that are sent in each round, before a worker is killed."""


def options_of(place: str) -> dict[str, Any]:
    """Return the options of a directory that several processes open."""
    return {} if "://" in place else {"durability": "no"}


def open_place(place: str) -> Store:
    if "://" in place:
        return kvstream.open(place)
    return kvstream.open(place, shared=True, durability="no")


def is_sound(directory: Path) -> bool:
    """Check a store; return False while another process, which is about to end, has it open."""
    with suppress(StoreLocked), Store.open(directory) as store:
        assert store.check() == []
        return True
    return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server."""
    directory = tmp_path_factory.mktemp("adapters") / "store"
    server = ServerProcess(directory, "--durability", "no")
    try:
        yield f"redis://127.0.0.1:{server.port}/0"
    finally:
        server.process.send_signal(signal.SIGTERM)
        server.process.communicate()
    assert is_sound(directory)


@pytest.fixture(params=["directory", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A shared directory, or the URL of an empty server."""
    if request.param == "server":
        url: str = request.getfixturevalue("server")
        yield url
        with kvstream.open(url) as store:
            store.flush_all()
        return
    yield str(tmp_path / "store")
    until(lambda: is_sound(tmp_path / "store"), "the end of the owner", 0.1)


class Workers:
    """Processes that run a program's tasks."""

    def __init__(self, log: Path, place: str, command: tuple[str, ...], count: int) -> None:
        self._log = log.open("ab")
        self._environment = {**os.environ, "KVSTREAM_PLACE": place}
        self._command = command
        self._processes = [self._start() for _ in range(count)]
        self._chance = random.Random(1)

    def _start(self) -> subprocess.Popen[bytes]:
        return forking.start(
            [sys.executable, "-m", *self._command],
            env=self._environment,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def kill_one(self) -> None:
        """Kill a worker with all of its processes, and start another one."""
        at = self._chance.randrange(len(self._processes))
        self._kill(self._processes[at])
        self._processes[at] = self._start()

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> None:
        """Ask all workers to end, and wait."""
        for process in self._processes:
            process.send_signal(with_signal)
        for process in self._processes:
            process.wait(PATIENCE_S)

    def end(self) -> None:
        for process in self._processes:
            self._kill(process)
        self._log.close()


Start = Callable[..., Workers]


@pytest.fixture
def start(tmp_path: Path, place: str) -> Iterator[Start]:
    """Start workers: ``start("huey.bin.huey_consumer", "app.huey", count=2)``."""
    with ExitStack() as ends:

        def start_workers(*command: str, count: int = 2) -> Workers:
            workers = Workers(tmp_path / "log", place, command, count)
            ends.callback(workers.end)
            return workers

        yield start_workers


def stand_still(tasks: Tasks) -> None:
    """Stop renewing the tasks of a reader, as if its process had stopped."""
    tasks.release(*tasks._held)


def list_done(store: Store) -> set[int]:
    """Return the numbers that tasks have recorded."""
    return {int(entry.fields[b"n"]) for entry in store.stream("done")}


def all_are_done_though_workers_are_killed(
    place: str, send: Callable[[int], object], workers: Workers
) -> None:
    """Send tasks while workers are killed, and check that every task is done at least once."""
    with open_place(place) as store:
        sent = 0
        kills = KILLS["server" if "://" in place else "directory"]
        for _ in range(int(os.environ.get("KVSTREAM_CRASH_ROUNDS", kills))):
            for n in range(sent, sent + TASKS):
                send(n)
            sent += TASKS
            until(lambda: len(list_done(store)) >= sent - TASKS // 2, "tasks", 0.02)  # noqa: B023
            workers.kill_one()
        until(lambda: list_done(store) == set(range(sent)), "all tasks", 0.05)


@pytest.fixture(autouse=True)
def _end_renewals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop the threads that renew the leases of a test's readers."""
    readers: list[Tasks] = []
    begin = Tasks.__init__

    def note(self: Tasks, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        readers.append(self)

    monkeypatch.setattr(Tasks, "__init__", note)
    yield
    for reader in readers:
        if reader._end is not None:
            reader._end()
