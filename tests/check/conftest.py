"""Fixtures of the tests of check."""

import pytest

from kvstream import ManualClock, Store
from tests.check.seeding import NODE_ENTRIES, fill
from tests.opening import Stores


@pytest.fixture
def busy(open_store: Stores, clock: ManualClock) -> Store:
    """A store with something of everything in it, and nodes of few entries."""
    store = open_store(stream_node_max_entries=NODE_ENTRIES)
    fill(store, clock)
    return store
