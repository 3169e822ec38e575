"""KVSTREAM.ADD and KVSTREAM.DELAYED: each message enters its stream once, when it is due."""

from collections.abc import Callable

import pytest

from kvstream import ManualClock, Store
from kvstream.engine import timer_thread
from kvstream.layout.keys import U64, qualified
from kvstream.meta import timers
from kvstream.meta.txn import Txn
from kvstream.types.ids import Ticket
from tests.opening import Stores
from tests.operations.queue_commands import error, ok, opened, step, values


@pytest.fixture
def quiet(open_store: Stores) -> Store:
    """Open a store whose timer thread does nothing: the test fires the timers."""
    return opened(open_store)


def list_delayed(store: Store) -> list[str]:
    return [flat[1].decode() for _, flat in ok(store, "KVSTREAM.DELAYED LIST s COUNT 100000")]


def test_an_add_without_a_time_works_like_xadd(quiet: Store) -> None:
    assert ok(quiet, "KVSTREAM.ADD s n 1") == b"1700000000000-0"
    assert ok(quiet, "KVSTREAM.ADD s DELAY 0 n 2") == b"1700000000000-1"
    assert ok(quiet, "KVSTREAM.ADD s AT 5 * n 3") == b"1700000000000-2"
    assert values(quiet) == ["1", "2", "3"]
    assert ok(quiet, "KVSTREAM.DELAYED LEN s") == 0


def test_a_delayed_message_gets_its_id_when_it_is_due(quiet: Store, clock: ManualClock) -> None:
    ticket = ok(quiet, "KVSTREAM.ADD s DELAY 10 n late")
    assert ticket.startswith(b"@1700000000010-")
    ok(quiet, "XADD s 1700000000005-0 n early")
    clock.advance(9)
    step(quiet)
    assert values(quiet) == ["early"]
    assert ok(quiet, "KVSTREAM.DELAYED LIST s") == [[ticket, [b"n", b"late"]]]
    clock.advance(6)
    step(quiet)
    assert [str(entry.id) for entry in quiet.stream("s")] == ["1700000000005-0", "1700000000015-0"]
    assert ok(quiet, "KVSTREAM.DELAYED LEN s") == 0
    assert ok(quiet, "KVSTREAM.DELAYED LIST s") == []


def test_messages_of_one_millisecond_keep_the_order_of_their_adds(
    quiet: Store, clock: ManualClock
) -> None:
    for number in range(50):
        ok(quiet, f"KVSTREAM.ADD s AT {clock.ms + 10 - number % 3} n {number}")
    clock.advance(10)
    step(quiet, 7)
    assert values(quiet) == [str(n) for n in sorted(range(50), key=lambda n: (-(n % 3), n))]
    assert quiet.engine.catalog.timers_taken == {}


def test_a_blocked_group_reader_gets_a_message_when_it_is_due(
    store: Store, clock: ManualClock
) -> None:
    group = store.stream("s").create_group("g", mkstream=True)
    ok(store, "KVSTREAM.ADD s DELAY 50 n 1")
    clock.advance(50)
    assert [entry.fields for entry in group.consumer("c").read(block=30)] == [{b"n": b"1"}]


def test_a_message_can_be_cancelled_until_it_is_due(quiet: Store, clock: ManualClock) -> None:
    first, second = (ok(quiet, f"KVSTREAM.ADD s DELAY 5 n {n}").decode() for n in (1, 2))
    assert ok(quiet, f"KVSTREAM.DELAYED CANCEL s {first} {first} @5-5") == 1
    assert list_delayed(quiet) == ["2"]
    clock.advance(5)
    step(quiet)
    assert values(quiet) == ["2"]
    assert ok(quiet, f"KVSTREAM.DELAYED CANCEL s {first} {second}") == 0
    assert ok(quiet, f"KVSTREAM.DELAYED CANCEL none {first}") == 0


def test_a_message_can_be_moved_to_another_time(quiet: Store, clock: ManualClock) -> None:
    first, second = (ok(quiet, f"KVSTREAM.ADD s DELAY 50 n {n}").decode() for n in (1, 2))
    moved = ok(quiet, f"KVSTREAM.DELAYED MOVE s {first} {clock.ms + 90}").decode()
    assert moved == first.replace(str(clock.ms + 50), str(clock.ms + 90))
    assert ok(quiet, f"KVSTREAM.DELAYED MOVE s {first} {clock.ms + 90}") is None
    sooner = ok(quiet, f"KVSTREAM.DELAYED MOVE s {second} 7")
    assert sooner.startswith(b"@%d-" % clock.ms), "a time in the past is treated as now"
    step(quiet)
    assert (values(quiet), list_delayed(quiet)) == (["2"], ["1"])
    clock.advance(90)
    step(quiet)
    assert values(quiet) == ["2", "1"]


def test_a_list_is_read_page_by_page(quiet: Store, clock: ManualClock) -> None:
    for number in range(250):
        ok(quiet, f"KVSTREAM.ADD s DELAY {1 + number % 9} n {number}")
    assert ok(quiet, "KVSTREAM.DELAYED LEN s") == 250
    found, start = [], ""
    while page := ok(quiet, f"KVSTREAM.DELAYED LIST s {start}"):
        assert len(page) <= 100
        found += [int(flat[1]) for _, flat in page]
        start = f"({page[-1][0].decode()}"
    assert found == sorted(range(250), key=lambda n: (n % 9, n))
    assert len(ok(quiet, f"KVSTREAM.DELAYED LIST s {start[1:]} COUNT 5")) == 1
    clock.advance(4)
    step(quiet)
    assert [flat[1] for _, flat in ok(quiet, "KVSTREAM.DELAYED LIST s COUNT 2")] == [b"4", b"13"]


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("ADD s DELAY 5", "wrong number of arguments"),
        ("ADD s DELAY 5 n 1 m", "wrong number of arguments"),
        ("ADD s DELAY 5 AT 5 n 1", "DELAY and AT exclude each other"),
        ("ADD s DELAY -1 n 1", "a delay must be 0 to 100 years"),
        ("ADD s DELAY x n 1", "not an integer"),
        ("ADD s AT 1700000000 n 1", "is in seconds: give milliseconds, 1700000000000"),
        ("ADD s AT 1700000000000000 n 1", "must be from 0 to 100 years ahead"),
        ("DELAYED MOVE s @5-1 1700000000", "is in seconds"),
        ("DELAYED MOVE s 5-1 5", "'@ms-number'"),
        ("DELAYED CANCEL s @5", "'@ms-number'"),
        ("DELAYED LIST s COUNT 0", "COUNT must be a positive integer"),
        ("DELAYED LIST s 5-1", "syntax error"),
    ],
)
def test_wrong_arguments_are_named_and_change_nothing(
    quiet: Store, command: str, text: str
) -> None:
    assert text in error(quiet, f"KVSTREAM.{command}")
    assert not quiet.exists("s")


def test_the_options_end_at_an_asterisk(quiet: Store) -> None:
    ok(quiet, "KVSTREAM.ADD s * DELAY 5 n 1")
    ok(quiet, "KVSTREAM.ADD s * 5 n 1")
    assert [entry.flat for entry in quiet.stream("s")] == [
        (b"DELAY", b"5", b"n", b"1"),
        (b"*", b"5", b"n", b"1"),
    ]


def test_fields_are_kept_as_they_were_given(quiet: Store, clock: ManualClock) -> None:
    ok(quiet, "KVSTREAM.ADD s DELAY 1 a 1 b 2 a 3")
    assert ok(quiet, "KVSTREAM.DELAYED LIST s")[0][1] == [b"a", b"1", b"b", b"2", b"a", b"3"]
    clock.advance(1)
    step(quiet)
    assert [entry.flat for entry in quiet.stream("s")] == [(b"a", b"1", b"b", b"2", b"a", b"3")]


def test_a_clock_set_back_delays_a_message_and_repeats_none(
    quiet: Store, clock: ManualClock
) -> None:
    ok(quiet, "KVSTREAM.ADD s DELAY 10 n 1")
    ok(quiet, "KVSTREAM.ADD s DELAY 20 n 2")
    clock.advance(10)
    step(quiet)
    clock.advance(-5000)
    step(quiet)
    assert values(quiet) == ["1"]
    clock.advance(5010)
    step(quiet)
    assert values(quiet) == ["1", "2"]
    ids = [entry.id for entry in quiet.stream("s")]
    assert ids == sorted(ids)


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (lambda store: store.rename("s", "t"), ["t"]),
        (lambda store: store.delete("s"), []),
        (lambda store: store.flush(), []),
        (lambda store: store.copy("s", "t"), ["s", "t"]),
        (lambda store: store.expire("s", 0.001), []),
        (lambda store: store.restore("t", store.dump("s") or b""), ["s"]),
    ],
    ids=["RENAME", "DEL", "FLUSHDB", "COPY", "PEXPIRE", "DUMP and RESTORE"],
)
def test_delayed_messages_are_renamed_and_deleted_with_their_key(
    quiet: Store, clock: ManualClock, change: Callable[[Store], object], keys: list[str]
) -> None:
    ok(quiet, "KVSTREAM.ADD s DELAY 5 n 1")
    change(quiet)
    clock.advance(5)
    step(quiet)
    assert [key for key in ("s", "t") if quiet.exists(key) and values(quiet, key)] == keys
    assert quiet.check() == []


def test_a_reopened_store_fires_the_timers_due_since_it_was_closed(
    open_store: Stores, clock: ManualClock
) -> None:
    store = opened(open_store)
    for number in range(5):
        ok(store, f"KVSTREAM.ADD s DELAY {number + 1} n {number}")
    store.close()
    clock.advance(3)
    store = opened(open_store)
    step(store)
    assert (values(store), list_delayed(store)) == (["0", "1", "2"], ["3", "4"])


def test_a_step_of_large_messages_ends_at_a_megabyte(quiet: Store, clock: ManualClock) -> None:
    for number in range(6):
        ok(quiet, f"KVSTREAM.ADD s DELAY 1 n {number} x {'x' * 700_000}")
    clock.advance(1)
    assert quiet.engine.run(timer_thread.run_due, 500) == 2
    step(quiet)
    assert values(quiet) == ["0", "1", "2", "3", "4", "5"]
    ok(quiet, f"KVSTREAM.ADD s DELAY 1 n 7 x {'x' * 2_000_000}")
    ok(quiet, f"KVSTREAM.ADD s DELAY 1 n 8 x {'x' * 2_000_000}")
    assert len(ok(quiet, "KVSTREAM.DELAYED LIST s")) == 1


def test_a_stream_without_free_ids_keeps_its_messages(quiet: Store, clock: ManualClock) -> None:
    ok(quiet, "KVSTREAM.ADD s DELAY 1 n 1")
    ok(quiet, "XADD s 18446744073709551615-18446744073709551615 n 0")
    clock.advance(1)
    step(quiet)
    assert ok(quiet, "KVSTREAM.DELAYED LEN s") == 1
    ok(quiet, "XTRIM s MAXLEN 0")
    ok(quiet, "XSETID s 5-0")
    clock.advance(60_000)
    step(quiet)
    assert values(quiet) == ["1"]


def test_a_transaction_that_is_undone_leaves_no_delayed_message(quiet: Store) -> None:
    def fail() -> None:
        with quiet.transaction():
            ok(quiet, "KVSTREAM.ADD s DELAY 1 n 1")
            raise RuntimeError("undo")

    with pytest.raises(RuntimeError, match="undo"):
        fail()
    assert ok(quiet, "KVSTREAM.DELAYED LEN s") == 0


def test_a_backlog_of_one_stream_does_not_hold_up_another(quiet: Store, clock: ManualClock) -> None:
    for number in range(300):
        ok(quiet, f"KVSTREAM.ADD s DELAY 1 n {number}")
    ok(quiet, "KVSTREAM.ADD t DELAY 2 n late")
    clock.advance(2)
    quiet.engine.run(timer_thread.run_due, 100)
    assert values(quiet, "t") == ["late"]
    assert len(values(quiet)) == 50
    step(quiet, 100)
    assert values(quiet) == [str(number) for number in range(300)]


def test_a_damaged_message_waits_and_the_others_are_added(quiet: Store, clock: ManualClock) -> None:
    tickets = [ok(quiet, f"KVSTREAM.ADD s DELAY 1 n {number}") for number in range(3)]

    def damage(txn: Txn) -> None:
        stream = txn.stream(qualified(0, b"s"))
        assert stream is not None
        at_ms, number = Ticket.parse(tickets[1])
        timers.put(txn, stream, at_ms, timers.Kind.DELAYED, U64.pack(number), b"damaged")

    quiet.engine.run(damage)
    clock.advance(1)
    step(quiet)
    assert values(quiet) == ["0", "2"]
    assert ok(quiet, "KVSTREAM.DELAYED LEN s") == 1
    assert len(quiet.check(repair=True)) == 2
    assert quiet.check() == []
    assert ok(quiet, "KVSTREAM.DELAYED LEN s") == 0


def test_tickets_are_parsed_and_sorted() -> None:
    assert Ticket.parse("@5-7") == Ticket.parse(b"@5-7") == Ticket(5, 7)
    assert str(Ticket(5, 7)) == "@5-7"
    assert repr(Ticket(5, 7)) == "Ticket('@5-7')"
    assert Ticket.parse(Ticket(5, 7)) == Ticket(5, 7)
    assert Ticket(5, 7) < Ticket(5, 8) < Ticket(6, 1)
