"""Workflows that are killed, changed, undone and retried; in the test mode.

KVSTREAM_CRASH_ROUNDS sets how many of the commits of a workflow are its last ones: 50 for all.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from kvstream import InvalidArgument, JobFailed, Jobs, JobUnknown
from kvstream.jobs import (
    Job,
    Middleware,
    NonDeterministic,
    StepFailed,
    current_job,
    first_completed,
    gather,
    now,
    on_failure,
    patched,
    pause,
    publish,
    step,
    wait_for,
)
from kvstream.jobs.job import RunEnded
from kvstream.jobs.testing import Testing
from tests.crash.rounds import rounds

LEASE_S = 31
COMMITS = 50
"""About the commits of ``everything``."""
OF_THE_STORE = ("kvstream-timers", "kvstream-expiry")
"""Threads that live on when a worker dies."""


class Killed(BaseException):
    """The process has died: it writes nothing from now on, until the next one is there."""


class Mortal:
    """The test mode, in which the worker may die at a commit."""

    def __init__(self, testing: Testing) -> None:
        self.testing = testing
        self.left: int | None = None
        """Commits until the death; None: it lives."""
        engine: Any = testing.jobs.store.engine
        self._commit = engine._commit
        engine._commit = self._count

    def _count(self, txn: Any) -> int:
        if self.left is not None and threading.current_thread().name not in OF_THE_STORE:
            if self.left == 0:
                raise Killed
            self.left -= 1
        return int(self._commit(txn))

    def run(self, commits: int | None) -> bool:
        """Run what is due, and die after some commits; return whether it has died."""
        self.left = commits
        try:
            self.testing.run()
        except Killed:
            return True
        finally:
            self.left = None
        return False


@pytest.fixture
def jobs() -> Jobs:
    return Jobs("nowhere")


@pytest.fixture
def testing(jobs: Jobs) -> Iterator[Testing]:
    with jobs.test() as found:
        yield found
        assert jobs.store.check() == []


def define(jobs: Jobs, did: list[str], is_async: bool) -> Any:
    """Make a workflow that has one of each call."""

    def note(what: str) -> str:
        did.append(what)
        return what

    async def anote(what: str) -> str:
        return note(what)

    def book(n: int) -> int:
        did.append("book")
        with current_job().transaction() as store:
            store.stream("booked").add({"n": n})
            current_job().result = n
        return n

    async def abook(n: int) -> int:
        return book(n)

    def flaky() -> None:
        did.append("flaky")
        if did.count("flaky") == 1:
            raise ValueError("once")

    async def aflaky() -> None:
        flaky()

    @jobs.task
    def child(n: int) -> int:
        did.append(f"child {n}")
        return n

    @jobs.workflow(name="sync")
    def everything() -> list[Any]:
        found: list[Any] = [step(note, "first"), now().timestamp()]
        publish("at", 1)
        found.append(step(book, 7))
        pause(5)
        found += gather((child.start(n) for n in range(3)), limit=2)
        step.with_options(retries=5, backoff=3)(flaky)
        found.append(wait_for("go"))
        found.append(step(note, "last"))
        return found

    @jobs.workflow(name="async")
    async def everything_async() -> list[Any]:
        found: list[Any] = [await step(anote, "first"), now().timestamp()]
        publish("at", 1)
        found.append(await step(abook, 7))
        await pause(5)
        found += await gather((child.start(n) for n in range(3)), limit=2)
        await step.with_options(retries=5, backoff=3)(aflaky)
        found.append(await wait_for("go"))
        found.append(await step(anote, "last"))
        return found

    return everything_async if is_async else everything


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_kill_at_any_commit_loses_and_repeats_nothing(is_async: bool) -> None:
    most = rounds(5)
    commits, died, stride = 0, True, max(1, COMMITS // most)
    while died:
        jobs, did = Jobs("nowhere"), list[str]()
        workflow = define(jobs, did, is_async)
        with jobs.test() as testing:
            mortal = Mortal(testing)
            with testing.held():
                handle = workflow.enqueue()
            died = run_with_a_kill(mortal, handle, commits)
            result = handle.result()
            assert (result[0], result[2:]) == ("first", [7, 0, 1, 2, "!", "last"])
            assert [entry.fields[b"n"] for entry in jobs.store.stream("booked").range()] == [b"7"]
            assert {*did} == {"first", "book", "child 0", "child 1", "child 2", "flaky", "last"}
            assert [update.value for update in handle.updates()] == [1]
            repeated = len(did) - 8
            assert repeated <= died, did
            assert len(jobs.store.stream("jobs")) == jobs.store.stream("jobs").delayed_count() == 0
            assert jobs.store.check() == []
        commits += stride
    assert commits > COMMITS // 2


def run_with_a_kill(mortal: Mortal, handle: Any, commits: int) -> bool:
    """Run a workflow to its end, with one death after some commits; return whether it has died."""
    left: int | None = commits
    died = False
    testing = mortal.testing
    with testing.held():
        handle.send("go", "!")
    for _ in range(200):
        before = mortal.left
        died_now = mortal.run(left)
        if died_now:
            died, left = True, None
            testing.clock.advance(LEASE_S * 1000)
        elif left is not None:
            left = max(0, left - 1) if before is None else left
        if handle.status == "done":
            return died
        testing.clock.advance(1000)
    raise AssertionError(f"{handle.status} {handle.waits_for}")


# --- changed code -------------------------------------------------------------------------------


def one() -> int:
    return 1


def two() -> int:
    return 2


def test_changed_code_is_refused_with_both_names_and_the_line(jobs: Jobs, testing: Testing) -> None:
    code: Callable[[], Any]

    @jobs.workflow
    def changes() -> Any:
        return code()

    def old() -> int:
        found = step(one)
        pause(10)
        return found

    def renamed() -> int:
        found = step(two)
        pause(10)
        return found

    def shorter() -> int:
        return 0

    def others() -> int:
        pause(10)
        return step(one)

    for new, words in (
        (renamed, "call 1 of changes is two at "),
        (others, "call 1 of changes is pause at "),
        (shorter, "changes has returned after 0 calls, but the history has one next"),
    ):
        code = old
        handle = changes.enqueue()
        code = new
        testing.turn(10)
        error = handle.error or ""
        assert error.startswith("NonDeterministic: ")
        assert words in error
        assert new is shorter or ("the history has one there" in error and __file__ in error)
        code = old
        assert handle.retry()
        testing.turn(10)
        assert handle.result() == 1


def test_other_arguments_than_in_the_history_are_refused(jobs: Jobs, testing: Testing) -> None:
    given = [1]

    @jobs.workflow
    def changes() -> None:
        step(abs, given[0])
        pause(1)

    handle = changes.enqueue()
    given[0] = 2
    testing.turn(1)
    assert "has other arguments than in the history" in (handle.error or "")
    with pytest.raises(JobFailed, match="NonDeterministic"):
        handle.result()
    assert issubclass(NonDeterministic, Exception)


def test_patched_lets_old_workflows_go_the_old_way(jobs: Jobs, testing: Testing) -> None:
    is_new = False

    @jobs.workflow
    def changes() -> list[str]:
        did = []
        step(one)
        if is_new and patched("two"):
            step(two)
            did.append("new")
        pause(10)
        did.append("patched" if is_new and patched("two") else "plain")
        return did

    old = changes.enqueue()
    is_new = True
    new = changes.enqueue()
    testing.turn(10)
    assert old.result() == ["plain"]
    assert new.result() == ["new", "patched"]


def test_an_unknown_version_waits_and_says_so() -> None:
    def define(version: int, accepts: tuple[int, ...] = ()) -> tuple[Jobs, Any]:
        made = Jobs("nowhere")

        @made.workflow(version=version, accepts=accepts)
        def grows() -> int:
            pause(10)
            return version

        return made, grows

    jobs, grows = define(2)
    with jobs.test() as testing:
        handle = grows.enqueue()
        grows._accepted = {"1"}  # a worker of the version before
        testing.turn(60)
        assert handle.status == "waiting"
        assert handle.waits_for == ("version 2 of grows is not known to this worker, which has 1")
        grows._accepted = {"3", "2"}
        testing.turn(60)
        assert handle.result() == 2
    assert define(3, (1, 2))[1]._accepted == {"1", "2", "3"}


def test_a_workflow_that_no_worker_has_waits_for_one(jobs: Jobs, testing: Testing) -> None:
    @jobs.workflow
    def later() -> int:
        return 5

    @jobs.task
    def other() -> None: ...

    del jobs.tasks["later"]
    handle = later.enqueue()
    testing.turn(3600)
    assert handle.status == "queued"
    jobs.tasks["later"] = later
    testing.turn(60)
    assert handle.result() == 5


# --- undoing and retrying -----------------------------------------------------------------------


class Shop:
    """A workflow that books in three steps; one of them may fail."""

    def __init__(self, jobs: Jobs) -> None:
        self.did: list[str] = []
        self.broken = {"ship"}

        def act(what: str) -> str:
            self.did.append(what)
            if what in self.broken:
                raise ValueError(f"no {what}")
            return what

        @jobs.workflow
        def order() -> str:
            pay = step.with_options(name="pay")(act, "pay")
            on_failure.with_options(retries=2, backoff=5, name="refund")(act, f"un{pay}")
            pack = step.with_options(name="pack")(act, "pack")
            on_failure(act, f"un{pack}")
            pause(10)
            return step.with_options(name="ship")(act, "ship")

        self.order = order


def test_what_was_done_is_undone_in_reverse(jobs: Jobs, testing: Testing) -> None:
    shop = Shop(jobs)
    shop.broken |= {"unpack", "unpay"}
    handle = shop.order.enqueue()
    testing.turn(10)
    assert (handle.status, handle.waits_for) == ("waiting", "retry of undo:refund")
    shop.broken.discard("unpay")
    testing.turn(100)
    with pytest.raises(JobFailed, match="ship: ValueError: no ship"):
        handle.result()
    assert shop.did == ["pay", "pack", "ship", "unpack", "unpay", "unpay"]
    shown = [(each.name, each.status) for each in handle.steps()][-3:]
    assert shown == [("ship", "failed"), ("undo:act", "failed"), ("undo:refund", "done")]


def test_a_workflow_that_was_undone_is_retried_from_its_first_undone_step(
    jobs: Jobs, testing: Testing
) -> None:
    shop = Shop(jobs)
    handle = shop.order.enqueue()
    assert handle.retry() is False
    testing.turn(10)
    assert handle.status == "failed"
    shop.broken.clear()
    shop.did.clear()
    assert handle.retry()
    testing.turn(10)
    assert handle.result() == "ship"
    assert shop.did == ["pay", "pack", "ship"]
    assert handle.retry() is False


def test_a_retry_goes_back_to_the_step_that_is_named(jobs: Jobs, testing: Testing) -> None:
    did, broken = list[str](), [True]

    def act(what: str) -> None:
        did.append(what)
        if what == "c" and broken[0]:
            raise ValueError("no")

    @jobs.workflow
    def runs() -> None:
        for what in "abc":
            step.with_options(name=what)(act, what)

    handle = runs.enqueue()
    with pytest.raises(InvalidArgument, match="has no step 'x': it has a, b, c"):
        handle.retry("x")
    assert handle.retry()
    assert did == ["a", "b", "c", "c"]
    assert handle.status == "failed"
    broken[0] = False
    did.clear()
    assert handle.retry(from_step="b")
    assert (handle.status, did) == ("done", ["b", "c"])
    assert runs.handle("nobody").retry() is False


def test_a_failure_that_the_code_has_caught_is_retried_with_the_rest(
    jobs: Jobs, testing: Testing
) -> None:
    tries = list[int]()

    @jobs.workflow
    def runs() -> str:
        with suppress(TimeoutError):
            wait_for("a", timeout=0)
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("code")
        return "done"

    handle = runs.enqueue()
    assert handle.error == "ValueError: code"
    assert handle.retry()
    assert handle.result() == "done"


def test_a_kill_while_it_is_undone_undoes_the_rest() -> None:
    commits, died, stride = 0, True, max(1, 12 // rounds(4))
    while died:
        jobs = Jobs("nowhere")
        with jobs.test() as testing:
            shop = Shop(jobs)
            mortal = Mortal(testing)
            handle = shop.order.enqueue()
            testing.clock.advance(10_000)
            died = mortal.run(commits)
            testing.turn(2 * LEASE_S)
            assert handle.error == "StepFailed: ship: ValueError: no ship"
            assert {"unpack", "unpay"} <= {*shop.did}
            assert shop.did.index("unpack") < shop.did.index("unpay")
            assert len(shop.did) <= 5 + died
        commits += stride
    assert commits > 5


def test_the_timeout_of_a_workflow_undoes_it(jobs: Jobs, testing: Testing) -> None:
    did = list[str]()

    @jobs.workflow(timeout=10)
    def slow() -> None:
        step(did.append, "did")
        on_failure(did.append, "undone")
        pause(60)

    handle = slow.enqueue()
    testing.turn(10)
    assert (handle.status, did) == ("failed", ["did", "undone"])
    assert "JobTimeout: slow has taken more than 10 s" in (handle.error or "")


# --- ends without a run -------------------------------------------------------------------------


def test_a_workflow_that_was_never_run_can_be_cancelled_and_expire(
    jobs: Jobs, testing: Testing
) -> None:
    did = list[int]()

    @jobs.workflow(result_ttl=50)
    def runs() -> None:
        step(did.append, 1)

    with testing.held():
        handle, gone = runs.enqueue(), runs.enqueue()
        assert handle.cancel()
        jobs.store.delete(f"jobs:workflow:{gone.id}", f"jobs:history:{gone.id}")
    testing.run()
    assert (handle.status, gone.status, did) == ("cancelled", "unknown", [])
    assert handle.retry() is False
    assert gone.cancel() is False
    testing.turn(100)
    assert handle.status == "unknown"
    with pytest.raises(JobUnknown):
        handle.result()
    assert len(jobs.store.stream("jobs")) == 0


def test_a_workflow_that_kills_its_workers_is_given_up(jobs: Jobs, testing: Testing) -> None:
    did = list[int]()

    def kills() -> None:
        did.append(1)
        mortal.left = 0
        raise Killed

    @jobs.workflow
    def runs() -> None:
        step(one)
        step(kills)

    mortal = Mortal(testing)
    with testing.held():
        handle = runs.enqueue()
    for _ in range(10):
        if handle.status == "failed":
            break
        mortal.run(None)  # it dies within the step
        testing.clock.advance(LEASE_S * 1000)
    assert "it has killed its workers 5 times after one" in (handle.error or "")


def test_a_run_that_swallows_its_end_waits_all_the_same(jobs: Jobs, testing: Testing) -> None:
    @jobs.workflow
    def greedy() -> str:
        try:
            return str(wait_for("a"))
        except BaseException:
            return "swallowed"

    handle = greedy.enqueue()
    assert handle.status == "waiting"
    handle.send("a", "signal")
    assert handle.result() == "signal"


def test_a_step_failed_says_which(jobs: Jobs, testing: Testing) -> None:
    def breaks() -> None:
        raise ValueError("x")

    @jobs.workflow
    def runs() -> list[str]:
        try:
            step(breaks)
        except StepFailed as failed:
            return [failed.step, failed.error, str(failed)]
        return []

    assert runs.enqueue().result() == ["breaks", "ValueError: x", "breaks: ValueError: x"]


# --- failures that are replayed -----------------------------------------------------------------


class Late:
    """A workflow of six seconds, whose undo step needs a second try."""

    def __init__(self, jobs: Jobs, call: Callable[[], object]) -> None:
        self.did: list[str] = []

        def undo() -> None:
            self.did.append("undo")
            if self.did.count("undo") == 1:
                raise ValueError("not yet")

        @jobs.workflow(timeout=6)
        def late() -> object:
            on_failure.with_options(retries=2, backoff=10)(undo)
            return call()

        self.late = late


def test_a_signal_after_the_timeout_does_not_change_how_a_workflow_failed(
    jobs: Jobs, testing: Testing
) -> None:
    made = Late(jobs, lambda: wait_for("paid"))
    handle = made.late.enqueue()
    testing.turn(7)
    assert handle.waits_for == "retry of undo:undo"
    handle.send("paid", 1)
    testing.turn(60)
    assert made.did == ["undo", "undo"]
    assert (handle.status, "more than 6 s" in (handle.error or "")) == ("failed", True)


@pytest.mark.parametrize("waits", [gather, first_completed])
def test_children_that_end_after_the_timeout_do_not_change_how_a_workflow_failed(
    jobs: Jobs, testing: Testing, waits: Callable[..., Any]
) -> None:
    @jobs.task
    def child() -> int:
        return 1

    made = Late(jobs, lambda: str(waits([child.with_options(delay=8).start()])))
    handle = made.late.enqueue()
    testing.turn(60)
    assert made.did == ["undo", "undo"]
    assert "more than 6 s" in (handle.error or "")


def test_a_step_that_was_tried_is_not_run_again_when_its_workflow_is_undone(
    jobs: Jobs, testing: Testing
) -> None:
    def fails() -> None:
        made.did.append("step")
        raise ValueError("no")

    made = Late(jobs, lambda: step.with_options(retries=3, backoff=8)(fails))
    handle = made.late.enqueue()
    testing.turn(60)
    assert made.did == ["step", "undo", "undo"]
    assert "more than 6 s" in (handle.error or "")


def test_a_second_try_that_outlives_its_workflow_is_undone(jobs: Jobs, testing: Testing) -> None:
    goes = threading.Event()

    def hangs() -> None:
        made.did.append("step")
        if made.did.count("step") == 1:
            raise ValueError("no")
        goes.wait()

    made = Late(jobs, lambda: step.with_options(retries=3, backoff=5.9)(hangs))
    handle = made.late.enqueue()
    try:
        testing.turn(60)
    finally:
        goes.set()
    assert made.did == ["step", "step", "undo", "undo"]
    assert "more than 6 s" in (handle.error or "")


def test_code_that_swallows_nondeterministic_fails_all_the_same(
    jobs: Jobs, testing: Testing
) -> None:
    is_new = False

    @jobs.workflow
    def changed() -> None:
        if is_new:
            with suppress(Exception):
                step(two)
        step(one)
        pause(5)

    handle = changed.enqueue()
    is_new = True
    testing.turn(5)
    assert handle.status == "failed"
    assert "call 1 of changed is two" in (handle.error or "")


def test_a_retry_of_a_workflow_that_was_given_up_runs_it(jobs: Jobs, testing: Testing) -> None:
    kills = True

    def act() -> int:
        if kills:
            mortal.left = 0
            raise Killed
        return 5

    @jobs.workflow
    def runs() -> int:
        return step(act)

    mortal = Mortal(testing)
    with testing.held():
        handle = runs.enqueue()
    for _ in range(10):
        mortal.run(None)
        testing.clock.advance(LEASE_S * 1000)
    assert handle.status == "failed"
    kills = False
    assert handle.retry()
    assert handle.result() == 5


def test_a_step_that_publishes_and_kills_its_workers_is_given_up(
    jobs: Jobs, testing: Testing
) -> None:
    def kills() -> None:
        publish("at", 1)
        mortal.left = 0
        raise Killed

    @jobs.workflow
    def runs() -> None:
        step(kills)

    mortal = Mortal(testing)
    with testing.held():
        handle = runs.enqueue()
    for _ in range(10):
        mortal.run(None)
        testing.clock.advance(LEASE_S * 1000)
    assert "it has killed its workers 5 times" in (handle.error or "")


def test_a_workflow_that_workers_give_back_goes_on(jobs: Jobs, testing: Testing) -> None:
    @jobs.workflow
    def runs() -> int:
        if len(testing.ran) <= 10:
            raise RunEnded("lost", "the worker stops")  # so the message is given back
        return 5

    handle = runs.enqueue()
    assert handle.result() == 5


def test_middleware_sees_a_child_enqueued_once(testing: Testing, jobs: Jobs) -> None:
    seen: list[str] = []

    class Sees(Middleware):
        def enqueued(self, job: Job) -> None:
            seen.append(job.task_name)

    @jobs.task
    def child() -> int:
        return 1

    @jobs.workflow
    def parent() -> list[int]:
        again = child.start()
        pause(1)
        pause(1)
        return list(gather([again, again]))

    jobs.middleware = (Sees(),)
    handle = parent.enqueue()
    testing.turn(2)
    assert (handle.result(), seen) == ([1, 1], ["parent", "child"])


def test_what_is_no_child_is_refused(jobs: Jobs, testing: Testing) -> None:
    @jobs.workflow
    def child() -> None: ...

    @jobs.workflow
    def gathers(waits: str) -> None:
        (gather if waits == "all" else first_completed)([1])  # type: ignore[list-item]

    @jobs.workflow
    def names() -> None:
        child.with_options(id="mine").start()

    for waits in ("all", "first"):
        assert "1 is no child" in (gathers.enqueue(waits).error or "")
    assert "a child has no id" in (names.enqueue().error or "")


def test_a_handle_of_jobs_is_that_of_a_workflow_which_need_not_exist(
    jobs: Jobs, testing: Testing
) -> None:
    @jobs.workflow
    def waits() -> Any:
        return wait_for("go")

    handle: Any = jobs.handle("waits:7")
    assert handle.status == "unknown"
    with pytest.raises(JobUnknown):
        handle.send("go")
    waits.with_options(id="waits:7").enqueue()
    assert handle.send("go", 5)
    assert handle.result() == 5
