"""Processes of ``kvstream work`` that are replaced after many jobs, or with much memory."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstream import InvalidArgument, Jobs
from kvstream.jobs import Worker
from tests.jobs.conftest import Working
from tests.jobs.programs import Program
from tests.patience import PATIENCE_S, until


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    target, place = "tests.jobs.program:jobs", str(tmp_path / "store")
    made = Program(target, place, True, tmp_path / "said", monkeypatch)
    yield made
    made.close()


def test_a_process_is_replaced_after_its_number_of_jobs(program: Program) -> None:
    process = program.work("--processes", "1", "--max-jobs", "3", "--log-level", "notice")
    pids = [handle.result(PATIENCE_S) for handle in program.tasks["pid"].enqueue_many([()] * 7)]
    assert sorted(Counter(pids).values()) == [1, 3, 3]
    process.terminate()
    _, log = process.communicate(timeout=PATIENCE_S)
    assert "has ended with code" not in log


def test_a_process_with_too_much_memory_is_replaced(program: Program) -> None:
    process = program.work("--processes", "1", "--concurrency", "1", "--max-memory", "300MB")
    pid, hoard = program.tasks["pid"], program.tasks["hoard"]
    first = pid.enqueue().result(PATIENCE_S)
    assert pid.enqueue().result(PATIENCE_S) == first
    assert hoard.enqueue(400 << 20).result(PATIENCE_S) == first
    assert pid.enqueue().result(PATIENCE_S) != first
    process.terminate()
    _, log = process.communicate(timeout=PATIENCE_S)
    assert "of resident memory, more than 300 MB, and drains" in log


@pytest.mark.parametrize("place", ["directory"], indirect=True)
def test_jobs_in_flight_end_before_a_worker_that_is_spent(
    jobs: Jobs, working: Callable[..., Working]
) -> None:
    gate = threading.Event()

    @jobs.task
    async def wait() -> str:
        await asyncio.to_thread(gate.wait, PATIENCE_S)
        return "waited"

    @jobs.task
    def pass_by() -> str:
        return "passed"

    one = working(jobs, concurrency=3, max_jobs=2, grace=0)
    slow = wait.enqueue()
    until(lambda: slow.status == "running")
    assert pass_by.enqueue().result(PATIENCE_S) == "passed"
    until(lambda: one.worker._has_taken.is_set())
    later = pass_by.enqueue()
    assert (slow.status, later.status) == ("running", "queued")
    gate.set()
    one._thread.join(PATIENCE_S)
    assert one.worker.is_spent
    assert slow.result(PATIENCE_S) == "waited"
    assert later.status == "queued"


def test_the_bounds_of_a_worker_are_numbers_above_0(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "store")
    jobs.task(name="nothing")(lambda: None)
    bounds: list[dict[str, Any]] = [{"max_jobs": 0}, {"max_memory": -1}]
    for bound in bounds:
        with pytest.raises(InvalidArgument, match=next(iter(bound))):
            Worker(jobs, **bound)
    jobs.close()
