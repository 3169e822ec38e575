"""Workflows and jobs that begin and end in one commit, and one among them that cannot."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from kvstream import Jobs
from kvstream.jobs import gather, now
from kvstream.jobs.execution import finish, job_of, run_sync
from kvstream.jobs.testing import Testing
from kvstream.jobs.together import begin_together


@pytest.fixture
def testing() -> Iterator[Testing]:
    with Jobs("nowhere").test() as found:
        yield found
        assert found.jobs.store.check() == []


def transactions_of(jobs: Any) -> list[int]:
    """Return a list with one item, the number of transactions, which counts from now on.

    Those that give new streams their rules, after the ends of jobs, do not count.
    """
    engine, counted = jobs.store.engine, [0]
    commit, after_commit = engine.commit_turn, jobs.after_commit

    def count(*args: Any) -> Any:
        counted[0] += 1
        return commit(*args)

    def give_rules() -> None:
        before = counted[0]
        after_commit()
        counted[0] = before

    engine.commit_turn, jobs.after_commit = count, give_rules
    return counted


def taken(testing: Testing, number: int) -> tuple[list[Any], list[Any]]:
    """Return the handles of workflows, and their jobs, which a worker has taken."""
    jobs = testing.jobs
    assert isinstance(jobs, Jobs)

    @jobs.workflow
    def flow(n: int) -> int:
        now()
        return n

    with testing.held():
        handles = [flow.enqueue(n) for n in range(number)]
        messages = jobs.queues()[0].get(number)
    return handles, [job_of(jobs, message) for message in messages]


def run_all(testing: Testing, found: list[Any]) -> list[Any]:
    """Run jobs as a worker does; return those that have returned."""
    jobs: Any = testing.jobs
    begin_together(jobs, found)
    return [job for job in found if run_sync(jobs, job, lambda awaitable: None)]


def test_several_workflows_take_two_transactions(testing: Testing) -> None:
    handles, found = taken(testing, 5)
    counted = transactions_of(testing.jobs)
    finish(testing.jobs, run_all(testing, found))
    assert counted == [2]
    assert [handle.result() for handle in handles] == [*range(5)]


@pytest.mark.parametrize("loses_a_lease", [False, True])
def test_jobs_that_others_wait_for_end_in_one_transaction(
    testing: Testing, loses_a_lease: bool
) -> None:
    jobs = testing.jobs
    assert isinstance(jobs, Jobs)
    part = jobs.task(name="part")(lambda: None)
    with testing.held():
        first = [part.with_options(priority=each).enqueue() for each in ("high", "low", "low")]
        last = part.with_options(depends_on=first).enqueue()
        found: list[Any] = [job_of(jobs, message) for message in jobs.queues()[0].get(3)]
        returned = run_all(testing, found)
        if loses_a_lease:
            found[0].message.nack(0)
        counted = transactions_of(jobs)
        finish(jobs, returned)
        assert loses_a_lease or counted == [2]  # the first finds that one is waited for
        assert last.status == ("waiting" if loses_a_lease else "queued")
    testing.run()
    assert {each.status for each in (*first, last)} == {"done"}
    assert not [*jobs.store.scan_keys("jobs:dependents:*")]


@pytest.mark.parametrize("loses_a_lease", [False, True])
def test_children_end_in_one_transaction(testing: Testing, loses_a_lease: bool) -> None:
    jobs = testing.jobs
    assert isinstance(jobs, Jobs)
    part = jobs.task(name="part", queue="parts")(lambda n: n)

    @jobs.workflow
    def flow(n: int) -> list[int]:
        return list(gather(part.start(n + k) for k in range(2)))

    with testing.held():
        handles = [flow.enqueue(10 * n) for n in range(3)]
        flows = [job_of(jobs, message) for message in jobs.queue_of(flow).get(3)]
        assert run_all(testing, flows) == []
        found: list[Any] = [job_of(jobs, message) for message in jobs.queue_of(part).get(6)]
        returned = run_all(testing, found)
        if loses_a_lease:
            found[0].message.nack(0)
        counted = transactions_of(jobs)
        finish(jobs, returned)
        assert loses_a_lease or counted == [1]
    testing.run()
    assert [handle.result() for handle in handles] == [[0, 1], [10, 11], [20, 21]]


def test_no_code_of_the_user_runs_within_their_commits(testing: Testing) -> None:
    jobs = testing.jobs
    assert isinstance(jobs, Jobs)
    within: list[bool] = []

    @dataclass
    class Order:
        n: int

        def __post_init__(self) -> None:
            within.append(jobs.store.has_transaction())

        def __getattribute__(self, name: str) -> Any:
            if name == "n":
                within.append(jobs.store.has_transaction())
            return super().__getattribute__(name)

    @jobs.workflow
    def flow(order: Order) -> Order:
        return order

    with testing.held():
        handles = [flow.enqueue(Order(n)) for n in range(2)]
        found = [job_of(jobs, message) for message in jobs.queues()[0].get(2)]
    within.clear()
    counted = transactions_of(jobs)
    finish(jobs, run_all(testing, found))
    assert counted == [2]
    assert within
    assert not any(within)
    assert [handle.result() for handle in handles] == [Order(0), Order(1)]


def test_a_worker_cancels_the_children_of_workflows_whose_canceller_has_died(
    testing: Testing, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = testing.jobs
    assert isinstance(jobs, Jobs)
    part = jobs.task(name="part", queue="parts")(lambda: None)

    @jobs.workflow
    def flow() -> None:
        part.start().result()

    def take() -> list[Any]:
        return [job_of(jobs, message) for message in jobs.queue_of(flow).get(2)]

    with testing.held():
        handles = [flow.enqueue() for _ in range(2)]
        assert run_all(testing, take()) == []
        with monkeypatch.context() as dead:
            dead.setattr("kvstream.jobs.workflows.handle.cancel_children", lambda *_: None)
            assert all(handle.cancel() for handle in handles)
        assert run_all(testing, take()) == []
        assert jobs.count(task="part").by_status == {"cancelled": 2}


def test_one_that_has_lost_its_lease_or_is_cancelled_holds_up_no_other(testing: Testing) -> None:
    handles, found = taken(testing, 5)
    found[0].message.nack(0)
    returned = run_all(testing, found)
    assert returned == found[1:]
    assert handles[2].cancel()
    finish(testing.jobs, returned)
    testing.run()
    assert [handle.status for handle in handles] == ["done", "done", "cancelled", "done", "done"]
    for handle in handles:
        entries = testing.jobs.store.stream(f"jobs:history:{handle.id}").range()
        kinds = Counter(entry.fields[b"event"] for entry in entries)
        assert kinds[b"value"] == (handle.status == "done")
        assert set(kinds.values()) == {1}
