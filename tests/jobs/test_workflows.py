"""Workflows: steps, waits, children and values, in the test mode, whose clock is turned."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from kvstream import InvalidArgument, JobFailed, Jobs, JobUnknown
from kvstream.jobs import (
    GiveUp,
    JobCancelled,
    Middleware,
    Retry,
    StepFailed,
    current_job,
    first_completed,
    gather,
    now,
    pause,
    publish,
    random,
    step,
    uuid4,
    wait_for,
)
from kvstream.jobs.testing import Testing

DAY = 86_400


class World:
    """An application in the test mode, and what its functions have done."""

    def __init__(self) -> None:
        self.jobs = Jobs("nowhere")
        self.did: list[Any] = []
        self.testing: Testing

    def do(self, what: Any) -> Any:
        """Note what a function does, and return it."""
        self.did.append(what)
        return what


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    with made.jobs.test() as made.testing:
        yield made
        assert made.jobs.store.check() == []


def test_a_workflow_runs_its_steps_once_and_waits_between_them(world: World) -> None:
    @world.jobs.task
    def resize(n: int) -> int:
        return n * n

    @world.jobs.workflow(timeout=timedelta(days=30))
    def onboard(user: str) -> str:
        account = step(world.do, user)
        mailed = resize.run(7)
        pause(timedelta(days=1))
        answer = wait_for("confirmed", timeout=timedelta(days=7))
        sizes = gather(resize.start(n) for n in range(3))
        return f"{account} {mailed} {answer} {sizes}"

    handle = onboard.enqueue("ann", id="onboard:ann")  # type: ignore[call-arg]
    assert (handle.status, handle.waits_for) == ("waiting", "pause")
    world.testing.turn(DAY - 1)
    assert handle.waits_for == "pause"
    world.testing.turn(1)
    assert (handle.status, handle.waits_for) == ("waiting", "signal confirmed")
    assert handle.send("confirmed", {"ok": True})
    assert handle.result() == "ann 49 {'ok': True} [0, 1, 4]"
    assert (str(handle.status), world.did) == ("done", ["ann"])
    assert handle.waits_for is None
    shown = [(each.kind, each.name, each.status) for each in handle.steps()]
    assert shown == [
        ("step", "do", "done"),
        ("child", "resize", "done"),
        ("pause", "pause", "done"),
        ("wait", "confirmed", "done"),
        *[("child", "resize", "done")] * 3,
    ]


def test_the_same_id_is_the_same_workflow(world: World) -> None:
    @world.jobs.workflow
    def once(n: int) -> int:
        return int(step(world.do, n))

    assert once.with_options(id="a").enqueue(1).result() == 1
    assert once.enqueue(2, id="a").result() == 1  # type: ignore[call-arg]
    assert once.with_options(id="b").enqueue(3).result() == 3
    assert world.did == [1, 3]
    assert once.enqueue(4).id != once.enqueue(4).id
    assert [handle.result() for handle in once.enqueue_many([(5,), (6,)])] == [5, 6]
    for wrong in ("", 7):
        with pytest.raises(InvalidArgument, match="the id of a workflow is a text"):
            once.with_options(id=wrong).enqueue(1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a workflow has no option 'unique'"):
        once.with_options(unique="x")


def test_an_end_is_forgotten_after_the_time_of_its_result(world: World) -> None:
    @world.jobs.workflow(result_ttl=100)
    def once(n: int) -> int:
        return int(step(world.do, n))

    handle = once.with_options(id="a").enqueue(1)
    world.testing.turn(99)
    assert (handle.status, handle.result()) == ("done", 1)
    world.testing.turn(2)
    assert handle.status == "unknown"
    with pytest.raises(JobUnknown):
        handle.result()
    with pytest.raises(JobUnknown):
        handle.steps()
    assert once.with_options(id="a").enqueue(2).result() == 2


def test_arguments_and_results_keep_their_types(world: World) -> None:
    def at(day: int) -> datetime:
        return datetime(2030, 1, day, tzinfo=UTC)

    @world.jobs.workflow
    def dates(first: datetime) -> list[datetime]:
        found = [first, step(at, 2)]
        pause(1)
        assert found == [first, at(2)]
        return found

    handle = dates.enqueue(at(1))
    world.testing.turn(1)
    assert handle.result() == [at(1), at(2)]


def test_a_step_is_tried_again_after_its_backoff(world: World) -> None:
    @world.jobs.workflow
    def flaky() -> str:
        return step.with_options(retries=2, backoff=[10, 60], name="call")(fails_twice)

    def fails_twice() -> str:
        world.do(world.testing.clock.ms)
        if len(world.did) < 3:
            raise ValueError("not yet")
        return "done"

    begun = world.testing.clock.ms
    handle = flaky.enqueue()
    assert (handle.status, handle.waits_for) == ("waiting", "retry of call")
    world.testing.turn(100)
    assert [at - begun for at in world.did] == [0, 10_000, 70_000]
    (shown,) = handle.steps()
    assert (shown.name, shown.attempt, shown.status, handle.result()) == (
        *("call", 3, "done"),
        "done",
    )


def test_a_step_that_fails_for_good_fails_the_workflow_with_its_error(world: World) -> None:
    def breaks() -> None:
        world.do("tried")
        raise ValueError("broken pipe")

    @world.jobs.workflow
    def plain() -> None:
        step(breaks)

    @world.jobs.workflow
    def caught() -> str:
        try:
            step.with_options(retries=1, backoff=0)(breaks)
        except StepFailed as failed:
            return f"{failed.step}: {failed.error} {'broken pipe' in failed.traceback}"
        return "no"

    handle = plain.enqueue()
    assert handle.status == "failed"
    with pytest.raises(JobFailed, match="breaks: ValueError: broken pipe"):
        handle.result()
    (shown,) = handle.steps()
    assert (shown.status, shown.error) == ("failed", "ValueError: broken pipe")
    assert "raise ValueError" in (shown.traceback or "")
    assert caught.enqueue().result() == "breaks: ValueError: broken pipe True"
    assert len(world.did) == 3


def test_give_up_and_retry_decide_over_the_next_try_of_a_step(world: World) -> None:
    def gives_up() -> None:
        world.do("once")
        raise GiveUp("never")

    def later() -> None:
        world.do(world.testing.clock.ms - begun)
        if len(world.did) == 1:
            raise Retry("later", delay=500)

    @world.jobs.workflow
    def runs(name: str) -> None:
        step.with_options(retries=3, backoff=1)({"gives_up": gives_up, "later": later}[name])

    begun = world.testing.clock.ms
    assert runs.enqueue("gives_up").status == "failed"
    assert world.did == ["once"]
    world.did.clear()
    handle = runs.enqueue("later")
    world.testing.turn(1000)
    assert (handle.status, world.did) == ("done", [0, 500_000])


def test_a_result_that_cannot_be_stored_fails_its_step_clearly(world: World) -> None:
    def opens() -> Any:
        world.do("ran")
        return object()

    @world.jobs.workflow
    def plain() -> None:
        step.with_options(retries=5)(opens)

    @world.jobs.workflow
    def result() -> Any:
        return object()

    error = plain.enqueue().error or ""
    assert "TypeError: the result of the step opens cannot be stored" in error
    assert "give it a type hint" in error
    assert world.did == ["ran"]
    assert "the result of result" in (result.enqueue().error or "")


def test_values_are_recorded(world: World) -> None:
    @world.jobs.workflow
    def draws() -> list[str]:
        found = [now().isoformat(), str(uuid4()), str(random())]
        step(world.do, found)
        pause(100)
        return [*found, str(len(world.did))]

    handle = draws.enqueue()
    world.testing.turn(100)
    drawn = handle.result()
    assert drawn == [*world.did[0], "1"]
    assert datetime.fromisoformat(drawn[0]).timestamp() * 1000 == world.testing.clock.ms - 100_000
    assert UUID(drawn[1]).version == 4
    assert 0 <= float(drawn[2]) < 1


def test_signals_are_kept_in_order_until_they_are_waited_for(world: World) -> None:
    @world.jobs.workflow
    def listens() -> list[Any]:
        pause(10)
        return [wait_for("a"), wait_for("b"), wait_for("a")]

    handle = listens.enqueue()
    assert handle.send("a", 1)
    assert handle.send("a", 2)
    world.testing.turn(10)
    assert handle.waits_for == "signal b"
    assert handle.send("c", 0)
    assert handle.send("b", {"x": [None]})
    assert handle.result() == [1, {"x": [None]}, 2]
    assert handle.send("a", 3) is False
    with pytest.raises(JobUnknown, match="there is no workflow nobody"):
        listens.handle("nobody").send("a")
    with pytest.raises(TypeError, match="would not come back"):
        handle.send("a", object())
    with pytest.raises(InvalidArgument, match="the name of a signal"):
        handle.send("")


def test_a_signal_is_part_of_the_transaction_that_sends_it(world: World) -> None:
    @world.jobs.workflow
    def listens() -> Any:
        return wait_for("a")

    store, handle = world.jobs.store, listens.enqueue()
    with suppress(ZeroDivisionError), store.transaction():
        handle.send("a", 1)
        raise ZeroDivisionError
    assert handle.status == "waiting"
    with store.transaction():
        handle.send("a", 2)
        listens.with_options(id="second").enqueue()
    assert handle.result() == 2
    assert listens.handle("second").status == "waiting"


def test_a_wait_ends_with_its_timeout(world: World) -> None:
    @world.jobs.workflow
    def listens(seconds: float) -> Any:
        try:
            return wait_for("a", timeout=timedelta(seconds=seconds))
        except TimeoutError as error:
            return str(error)

    handle = listens.enqueue(100)
    world.testing.turn(99)
    assert handle.status == "waiting"
    world.testing.turn(1)
    assert handle.result() == "no signal 'a' has come in time"
    assert listens.enqueue(0).result() == "no signal 'a' has come in time"
    with world.testing.held():
        early = listens.enqueue(0)
        early.send("a", 5)
    world.testing.run()
    assert early.result() == 5


def test_children_give_their_results_in_order_and_at_most_so_many_run(world: World) -> None:
    running = set[int]()

    @world.jobs.task
    def work(n: int) -> int:
        world.do(n)
        return n * 10

    @world.jobs.workflow
    def fans() -> list[int]:
        def begin() -> Iterator[Any]:
            for n in range(5):
                running.add(n)
                yield work.with_options(delay=10 - n).start(n)

        return list(gather(begin(), limit=2))

    handle = fans.enqueue()
    assert running == {0, 1}
    assert handle.waits_for == "2 children"
    world.testing.turn(100)
    assert handle.result() == [0, 10, 20, 30, 40]
    assert sorted(world.did) == [0, 1, 2, 3, 4]


def test_failures_of_children_are_raised_or_collected(world: World) -> None:
    @world.jobs.task
    def work(n: int) -> int:
        if n == 1:
            raise ValueError("odd")
        return n

    @world.jobs.workflow
    def raises() -> list[int]:
        return list(gather([work.start(0), work.with_options(delay=50).start(2), work.start(1)]))

    @world.jobs.workflow
    def collects() -> list[str]:
        found = gather([work.start(n) for n in range(3)], return_exceptions=True)
        return [str(each) for each in found]

    handle = raises.enqueue()
    with pytest.raises(JobFailed, match="work: ValueError: odd"):
        handle.result()
    assert collects.enqueue().result() == ["0", "work: ValueError: odd", "2"]


def test_the_first_of_children_is_the_same_in_each_run(world: World) -> None:
    @world.jobs.task
    def work(n: int) -> int:
        return n

    @world.jobs.workflow
    def races() -> list[int]:
        children = [work.with_options(delay=n).start(n) for n in (30, 10, 20)]
        first = first_completed(children)
        pause(100)
        return [first.result(), *gather(children)]

    handle = races.enqueue()
    world.testing.turn(500)
    assert handle.result() == [10, 30, 10, 20]


def test_a_workflow_may_be_the_child_of_another(world: World) -> None:
    @world.jobs.workflow
    def inner(n: int) -> int:
        pause(n)
        if n == 3:
            raise ValueError("three")
        return n

    @world.jobs.workflow
    def outer() -> list[str]:
        return [
            str(each) for each in gather([inner.start(5), inner.start(3)], return_exceptions=True)
        ]

    handle = outer.enqueue()
    world.testing.turn(10)
    assert handle.result() == ["5", "inner: ValueError: three"]


def test_cancelling_reaches_children_and_their_children(world: World) -> None:
    @world.jobs.task
    def work() -> None:
        world.do("worked")

    @world.jobs.workflow
    def inner() -> None:
        gather([work.with_options(delay=60).start()])

    @world.jobs.workflow
    def outer() -> None:
        gather([inner.start(), work.with_options(delay=60).start()])

    handle = outer.enqueue()
    ids = [handle, *map(world.jobs.handle, handle_children(world, handle.id))]
    assert handle.cancel()
    assert [each.status for each in ids] == ["cancelled"] * 3
    with pytest.raises(JobCancelled):
        handle.result()
    assert handle.cancel() is False
    assert handle.send("x") is False
    world.testing.turn(1000)
    assert world.did == []


def handle_children(world: World, workflow_id: str) -> list[str]:
    entries = world.jobs.store.stream(f"jobs:history:{workflow_id}").range()
    return [each.fields[b"child"].decode() for each in entries if each.fields[b"event"] == b"child"]


def test_a_worker_cancels_the_children_if_the_one_who_cancelled_has_died(world: World) -> None:
    from kvstream.jobs.history.events import CANCELLED
    from kvstream.jobs.history.log import WorkflowLog
    from kvstream.jobs.workflows.run import end_workflow

    @world.jobs.task
    def work() -> None:
        world.do("worked")

    @world.jobs.workflow
    def outer() -> None:
        gather([work.with_options(delay=60).start()])

    handle = outer.enqueue()
    (child,) = handle_children(world, handle.id)
    log = WorkflowLog(world.jobs, handle.id)
    with world.jobs.store.transaction():
        state = log.state()
        assert state is not None
        end_workflow(log, state, CANCELLED, {})
        log.wake(state)
    assert world.jobs.handle(child).status == "cancelled"


def test_a_child_that_is_cancelled_tells_its_parent(world: World) -> None:
    @world.jobs.task
    def work() -> None: ...

    @world.jobs.workflow
    def outer() -> str:
        return str(gather([work.with_options(delay=60).start()], return_exceptions=True)[0])

    handle = outer.enqueue()
    (child,) = handle_children(world, handle.id)
    assert world.jobs.handle(child).cancel()
    assert handle.result() == "work: cancelled"


def test_the_timeout_of_a_workflow_counts_its_waits(world: World) -> None:
    @world.jobs.workflow(timeout=100)
    def waits() -> str:
        wait_for("never")
        return "no"

    handle = waits.enqueue()
    world.testing.turn(99)
    assert handle.status == "waiting"
    world.testing.turn(1)
    with pytest.raises(JobFailed, match=r"JobTimeout: waits has taken more than 100 s"):
        handle.result()


def test_a_step_that_hangs_fails_at_its_timeout_and_the_workflow_goes_on(world: World) -> None:
    import threading

    ends = threading.Event()

    @world.jobs.workflow
    def hangs() -> str:
        try:
            step.with_options(timeout=0.05)(ends.wait)
        except StepFailed as failed:
            return failed.error
        return "no"

    assert hangs.enqueue().result() == "JobTimeout: wait has run for more than 0.05 s"
    ends.set()


def test_a_step_that_outlives_the_workflow_ends_it_with_its_timeout(world: World) -> None:
    import threading

    ends = threading.Event()

    @world.jobs.workflow(timeout=0.05)
    def hangs() -> None:
        try:
            step.with_options(timeout=60)(ends.wait)
        except StepFailed:
            world.do("caught")

    @world.jobs.workflow(timeout=0.05)
    async def hangs_async() -> None:
        await step(asyncio.sleep, 600)

    for each in (hangs, hangs_async):
        with pytest.raises(JobFailed, match="JobTimeout"):
            each.enqueue().result()
    ends.set()
    assert world.did == []


def test_the_history_is_bounded(world: World) -> None:
    @world.jobs.workflow(max_events=20)
    def loops() -> None:
        while True:
            step(world.do, 1)

    @world.jobs.workflow(max_events=5)
    def listens() -> None:
        wait_for("never")

    handle = loops.enqueue()
    assert "the history of loops has 20 events, and may have 20" in (handle.error or "")
    assert len(world.did) == 19
    flooded = listens.enqueue()
    for _ in range(3):
        flooded.send("x")
    with pytest.raises(InvalidArgument, match="is full: it has 5 events"):
        flooded.send("x")


def test_published_values_are_readable_and_streamed(world: World) -> None:
    def works() -> None:
        publish("within", 1)

    @world.jobs.workflow
    def shows() -> None:
        for n in range(3):
            publish("progress", n / 2)
            pause(1)
        step(works)

    handle = shows.enqueue()
    world.testing.turn(1)
    assert handle.published() == {"progress": 0.5}
    world.testing.turn(10)
    found = [(each.name, each.value) for each in handle.updates()]
    assert found == [("progress", 0.0), ("progress", 0.5), ("progress", 1.0), ("within", 1)]
    with pytest.raises(JobUnknown):
        next(shows.handle("nobody").updates())


def test_a_transaction_in_a_step_is_done_once_with_its_result(world: World) -> None:
    def writes(n: int) -> int:
        with current_job().transaction() as store:
            store.stream("effects").add({"n": n})
            current_job().result = n + 1
        return -1

    @world.jobs.workflow
    def books() -> list[int]:
        found = [step(writes, n) for n in range(2)]
        pause(1)
        return found

    @world.jobs.workflow
    def outside() -> None:
        with current_job().transaction():
            pass

    handle = books.enqueue()
    world.testing.turn(1)
    assert handle.result() == [1, 2]
    assert len(world.jobs.store.stream("effects")) == 2
    assert "for the code of a step" in (outside.enqueue().error or "")


def test_calls_at_the_wrong_place_are_refused(world: World) -> None:
    @world.jobs.workflow
    def nests() -> None:
        step(lambda: pause(1))

    async def soon() -> None: ...

    @world.jobs.workflow
    def mixes() -> None:
        step(soon)

    assert "pause() is called within the step <lambda>" in (nests.enqueue().error or "")
    assert "soon is async: make the workflow mixes async" in (mixes.enqueue().error or "")
    for call in (lambda: pause(1), lambda: step(soon), lambda: publish("x"), now):
        with pytest.raises(LookupError, match="is for the function of a workflow"):
            call()
    with pytest.raises(InvalidArgument, match="timeout must be above 0"):
        step.with_options(timeout=0)
    with pytest.raises(InvalidArgument, match="retries must be at least 0"):
        step.with_options(retries=-1)


def test_async_workflows_await_the_same_calls(world: World) -> None:
    @world.jobs.task
    async def square(n: int) -> int:
        return n * n

    async def adds(n: int) -> int:
        await asyncio.sleep(0)
        return int(world.do(n)) + 1

    @world.jobs.workflow(timeout=1000)
    async def runs() -> list[Any]:
        found: list[Any] = [await step(adds, 1), await step.with_options(timeout=60)(adds, 2)]
        publish("at", found)
        await pause(10)
        found.append(await wait_for("a", timeout=50))
        found.append(await square.run(3))
        found += await gather(square.start(n) for n in (4, 5))
        first = await first_completed([square.start(6)])
        found.append(await first)
        found.append(now().year)
        return found

    handle = runs.enqueue()
    world.testing.turn(10)
    assert handle.waits_for == "signal a"
    handle.send("a", "signal")
    assert handle.result() == [2, 3, "signal", 9, 16, 25, 36, 2023]
    assert world.did == [1, 2]

    async def listen() -> list[Any]:
        return [each.value async for each in handle.updates()]

    assert asyncio.run(listen()) == [[2, 3]]


def test_async_steps_side_by_side_are_refused(world: World) -> None:
    async def naps() -> None:
        await asyncio.sleep(0.01)

    @world.jobs.workflow
    async def runs() -> None:
        await asyncio.gather(step(naps), step(naps))

    assert "naps is called while naps is awaited" in (runs.enqueue().error or "")


def test_a_delayed_workflow_begins_at_its_time(world: World) -> None:
    @world.jobs.workflow(timeout=10)
    def late() -> None:
        pause(5)

    handle = late.with_options(delay=100).enqueue()
    assert handle.status == "scheduled"
    handle.send("early")
    world.testing.turn(99)
    assert handle.status == "scheduled"
    world.testing.turn(10)
    assert handle.status == "done"


def test_a_schedule_begins_a_workflow(world: World) -> None:
    @world.jobs.cron("0 3 * * *")
    @world.jobs.workflow
    def nightly() -> None:
        step(world.do, "night")
        pause(60)

    world.jobs.declare()
    world.testing.turn(2 * DAY)
    assert world.did == ["night", "night"]


def test_middleware_sees_that_a_run_waits(world: World) -> None:
    seen = list[str]()

    class Notes(Middleware):
        def enqueued(self, job: Any) -> None:
            job.headers["from"] = "test"

        def before(self, job: Any) -> None:
            seen.append(f"before {job.headers}")

        def waits(self, job: Any) -> None:
            seen.append("waits")

        def after(self, job: Any, result: Any) -> None:
            seen.append(f"after {result}")

    world.jobs.middleware = (Notes(),)

    @world.jobs.workflow
    def runs() -> int:
        pause(1)
        return 5

    runs.enqueue()
    world.testing.turn(1)
    before = "before {'from': 'test'}"
    assert seen == [before, "waits", before, "after 5"]


def test_the_messages_of_a_workflow_that_waits_are_gone(world: World) -> None:
    @world.jobs.workflow
    def sleeps() -> None:
        wait_for("a")

    for _ in range(20):
        sleeps.enqueue()
    stream = world.jobs.store.stream("jobs")
    assert (len(stream), stream.delayed_count()) == (0, 0)
    assert stream.group("workers").pending().count == 0


def test_a_timer_of_an_earlier_wait_is_cancelled(world: World) -> None:
    @world.jobs.workflow
    def listens() -> None:
        for _ in range(3):
            wait_for("a", timeout=1000)

    handle, stream = listens.enqueue(), world.jobs.store.stream("jobs")
    for left in (1, 1, 0):
        handle.send("a")
        assert stream.delayed_count() == left
    assert handle.status == "done"


def test_msgpack_works_too(world: World) -> None:
    jobs = Jobs("nowhere", format="msgpack")

    @jobs.task
    def child(data: bytes) -> bytes:
        return data

    @jobs.workflow
    def runs(data: bytes) -> bytes:
        def reads() -> bytes:
            return data + b"\xff"

        found = step(reads)
        assert wait_for("a") == [1]
        return bytes(child.run(found))

    with jobs.test():
        handle = runs.enqueue(b"\x00")
        handle.send("a", [1])
        assert handle.result() == b"\x00\xff"
