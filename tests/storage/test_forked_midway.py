"""A child forked while another thread of its parent was inside a call of the store."""

import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvstream import Store, StoreClosed
from kvstream.storage.directory import stage


def ends_well(work: Callable[[], object]) -> bool:
    """Run a function in a forked child, for at most a minute; return whether it completed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def test_a_child_does_not_touch_the_copy_that_its_parent_is_making(tmp_path: Path) -> None:
    staged = stage(tmp_path / "copy")
    built = staged.__enter__()
    built.mkdir()
    assert ends_well(lambda: staged.__exit__(None, None, None))
    assert built.exists()
    staged.__exit__(None, None, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lock", ["queueing", "compacting", "flushing"])
def test_a_child_closes_a_store_that_its_parent_was_using(tmp_path: Path, lock: str) -> None:
    with Store.open(tmp_path, durability="always") as store:
        engine = store.engine
        held: Any = {
            "queueing": engine.committer._queueing,
            "compacting": engine._compacting,
            "flushing": engine._flushing,
        }[lock]

        def use() -> None:
            store.close()
            with pytest.raises(StoreClosed):
                store.stream("s").add({"f": "v"})

        with held:
            assert ends_well(use)
        assert store.stream("s").add({"f": "v"})
