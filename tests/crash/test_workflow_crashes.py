"""Kill workers, owner and server while workflows run: they go on, and do nothing done again.

Each step has run at least once, each with a transaction exactly once, and each workflow has ended
once. KVSTREAM_CRASH_ROUNDS sets the number of kills.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstream.jobs.processes import Child, WorkOptions
from tests.crash.rounds import rounds
from tests.jobs.programs import ROOT, Program
from tests.patience import PATIENCE_S, until
from tests.serving import ServerProcess

TARGET = "tests.crash.workflow_program:jobs"
ROUNDS = 2
SERVER_SHARE = 0.4
"""The share of kills that hit the server."""
WORKFLOWS = 4
"""Of each kind, in a round."""


class Killed:
    """The processes that are killed: workers, one of which owns a directory, and a server."""

    def __init__(self, server: ServerProcess | None) -> None:
        self.server = server
        self.workers = [
            Child(WorkOptions(TARGET, concurrency=4, folder=str(ROOT))) for _ in range(2)
        ]

    def kill_one(self, chance: random.Random) -> None:
        """Kill a process, and start it again."""
        if self.server is not None and chance.random() < SERVER_SHARE:
            self.server.kill()
            port = ("--port", str(self.server.port))
            self.server = ServerProcess(self.server.directory, "--durability", "no", *port)
            return
        victim = chance.choice(self.workers)
        assert victim.process is not None
        victim.process.kill()
        victim.end()
        victim.start()

    def end(self) -> None:
        for worker in self.workers:
            worker.end()


@pytest.fixture(params=["directory", "server"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> ServerProcess | None:
    if request.param == "directory":
        return None
    return ServerProcess(tmp_path / "served", "--durability", "no")


@pytest.fixture
def program(
    server: ServerProcess | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Program]:
    is_directory = server is None
    place = str(tmp_path / "store") if server is None else f"redis://127.0.0.1:{server.port}"
    made = Program(TARGET, place, is_directory, tmp_path / "said", monkeypatch)
    yield made
    made.close()


@pytest.mark.timeout(7200)
def test_workflows_of_killed_processes_end_once(
    program: Program, server: ServerProcess | None
) -> None:
    chance, killed = random.Random(11), Killed(server)
    handles: list[tuple[int, Any]] = []
    others: list[tuple[int, Any]] = []
    program.jobs.declare()
    try:
        for worker in killed.workers:
            worker.start()
        for each in range(rounds(ROUNDS)):
            program.jobs.close()  # so a worker owns the directory
            begun = len(program.said())
            numbers = range(each * WORKFLOWS, (each + 1) * WORKFLOWS)
            orders = [(n, program.tasks["order"].enqueue(n)) for n in numbers]
            async_ones = [(n, program.tasks["order_async"].enqueue(1000 + n)) for n in numbers]
            for n, handle in orders + async_ones:
                assert handle.send("go", n)
            handles += orders
            others += async_ones
            until(lambda begun=begun: len(program.said()) > begun)  # type: ignore[misc]
            time.sleep(chance.uniform(0, 0.2))
            killed.kill_one(chance)
        for n, handle in handles:
            assert handle.result(2 * PATIENCE_S) == [
                *(f"{n} begins", f"{n} first", f"{n} child 0", f"{n} child 1", n),
                *(f"{n} last", f"{n} ends"),
            ]
        for n, handle in others:
            m = n + 1000
            wanted = [f"{m} begins", f"{m} child", n, f"{m} ends"]
            assert handle.result(2 * PATIENCE_S) == wanted
        check(program, [handle for _, handle in [*handles, *others]], len(handles))
    finally:
        killed.end()
        program.jobs.close()
        if killed.server is not None:
            killed.server.stop()


def check(program: Program, handles: list[Any], orders: int) -> None:
    store = program.jobs.store
    booked = Counter(entry.fields[b"text"].decode() for entry in store.stream("booked").range())
    wanted = {f"{n} {when}" for n in range(orders) for when in ("first", "last")}
    assert booked == dict.fromkeys(wanted, 1)
    for handle in handles:
        history = store.stream(f"jobs:history:{handle.id}").range()
        kinds = Counter(entry.fields[b"event"] for entry in history)
        assert kinds[b"done"] == kinds[b"begun"] == 1
        finished = Counter(
            entry.fields[b"seq"] for entry in history if entry.fields[b"event"] == b"step"
        )
        assert set(finished.values()) == {1}
    lines = Counter(program.said())
    assert all(lines[f"{n} begins"] >= 1 and lines[f"{n} child 1"] >= 1 for n in range(orders))
