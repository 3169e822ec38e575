"""Jobs that start once others have ended, on each kind of place, and with kills at each commit."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from kvstream import InvalidArgument, JobCancelled, Jobs, JobUnknown, Store
from kvstream.jobs import current_job
from kvstream.jobs.dependents import STARTS, dependencies_of
from kvstream.jobs.listing.filters import ENDED
from kvstream.jobs.stored import StoredJobs
from kvstream.jobs.testing import Testing
from tests.jobs.conftest import Working
from tests.jobs.test_workflow_replays import LEASE_S, Killed, Mortal
from tests.patience import PATIENCE_S, until

Start = Callable[..., Working]
MANY = 200


class App:
    """An application whose jobs note what they do."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.did: list[Any] = []
        self.broken = True

        @jobs.task
        def note(what: Any) -> Any:
            self.did.append(what)
            return what

        @jobs.task
        def book(n: int) -> None:
            with current_job().transaction() as store:
                store.stream("booked").add({"n": n})

        @jobs.task
        def fail(what: str) -> str:
            if self.broken:
                raise ValueError("broken")
            return what

        @jobs.workflow
        def flow(what: Any) -> Any:
            self.did.append(what)
            return what

        self.note, self.book, self.fail, self.flow = note, book, fail, flow

    def rows(self, status: str) -> set[str]:
        """Return the IDs that ``kvstream jobs ls`` shows with a status."""
        stored = StoredJobs(self.jobs.store, "jobs")
        return {info.id for info in stored.find_all(status=status)}

    def is_clean(self) -> bool:
        """Return whether nothing is kept of waits that are over."""
        keys = [*self.jobs.store.scan_keys("jobs:after:*")]
        return not keys and not [*self.jobs.store.scan_keys("jobs:dependents:*")]


def have_ended(handles: Sequence[Any]) -> bool:
    return all(each.status in ENDED for each in handles)


@pytest.fixture
def app(jobs: Jobs) -> App:
    return App(jobs)


def test_a_job_starts_after_many_others_of_each_kind(app: App, working: Start) -> None:
    first = [app.note.enqueue(n) for n in range(MANY)]
    booked = [app.book.enqueue(n) for n in range(4)]
    flow = app.flow.with_options(depends_on=first).enqueue("flow")
    last = app.note.with_options(depends_on=[*first, *booked, flow], priority="high").enqueue("l")
    assert (last.status, last.waits_for) == ("waiting", f"{MANY + 5} jobs")
    assert (flow.status, flow.waits_for) == ("waiting", f"{MANY} jobs")
    assert app.rows("waiting") == {flow.id, last.id}
    worker = working(app.jobs)
    assert last.result(PATIENCE_S) == "l"
    assert app.did[MANY:] == ["flow", "l"]
    assert set(app.did[:MANY]) == {*range(MANY)}
    late = app.note.with_options(depends_on=[*first, flow.id]).enqueue("late")  # all have ended
    assert late.result(PATIENCE_S) == "late"
    until(app.is_clean)
    worker.stop()


def test_the_records_of_many_jobs_are_read_together(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a transaction on a server has read may not change, and other jobs end all the time."""
    first = app.note.enqueue_many([(n,) for n in range(MANY)])
    many = dependencies_of(app.jobs, {"depends_on": first})
    one = dependencies_of(app.jobs, {"depends_on": first[0]})
    app.jobs.record(first[0].id, b"done", 60, {"result": "1"})
    read, reads = Store.read, []

    def counted(store: Store, wanted: Any, *args: Any) -> Any:
        reads.append(len(wanted))
        return read(store, wanted, *args)

    monkeypatch.setattr(Store, "read", counted)
    with suppress(ZeroDivisionError), app.jobs.store.transaction():
        assert many.register("many", {b"task": "note"}) is None
        raise ZeroDivisionError
    assert len(reads) == MANY / 100
    with app.jobs.store.transaction():
        assert one.register("one", {b"task": "note"}) == STARTS
    assert app.is_clean()


def test_what_becomes_of_a_job_if_one_fails(app: App, working: Start) -> None:
    failing, behind = app.fail.enqueue("mended"), app.note.with_options(delay=3600).enqueue("never")
    waits = app.note.with_options(depends_on=failing).enqueue("waits")
    runs = app.note.with_options(depends_on=[failing], if_failed="run").enqueue("runs")
    fails = app.flow.with_options(depends_on=[failing, behind], if_failed="fail").enqueue("no")
    follows = app.note.with_options(depends_on=fails, if_failed="fail").enqueue("no")
    worker = working(app.jobs)
    assert runs.result(PATIENCE_S) == "runs"
    until(lambda: follows.status == "failed")
    assert fails.error == f"JobError: the job {failing.id}, which it depends on, has failed"
    assert (fails.status, waits.status) == ("failed", "waiting")
    late = app.note.with_options(depends_on=[failing], if_failed="fail").enqueue("no")
    assert late.status == "failed"
    app.broken = False
    assert failing.retry()
    assert waits.result(PATIENCE_S) == "waits"
    on_cancel = app.note.with_options(depends_on=behind, if_failed="run").enqueue("cancelled")
    assert behind.cancel()
    assert on_cancel.result(PATIENCE_S) == "cancelled"
    until(app.is_clean)
    worker.stop()
    assert sorted(app.did) == ["cancelled", "runs", "waits"]


def test_no_end_leaves_a_job_waiting_that_nothing_can_start(app: App, working: Start) -> None:
    jobs = app.jobs

    @jobs.task(run_if=lambda: False)
    def skipped() -> None: ...

    @jobs.task(dead_letter=False)
    def lost() -> None:
        raise ValueError("broken")

    cancelled, deleted = app.note.with_options(delay=3600).enqueue(1), app.fail.enqueue("x")
    firsts: dict[str, Any] = {
        "was cancelled": cancelled,
        "has expired": app.note.with_options(expires=0.001).enqueue(1),
        "was skipped": skipped.enqueue(),
        "has failed, and cannot be retried": lost.enqueue(),
        "cannot be retried": deleted,
    }
    dependents = {
        (how, policy): [
            task.with_options(depends_on=first, if_failed=policy).enqueue(policy)
            for task in (app.note, app.flow)
        ]
        for how, first in firsts.items()
        for policy in ("wait", "run", "fail")
    }
    ends = {"wait": "cancelled", "run": "done", "fail": "failed"}
    behind = app.note.with_options(depends_on=dependents["was skipped", "wait"][0]).enqueue("no")
    until(lambda: firsts["has expired"].status == "expired")
    assert cancelled.cancel()
    late = app.note.with_options(depends_on=cancelled).enqueue("no")
    assert (late.status, late.error) == ("cancelled", dependents["was cancelled", "wait"][0].error)
    worker = working(jobs)
    until(lambda: deleted.status == "failed")
    assert [each.status for each in dependents["cannot be retried", "wait"]] == [
        "waiting",
        "waiting",
    ]
    assert jobs.delete(task="fail", status="failed").done == [deleted.id]
    for (how, policy), both in dependents.items():
        until(partial(have_ended, both))
        assert [each.status for each in both] == [ends[policy]] * 2
        for each in both if policy == "wait" else ():
            with pytest.raises(JobCancelled, match=f"{firsts[how].id}, which .* {how}"):
                each.result(0)
    assert behind.status == "cancelled"
    until(app.is_clean)
    worker.stop()


def test_a_job_that_waits_is_cancelled_with_those_that_depend_on_it(app: App) -> None:
    first = app.note.enqueue("first")
    second = app.note.with_options(depends_on=[first]).enqueue("second")
    third = app.flow.with_options(depends_on=[second], if_failed="fail").enqueue("third")
    fourth = app.flow.with_options(depends_on=[first]).enqueue("fourth")
    fifth = app.note.with_options(depends_on=[third, fourth]).enqueue("fifth")
    assert second.cancel()
    assert (second.status, third.status, first.status) == ("cancelled", "failed", "queued")
    assert (second.error, fifth.status) == (None, "waiting")  # ``third`` may be retried
    assert not second.cancel()
    assert fourth.cancel()
    assert fifth.error == f"the job {fourth.id}, which it depends on, was cancelled"
    assert (fifth.status, app.rows("cancelled")) == ("cancelled", {second.id, fourth.id, fifth.id})
    assert app.jobs.handle(first.id).cancel()
    assert app.rows("waiting") == set()


def test_a_job_that_waits_is_shown_with_its_task_and_arguments(app: App) -> None:
    waits = app.note.with_options(depends_on=[app.note.enqueue(1)]).enqueue("later")
    stored = StoredJobs(app.jobs.store, "jobs")
    info = stored.info(stored.handle(waits.id))
    assert info is not None
    assert (info.task, info.status, info.queue) == ("note", "waiting", "jobs")
    assert [*info.args, *info.kwargs.values()] == ["later"]


def test_both_are_enqueued_in_one_transaction(app: App, working: Start) -> None:
    with app.jobs.store.transaction():
        first = app.note.enqueue("first")
        second = app.note.with_options(depends_on=[first], delay=0.01).enqueue("second")
    worker = working(app.jobs)
    assert second.result(PATIENCE_S) == "second"
    worker.stop()
    assert app.did == ["first", "second"]


@pytest.fixture
def testing() -> Iterator[Testing]:
    with Jobs("nowhere").test() as found:
        yield found
        assert found.jobs.store.check() == []


def test_wrong_dependencies_are_refused(testing: Testing) -> None:
    jobs = testing.jobs
    assert isinstance(jobs, Jobs)
    app = App(jobs)

    @jobs.task(result_ttl=0)
    def forgets() -> None: ...

    @jobs.task(unique=True)
    def once() -> None: ...

    with testing.held():
        done = app.note.enqueue(1)
        forgotten = forgets.enqueue()
    wrong: list[tuple[Any, str]] = [
        ({"depends_on": [1]}, "depends_on has handles of jobs, or their IDs, not 1"),
        ({"depends_on": done, "unique": "x"}, "a job with depends_on has no unique"),
        ({"depends_on": done, "if_failed": "runs"}, "if_failed cannot be 'runs'"),
        ({"depends_on": forgotten}, "whose outcome is not kept"),
    ]
    for options, text in wrong:
        with pytest.raises(InvalidArgument, match=text):
            app.note.with_options(**options).enqueue(1)
    with pytest.raises(InvalidArgument, match="cannot be unique"):
        once.with_options(depends_on=done).enqueue()
    with pytest.raises(InvalidArgument, match="begin with pause"):
        app.flow.with_options(depends_on=done, delay=1).enqueue(1)
    with pytest.raises(JobUnknown, match="depends_on has the job"):
        app.note.with_options(depends_on=jobs.handle(done.id[:-1] + "x")).enqueue(1)


def test_a_canceller_that_dies_at_any_commit_leaves_nobody_waiting(testing: Testing) -> None:
    jobs = testing.jobs
    assert isinstance(jobs, Jobs)
    app, mortal = App(jobs), Mortal(testing)

    @jobs.task
    def part() -> None: ...

    @jobs.workflow
    def whole() -> None:
        part.with_options(delay=3600).start().result()

    for commits in range(14):
        parent = whole.enqueue()
        (child,) = jobs.find(status="scheduled").jobs
        after = app.note.with_options(depends_on=child.id, if_failed="run").enqueue(commits)
        with_it = app.flow.with_options(depends_on=child.id).enqueue(commits)
        mortal.left = commits
        with testing.held(), suppress(Killed):
            jobs.handle(child.id).cancel()
        mortal.left = None
        jobs.handle(child.id).cancel()
        testing.run()
        assert (parent.status, after.status) == ("failed", "done")
        assert (jobs.handle(child.id).status, with_it.status) == ("cancelled", "cancelled")
    assert jobs.count(status="cancelled").total == 28
    assert app.is_clean()


def test_a_worker_that_dies_at_any_commit_loses_no_start(testing: Testing) -> None:
    jobs = testing.jobs
    assert isinstance(jobs, Jobs)
    app, mortal = App(jobs), Mortal(testing)
    lasts = []
    for commits in range(12):
        with testing.held():
            first = [app.note.enqueue(n) for n in range(2)]
            booked, flow = app.book.enqueue(1), app.flow.enqueue("flow")
            failing = app.fail.enqueue("x")
            middle = app.flow.with_options(depends_on=[*first, booked]).enqueue("middle")
            after: Any = {"depends_on": [middle, flow, failing], "if_failed": "run"}
            lasts.append(app.note.with_options(**after).enqueue(f"last {commits}"))
        mortal.run(commits)
        testing.turn(2 * LEASE_S)
    for _ in range(20):
        testing.turn(2 * LEASE_S)
    assert {last.status for last in lasts} == {"done"}
    assert app.is_clean()
    # A job runs again if its worker died before its end was written; it is not started again.
    stream = jobs.store.stream("jobs")
    assert (len(stream), stream.delayed_count()) == (0, 0)
    runs = Counter(each for each in app.did if str(each).startswith("last"))
    assert set(runs.values()) <= {1, 2}
