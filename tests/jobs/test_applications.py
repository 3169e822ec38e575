"""Applications, and versions of one, that share a store: their schedules, and unknown tasks."""

import logging
import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from kvstream import JobFailed, Jobs, current_job
from tests.jobs.conftest import Working
from tests.patience import PATIENCE_S, until

Make = Callable[..., Jobs]
Start = Callable[..., Working]

APP = """
from kvstream import Jobs

jobs = Jobs("nowhere")


@jobs.cron("0 3 * * *")
def {task}(): ...
"""


@pytest.fixture
def loaded() -> Iterator[Callable[[Path, str], ModuleType]]:
    """Load a file with an application as a module."""
    names: list[str] = []

    def load(path: Path, task: str) -> ModuleType:
        path.parent.mkdir(exist_ok=True)
        path.write_text(APP.format(task=task))
        names.append(f"application_{len(names)}")
        spec = spec_from_file_location(names[-1], path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[names[-1]] = module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in names:
        del sys.modules[name]


def names_of(jobs: Jobs) -> list[bytes]:
    return [each.name for each in jobs.store.stream("jobs").schedules()]


def test_a_worker_leaves_the_schedules_of_another_application(
    make_jobs: Make, working: Start
) -> None:
    billing, images = make_jobs(application="billing"), make_jobs(application="images")
    billing.cron("0 3 * * *", name="invoices")(lambda: None)
    billing.declare()
    images.use(billing.store)
    images.task(name="resize")(lambda: None)
    images.cron("@daily", name="clean")(lambda: None)
    working(images).stop()
    assert names_of(billing) == [b"cron:clean:@daily", b"cron:invoices:0 3 * * *"]
    working(billing).stop()
    assert names_of(billing) == [b"cron:clean:@daily", b"cron:invoices:0 3 * * *"]


def test_a_later_version_removes_what_its_application_has_declared(
    make_jobs: Make, caplog: pytest.LogCaptureFixture
) -> None:
    first, later = make_jobs(application="billing"), make_jobs(application="billing")
    first.cron("0 3 * * *", name="invoices")(lambda: None)
    first.cron("0 4 * * *", name="reports", max_in_flight=1)(lambda: None)
    first.declare()
    later.use(first.store)
    later.task(name="charge")(lambda: None)
    later.declare()
    assert names_of(later) == []
    assert later.store.stream("jobs:reports").schedules() == []
    lines = [each for each in caplog.records if "is removed" in each.getMessage()]
    assert [each.levelno for each in lines] == [logging.WARNING] * 2
    assert "cron:invoices:0 3 * * *" in lines[0].getMessage()
    assert "billing" in lines[0].getMessage()


def test_the_same_task_of_another_application_keeps_its_times(
    make_jobs: Make, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = make_jobs(application="a"), make_jobs(application="b")
    first.cron("@daily", name="clean")(lambda: None)
    first.declare()
    second.use(first.store)
    second.cron("@hourly", name="clean")(lambda: None)
    second.declare()
    assert names_of(first) == [b"cron:clean:@daily", b"cron:clean:@hourly"]
    assert "kvstream schedule rm jobs 'cron:clean:@daily'" in caplog.text


def test_a_worker_warns_of_schedules_whose_task_it_does_not_have(
    make_jobs: Make, working: Start, caplog: pytest.LogCaptureFixture
) -> None:
    billing, images = make_jobs(application="billing"), make_jobs(application="images")
    billing.cron("@daily", name="invoices")(lambda: None)
    billing.cron("@daily", name="shared")(lambda: None)
    billing.declare()
    images.use(billing.store)
    images.task(name="shared")(lambda: None)
    by_hand = {"mine": "shared", "theirs": "resize"}
    for name, task in by_hand.items():
        images.store.stream("jobs").schedule(name, "@daily", {"task": task, "args": "[[],{}]"})
    working(images).stop()
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(lines) == 2
    assert "cron:invoices:@daily of queue jobs (task: invoices)" in lines[0]
    assert "does not have, but billing has declared it, so it stays" in lines[0]
    assert "theirs of queue jobs (task: resize)" in lines[1]
    names = {b"cron:invoices:@daily", b"cron:shared:@daily", *map(str.encode, by_hand)}
    assert {*names_of(images)} == names


def test_a_schedule_without_an_application_goes_with_a_new_time_of_its_task_alone(
    jobs: Jobs,
) -> None:
    stream = jobs.store.stream("jobs")
    for task in ("clean", "invoices"):
        stream.schedule(f"cron:{task}:@daily", "@daily", {"task": task, "args": "[[],{}]"})
    jobs.task(name="invoices")(lambda: None)
    jobs.cron("@hourly", name="clean")(lambda: None)
    jobs.declare()
    assert names_of(jobs) == [b"cron:clean:@hourly", b"cron:invoices:@daily"]


def test_an_application_is_the_file_and_variable_of_its_jobs(
    tmp_path: Path, loaded: Callable[[Path, str], ModuleType], jobs: Jobs
) -> None:
    billing = loaded(tmp_path / "billing" / "app.py", "invoices").jobs
    images = loaded(tmp_path / "images" / "app.py", "clean").jobs
    assert billing.application == f"{tmp_path}/billing/app.py:jobs"
    for application in (billing, images):
        application.use(jobs.store)
        application.declare()
    assert names_of(jobs) == [b"cron:clean:0 3 * * *", b"cron:invoices:0 3 * * *"]
    later = loaded(tmp_path / "billing" / "app.py", "bills").jobs
    later.use(jobs.store)
    later.declare()
    assert names_of(jobs) == [b"cron:bills:0 3 * * *", b"cron:clean:0 3 * * *"]
    assert jobs.application == ""


def test_a_worker_of_many_leaves_the_schedules_to_its_parent(jobs: Jobs, working: Start) -> None:
    jobs.cron("@daily", name="clean")(lambda: None)
    working(jobs, declares=False).stop()
    assert names_of(jobs) == []


# --- unknown tasks ------------------------------------------------------------------------------


def test_a_job_of_another_application_is_left_to_its_workers(
    make_jobs: Make, working: Start
) -> None:
    billing, images = make_jobs(), make_jobs()
    attempts: list[int] = []

    @billing.task
    def charge(order: str) -> str:
        attempts.append(current_job().attempt)
        return order

    handle = charge.enqueue("a")
    images.use(billing.store)
    images.task(name="resize")(lambda: None)
    working(images)
    until(lambda: handle.error)
    assert handle.error == "UnknownTask: this worker has no task charge"
    assert handle.status == "queued"
    working(billing)
    assert handle.result(PATIENCE_S) == "a"
    assert attempts == [1]
    assert "jobs:dead" not in billing.store


def test_two_versions_of_an_application_leave_each_other_their_jobs(
    make_jobs: Make, working: Start
) -> None:
    old, new = make_jobs(), make_jobs()
    new.use(old.store)

    @old.task(name="mail")
    def mail_old(to: str) -> str:
        return f"old {to}"

    @new.task(name="mail")
    def mail_new(to: str, subject: str) -> str:
        return f"new {to} {subject}"

    @old.task
    def gone() -> str:
        return "gone"

    @new.task
    def added() -> str:
        return "added"

    working(old, concurrency=1)
    working(new, concurrency=1)
    handles = [
        *(mail_old.enqueue("a"), mail_new.enqueue("b", "c")),
        *(gone.enqueue(), added.enqueue()),
    ]
    done = [handle.result(PATIENCE_S) for handle in handles]
    assert done == ["old a", "new b c", "gone", "added"]
    assert "jobs:dead" not in old.store


def test_a_job_that_no_worker_knows_is_a_dead_letter_after_the_grace(
    make_jobs: Make, working: Start
) -> None:
    known, jobs = make_jobs(), make_jobs(unknown_grace=0.05, application="images")
    handle = known.task(name="charge", retries=3)(lambda: None).enqueue()
    jobs.use(known.store)
    jobs.task(name="resize")(lambda: None)
    worker = working(jobs)
    with pytest.raises(JobFailed, match="this worker has no task charge; no other worker has run"):
        known.handle(handle.id).result(PATIENCE_S)
    worker.stop()
    (letter,) = jobs.queues()[0].dead()
    text = letter.error.decode()
    assert f"within 0.05 s; worker {jobs.consumer} of images has: resize" in text
    assert (letter.reason, letter.deliveries) == ("fatal", 1)
    jobs.unknown_grace = 3600
    assert handle.retry()  # the grace begins anew
    working(jobs)
    until(lambda: known.handle(handle.id)._records()[-1].fields.get(b"unknown"))
    assert handle.status == "queued"


def test_without_a_grace_an_unknown_task_is_given_up_at_once(
    make_jobs: Make, working: Start
) -> None:
    jobs = make_jobs(unknown_grace=0)
    handle = jobs.task(name="charge")(lambda: None).enqueue()
    jobs.tasks.clear()
    jobs.task(name="resize")(lambda: None)
    working(jobs)
    with pytest.raises(JobFailed, match="no task charge"):
        handle.result(PATIENCE_S)


def test_jobs_of_a_schedule_have_the_tags_of_their_task() -> None:
    jobs = Jobs("nowhere")
    jobs.cron("@hourly", tags=["nightly"])(print_nothing)
    with jobs.test() as testing:
        testing.turn(3600)
        assert jobs.count(tag="nightly").by_status == {"done": 1}


def print_nothing() -> None:
    """Run as a job."""
