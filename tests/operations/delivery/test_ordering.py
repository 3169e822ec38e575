"""Order by key: the entries of a key in flight are limited, and other keys continue."""

import threading
from collections.abc import Callable

import pytest

from kvstream import InvalidArgument, ManualClock, Store, StreamID
from kvstream.engine import timer_thread
from kvstream.group import Consumer, Group
from kvstream.layout.keys import qualified
from kvstream.operations import delete
from kvstream.operations.queues import policy
from kvstream.operations.trim import Strategy, Trim, trim
from kvstream.types.options import RefPolicy
from kvstream.types.records import PendingEntry
from tests.opening import Stores, change_thresholds

NAME = qualified(0, b"s")
Reopen = Callable[..., Store]


def rules(store: Store, **changes: object) -> None:
    store.engine.run(policy.set_policy, NAME, b"g", changes)


def group_of(store: Store) -> Group:
    return store.stream("s").group("g")


def reader(store: Store, name: str = "w") -> Consumer:
    return group_of(store).consumer(name)


def add(store: Store, *keys: str) -> list[StreamID]:
    """Add an entry for each key, with no field for ``-``."""
    fields = [{"n": str(n)} if key == "-" else {"user": key} for n, key in enumerate(keys)]
    return store.stream("s").add_many(fields)


@pytest.fixture
def ordered(store: Store) -> Store:
    """A store with a group ordered by ``user``."""
    store.stream("s").create_group("g")
    rules(store, order_by=b"user")
    return store


def read(store: Store, count: int | None = None, name: str = "w") -> list[StreamID]:
    return [entry.id for entry in reader(store, name).read(count=count)]


def list_held(store: Store) -> list[StreamID]:
    """Return the entries that wait for others of their key."""
    rows: list[PendingEntry] = group_of(store).pending_range(count=10_000)
    return [row.id for row in rows if row.consumer == b"" and row.deliveries == 0]


def test_one_entry_of_a_key_is_in_flight_and_other_keys_continue(ordered: Store) -> None:
    a1, a2, b1, a3, c1 = add(ordered, "a", "a", "b", "a", "c")
    assert read(ordered, 2) == [a1, b1]
    assert read(ordered) == [c1]
    assert read(ordered) == []
    assert list_held(ordered) == [a2, a3]
    group_of(ordered).ack(b1, c1)
    assert read(ordered) == []
    group_of(ordered).ack(a1)
    assert read(ordered) == [a2]
    group_of(ordered).ack(a2)
    assert read(ordered) == [a3]


def test_entries_without_the_field_have_no_order(ordered: Store) -> None:
    ids = add(ordered, "-", "-", "-")
    assert read(ordered) == ids


def test_max_per_key_entries_of_a_key_are_in_flight(ordered: Store) -> None:
    rules(ordered, max_per_key=2)
    ids = add(ordered, "a", "a", "a", "a")
    assert read(ordered) == ids[:2]
    group_of(ordered).ack(ids[1])
    assert read(ordered) == ids[2:3]
    rules(ordered, max_per_key=3)
    assert read(ordered) == ids[3:]


END: dict[str, Callable[[Store, StreamID], object]] = {
    "XACK": lambda store, eid: group_of(store).ack(eid),
    "XACKDEL": lambda store, eid: group_of(store).ack_delete(eid, ref_policy=RefPolicy.DELREF),
    "XDELEX": lambda store, eid: store.engine.run(
        delete.delete_with_policy, NAME, [eid], RefPolicy.DELREF
    ),
    "XTRIM": lambda store, eid: store.engine.run(
        trim, NAME, Trim(Strategy.MINID, minid=eid.next(), policy=RefPolicy.DELREF)
    ),
    "DELCONSUMER": lambda store, eid: group_of(store).delete_consumer("w"),
    "XCLAIM of a deleted one": lambda store, eid: (
        store.stream("s").delete(eid),
        group_of(store).claim("w", [eid]),
    ),
    "XAUTOCLAIM of a deleted one": lambda store, eid: (
        store.stream("s").delete(eid),
        group_of(store).autoclaim("w", 0),
    ),
}


@pytest.mark.parametrize("how", END)
def test_the_next_entry_becomes_ready_after_any_end_of_the_first(ordered: Store, how: str) -> None:
    a1, a2, a3 = add(ordered, "a", "a", "a")
    assert read(ordered) == [a1]
    END[how](ordered, a1)
    assert read(ordered, name="v") == [a2]
    assert list_held(ordered) == [a3]


def test_an_entry_that_is_given_up_makes_room(ordered: Store) -> None:
    rules(ordered, max_deliveries=1)
    a1, a2 = add(ordered, "a", "a")
    assert read(ordered) == [a1]
    group_of(ordered).nack(a1)
    assert len(ordered.stream("s:dead")) == 1
    assert read(ordered) == [a2]


def test_a_retry_keeps_its_key_busy(ordered: Store, clock: ManualClock) -> None:
    rules(ordered, backoff_ms=(1000,), lease_ms=5000)
    a1, a2, b1 = add(ordered, "a", "a", "b")
    assert read(ordered) == [a1, b1]
    group_of(ordered).nack(a1)
    assert read(ordered) == []
    clock.advance(1000)
    ordered.engine.run(timer_thread.run_due, 10)
    assert read(ordered) == [a1]
    clock.advance(5000)
    assert read(ordered, name="v") == [b1, a1]
    group_of(ordered).ack(a1)
    assert read(ordered) == [a2]


def test_held_entries_are_not_claimed_or_given_back(ordered: Store) -> None:
    a1, a2 = add(ordered, "a", "a")
    read(ordered)
    group = group_of(ordered)
    assert group.claim("v", [a2]) == []
    assert [each.id for each in group.autoclaim("v", 0).entries] == [a1]
    assert group.nack(a2) == 0
    assert list_held(ordered) == [a2]


def test_a_held_entry_may_be_claimed_by_force(ordered: Store) -> None:
    a1, a2, a3 = add(ordered, "a", "a", "a")
    read(ordered)
    group = group_of(ordered)
    assert [each.id for each in group.claim("v", [a2], force=True)] == [a2]
    group.ack(a1)
    assert read(ordered) == []
    group.ack(a2)
    assert read(ordered) == [a3]


def test_held_entries_whose_message_was_deleted_are_skipped(ordered: Store) -> None:
    ids = add(ordered, "a", "a", "a", "a")
    read(ordered)
    ordered.stream("s").delete(ids[1], ids[2])
    group_of(ordered).ack(ids[0])
    assert read(ordered) == ids[3:]
    assert group_of(ordered).pending().count == 1


def test_a_held_entry_may_end_before_its_turn(ordered: Store) -> None:
    ids = add(ordered, "a", "a", "a")
    read(ordered)
    assert group_of(ordered).ack(ids[1]) == 1
    group_of(ordered).ack(ids[0])
    assert read(ordered) == ids[2:]


def test_seeking_back_delivers_no_pending_entry_twice(ordered: Store) -> None:
    ids = add(ordered, "a", "a", "b")
    assert read(ordered) == [ids[0], ids[2]]
    group_of(ordered).ack(ids[2])
    group_of(ordered).set_id("0")
    assert read(ordered) == ids[2:]
    group_of(ordered).ack(*ids)
    assert read(ordered) == []


def test_noack_delivers_no_entry_of_a_busy_key(ordered: Store) -> None:
    ids = add(ordered, "a", "a", "b", "b")
    assert read(ordered, 1) == ids[:1]
    again = reader(ordered).read(noack=True)
    assert [entry.id for entry in again] == ids[2:]
    assert list_held(ordered) == ids[1:2]


def test_another_field_sorts_what_waits(ordered: Store) -> None:
    stream = ordered.stream("s")
    places = [("a", "x"), ("a", "x"), ("a", "y"), ("b", "z"), ("a", "")]
    ids = [
        stream.add({"user": user} | ({"place": place} if place else {})) for user, place in places
    ]
    assert read(ordered) == [ids[0], ids[3]]
    stream.delete(stream.add({"user": "a", "place": "gone"}))
    rules(ordered, order_by=b"place")
    assert read(ordered) == [ids[2], ids[4]], "x is in flight, and y is not"
    group_of(ordered).ack(ids[0])
    assert read(ordered) == [ids[1]]


def test_another_field_is_refused_for_a_long_backlog(ordered: Store) -> None:
    change_thresholds(ordered.engine, ordered_entries=20)
    ids = add(ordered, *["a"] * 21)
    assert read(ordered) == ids[:1]
    read(ordered)
    with pytest.raises(InvalidArgument, match="'user' for 21 pending messages of the group 'g'"):
        rules(ordered, order_by=b"place")
    assert read(ordered) == [], "the order holds"
    group_of(ordered).ack(ids[0])
    rules(ordered, order_by=b"place")
    assert read(ordered) == ids[1:], "entries without the field have no order"


def test_another_order_or_none_frees_the_held_entries(ordered: Store) -> None:
    ids = add(ordered, "a", "a", "a")
    assert read(ordered) == ids[:1]
    rules(ordered, order_by=b"other")
    assert read(ordered) == ids[1:]
    rules(ordered, order_by=b"user")
    more = add(ordered, "b", "b")
    assert read(ordered) == more[:1]
    ordered.engine.run(policy.drop_policy, NAME, b"g")
    assert [entry.id for entry in reader(ordered).read()] == more[1:]


def test_the_order_survives_a_reopening(ordered: Store, reopen: Reopen) -> None:
    ids = add(ordered, "a", "a", "a")
    assert read(ordered) == ids[:1]
    store = reopen(ordered)
    assert read(store) == []
    group_of(store).ack(ids[0])
    store = reopen(store)
    assert read(store) == ids[1:2]


def test_a_group_that_is_destroyed_leaves_no_rows(ordered: Store) -> None:
    add(ordered, "a", "a")
    read(ordered)
    group_of(ordered).destroy()
    ordered.stream("s").create_group("g", start="0")
    assert len(read(ordered)) == 2
    ordered.delete("s")


def test_a_copy_holds_the_same_entries(ordered: Store) -> None:
    first, second = add(ordered, "a", "a")
    read(ordered)
    assert ordered.copy("s", "t")
    group = ordered.stream("t").group("g")
    assert group.consumer("w").read() == []
    group.ack(first)
    assert [entry.id for entry in group.consumer("w").read()] == [second]


def test_a_long_backlog_of_one_key_delays_no_other(ordered: Store, reopen: Reopen) -> None:
    change_thresholds(ordered.engine, cached_rows=1 << 10)
    backlog = [eid for _ in range(30) for eid in add(ordered, *["a"] * 1000)]
    (b1,) = add(ordered, "b")
    reads = 0
    while (found := read(ordered, 10)) != [b1]:
        reads += 1
        assert found == backlog[:1] if reads == 1 else not found
    assert reads <= len(backlog) // ordered.engine.thresholds.ordered_entries + 1
    for eid in backlog[:3]:
        group_of(ordered).ack(eid)
        (c1,) = add(ordered, "c")
        assert read(ordered) == [backlog[backlog.index(eid) + 1], c1]
        group_of(ordered).ack(c1)
    store = reopen(ordered)
    group_of(store).ack(backlog[3])
    assert read(store) == [backlog[4]]


def test_a_blocked_reader_wakes_when_its_key_is_free(open_store: Stores) -> None:
    store = open_store()
    store.stream("s").create_group("g")
    rules(store, order_by=b"user")
    ids = add(store, "a", "a")
    assert read(store) == ids[:1]
    got: list[StreamID] = []

    def wait() -> None:
        got.extend(entry.id for entry in reader(store, "v").read(block=30))

    thread = threading.Thread(target=wait)
    thread.start()
    group_of(store).ack(ids[0])
    thread.join(30)
    assert got == ids[1:]


def test_entries_given_up_make_way_for_held_ones_before_new_ones(
    ordered: Store, clock: ManualClock
) -> None:
    rules(ordered, max_per_key=2, max_deliveries=1, lease_ms=1000)
    a1, a2, a3 = add(ordered, "a", "a", "a")
    assert read(ordered) == [a1, a2]
    (a4,) = add(ordered, "a")
    clock.advance(1000)
    assert read(ordered) == [a3, a4]


def test_a_read_that_frees_a_key_takes_nothing_twice(ordered: Store) -> None:
    rules(ordered, max_per_key=2, max_deliveries=2)
    a1, a2, a3 = add(ordered, "a", "a", "a")
    (b1,) = add(ordered, "b")

    def read_all() -> list[StreamID]:
        return [entry.id for entry in reader(ordered).read(claim_min_idle=0)]

    assert read_all() == [a1, a2, b1]
    (b2,) = add(ordered, "b")
    assert group_of(ordered).ack(b1) == 1
    assert read_all() == [a1, a2, b2]
    assert read_all() == [b2, a3]
    assert group_of(ordered).ack(b2, a3) == 2
