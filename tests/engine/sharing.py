"""One store for many tests, emptied for each: opening one takes longer than most tests."""

from collections.abc import Iterator

import pytest

from kvstream import ManualClock, Store
from kvstream.operations import keyspace

START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store for a whole module."""
    with Store.open(
        tmp_path_factory.mktemp("shared") / "store", durability="no", clock=ManualClock()
    ) as store:
        yield store


@pytest.fixture
def clock(shared: Store) -> ManualClock:
    """The clock of the store; it moves only when the test advances it."""
    clock = shared.engine.clock
    assert isinstance(clock, ManualClock)
    clock.ms = START_MS
    return clock


@pytest.fixture
def store(shared: Store, clock: ManualClock) -> Iterator[Store]:
    """An empty store, checked after the test."""
    shared.flush_all()
    while shared.engine.run(keyspace.sweep, 1000):  # else each check reads what thousands have left
        pass
    yield shared
    names = shared.engine.waiters.names()
    for waiter in [waiter for name in names for waiter in shared.engine.waiters.of(name)]:
        shared.engine.cancel(waiter)
    assert shared.check() == []
