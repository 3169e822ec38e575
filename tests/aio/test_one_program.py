"""The program of tests/remote for asyncio: a directory, kvstream's server, Redis and Valkey."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio

import kvstream
from kvstream import (
    InvalidArgument,
    StoreClosed,
)
from kvstream.aio import AsyncStore
from kvstream.engine import lease_renewal
from tests.aio.loops import patient, until
from tests.patience import PATIENCE_S

TASKS = 40

Program = Callable[[AsyncStore], Awaitable[None]]


def run(place: str, program: Program, **options: Any) -> None:
    async def main() -> None:
        async with kvstream.aio.open(place, **options) as store:
            await program(store)

    asyncio.run(main())


async def work(store: AsyncStore, name: str) -> None:
    """Take tasks, and move the results in transactions."""
    group = store.stream("tasks").group("workers")
    worker, done = group.consumer(name), store.stream("done")
    while True:
        for entry in await worker.read(3, block=PATIENCE_S):
            if entry.fields[b"n"] == b"stop":
                await group.ack(entry)
                return
            async with store.transaction():
                await done.add({"n": entry.fields[b"n"], "by": name})
                await group.ack(entry)


def test_a_producer_and_two_workers(place: str) -> None:
    async def program(store: AsyncStore) -> None:
        tasks, done = store.stream("tasks"), store.stream("done")
        await tasks.create_group("workers", "0", exist_ok=True)
        workers = [asyncio.create_task(work(store, name)) for name in ("ann", "bob")]
        for n in range(TASKS):
            await tasks.add({"n": n})
        async with asyncio.timeout(PATIENCE_S):
            while await done.length() < TASKS:
                await done.read("+", block=0.1)
        while not all(worker.done() for worker in workers):
            await tasks.add({"n": "stop"})
            await asyncio.wait(workers, timeout=0.1)
        await asyncio.gather(*workers)
        assert sorted([int(entry.fields[b"n"]) async for entry in done]) == list(range(TASKS))

    run(place, program)


def test_blocked_reads_are_woken(place: str) -> None:
    async def program(store: AsyncStore) -> None:
        stream = store.stream("s")
        group = await stream.create_group("g")
        reads: list[Any] = [
            asyncio.create_task(stream.read(block=0)),
            asyncio.create_task(group.consumer("c").read(block=0)),
            asyncio.create_task(store.read({"s": "$", "t": "$"}, block=0)),
        ]
        async with asyncio.timeout(PATIENCE_S):
            while not all(read.done() for read in reads):
                await stream.add({"a": 1})
                await asyncio.wait(reads, timeout=0.05)
        got = [await reads[0], await reads[1], (await reads[2])[b"s"]]
        assert [entries[0].fields for entries in got] == [{b"a": b"1"}] * 3
        assert await stream.read(block=0.01) == []
        await stream.add({"a": 2})
        (new,) = (await store.read_group("g", "c", {"s": ">"}))[b"s"][-1:]
        assert new.fields == {b"a": b"2"}

    run(place, program)


def test_iterators_yield_entries_that_are_added_later(place: str) -> None:
    async def program(store: AsyncStore) -> None:
        stream = store.stream("s")
        first = await stream.add({"n": 1})
        worker = (await stream.create_group("g", "0")).consumer("c")
        await worker.read()
        tail, heard = stream.tail("0"), worker.listen(poll=PATIENCE_S)
        assert (await anext(tail)).id == (await anext(heard)).id == first
        waiting: list[Any] = [asyncio.ensure_future(anext(each)) for each in (tail, heard)]
        second = await stream.add({"n": 2})
        assert [entry.id for entry in await patient(asyncio.gather(*waiting))] == [second] * 2
        assert [entry.id async for entry in stream.scan(page=1)] == [first, second]

    run(place, program)


def test_listen_ends_when_the_stop_event_is_set(place: str) -> None:
    async def program(store: AsyncStore) -> None:
        stream, stop = store.stream("s"), asyncio.Event()
        ids = await stream.add_many({"n": n} for n in range(3))
        group = await stream.create_group("g", "0")
        heard = []
        async for entry in group.consumer("c").listen(stop=stop, poll=0.01):
            heard.append(entry.id)
            stop.set()
        assert heard == ids[:1]
        stop.clear()
        async for entry in group.consumer("c").listen(stop=stop, poll=0.01):
            heard.append(entry.id)
            await group.ack(entry)
            if entry.id == ids[-1]:
                asyncio.get_running_loop().call_later(0.02, stop.set)
        assert heard == [ids[0], *ids]

    run(place, program)


def test_new_features_work_or_the_error_names_the_version(place: str) -> None:
    async def program(store: AsyncStore) -> None:
        stream = store.stream("s")
        ids = await stream.add_many({"n": n} for n in range(3))
        group = await stream.create_group("g", "0")
        await group.consumer("c").read(2)
        read = asyncio.create_task(group.consumer("d").read(1, block=PATIENCE_S))
        assert (await read)[0].id == ids[2]
        read = asyncio.create_task(group.consumer("d").read(1, block=PATIENCE_S))
        await asyncio.sleep(0.05)
        assert await group.nack(ids[0]) == 1
        assert [(each.id, each.deliveries) for each in await read] == [(ids[0], 1)]
        assert await group.consumer("d").read() == []

    run(place, program)


def test_listen_extends_the_leases_of_its_messages(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_renewal, "RENEW_S", 0.05)

    async def program(store: AsyncStore) -> None:
        stream = store.stream("s")
        ids = await stream.add_many({"n": n} for n in range(3))
        group = await stream.create_group("g", "0")
        before, threads = asyncio.all_tasks(), threading.active_count()
        heard = group.consumer("c").listen()
        async with asyncio.timeout(PATIENCE_S):
            assert (await anext(heard)).id == ids[0]
            begun = time.monotonic()
            while True:
                idle = max(row.idle_ms or 0 for row in await group.pending_range())
                if idle < (time.monotonic() - begun - 0.1) * 1000:
                    break
                await asyncio.sleep(0.01)
            assert len(await group.claim("d", ids[1], ids[2])) == 2
            await asyncio.sleep(0.2)  # a renewal; a late one is made before the next entry
            last = await stream.add({"n": 4})
            assert (await anext(heard)).id == last
            assert threading.active_count() == threads
            await heard.aclose()  # type: ignore[attr-defined]
            while asyncio.all_tasks() != before:
                await asyncio.sleep(0.01)

    run(place, program)


def test_a_call_can_be_cancelled_at_any_moment(place: str) -> None:
    async def program(store: AsyncStore) -> None:
        for turns in range(60):  # each cancelled call closes its connection: the next makes one
            call = asyncio.create_task(store.stream("s").add({"n": turns}))
            for _ in range(turns):
                await asyncio.sleep(0)
            if call.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await call
            else:
                assert call.result()
        assert await patient(store.stream("s").add({"n": "last"}))

    run(place, program)


def test_a_timeout_of_redis_py_does_not_end_a_blocked_read(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = redis.asyncio.connection.AbstractConnection.__init__

    def hasty(connection: Any, **settings: Any) -> None:
        connect(connection, **({"socket_timeout": 0.1} | settings))  # 5 seconds in version 8

    monkeypatch.setattr(redis.asyncio.connection.AbstractConnection, "__init__", hasty)

    async def program(store: AsyncStore) -> None:
        assert await store.stream("s").read(block=0.5) == []

    run(place, program)


def test_closing_ends_blocked_reads(place: str) -> None:
    async def program(store: AsyncStore) -> None:
        stream = store.stream("s")
        group = await stream.create_group("g")
        reads = [
            asyncio.create_task(stream.read(block=0)),
            asyncio.create_task(group.consumer("c").read(block=0)),
        ]
        await until(lambda: all(task.get_coro().cr_await for task in reads))  # type: ignore[union-attr]
        await asyncio.sleep(0.05)
        await store.close()
        ends = await patient(asyncio.gather(*reads, return_exceptions=True))
        assert [type(each) for each in ends] == [StoreClosed] * 2

    run(place, program)


async def _add_and_fail(store: AsyncStore) -> None:
    async with store.transaction():
        await store.stream("s").add({"n": 1})
        raise KeyError


def test_a_transaction_is_all_or_nothing(place: str) -> None:
    async def program(store: AsyncStore) -> None:
        stream = store.stream("s")
        with pytest.raises(KeyError):
            await _add_and_fail(store)
        assert await stream.length() == 0
        async with store.transaction():
            await stream.add({"n": 1})
            await store.stream("t").add({"n": 2})
        assert (await stream.length(), await store.stream("t").length()) == (1, 1)
        with pytest.raises(InvalidArgument, match="open in this t"):
            async with store.transaction(), store.transaction():
                pass

    run(place, program)


def test_a_task_started_in_a_transaction_is_refused(place: str) -> None:
    async def program(store: AsyncStore) -> None:
        stream = store.stream("s")
        async with store.transaction():
            with pytest.raises(InvalidArgument, match="is of one task"):
                await asyncio.create_task(stream.add({"n": 1}))
            late = asyncio.create_task(asyncio.sleep(0, stream))
        assert await (await late).length() == 0
        await asyncio.create_task(stream.add({"n": 1}))
        assert await stream.length() == 1

    run(place, program)
