"""Stream.count and count_after: the number of entries in a range of IDs or times."""

import asyncio
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import kvstream
from kvstream import InvalidID, ManualClock, Store, StreamID, WrongType

BOUNDS: list[tuple[Any, ...]] = [
    *((), ("2", "4"), ("(2-0", "(4-0"), (b"2-1", StreamID(4, 0)), ((2, 0), 3)),
    *(("4", "2"), ("+", "-"), ("9", "+"), ("-", "3"), ("0", "1-0"), ("5-0", "5-0"), ("4-0", "4-0")),
]


def test_a_count_is_the_length_of_the_range_on_every_place(place: str) -> None:
    with kvstream.open(place) as store:
        stream = store.stream("s")
        assert (stream.count(), stream.count("1", "2"), stream.count_after("1")) == (0, 0, 0)
        for ms in range(1, 6):
            stream.add({"n": ms}, id=f"{ms}-0")
        stream.delete("4-0")
        for bounds in BOUNDS:
            assert stream.count(*bounds) == len(stream.range(*bounds)), bounds
        with store.transaction():
            assert (stream.count("2", "4"), stream.count_after("2")) == (2, 2)

    async def main() -> None:
        async with kvstream.aio.open(place) as store:
            assert await store.stream("s").count("2", "4") == 2
            assert await store.stream("s").count_after("2") == 2

    asyncio.run(main())


def test_processes_that_share_a_store_count_as_its_owner_does(tmp_path: Path) -> None:
    with (
        kvstream.open(tmp_path / "store", shared=True) as owner,
        kvstream.open(tmp_path / "store", shared=True) as other,
    ):
        owner.stream("s").add_many([{"n": n} for n in range(300)])
        first = owner.stream("s").range(count=100)[-1].id
        for store in (owner, other):
            assert store.stream("s").count(f"({first}") == 200
            assert store.stream("s").count_after(first) == 200


def test_bounds_may_be_times_by_the_clock_of_the_store(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000_000)
    with Store.open(tmp_path / "timed", clock=clock) as store:
        stream = store.stream("s")
        for _ in range(10):
            clock.advance(1000)
            stream.add({"a": 1})
        assert stream.count("now-3s") == 4
        assert stream.count(timedelta(seconds=3), "now-1s") == 3
        assert stream.count("2020-01-01", "2030-01-01") == 10
        assert stream.count_after("now-10s") == 10
        assert stream.count_after("3 seconds ago") == stream.count_after("now-3s") == 3
        assert stream.count_after(timedelta(seconds=2.5)) == 3
        assert stream.count_after((2**64 - 1, 2**64 - 1)) == 0
        for call in (stream.count, stream.count_after):
            with pytest.raises(InvalidID, match="'soon'"):
                call("soon")


def test_a_string_is_refused(tmp_path: Path) -> None:
    with Store.open(tmp_path / "strings") as store, kvstream.connect(store) as client:
        client.set("s", "text")
        for bounds in ((), ("1", "2")):
            with pytest.raises(WrongType):
                store.stream("s").count(*bounds)


@pytest.mark.parametrize("seed", range(4))
def test_random_ranges_are_counted_exactly(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    with Store.open(tmp_path / "random", durability="no", stream_node_max_entries=4) as store:
        stream = store.stream("s")

        def compare() -> None:
            for _ in range(60):
                low, high = sorted(draw.randint(0, 620) for _ in range(2))
                bounds = (low, draw.randint(0, 2)), (high, draw.randint(0, 2))
                expected = sum(bounds[0] <= each.id <= bounds[1] for each in entries)
                assert stream.count(*bounds) == expected
                after = sum(each.id > bounds[0] for each in entries)
                assert stream.count_after(bounds[0]) == after

        for ms in range(1, 300):
            stream.add({"n": ms}, id=(2 * ms, draw.randint(0, 1)))
        entries = stream.range()
        stream.delete(draw.sample(entries, 90))
        stream.trim(maxlen=190)
        entries = stream.range()
        compare()
        with store.transaction():
            stream.add({"n": 1}, id=(610, 0))
            stream.delete(draw.sample(entries, 20))
            entries = stream.range()
            compare()
        compare()
