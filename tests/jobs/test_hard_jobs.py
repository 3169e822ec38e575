"""Jobs that are hard on their worker processes: no innocent one pays for it."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstream.jobs import JobFailed
from kvstream.jobs.processes import Child, WorkOptions
from tests.jobs.programs import ROOT, Program
from tests.patience import PATIENCE_S, until
from tests.remote.conftest import Places

TARGET = "tests.jobs.hard_program:jobs"


@pytest.fixture(params=["directory", "server"])
def program(
    request: pytest.FixtureRequest,
    places: Places,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Program]:
    yield from _started(places, request.param, tmp_path, monkeypatch)


@pytest.fixture
def on_directory(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Program]:
    """The application on a directory, for what is the same on a server."""
    yield from _started(places, "directory", tmp_path, monkeypatch)


def _started(
    places: Places, kind: str, folder: Path, patch: pytest.MonkeyPatch
) -> Iterator[Program]:
    made = Program(TARGET, places.of(kind), kind == "directory", folder / "said", patch)
    yield made
    made.close()


def outcome(handle: Any) -> str:
    """Return what a job has returned, or its error, as text."""
    try:
        return repr(handle.result(PATIENCE_S))
    except JobFailed as error:
        return str(error)


def test_only_the_job_that_ends_its_workers_becomes_a_dead_letter(on_directory: Program) -> None:
    """All are read together at first; then those of the dead worker run one at a time."""
    tasks = on_directory.tasks
    on_directory.jobs.declare()
    handles = [tasks["innocent"].enqueue(number) for number in range(3)]
    killer = tasks["killer"].enqueue()
    handles += [tasks["innocent"].enqueue(number) for number in range(3, 12)]
    child = Child(WorkOptions(TARGET, folder=str(ROOT)))
    try:
        while killer.status != "failed":
            child.end()
            child.start()
            until(lambda: killer.status == "failed" or not child.is_running)
        assert [handle.result(PATIENCE_S) for handle in handles] == [*range(12)]
    finally:
        child.end()
    assert "each of its workers died" in outcome(killer)
    (letter,) = on_directory.jobs.store.stream("jobs:dead").range()
    assert letter.fields[b"task"] == b"killer"
    lines = Counter(on_directory.said())
    assert lines.pop("killer") == 5
    assert set(lines.values()) <= {1, 2}


def test_a_job_that_keeps_pythons_lock_beyond_its_lease_runs_once(program: Program) -> None:
    program.work("--processes", "2", "--concurrency", "1")
    handle = program.tasks["keeps_the_lock"].enqueue(2)
    assert handle.result(PATIENCE_S) == "done"
    assert program.said() == ["keeps the lock"]


def test_a_job_that_keeps_pythons_lock_ends_at_its_timeout(on_directory: Program) -> None:
    """Its neighbours, which stood still with it, are tried again."""
    on_directory.work("--processes", "1", "--concurrency", "4")
    handle = on_directory.tasks["keeps_the_lock_for_too_long"].enqueue()
    others = [on_directory.tasks["innocent"].enqueue(number) for number in range(3)]
    with pytest.raises(JobFailed, match=r"JobTimeout: .* has run for more than 1 s"):
        handle.result(PATIENCE_S)
    assert [each.result(PATIENCE_S) for each in others] == [0, 1, 2]
    assert on_directory.said().count("too long") == 2
    assert len(on_directory.jobs.store.stream("jobs:dead")) == 1


def test_workers_that_keep_pythons_lock_end_after_a_second_signal(on_directory: Program) -> None:
    process = on_directory.work("--processes", "1", "--grace", "3600s")
    handle = on_directory.tasks["keeps_the_lock"].enqueue(3600)
    until(lambda: on_directory.said() == ["keeps the lock"])
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)  # two signals at once count as one
    assert handle.status == "running"
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert handle.status == "queued"


def test_stdin_is_empty_and_no_descriptor_is_inherited(on_directory: Program) -> None:
    process = on_directory.work("--processes", "1", stdin=subprocess.PIPE)  # nobody writes to it
    tasks = on_directory.tasks
    assert tasks["reads_stdin"].enqueue().result(PATIENCE_S) == 0
    assert tasks["reads_stdin_itself"].enqueue().result(PATIENCE_S) == "b''"
    assert tasks["descriptors_of_a_program"].enqueue().result(PATIENCE_S) == ["[]"]
    assert process.poll() is None


def test_jobs_that_end_or_disturb_their_process_leave_others_alone(program: Program) -> None:
    program.work("--processes", "1")
    tasks = program.tasks
    names = ("SystemExit", "KeyboardInterrupt", "CancelledError", "GeneratorExit", "_Odd")
    calls: list[tuple[Any, str]] = [
        (tasks[task].enqueue(name), name) for task in ("raises", "raises_async") for name in names
    ]
    calls += [
        (tasks["leaves_the_loop"].enqueue(), "'SystemExit'"),
        (tasks["stops_the_loop"].enqueue(), "None"),
        (tasks["forks"].enqueue("returns"), "0"),
        (tasks["forks"].enqueue("raises"), "1"),
        (tasks["forks"].enqueue("exits"), "5"),
        (tasks["forks_async"].enqueue(), "5"),
        (tasks["leaves_a_thread"].enqueue(), "None"),
        (tasks["changes_folder"].enqueue(), "None"),
    ]
    others = [tasks["innocent"].enqueue(number) for number in range(30)]
    for handle, expected in calls:
        assert outcome(handle).startswith(expected)
    assert [each.result(PATIENCE_S) for each in others] == [*range(30)]
    assert len(program.said()) == 30
    assert len(program.jobs.store.stream("jobs:dead")) == 10


@pytest.mark.parametrize("what", ["standard", "streams", "others"])
def test_a_job_that_closes_descriptors_leaves_others_alone(
    on_directory: Program, what: str
) -> None:
    on_directory.work("--processes", "1")
    handle = on_directory.tasks["closes"].enqueue(what)
    handle.result(PATIENCE_S)
    numbers = range(10)
    others = [on_directory.tasks["quick"].enqueue(number) for number in numbers]
    assert [each.result(PATIENCE_S) for each in others] == [*numbers]
    assert not on_directory.jobs.store.exists("jobs:dead")


@pytest.mark.parametrize("lost", ["closed", "unread"])
def test_jobs_print_though_nobody_reads_their_output(on_directory: Program, lost: str) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "kvstream", "work", TARGET, "--processes", "1"]
    if lost == "closed":
        command = ["sh", "-c", 'exec "$@" <&- >&-', "sh", *command]
    process = subprocess.Popen(command, cwd=ROOT, stdout=theirs)
    os.close(theirs)
    try:
        handles = [on_directory.tasks["quick"].enqueue(number) for number in range(300)]
        assert [each.result(PATIENCE_S) for each in handles] == [*range(300)]
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()


def test_the_log_of_the_command_has_the_tries_of_jobs(on_directory: Program) -> None:
    process = on_directory.work("--processes", "1")
    done, failed = (
        on_directory.tasks["quick"].enqueue(1),
        on_directory.tasks["raises"].enqueue("_Odd"),
    )
    assert (outcome(done), outcome(failed)) == ("1", "_Odd: odd")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert f"job {done.id} of quick begins: attempt 1\n" in errors
    assert f"job {done.id} of quick is done: attempt 1, " in errors
    assert f" ERROR jobs.job_log: job {failed.id} of raises failed for good: attempt 1" in errors
    assert "_Odd: odd\n" in errors


def test_the_job_log_may_be_off(on_directory: Program) -> None:
    process = on_directory.work("--processes", "1", "--no-job-log")
    done, failed = (
        on_directory.tasks["quick"].enqueue(1),
        on_directory.tasks["raises"].enqueue("_Odd"),
    )
    assert (outcome(done), outcome(failed)) == ("1", "_Odd: odd")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert done.id not in errors
    assert f"job {failed.id} of raises failed for good" in errors
    assert f"job {failed.id} of raises begins" not in errors
