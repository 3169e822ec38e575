"""taskiq on a store: its broker, results and schedules, and workers that are killed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from taskiq import (
    AckableMessage,
    BrokerMessage,
    Context,
    ScheduledTask,
    TaskiqDepends,
    TaskiqResult,
)
from taskiq.api import run_receiver_task
from taskiq.depends.progress_tracker import TaskProgress, TaskState
from taskiq.exceptions import ResultGetError

from kvstream.adapters.taskiq import (
    KVStreamBroker,
    KVStreamResultBackend,
    KVStreamScheduleSource,
)
from tests.adapters.conftest import (
    LEASE_S,
    Start,
    all_are_done_though_workers_are_killed,
    open_place,
    options_of,
    stand_still,
)

TIMEOUT_S = 60.0


def broker_of(place: str, **options: Any) -> KVStreamBroker:
    return KVStreamBroker(place, lease=LEASE_S, **options_of(place)).with_result_backend(
        KVStreamResultBackend(place, **options_of(place), **options)
    )


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in an event loop of its own."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


@asynccontextmanager
async def working(broker: KVStreamBroker) -> AsyncIterator[None]:
    """Run a broker's tasks in this process."""
    await broker.startup()
    receiver = asyncio.create_task(run_receiver_task(broker, max_async_tasks=10))
    try:
        yield
    finally:
        receiver.cancel()
        with suppress(asyncio.CancelledError):
            await receiver
        await broker.shutdown()


def message(n: int, **labels: Any) -> BrokerMessage:
    return BrokerMessage(task_id=str(n), task_name="t", message=b"%d" % n, labels=labels)


async def next_of(broker: KVStreamBroker) -> AckableMessage:
    async for each in broker.listen():
        assert isinstance(each, AckableMessage)
        return each
    raise AssertionError


async def acknowledged(found: AckableMessage) -> bytes:
    done = found.ack()
    assert done is not None
    await done
    return found.data


@in_loop
async def test_tasks_run_and_return_results(place: str) -> None:
    broker = broker_of(place)

    @broker.task
    async def add(a: int, b: int) -> int:
        return a + b

    @broker.task
    def fail() -> None:
        raise ValueError("as it should")

    async with working(broker):
        sums = [await add.kiq(n, 1) for n in range(20)]
        results = [await each.wait_result(timeout=TIMEOUT_S) for each in sums]
        failed = await (await fail.kiq()).wait_result(timeout=TIMEOUT_S)
    assert [result.return_value for result in results] == [n + 1 for n in range(20)]
    assert isinstance(failed.error, ValueError)


@in_loop
async def test_a_task_may_be_requeued(place: str) -> None:
    broker = broker_of(place)
    tries = []

    @broker.task
    async def twice(context: Context = TaskiqDepends()) -> int:  # noqa: B008
        tries.append(1)
        if len(tries) == 1:
            await context.requeue()
        return len(tries)

    async with working(broker):
        result = await (await twice.kiq()).wait_result(timeout=TIMEOUT_S)
    assert result.return_value == 2


@in_loop
async def test_a_task_is_redelivered_unless_it_is_acknowledged(place: str) -> None:
    first, second = broker_of(place), broker_of(place)
    for broker in (first, second):
        await broker.startup()
    for n, priority in enumerate((0, 5, 1)):
        await first.kick(message(n, priority=priority))
    assert await acknowledged(await next_of(first)) == b"1"
    assert (await next_of(first)).data == b"2"
    await first.shutdown()  # gives back what was not acknowledged
    assert [await acknowledged(await next_of(second)) for _ in range(2)] == [b"2", b"0"]
    assert await second.place.call(second.tasks.size, "taskiq") == 0
    await second.shutdown()


@in_loop
async def test_the_store_delays_a_task(place: str) -> None:
    broker = broker_of(place)
    await broker.kick(message(1, delay="0.2"))
    await broker.kick(message(2))
    assert [await acknowledged(await next_of(broker)) for _ in range(2)] == [b"2", b"1"]
    await broker.shutdown()


@in_loop
async def test_a_long_task_stays_with_its_worker(place: str) -> None:
    slow, other = broker_of(place), broker_of(place)
    await slow.kick(message(1))
    await next_of(slow)
    listening = asyncio.create_task(next_of(other))
    await asyncio.sleep(1.5 * LEASE_S)
    assert not listening.done()
    listening.cancel()
    for broker in (slow, other):
        await broker.shutdown()


@in_loop
async def test_a_late_ack_leaves_a_task_with_its_new_worker(place: str) -> None:
    late, other = broker_of(place), broker_of(place)
    await late.kick(message(1))
    found = await next_of(late)
    stand_still(late.tasks)
    again = await next_of(other)
    await acknowledged(found)

    def pending() -> int:
        return other.place.store.stream("taskiq").group("workers").pending().count

    assert await other.place.call(pending) == 1
    await acknowledged(again)
    assert await other.place.call(pending) == 0
    for broker in (late, other):
        await broker.shutdown()


@in_loop
async def test_results_are_kept_or_read_once(place: str) -> None:
    broker = broker_of(place, keep_results=False)

    @broker.task
    async def one() -> int:
        return 1

    async with working(broker):
        task = await one.kiq()
        assert (await task.wait_result(timeout=TIMEOUT_S)).return_value == 1
        assert not await task.is_ready()
        with pytest.raises(ResultGetError):
            await broker.result_backend.get_result(task.task_id)
        progress = TaskProgress[Any](state=TaskState.STARTED, meta={"done": 3})
        await broker.result_backend.set_progress("id", progress)
        assert await broker.result_backend.get_progress("id") == progress
        assert await broker.result_backend.get_progress("none") is None


@pytest.mark.parametrize("shared", [True, False])
def test_a_store_outlives_the_loop_that_opened_it(tmp_path: Path, shared: bool) -> None:
    backend = KVStreamResultBackend(tmp_path / "store", shared=shared)
    result: TaskiqResult[Any] = TaskiqResult(is_err=False, return_value=7, execution_time=0.0)
    asyncio.run(backend.set_result("one", result))
    assert asyncio.run(backend.get_result("one")).return_value == 7
    asyncio.run(backend.shutdown())


@in_loop
async def test_schedules_are_kept_replaced_and_deleted(place: str) -> None:
    def schedule(schedule_id: str, **when: Any) -> ScheduledTask:
        return ScheduledTask(
            task_name="t", labels={}, args=[1], kwargs={}, schedule_id=schedule_id, **when
        )

    source = KVStreamScheduleSource(place, **options_of(place))
    await source.startup()
    once = schedule("once", time=datetime(2030, 1, 1, tzinfo=UTC))
    for each in (schedule("a", cron="* * * * *"), once, schedule("a", cron="0 3 * * *")):
        await source.add_schedule(each)
    with open_place(place) as store:  # entries of another program
        store.stream("taskiq:schedules").add({"id": "b", "schedule": "[" * 100_000})
        store.stream("taskiq:schedules").add({"id": "c"})
    found = {each.schedule_id: each for each in await source.get_schedules()}
    assert (found["a"].cron, found["once"].time) == ("0 3 * * *", once.time)
    await source.post_send(found["a"])
    await source.post_send(once)
    assert [each.schedule_id for each in await source.get_schedules()] == ["a"]
    await source.delete_schedule("a")
    assert await source.get_schedules() == []
    await source.shutdown()


def test_killed_workers_lose_no_task(place: str, start: Start) -> None:
    words = ("worker", "tests.adapters.taskiq_app:broker", "--workers", "1")
    workers = start("taskiq", *words, "--log-level", "ERROR", "--max-async-tasks", "2")
    broker, loop = broker_of(place), asyncio.new_event_loop()

    @broker.task(task_name="note")
    async def note(n: int) -> None: ...

    all_are_done_though_workers_are_killed(
        place, lambda n: loop.run_until_complete(note.kiq(n)), workers
    )
    loop.run_until_complete(broker.shutdown())
    loop.close()
