"""Tasks and their handles: enqueued here, run by a worker, their result waited for."""

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
import redis

import kvstream
from kvstream import (
    InvalidArgument,
    JobCancelled,
    JobFailed,
    Jobs,
    JobUnknown,
    ServerTooOld,
    aio,
    current_job,
)
from kvstream.jobs import Backoff, GiveUp, Job, JobHandle, Middleware, Retry
from kvstream.jobs.job import creation_ms, id_of, new_id
from tests.jobs.conftest import PLACES, Working
from tests.patience import PATIENCE_S, until
from tests.remote.conftest import Places

Start = Callable[..., Working]
NIGHTLY = partial(Jobs("unused").cron, "0 3 * * *")


def run_until_failed(working: Start, *handles: JobHandle[Any]) -> None:
    """Run jobs until each has failed; then stop the worker."""
    worker = working(handles[0]._jobs)
    for handle in handles:
        with pytest.raises(JobFailed):
            handle.result(PATIENCE_S)
    worker.stop()


def test_a_task_stays_callable_and_needs_no_parentheses(jobs: Jobs) -> None:
    @jobs.task
    def double(x: int) -> int:
        """Double."""
        return 2 * x

    @jobs.task(retries=3)
    def triple(x: int) -> int:
        return 3 * x

    assert (double(2), triple(2), double.name, double.__doc__) == (4, 6, "double", "Double.")
    assert jobs._store is None  # no store is open


def test_a_partial_and_an_object_that_is_called_may_be_tasks(jobs: Jobs, working: Start) -> None:
    class Adder:
        def __init__(self) -> None:
            self.name, self.queue, self.jobs = "own name", "own queue", 5

        async def __call__(self, day: date, days: int) -> date:
            return day + timedelta(days)

    def later(days: int, day: date) -> date:
        return day + timedelta(days)

    object_task = jobs.task(name="object")(Adder())
    partial_task = jobs.task(name="partial")(partial(later, 2))
    assert (object_task.name, object_task.queue) == ("object", "default")
    working(jobs)
    new_year = date(2027, 1, 1)
    assert object_task.enqueue(new_year, 1).result(PATIENCE_S) == date(2027, 1, 2)
    assert partial_task.enqueue(new_year).result(PATIENCE_S) == date(2027, 1, 3)
    with pytest.raises(TypeError, match="argument 'day' of partial: 'today' is not a date"):
        partial_task.enqueue("today")


def test_a_job_runs_once_and_its_result_comes_back_with_its_type(
    jobs: Jobs, working: Start
) -> None:
    ran = []

    @jobs.task
    def when(number: UUID) -> datetime:
        ran.append(number)
        return datetime(2026, 1, 2, tzinfo=UTC)

    handle = when.enqueue(UUID(int=7))
    assert handle.status == "queued"
    working(jobs)
    assert handle.result(PATIENCE_S) == datetime(2026, 1, 2, tzinfo=UTC)
    assert jobs.handle(handle.id).result(PATIENCE_S) == datetime(2026, 1, 2, tzinfo=UTC)
    assert (ran, handle.status, handle.error) == ([UUID(int=7)], "done", None)
    assert len(jobs.store.stream("jobs")) == 0


def test_async_tasks_run_together_in_one_loop_and_are_awaited(jobs: Jobs, working: Start) -> None:
    threads = set()

    @jobs.task
    async def meet(n: int) -> int:
        threads.add(threading.get_ident())
        while len(entered) < 4:
            await asyncio.sleep(0.001)
        return n

    entered: set[int] = set()

    @jobs.task
    async def enter(n: int) -> int:
        entered.add(n)
        return await meet.function(n)

    working(jobs, concurrency=4)

    async def program() -> list[int]:
        handles = [await enter.aenqueue(n) for n in range(4)]
        return list(await asyncio.gather(*handles))

    assert asyncio.run(program()) == [0, 1, 2, 3]
    assert len(threads) == 1


def test_many_jobs_are_enqueued_in_one_commit(jobs: Jobs, working: Start) -> None:
    @jobs.task
    def add(a: int, b: int = 1) -> int:
        return a + b

    handles = add.enqueue_many([(1, 2), [3], {"a": 5, "b": 6}])
    with pytest.raises(TypeError, match="a call is a tuple"):
        add.enqueue_many(["ab"])
    with pytest.raises(TypeError):
        add.enqueue_many([(1,), ("x",)])
    working(jobs)
    assert [handle.result(PATIENCE_S) for handle in handles] == [3, 4, 11]


def test_wrong_arguments_are_a_type_error_where_they_are_enqueued(jobs: Jobs) -> None:
    @jobs.task
    def mail(to: str) -> None: ...

    @jobs.task
    def first(value: list[Any]) -> None: ...

    for args in ((), ("a", "b"), (1,)):
        with pytest.raises(TypeError):
            mail.enqueue(*args)
    with pytest.raises(TypeError, match="argument 'value' of"):
        first.enqueue(endless())
    assert "jobs" not in jobs.store


class Untold(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError


def raises() -> None:
    raise ValueError("no")


def raises_untold() -> None:
    raise Untold


async def awaits_cancelled() -> None:
    other = asyncio.create_task(asyncio.sleep(3600))
    other.cancel()
    await other


def unstorable() -> Any:
    return object()


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("function", "retries", "says", "reason", "deliveries"),
    [
        (raises, 0, "ValueError: no", b"max-deliveries", b"1"),
        (raises_untold, 1, "Untold: <its text cannot be shown>", b"max-deliveries", b"2"),
        (awaits_cancelled, 1, "CancelledError", b"max-deliveries", b"2"),
        (unstorable, 5, "TypeError: the result of unstorable", b"fatal", b"1"),
        (endless, 3, "TypeError: the result of endless: maximum", b"fatal", b"1"),
    ],
)
def test_a_failed_job_reports_its_error_and_becomes_a_dead_letter(
    jobs: Jobs,
    working: Start,
    caplog: pytest.LogCaptureFixture,
    function: Callable[..., Any],
    retries: int,
    says: str,
    reason: bytes,
    deliveries: bytes,
) -> None:
    # pytest's log handler raises what a formatter raises, for which PySpark's calls str(error).
    caplog.set_level(logging.CRITICAL, logger="kvstream")
    handle = jobs.task(retries=retries, backoff=0)(function).enqueue()
    working(jobs)
    with pytest.raises(JobFailed, match=re.escape(says)) as caught:
        handle.result(PATIENCE_S)
    assert handle.status == "failed"
    assert says in (handle.error or "")
    (dead,) = jobs.store.stream("jobs:dead").range()
    assert dead.fields[b"task"] == function.__name__.encode()
    assert (dead.fields[b"dead:reason"], dead.fields[b"dead:deliveries"]) == (reason, deliveries)
    assert says.encode() in dead.fields[b"dead:error"]
    if reason == b"max-deliveries":
        assert f"in {function.__name__}" in caught.value.traceback
        assert f"in {function.__name__}".encode() in dead.fields[b"dead:traceback"]
    assert len(jobs.store.stream("jobs")) == 0


def test_a_job_is_retried_as_often_as_its_task_says(jobs: Jobs, working: Start) -> None:
    attempts = []

    @jobs.task(retries=2, backoff=0)
    def flaky(until: int) -> int:
        attempts.append(current_job().attempt)
        if len(attempts) < until:
            raise OSError("away")
        return len(attempts)

    working(jobs)
    assert flaky.enqueue(3).result(PATIENCE_S) == 3
    with pytest.raises(JobFailed, match="away"):
        flaky.enqueue(100).result(PATIENCE_S)
    assert attempts == [1, 2, 3, 1, 2, 3]


def test_a_task_may_give_up_or_request_a_retry(jobs: Jobs, working: Start) -> None:
    attempts = []

    @jobs.task(retries=5, backoff=3600)
    def picky() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise Retry("soon", delay=0)
        raise GiveUp("never")

    working(jobs)
    with pytest.raises(JobFailed, match="GiveUp: never"):
        picky.enqueue().result(PATIENCE_S)
    assert len(attempts) == 2
    (dead,) = jobs.store.stream("jobs:dead").range()
    assert dead.fields[b"dead:reason"] == b"fatal"


def test_without_dead_letters_a_failed_job_is_deleted(jobs: Jobs, working: Start) -> None:
    @jobs.task(dead_letter=False)
    def fail() -> None:
        raise ValueError("no")

    working(jobs)
    with pytest.raises(JobFailed, match="no"):
        fail.enqueue().result(PATIENCE_S)
    assert "jobs:dead" not in jobs.store
    assert len(jobs.store.stream("jobs")) == 0


def test_a_job_of_an_unknown_task_or_other_arguments_goes_to_the_dead_letters(
    make_jobs: Callable[..., Jobs], working: Start
) -> None:
    jobs = make_jobs(unknown_grace=0.1)

    @jobs.task
    def gone() -> None: ...

    @jobs.task
    def renamed(to: str) -> None: ...

    @jobs.task
    def grown(to: str) -> None: ...

    handles = [gone.enqueue(), renamed.enqueue("a"), grown.enqueue("b")]
    jobs.tasks.clear()

    @jobs.task(name="renamed")
    def renamed_later(receiver: str) -> None: ...

    @jobs.task(name="grown")
    def grown_later(to: str, copy: str = "c") -> str:
        return to + copy

    working(jobs)
    assert jobs.handle(handles[2].id).result(PATIENCE_S) == "bc"
    with pytest.raises(JobFailed, match="no task gone"):
        handles[0].result(PATIENCE_S)
    with pytest.raises(JobFailed, match=r"'receiver'.*version .* of the task, this is"):
        handles[1].result(PATIENCE_S)
    assert len(jobs.store.stream("jobs:dead")) == 2


def test_a_result_that_a_server_refuses_fails_its_job_alone(
    place: tuple[str, dict[str, Any]], jobs: Jobs, working: Start
) -> None:
    if not place[0].startswith("redis"):
        pytest.skip("a directory takes results of 512 MB")
    go = threading.Event()

    @jobs.task(retries=5, backoff=0)
    def make(size: int) -> str:
        go.wait(PATIENCE_S)
        return "x" * size

    sizes = [1, 2_000_000, 1_000_100, 2]
    with redis.Redis.from_url(place[0]) as client:
        before = client.config_get("stream-entry-max-bytes")
        client.config_set("stream-entry-max-bytes", "1mb")
        try:
            handles = make.enqueue_many([(size,) for size in sizes])
            working(jobs)
            until(lambda: all(handle.status == "running" for handle in handles))
            go.set()
            with pytest.raises(JobFailed, match="larger than the stream-entry-max-bytes"):
                handles[1].result(PATIENCE_S)
            others = [len(handles[at].result(PATIENCE_S)) for at in (0, 2, 3)]
            assert others == [1, 1_000_100, 2]
        finally:
            client.config_set(*before.popitem())
    (dead,) = jobs.store.stream("jobs:dead").range()
    assert dead.fields[b"id"] == handles[1].id.encode()
    until(lambda: len(jobs.store.stream("jobs")) == 0)


def test_a_waiting_program_gets_the_timeout_of_a_job(jobs: Jobs) -> None:
    @jobs.task
    def never() -> None: ...

    handle = never.enqueue()
    with pytest.raises(TimeoutError, match=r"is queued, not done after 0\.01 s"):
        handle.result(0.01)

    with pytest.raises(TimeoutError):
        handle.result(timeout=-1)  # a deadline that has passed

    async def program() -> None:
        await handle.aresult(timedelta(milliseconds=10))

    with pytest.raises(TimeoutError):
        asyncio.run(program())
    wrong: Any
    for wrong in ("5", float("nan"), True):
        with pytest.raises(InvalidArgument, match="timeout is not a number of seconds"):
            handle.result(timeout=wrong)


@pytest.mark.parametrize("place", [*PLACES, "client"], indirect=True)
def test_tasks_that_await_results_need_no_threads(jobs: Jobs, working: Start) -> None:
    @jobs.task
    def double(n: int) -> int:
        return 2 * n

    async def program() -> list[int]:
        double.enqueue(0)  # opens the store
        threads = threading.active_count()
        awaited = [asyncio.create_task(double.enqueue(n).aresult(PATIENCE_S)) for n in range(20)]
        await asyncio.sleep(0)
        cancelled = asyncio.create_task(double.enqueue(99).aresult())
        await asyncio.sleep(0.2)
        cancelled.cancel()
        assert threading.active_count() <= threads + 1  # one thread has imported redis.asyncio
        working(jobs)
        results = [await each for each in awaited]
        assert aio._openings == {}
        return results

    assert asyncio.run(program()) == [2 * n for n in range(20)]


def test_a_task_that_awaits_a_result_can_be_cancelled_at_its_arrival(jobs: Jobs) -> None:
    @jobs.task
    def never() -> None: ...

    async def cancel_after(turns: int) -> None:
        handle = never.enqueue()
        awaited = asyncio.create_task(handle.aresult())
        await asyncio.sleep(0)
        jobs.store.stream(jobs.results.own_key(handle.id)).add({"status": "cancelled"})
        for _ in range(turns):
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError if awaited.cancel() else JobCancelled):
            await awaited

    for turns in range(8):
        asyncio.run(cancel_after(turns))


def test_a_result_that_is_not_kept_is_unknown(
    jobs: Jobs, working: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstream.jobs.handle.LOOK_S", 0.1)
    done = threading.Event()

    @jobs.task(result_ttl=0)
    def quiet() -> None:
        done.set()

    handle = quiet.enqueue()
    worker = working(jobs)
    assert done.wait(PATIENCE_S)
    worker.stop()
    assert handle.status == "unknown"
    with pytest.raises(JobUnknown):
        handle.result()
    for timeout in (0, 0.01):
        with pytest.raises(JobUnknown):
            handle.result(timeout)


def test_the_more_results_are_awaited_the_rarer_each_job_is_looked_at(jobs: Jobs) -> None:
    """So that all waits of a program together look a hundred times a second."""
    handle = jobs.task(name="late")(lambda: None).enqueue()

    def longest_wait(count: int) -> float | None:
        waits = [handle._wait_steps(None) for _ in range(count)]
        asked = [next(each) for each in waits][-1]
        for each in waits:
            each.close()
        return None if asked is None else asked[1]

    assert [longest_wait(count) for count in (1, 500, 1000, 8000)] == [5, 5, 10, 60]
    assert not jobs.results.waiting


def test_a_queued_job_that_is_cancelled_never_runs(jobs: Jobs, working: Start) -> None:
    ran = []

    @jobs.task
    def run(n: int) -> int:
        ran.append(n)
        return n

    one, two = run.enqueue(1), run.enqueue(2)
    assert one.cancel()
    assert one.status == "cancelled"
    working(jobs)
    assert two.result(PATIENCE_S) == 2
    assert not two.cancel()
    assert not one.cancel()
    with pytest.raises(JobCancelled):
        one.result(PATIENCE_S)
    assert ran == [2]


def test_a_running_async_job_is_cancelled_when_its_lease_is_extended_next(
    make_jobs: Callable[..., Jobs], working: Start
) -> None:
    cancelled = threading.Event()
    errors: list[BaseException] = []

    class Noting(Middleware):
        def error(self, job: Job, error: BaseException) -> None:
            errors.append(error)

    jobs = make_jobs(middleware=[Noting()])

    @jobs.task(timeout=2)  # the lease is extended three times in that
    def sync() -> None: ...

    @jobs.task
    async def wait() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    handle = wait.enqueue()
    working(jobs)
    until(lambda: handle.status == "running")
    assert handle.cancel()
    assert cancelled.wait(PATIENCE_S)
    assert handle.status == "cancelled"
    until(lambda: errors)
    assert isinstance(errors[0], asyncio.CancelledError)


def test_a_job_of_high_priority_overtakes_others(jobs: Jobs, working: Start) -> None:
    ran = []

    @jobs.task
    def run(name: str) -> None:
        ran.append(name)

    handles = [run.with_options(priority=name).enqueue(name) for name in ("low", "normal", "high")]
    working(jobs, concurrency=1)
    for handle in handles:
        handle.result(PATIENCE_S)
    assert ran == ["high", "normal", "low"]
    with pytest.raises(InvalidArgument, match="did you mean 'high'"):
        run.with_options(priority="hihg").enqueue("x")


def test_arguments_may_travel_as_msgpack(make_jobs: Callable[..., Jobs], working: Start) -> None:
    jobs = make_jobs(format="msgpack")

    @jobs.task
    def echo(data: bytes) -> bytes:
        return data

    handle = echo.enqueue(b"\xff" * 10)
    (entry,) = jobs.store.stream("jobs").range()
    assert b"\xff" * 10 in entry.fields[b"args"]
    working(jobs)
    assert handle.result(PATIENCE_S) == b"\xff" * 10


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"retries": -1}, "retries must be at least 0"),
        ({"retries": "3"}, "retries must be a whole number"),
        ({"timeout": 0}, "timeout must be above 0"),
        ({"timeout": "30"}, "timeout is not a number of seconds"),
        ({"timeout": float("nan")}, "timeout is not a number of seconds"),
        ({"backoff": "often"}, "backoff is seconds, a list of them or Backoff"),
        ({"backoff": "15"}, "backoff is seconds, a list of them or Backoff"),
        ({"backoff": -1}, "a delay of backoff is negative"),
        ({"backoff": []}, "backoff is empty"),
        ({"backoff": Backoff(10, 1)}, "a backoff doubles from first up to cap"),
        ({"result_ttl": "1h"}, "result_ttl is not a number of seconds"),
        ({"rate": 5}, "rate is a pair"),
        ({"max_in_flight": -1}, "max_in_flight must not be negative"),
        ({"unique": 5}, "unique is True or a template"),
        ({"unique": "welcome:{to}"}, "names no parameter"),
        ({"unique": "welcome:{"}, "is no template"),
        ({"dead_letter": True}, "dead_letter is a text"),
        ({"name": 5}, "the name of a task is a text"),
        ({"queue": "dead"}, "cannot be called dead"),
        ({"priority": "urgent"}, "no such priority"),
        ({"priority": "high", "rate": (1, 1)}, "has limits, so its queue has no priorities"),
    ],
)
def test_wrong_options_of_a_task_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        Jobs("unused").task(**options)(lambda: None)


@pytest.mark.parametrize(
    ("call", "options", "says"),
    [
        (partial(Jobs, "unused"), {"priorities": "high"}, "priorities are names"),
        (partial(Jobs, "unused"), {"result_ttl": "1h"}, "result_ttl is not a number of seconds"),
        (partial(Jobs, "unused"), {"middleware": [Middleware]}, r"instances: Middleware\(\)"),
        (partial(Jobs, "unused"), {"decode": True}, "leave out decode"),
        (Jobs("unused").cron, {"expression": "0 3 * *"}, "has 4 fields, not 5"),
        (NIGHTLY, {"tz": "Europe/Berln"}, "the time zone 'Europe/Berln' is unknown"),
        (NIGHTLY, {"misfire": "twice"}, "misfire"),
        (NIGHTLY, {"misfire": "all", "most": 0}, "must be 1 to 1000, not 0"),
        (NIGHTLY, {"tz": UTC}, "the time zone cannot be datetime.timezone.utc"),
    ],
)
def test_wrong_options_of_jobs_and_schedules_are_refused_at_once(
    call: Callable[..., Any], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidArgument, match=says):
        call(**options)


def test_what_is_no_function_with_a_result_is_refused() -> None:
    jobs = Jobs("unused")

    def numbers() -> Iterator[int]:
        yield 1

    with pytest.raises(InvalidArgument, match="numbers is a generator"):
        jobs.task(numbers)
    with pytest.raises(InvalidArgument, match="options have names"):
        jobs.task("mail")  # type: ignore[call-overload]
    with pytest.raises(InvalidArgument, match="give the task a name="):
        jobs.task(partial(int, "1"))
    with pytest.raises(InvalidArgument, match="a cron expression is a text"):
        jobs.cron(numbers)  # type: ignore[arg-type]
    assert not jobs.tasks


def test_a_redis_takes_no_job(places: Places) -> None:
    with Jobs(places.of("redis-7.0")) as jobs:
        task = jobs.task(name="run")(lambda: None)
        with pytest.raises(ServerTooOld, match=r"^KVSTREAM.POLICY is a command of kvs"):
            task.enqueue()
    with kvstream.open(str(jobs.place)) as store:
        assert not list(store.keys())


def test_an_empty_unique_name_is_refused(jobs: Jobs) -> None:
    @jobs.task(unique="{to}")
    def send(to: str) -> None: ...

    for to, unique in (("", None), ("a", "")):
        with pytest.raises(InvalidArgument, match="a unique ID has 1 to 1024 bytes, not 0"):
            send.with_options(unique=unique).enqueue(to)
    first = send.with_options(unique=False).enqueue("")
    assert send.with_options(unique=False).enqueue("").id != first.id


def test_a_unique_template_is_formatted_wherever_it_is_given(jobs: Jobs) -> None:
    @jobs.task
    def run(x: int, *, of: dict[str, int] | None = None) -> None: ...

    by_option = run.with_options(unique="w:{x}")
    one, two = by_option.enqueue(1), by_option.enqueue(2)
    assert (by_option.enqueue(1), by_option.enqueue(x=2)) == (one, two)
    assert one.id != two.id
    assert asyncio.run(by_option.aenqueue(1)) == one
    among: Any = run.enqueue
    assert [among(x, unique="w:{x}") for x in (1, 2)] == [one, two]
    assert [among(x, unique="w:1") for x in (1, 2)] == [one, one]
    assert among(3, unique="{{x}}") == among(4, unique="{{x}}")
    for wrong in ("{y}", "{}", "{0}", "{x:{y}}", "{x", "x}"):
        with pytest.raises(InvalidArgument, match=r"unique=.* a brace is written twice"):
            run.with_options(unique=wrong)
        with pytest.raises(InvalidArgument, match=r"unique=.* a brace is written twice"):
            among(1, unique=wrong)
    for wrong in ("{x.y}", "{x:s}", "{x[0]}", "{of[a]}"):
        with pytest.raises(TypeError, match="does not fit the arguments"):
            run.with_options(unique=wrong).enqueue(1)
    with pytest.raises(InvalidArgument, match="unique is True or a template, not 5"):
        run.with_options(unique=5)  # type: ignore[arg-type]


def test_names_of_tasks_and_parameters_must_be_clear() -> None:
    jobs = Jobs("unused")

    @jobs.task
    def run() -> None: ...

    with pytest.raises(InvalidArgument, match="two tasks are called run"):
        jobs.task(name="run")(lambda: None)
    with pytest.raises(TypeError):
        jobs.cron("* * * * *")(lambda needed: None)


def test_ids_sort_by_time_and_contain_it() -> None:
    ids = [new_id(ms) for ms in (1, 2, 1_700_000_000_000)]
    assert ids == sorted(ids)
    assert [creation_ms(each) for each in ids] == [1, 2, 1_700_000_000_000]
    assert all(UUID(each).version == 7 for each in ids)
    assert creation_ms("1700000000000-3") == 1_700_000_000_000


def test_use_after_close_opens_the_store_again(jobs: Jobs, working: Start) -> None:
    @jobs.task
    def run() -> int:
        return 1

    with jobs:
        handle = run.enqueue()
    working(jobs)
    assert handle.result(PATIENCE_S) == 1


def test_jobs_of_a_transaction_have_a_state_and_can_be_cancelled(jobs: Jobs) -> None:
    task = jobs.task(name="task")(lambda: None)
    with jobs.store.transaction():
        handles = [task.enqueue(), task.with_options(delay=3600).enqueue()]
    with suppress(OSError), jobs.store.transaction():
        undone = [task.enqueue(), task.with_options(delay=3600).enqueue()]
        raise OSError
    assert [each.status for each in handles] == ["queued", "scheduled"]
    assert [each.status for each in undone] == ["unknown", "unknown"]
    assert [each.cancel() for each in handles] == [True, True]
    assert [each.cancel() for each in undone] == [False, False]
    assert [each.status for each in handles] == ["cancelled", "cancelled"]


def test_a_failed_job_is_tried_again_from_the_dead_letters(jobs: Jobs, working: Start) -> None:
    attempts = []

    @jobs.task(retries=1, backoff=0)
    def fixed_later() -> str:
        attempts.append(current_job().attempt)
        if len(attempts) < 3:
            raise ValueError("no")
        return "fixed"

    handle = fixed_later.enqueue()
    assert not handle.retry()  # it has not failed
    run_until_failed(working, handle)
    assert handle.retry()
    assert not handle.retry()
    assert (handle.status, jobs.handle(handle.id).status) == ("queued", "queued")
    working(jobs)
    assert handle.result(PATIENCE_S) == "fixed"
    assert attempts == [1, 2, 1]
    assert len(jobs.store.stream("jobs:dead")) == 0


def test_a_failed_job_that_a_redrive_of_many_has_moved_is_queued(
    jobs: Jobs, working: Start
) -> None:
    fixed: list[bool] = []

    @jobs.task
    def fixed_later() -> str:
        if not fixed:
            raise ValueError("no")
        return "fixed"

    handles = [fixed_later.enqueue(), fixed_later.enqueue()]
    run_until_failed(working, *handles)
    fixed.append(True)
    queue = jobs.queues()[0]
    first, second = (handles[0].id.encode(), handles[1].id.encode())
    assert {letter.fields[b"id"] for letter in queue.dead()} == {first, second}
    assert queue.redrive(where=("id", first)).moved == 1
    assert [jobs.handle(each.id).status for each in handles] == ["queued", "failed"]
    with pytest.raises(TimeoutError):
        handles[0].result(0)
    with pytest.raises(JobFailed):
        handles[1].result(0)
    assert not handles[0].retry()
    assert queue.redrive().moved == 1
    assert handles[1].cancel()
    assert [each.status for each in handles] == ["queued", "cancelled"]
    working(jobs)
    assert handles[0].result(PATIENCE_S) == "fixed"


def test_a_failed_job_stays_failed_without_its_dead_letter(jobs: Jobs, working: Start) -> None:
    @jobs.task
    def fail() -> None:
        raise ValueError("no")

    handle = fail.enqueue()
    run_until_failed(working, handle)
    dead = jobs.store.stream("jobs:dead")
    jobs.queues()[0].redrive(where=("n", "none"))
    dead.trim(maxlen=0)
    assert handle.status == "failed"
    with pytest.raises(JobFailed):
        handle.result(0)


def test_a_job_of_a_schedule_keeps_its_id_when_it_is_tried_again(
    jobs: Jobs, working: Start
) -> None:
    fixed: list[bool] = []

    @jobs.cron("0 3 * * *")
    def nightly() -> str:
        if not fixed:
            raise ValueError("no")
        return "fixed"

    jobs.declare()
    (schedule,) = jobs.store.stream("jobs").schedules()
    entry = jobs.store.stream("jobs").run_schedule(schedule.name)
    fields = jobs.store.stream("jobs").range(entry, entry)[0].fields
    handle = jobs.handle(id_of(fields, entry))
    assert handle.status == "queued"
    run_until_failed(working, handle)
    assert handle.retry()
    assert handle.status == "queued"
    fixed.append(True)
    working(jobs)
    assert handle.result(PATIENCE_S) == "fixed"


def test_a_failed_job_is_retried_among_very_many_and_cancelled_by_its_first_handle(
    jobs: Jobs, working: Start
) -> None:
    @jobs.task
    def fail() -> None:
        raise ValueError("no")

    jobs.task(name="limited", max_in_flight=1)(lambda: None)
    jobs.store.stream("jobs:dead").add_many([{"n": n} for n in range(2000)])
    handle = fail.enqueue()
    run_until_failed(working, handle)
    assert jobs.queues()[0].redrive(where=("n", "none")).state == "running"
    assert handle.retry()
    assert handle.status == "queued"
    assert handle.cancel()
    assert handle.status == "cancelled"
    assert len(jobs.store.stream("jobs")) == 0


# --- the API of a task --------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_unique_by_all_arguments_is_by_what_the_function_gets(
    make_jobs: Callable[..., Jobs], format: str
) -> None:
    jobs = make_jobs(format=format)

    @jobs.task(unique=True)
    def plain(x: int, y: bytes = b"", z: float = 3, on: date | None = None) -> None: ...

    @jobs.task(unique=True)
    def placed(x: int, y: int = 2, /, *rest: int, z: int = 3, **others: int) -> None: ...

    @jobs.task(unique=True)
    def unsaid(x, y=1, z=object()) -> None: ...  # type: ignore[no-untyped-def]  # noqa: B008

    class Mailer:
        def send(self, to: str, copy: bool = False) -> None: ...

    sent = jobs.task(unique=True)(Mailer().send)
    halved = jobs.task(name="half", unique=True)(partial(plain.function, y=b"half"))

    same = [plain.enqueue(1), plain.enqueue(x=1), plain.enqueue(1, z=3), plain.enqueue(1, b"")]
    same.append(plain.enqueue(z=3.0, on=None, y=b"", x=1))
    assert len(set(same)) == 1
    different = [plain.enqueue(2), plain.enqueue(1, z=4), plain.enqueue(1, on=date(2026, 1, 1))]
    assert len({same[0], *different}) == 4
    assert placed.enqueue(1) == placed.enqueue(1, 2) == placed.enqueue(1, z=3)
    handles = [placed.enqueue(1), placed.enqueue(1, 2, 3), placed.enqueue(1, 2, 2)]
    handles += [placed.enqueue(1, others=1), placed.enqueue(1, x=1), placed.enqueue(1, 1)]
    assert len(set(handles)) == 6
    assert unsaid.enqueue(1) == unsaid.enqueue(1, 1) == unsaid.enqueue(x=1, y=1)
    assert len({unsaid.enqueue(1), unsaid.enqueue(1, True), unsaid.enqueue(1, 1.0)}) == 3
    assert sent.enqueue("a") == sent.enqueue(to="a", copy=False) != sent.enqueue("a", True)
    assert halved.enqueue(1) == halved.enqueue(1, y=b"half") != halved.enqueue(1, y=b"")
    assert plain.enqueue_many([(1,), {"x": 1, "z": 3}]) == [same[0]] * 2


def test_options_are_given_before_the_arguments_or_among_them(jobs: Jobs) -> None:
    @jobs.task
    def send(to: str, copy: bool = False) -> str:
        return to

    @jobs.task
    def any_of(**values: int) -> int:
        return len(values)

    later = send.with_options(delay=3600, unique="a", key="k")
    assert later.enqueue("a", copy=True) == later.enqueue("b")
    before = later.enqueue("a")
    among = send.enqueue("a", delay=3600)  # type: ignore[call-arg]
    assert (before.status, among.status) == ("scheduled", "scheduled")
    assert asyncio.run(later.aenqueue("a")) == before
    assert "delay=3600" in repr(later)
    with pytest.raises(TypeError, match="dealy"):
        send.with_options(dealy=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="dealy"):
        send.enqueue("a", dealy=1)  # type: ignore[call-arg]
    assert any_of.enqueue(delay=3600).status == "scheduled"
    assert any_of.with_options(ttl=5).enqueue(delay=3600).status == "queued"  # the function's own


def test_a_parameter_with_the_name_of_an_option_gets_its_argument(
    jobs: Jobs, working: Start
) -> None:
    @jobs.task
    def store(
        key: str,
        delay: int = 0,
        *,
        at: int = 0,
        ttl: int = 0,
        priority: int = 0,
        unique: int = 0,
        window: int = 0,
        on_conflict: str = "",
    ) -> str:
        return f"{key} {delay} {at} {ttl} {priority} {unique} {window} {on_conflict}"

    @jobs.task
    def odd(self: int, key: str) -> str:
        return f"{self} {key}"

    named: dict[str, Any] = {"at": 2, "ttl": 3, "priority": 4, "unique": 5, "window": 6}
    handles = [
        store.enqueue("a", 1, **named, on_conflict="c"),
        store.enqueue(key="a", delay=1, **named, on_conflict="c"),
        asyncio.run(store.aenqueue("a", delay=1, **named, on_conflict="c")),
        store.with_options(key="b", priority="high").enqueue("a", 1, **named, on_conflict="c"),
        *store.enqueue_many([{"key": "a", "delay": 1, **named, "on_conflict": "c"}]),
    ]
    swapped = odd.enqueue(self=1, key="a")
    later = odd.enqueue(2, "b", delay=3600)  # type: ignore[call-arg]
    working(jobs)
    assert {handle.result(PATIENCE_S) for handle in handles} == {"a 1 2 3 4 5 6 c"}
    assert (swapped.result(PATIENCE_S), later.status) == ("1 a", "scheduled")


def test_options_of_options_are_merged(jobs: Jobs) -> None:
    @jobs.task
    def send(to: str) -> None: ...

    first = send.with_options(delay=60, key="k", unique="mail:{to}", on_conflict="replace")
    second = first.with_options(at=4_000_000_000, ttl=5)
    text = (
        "<Task send with at=4000000000, key='k', unique='mail:{to}', on_conflict='replace', ttl=5>"
    )
    assert repr(second) == text
    assert "delay=60" in repr(first)
    assert "at=" not in repr(second.with_options(delay=1))
    assert repr(send.with_options()) == "<Task send with no options>"
    with pytest.raises(InvalidArgument, match="names no parameter"):
        first.with_options(unique="{x}")
    with pytest.raises(InvalidArgument):
        send.with_options(delay=1, at=4_000_000_000).enqueue("a")
    handle = first.enqueue("a")
    assert first.with_options(on_conflict="skip").enqueue("a") == handle
    assert send.with_options(delay=60).with_options(unique="mail:{to}").enqueue("a") == handle


def test_errors_of_arguments_name_the_task(jobs: Jobs) -> None:
    send: Any = jobs.task(name="mail.send")(lambda to: None)
    typed: Any = jobs.task(name="count")(_count)
    for args, named in (((), {}), ((1, 2), {}), ((1,), {"dealy": 1})):
        with pytest.raises(TypeError, match=r"the arguments do not fit mail\.send: "):
            send.enqueue(*args, **named)
        with pytest.raises(TypeError, match=r"the arguments do not fit mail\.send: "):
            send.with_options(delay=1).enqueue(*args, **named)
    with pytest.raises(TypeError, match=r"the arguments do not fit mail\.send: "):
        send.enqueue_many([()])
    with pytest.raises(TypeError, match="argument 'n' of count: 'x' is not int"):
        typed.enqueue("x")


def _count(n: int) -> None: ...


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("delay", "use task.enqueue"),
        ("send", "use task.enqueue"),
        ("kiq", "use task.enqueue"),
        ("apply_async", r"use task.with_options\(delay=...\).enqueue"),
        ("send_with_options", "use task.with_options"),
        ("schedule", "use task.with_options"),
        ("nothing", "a Task has no nothing$"),
    ],
)
def test_names_of_other_frameworks_hint_at_enqueue(name: str, hint: str) -> None:
    task = Jobs("nowhere").task(name="send")(lambda: "sent")
    with pytest.raises(AttributeError, match=hint):
        getattr(task, name)
    assert not hasattr(task, name)
    assert task() == "sent"
