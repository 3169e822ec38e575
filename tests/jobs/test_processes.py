"""``kvstream work``: processes that start, die, stop and are killed."""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstream import (
    ClientMissing,
    InvalidArgument,
    Jobs,
    NoSuchStore,
    StoreLocked,
    SystemClock,
)
from kvstream.jobs import Worker
from kvstream.jobs.processes import Child, Sources, WorkOptions, jobs_of, queue_list
from tests.crash.rounds import rounds
from tests.jobs.programs import ROOT, Program
from tests.patience import PATIENCE_S, until
from tests.remote.conftest import Places

TARGET = "tests.jobs.program:jobs"
ROUNDS = 2
JOBS_A_ROUND = 30
KINDS = ("at_least_once", "at_least_once_async", "exactly_once")


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


def test_several_processes_work_for_one_program(program: Program) -> None:
    program.work("--processes", "2", "--concurrency", "1")
    handles = program.tasks["pid"].enqueue_many([()] * 40)
    found = {handle.result(PATIENCE_S) for handle in handles}
    assert len(found) == 2
    assert os.getpid() not in found


def test_a_process_that_dies_is_restarted(program: Program) -> None:
    program.work("--processes", "1", "--concurrency", "1")
    poison = program.tasks["die"].enqueue()
    until(lambda: program.said().count("died") >= 1)
    assert program.tasks["pid"].enqueue(priority="high").result(PATIENCE_S) > 0
    assert poison.status in ("running", "retrying")


def test_sigterm_lets_a_job_finish(program: Program) -> None:
    process = program.work("--processes", "1", "--log-level", "notice")
    handle = program.tasks["nap"].enqueue(0.5)
    until(lambda: program.said() == ["begun"])
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert program.said() == ["begun", "ended"]
    assert handle.result(PATIENCE_S) == "rested"
    assert "given back" not in errors
    assert "begin: processes: 1, jobs at a time in each: 8, queues: default" in errors


@pytest.mark.parametrize("signals", [1, 2])
def test_jobs_unfinished_after_the_grace_or_a_second_signal_are_given_back(
    program: Program, signals: int
) -> None:
    process = program.work("--processes", "1", "--grace", "3600s" if signals == 2 else "100ms")
    handle = program.tasks["nap"].enqueue(3600)
    until(lambda: program.said() == ["begun"])
    process.send_signal(signal.SIGTERM)
    if signals == 2:
        time.sleep(0.3)  # two signals at once count as one
        process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert "1 jobs were given back unfinished" in errors
    assert handle.status == "queued"
    assert handle.cancel()


def test_children_stop_when_their_parent_is_killed(program: Program) -> None:
    process = program.work("--processes", "1")
    child = program.tasks["pid"].enqueue().result(PATIENCE_S)
    program._ends.pop_all()
    process.kill()
    until(lambda: not _runs(child))
    process.communicate()


def _runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except FileNotFoundError:
        return False


@pytest.mark.timeout(7200)
def test_every_job_of_killed_workers_has_its_effect(program: Program) -> None:
    """At least once, and with a transaction exactly once; the enqueued jobs are the oracle."""
    chance = random.Random(17)
    program.jobs.declare()
    children = [Child(WorkOptions(TARGET, concurrency=4, folder=str(ROOT))) for _ in range(2)]
    handles: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    try:
        for child in children:
            child.start()
        for each in range(rounds(ROUNDS)):
            for kind in KINDS:
                numbers = range(each * JOBS_A_ROUND, (each + 1) * JOBS_A_ROUND)
                handles[kind] += program.tasks[kind].enqueue_many([(n,) for n in numbers])
            victim = chance.choice(children)
            begun = len(program.said())
            until(lambda begun=begun: len(program.said()) > begun)  # type: ignore[misc]
            time.sleep(chance.uniform(0, 0.1))
            assert victim.process is not None
            victim.process.kill()
            victim.end()
            victim.start()
        wanted = range(rounds(ROUNDS) * JOBS_A_ROUND)
        for kind in KINDS:
            found = [handle.result(PATIENCE_S) for handle in handles[kind]]
            assert found == [*wanted], kind
    finally:
        for child in children:
            child.end()
    lines = Counter(program.said())
    assert all(lines[str(number)] >= 2 for number in wanted)  # one by each of two tasks
    effects = Counter(entry.fields[b"number"] for entry in program.jobs.store.stream("effects"))
    assert effects == {b"%d" % number: 1 for number in wanted}


APP = """
from kvstream import Jobs

jobs = Jobs("data")                       # or shared, or redis://...

@jobs.task(retries=3, backoff=[1, 10, 60], timeout=30, dead_letter="jobs:dead")
async def send_mail(to: str) -> str: ...

@jobs.cron("0 3 * * *", tz="Europe/Berlin")
def nightly(): ...
"""
CLIENT = """
import asyncio
from app import jobs, send_mail

handle = send_mail.enqueue("a@b.c", delay=0.1, key="user-7", unique="welcome:7")
print(handle.result(timeout=60), handle.status)

async def main():
    handle = await send_mail.aenqueue("a@b.c", key="user-7", unique="welcome:7")
    print(await handle, handle.status, handle.error)

asyncio.run(main())
jobs.close()
"""


def test_the_first_program_of_a_new_user_works_beside_its_workers(tmp_path: Path) -> None:
    """Program and workers start in any order, without an option for sharing."""
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "client.py").write_text(CLIENT)
    command = [sys.executable, "-m", "kvstream", "work", "app:jobs", "--processes", "1"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        errors = subprocess.run(
            [sys.executable, "client.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    finally:
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, log
    assert errors.stdout == "None done\nNone done None\n", (errors.stderr, log)


def test_jobs_share_a_directory_by_default(tmp_path: Path) -> None:
    place = tmp_path / "data"
    with Jobs(place) as first, Jobs(place) as second:
        first.store.stream("seen").add({"n": 1})
        assert second.store.exists("seen")
        with Jobs(place, shared=False) as alone, pytest.raises(StoreLocked):
            assert alone.store
    for options in ({"shared": False}, {"clock": SystemClock()}, {"read_only": True}):
        with Jobs(place, **options) as alone, Jobs(place, wait_s=0.1) as other:
            assert alone.store.exists("seen")
            with pytest.raises(StoreLocked):
                assert other.store


def test_options_of_the_store_that_are_false_or_zero_are_taken(tmp_path: Path) -> None:
    with Jobs(tmp_path / "data", create=False) as jobs, pytest.raises(NoSuchStore):
        assert jobs.store
    assert not (tmp_path / "data").exists()
    zeros: dict[str, Any] = {
        "free_space_reserve": 0,
        "stall_seconds_max": 0.0,
        "archive_interval_s": 0.0,
    }
    with Jobs(tmp_path / "data", shared=False, **zeros) as jobs:
        options = jobs.store.engine.options
        assert {name: getattr(options, name) for name in zeros} == zeros
    with Jobs(tmp_path / "data", read_only=False) as first, Jobs(tmp_path / "data") as second:
        first.store.stream("seen").add({"n": 1})
        assert second.store.exists("seen"), "read_only=False leaves it shared"


def test_without_redis_py_jobs_do_not_share_their_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with Jobs(tmp_path / "data") as alone, Jobs(tmp_path / "data") as other:
        alone.store.stream("seen").add({"n": 1})
        with pytest.raises(StoreLocked):
            assert other.store
    with Jobs(tmp_path / "data", shared=True) as shared, pytest.raises(ClientMissing):
        assert shared.store


def test_the_owner_of_a_shared_directory_ends_jobs_without_its_socket(tmp_path: Path) -> None:
    with Jobs(tmp_path / "data") as jobs:
        task = jobs.task(retries=1, backoff=0)(lambda n: 1 // n)
        worker = Worker(jobs)
        handles = [task.enqueue(1), task.enqueue(0), *task.enqueue_many([(1,), (1,)], delay=0)]
        stop = threading.Event()
        thread = threading.Thread(target=worker.run, args=(stop,))
        thread.start()
        try:
            until(lambda: [each.status for each in handles] == ["done", "failed", "done", "done"])
        finally:
            stop.set()
            thread.join()
        assert jobs.store._engine.clients == 0  # type: ignore[attr-defined]


def test_a_changed_source_file_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("a = 1")
    (tmp_path / "__pycache__").mkdir()
    sources = Sources(tmp_path)
    assert not sources.have_changed()
    (tmp_path / "__pycache__" / "b.py").write_text("")
    (tmp_path / "note.txt").write_text("")
    assert not sources.have_changed()
    (tmp_path / "app.py").write_text("a = 2")
    os.utime(tmp_path / "app.py", ns=(1, 1))
    assert sources.have_changed()
    assert not sources.have_changed()


def test_workers_restart_when_a_source_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "from kvstream import Jobs\njobs = Jobs('data', shared=True)\n"
        "@jobs.task\ndef answer() -> int:\n    return 1\n"
    )
    (tmp_path / "app.py").write_text(text)
    command = [sys.executable, "-m", "kvstream", "work", "app", "--processes", "1", "--reload"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        jobs = Jobs(tmp_path / "data", shared=True)
        answer = jobs.task(name="answer")(lambda: None)
        until(lambda: (tmp_path / "data").exists())
        assert jobs.handle(answer.enqueue().id).result(PATIENCE_S) == 1
        (tmp_path / "app.py").write_text(text.replace("return 1", "return 22"))
        until(lambda: jobs.handle(answer.enqueue().id).result(PATIENCE_S) == 22)
        jobs.close()
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert "a source file has changed" in errors


def test_the_target_is_found_or_the_error_names_the_problem(tmp_path: Path) -> None:
    (tmp_path / "an_application.py").write_text(
        "from kvstream import Jobs\nclass App: jobs = Jobs('data')\nworkers = App.jobs\n"
    )
    (tmp_path / "a_broken_one.py").write_text("import no_such_package\n")
    folder = str(tmp_path)
    assert isinstance(jobs_of("an_application:workers", folder), Jobs)
    assert isinstance(jobs_of("an_application:App.jobs", folder), Jobs)
    for target, says in (
        ("an_application", "is not a Jobs: give module:name"),
        ("no_such_application:jobs", "there is no module no_such_application"),
    ):
        with pytest.raises(InvalidArgument, match=says):
            jobs_of(target, folder)
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        jobs_of("a_broken_one:jobs", folder)
    assert queue_list(["a,b", " c "]) == ("a", "b", "c")


def test_the_command_reports_errors_in_one_line(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "kvstream", "work", "nothing:jobs"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode != 0
    assert re.fullmatch(r"Error: there is no module nothing in .*\n", done.stderr)
    (tmp_path / "bare.py").write_text("from kvstream import Jobs\njobs = Jobs('data')\n")
    run[-1] = "bare:jobs"
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert re.fullmatch(r"Error: jobs has no task: import the modules .*\n", done.stderr)


def test_without_redis_py_the_command_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    program = "import sys; sys.modules['redis'] = None; from kvstream.cli import main; main()"
    run = [sys.executable, "-c", program, "work", "app:jobs"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode != 0
    assert re.fullmatch(r"Error: redis-py.*: pip install 'kvstream-db\[server\]'\n", done.stderr)
