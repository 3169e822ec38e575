"""Chains, groups and chords of tasks: stored, and run by any worker."""

from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from typing import Any

import pytest

from kvstream import InvalidArgument, JobFailed, Jobs
from kvstream.jobs import Job, Middleware, batch, chain, chord, each, group
from kvstream.jobs.execution import finish, job_of, run_sync
from kvstream.jobs.history.links import AHEAD_BYTES
from kvstream.jobs.testing import Testing
from tests.jobs.conftest import Working
from tests.jobs.test_workflow_replays import LEASE_S, Mortal
from tests.patience import PATIENCE_S


class Sums:
    """An application with some tasks."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.did: list[Any] = []

        @jobs.task
        def add(x: int, y: int = 1) -> int:
            self.did.append((x, y))
            return x + y

        @jobs.task
        async def total(numbers: list[int]) -> int:
            return sum(numbers)

        @jobs.task
        def day(n: int) -> date:
            return date(2030, 1, n)

        @jobs.task
        def next_year(day: date) -> date:
            return day.replace(year=day.year + 1)

        @jobs.task(retries=1, backoff=5)
        def fails(x: int) -> None:
            raise ValueError(f"no {x}")

        @jobs.task
        def nothing() -> str:
            return "nothing"

        @jobs.task
        def word(text: str) -> str:
            return text[:1]

        self.add, self.total, self.day, self.next_year = add, total, day, next_year
        self.fails, self.nothing, self.word = fails, nothing, word


@pytest.fixture
def sums() -> Sums:
    return Sums(Jobs("nowhere"))


@pytest.fixture
def testing(sums: Sums) -> Iterator[Testing]:
    with sums.jobs.test() as found:
        yield found
        assert sums.jobs.store.check() == []


def test_a_chain_hands_results_on(sums: Sums, testing: Testing) -> None:
    add = sums.add
    assert chain(add.s(1), add.s(10), add.s(y=100)).enqueue().result() == 112
    assert chain(add.s(1), add.si(5, 5), sums.nothing.si()).enqueue().result() == "nothing"
    assert chain(sums.day.s(7), sums.next_year.s()).enqueue().result() == date(2031, 1, 7)
    assert chain(chain(add.s(1), add.s(2)), add.s(3)).enqueue().result() == 7


def test_groups_and_chords_gather_results_in_order(sums: Sums, testing: Testing) -> None:
    add, total = sums.add, sums.total
    assert group(add.s(n) for n in range(4)).enqueue().result() == [1, 2, 3, 4]
    assert chord([add.s(n) for n in range(4)], total.s()).enqueue().result() == 10
    nested = chain(add.s(1), group([add.s(), chain(add.s(), add.s(5))], limit=1), total.s())
    assert nested.enqueue().result() == 3 + 8
    assert group([group([add.s(1), add.s(2)]), add.s(3)]).enqueue().result() == [[2, 3], 4]


def test_each_calls_a_task_for_many_items_in_few_jobs(sums: Sums, testing: Testing) -> None:
    handle = each(sums.add, range(25), chunk=10).enqueue()
    assert handle.result() == [n + 1 for n in range(25)]
    assert len([step for step in handle.steps() if step.kind == "child"]) == 3
    found = chain(each(sums.add, [1, 2]), sums.total.s()).enqueue()
    assert found.result() == 5
    assert each(sums.total, [[1, 2], [3]], chunk=1, limit=1).enqueue().result() == [3, 3]


def test_a_batch_counts_and_calls_back(sums: Sums, testing: Testing) -> None:
    reports = list[Any]()

    @sums.jobs.task
    def report(what: Any) -> None:
        reports.append(what)

    calls = [sums.add.s(1), sums.fails.s(7), sums.add.s(2)]
    done, total = report.s(), sums.total.s()
    handle = batch(calls, on_success=total, on_complete=done, limit=2).enqueue()
    assert handle.counts() == (3, 2, 0, 0, 1)
    testing.turn(5)
    assert handle.result() == {"total": 3, "done": 2, "failed": 1}
    assert reports == [{"total": 3, "done": 2, "failed": 1}]
    assert handle.counts() == (4, 3, 1, 0, 0)  # the callback is a child, too
    batch([sums.add.s(1), sums.add.s(2)], on_success=done).enqueue()
    assert reports[1:] == [[2, 3]]
    with pytest.raises(InvalidArgument, match="a callback is a call"):
        batch(calls, on_success=report)  # type: ignore[arg-type]


def test_a_failure_says_which_task(sums: Sums, testing: Testing) -> None:
    handle = chain(sums.add.s(1), sums.fails.s(), sums.add.s()).enqueue(id="canvas:1")
    assert handle.waits_for == "1 children"
    testing.turn(5)
    with pytest.raises(JobFailed, match="fails: ValueError: no 2"):
        handle.result()
    assert sums.did == [(1, 1)]
    again = chain(sums.add.s(1), sums.add.s()).enqueue(id="canvas:1")
    assert again.status == "failed"


def test_wrong_canvases_are_refused(sums: Sums, testing: Testing) -> None:
    add = sums.add
    wrong: Any = print
    for make, words in (
        (lambda: chain(), "needs at least one call"),
        (lambda: group([wrong]), "is made of calls, as task.s"),
        (lambda: chain(add.s(1), Sums(Jobs("other")).add.s()), "tasks of two Jobs"),
        (lambda: each(wrong, [1]), "calls a task"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            make()
    for canvas, words in (
        (chain(add.s()), "missing: x"),
        (chain(add.s(1), add.s(2, 3)), "too many"),
        (chain(add.s("one")), "argument 'x'"),
        (chain(add.s(1), sums.nothing.s()), r"use si\(\) in place of s\(\)"),
    ):
        with pytest.raises(TypeError, match=words):
            canvas.enqueue()


def test_a_canvas_is_in_the_queue_of_its_first_task(sums: Sums) -> None:
    @sums.jobs.task(max_in_flight=1)
    def limited(x: int) -> int:
        return x

    with sums.jobs.test() as testing:
        with testing.held():
            handle = chain(limited.s(3), sums.add.s()).enqueue()
            assert len(sums.jobs.store.stream("jobs:limited")) == 1
        testing.run()
        assert handle.result() == 4


def test_canvases_run_on_each_place(jobs: Jobs, working: Callable[..., Working]) -> None:
    sums = Sums(jobs)
    working(jobs)
    nested = chord([chain(sums.add.s(n), sums.add.s()) for n in range(5)], sums.total.s())
    assert nested.enqueue().result(PATIENCE_S) == 20
    assert each(sums.add, range(12), chunk=5).enqueue().result(PATIENCE_S) == [*range(1, 13)]


# --- links: the end of a call puts the next one ---------------------------------------------------


class Seen(Middleware):
    """Notes which tasks are enqueued and begun."""

    def __init__(self) -> None:
        self.enqueues, self.begins = list[str](), list[str]()

    def enqueued(self, job: Job) -> None:
        self.enqueues.append(job.task_name.rpartition(".")[2])

    def before(self, job: Job) -> None:
        self.begins.append(job.task_name.rpartition(".")[2])


def test_a_chain_runs_its_canvas_at_its_begin_and_end_alone() -> None:
    seen = Seen()
    sums = Sums(Jobs("nowhere", middleware=[seen]))
    with sums.jobs.test():
        handle = chain(sums.add.s(1), *[sums.add.s(n) for n in range(4)]).enqueue()
        assert handle.result() == 8
        assert seen.begins == ["canvas", *["add"] * 5, "canvas"]
        assert seen.enqueues == ["canvas", *["add"] * 5]
        assert [step.name for step in handle.steps()] == [sums.add.name] * 5
        assert [step.result for step in handle.steps()] == [2, 2, 3, 5, 8]
        seen.begins.clear()
        large = "x" * AHEAD_BYTES  # the message of a call has no others of that size
        calls = [sums.nothing.si(), *[sums.word.si(large) for _ in range(3)], sums.nothing.si()]
        assert chain(*calls).enqueue().result() == "nothing"
        assert seen.begins.count("canvas") == 5


def test_a_chain_that_is_killed_at_any_commit_goes_on_once(sums: Sums, testing: Testing) -> None:
    add, jobs, mortal = sums.add, sums.jobs, Mortal(testing)
    commits, died = 0, True
    while died:
        sums.did.clear()
        with testing.held():
            pair = group([add.s(100), add.s(200)])
            handle = chain(add.s(1), add.s(2), add.s(3), pair, sums.total.s()).enqueue()
        died = mortal.run(commits)
        testing.turn(LEASE_S)
        testing.turn(LEASE_S)
        assert handle.result() == 314
        calls = [(1, 1), (2, 2), (4, 3), (7, 100), (7, 200)]
        assert {*sums.did} == {*calls}
        assert len(sums.did) <= len(calls) + died
        entries = jobs.store.stream(history_of(handle)).range()
        events = [entry.fields[b"event"] for entry in entries]
        assert (events.count(b"child"), events.count(b"ended")) == (6, 6)
        queue = jobs.store.stream("jobs")
        assert len(queue) == queue.delayed_count() == 0
        commits += 1
    assert commits > 15


def history_of(handle: Any) -> str:
    return f"jobs:history:{handle.id}"


def test_only_the_call_that_a_chain_waits_for_takes_it_further(
    sums: Sums, testing: Testing
) -> None:
    jobs = sums.jobs
    assert isinstance(jobs, Jobs)
    fails = [True, False, False]

    @jobs.task
    def shaky(n: int) -> int:
        if fails.pop(0):
            raise ValueError("once")
        return n

    handle = chain(shaky.s(1), sums.add.s(y=1)).enqueue()
    assert handle.status == "failed"
    (dead,) = jobs.store.stream("jobs:dead").range()
    with testing.held():
        assert handle.retry()
        assert jobs.handle(dead.fields[b"id"].decode()).retry()  # the call of before the retry
    testing.run()
    assert handle.result() == 2
    assert sums.did == [(1, 1)]

    cancelled = chain(sums.add.s(5), sums.add.s(6))
    with testing.held():
        handle = cancelled.enqueue()
    queue = jobs.queues()[0]
    run: Callable[[Any], bool] = partial(run_sync, jobs, wait=lambda awaitable: None)
    assert not run(job_of(jobs, queue.get(1)[0]))  # the canvas starts its first call
    job: Any = job_of(jobs, queue.get(1)[0])
    assert run(job)
    assert job.link is not None
    with testing.held():
        assert handle.cancel()
    finish(jobs, [job])
    testing.run()
    assert sums.did[1:] == [(5, 1)]
    assert handle.status == "cancelled"


@pytest.mark.parametrize("then", [b"?", b"[1]", b'[1,[{"task":"none"}]]', b'["x",[{}]]'])
def test_a_message_with_other_calls_leads_to_a_run_of_the_canvas(
    sums: Sums, testing: Testing, then: bytes
) -> None:
    jobs = sums.jobs
    with testing.held():
        handle = chain(sums.add.s(1), sums.add.s(2)).enqueue()
    queue = jobs.queues()[0]
    run: Callable[[Any], bool] = partial(run_sync, jobs, wait=lambda awaitable: None)
    assert not run(job_of(jobs, queue.get(1)[0]))
    job: Any = job_of(jobs, queue.get(1)[0])
    job.then = then
    assert run(job)
    assert job.link is None
    finish(jobs, [job])
    testing.run()
    assert handle.result() == 4
