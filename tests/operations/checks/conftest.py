"""Fixtures of the tests of check."""

import pytest

from kvstream import ManualClock, Store
from tests.opening import Stores
from tests.operations.checks.seeding import NODE_ENTRIES, Rows, fill, small_trees


@pytest.fixture
def busy(open_store: Stores, clock: ManualClock) -> Store:
    """A store with rows of every kind, and nodes of few entries."""
    store = open_store(stream_node_max_entries=NODE_ENTRIES)
    fill(store, clock)
    return store


@pytest.fixture
def indexed(open_store: Stores, clock: ManualClock) -> Store:
    """The same with an indexed group, which had many runs for a while."""
    store = open_store(stream_node_max_entries=NODE_ENTRIES)
    with small_trees(store):
        fill(store, clock)
    assert Rows(store).group.indexed
    return store


@pytest.fixture(params=["busy", "indexed"])
def either(request: pytest.FixtureRequest) -> Store:
    """The store with its group in both forms, one after the other."""
    store: Store = request.getfixturevalue(request.param)
    return store
