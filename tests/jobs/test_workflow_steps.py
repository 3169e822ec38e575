"""Steps that outlive their time, are cancelled, or do not know whether they were written."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kvstream import InvalidArgument, Jobs, LeaseLost
from kvstream.errors import ServerUnavailable, UnknownOutcome
from kvstream.jobs import (
    Job,
    Middleware,
    StepFailed,
    current_job,
    gather,
    on_failure,
    patched,
    publish,
    step,
    uuid4,
    wait_for,
)
from kvstream.jobs.history.cache import LONG
from kvstream.jobs.testing import Testing
from tests.patience import PATIENCE_S


@pytest.fixture
def jobs() -> Jobs:
    return Jobs("nowhere")


@pytest.fixture
def testing(jobs: Jobs) -> Iterator[Testing]:
    with jobs.test() as made:
        yield made
        assert jobs.store.check() == []


def test_a_step_whose_time_is_over_does_nothing_in_the_name_of_the_next(
    jobs: Jobs, testing: Testing
) -> None:
    is_next, tried = threading.Event(), threading.Event()
    refused: list[str] = []

    def book() -> None:
        with current_job().transaction() as store:
            store.stream("booked").add({"n": 1})
            current_job().result = "of the late step"

    def late() -> None:
        is_next.wait(PATIENCE_S)
        for act in (lambda: publish("at", 1), book, lambda: step(str)):
            try:
                act()
            except Exception as error:
                refused.append(type(error).__name__)
        tried.set()

    def next_one() -> str:
        is_next.set()
        tried.wait(PATIENCE_S)
        return "of the next step"

    @jobs.workflow
    def runs() -> str:
        with suppress(StepFailed):
            step.with_options(timeout=0.5)(late)
        return step(next_one)

    handle = runs.enqueue()
    assert handle.result() == "of the next step"
    assert refused == ["LeaseLost", "LeaseLost", "InvalidArgument"]
    assert (len(jobs.store.stream("booked")), handle.published()) == (0, {})


def test_a_step_whose_transaction_was_undone_has_its_timeout_all_the_same(
    jobs: Jobs, testing: Testing
) -> None:
    goes = threading.Event()

    def hangs() -> None:
        with suppress(ValueError), current_job().transaction():
            time.sleep(0.2)  # it is late within the transaction
            raise ValueError("undone")
        goes.wait(PATIENCE_S)

    @jobs.workflow
    def runs() -> None:
        step.with_options(timeout=0.1)(hangs)

    handle = runs.enqueue()
    goes.set()
    assert "has run for more than 0.1 s" in (handle.error or "")


def test_a_step_runs_again_if_it_is_unknown_whether_its_transaction_was_done(
    jobs: Jobs, testing: Testing
) -> None:
    runs_of_step: list[int] = []
    engine: Any = jobs.store.engine
    commit = engine._commit

    def fail(txn: Any) -> int:
        engine._commit = commit
        raise UnknownOutcome("the reply did not come")

    def book() -> int:
        runs_of_step.append(1)
        with current_job().transaction() as store:
            store.stream("booked").add({"n": 1})
            current_job().result = len(runs_of_step)
            if len(runs_of_step) == 1:
                engine._commit = fail
        return len(runs_of_step)

    @jobs.workflow
    def runs() -> Any:
        return step(book)

    handle = runs.enqueue()
    testing.turn(60)
    assert handle.result() == 2
    assert len(jobs.store.stream("booked")) == 1
    assert [each.status for each in handle.steps()] == ["done"]


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("swallows", [True, False])
def test_a_timeout_of_asyncio_around_a_step_fails_the_workflow_in_each_run(
    jobs: Jobs, testing: Testing, is_async: bool, swallows: bool
) -> None:
    did: list[str] = []
    goes = threading.Event()

    def slow() -> None:
        did.append("slow")
        goes.wait(PATIENCE_S)
        with suppress(LeaseLost), current_job().transaction() as store:
            store.stream("booked").add({"n": 1})

    async def slow_async() -> None:
        did.append("slow")
        await asyncio.sleep(PATIENCE_S)

    def undo() -> None:
        did.append("undo")
        goes.set()
        if did.count("undo") == 1:
            raise ValueError("not yet")

    acts: Any = slow_async if is_async else slow
    notes: Any = did.append

    @jobs.workflow
    async def runs() -> None:
        on_failure.with_options(retries=1, backoff=5)(undo)
        try:
            async with asyncio.timeout(0.5):
                await step(acts)
        except TimeoutError:
            if not swallows:
                raise
        await step(notes, "never")

    handle = runs.enqueue()
    testing.turn(60)
    assert did == ["slow", "undo", "undo"]
    wanted = "was cancelled while it was awaited" if swallows else "TimeoutError"
    assert wanted in (handle.error or "")
    assert len(jobs.store.stream("booked")) == 0


@pytest.mark.parametrize("is_async", [True, False])
def test_a_step_that_ends_while_the_server_is_away_is_recorded_when_it_is_back(
    jobs: Jobs, testing: Testing, is_async: bool
) -> None:
    did: list[int] = []
    engine: Any = jobs.store.engine
    commit, away = engine._commit, [1, 2]

    def fail(txn: Any) -> int:
        if away:
            away.pop()
            raise ServerUnavailable("it restarts")
        return int(commit(txn))

    def act() -> int:
        did.append(1)
        engine._commit = fail
        return 5

    @jobs.workflow
    def runs() -> int:
        return step(act)

    acts: Any = act

    @jobs.workflow
    async def runs_async() -> int:
        return int(await step(acts))

    handle = (runs_async if is_async else runs).enqueue()
    assert (handle.result(), did, away) == (5, [1], [])


@pytest.mark.parametrize("what", ["step", "wait", "patch", "publish", "signal"])
def test_names_that_no_event_can_have_are_refused_before_anything_is_done(
    jobs: Jobs, testing: Testing, what: str
) -> None:
    did: list[int] = []

    @jobs.workflow
    def runs() -> None:
        name = "\ud800"
        if what == "step":
            step.with_options(name=name)(did.append, 1)
        elif what == "patch":
            patched(name)
        elif what == "publish":
            publish(name)
        wait_for("go" if what == "signal" else name)

    handle = runs.enqueue()
    if what == "signal":
        with pytest.raises(InvalidArgument, match="not valid Unicode"):
            handle.send("\ud800")
    else:
        assert "InvalidArgument: the name of" in (handle.error or "")
    assert did == []


def test_a_retry_waits_for_the_same_signals_again_in_order(jobs: Jobs, testing: Testing) -> None:
    is_broken = True

    def book(n: int) -> int:
        if n == 2 and is_broken:
            raise ValueError("no")
        return n

    @jobs.workflow
    def runs() -> list[int]:
        found = [wait_for("go"), step.with_options(name="first")(book, 1), wait_for("go")]
        return [*found, step(book, 2), wait_for("go")]

    with testing.held():
        handle = runs.enqueue()
        for n in (10, 20, 30):
            handle.send("go", n)
    testing.run()
    assert handle.status == "failed"
    is_broken = False
    assert handle.retry("first")
    assert handle.result() == [10, 1, 20, 2, 30]


def test_a_function_without_a_signature_is_refused(jobs: Jobs, testing: Testing) -> None:
    @jobs.workflow
    def runs() -> Any:
        return step(max, 3, 4)

    assert "InvalidArgument: Python knows no signature of" in (runs.enqueue().error or "")


@pytest.mark.parametrize("delay", [None, 5])
def test_a_program_without_workflows_takes_no_wake_of_one(
    tmp_path: Path, delay: int | None
) -> None:
    with Jobs(tmp_path, shared=False) as has:

        @has.workflow
        def runs() -> None: ...

        handle = runs.with_options(delay=delay).enqueue()
    with Jobs(tmp_path, shared=False) as other:
        other.task(name="plain")(lambda: None)
        with pytest.raises(InvalidArgument, match="is a workflow"):
            other.handle(handle.id).cancel()
    with has:
        assert handle.status == ("queued" if delay is None else "scheduled")
        assert handle.cancel()
        assert has.store.check() == []


def test_middleware_sees_no_end_of_a_run_that_could_not_begin(jobs: Jobs, testing: Testing) -> None:
    seen: list[str] = []

    class Sees(Middleware):
        def before(self, job: Job) -> None:
            seen.append("before")

        def waits(self, job: Job) -> None:
            seen.append("waits")

    engine: Any = jobs.store.engine
    commit = engine._commit

    def fail(txn: Any) -> int:
        with suppress(LookupError):
            current_job()  # it is the commit that begins the run
            engine._commit = commit
            raise ServerUnavailable("it restarts")
        return int(commit(txn))

    @jobs.workflow
    def runs() -> int:
        return 5

    jobs.middleware = (Sees(),)
    with testing.held():
        handle = runs.enqueue()
    engine._commit = fail
    testing.run()
    assert (handle.result(), seen, len(testing.ran)) == (5, ["before"], 2)


def test_a_retry_goes_back_to_the_failure_that_has_left_the_function(
    jobs: Jobs, testing: Testing
) -> None:
    did, broken = list[str](), {"caught", "child", "wrapped"}

    def act(what: str) -> str:
        did.append(what)
        if what in broken:
            raise ValueError("broken")
        return what

    @jobs.task
    def child(what: str) -> str:
        return act(what)

    @jobs.workflow
    def flow() -> str:
        with suppress(StepFailed):
            step(act, "caught")
        with suppress(StepFailed):
            child.run("child")
        try:
            return step(act, "wrapped")
        except StepFailed as error:
            raise RuntimeError("of my own") from error

    handle = flow.enqueue()
    assert handle.error == "RuntimeError: of my own"
    did.clear()
    broken.clear()
    assert handle.retry()
    assert (handle.result(), did) == ("wrapped", ["wrapped"])


def test_a_retry_goes_back_to_a_child_whose_failure_has_left_the_function(
    jobs: Jobs, testing: Testing
) -> None:
    did, broken = list[int](), {1}

    @jobs.task
    def child(n: int) -> int:
        did.append(n)
        if n in broken:
            raise ValueError("broken")
        return n

    @jobs.workflow
    def flow() -> list[int]:
        return list(gather([child.start(n) for n in range(3)]))

    handle = flow.enqueue()
    assert handle.status == "failed"
    did.clear()
    broken.clear()
    assert handle.retry()
    assert (handle.result(), did) == ([0, 1, 2], [1, 2])


def test_a_long_history_that_is_kept_in_memory_is_read_on_by_each_wake(
    jobs: Jobs, testing: Testing
) -> None:
    @jobs.workflow
    def flow() -> list[str]:
        seen = [str(uuid4()) for _ in range(2 * LONG)]
        heard = [wait_for("go") for _ in range(3)]
        assert len(set(seen)) == 2 * LONG
        return heard

    for turn in range(2):  # the second has the ID of the first
        handle = flow.with_options(id="long").enqueue()
        for n in range(3):
            handle.send("go", f"{turn} {n}")
        assert handle.result() == [f"{turn} {n}" for n in range(3)]
        jobs.store.delete("jobs:workflow:long", "jobs:history:long", "jobs:result:long")
        testing.turn(1)


def listens(jobs: Jobs) -> Any:
    """Make a workflow with a long history that waits for signals."""

    @jobs.workflow
    def listen(number: int) -> list[Any]:
        seen = {str(uuid4()) for _ in range(LONG)}
        assert len(seen) == LONG
        return [wait_for("go") for _ in range(number)]

    return listen


def test_a_long_history_whose_end_the_store_has_lost_is_read_anew(
    jobs: Jobs, testing: Testing
) -> None:
    handle = listens(jobs).enqueue(3)
    history = jobs.store.stream(f"jobs:history:{handle.id}")
    for n in range(2):
        handle.send("go", n)
    history.delete(*[entry.id for entry in history.revrange(count=3)])  # from the signal on
    for n in range(1, 3):
        handle.send("go", n)
    assert handle.result() == [0, 1, 2]
    assert [step.result for step in handle.steps()] == [0, 1, 2]


def test_a_long_history_is_forgotten_with_its_store(jobs: Jobs) -> None:
    listen = listens(jobs)
    for _ in range(2):  # the IDs and times of the second are those of the first
        with jobs.test():
            listen.with_options(id="long").enqueue(2).send("go", 0)
            assert len(jobs.store.stream("jobs:history:long")) > LONG


def test_a_cancelled_parent_finds_its_children_by_their_places(
    jobs: Jobs, testing: Testing
) -> None:
    @jobs.task
    def child(n: int) -> int:
        return n

    @jobs.workflow
    def flow() -> None:
        gather([child.with_options(delay=60).start(1), child.with_options(delay=120).start(2)])

    handle = flow.enqueue()
    testing.turn(1)
    entries = jobs.store.stream(f"jobs:history:{handle.id}").range()
    where = [each.fields[b"where"] for each in entries if each.fields[b"event"] == b"child"]
    assert [each[:1] for each in where] == [b"@", b"@"]
    assert handle.cancel()
    assert {jobs.handle(each.fields[b"child"].decode()).status for each in entries[1:3]} == {
        "cancelled"
    }
