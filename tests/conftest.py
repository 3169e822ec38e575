"""Fixtures of all tests: a clock, and stores that must be sound when a test is over."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvstream import ManualClock, Store
from tests.opening import Stores


@pytest.fixture
def clock() -> ManualClock:
    """The clock of every store of the test; it moves only when told to."""
    return ManualClock()


@pytest.fixture
def open_store(tmp_path: Path, clock: ManualClock) -> Iterator[Stores]:
    """Open stores under ``tmp_path``: ``open_store("name", **options)``."""
    stores = Stores(tmp_path, clock)
    yield stores
    stores.finish()


@pytest.fixture
def store(open_store: Stores) -> Store:
    """An empty store in ``tmp_path / "store"``."""
    return open_store()


@pytest.fixture
def reopen(open_store: Stores) -> Callable[..., Store]:
    """Close a store and open it anew: ``store = reopen(store, **options)``."""
    return open_store.reopen
