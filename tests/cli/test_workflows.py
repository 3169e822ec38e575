"""Workflows from the command line, without their application."""

from pathlib import Path

import pytest

from kvstream import Jobs
from kvstream.jobs import step, wait_for
from tests.cli.program import Program
from tests.jobs.conftest import Working
from tests.patience import until


def breaks() -> None:
    raise ValueError("no such user")


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """The program on a store with three workflows."""
    with Jobs(tmp_path / "store", shared=False) as jobs:

        @jobs.workflow
        def greet(name: str) -> str:
            return f"{step(name.upper)} {wait_for('go')}"

        @jobs.workflow
        def fail() -> None:
            step(breaks)

        worker = Working(jobs)
        waits = greet.with_options(id="waits").enqueue("ann")
        done = greet.with_options(id="done").enqueue("bob")
        failed = fail.with_options(id="failed").enqueue()
        done.send("go", 1)
        until(lambda: (waits.status, done.status, failed.status) == ("waiting", "done", "failed"))
        worker.stop()
    return Program(tmp_path / "store")


def test_jobs_ls_and_show_have_workflows(program: Program) -> None:
    rows = {row["id"]: row for row in program.json("jobs", "ls")}
    found = {key: (row["task"], row["status"], row["error"]) for key, row in rows.items()}
    assert found == {
        "waits": ("greet", "waiting", "signal go"),
        "done": ("greet", "done", None),
        "failed": ("fail", "failed", "StepFailed: breaks: ValueError: no such user"),
    }
    assert program.json("jobs", "ls", "--status", "waiting")[0]["id"] == "waits"
    shown = program.one("jobs", "show", "done")
    assert (shown["result"], shown["status"]) == ("BOB 1", "done")
    assert [each["name"] for each in shown["steps"]] == ["upper", "go"]
    lines = program.lines("jobs", "show", "done")
    assert any(line.startswith("  step upper: BOB 20") for line in lines)
    assert any(line.startswith("  wait go: 1 20") for line in lines)
    lines = program.lines("jobs", "show", "waits")
    assert "  wait go: open" in lines
    assert "waits for  signal go" in lines
    assert program.one("jobs", "show", "waits")["waits_for"] == "signal go"
    assert "begun" in program("range", "jobs:history:waits").stdout


def test_workflows_are_cancelled_and_retried(program: Program) -> None:
    program("jobs", "cancel", "waits")
    program("jobs", "cancel", "done", code=1)
    program("jobs", "retry", "failed")
    program("jobs", "retry", "done", code=1)
    statuses = {row["id"]: row["status"] for row in program.json("jobs", "ls")}
    assert statuses == {"waits": "cancelled", "done": "done", "failed": "queued"}


def test_jobs_show_has_what_a_job_waits_for_and_why_it_was_cancelled(tmp_path: Path) -> None:
    with Jobs(tmp_path / "store", shared=False) as jobs:

        @jobs.task
        def note() -> None: ...

        first, other = note.enqueue(), note.with_options(delay=3600).enqueue()
        waits = note.with_options(depends_on=[first, other]).enqueue()
    program = Program(tmp_path / "store")
    lines = program.lines("jobs", "show", waits.id)
    assert "waits for  2 jobs" in lines
    assert lines[-2:] == [
        f"  depends on {first.id}: queued",
        f"  depends on {other.id}: scheduled",
    ]
    program("jobs", "cancel", first.id)
    shown = program.one("jobs", "show", waits.id)
    error = f"the job {first.id}, which it depends on, was cancelled"
    assert (shown["status"], shown["error"]) == ("cancelled", error)
    assert {row["status"] for row in program.json("jobs", "ls")} == {"cancelled", "scheduled"}


def test_jobs_show_says_that_no_worker_has_the_version_of_a_workflow(tmp_path: Path) -> None:
    with Jobs(tmp_path / "store", shared=False) as jobs:

        @jobs.workflow(version=2)
        def later() -> None: ...

        handle = later.enqueue()
        later._accepted = {"1"}  # a worker of the version before
        worker = Working(jobs)
        until(lambda: handle.waits_for is not None)
        worker.stop()
    shown = Program(tmp_path / "store").one("jobs", "show", handle.id)
    assert shown["status"] == "queued"
    assert shown["waits_for"] == "version 2 of later is not known to this worker, which has 1"
