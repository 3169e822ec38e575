"""Garbage collection in the tasks of Spark."""

import gc

from kvstream.spark.gc_settings import freeze_modules, without_gc


def test_imported_modules_are_frozen_once() -> None:
    freeze_modules()
    frozen = gc.get_freeze_count()
    assert frozen > 0
    kept: list[list[int]] = [[number] for number in range(1000)]
    freeze_modules()
    assert len(kept) == 1000
    assert gc.get_freeze_count() <= frozen


def test_garbage_collection_is_off_and_comes_back() -> None:
    assert gc.isenabled()
    with without_gc():
        assert not gc.isenabled()
    assert gc.isenabled()
