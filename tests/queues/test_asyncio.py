"""Queues for asyncio on every place."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import kvstream
from kvstream import InvalidArgument, LeaseLost, LeaseOutcome
from kvstream.aio import AsyncMessage, AsyncQueue, AsyncStore
from tests.aio.loops import patient
from tests.patience import PATIENCE_S

SHORT_S = 0.15
HELD_S = 0.8
Program = Callable[[AsyncStore], Awaitable[None]]


def run(place: str, program: Program) -> None:
    async def main() -> None:
        async with kvstream.aio.open(place) as store:
            await patient(program(store))

    asyncio.run(main())


def two(store: AsyncStore, **rules: Any) -> tuple[AsyncQueue, AsyncQueue]:
    names = ("ann", "bob")
    ann, bob = (AsyncQueue(store, "q", consumer=name, **rules) for name in names)
    return ann, bob


async def one(queue: AsyncQueue, block: float | None = None) -> AsyncMessage:
    (message,) = await queue.get(block=block)
    return message


def test_messages_are_leased_settled_and_redriven(place: str) -> None:
    async def program(store: AsyncStore) -> None:
        ann, bob = two(store, max_deliveries=2)
        ids = await ann.put_many([{"n": n} for n in range(4)])
        found = await ann.get(3)
        assert [message.id for message in found] == ids[:3]
        with pytest.raises(InvalidArgument, match=r"is not a message: put a \* before the list"):
            await ann.ack(found)  # type: ignore[arg-type]
        assert (found[0].deliveries, found[0].consumer, found[0].key) == (1, b"ann", b"q")
        assert (found[0].fields, found[0].token) == ({b"n": b"0"}, (ids[0], 1))
        assert 0 <= found[0].age < PATIENCE_S
        await found[0].ack()
        await found[1].nack()
        await found[2].nack(fatal=True, error=ValueError("no"))
        assert await ann.ack(*found) == [LeaseOutcome.NOT_PENDING, -1, 0]
        again = await one(bob)
        assert (again.id, again.deliveries) == (ids[1], 2)
        assert await bob.extend(again) == [1]
        assert await bob.nack(again, error="no") == [1]
        assert [letter.reason for letter in await bob.dead()] == ["fatal", "max-deliveries"]
        with pytest.raises(LeaseLost):
            await again.extend()
        await ann.pause()
        assert await bob.get() == []
        await bob.resume()
        info = await bob.info()
        assert (info.ready, info.leased, info.dead) == (1, 0, 2)
        assert (await (await ann.dead_stream()).length()) == 2
        assert (await ann.redrive()).moved == 2
        assert (await ann.groups()[0].policy()) == (
            await ann.streams()[0].group("workers").policy()
        )
        assert await ann.purge() == 3

    run(place, program)


def test_a_blocked_get_is_woken_by_a_put_a_retry_and_the_end_of_a_lease(place: str) -> None:
    async def program(store: AsyncStore) -> None:
        ann, bob = two(store, lease=SHORT_S)
        waiting = asyncio.create_task(one(bob, PATIENCE_S))
        await asyncio.sleep(0)
        await ann.put({"n": 1})
        message = await waiting
        await message.nack(delay=SHORT_S)
        again = await one(ann, PATIENCE_S)
        assert (again.id, again.deliveries) == (message.id, 2)
        third = await one(bob, PATIENCE_S)
        assert (third.id, third.deliveries) == (message.id, 3)
        ticket = await ann.put({"n": 2}, delay=60)
        assert await ann.cancel(ticket) == 1

    run(place, program)


def test_listening_keeps_leases_and_ends_when_it_is_to_stop(place: str) -> None:
    async def program(store: AsyncStore) -> None:
        ann, bob = two(store, lease=HELD_S)
        await ann.put_many([{"n": n} for n in range(3)])
        stop, heard = asyncio.Event(), []
        async for message in ann.listen(2, stop=stop, poll=0.01):
            heard.append(message.fields[b"n"])
            if len(heard) == 1:
                assert [each.fields[b"n"] for each in await bob.get(5)] == [b"2"]
                assert await bob.ack(*await bob.get(5, block=2 * HELD_S)) == [1]
            await message.ack()
            if len(heard) == 2:
                stop.set()
        assert heard == [b"0", b"1"]
        assert (await bob.info()).leased == 0

    run(place, program)


def test_a_task_that_leaves_a_loop_gives_back_what_it_has_not_seen(place: str) -> None:
    async def program(store: AsyncStore) -> None:
        ann, bob = two(store)
        await ann.put_many([{"n": n} for n in range(3)])
        heard = ann.listen(3)
        async for message in heard:
            await message.ack()
            break
        await heard.aclose()  # type: ignore[attr-defined]
        found = await bob.get(5)
        assert [(each.fields[b"n"], each.deliveries) for each in found] == [(b"1", 1), (b"2", 1)]

    run(place, program)


def test_a_transaction_acknowledges_with_what_was_added_or_undoes_all(place: str) -> None:
    async def program(store: AsyncStore) -> None:
        ann, bob = two(store)
        await ann.put_many([{"n": 1}, {"n": 2}])
        first, second = await ann.get(2)
        async with first.transaction() as same:
            assert same is store
            await store.stream("done").add(first.fields)
        await second.nack()
        await one(bob)

        async def late() -> None:
            async with second.transaction():
                await store.stream("done").add(second.fields)

        with pytest.raises(LeaseLost):
            await late()
        assert await store.stream("done").length() == 1

    run(place, program)


def test_several_queues_are_read_at_once(place: str) -> None:
    async def program(store: AsyncStore) -> None:
        queues = [AsyncQueue(store, name, consumer="ann") for name in ("a", "b")]
        with pytest.raises(InvalidArgument, match="at least one queue"):
            await kvstream.aio.take([])
        assert await kvstream.aio.take(queues) == []
        waiting = asyncio.create_task(kvstream.aio.take(queues, 2, block=PATIENCE_S))
        await asyncio.sleep(0)
        await queues[1].put({"n": 1})
        (message,) = await waiting
        assert message.queue is queues[1]
        await message.ack()

    run(place, program)
