"""Samples of a store for its metrics: taken in slices, also of a damaged store."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvstream.engine.engine import Engine
from kvstream.layout.keys import qualified, tree_prefix
from kvstream.meta.txn import Txn
from kvstream.operations.info import group_figures
from kvstream.server.metrics.sample import Limits, Sampler
from kvstream.storage.batch import Batch, Family
from kvstream.store import Store
from kvstream.types.ids import StreamID
from kvstream.types.thresholds import DEFAULT
from tests.patience import PATIENCE_S, until

FRESH = Limits(sample_s=0.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store", durability="no") as store:
        yield store


@pytest.fixture
def engine(store: Store) -> Engine:
    return store.engine


@pytest.fixture
def sampler(engine: Engine) -> Iterator[Sampler]:
    sampler = Sampler(engine, 100, FRESH)
    yield sampler
    sampler.stop()


def test_the_lock_is_released_between_slices(tmp_path: Path) -> None:
    class CountingEngine(Engine):
        turns = 0

        def begin_turn(self, keeps_seen: bool = False) -> Txn:
            self.turns += 1
            return super().begin_turn(keeps_seen)

    engine = CountingEngine(tmp_path / "counted")
    with Store(engine, 0) as store:
        for number in range(60):
            store.stream(f"s{number}").add({"f": "v"})
        sampler = Sampler(engine, 100, replace(FRESH, slice_s=0.0))  # a slice for each step
        before = engine.turns
        assert len(sampler.latest().streams) == 60
        assert engine.turns - before > 60
        sampler.stop()


def test_a_sample_is_kept_for_some_seconds(store: Store, sampler: Sampler) -> None:
    sampler.limits = replace(FRESH, sample_s=60.0)
    first = sampler.latest()
    store.stream("s").add({"f": "v"})
    assert sampler.latest() is first
    sampler.limits = FRESH
    assert [row.name for row in sampler.latest().streams] == [qualified(0, b"s")]


def test_writers_continue_during_a_sample(store: Store, sampler: Sampler) -> None:
    for number in range(50):
        store.stream(f"s{number}").add({"f": "v"})
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            sampler.latest()

    looking = threading.Thread(target=look)
    looking.start()
    for number in range(300):
        store.stream("s0").add({"n": number})
    over.set()
    looking.join(PATIENCE_S)
    rows = {row.name: row.figures for row in sampler.latest().streams}
    assert rows[qualified(0, b"s0")].entries_added == 301
    assert sampler.failures == 0


def test_the_other_groups_are_shown_beside_a_damaged_one(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        for name in ("bad", "good"):
            store.stream(name).add({"f": "v"})
            store.stream(name).create_group("g", "0")
        stream = store.engine.run(lambda txn: txn.stream(qualified(0, b"bad")))
        assert stream is not None
        batch = Batch(store.engine.database)
        batch.put(Family.TREES, tree_prefix(stream.groups_tree) + b"g", b"\xff")
        store.engine.database.write(batch)
    with Store.open(tmp_path / "store") as store:
        sampler = Sampler(store.engine, 100)
        seen = sampler.latest()
        sampler.stop()
    assert len(seen.streams) == 2
    assert [row.stream for row in seen.groups] == [qualified(0, b"good")]
    assert seen.unreadable == 1


def test_a_failed_sample_is_counted_and_the_last_one_stays(store: Store, sampler: Sampler) -> None:
    store.stream("s").add({"f": "v"})
    before = sampler.latest()
    sampler.limits = replace(FRESH, wait_s=0.2)
    store.engine.close()
    assert sampler.latest() is before
    until(lambda: sampler.failures)
    assert sampler.failures == 1


@pytest.mark.parametrize("count", [3, DEFAULT.runs_together, 3 * DEFAULT.runs_together + 3, 40_000])
def test_pending_entries_are_counted_in_groups_of_every_size(store: Store, count: int) -> None:
    stream = store.stream("s")
    group = stream.create_group("g", "0")
    stream.add_many([{"n": number} for number in range(count)])
    consumer = group.consumer("c")
    step = 1 if count < 1000 else 2  # so many runs that the group is indexed
    for _ in range(0, count, step):
        consumer.read(step)
    name = qualified(0, b"s")
    found = store.engine.run(group_figures, name, b"g")
    assert found is not None
    assert (found.pending, found.nacked, found.lag, found.consumers) == (count, 0, 0, 1)
    first = stream.range(count=1)[0].id
    group.claim("c", [first], idle=100)
    group.nack([stream.revrange(count=1)[0].id], mode="FAIL")
    found = store.engine.run(group_figures, name, b"g")
    assert found is not None
    assert (found.pending, found.nacked) == (count, 1)
    assert 100_000 <= found.oldest_ms < 160_000
    assert isinstance(first, StreamID)


def test_missing_things_have_no_figures(store: Store) -> None:
    store.stream("s").add({"f": "v"})
    run = store.engine.run
    assert run(group_figures, qualified(0, b"s"), b"nobody") is None
    assert run(group_figures, qualified(0, b"nothing"), b"g") is None


@pytest.mark.parametrize("count", [10, 2 * DEFAULT.runs_together])
def test_a_sample_caches_only_small_streams_and_makes_no_index(tmp_path: Path, count: int) -> None:
    with Store.open(tmp_path / "again") as store:
        group = store.stream("s").create_group("g", "0")
        store.stream("s").add_many([{"n": number} for number in range(count)])
        for number in range(count):  # a run each
            group.consumer(f"c{number % 2}").read(1)
    with Store.open(tmp_path / "again") as store:
        found = store.engine.run(group_figures, qualified(0, b"s"), b"g")
        assert found is not None
        assert found.pending == count
        stream = store.engine.run(lambda txn: txn.stream(qualified(0, b"s")))
        assert stream is not None
        assert (stream.groups[b"g"].runs.memory is not None) == (count < DEFAULT.runs_together)
        assert stream.groups[b"g"].index is None
        group = store.stream("s").group("g")
        assert group.ack([entry.id for entry in group.pending_range(count=5)]) == 5
        found = store.engine.run(group_figures, qualified(0, b"s"), b"g")
        assert found is not None
        assert found.pending == count - 5
