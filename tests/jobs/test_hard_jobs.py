"""Jobs that are hard on their worker processes: no innocent one pays for it."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kvstream.jobs import JobFailed
from kvstream.jobs.processes import Child, WorkOptions, _Output
from tests.jobs.programs import ROOT, Program
from tests.patience import PATIENCE_S, until
from tests.remote.conftest import Places

TARGET = "tests.jobs.hard_program:jobs"


Open = Callable[..., Program]


@pytest.fixture
def opened(places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Open the application on a place, with a lease in seconds."""
    with ExitStack() as ends:

        def open_program(kind: str = "directory", lease_s: float = 10) -> Program:
            monkeypatch.setenv("KVSTREAM_TEST_LEASE", str(lease_s))
            place, is_shared = places.of(kind), kind == "directory"
            made = Program(TARGET, place, is_shared, tmp_path / "said", monkeypatch)
            ends.callback(made.close)
            return made

        yield open_program


def outcome(handle: Any) -> str:
    """Return what a job has returned, or its error, as text."""
    try:
        return repr(handle.result(PATIENCE_S))
    except JobFailed as error:
        return str(error)


def test_only_the_job_that_ends_its_workers_becomes_a_dead_letter(opened: Open) -> None:
    """All are read together at first; then those of the dead worker run one at a time."""
    program = opened(lease_s=0.6)
    tasks = program.tasks
    program.jobs.declare()
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
    (letter,) = program.jobs.store.stream("jobs:dead").range()
    assert letter.fields[b"task"] == b"killer"
    assert program.said().count("killer") == 5


@pytest.mark.parametrize("kind", ["directory", "server"])
def test_a_job_that_keeps_pythons_lock_beyond_its_lease_runs_once(opened: Open, kind: str) -> None:
    program = opened(kind, 1.2)
    program.work("--processes", "2", "--concurrency", "1")
    handle = program.tasks["keeps_the_lock"].enqueue(3)
    assert handle.result(PATIENCE_S) == "done"
    assert program.said() == ["keeps the lock"]


def test_a_job_that_keeps_pythons_lock_ends_at_its_timeout(opened: Open) -> None:
    """Its neighbours, which stood still with it, are tried again."""
    program = opened(lease_s=1)
    program.work("--processes", "1", "--concurrency", "4")
    handle = program.tasks["keeps_the_lock_for_too_long"].enqueue()
    others = [program.tasks["innocent"].enqueue(number) for number in range(3)]
    with pytest.raises(JobFailed, match=r"JobTimeout: .* has run for more than 1 s"):
        handle.result(PATIENCE_S)
    assert [each.result(PATIENCE_S) for each in others] == [0, 1, 2]
    assert program.said().count("too long") == 2
    assert len(program.jobs.store.stream("jobs:dead")) == 1


def test_workers_that_keep_pythons_lock_end_after_a_second_signal(opened: Open) -> None:
    program = opened()
    process = program.work("--processes", "1", "--grace", "3600s")
    handle = program.tasks["keeps_the_lock"].enqueue(3600)
    until(lambda: program.said() == ["keeps the lock"])
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)  # two signals at once count as one
    assert handle.status == "running"
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert handle.status == "queued"


def test_stdin_is_empty_and_no_descriptor_is_inherited(opened: Open) -> None:
    program = opened()
    process = program.work("--processes", "1", stdin=subprocess.PIPE)  # nobody writes to it
    tasks = program.tasks
    assert tasks["reads_stdin"].enqueue().result(PATIENCE_S) == 0
    assert tasks["reads_stdin_itself"].enqueue().result(PATIENCE_S) == "b''"
    assert tasks["descriptors_of_a_program"].enqueue().result(PATIENCE_S) == ["[]"]
    assert process.poll() is None


@pytest.mark.parametrize("kind", ["directory", "server"])
def test_jobs_that_end_or_disturb_their_process_leave_others_alone(opened: Open, kind: str) -> None:
    program = opened(kind)
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
def test_a_job_that_closes_descriptors_leaves_others_alone(opened: Open, what: str) -> None:
    program = opened(lease_s=1)
    program.work("--processes", "1")
    handle = program.tasks["closes"].enqueue(what)
    handle.result(PATIENCE_S)
    numbers = range(10)
    others = [program.tasks["quick"].enqueue(number) for number in numbers]
    assert [each.result(PATIENCE_S) for each in others] == [*numbers]
    assert not program.jobs.store.exists("jobs:dead")


@pytest.mark.parametrize("lost", ["closed", "unread"])
def test_jobs_print_though_nobody_reads_their_output(opened: Open, lost: str) -> None:
    program = opened()
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "kvstream", "work", TARGET, "--processes", "1"]
    if lost == "closed":
        command = ["sh", "-c", 'exec "$@" <&- >&-', "sh", *command]
    process = subprocess.Popen(command, cwd=ROOT, stdout=theirs)
    os.close(theirs)
    try:
        handles = [program.tasks["quick"].enqueue(number) for number in range(300)]
        assert [each.result(PATIENCE_S) for each in handles] == [*range(300)]
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()


def test_output_that_does_not_block_waits_for_its_reader() -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    read: list[bytes] = []

    def read_all() -> None:
        while received := os.read(ours, 1 << 16):
            read.append(received)

    reader = threading.Thread(target=read_all)
    reader.start()
    with io.BufferedWriter(_Output(theirs, "w")) as output:
        output.write(b"x" * 1_000_000)
    reader.join()
    os.close(ours)
    assert sum(map(len, read)) == 1_000_000


def test_the_log_of_the_command_has_the_tries_of_jobs(opened: Open) -> None:
    program = opened()
    process = program.work("--processes", "1")
    done, failed = (
        program.tasks["quick"].enqueue(1),
        program.tasks["raises"].enqueue("_Odd"),
    )
    assert (outcome(done), outcome(failed)) == ("1", "_Odd: odd")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert f"job {done.id} of quick begins: attempt 1\n" in errors
    assert f"job {done.id} of quick is done: attempt 1, " in errors
    assert f" ERROR jobs.job_log: job {failed.id} of raises failed for good: attempt 1" in errors
    assert "_Odd: odd\n" in errors


def test_the_job_log_may_be_off(opened: Open) -> None:
    program = opened()
    process = program.work("--processes", "1", "--no-job-log")
    done, failed = (
        program.tasks["quick"].enqueue(1),
        program.tasks["raises"].enqueue("_Odd"),
    )
    assert (outcome(done), outcome(failed)) == ("1", "_Odd: odd")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert done.id not in errors
    assert f"job {failed.id} of raises failed for good" in errors
    assert f"job {failed.id} of raises begins" not in errors
