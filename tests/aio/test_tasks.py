"""Many tasks on one store: blocked, cancelled and in transactions, while the event loop goes on."""

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kvstream
from kvstream import InvalidArgument, Store, StoreClosed
from kvstream.aio import AsyncStore
from kvstream.aio.engines import LoopEngine
from kvstream.storage.database import Database
from tests.aio.loops import patient, until
from tests.patience import PATIENCE_S

Main = Callable[[], Coroutine[Any, Any, None]]


def by_asyncio(main: Main) -> None:
    asyncio.run(main())


def by_uvloop(main: Main) -> None:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def by_anyio(main: Main) -> None:
    anyio = pytest.importorskip("anyio")
    anyio.run(main)


LOOPS = [by_asyncio, by_uvloop, by_anyio]


def waiters(store: AsyncStore) -> int:
    return len(store.blocking.engine.waiters)


@pytest.mark.parametrize("run", LOOPS)
def test_a_thousand_blocked_tasks_need_no_thread(
    run: Callable[[Main], None], directory: Path
) -> None:
    async def main() -> None:
        async with kvstream.aio.open(directory, durability="no") as store:
            stream = store.stream("s")
            group = await stream.create_group("g")
            before = threading.active_count()
            tasks = [
                asyncio.create_task(group.consumer(f"c{n}").read(1, block=0)) for n in range(1000)
            ]
            await until(lambda: waiters(store) == 1000)
            assert threading.active_count() <= before
            ids = await stream.add_many({"n": n} for n in range(1000))
            got = await patient(asyncio.gather(*tasks))
            assert sorted(entries[0].id for entries in got) == ids
            assert (await group.pending()).count == 1000
            assert await store.check() == []

    run(main)


def test_an_entry_costs_one_attempt_more_than_the_readers_it_wakes(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[Any] = []
    attempt = LoopEngine._attempt

    def counted(engine: LoopEngine, waiter: Any) -> Any:
        attempts.append(waiter)
        return attempt(engine, waiter)

    monkeypatch.setattr(LoopEngine, "_attempt", counted)

    async def main() -> None:
        async with kvstream.aio.open(directory) as store:
            stream = store.stream("s")
            consumer = (await stream.create_group("g")).consumer("c")
            tasks = [asyncio.create_task(consumer.read(1, block=0)) for _ in range(50)]
            await until(lambda: waiters(store) == 50)
            attempts.clear()
            await stream.add({"n": 1})
            assert len(attempts) == 2
            assert waiters(store) == 49
            for task in tasks:
                task.cancel()
            queue = kvstream.aio.AsyncQueue(store, "q", lease=3600)
            await queue.get()
            getters = [asyncio.create_task(queue.get(block=0)) for _ in range(50)]
            await until(lambda: waiters(store) == 50)
            attempts.clear()
            await queue.put({"n": 1})
            assert len(attempts) == 2
            assert waiters(store) == 49
            for getter in getters:
                getter.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("run", LOOPS)
@pytest.mark.parametrize("seed", range(8))
def test_cancellation_loses_no_entry(
    run: Callable[[Main], None], seed: int, directory: Path
) -> None:
    """Each entry is acknowledged or pending, whenever a reading task is cancelled."""
    chance = random.Random(seed)
    durability: Any = chance.choice(["no", "always"])

    async def main() -> None:
        async with kvstream.aio.open(directory, durability=durability) as store:
            stream = store.stream("s")
            group = await stream.create_group("g", "0")
            tried: set[Any] = set()
            acked: list[Any] = []

            async def work(name: str) -> None:
                async for entry in group.consumer(name).listen(chance.choice([1, 3, 100])):
                    if chance.random() < 0.3:
                        await asyncio.sleep(0)
                    tried.add(entry.id)  # a cancelled write may have been done
                    if chance.random() < 0.3:
                        async with store.transaction():
                            await group.ack(entry)
                            await store.stream("done").add({"id": str(entry.id)})
                    else:
                        await group.ack(entry)
                    acked.append(entry.id)

            workers = [asyncio.create_task(work(f"w{n}")) for n in range(8)]
            added = []
            for n in range(150):
                added.append(await stream.add({"n": n}))
                for _ in range(chance.randrange(3)):
                    await asyncio.sleep(0)
                if chance.random() < 0.5:
                    victim = chance.randrange(8)
                    workers[victim].cancel()
                    if chance.random() < 0.5:
                        await asyncio.wait([workers[victim]])
                    workers[victim] = asyncio.create_task(work(f"w{victim}"))
            for worker in workers:
                worker.cancel()
            await asyncio.wait(workers)
            await until(lambda: waiters(store) == 0)
            pending = {row.id for row in await group.pending_range(count=1000)}
            new = {entry.id for entry in await group.consumer("last").read()}
            assert set(added) == tried | pending | new
            assert not set(acked) & (pending | new)
            assert not pending & new
            assert len(acked) == len(set(acked)) >= 10
            assert await store.check() == []

    run(main)


def test_cancellation_that_closes_the_connection_loses_no_entry(place: str) -> None:
    async def main() -> None:
        chance = random.Random(1)
        async with kvstream.aio.open(place) as store:
            stream = store.stream("s")
            group = await stream.create_group("g", "0")
            added: list[Any] = []
            for n in range(60):
                added.append(await stream.add({"n": n}))
                reads = [
                    asyncio.create_task(group.consumer("c").read(1, block=0)),
                    asyncio.create_task(stream.range()),
                ]
                for _ in range(chance.randrange(8)):
                    await asyncio.sleep(0.0002)
                for read in reads:
                    read.cancel()
                await asyncio.wait(reads)
                assert await stream.length() == n + 1  # the reply of this command, no other's
                assert [entry.id for entry in await stream.range()] == added
            pending = {row.id for row in await group.pending_range(count=100)}
            rest = {entry.id for entry in await group.consumer("d").read()}
            assert pending | rest == set(added)

    asyncio.run(main())


@pytest.mark.parametrize("run", LOOPS)
def test_what_is_added_after_a_read_was_cancelled_is_not_delivered_to_it(
    run: Callable[[Main], None], place: str
) -> None:
    async def main() -> None:
        async with kvstream.aio.open(place) as store:
            stream = store.stream("s")
            group = await stream.create_group("g")
            for n in range(20):
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await group.consumer("gone").read(block=0)
                eid = await stream.add({"n": n})  # the loop has not run since
                assert [entry.id for entry in await group.consumer("c").read()] == [eid]

    run(main)


@pytest.mark.parametrize("run", LOOPS)
def test_the_loop_goes_on_during_an_fsync(
    run: Callable[[Main], None], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, flush = threading.Event(), Database.flush_wal

    def flush_wal(database: Database) -> int:
        assert slow.wait(PATIENCE_S)
        return flush(database)

    monkeypatch.setattr(Database, "flush_wal", flush_wal)

    async def main() -> None:
        slow.set()
        async with kvstream.aio.open(directory, durability="always") as store:
            stream = store.stream("s")
            group = await stream.create_group("g", "0")
            read = asyncio.create_task(group.consumer("c").read(block=0))
            await until(lambda: waiters(store) == 1)
            slow.clear()
            adds = [asyncio.create_task(stream.add({"n": n})) for n in range(100)]
            for _ in range(20):  # the loop runs, and no task is notified too early
                await asyncio.sleep(0.001)
            assert not any(task.done() for task in [*adds, read])
            adds[50].cancel()
            slow.set()
            ends = await patient(asyncio.gather(*adds, return_exceptions=True))
            assert [type(each) for each in ends].count(kvstream.StreamID) == 99
            assert len(await patient(read)) >= 1
            assert await stream.length() == 100  # the cancelled writes were done

    run(main)


def test_a_busy_task_lets_others_run(directory: Path) -> None:
    async def main() -> None:
        async with kvstream.aio.open(directory, durability="no") as store:
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    await asyncio.sleep(0)
                    ticks += 1

            ticking = asyncio.create_task(tick())
            for n in range(1000):  # none of these waits for anything
                await store.stream("s").add({"n": n})
            assert ticks >= 10
            ticking.cancel()

    asyncio.run(main())


def test_a_transaction_may_begin_while_another_waits_for_its_fsync(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, flush = threading.Event(), Database.flush_wal

    def flush_wal(database: Database) -> int:
        assert slow.wait(PATIENCE_S)
        return flush(database)

    monkeypatch.setattr(Database, "flush_wal", flush_wal)

    async def main() -> None:
        slow.set()
        async with kvstream.aio.open(directory, durability="always") as store:
            stream, inside = store.stream("s"), asyncio.Event()
            blocked = asyncio.create_task(stream.read(block=0))
            await until(lambda: waiters(store) == 1)
            slow.clear()

            async def first() -> None:
                async with store.transaction():
                    await stream.add({"n": 1})

            async def second() -> None:
                async with store.transaction():  # begins although the first is not durable
                    await stream.add({"n": 2})
                    inside.set()
                    await asyncio.sleep(0.01)
                    await stream.add({"n": 3})

            tasks = [asyncio.create_task(first()), asyncio.create_task(second())]
            await patient(inside.wait())
            tasks[0].cancel()
            await asyncio.wait(tasks[:1])
            slow.set()
            await patient(tasks[1])
            assert await stream.length() == 3
            assert len(await patient(blocked)) >= 1

    asyncio.run(main())


def test_other_tasks_wait_for_a_transaction(directory: Path) -> None:
    async def main() -> None:
        async with kvstream.aio.open(directory) as store:
            stream = store.stream("s")
            group = await stream.create_group("g", "0")
            late = asyncio.create_task(group.consumer("l").read(block=0.02, claim_min_idle=10))
            blocked = asyncio.create_task(stream.read(block=0))
            await until(lambda: waiters(store) == 2)
            seen: list[int] = []

            async def look() -> None:
                seen.append(await stream.length())

            async def move(n: int) -> None:
                async with store.transaction():
                    await stream.add({"n": n})
                    await asyncio.sleep(0.001)
                    await stream.add({"n": n})

            moves = [asyncio.create_task(move(n)) for n in range(20)]
            looks = [asyncio.create_task(look()) for _ in range(50)]
            for n in range(0, 20, 4):
                moves[n].cancel()
            check = asyncio.create_task(store.check())
            await patient(asyncio.gather(*moves, *looks, return_exceptions=True))
            assert await check == []
            assert all(number % 2 == 0 for number in seen)
            assert await stream.length() == 30
            assert await late == [] or len(await late) >= 1
            assert len(await patient(blocked)) == 2  # woken by the commit, not by a part of it

    asyncio.run(main())


def test_the_loop_goes_on_while_a_thread_checks(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, check = threading.Event(), threading.Event(), Store.check

    def slow_check(store: Store, /, **options: Any) -> Any:
        with store.engine.hold():
            begun.set()
            assert go_on.wait(PATIENCE_S)
            return check(store, **options)

    monkeypatch.setattr("kvstream.aio.AsyncStore.check", kvstream.aio._wrap_long_call(slow_check))

    async def main() -> None:
        async with kvstream.aio.open(directory) as store:
            stream = store.stream("s")
            blocked = asyncio.create_task(stream.read(block=0))
            await until(lambda: waiters(store) == 1)
            checking = asyncio.create_task(store.check())
            await until(begun.is_set)
            add = asyncio.create_task(stream.add({"n": 1}))
            blocked.cancel()
            await asyncio.wait([blocked])
            checking.cancel()  # its thread goes on
            await asyncio.wait([checking])
            await asyncio.sleep(0.01)
            assert not add.done()
            go_on.set()
            await patient(add)
            assert waiters(store) == 0

    asyncio.run(main())


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_the_end_of_the_program_closes_the_store(
    error: type[BaseException], directory: Path
) -> None:
    async def main() -> None:
        async with kvstream.aio.open(directory) as store:
            stream = store.stream("s")
            await stream.add({"n": 1})
            tasks = [asyncio.create_task(stream.read(block=0)) for _ in range(10)]
            await until(lambda: waiters(store) == 10)
            asyncio.get_running_loop().call_soon(_raise, error)
            await asyncio.gather(*tasks)

    with pytest.raises(error):
        asyncio.run(main())
    with Store.open(directory) as store:
        assert len(store.stream("s")) == 1
        assert store.check() == []


def _raise(error: type[BaseException]) -> None:
    raise error


def test_closing_a_loop_removes_the_waiters_of_its_tasks(directory: Path) -> None:
    async def begin(stores: list[AsyncStore]) -> None:
        stores.append(await kvstream.aio.open(directory))
        stream = stores[0].stream("s")
        stores_task.append(asyncio.ensure_future(stream.read(block=0)))
        await until(lambda: waiters(stores[0]) == 1)

    stores: list[AsyncStore] = []
    stores_task: list[Awaitable[Any]] = []
    asyncio.run(begin(stores))  # asyncio.run cancels what is left
    assert waiters(stores[0]) == 0
    stores[0].blocking.stream("s").add({"n": 1})
    stores[0].blocking.close()


def test_a_shared_directory_is_opened_again_by_code_that_blocks(directory: Path) -> None:
    async def main() -> None:
        async with kvstream.aio.open(directory, shared=True) as store:
            with pytest.raises(InvalidArgument, match="with kvstream"):
                _ = store.blocking

    asyncio.run(main())


def test_threads_use_the_store_beside_the_loop(directory: Path) -> None:
    async def main() -> None:
        async with kvstream.aio.open(directory) as store:
            blocking = store.blocking.stream("s")
            waits = asyncio.create_task(asyncio.to_thread(blocking.read, "$", None, PATIENCE_S))
            await until(lambda: waiters(store) == 1)
            await store.stream("s").add({"n": 1})
            assert len(await patient(waits)) == 1
            read = asyncio.create_task(store.stream("s").read(block=0))
            await until(lambda: waiters(store) == 1)
            await asyncio.to_thread(blocking.add, {"n": 2})
            assert len(await patient(read)) == 1

    asyncio.run(main())


def test_a_cancelled_opening_leaves_the_directory_free(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, opening = threading.Event(), Store.open.__func__  # type: ignore[attr-defined]

    def slow(cls: type[Store], *args: Any, **kwargs: Any) -> Store:
        assert go_on.wait(PATIENCE_S)
        store: Store = opening(cls, *args, **kwargs)
        return store

    monkeypatch.setattr(Store, "open", classmethod(slow))

    async def main() -> None:
        task = asyncio.ensure_future(kvstream.aio.open(directory))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        go_on.set()
        while True:
            try:
                async with kvstream.aio.open(directory) as store:
                    assert await store.size() == 0
                    return
            except kvstream.StoreLocked:
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_call_on_a_closed_store_is_refused(directory: Path) -> None:
    async def main() -> None:
        store = await kvstream.aio.open(directory)
        await store.close()
        await store.close()
        with pytest.raises(StoreClosed):
            await store.stream("s").add({"n": 1})

    asyncio.run(main())
