"""Shared stores for asyncio: the program of tests/aio, and changes of the owner."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import kvstream
from kvstream import InvalidArgument, StoreClosed, StoreLocked
from kvstream.aio import AsyncStore
from tests.aio import test_one_program
from tests.aio.loops import patient, until
from tests.patience import PATIENCE_S
from tests.shared.conftest import Holder, end, kill, shared

globals().update(
    {name: test for name, test in vars(test_one_program).items() if name.startswith("test_")}
)


def opened(directory: Path) -> "kvstream.aio.Opening":
    return kvstream.aio.open(directory, shared=True, durability="no")


def is_owner(store: AsyncStore) -> bool:
    return store._engine.clients is not None  # type: ignore[attr-defined]


def test_tasks_go_on_when_the_owner_is_killed(
    directory: Path, holder: Callable[[], Holder]
) -> None:
    process = holder()
    acknowledged: list[str] = []
    seen: set[str] = set()

    async def add(store: AsyncStore, name: str, stop: asyncio.Event) -> None:
        n = 0
        while not stop.is_set():
            n += 1
            await store.stream("s").add({"n": f"{name}:{n}"})
            acknowledged.append(f"{name}:{n}")

    async def read(store: AsyncStore, name: str, stop: asyncio.Event) -> None:
        worker = store.stream("s").group("g").consumer(name)
        async for entry in worker.listen(10, stop=stop, poll=0.1):
            seen.add(entry.fields[b"n"].decode())

    async def main() -> None:
        stop, read_all = asyncio.Event(), asyncio.Event()
        async with opened(directory) as store:
            await store.stream("s").create_group("g", "0")
            assert not is_owner(store)
            waits = asyncio.create_task(store.stream("late").read(block=0))
            adds = [asyncio.create_task(add(store, f"a{n}", stop)) for n in range(8)]
            reads = [asyncio.create_task(read(store, f"r{n}", read_all)) for n in range(3)]
            await until(lambda: len(acknowledged) > 200)
            kill(process)
            begun = len(acknowledged)
            await until(lambda: len(acknowledged) > begun + 200)
            assert is_owner(store)
            stop.set()
            await patient(asyncio.gather(*adds))
            await until(lambda: len(seen) >= len(acknowledged))  # a stop leaves what was read ahead
            read_all.set()
            await patient(asyncio.gather(*reads))
            await store.stream("late").add({"n": 1})
            assert len(await patient(waits)) == 1
            entries = [e.fields[b"n"].decode() async for e in store.stream("s")]
            assert sorted(entries) == sorted(acknowledged)  # each once
            assert seen == set(entries)

    asyncio.run(main())


def test_an_owner_of_tasks_hands_over(directory: Path, holder: Callable[[], Holder]) -> None:
    async def main() -> Holder:
        async with opened(directory) as store:
            assert is_owner(store)
            process = await asyncio.to_thread(holder)
            await store.stream("s").add({"n": 1})
            with pytest.raises(StoreLocked):
                kvstream.open(directory)
            blocked = asyncio.create_task(store.stream("s").read(block=0))
            await asyncio.sleep(0.05)
            await store.close()
            with pytest.raises(StoreClosed):
                await patient(blocked)
        return process

    process = asyncio.run(main())
    with shared(directory) as store:
        assert len(store.stream("s")) == 1
    end(process)


def test_a_cancelled_opening_leaves_the_store_to_others(directory: Path) -> None:
    async def main() -> None:
        for moment in range(0, 20, 3):
            opening = asyncio.ensure_future(opened(directory).__aenter__())
            await asyncio.sleep(moment / 500)
            if opening.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await opening
            else:
                await (await opening).close()

    asyncio.run(main())
    with shared(directory) as store:
        store.stream("s").add({"n": 1})


def test_long_calls_and_their_place(directory: Path) -> None:
    async def main() -> None:
        async with opened(directory) as store:
            await store.stream("s").add({"n": 1})
            await store.compact()
            assert await store.restore("t", await store.dump("s") or b"") == []
            async with store.transaction():
                await store.stream("u").add({"n": 1})
            assert await store.size() == 3
            with pytest.raises(InvalidArgument):
                await store.check()
        for wrong in ({"clock": kvstream.SystemClock()}, {"read_only": True}):
            with pytest.raises(InvalidArgument):
                await kvstream.aio.open(directory, shared=True, **wrong)
        with pytest.raises(InvalidArgument, match="wait_s is for shared=True"):
            await kvstream.aio.open(directory, wait_s=PATIENCE_S)

    asyncio.run(main())
