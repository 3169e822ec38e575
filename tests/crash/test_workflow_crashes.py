"""Kill workers while they run workflows: each goes on, and what is done is not done again.

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
from tests.remote.conftest import Places, places

__all__ = ["places"]

TARGET = "tests.crash.workflow_program:jobs"
ROUNDS = 2
WORKFLOWS = 4
"""Of each kind, in a round."""


@pytest.fixture(params=["directory", "server"])
def program(
    request: pytest.FixtureRequest,
    places: Places,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Program]:
    place = places.of(request.param)
    made = Program(TARGET, place, request.param == "directory", tmp_path / "said", monkeypatch)
    yield made
    made.close()


@pytest.mark.timeout(7200)
def test_workflows_of_killed_workers_end_once(program: Program) -> None:
    chance = random.Random(11)
    program.jobs.declare()
    children = [Child(WorkOptions(TARGET, concurrency=4, folder=str(ROOT))) for _ in range(2)]
    handles: list[tuple[int, Any]] = []
    others: list[tuple[int, Any]] = []
    try:
        for child in children:
            child.start()
        for each in range(rounds(ROUNDS)):
            begun = len(program.said())
            numbers = range(each * WORKFLOWS, (each + 1) * WORKFLOWS)
            orders = [(n, program.tasks["order"].enqueue(n)) for n in numbers]
            async_ones = [(n, program.tasks["order_async"].enqueue(1000 + n)) for n in numbers]
            for n, handle in orders + async_ones:
                assert handle.send("go", n)
            handles += orders
            others += async_ones
            kill_one(program, children, chance, begun)
        for n, handle in handles:
            assert handle.result(2 * PATIENCE_S) == [
                *(f"{n} begins", f"{n} first", f"{n} child 0", f"{n} child 1", n),
                *(f"{n} last", f"{n} ends"),
            ]
        for n, handle in others:
            m = n + 1000
            wanted = [f"{m} begins", f"{m} child", n, f"{m} ends"]
            assert handle.result(2 * PATIENCE_S) == wanted
    finally:
        for child in children:
            child.end()
    check(program, [handle for _, handle in [*handles, *others]], len(handles))


def kill_one(program: Program, children: list[Child], chance: random.Random, begun: int) -> None:
    """Kill a worker shortly after more lines than ``begun`` were said."""
    victim = chance.choice(children)
    until(lambda: len(program.said()) > begun)
    time.sleep(chance.uniform(0, 0.2))
    assert victim.process is not None
    victim.process.kill()
    victim.end()
    victim.start()


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
