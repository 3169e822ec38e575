"""Whatever is done through the public API, a check finds nothing wrong."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from kvstream import ManualClock, Store
from tests.check.walking import WALKS, Step, World


def walk(steps: list[Step]) -> None:
    """Take the steps in a new store; nothing is wrong after any of them, nor when reopened."""
    clock = ManualClock(10_000_000)
    with tempfile.TemporaryDirectory() as directory:
        world = World(lambda: open_small(Path(directory) / "store", clock), clock)
        try:
            for step in steps:
                step.take(world)
                assert world.store.check() == [], step
            world.reopen()
            assert world.store.check() == []
        finally:
            world.store.close()


def open_small(path: Path, clock: ManualClock) -> Store:
    return Store.open(
        path,
        durability="no",
        clock=clock,
        stream_node_max_entries=4,
        stream_node_max_bytes=300,
    )


@given(WALKS)
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
def test_any_walk_leaves_a_sound_store(steps: list[Step]) -> None:
    walk(steps)


@given(WALKS)
@settings(deadline=None, max_examples=20, suppress_health_check=list(HealthCheck))
def test_any_walk_leaves_a_sound_store_whose_trees_are_read_from_disk(steps: list[Step]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvstream.meta.trees.CACHED_ROWS", 2)
        walk(steps)
