"""APScheduler on a store: its job store, and schedulers that are killed."""

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

import pytest
from apscheduler.jobstores.base import ConflictingIdError, JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler

from kvstream.adapters.apscheduler import KVStreamJobStore
from tests.adapters.apscheduler_app import note
from tests.adapters.conftest import Start, list_done, open_place, options_of
from tests.patience import PATIENCE_S, until

LATER = datetime(2999, 1, 1, tzinfo=UTC)
_ran = Event()


def run() -> None:
    _ran.set()


@pytest.fixture
def scheduler(place: str) -> Iterator[BackgroundScheduler]:
    """A scheduler that holds jobs and runs none until it is resumed."""
    yield from start_scheduler(place)


@pytest.fixture
def other(place: str, scheduler: BackgroundScheduler) -> Iterator[BackgroundScheduler]:
    yield from start_scheduler(place)


def start_scheduler(place: str) -> Iterator[BackgroundScheduler]:
    store = KVStreamJobStore(place, **options_of(place))
    scheduler = BackgroundScheduler(jobstores={"default": store}, timezone=UTC)
    scheduler.start(paused=True)
    yield scheduler
    scheduler.shutdown()


def ids(jobs: list[Any]) -> list[str]:
    return [job.id for job in jobs]


def test_jobs_are_listed_by_time_and_found_by_others(
    scheduler: BackgroundScheduler, other: BackgroundScheduler
) -> None:
    scheduler.add_job(run, "date", run_date=LATER, id="last")
    scheduler.add_job(run, "date", run_date=LATER - timedelta(days=1), id="first")
    scheduler.add_job(run, "interval", hours=1, id="paused", next_run_time=None)
    assert ids(other.get_jobs()) == ["first", "last", "paused"]
    store = other._lookup_jobstore("default")
    assert store.get_next_run_time() == LATER - timedelta(days=1)
    assert ids(store.get_due_jobs(LATER)) == ["first", "last"]


def test_a_job_is_changed_and_removed(
    scheduler: BackgroundScheduler, other: BackgroundScheduler
) -> None:
    scheduler.add_job(run, "date", run_date=LATER, id="a")
    with pytest.raises(ConflictingIdError):
        other.add_job(run, "date", run_date=LATER, id="a")
    other.modify_job("a", name="new")
    assert scheduler.get_job("a").name == "new"
    assert len(scheduler._lookup_jobstore("default")._records.stream) == 1
    scheduler.remove_job("a")
    with pytest.raises(JobLookupError):
        other.remove_job("a")
    with pytest.raises(JobLookupError):
        other.modify_job("a", name="newer")
    scheduler.add_job(run, "date", run_date=LATER)
    scheduler.remove_all_jobs()
    assert other.get_jobs() == []


def test_a_job_that_cannot_be_restored_is_removed(scheduler: BackgroundScheduler) -> None:
    store = scheduler._lookup_jobstore("default")
    store._records.put("broken", b"nonsense")
    assert scheduler.get_jobs() == []
    assert len(store._records.stream) == 0


class Interrupting:
    """An interrupt comes while it is unpickled."""

    def __reduce__(self) -> Any:
        return interrupt, ()


def interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_removes_no_job(scheduler: BackgroundScheduler) -> None:
    store = scheduler._lookup_jobstore("default")
    store._records.put("a", pickle.dumps(Interrupting()))
    with pytest.raises(KeyboardInterrupt):
        scheduler.get_jobs()
    assert len(store._records.stream) == 1
    store._records.delete("a")


def test_a_job_that_another_process_adds_runs_in_time(
    scheduler: BackgroundScheduler, other: BackgroundScheduler
) -> None:
    _ran.clear()
    scheduler.add_job(run, "date", run_date=LATER)
    scheduler.resume()  # sleeps until 2999
    other.add_job(run, "date", run_date=datetime.now(UTC) + timedelta(milliseconds=200))
    assert _ran.wait(PATIENCE_S)


def test_jobs_outlive_schedulers_that_are_killed(
    place: str, start: Start, scheduler: BackgroundScheduler
) -> None:
    workers = start("tests.adapters.apscheduler_app", count=1)
    with open_place(place) as store:
        for first in range(0, 20, 10):
            for n in range(first, first + 10):
                when = datetime.now(UTC) + timedelta(milliseconds=20 * (n - first))
                job = {"run_date": when, "misfire_grace_time": None}
                scheduler.add_job(note, "date", args=(n,), **job)
            until(lambda: list_done(store) == set(range(first + 10)), "all jobs", 0.02)  # noqa: B023
            workers.kill_one()
    assert scheduler.get_jobs() == []
