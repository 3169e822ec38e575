"""Blocked XREADGROUP with CLAIM: woken when an entry is idle long enough, or is given back."""

import time

import pytest

from kvstream import Store, SystemClock
from kvstream.engine.waiters import Outcome, Waiter
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.operations import readgroup
from kvstream.operations.readgroup import claimable_at
from kvstream.operations.reads.read import Reply
from tests.engine.waiting import Call, add, blocked, ms_of, waiting
from tests.opening import Stores
from tests.patience import retried, until

LATE_S = 0.5
"""The maximal delay of a wake-up."""


class CountedClock(SystemClock):
    """The machine's clock, which each transaction reads once."""

    reads = 0

    def now_ms(self) -> int:
        self.reads += 1
        return super().now_ms()


@pytest.fixture
def counted() -> CountedClock:
    return CountedClock()


@pytest.fixture
def store(open_store: Stores, counted: CountedClock) -> Store:
    """A store on the machine's clock: wake-ups use the clock of the deliveries."""
    return open_store(clock=counted)


def deliver_to(store: Store, consumer: str, *ids: str) -> None:
    """Add entries and deliver them to ``consumer`` in one commit, before any waiter."""
    with store.transaction():
        for eid in ids:
            store.stream("s").add({"f": "v"}, id=eid)
        store.stream("s").group("g").consumer(consumer).read()


def test_a_waiter_is_woken_as_soon_as_an_entry_is_idle_long_enough(store: Store) -> None:
    def once() -> None:
        store.flush_all()
        group = store.stream("s").create_group("g")
        deliver_to(store, "dead", "1-0", "2-0")
        call = blocked(store, lambda: group.consumer("c").read(block=60, claim_min_idle=0.2))
        entries = call.result()
        assert ms_of(entries) == [1, 2]
        assert all((entry.idle_ms or 0) >= 200 and entry.deliveries == 1 for entry in entries)
        assert call.seconds < 0.2 + LATE_S
        assert group.pending().consumers == {b"c": 2}

    retried(once)


def test_a_waiter_claims_entries_delivered_after_it_began_to_wait(store: Store) -> None:
    def once() -> None:
        store.flush_all()
        group = store.stream("s").create_group("g")
        call = blocked(store, lambda: group.consumer("c").read(block=60, claim_min_idle=0.2))
        deliver_to(store, "dead", "1-0")
        delivered = time.monotonic()
        (entry,) = call.result()
        assert (entry.idle_ms or 0) >= 200
        assert time.monotonic() - delivered < 0.2 + LATE_S

    retried(once)


def test_waiters_are_served_in_the_order_they_came(store: Store) -> None:
    def once() -> None:
        store.flush_all()
        group = store.stream("s").create_group("g")
        deliver_to(store, "dead", "1-0", "2-0", "3-0")

        def one_more(name: str) -> Call[list[int]]:
            worker = group.consumer(name)
            return blocked(store, lambda: ms_of(worker.read(count=1, block=60, claim_min_idle=0.3)))

        calls = [one_more(name) for name in ("c", "a", "b")]
        assert [call.result() for call in calls] == [[1], [2], [3]]

    retried(once)


def test_an_entry_given_back_wakes_the_first_waiter_at_once(store: Store) -> None:
    group = store.stream("s").create_group("g")
    deliver_to(store, "dead", "1-0", "2-0")
    first = blocked(store, lambda: group.consumer("a").read(block=600, claim_min_idle=600))
    second = blocked(store, lambda: group.consumer("b").read(block=600, claim_min_idle=600))
    assert group.nack("2-0", mode="SILENT") == 1
    (entry,) = first.result()
    assert (entry.id.ms, entry.deliveries) == (2, 0)
    assert not second.ended
    group.nack("1-0")
    assert ms_of(second.result()) == [1]


def test_a_noack_waiter_is_not_woken_by_entries_given_back(
    store: Store,
) -> None:
    group = store.stream("s").create_group("g")
    deliver_to(store, "dead", "1-0")
    call = blocked(store, lambda: group.consumer("a").read(block=60, noack=True))
    group.nack("1-0")
    assert waiting(store) == 1
    add(store, b"s", "2-0")
    assert ms_of(call.result()) == [2]


def xreadgroup(store: Store) -> list[int]:
    """Queue a client's XREADGROUP without CLAIM; return the list that receives its entries."""
    name, got = qualified(0, b"s"), list[int]()

    def attempt(txn: Txn) -> Reply | None:
        return readgroup.read_group(txn, b"g", b"wire", [(name, readgroup.NEW)]) or None

    def deliver(outcome: Outcome) -> None:
        got.extend(entry.id.ms for entry in outcome.get()[0][1])

    waiter = Waiter([name], attempt, deliver, readgroup.share_key(b"g", None), group=b"g")
    store.engine.run(lambda txn: store.engine.waiters.add(waiter))
    return got


def test_an_entry_given_back_wakes_one_plain_waiter(store: Store) -> None:
    group = store.stream("s").create_group("g")
    deliver_to(store, "dead", "1-0")
    wire = xreadgroup(store)
    first = blocked(store, lambda: group.consumer("a").read(block=60))
    second = blocked(store, lambda: group.consumer("b").read(block=60))
    group.nack("1-0")
    assert ms_of(first.result()) == [1]
    assert waiting(store) == 2
    add(store, b"s", "2-0")
    assert wire == [2]
    assert not second.ended
    add(store, b"s", "3-0")
    assert ms_of(second.result()) == [3]


def test_new_entries_wake_a_claiming_waiter_too(store: Store) -> None:
    group = store.stream("s").create_group("g")
    call = blocked(store, lambda: group.consumer("a").read(block=60, claim_min_idle=60))
    add(store, b"s", "1-0")
    (entry,) = call.result()
    assert (entry.id.ms, entry.idle_ms, entry.deliveries) == (1, 0, 0)


def test_several_streams_are_watched_for_the_first_idle_entry(store: Store) -> None:
    def once() -> None:
        store.flush_all()
        for key in ("s", "t"):
            store.stream(key).create_group("g")
        deliver_to(store, "dead", "1-0")
        call = blocked(
            store,
            lambda: store.read_group("g", "c", {"t": ">", "s": ">"}, block=60, claim_min_idle=0.1),
        )
        assert {key: ms_of(found) for key, found in call.result().items()} == {b"s": [1]}
        assert call.seconds < 0.1 + LATE_S

    retried(once)


def test_a_wait_for_idle_entries_ends_with_nothing_after_its_time(store: Store) -> None:
    def once() -> None:
        store.flush_all()
        group = store.stream("s").create_group("g")
        deliver_to(store, "dead", "1-0")
        began = time.monotonic()
        assert group.consumer("c").read(block=0.1, claim_min_idle=60) == []
        assert 0.1 <= time.monotonic() - began < 0.1 + LATE_S
        assert group.pending().consumers == {b"dead": 1}

    retried(once)


def test_pending_entries_of_deleted_messages_wake_no_reader_and_use_no_processor(
    store: Store, counted: CountedClock
) -> None:
    group = store.stream("s").create_group("g")
    deliver_to(store, "dead", "1-0")
    store.stream("s").delete("1-0")
    until(lambda: group.pending_range(min_idle=0.01) != [], "the entry to be idle")
    before = counted.reads
    assert group.consumer("c").read(block=0.3, claim_min_idle=0.01) == []
    assert counted.reads - before < 90
    assert group.pending().count == 1


def test_the_time_of_the_next_claim_is_known_without_pending_entries(
    store: Store,
) -> None:
    group = store.stream("s").create_group("g")
    name = b"\x00\x00s"
    earliest = store.engine.clock.now_ms()
    due = store.engine.run(claimable_at, name, b"g", 5000)
    assert earliest + 5000 <= due <= store.engine.clock.now_ms() + 5000
    deliver_to(store, "dead", "1-0")
    oldest = store.stream("s").info_full().groups[0].pending[0].delivery_time_ms
    deliver_to(store, "dead", "2-0")
    assert store.engine.run(claimable_at, name, b"g", 5000) == oldest + 5000
    group.nack("2-0")
    assert store.engine.run(claimable_at, name, b"g", 5000) == 5000
