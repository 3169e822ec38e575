"""After any calls of the public API a check finds no faults.

Hypothesis drives ``walk``; the fixed walks below it once caused faults.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from kvstream import ManualClock, Store
from kvstream.operations.trim import sweep
from kvstream.types.thresholds import DEFAULT, Thresholds
from tests.opening import Stores
from tests.operations.checks.walking import WALKS, Step, World

NODE_ENTRIES, NODE_BYTES = 4, 300
SWEEP_EVERY = 5
SMALL_TREES = Thresholds(cached_rows=3, store_rows=6, range_rows=3, run_ids=2)
QUICK = settings(deadline=None, max_examples=20, suppress_health_check=list(HealthCheck))


@contextmanager
def small_limits(sweeps: bool = False) -> Iterator[None]:
    """Sweep often, so that short walks reach what otherwise takes thousands of entries."""
    with pytest.MonkeyPatch.context() as patch:
        if sweeps:
            patch.setattr("kvstream.operations.trim.sweep", partial(sweep, every=SWEEP_EVERY))
        yield


def walk(steps: list[Step], thresholds: Thresholds = DEFAULT) -> None:
    """Take the steps in a new store; check it after each of them, and reopened."""
    clock = ManualClock(10_000_000)
    with tempfile.TemporaryDirectory() as directory:
        stores = Stores(Path(directory), clock)
        options: dict[str, Any] = {
            "stream_node_max_entries": NODE_ENTRIES,
            "stream_node_max_bytes": NODE_BYTES,
        }
        world = World(partial(stores, "store", thresholds, **options), clock)
        try:
            for step in steps:
                step.take(world)
                assert world.store.check() == [], step
            world.reopen()
        finally:
            stores.finish()


@given(WALKS)
@QUICK
def test_any_walk_leaves_a_sound_store(steps: list[Step]) -> None:
    walk(steps)


@given(WALKS)
@QUICK
def test_any_walk_leaves_a_sound_store_that_sweeps_often(steps: list[Step]) -> None:
    with small_limits(sweeps=True):
        walk(steps)


@given(WALKS)
@QUICK
def test_any_walk_leaves_a_sound_store_whose_trees_are_read_from_disk(steps: list[Step]) -> None:
    with small_limits(sweeps=True):
        walk(steps, SMALL_TREES)


# --- walks that once left faults behind ---------------------------------------------------------


@pytest.fixture
def small(open_store: Stores) -> Callable[[], Store]:
    return partial(open_store, stream_node_max_entries=NODE_ENTRIES)


def test_trimmed_rows_stay_dead_when_xsetid_lowers_the_last_id_of_an_empty_stream(
    store: Store,
) -> None:
    stream = store.stream("s")
    for number in range(1, 4):
        stream.add({"n": number}, id=f"{number}-0")
    stream.trim(maxlen=0)
    stream.set_id("1-0")
    assert store.check() == []
    stream.add({"n": "new"}, id="1-5")
    assert [entry.fields for entry in stream.range()] == [{b"n": b"new"}]


def test_an_emptied_stream_drops_its_first_node(small: Callable[[], Store]) -> None:
    store = small()
    stream = store.stream("s")
    stream.add_many([{"n": number} for number in range(9)])
    stream.trim(maxlen=8)
    stream.trim(maxlen=0)
    stream.add_many([{"n": number} for number in range(3)])
    stream.trim(maxlen=2, approximate=True)
    assert store.check() == []
    stream.add_many([{"n": number} for number in range(7)])
    stream.trim(maxlen=1)
    assert [entry.fields for entry in stream.range()] == [{b"n": b"6"}]


def test_an_emptied_stream_drops_its_first_ids(store: Store) -> None:
    stream = store.stream("s")
    for number in range(1, 11):
        stream.add({"n": number}, id=f"{number}-0")
    stream.trim(maxlen=9)
    stream.trim(maxlen=0)
    stream.set_id("1-0")
    stream.add({"n": "first"}, id="2-0")
    stream.add({"n": "second"}, id="50-0")
    assert stream.trim(maxlen=1) == 1
    assert store.check() == []
    assert [str(entry.id) for entry in stream.range()] == ["50-0"]


def test_a_reused_idempotent_id_is_kept_for_its_full_time_behind_a_younger_one(
    store: Store, clock: ManualClock
) -> None:
    stream = store.stream("s")
    stream.add({"n": 1}, idmp=("p", "young"))
    clock.advance(-99_999)
    stream.add({"n": 2}, idmp=("p", "again"))
    clock.advance(140_000)  # "again" has expired, "young" has not
    first = stream.add({"n": 3}, idmp=("p", "again"))
    assert store.check() == []
    clock.advance(61_000)  # now "young" has
    stream.add({"n": 4}, idmp=("p", "other"))
    assert stream.add({"n": 5}, idmp=("p", "again")) == first
