"""Chains, groups and chords of tasks: stored, and run by any worker."""

from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

import pytest

from kvstream import InvalidArgument, JobFailed, Jobs
from kvstream.jobs import batch, chain, chord, each, group
from kvstream.jobs.testing import Testing
from tests.jobs.conftest import Working
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

        self.add, self.total, self.day, self.next_year = add, total, day, next_year
        self.fails, self.nothing = fails, nothing


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
