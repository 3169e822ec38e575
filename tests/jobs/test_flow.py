"""Rules of flow: keys that take turns, debounce, throttle, expiry, conditions, pools."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

import kvstream
from kvstream import InvalidArgument, JobFailed, Jobs
from kvstream.jobs import JobExpired, JobSkipped, Worker
from kvstream.jobs.testing import Testing
from tests.patience import until

pytest_plugins = ["kvstream.jobs.pytest_plugin"]
Start = Callable[[Jobs], Testing]


def noting(jobs: Jobs, **options: Any) -> tuple[Any, list[Any]]:
    """Return a task that notes its argument, and the list of what it has noted."""
    ran: list[Any] = []

    def note(n: Any = 0) -> None:
        ran.append(n)

    return jobs.task(**options)(note), ran


# --- keys in turns ------------------------------------------------------------------------------


def test_keys_take_turns(testing_jobs: Start) -> None:
    jobs = Jobs("nowhere")
    note, ran = noting(jobs, max_per_key=2, fair=True)
    testing = testing_jobs(jobs)
    with testing.held():
        for n in range(4):
            note.with_options(key="big").enqueue(f"big {n}")
        note.with_options(key="small").enqueue("small")
    testing.run()
    assert ran == ["big 0", "small", "big 1", "big 2", "big 3"]
    (queue,) = [queue for queue in jobs.queues() if queue.name == b"jobs:note"]
    policy = queue.policy()
    assert policy is not None
    assert (policy.order_by, policy.max_per_key, policy.fair) == (b"key", 2, True)


# --- debounce and throttle ----------------------------------------------------------------------


def test_a_later_job_of_a_key_takes_the_place_of_one_that_waits(testing_jobs: Start) -> None:
    jobs = Jobs("nowhere")
    note, ran = noting(jobs, debounce=5, max_wait=timedelta(seconds=12))
    testing = testing_jobs(jobs)
    first = note.with_options(key="a").enqueue(1)
    note.with_options(key="b").enqueue(2)
    for n in range(3, 7):  # at 4, 8, 12 and 16 seconds
        testing.turn(4)
        last = note.with_options(key="a").enqueue(n)
    assert first.status == "unknown"
    assert ran == [2, 4]  # 12 seconds after the first
    testing.turn(5)
    assert ran == [2, 4, 6]
    assert last.status == "done"


def test_a_debounce_is_an_option_of_enqueue(testing_jobs: Start) -> None:
    jobs = Jobs("nowhere")
    note, ran = noting(jobs)
    testing = testing_jobs(jobs)
    for n in range(3):
        note.with_options(debounce=2, unique="doc:{n}" if n == 2 else None).enqueue(n)
    testing.turn(2)
    assert ran == [1, 2]


def test_more_jobs_than_a_throttle_admits_are_delayed(testing_jobs: Start) -> None:
    jobs = Jobs("nowhere")
    note, ran = noting(jobs, throttle=(2, 60))
    testing = testing_jobs(jobs)
    handles = [note.with_options(key="a").enqueue(n) for n in range(5)]
    note.with_options(key="b").enqueue("b")
    assert ran == [0, 1, "b"]
    assert [handle.status for handle in handles[2:]] == ["scheduled"] * 3
    testing.turn(60)
    assert ran == [0, 1, "b", 2, 3]
    testing.turn(60)
    assert ran[-1] == 4


def test_more_jobs_than_a_throttle_admits_are_left_out(testing_jobs: Start) -> None:
    jobs = Jobs("nowhere")
    note, ran = noting(jobs, throttle=(1, timedelta(minutes=1)), over_limit="skip")
    testing = testing_jobs(jobs)
    first, second = note.enqueue(1), note.enqueue(2)
    assert second == first
    assert ran == [1]
    testing.turn(60)
    assert note.enqueue(3) != first
    assert ran == [1, 3]


def test_jobs_of_one_commit_follow_the_rules(testing_jobs: Start) -> None:
    jobs = Jobs("nowhere")
    note, ran = noting(jobs, throttle=(2, 60), expires=30)
    testing = testing_jobs(jobs)
    handles = note.enqueue_many([(0,), (1,), (2,)])
    testing.turn(60)
    assert ran == [0, 1]
    assert handles[2].status == "expired"


# --- jobs that are not run ----------------------------------------------------------------------


def test_a_job_that_has_waited_too_long_is_not_run(testing_jobs: Start) -> None:
    jobs = Jobs("nowhere")
    note, ran = noting(jobs, expires=60)
    testing = testing_jobs(jobs)
    with testing.held():
        late = note.with_options(delay=10).enqueue(1)
        other = note.with_options(delay=10, expires=timedelta(hours=1)).enqueue(2)
        testing.clock.ms += 69_000
        assert late.status == "scheduled"
        testing.clock.ms += 1000
        jobs.store.engine.run(lambda txn: None)
    testing.run()
    assert ran == [2]
    assert (late.status, other.status) == ("expired", "done")
    with pytest.raises(JobExpired, match="expires"):
        late.result()
    assert testing.dead() == []


@pytest.mark.parametrize("how", ["handle", "jobs", "jobs, once its outcome is gone", "redrive"])
def test_a_failed_job_that_is_retried_after_its_time_runs(testing_jobs: Start, how: str) -> None:
    jobs = Jobs("nowhere")
    fails, ran = [True], list[int]()

    @jobs.task(expires=60, retries=1, backoff=1)
    def work() -> None:
        ran.append(1)
        if fails:
            raise ValueError("not yet")

    testing = testing_jobs(jobs)
    handle = work.enqueue()
    testing.turn(10)
    assert (handle.status, len(ran)) == ("failed", 2)
    testing.turn(3000)
    if "gone" in how:
        testing.turn(3600)
        assert handle.status == "unknown"
    with testing.held():
        if how == "handle":
            assert handle.retry()
        elif how == "redrive":
            assert jobs.queues()[0].redrive().moved == 1
        else:
            assert jobs.retry(failed_with="not yet").done == [handle.id]
        assert handle.status in ("queued", "retrying")
    testing.run()
    assert len(ran) == 3
    fails.clear()
    testing.turn(1)
    assert (handle.status, len(ran)) == ("done", 4)


def test_a_job_that_no_worker_takes_shows_that_it_has_expired(testing_jobs: Start) -> None:
    jobs = Jobs("nowhere")
    note, ran = noting(jobs, expires=60)
    testing = testing_jobs(jobs)
    with testing.held():
        late = note.enqueue(1)
        testing.clock.ms += 60_000
        assert late.status == "expired"
        with pytest.raises(JobExpired):
            late.result()
    testing.run()
    assert (ran, late.status) == ([], "expired")


def is_even(n: int) -> bool:
    return n % 2 == 0


@pytest.mark.parametrize("condition", [is_even, "is_even"])
def test_run_if_skips_jobs(testing_jobs: Start, condition: Any) -> None:
    jobs = Jobs("nowhere")
    note, ran = noting(jobs, run_if=condition)
    testing_jobs(jobs)
    handles = [note.enqueue(n) for n in range(3)]
    assert ran == [0, 2]
    assert [handle.status for handle in handles] == ["done", "skipped", "done"]
    with pytest.raises(JobSkipped, match="run_if was false"):
        handles[1].result()


def test_run_if_may_be_async_and_may_raise(testing_jobs: Start) -> None:
    jobs = Jobs("nowhere")

    async def is_open(n: int) -> bool:
        return n > 1 / n

    @jobs.task(run_if=is_open)
    async def later(n: int) -> int:
        return n

    @jobs.task(run_if=is_open)
    def at_once(n: int) -> int:
        return n

    testing_jobs(jobs)
    for task in (later, at_once):
        assert task.enqueue(2).result() == 2
        assert task.enqueue(1).status == "skipped"
        with pytest.raises(JobFailed, match="ZeroDivisionError"):
            task.enqueue(0).result()


def test_run_if_puts_a_job_off_without_counting_a_try(testing_jobs: Start) -> None:
    jobs, answers = Jobs("nowhere"), [timedelta(minutes=1), timedelta(minutes=1), True]
    attempts: list[int] = []

    @jobs.task(run_if=lambda: answers.pop(0))
    def note() -> None:
        attempts.append(kvstream.current_job().attempt)

    testing = testing_jobs(jobs)
    handle = note.enqueue()
    testing.turn(119)
    assert attempts == []
    testing.turn(1)
    assert attempts == [1]
    assert handle.status == "done"


def test_a_job_that_is_not_run_ends_the_wait_of_others(testing_jobs: Start) -> None:
    jobs = Jobs("nowhere")
    note, ran = noting(jobs, run_if=bool)
    skipped_first = testing_jobs(jobs)
    with skipped_first.held():
        first = note.enqueue(0)
        after = note.with_options(depends_on=[first], if_failed="run").enqueue(2)
        fails = note.with_options(depends_on=[first], if_failed="fail").enqueue(3)
    skipped_first.run()
    assert (after.status, fails.status, ran) == ("done", "failed", [2])
    assert note.with_options(depends_on=first, if_failed="run").enqueue(4).status == "done"


def test_many_that_are_debounced_expire_after_their_wait(testing_jobs: Start) -> None:
    jobs = Jobs("nowhere")
    note, ran = noting(jobs, debounce=60, expires=30)
    testing = testing_jobs(jobs)
    note.enqueue_many([(1,), (2,)])
    testing.turn(60)
    assert ran == [2]


def test_a_child_has_tags_and_expires_and_is_not_debounced(testing_jobs: Start) -> None:
    jobs = Jobs("nowhere")
    found: list[Any] = []

    @jobs.task(tags=["part"])
    def part() -> None:
        job = kvstream.current_job()
        found.append((job.tags, job.expires_ms - job.enqueued_ms))

    @jobs.workflow
    def whole(options: dict[str, Any]) -> None:
        part.with_options(**options).start().result()

    testing_jobs(jobs)
    whole.enqueue({"tags": ["one"], "expires": 5}).result()
    assert found == [(("part", "one"), 5000)]
    with pytest.raises(JobFailed, match="a child has no debounce"):
        whole.enqueue({"debounce": 5}).result()


# --- pools --------------------------------------------------------------------------------------


def test_workers_serve_the_pools_that_they_name(tmp_path: Path) -> None:
    with Jobs(tmp_path / "data", shared=False) as jobs:
        note, ran = noting(jobs)
        listed: list[tuple[str, ...]] = []

        @jobs.task(pool="gpu")
        def train() -> None:
            ran.append("gpu")

        @jobs.task(pool="gpu", max_in_flight=1)
        def draw() -> None:
            ran.append("draw")

        def work(*queues: str) -> None:
            stop, worker = Event(), Worker(jobs, concurrency=1, queues=queues)
            thread = Thread(target=worker.run, args=(stop,))
            thread.start()
            for handle in (note.enqueue("any"),) if not queues else (first, second):
                handle.result(timeout=60)
            until(lambda: bool(jobs.workers()))
            listed.extend(worker.queues for worker in jobs.workers())
            stop.set()
            thread.join(60)

        first, second = train.enqueue(), draw.enqueue()
        work()
        assert ran == ["any"]
        assert (first.status, second.status) == ("queued", "queued")
        work("gpu")
        assert sorted(ran) == ["any", "draw", "gpu"]
        assert listed == [("default",), ("gpu", "draw")]
        with pytest.raises(InvalidArgument, match="no task uses the queue"):
            Worker(jobs, queues=["cpu"])
        jobs.task(name="other", queue="gpu")(work)
        with pytest.raises(InvalidArgument, match="two pools"):
            Worker(jobs)


# --- wrong rules --------------------------------------------------------------------------------

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "max_wait alone": ({"max_wait": 5}, "max_wait goes with debounce"),
    "both": ({"debounce": 5, "throttle": (1, 2)}, "debounced or throttled, not both"),
    "over_limit alone": ({"over_limit": "skip"}, "over_limit goes with throttle"),
    "no wait": ({"debounce": 0}, "debounce must be above 0"),
    "no time": ({"throttle": (1, 0)}, "both above 0"),
    "another word": ({"throttle": (1, 5), "over_limit": "drop"}, "over_limit cannot be 'drop'"),
    "a negative time": ({"expires": -1}, "expires is negative"),
    "no function": ({"run_if": 5}, "run_if is a function or its name, not 5"),
    "a pool": ({"pool": 5}, "pool is the name of a queue, not 5"),
    "a limit of keys": ({"max_per_key": -1}, "max_per_key must not be negative"),
}


def test_a_limit_of_0_is_stored_as_none() -> None:
    assert noting(Jobs("nowhere"), max_in_flight=0)[0].limits == {"max_in_flight": 0}


@pytest.mark.parametrize("which", WRONG)
def test_wrong_rules_are_refused_where_they_are_given(which: str) -> None:
    options, text = WRONG[which]
    jobs = Jobs("nowhere")
    with pytest.raises(InvalidArgument, match=text):
        noting(jobs, **options)


def test_a_name_that_is_no_function_fails_the_job(testing_jobs: Start) -> None:
    jobs = Jobs("nowhere")
    note, _ = noting(jobs, run_if="is_nothing")
    testing_jobs(jobs)
    with pytest.raises(JobFailed, match="no function of its module: is_nothing"):
        note.enqueue(1).result()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"debounce": 5, "delay": 1}, "delay does not go with"),
        ({"throttle": (1, 5), "unique": True}, "throttle does not go with unique"),
        ({"throttle": (1, 5), "depends_on": True}, "cannot be unique, debounced or throttled"),
    ],
)
def test_rules_that_exclude_each_other_are_refused(
    testing_jobs: Start, options: dict[str, Any], text: str
) -> None:
    jobs = Jobs("nowhere")
    note, _ = noting(jobs)
    testing_jobs(jobs)
    if "depends_on" in options:
        options = {**options, "depends_on": note.enqueue(0)}
    with pytest.raises(InvalidArgument, match=text):
        note.with_options(**options).enqueue(1)


# --- schedules ----------------------------------------------------------------------------------


def test_jobs_of_a_schedule_expire_after_their_planned_time(testing_jobs: Start) -> None:
    jobs = Jobs("nowhere")
    ran: list[int] = []

    @jobs.cron("@every 1h", misfire="all", most=10, expires=1800)
    def hourly() -> None:
        ran.append(testing.clock.ms)

    testing = testing_jobs(jobs)
    start_ms = testing.clock.ms
    with testing.held():
        testing.clock.ms += 3 * 3_600_000
        until(lambda: jobs.count(status="queued").total == 3)
        late = [job.id for job in jobs.find(status="queued").jobs]
        assert [jobs.handle(each).status for each in late] == ["queued", "expired", "expired"]
    testing.run()
    assert ran == [start_ms + 3 * 3_600_000]
    assert [jobs.handle(each).status for each in late] == ["done", "expired", "expired"]
    jobs.store.stream("jobs").run_schedule("cron:hourly:@every 1h")
    testing.run()
    assert len(ran) == 2


def test_run_if_holds_for_the_jobs_of_a_schedule(testing_jobs: Start) -> None:
    jobs = Jobs("nowhere")
    asked, ran = list[bool](), list[bool]()

    def every_second_time() -> bool:
        asked.append(True)
        return len(asked) % 2 == 0

    jobs.cron("@hourly", run_if=every_second_time)(lambda: ran.append(True))
    testing = testing_jobs(jobs)
    testing.turn(4 * 3600)
    assert len(asked) == 4
    assert len(ran) == 2
    assert jobs.count(status="skipped").total == 2


def test_a_schedule_adds_to_the_stream_of_its_priority(testing_jobs: Start) -> None:
    jobs = Jobs("nowhere")
    ran = list[bool]()
    jobs.cron("@hourly", name="soon", priority="high")(lambda: ran.append(True))
    testing = testing_jobs(jobs)
    assert [each.name for each in jobs.store.stream("jobs:high").schedules()]
    assert jobs.store.stream("jobs").schedules() == []
    testing.turn(3600)
    assert ran == [True]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"debounce": 5}, r"debounce does not go with cron.*with_options\(debounce=...\)"),
        ({"throttle": (1, 5)}, "throttle does not go with cron"),
        ({"unique": True}, "unique does not go with cron: give noop max_in_flight=1"),
    ],
)
def test_rules_of_an_enqueue_are_refused_for_a_schedule(
    testing_jobs: Start, options: dict[str, Any], text: str
) -> None:
    jobs = Jobs("nowhere")
    task = jobs.task(name="noop", **options)(lambda: None)
    with pytest.raises(InvalidArgument, match=text):
        jobs.cron("@hourly")(task)


# --- listing ------------------------------------------------------------------------------------


def test_jobs_are_counted_and_cancelled_whatever_rule_keeps_them(testing_jobs: Start) -> None:
    jobs = Jobs("nowhere")
    ran: list[str] = []
    rules: dict[str, dict[str, Any]] = {
        "debounced": {"debounce": 5},
        "throttled": {"throttle": (1, 60)},
        "single": {"unique": "one"},
        "turns": {"max_per_key": 1, "fair": True},
        "later": {"expires": 30},
    }
    tasks = {
        name: jobs.task(name=name, **each)(lambda n: ran.append(n)) for name, each in rules.items()
    }
    testing = testing_jobs(jobs)
    with testing.held():
        handles = {
            name: [task.with_options(key="k").enqueue(f"{name} 0")] for name, task in tasks.items()
        }
        for name in ("throttled", "turns"):
            handles[name].append(tasks[name].with_options(key="k").enqueue(f"{name} 1"))
        other = tasks["turns"].with_options(key="other").enqueue("other")
        handles["later"].append(tasks["later"].with_options(key="k", delay=100).enqueue("delayed"))
        for name, of_task in handles.items():
            ids = {each.id for each in of_task}
            assert set(jobs.cancel(task=name, key="k", dry_run=True).done) == ids
            assert jobs.count(task=name, key="k").total == len(ids)
        assert jobs.count().by_status == {"queued": 6, "scheduled": 3}
        assert jobs.count(key="k").by_status == {"queued": 5, "scheduled": 3}
        assert jobs.cancel(task="turns", key="k", most=1).done == [handles["turns"][1].id]
        assert len(jobs.cancel(key="k").done) == 7
        found = [each.status for of_task in handles.values() for each in of_task]
        assert found == ["cancelled"] * 8
        again = {
            name: task.with_options(key="k").enqueue(f"{name} again")
            for name, task in tasks.items()
        }
        assert again["throttled"].status == "scheduled", "the window counts what was cancelled"
    testing.turn(5)
    expected = {"other", *(f"{name} again" for name in tasks if name != "throttled")}
    assert (set(ran), len(ran)) == (expected, 5)
    testing.turn(120)
    assert ran[-1] == "throttled again"
    assert jobs.count().by_status == {"done": 6, "cancelled": 8}
    assert other.status == "done"
    assert len(jobs.delete(status="cancelled", key="k").done) == 8
    assert jobs.count().by_status == {"done": 6}


def test_a_failed_job_is_retried_into_its_turn(testing_jobs: Start) -> None:
    jobs = Jobs("nowhere")
    fails, ran = [True], list[str]()

    @jobs.task(max_per_key=1, fair=True)
    def work(n: str) -> None:
        ran.append(n)
        if fails:
            raise ValueError(n)

    testing = testing_jobs(jobs)
    keyed = [work.with_options(key=key).enqueue(f"{key}{n}") for key in "ab" for n in range(3)]
    assert {each.status for each in keyed} == {"failed"}
    ran.clear()
    fails.clear()
    with testing.held():
        assert jobs.retry(key="a", dry_run=True).done == [each.id for each in keyed[2::-1]]
        assert len(jobs.retry(task="work").done) == 6
        assert jobs.count().by_status == {"queued": 6}
    testing.run()
    assert [name[0] for name in ran] in (list("ababab"), list("bababa"))
    assert [name for name in ran if name[0] == "a"] == ["a0", "a1", "a2"]


def test_jobs_that_were_not_run_are_listed(testing_jobs: Start) -> None:
    jobs = Jobs("nowhere")
    note, _ = noting(jobs, run_if=bool)
    testing = testing_jobs(jobs)
    skipped = note.enqueue(0)
    with testing.held():
        expired = note.with_options(expires=1).enqueue(1)
        testing.clock.ms += 1000
    testing.run()
    assert [found.id for found in jobs.find(status="skipped").jobs] == [skipped.id]
    assert [found.id for found in jobs.find(status="expired").jobs] == [expired.id]
