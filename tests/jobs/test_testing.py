"""The test mode: jobs run inline, and time advances with the clock."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from kvstream import JobFailed, Jobs
from kvstream.jobs import current_job
from kvstream.jobs.testing import Testing
from kvstream.queue import take

pytest_plugins = ["kvstream.jobs.pytest_plugin"]


def noting(**options: Any) -> tuple[Jobs, Any, list[Any]]:
    """Return Jobs, a task that notes its argument, and the list of what it has noted."""
    jobs, ran = Jobs("nowhere"), list[Any]()

    def run(n: Any = 0) -> None:
        ran.append(n)

    return jobs, jobs.task(**options)(run), ran


def test_jobs_run_where_they_are_enqueued(testing_jobs: Callable[[Jobs], Testing]) -> None:
    jobs = Jobs("nowhere")

    @jobs.task
    def double(x: int) -> int:
        return 2 * x

    @jobs.task
    async def later(x: int) -> str:
        return double.enqueue(x).id

    testing = testing_jobs(jobs)
    assert double.enqueue(2).result() == 4
    assert jobs.handle(later.enqueue(3).result()).result() == 6
    assert [job.task_name for job in testing.ran] == ["double", "later", "double"]


def test_a_delayed_job_runs_when_the_clock_is_advanced() -> None:
    jobs = Jobs("nowhere")
    times: list[Any] = []

    @jobs.task
    def note() -> None:
        times.append(testing.clock.ms)

    with jobs.test() as testing:
        begun = testing.clock.ms
        handle = note.with_options(delay=60).enqueue()
        assert (handle.status, times) == ("scheduled", [])
        assert testing.turn(59) == 0
        assert testing.turn(timedelta(hours=1)) == 1
        assert handle.status == "done"
        note.enqueue_many([()] * 2, delay=10)
        assert testing.turn(10) == 2
    assert times[0] == begun + 60_000
    assert jobs._store is None


def test_retries_happen_after_their_backoff() -> None:
    jobs = Jobs("nowhere")
    times: list[Any] = []

    @jobs.task(retries=3, backoff=[1, 10, 60])
    def fail() -> None:
        times.append((testing.clock.ms - begun) / 1000)
        raise ValueError("no")

    with jobs.test() as testing:
        begun = testing.clock.ms
        handle = fail.enqueue()
        assert handle.status == "retrying"
        assert handle.error == "ValueError: no"
        testing.turn(100)
        assert times == [0, 1, 11, 71]
        with pytest.raises(JobFailed, match="no"):
            handle.result()
        (letter,) = testing.dead()
        assert letter.fields[b"task"] == b"fail"


def test_exponential_backoff_doubles_up_to_its_cap() -> None:
    from kvstream import Backoff

    task = Jobs("nowhere").task(backoff=Backoff(1, 5))(lambda: None)
    assert [task.delay_s(n) for n in range(1, 6)] == [1, 2, 4, 5, 5]
    shaken = Jobs("nowhere").task(backoff=Backoff(1, 5, 0.5))(lambda: None)
    assert all(0.5 <= shaken.delay_s(1) <= 1 for _ in range(100))


def test_a_delayed_job_is_cancelled() -> None:
    jobs, run, ran = noting()

    with jobs.test() as testing:
        handle = run.with_options(delay=60).enqueue()
        assert handle.cancel()
        assert not handle.cancel()
        testing.turn(100)
        assert (handle.status, ran) == ("cancelled", [])


def test_jobs_of_one_key_run_in_order_and_others_overtake_them() -> None:
    jobs = Jobs("nowhere")
    ran = []

    @jobs.task(retries=1, backoff=60)
    def run(name: str) -> None:
        ran.append(name)
        if ran == ["a1"]:
            raise ValueError("later")

    with jobs.test() as testing:
        run.with_options(key="a").enqueue("a1")
        run.with_options(key="a").enqueue("a2")
        run.with_options(key="b").enqueue("b1")
        assert ran == ["a1", "b1"]
        testing.turn(60)
        assert ran == ["a1", "b1", "a1", "a2"]


def test_async_jobs_run_inside_a_running_loop_too() -> None:
    jobs = Jobs("nowhere")

    @jobs.task
    async def nap() -> str:
        await asyncio.sleep(0)
        return "rested"

    async def program() -> str:
        with jobs.test():
            return str(await nap.enqueue())

    assert asyncio.run(program()) == "rested"


def test_a_result_that_needs_another_time_of_the_clock_is_an_error_at_once() -> None:
    jobs = Jobs("nowhere")

    @jobs.task
    def run() -> str:
        return "done"

    with jobs.test() as testing:
        handle = run.with_options(delay=60).enqueue()
        with pytest.raises(TimeoutError, match="not due yet: turn the clock of the test"):
            handle.result()
        with pytest.raises(TimeoutError, match="not due yet"):
            asyncio.run(handle.aresult(3600))
        testing.turn(60)
        assert handle.result() == asyncio.run(handle.aresult()) == "done"


def test_a_job_that_enqueues_itself_for_ever_is_an_error() -> None:
    import kvstream.jobs.testing as mode

    jobs = Jobs("nowhere")

    @jobs.task
    def again() -> None:
        again.enqueue()

    with pytest.MonkeyPatch.context() as patch, jobs.test():
        patch.setattr(mode, "_RUNS_MAX", 10)
        with pytest.raises(RuntimeError, match="is there a loop"):
            again.enqueue()


def test_a_schedule_runs_its_task_at_its_times_and_each_once() -> None:
    jobs = Jobs("nowhere")
    times: list[Any] = []

    @jobs.cron("0 3 * * *", tz="Europe/Berlin")
    def nightly() -> str:
        moment = datetime.fromtimestamp(testing.clock.ms / 1000, ZoneInfo("Europe/Berlin"))
        times.append(moment.strftime("%d %H:%M"))
        return "cleaned"

    @jobs.cron("@every 1h")
    @jobs.task(retries=1)
    def hourly() -> None: ...

    with jobs.test(start_ms=1_774_652_400_000) as testing:  # 28 March 2026, 0:00 in Berlin
        testing.turn(timedelta(hours=30))
        assert times == ["28 03:00", "29 03:00"]  # summer time began in between
        assert sum(job.task is hourly for job in testing.ran) == 30
        (first, *_) = [job for job in testing.ran if job.task is nightly]
        assert jobs.handle(first.id).status == "unknown"  # kept for an hour
        nightly.enqueue()
        assert len(times) == 3


def test_a_schedule_removed_from_the_application_is_deleted() -> None:
    jobs = Jobs("nowhere")
    jobs.cron("@hourly")(lambda: None)
    other = jobs.task(name="other")(lambda: None)
    with jobs.test():
        stream = jobs.store.stream("jobs")
        stream.schedule("mine", "@hourly", {"task": "other"})
        jobs.schedules.clear()
        jobs.cron("@daily")(other)
        jobs.declare()
        assert [each.name for each in stream.schedules()] == [b"cron:other:@daily", b"mine"]


def test_a_schedule_goes_with_its_queue_and_with_its_task_to_another_one() -> None:
    jobs = Jobs("nowhere")
    moved = jobs.cron("@hourly", name="moved")(lambda: None)
    jobs.cron("@hourly", name="gone", max_in_flight=1)(lambda: None)
    with jobs.test() as testing:
        assert [each.name for each in jobs.store.stream("jobs:gone").schedules()]
        jobs.schedules.clear()
        jobs.tasks.clear()
        jobs.cron("@hourly", name="moved", max_in_flight=1)(moved.function)
        jobs.declare()
        schedules = {key: jobs.store.stream(key).schedules() for key in ("jobs", "jobs:gone")}
        assert schedules == {"jobs": [], "jobs:gone": []}
        testing.turn(3600)
        assert [job.task_name for job in testing.ran] == ["moved"]
        assert jobs.store.stream("jobs:gone").delayed_count() == 0


def test_a_job_that_kills_its_workers_is_given_up() -> None:
    jobs = Jobs("nowhere")

    @jobs.task
    def poison() -> None: ...

    with jobs.test() as testing:
        with testing.held():
            handle = poison.enqueue()
        for _ in range(5):
            assert len(take(jobs.queues())) == 1  # the worker is gone
            testing.clock.advance(30_000)
        testing.run()
        with pytest.raises(JobFailed, match="delivered 5 times, and each of its workers died"):
            handle.result()
        assert testing.ran == []
        assert len(testing.dead()) == 1


@pytest.mark.parametrize("unique", [True, "welcome:{n}"])
def test_a_unique_job_is_enqueued_once_until_it_is_done(unique: bool | str) -> None:
    jobs, welcome, sent = noting(unique=unique)

    with jobs.test() as testing:
        one = welcome.with_options(delay=60).enqueue("ann")
        two = welcome.with_options(delay=30).enqueue("ann")
        welcome.with_options(delay=60).enqueue("bob")
        assert one == two
        testing.turn(60)
        assert sent == ["ann", "bob"]
        welcome.enqueue("ann")
        assert sent == ["ann", "bob", "ann"]


def test_a_unique_job_is_held_for_its_window() -> None:
    jobs, welcome, sent = noting()

    with jobs.test() as testing:
        one = welcome.with_options(unique="w", window=60).enqueue("ann")
        two = welcome.with_options(unique="w", window=60).enqueue("bob")
        assert sent == ["ann"]
        assert (one, two.status) == (two, "done")
        testing.turn(61)
        welcome.with_options(unique="w", window=60).enqueue("bob")
        assert sent == ["ann", "bob"]


def test_a_job_that_does_not_run_in_its_time_to_live_is_deleted() -> None:
    jobs, run, ran = noting()

    with jobs.test() as testing:
        with testing.held():
            handle = run.with_options(ttl=10).enqueue()
        testing.clock.advance(11_000)
        testing.run()
        assert (ran, handle.status) == ([], "unknown")


def test_a_rate_limits_one_task_and_not_the_others() -> None:
    jobs, limited, ran = noting(rate=(2, 60))

    @jobs.task
    def other() -> None:
        ran.append("other")

    with jobs.test() as testing:
        handles = limited.enqueue_many([(n,) for n in range(5)])
        other.enqueue()
        assert ran == [0, 1, "other"]
        assert handles[2].status == "queued"
        testing.turn(61)
        assert ran == [0, 1, "other", 2, 3]
        testing.turn(61)
        assert ran == [0, 1, "other", 2, 3, 4]


def test_jobs_are_enqueued_with_a_transaction_or_not_at_all() -> None:
    jobs, run, ran = noting()

    with jobs.test() as testing:
        with testing.held():
            with jobs.store.transaction():
                jobs.store.stream("orders").add({"order": 1})
                run.enqueue(1)
            with suppress(OSError), jobs.store.transaction():
                run.enqueue(2)
                raise OSError("away")
        testing.run()
        assert ran == [1]


def test_a_job_whose_transaction_was_undone_goes_on() -> None:
    jobs = Jobs("nowhere")
    states: list[bool] = []

    @jobs.task
    def work() -> str:
        job = current_job()
        with suppress(OSError), job.transaction() as store:
            store.stream("s").add({"n": 1})
            raise OSError
        states.append(job.ending)
        return "done"

    with jobs.test():
        assert work.enqueue().result() == "done"
        assert not jobs.store.exists("s")
    assert states == [False]


def test_jobs_run_at_the_end_of_the_transaction_that_enqueues_them() -> None:
    jobs = Jobs("nowhere")
    ran: list[int] = []

    @jobs.task(retries=1)
    def run(n: int) -> int:
        ran.append(n)
        return n

    with jobs.test():
        with suppress(OSError), jobs.store.transaction():
            run.enqueue(1)
            raise OSError("away")
        assert ran == []
        with jobs.store.transaction():
            first, (second,) = run.enqueue(2), run.enqueue_many([(3,)])
            assert ran == []
        assert (ran, first.result(), second.result()) == ([2, 3], 2, 3)


def test_a_time_is_a_datetime_or_unix_seconds() -> None:
    jobs, run, ran = noting()

    with jobs.test(start_ms=1_774_652_400_000) as testing:
        run.with_options(at=1_774_652_460).enqueue(1)
        run.with_options(
            at=datetime(2026, 3, 28, 0, 0, 30, tzinfo=ZoneInfo("Europe/Berlin"))
        ).enqueue(2)
        testing.turn(29)
        assert ran == []
        testing.turn(31)
        assert ran == [2, 1]


def test_an_error_with_invalid_utf8_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    # pytest-xdist cannot send the line, if a handler formats the exception anew.
    caplog.set_level("CRITICAL", "kvstream.jobs.job_log")
    jobs = Jobs("nowhere")

    @jobs.task
    def fail() -> None:
        raise ValueError("\ud800")

    with jobs.test():
        assert fail.enqueue().error == "ValueError: \\ud800"


PROJECT = """
import asyncio

import pytest

import kvstream

jobs = kvstream.Jobs("data")


@jobs.task
async def double(x: int) -> int:
    await asyncio.sleep(0)
    return 2 * x


@pytest.mark.{mark}
async def test_async(testing_jobs, tmp_path):
    testing = testing_jobs(jobs)
    assert await (await double.aenqueue(2)) == 4
    delayed = double.enqueue(3, delay=60)
    testing.turn(60)
    assert delayed.status == "done"
    async with kvstream.aio.open(tmp_path / "store") as store:
        await store.stream("s").add({{"a": 1}})


def test_sync(testing_jobs):
    testing_jobs(jobs)
    assert double.enqueue(2).result() == 4
"""
BACKEND = """
pytest_plugins = ["kvstream.jobs.pytest_plugin"]

import pytest


@pytest.fixture
def anyio_backend():
    return "asyncio"
"""


MARKS = {"anyio": "anyio", "pytest_asyncio": "asyncio"}
"""The marks of async tests by their packages; pytest-asyncio is not among the tools."""


@pytest.mark.parametrize("mark", [MARKS[name] for name in MARKS if find_spec(name)])
def test_the_plugin_works_beside_those_for_async_tests(tmp_path: Path, mark: str) -> None:
    (tmp_path / "conftest.py").write_text(BACKEND)
    (tmp_path / "test_project.py").write_text(PROJECT.format(mark=mark))
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
