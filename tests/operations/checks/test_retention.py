"""The rows of retention: check finds damaged ones, and a repair deletes them."""

import pytest

from kvstream import ManualClock, Store
from kvstream.engine import timing
from kvstream.layout.keys import qualified
from kvstream.meta import timers
from kvstream.meta.policy import LATEST_ROWS, Retention
from kvstream.operations.queues import retention
from tests.opening import Stores

NAME = qualified(0, b"s")


@pytest.fixture
def ruled(open_store: Stores, clock: ManualClock) -> Store:
    """A store with a stream that has rules, a latest entry of each value, and a group."""
    store = open_store("own")
    store.engine.timers.paused = True
    stream = store.stream("s")
    for user in ("ann", "bob", "ann"):
        stream.add({"user": user})
    rules = Retention(max_age_ms=60_000, latest=b"user")
    store.engine.run(retention.set_rules, NAME, rules)
    store.engine.run(timing.run_due, 10)
    assert len(stream) == 2
    assert store.check() == []
    return store


@pytest.mark.parametrize(
    ("suffix", "value"),
    [
        (b"P", b""),
        (b"P", b"\x81\xa4none\x01"),
        (b"P", b"\x80"),
        (b"Pt", b"short"),
        (b"Pc", b""),
        (b"Prworkers", b"\0" * 9),
        (LATEST_ROWS + b"short", b"\0" * 16),
        (LATEST_ROWS + b"\0" * 16, b"short"),
        (LATEST_ROWS + b"\0" * 16, b"\xff" * 16),
        (b"P?", b""),
    ],
)
def test_a_damaged_row_is_reported_and_deleted(ruled: Store, suffix: bytes, value: bytes) -> None:
    stream = ruled.engine.catalog.streams[NAME]
    ruled.engine.run(lambda txn: timers.put_row(txn, stream, suffix, value))
    (fault,) = ruled.check()
    assert "a row of queues" in fault.message
    ruled.check(repair=True)
    assert ruled.check() == []


def test_damaged_rules_do_not_stop_the_retention_of_others(ruled: Store) -> None:
    stream = ruled.engine.catalog.streams[NAME]
    ruled.engine.run(lambda txn: timers.put_row(txn, stream, b"P", b"damaged"))
    ruled.engine.catalog.forget()
    assert len(ruled.stream("s")) == 2
    for other in ("a", "t"):
        ruled.stream(other).add({"f": "1"})
        ruled.stream(other).add({"f": "2"})
        rules = Retention(max_length=1)
        ruled.engine.run(retention.set_rules, qualified(0, other.encode()), rules)
    while ruled.engine.run(retention.changed_streams)[0]:
        pass
    assert (len(ruled.stream("a")), len(ruled.stream("t"))) == (1, 1)
    ruled.check(repair=True)
