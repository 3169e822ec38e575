"""The stack of a running job: of a thread, a task, and a process that keeps Python's lock."""

import asyncio
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kvstream import Jobs
from kvstream.jobs.workers import stacks
from tests.jobs.conftest import Working
from tests.jobs.programs import Program
from tests.patience import PATIENCE_S, until
from tests.remote.conftest import Places

SECRET = "a value that nobody is shown"


def inner(gate: threading.Event, secret: str) -> str:
    gate.wait(PATIENCE_S)
    return secret


async def inner_of_task(gate: threading.Event, secret: str) -> str:
    await asyncio.to_thread(gate.wait, PATIENCE_S)
    return secret


def has_no_stack(handle: Any) -> bool:
    try:
        handle.stack(0.1)
    except TimeoutError as error:
        return f"no worker runs the job {handle.id}: it is done" in str(error)
    return False


@pytest.mark.parametrize("is_async", [False, True])
def test_a_running_job_shows_its_frames_without_values(
    jobs: Jobs, working: Callable[..., Working], is_async: bool
) -> None:
    gate = threading.Event()

    @jobs.task
    def outer(secret: str) -> str:
        return inner(gate, secret)

    @jobs.task
    async def outer_of_task(secret: str) -> str:
        return await inner_of_task(gate, secret)

    working(jobs)
    handle = (outer_of_task if is_async else outer).enqueue(SECRET)
    until(lambda: handle.status == "running")
    until(lambda: "in inner" in (asyncio.run(handle.astack()) if is_async else handle.stack()).text)
    found = handle.stack(PATIENCE_S)
    assert found.worker == jobs.consumer
    assert found.kind == ("task" if is_async else "thread")
    lines = found.text.splitlines()
    assert Path(__file__).name in lines[0]
    assert lines[0].endswith(", in outer_of_task" if is_async else ", in outer")
    assert lines[1].strip().startswith("return")
    assert SECRET not in found.text
    gate.set()
    assert handle.result(PATIENCE_S) == SECRET
    until(lambda: has_no_stack(handle))  # its worker may need a moment


def test_tasks_that_a_job_awaits_are_shown(jobs: Jobs, working: Callable[..., Working]) -> None:
    gate = threading.Event()

    @jobs.task
    async def gathers() -> None:
        await asyncio.gather(inner_of_task(gate, "a"), inner_of_task(gate, "b"))

    working(jobs)
    handle = gathers.enqueue()
    until(lambda: handle.status == "running")
    until(lambda: handle.stack(PATIENCE_S).text.count("in inner_of_task") == 2)
    gate.set()
    handle.result(PATIENCE_S)


def test_a_job_that_blocks_the_event_loop_shows_where(
    jobs: Jobs, working: Callable[..., Working]
) -> None:
    gate = threading.Event()

    @jobs.task
    async def blocks() -> str:
        return inner(gate, "x")

    working(jobs)
    handle = blocks.enqueue()
    until(lambda: handle.status == "running")
    until(lambda: "in inner" in handle.stack(PATIENCE_S).text)
    assert handle.stack(PATIENCE_S).kind == "task"
    gate.set()
    handle.result(PATIENCE_S)


def test_a_job_without_a_worker_has_no_stack(jobs: Jobs) -> None:
    task = jobs.task(name="nothing")(lambda: None)
    with pytest.raises(TimeoutError, match=r"no worker runs the job .*: it is queued"):
        task.enqueue().stack(0)


DUMP = """\
Thread 0x00007f0000000001 (most recent call first):
  File "/app/mail.py", line 7 in send
  File "/app/kvstream/jobs/execution.py", line 222 in run_sync
  File "/usr/lib/threading.py", line 1 in run

Thread 0x00007f0000000002 (most recent call first):
  File "/app/image.py", line 9 in resize
  File "/app/kvstream/jobs/execution.py", line 222 in run_sync

Current thread 0x00007f0000000003 (most recent call first):
  File "/app/other.py", line 1 in main
"""


def test_a_dump_is_cut_to_the_threads_of_jobs() -> None:
    assert "mail.py" not in stacks.of_dump(DUMP, "resize")
    assert '"/app/image.py", line 9, in resize' in stacks.of_dump(DUMP, "resize")
    both = stacks.of_dump(DUMP, "unknown")
    assert "thread 2 of 2" in both
    assert "other.py" not in both
    assert stacks.of_dump("", "resize") == ""


def test_a_process_that_has_ended_is_sent_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "DUMP_S", 0.01)
    with subprocess.Popen(["true"]) as ended, closing(stacks.Dump()) as dump:
        assert ended.wait(PATIENCE_S) == 0
        assert dump.read(ended) == ""


@pytest.fixture(params=["directory", "server"])
def program(
    request: pytest.FixtureRequest,
    places: Places,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Program]:
    place, target = places.of(request.param), "tests.jobs.hard_program:jobs"
    made = Program(target, place, request.param == "directory", tmp_path / "said", monkeypatch)
    yield made
    made.close()


def test_the_parent_answers_for_a_job_that_keeps_pythons_lock(program: Program) -> None:
    """And kills the worker if it is asked to stop: the job is given back."""
    process = program.work("--processes", "1", "--concurrency", "2", "--grace", "100ms")
    until(lambda: len(program.jobs.workers()) == 1)
    handle = program.tasks["keeps_the_lock"].enqueue(3600)
    until(lambda: "keeps the lock" in program.said())
    found: Any = handle.stack(PATIENCE_S)
    assert found.kind == "process"
    (line, code) = found.text.splitlines()
    assert line.endswith(", in keeps_the_lock")
    assert "hard_program.py" in line
    assert "sleep(seconds)" in code
    (worker,) = program.jobs.workers()
    assert worker.name == found.worker
    assert worker.stop(PATIENCE_S)
    assert process.wait(PATIENCE_S) == 0
    assert handle.status == "queued"
    assert handle.cancel()
