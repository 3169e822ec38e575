"""UNIQUE of KVSTREAM.ADD: a message that holds its ID keeps out others, by the rule of the add."""

import pytest

from kvstream import ManualClock, Store
from kvstream.layout.keys import qualified
from kvstream.meta import pel, timers
from kvstream.meta.events.queues import Reason
from kvstream.meta.txn import Txn
from kvstream.operations import unique
from kvstream.operations.delivery import dead
from kvstream.types.ids import StreamID
from tests.opening import Stores
from tests.operations.queue_commands import error, ok, opened, step, values

NAME = qualified(0, b"s")


@pytest.fixture
def quiet(open_store: Stores) -> Store:
    return opened(open_store)


def add(
    store: Store, n: int, rule: str = "SKIP", window: int = 0, options: str = "", id: str = "u"
) -> str:
    """Add message ``n``; return its ID or ticket, or that of the holder."""
    reply = ok(store, f"KVSTREAM.ADD s {options} UNIQUE {id} WINDOW {window} {rule} n {n}")
    return str(reply.decode())


def read(store: Store, group: str = "g", count: int = 1) -> list[str]:
    """Read new entries for a group, which is created if it is missing, and return their IDs."""
    stream = store.stream("s")
    if group.encode() not in [each.name for each in stream.groups()]:
        stream.create_group(group, start="0")
    return [str(entry.id) for entry in stream.group(group).consumer("c").read(count=count)]


def ack(store: Store, eid: str, group: str = "g") -> None:
    assert store.stream("s").group(group).ack(eid) == 1


def rows(store: Store) -> list[bytes]:
    """Return the unique IDs that have rows."""

    def operation(txn: Txn) -> list[bytes]:
        stream = txn.stream(NAME)
        assert stream is not None
        return [suffix[1:] for suffix, _ in timers.scan_rows(txn, stream, unique.ROW_TAG)]

    return store.engine.run(operation)


# --- until it is done ---------------------------------------------------------------------------


def test_an_id_is_held_until_the_message_is_acknowledged(quiet: Store) -> None:
    first = add(quiet, 1)
    assert add(quiet, 2) == first
    assert read(quiet) == [first]
    assert add(quiet, 3) == first, "a consumer works on it"
    ack(quiet, first)
    second = add(quiet, 4)
    assert second != first
    assert values(quiet) == ["1", "4"]
    assert add(quiet, 5, id="other") not in (first, second)
    assert quiet.engine.catalog.queue_events.duplicates_skipped == 2


def test_the_first_acknowledging_group_frees_the_id(quiet: Store) -> None:
    first = add(quiet, 1)
    for group in ("g", "h"):
        assert read(quiet, group) == [first]
    ack(quiet, first, "h")
    assert add(quiet, 2) != first


def test_a_deleted_or_trimmed_message_frees_its_id(quiet: Store) -> None:
    first = add(quiet, 1)
    ok(quiet, f"XDEL s {first}")
    second = add(quiet, 2)
    assert second != first
    ok(quiet, "XADD s MAXLEN = 1 * n 3")
    assert add(quiet, 4) not in (first, second)


def test_a_message_given_back_still_holds_its_id(quiet: Store) -> None:
    first = add(quiet, 1)
    read(quiet)
    ok(quiet, f"XNACK s g FAIL IDS 1 {first}")
    assert add(quiet, 2) == first
    ok(quiet, "XGROUP DESTROY s g")
    assert add(quiet, 2) == first, "no group is left that has read it"


def test_entries_before_the_start_of_a_group_are_not_done_by_it(quiet: Store) -> None:
    first = add(quiet, 1)
    ok(quiet, "XGROUP CREATE s late $")
    assert add(quiet, 2) == first
    ok(quiet, "XGROUP SETID s late 0")
    read(quiet, "late")
    ack(quiet, first, "late")
    assert add(quiet, 3) != first


def test_entries_that_a_moved_group_skips_are_done(quiet: Store) -> None:
    ok(quiet, "XGROUP CREATE s g 0 MKSTREAM")
    first = add(quiet, 1)
    ok(quiet, "XGROUP SETID s g $")
    assert add(quiet, 2) != first


def test_a_reader_that_does_not_acknowledge_frees_the_id_by_reading(quiet: Store) -> None:
    first = add(quiet, 1)
    ok(quiet, "XGROUP CREATE s g 0")
    ok(quiet, "XREADGROUP GROUP g c NOACK STREAMS s >")
    assert add(quiet, 2) != first


def test_a_dead_letter_frees_its_id(quiet: Store) -> None:
    first = add(quiet, 1)
    read(quiet)

    def bury(txn: Txn) -> None:
        stream = txn.stream(NAME)
        assert stream is not None
        group = stream.groups[b"g"]
        parts = list(pel.runs_at(txn, group, [StreamID.parse(first).packed]))
        dead.bury(txn, NAME, stream, group, parts, dead.Cause(Reason.FATAL))

    quiet.engine.run(bury)
    assert add(quiet, 2) != first


def test_rows_of_done_messages_are_removed(quiet: Store, clock: ManualClock) -> None:
    for number in range(5):
        add(quiet, number, id=f"u{number}")
    ids = read(quiet, count=3)
    ok(quiet, f"XACK s g {' '.join(ids[:2])}")
    clock.advance(unique.LOOK_MIN_MS)
    step(quiet)
    assert rows(quiet) == [b"u2", b"u3", b"u4"]
    clock.advance(10 * unique.LOOK_MAX_MS)
    step(quiet)
    assert add(quiet, 9, id="u2") == ids[2], "the ID stays held until the acknowledgement"
    ok(quiet, "XTRIM s MAXLEN 0")
    clock.advance(unique.LOOK_MAX_MS)
    step(quiet)
    assert rows(quiet) == []


# --- a window -----------------------------------------------------------------------------------


def test_a_window_holds_an_id_after_the_message_is_done_or_deleted(
    quiet: Store, clock: ManualClock
) -> None:
    first = add(quiet, 1, window=100)
    read(quiet)
    ack(quiet, first)
    ok(quiet, f"XDEL s {first}")
    clock.advance(99)
    step(quiet)
    assert add(quiet, 2, window=100) == first
    clock.advance(1)
    assert add(quiet, 3, window=100) != first
    clock.advance(100)
    step(quiet)
    assert rows(quiet) == []


def test_a_window_survives_a_restart(open_store: Stores, clock: ManualClock) -> None:
    store = opened(open_store)
    first = add(store, 1, window=100)
    store.close()
    clock.advance(50)
    store = opened(open_store)
    assert add(store, 2, window=100) == first
    clock.advance(50)
    assert add(store, 3, window=100) != first


def test_a_clock_set_back_lengthens_a_window(quiet: Store, clock: ManualClock) -> None:
    first = add(quiet, 1, window=100)
    clock.advance(-1000)
    step(quiet)
    assert add(quiet, 2, window=100) == first


# --- delayed messages ---------------------------------------------------------------------------


def test_a_delayed_message_holds_its_id_under_its_ticket_and_then_its_id(
    quiet: Store, clock: ManualClock
) -> None:
    ticket = add(quiet, 1, options="DELAY 10")
    assert add(quiet, 2, options="DELAY 90") == add(quiet, 3) == ticket
    moved = ok(quiet, f"KVSTREAM.DELAYED MOVE s {ticket} {clock.ms + 20}").decode()
    assert add(quiet, 2) == moved
    clock.advance(20)
    step(quiet)
    [entry] = quiet.stream("s")
    assert add(quiet, 4) == str(entry.id)
    assert values(quiet) == ["1"]


def test_a_cancelled_message_frees_its_id(quiet: Store) -> None:
    for window in (0, 5000):
        ticket = add(quiet, 1, window=window, options="DELAY 10")
        ok(quiet, f"KVSTREAM.DELAYED CANCEL s {ticket}")
        assert rows(quiet) == []


def test_cancelling_a_message_that_no_longer_holds_its_id_frees_nothing(
    quiet: Store, clock: ManualClock
) -> None:
    old = add(quiet, 1, window=5, options="DELAY 100")
    clock.advance(5)
    new = add(quiet, 2, window=50, options="DELAY 100")
    ok(quiet, f"KVSTREAM.DELAYED CANCEL s {old}")
    assert add(quiet, 3, window=5) == new


# --- REPLACE, DEBOUNCE, AFTER -------------------------------------------------------------------


def test_replace_replaces_a_message_that_is_not_delivered(quiet: Store) -> None:
    first = add(quiet, 1, "REPLACE")
    second = add(quiet, 2, "REPLACE")
    assert (second != first, values(quiet)) == (True, ["2"])
    assert read(quiet) == [second]
    assert add(quiet, 3, "REPLACE") == second, "a consumer works on it"
    ack(quiet, second)
    assert add(quiet, 4, "REPLACE") != second
    assert values(quiet) == ["2", "4"]


def test_replace_replaces_a_delayed_message(quiet: Store, clock: ManualClock) -> None:
    first = add(quiet, 1, "REPLACE", options="DELAY 10")
    second = add(quiet, 2, "REPLACE", options="DELAY 30")
    assert first != second
    clock.advance(10)
    step(quiet)
    assert values(quiet) == []
    third = add(quiet, 3, "REPLACE")
    assert values(quiet) == ["3"]
    assert ok(quiet, "KVSTREAM.DELAYED LEN s") == 0
    assert add(quiet, 4, "REPLACE", options="DELAY 5").startswith("@")
    assert (third, values(quiet)) == (third, [])


def test_replace_within_a_window_leaves_done_messages(quiet: Store) -> None:
    first = add(quiet, 1, "REPLACE", 1000)
    read(quiet)
    ack(quiet, first)
    assert add(quiet, 2, "REPLACE", 1000) == first
    assert values(quiet) == ["1"]


def test_debounce_moves_the_time_and_replaces_the_fields(quiet: Store, clock: ManualClock) -> None:
    for number in range(5):
        add(quiet, number, "DEBOUNCE", 0, "DELAY 10")
        clock.advance(9)
        step(quiet)
    assert values(quiet) == []
    clock.advance(1)
    step(quiet)
    assert values(quiet) == ["4"]
    add(quiet, 5, "DEBOUNCE", 0, "DELAY 10")
    clock.advance(10)
    step(quiet)
    assert values(quiet) == ["4", "5"], "a change after the message is kept"


def times(store: Store) -> list[int]:
    """Return when the delayed messages are due."""
    return [each.ticket.at_ms for each in store.stream("s").delayed(count=100)]


def test_debounce_ends_at_the_longest_wait(quiet: Store, clock: ManualClock) -> None:
    begun_ms = clock.now_ms()
    for n in range(1, 4):
        add(quiet, n, "MAXWAIT 2500 DEBOUNCE", options="DELAY 1000")
        clock.advance(900)
    assert times(quiet) == [begun_ms + 2500]
    clock.advance(1000)
    step(quiet)
    assert values(quiet) == ["3"]
    add(quiet, 4, "MAXWAIT 2500 DEBOUNCE", options="DELAY 1000")
    assert times(quiet) == [clock.now_ms() + 1000]
    assert quiet.check() == []


def test_more_messages_than_a_window_takes_are_left_out(quiet: Store, clock: ManualClock) -> None:
    first, second, third = [add(quiet, n, "MOST 2 SKIP", 1000) for n in (1, 2, 3)]
    assert first != second == third
    clock.advance(999)
    assert add(quiet, 4, "MOST 2 SKIP", 1000) == second
    clock.advance(1)
    add(quiet, 5, "MOST 2 SKIP", 1000)
    assert values(quiet) == ["1", "2", "5"]
    assert quiet.check() == []


def test_throttle_delays_messages_to_the_next_window_with_room(
    quiet: Store, clock: ManualClock
) -> None:
    begun_ms = clock.now_ms()
    for n in range(5):
        add(quiet, n, "MOST 2 THROTTLE", 1000)
    assert values(quiet) == ["0", "1"]
    assert times(quiet) == [begun_ms + 1000, begun_ms + 1000, begun_ms + 2000]
    clock.advance(1500)
    step(quiet)
    add(quiet, 5, "MOST 2 THROTTLE", 1000)
    add(quiet, 6, "MOST 2 THROTTLE", 1000)
    assert times(quiet) == [begun_ms + 2000, begun_ms + 2000, begun_ms + 3000]
    clock.advance(3000)
    step(quiet)
    assert rows(quiet) == []
    assert values(quiet) == list("0123456")
    add(quiet, 7, "MOST 2 THROTTLE", 1000)
    assert values(quiet)[-1] == "7"
    assert quiet.check() == []


def test_a_throttled_message_that_is_cancelled_keeps_its_place(
    quiet: Store, clock: ManualClock
) -> None:
    add(quiet, 1, "THROTTLE", 1000)
    ticket = add(quiet, 2, "THROTTLE", 1000)
    assert quiet.stream("s").cancel(ticket) == 1
    assert quiet.check() == []
    add(quiet, 3, "THROTTLE", 1000)
    assert times(quiet) == [clock.now_ms() + 2000]


def test_replace_replaces_a_message_that_waits_behind_its_key(quiet: Store) -> None:
    quiet.stream("s").create_group("g").set_policy(order_by="key", fair=True)
    add(quiet, 1)
    for n in (2, 3):
        ok(quiet, f"KVSTREAM.ADD s UNIQUE v WINDOW 0 REPLACE n {n}")
    assert values(quiet) == ["1", "3"]
    assert read(quiet, count=5) == [str(quiet.stream("s").range()[0].id)]
    assert quiet.check() == []


def test_after_queues_one_message_behind_the_running_one(quiet: Store) -> None:
    first = add(quiet, 1, "AFTER")
    assert add(quiet, 2, "AFTER") == first, "the waiting one will include the change"
    assert read(quiet) == [first]
    second = add(quiet, 3, "AFTER")
    assert second != first
    assert add(quiet, 4, "AFTER") == second
    ack(quiet, first)
    assert add(quiet, 5, "AFTER") == second
    assert read(quiet) == [second]
    assert add(quiet, 6, "AFTER") not in (first, second)
    assert values(quiet) == ["1", "3", "6"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("UNIQUE u WINDOW 0", "must be SKIP, REPLACE, DEBOUNCE, AFTER, or THROTTLE"),
        ("UNIQUE u WIDTH 0 SKIP", "syntax error"),
        ("UNIQUE u WINDOW x SKIP", "not an integer"),
        ("UNIQUE u WINDOW -1 SKIP", "a window must be 0 to 100 years in ms, not -1"),
        ("UNIQUE u WINDOW 0 SKIPP", "must be SKIP, REPLACE, DEBOUNCE, AFTER, or THROTTLE"),
        ("UNIQUE u WINDOW 0 DEBOUNCE", "DEBOUNCE needs a delay"),
        (f"UNIQUE {'u' * 1025} WINDOW 0 SKIP", "a unique ID has 1 to 1024 bytes, not 1025"),
    ],
)
def test_wrong_rules_are_named_and_change_nothing(quiet: Store, options: str, text: str) -> None:
    assert text in error(quiet, f"KVSTREAM.ADD s {options} n 1")
    assert not quiet.exists("s")


def test_a_stream_without_free_ids_keeps_the_message_to_replace(quiet: Store) -> None:
    ticket = add(quiet, 1, "REPLACE", options="DELAY 10")
    ok(quiet, "XADD s 18446744073709551615-18446744073709551615 n 0")
    assert "exhausted" in error(quiet, "KVSTREAM.ADD s UNIQUE u WINDOW 0 REPLACE n 2")
    assert ok(quiet, "KVSTREAM.DELAYED LIST s")[0][0] == ticket.encode()


def test_a_damaged_row_is_found_and_removed(quiet: Store) -> None:
    add(quiet, 1)
    add(quiet, 2, id="v")

    def damage(txn: Txn) -> None:
        stream = txn.stream(NAME)
        assert stream is not None
        timers.put_row(txn, stream, b"Uu", b"x")
        timers.put_row(txn, stream, b"Gg", b"x")

    quiet.engine.run(damage)
    assert quiet.check(repair=True)
    assert quiet.check() == []
    assert rows(quiet) == [b"v"]
