"""Python's collector of cycles, in the tasks of Spark."""

import gc

from kvstream.spark.arrow import pass_over_modules, without_collector


def test_what_was_imported_is_passed_over_once() -> None:
    pass_over_modules()
    passed_over = gc.get_freeze_count()
    assert passed_over > 0
    kept: list[list[int]] = [[number] for number in range(1000)]
    pass_over_modules()
    assert len(kept) == 1000
    assert gc.get_freeze_count() <= passed_over


def test_the_collector_is_kept_out_and_comes_back() -> None:
    assert gc.isenabled()
    with without_collector():
        assert not gc.isenabled()
    assert gc.isenabled()
