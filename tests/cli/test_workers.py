"""``kvstream workers`` beside real processes of ``kvstream work``."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import Program as CommandLine
from tests.cli.program import RemoteProgram as RemoteCommandLine
from tests.jobs.conftest import places
from tests.jobs.programs import Program
from tests.patience import PATIENCE_S, until
from tests.remote.conftest import Places

__all__ = ["places"]


@pytest.fixture(params=["directory", "server"])
def program(
    request: pytest.FixtureRequest,
    places: Places,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Program]:
    place = places.of(request.param)
    is_shared = request.param == "directory"
    target = "tests.jobs.program:jobs"
    monkeypatch.setenv("KVSTREAM_TEST_LEASE", "30")  # no job that runs, or kills, comes again
    made = Program(target, place, is_shared, tmp_path / "said", monkeypatch)
    yield made
    made.close()


@pytest.fixture
def run(program: Program) -> CommandLine:
    """The command line, on the place of the workers."""
    place = program.place
    return RemoteCommandLine(Path(), place) if "://" in place else CommandLine(Path(place))


def test_workers_are_listed_drained_and_stopped(program: Program, run: CommandLine) -> None:
    process = program.work("--processes", "2", "--app-version", "v7", "--grace", "100ms")
    until(lambda: len(program.jobs.workers()) == 2)
    handle = program.tasks["nap"].enqueue(3600)
    until(lambda: any(each.jobs for each in program.jobs.workers()))
    rows = run.json("workers", "ls")
    assert {row["state"] for row in rows} == {"working"}
    assert {row["app_version"] for row in rows} == {"v7"}
    assert len({row["pid"] for row in rows}) == 2
    (parent,) = {row["program"] for row in rows}
    assert parent.endswith(f"-{process.pid}")
    (busy,) = (row for row in rows if row["jobs"])
    (idle,) = (row for row in rows if not row["jobs"])
    assert busy["jobs"][0]["task"] == "nap"
    assert busy["worker"] in run("workers", "ls", "--jobs").stdout
    assert "1 of 8" in run("workers", "ls").stdout
    stack = run.one("jobs", "stack", handle.id)
    assert (stack["worker"], stack["kind"]) == (busy["worker"], "thread")
    assert ", in nap\n" in stack["text"]
    assert "time.sleep(seconds)" in run("jobs", "stack", handle.id).stdout
    assert "there is no worker" in run("workers", "drain", "none", code=1).output

    assert "has ended" in run("workers", "drain", idle["worker"], "--wait", "60s").output
    assert (
        "asked to drain"
        in run("workers", "drain", busy["worker"], "--wait", "100ms", code=1).output
    )
    assert [row["state"] for row in run.json("workers", "ls")] == ["draining"]
    assert process.poll() is None  # and the idle one is not started again
    assert "--app-version" in run("workers", "stop", parent, "--app-version", "v7", code=2).output
    assert "no worker of version v8" in run("workers", "stop", "--app-version", "v8", code=1).output
    assert "--app-version" in run("workers", "stop", parent, "--app-version", "v7", code=2).output
    assert "no worker of version v8" in run("workers", "stop", "--app-version", "v8", code=1).output
    assert "has ended" in run("workers", "stop", "--app-version", "v7", "--wait", "60s").output
    _, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, log
    assert "1 jobs were given back unfinished" in log
    assert "all workers have ended, as was asked" in log
    assert run.json("workers", "ls") == []


def test_a_killed_worker_leaves_the_list_and_a_new_one_comes(
    program: Program, run: CommandLine
) -> None:
    """The new one is of the same program, which ends when it is asked to drain."""
    process = program.work("--processes", "1")
    until(lambda: len(program.jobs.workers()) == 1)
    (first,) = program.jobs.workers()
    program.tasks["die"].enqueue()
    until(lambda: first.name not in {each.name for each in program.jobs.workers()})
    until(lambda: bool(program.jobs.workers()))
    assert "has ended" in run("workers", "drain", first.program, "--wait", "60s").output
    assert process.wait(PATIENCE_S) == 0
