"""The engine's waiters under an event loop, as a server uses them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kvstream import NoGroup, Store, StoreClosed, StreamID
from kvstream.engine.waiters import Outcome, Waiter
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.operations import readgroup
from kvstream.operations.reads import read as reads
from tests.engine.waiting import add, ms_of, waiting
from tests.opening import Stores

NAME = qualified(0, b"s")
Attempt = Callable[[Txn], Any]


def new_entries(after_ms: int = 0) -> Attempt:
    wanted = [(NAME, StreamID(after_ms, 0))]
    return lambda txn: reads.read(txn, reads.StreamsRead(wanted)) or None


def entries_of_group(consumer: bytes) -> Attempt:
    wanted = [(NAME, readgroup.NEW)]
    return lambda txn: readgroup.read_group(txn, b"g", consumer, wanted, 1) or None


async def submit(store: Store, attempt: Attempt) -> tuple[Any, Waiter | None, asyncio.Future[Any]]:
    """Submit as a server does: a future receives the outcome from any thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Outcome] = loop.create_future()

    def set_outcome(outcome: Outcome) -> None:
        if not future.done():
            future.set_result(outcome)

    def deliver_outcome(outcome: Outcome) -> None:
        loop.call_soon_threadsafe(set_outcome, outcome)

    reply, waiter = store.engine.submit([NAME], attempt, deliver_outcome)
    return reply, waiter, future


async def read(store: Store, attempt: Attempt, timeout_s: float = 10) -> list[int]:
    """Read, waiting if needed; return the milliseconds of the IDs, [] after the timeout."""
    reply, waiter, future = await submit(store, attempt)
    if waiter is not None:
        try:
            reply = (await asyncio.wait_for(asyncio.shield(future), timeout_s)).get()
        except TimeoutError:
            reply = [] if store.engine.cancel(waiter) else (await future).get()
        except asyncio.CancelledError:
            store.engine.cancel(waiter)
            raise
    return [ms for _, entries in reply for ms in ms_of(entries)]


async def until_waiting(store: Store, count: int) -> None:
    while waiting(store) < count:
        await asyncio.sleep(0.001)


def test_an_immediate_reply_needs_no_waiter(store: Store) -> None:
    add(store, b"s", "1-0")
    assert asyncio.run(read(store, new_entries())) == [1]
    assert waiting(store) == 0


def test_a_hundred_tasks_are_served_by_one_add_of_another_thread(store: Store) -> None:
    async def main() -> list[list[int]]:
        tasks = [asyncio.create_task(read(store, new_entries())) for _ in range(100)]
        await until_waiting(store, 100)
        await asyncio.to_thread(add, store, b"s", "1-0")
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [[1]] * 100
    assert waiting(store) == 0


def test_an_add_of_the_loop_s_own_thread_serves_its_tasks(store: Store) -> None:
    async def main() -> list[int]:
        task = asyncio.create_task(read(store, new_entries()))
        await until_waiting(store, 1)
        add(store, b"s", "1-0")
        assert not task.done()  # the loop delivers the reply, never the add itself
        return await task

    assert asyncio.run(main()) == [1]


def test_tasks_of_a_group_are_served_in_order(store: Store) -> None:
    store.stream("s").create_group("g")

    async def main() -> list[list[int]]:
        tasks = []
        for consumer in (b"c", b"a", b"b"):
            tasks.append(asyncio.create_task(read(store, entries_of_group(consumer))))
            await until_waiting(store, len(tasks))
        await asyncio.to_thread(add, store, b"s", "1-0", "2-0", "3-0")
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [[1], [2], [3]]
    assert store.stream("s").group("g").pending().consumers == {b"a": 1, b"b": 1, b"c": 1}


def test_a_task_after_its_timeout_leaves_no_waiter(store: Store) -> None:
    assert asyncio.run(read(store, new_entries(), timeout_s=0.01)) == []
    assert waiting(store) == 0


def test_a_cancelled_task_takes_no_entry(store: Store) -> None:
    store.stream("s").create_group("g")

    async def main() -> list[int]:
        gone = asyncio.create_task(read(store, entries_of_group(b"gone")))
        await until_waiting(store, 1)
        stays = asyncio.create_task(read(store, entries_of_group(b"stays")))
        await until_waiting(store, 2)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        await asyncio.to_thread(add, store, b"s", "1-0")
        return await stays

    assert asyncio.run(main()) == [1]
    assert store.stream("s").group("g").pending().consumers == {b"stays": 1}


def test_cancelling_a_served_waiter_returns_false_and_keeps_its_reply(store: Store) -> None:
    async def main() -> list[int]:
        _, waiter, future = await submit(store, new_entries())
        assert waiter is not None
        add(store, b"s", "1-0")
        assert not store.engine.cancel(waiter)
        ((_, entries),) = (await future).get()
        return ms_of(entries)

    assert asyncio.run(main()) == [1]


def test_an_error_is_raised_in_the_waiting_task(store: Store) -> None:
    store.stream("s").create_group("g")

    async def main() -> None:
        task = asyncio.create_task(read(store, entries_of_group(b"c")))
        await until_waiting(store, 1)
        await asyncio.to_thread(store.delete, "s")
        await task

    with pytest.raises(NoGroup):
        asyncio.run(main())


def test_closing_the_store_raises_in_waiting_tasks(open_store: Stores) -> None:
    store = open_store("own")

    async def main() -> None:
        task = asyncio.create_task(read(store, new_entries()))
        await until_waiting(store, 1)
        await asyncio.to_thread(store.close)
        await task

    with pytest.raises(StoreClosed):
        asyncio.run(main())


@pytest.mark.parametrize("durability", ["always", "everysec"])
def test_tasks_wait_at_every_level_of_durability(open_store: Stores, durability: str) -> None:
    store = open_store("own", durability=durability)

    async def main() -> list[list[int]]:
        tasks = [asyncio.create_task(read(store, new_entries())) for _ in range(10)]
        await until_waiting(store, 10)
        await asyncio.to_thread(add, store, b"s", "1-0")
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [[1]] * 10
