"""TTL of KVSTREAM.ADD: after it a message leaves the stream and the pending lists."""

import pytest

from kvstream import ManualClock, Store
from tests.opening import Stores
from tests.operations.queue_commands import error, ok, opened, step, values


@pytest.fixture
def quiet(open_store: Stores) -> Store:
    return opened(open_store)


def pending(store: Store, group: str = "g") -> int:
    return store.stream("s").group(group).pending().count


def test_a_message_is_deleted_at_the_end_of_its_time(quiet: Store, clock: ManualClock) -> None:
    for n, ttl in enumerate((30, 10, 20)):
        ok(quiet, f"KVSTREAM.ADD s TTL {ttl} n {n}")
    ok(quiet, "KVSTREAM.ADD s n 3")
    clock.advance(9)
    step(quiet)
    assert values(quiet) == ["0", "1", "2", "3"]
    clock.advance(11)
    step(quiet)
    assert values(quiet) == ["0", "3"]
    clock.advance(1000)
    step(quiet)
    assert values(quiet) == ["3"]


def test_an_expired_message_leaves_all_pending_lists(quiet: Store, clock: ManualClock) -> None:
    eid = ok(quiet, "KVSTREAM.ADD s TTL 10 n 1").decode()
    ok(quiet, "KVSTREAM.ADD s TTL 90 n 2")
    for group in ("g", "h"):
        ok(quiet, f"XGROUP CREATE s {group} 0")
        ok(quiet, f"XREADGROUP GROUP {group} c STREAMS s >")
    ok(quiet, f"XACK s h {eid}")
    clock.advance(10)
    step(quiet)
    assert values(quiet) == ["2"]
    assert (pending(quiet), pending(quiet, "h")) == (1, 1)


def test_the_time_of_a_delayed_message_begins_when_it_is_due(
    quiet: Store, clock: ManualClock
) -> None:
    ok(quiet, "KVSTREAM.ADD s DELAY 100 TTL 10 n 1")
    clock.advance(105)
    step(quiet)
    assert values(quiet) == ["1"]
    clock.advance(5)
    step(quiet)
    assert values(quiet) == []


def test_a_message_whose_time_ended_before_it_was_added_is_not_added(
    open_store: Stores, clock: ManualClock
) -> None:
    store = opened(open_store)
    ok(store, "KVSTREAM.ADD s DELAY 100 TTL 10 UNIQUE u WINDOW 0 SKIP n 1")
    ok(store, "KVSTREAM.ADD s DELAY 100 n 2")
    store.close()
    clock.advance(110)
    store = opened(open_store)
    step(store)
    assert values(store) == ["2"]
    ok(store, "KVSTREAM.ADD s UNIQUE u WINDOW 0 SKIP n 3")
    assert values(store) == ["2", "3"], "its unique ID is free"


@pytest.mark.parametrize("rule", ["DEAD graves", "DELIVERIES 3"])
def test_an_expired_pending_message_becomes_a_dead_letter_of_groups_with_dead_letters(
    quiet: Store, clock: ManualClock, rule: str
) -> None:
    key = "graves" if rule.startswith("DEAD") else "s:dead"
    eid = ok(quiet, "KVSTREAM.ADD s TTL 10 n 1")
    for group in ("g", "plain"):
        ok(quiet, f"XGROUP CREATE s {group} 0")
        ok(quiet, f"XREADGROUP GROUP {group} c STREAMS s >")
    ok(quiet, f"KVSTREAM.POLICY SET s g {rule}")
    ok(quiet, "KVSTREAM.ADD s TTL 10 n 2")  # no group reads it
    clock.advance(10)
    step(quiet)
    [letter] = quiet.stream(key)
    assert (letter.fields[b"n"], letter.fields[b"dead:reason"]) == (b"1", b"expired")
    assert (letter.fields[b"dead:id"], letter.fields[b"dead:group"]) == (eid, b"g")
    assert (values(quiet), pending(quiet), pending(quiet, "plain")) == ([], 0, 0)


def test_an_expired_message_that_nobody_has_had_is_no_dead_letter(
    quiet: Store, clock: ManualClock
) -> None:
    ok(quiet, "XGROUP CREATE s g $ MKSTREAM")
    ok(quiet, "KVSTREAM.POLICY SET s g DELIVERIES 3 ORDERBY user FAIR 1")
    for n in range(3):
        ok(quiet, f"KVSTREAM.ADD s TTL 10 user u n {n}")
    assert pending(quiet) == 3, "two of them are held"
    ok(quiet, "XREADGROUP GROUP g c COUNT 1 STREAMS s >")
    clock.advance(10)
    step(quiet)
    assert (values(quiet), pending(quiet), values(quiet, "s:dead")) == ([], 0, ["0"])


def test_a_message_waits_if_its_dead_letter_cannot_be_written(
    quiet: Store, clock: ManualClock
) -> None:
    ok(quiet, "KVSTREAM.ADD s TTL 10 n 1")
    ok(quiet, "XGROUP CREATE s g 0")
    ok(quiet, "XREADGROUP GROUP g c STREAMS s >")
    ok(quiet, "KVSTREAM.POLICY SET s g DEAD text")
    ok(quiet, "SET text no-stream")
    clock.advance(10)
    step(quiet)
    assert (values(quiet), pending(quiet)) == (["1"], 1)
    quiet.delete("text")
    clock.advance(60_000)
    step(quiet)
    assert (values(quiet), values(quiet, "text")) == ([], ["1"])


def test_a_message_may_be_deleted_before_its_time_ends(quiet: Store, clock: ManualClock) -> None:
    for n in range(5):
        ok(quiet, f"KVSTREAM.ADD s TTL 10 n {n}")
    ok(quiet, "XTRIM s MAXLEN 3")
    ok(quiet, "XDEL s " + str(quiet.stream("s").range(count=1)[0].id))
    clock.advance(10)
    step(quiet, 2)
    assert values(quiet) == []


def test_a_time_must_be_positive(quiet: Store) -> None:
    assert "TTL must be a positive number" in error(quiet, "KVSTREAM.ADD s TTL 0 n 1")
    assert "0 to 100 years" in error(quiet, f"KVSTREAM.ADD s TTL {1 << 60} n 1")
    assert not quiet.exists("s")
