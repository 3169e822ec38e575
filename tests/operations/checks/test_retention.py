"""The rows of retention: check finds damaged ones, and a repair deletes them."""

import pytest

from kvstream import ManualClock, Store
from kvstream.engine import timer_thread
from kvstream.layout.keys import qualified
from kvstream.meta import timers
from kvstream.meta.policy import LATEST_ROWS, Retention
from kvstream.meta.txn import Txn
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
    store.engine.run(timer_thread.run_due, 10)
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
    while ruled.engine.run(retention.check_changed_streams)[0]:
        pass
    assert (len(ruled.stream("a")), len(ruled.stream("t"))) == (1, 1)
    ruled.check(repair=True)


# --- rows with the time of the only timer of a kind ---------------------------------------------

DAMAGE: dict[str, tuple[str, bytes | None]] = {
    "no timer": ("timer", None),
    "no row": ("row", None),
    "another time": ("row", b"\0" * 8),
    "a later time": ("row", b"\x7f" + b"\xff" * 7),
    "no time": ("row", b"short"),
}


@pytest.mark.parametrize("title", DAMAGE)
@pytest.mark.parametrize("kind", [timers.Kind.RETENTION, timers.Kind.REAP])
def test_what_one_timer_does_goes_on_after_a_repair(
    ruled: Store, clock: ManualClock, kind: timers.Kind, title: str
) -> None:
    """A lost timer, or a row with a wrong time, stops retention by age and reaping for ever."""
    group = ruled.stream("s").create_group("workers", "$")
    group.set_policy(reap=30)
    group.create_consumer("ann")
    ruled.stream("s").add({"user": "ann"})
    group.consumer("ann").read()
    group.ack([each.id for each in group.pending_range()])
    ruled.engine.run(timer_thread.run_due, 10)
    assert ruled.check() == []
    stream = ruled.engine.catalog.streams[NAME]
    rest = b"workers" if kind is timers.Kind.REAP else b""
    what, value = DAMAGE[title]

    def damage(txn: Txn) -> None:
        (timer,) = timers.scan(txn, stream, kind)
        suffix = timers.suffix_of(*timer[:3])
        if what == "row":
            suffix = (b"Pr" if rest else b"Pt") + rest
        if value is None:
            timers.delete_row(txn, stream, suffix)
        else:
            timers.put_row(txn, stream, suffix, value)

    ruled.engine.run(damage)
    ruled.engine.catalog.forget()
    assert len(ruled.check()) == 1
    ruled.check(repair=True)
    assert ruled.check() == []
    clock.advance(61_000)
    for _ in range(3):
        ruled.engine.run(timer_thread.run_due, 10)
    assert (len(ruled.stream("s")), group.consumers()) == (0, [])
    assert ruled.check() == []
