"""What a reader of ``>`` gets in a group with a policy: retries, expired leases, new entries."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from kvstream import ManualClock, Store
from kvstream.engine import timer_thread
from kvstream.engine.blocking_reads import GroupRead
from kvstream.layout.keys import qualified
from tests.commands.conftest import Say, speaker
from tests.commands.dispatcher import Dispatcher
from tests.opening import Stores, change_thresholds
from tests.operations.queue_commands import step
from tests.patience import PATIENCE_S, until

Read = list[str]


@pytest.fixture
def say(store: Store) -> Say:
    """Run one command on a store where stream s has group g."""
    found = speaker(Dispatcher(store.engine))
    found("XGROUP CREATE s g $ MKSTREAM")
    return found


def ids(reply: Any) -> Read:
    """Return the IDs that a read has delivered."""
    return [] if reply is None else [entry[0].decode() for entry in reply[0][1]]


def add(say: Say, *numbers: int) -> None:
    for number in numbers:
        say(f"XADD s {number}-0 f {number}")


def read(say: Say, consumer: str = "c", options: str = "") -> Read:
    return ids(say(f"XREADGROUP GROUP g {consumer} {options} STREAMS s >"))


def lease(say: Say, entries: int, count: int | None = None) -> None:
    """Add entries and deliver them, or the first ``count``, to a, with leases of a second."""
    say("KVSTREAM.POLICY SET s g LEASE 1000")
    add(say, *range(1, entries + 1))
    read(say, "a", "" if count is None else f"COUNT {count}")


def pending(say: Say) -> dict[str, tuple[str, int]]:
    """Return the consumer and the deliveries of each pending entry."""
    rows = say("XPENDING s g - + 1000")
    return {row[0].decode(): (row[1].decode(), row[3]) for row in rows}


# --- leases -------------------------------------------------------------------------------------


def test_an_entry_with_an_expired_lease_is_delivered_to_the_next_reader(
    say: Say, clock: ManualClock
) -> None:
    say("KVSTREAM.POLICY SET s g LEASE 1000")
    add(say, 1, 2)
    assert read(say, "a") == ["1-0", "2-0"]
    clock.advance(999)
    assert read(say, "b") == []
    clock.advance(1)
    assert read(say, "b", "COUNT 1") == ["1-0"]
    assert pending(say) == {"1-0": ("b", 2), "2-0": ("a", 1)}


def test_entries_with_expired_leases_come_oldest_first_and_before_new_ones(
    say: Say, clock: ManualClock
) -> None:
    say("KVSTREAM.POLICY SET s g LEASE 1000")
    add(say, 1, 2, 3)
    for count in (2, 1):
        read(say, "a", f"COUNT {count}")
        clock.advance(10)
    say("XCLAIM s g a 0 1-0")
    add(say, 4)
    clock.advance(1000)
    assert read(say, "b") == ["2-0", "3-0", "1-0", "4-0"]


def test_each_lease_ends_at_its_own_time(say: Say, clock: ManualClock) -> None:
    say("KVSTREAM.POLICY SET s g LEASE 1000")
    add(say, 1, 2, 3)
    for _ in range(3):
        read(say, "a", "COUNT 1")
        clock.advance(300)
    say("XACK s g 1-0")
    clock.advance(100)  # the first lease would end
    assert read(say, "b") == []
    clock.advance(300)
    assert read(say, "b") == ["2-0"]
    clock.advance(300)
    assert read(say, "b") == ["3-0"]


def test_a_lease_that_began_while_the_clock_was_set_back_ends_on_time(
    say: Say, clock: ManualClock
) -> None:
    lease(say, 2, count=1)
    clock.advance(-5000)
    say("KVSTREAM.EXTEND s g a 1-0 1")
    clock.advance(1000)
    assert read(say, "b", "COUNT 1") == ["1-0"]


def test_a_renewed_lease_does_not_expire(say: Say, clock: ManualClock) -> None:
    lease(say, 1)
    for _ in range(3):
        clock.advance(900)
        assert say("KVSTREAM.EXTEND s g a 1-0 1") == [1]
        assert read(say, "b") == []


def test_without_a_lease_nothing_expires(say: Say, clock: ManualClock) -> None:
    say("KVSTREAM.POLICY SET s g DELIVERIES 3")
    add(say, 1)
    read(say, "a")
    clock.advance(10**9)
    assert read(say, "b") == []


def test_a_clock_that_was_set_back_keeps_leases(say: Say, clock: ManualClock) -> None:
    lease(say, 1)
    clock.advance(-5000)
    assert read(say, "b") == []
    clock.advance(6000)
    assert read(say, "b") == ["1-0"]


def test_a_lease_set_to_time_0_has_expired(say: Say) -> None:
    lease(say, 2)
    say("XCLAIM s g a 0 2-0 TIME 0 JUSTID")
    say("XNACK s g FAIL IDS 1 1-0")
    assert read(say, "b") == ["1-0", "2-0"]


def test_claim_shows_deliveries_and_does_not_cut_a_lease_short(
    say: Say, clock: ManualClock
) -> None:
    lease(say, 2, count=1)
    clock.advance(500)
    found = say("XREADGROUP GROUP g b CLAIM 100 STREAMS s >")
    assert [[entry[0], *entry[2:]] for entry in found[0][1]] == [[b"2-0", 0, 0]]
    clock.advance(500)
    found = say("XREADGROUP GROUP g b CLAIM 100000 STREAMS s >")
    assert [[entry[0], *entry[2:]] for entry in found[0][1]] == [[b"1-0", 1000, 1]]


def test_claim_repeats_idle_entries_of_a_policy_without_a_lease(
    say: Say, clock: ManualClock
) -> None:
    say("KVSTREAM.POLICY SET s g INFLIGHT 5")
    add(say, 1)
    read(say, "a")
    clock.advance(100)
    assert read(say, "b", "CLAIM 101") == []
    assert read(say, "b", "CLAIM 100") == ["1-0"]


def test_noack_removes_delivered_entries_from_the_pending_list(
    say: Say, clock: ManualClock
) -> None:
    lease(say, 2, count=1)
    clock.advance(1000)
    assert read(say, "b", "NOACK") == ["1-0", "2-0"]
    assert pending(say) == {}


def test_deleted_entries_are_done(say: Say, clock: ManualClock) -> None:
    lease(say, 3)
    say("XDEL s 1-0 2-0")
    clock.advance(1000)
    assert read(say, "b", "COUNT 1") == ["3-0"]
    assert pending(say) == {"3-0": ("b", 2)}


# --- what was given back ------------------------------------------------------------------------


def test_ready_entries_come_first_in_the_order_in_which_they_became_ready(say: Say) -> None:
    lease(say, 3)
    say("XNACK s g FAIL IDS 1 3-0")
    say("XNACK s g FAIL IDS 1 1-0")
    add(say, 4)
    assert read(say, "b") == ["3-0", "1-0", "4-0"]


def test_a_waiting_entry_is_delivered_when_it_is_due(
    store: Store, say: Say, clock: ManualClock
) -> None:
    say("KVSTREAM.POLICY SET s g LEASE 60000 BACKOFF 1000")
    add(say, 1)
    read(say, "a")
    assert say("XNACK s g FAIL IDS 1 1-0") == 1
    clock.advance(999)
    step(store)
    assert read(say, "b") == []
    clock.advance(1)
    step(store)
    assert read(say, "b") == ["1-0"]
    assert pending(say) == {"1-0": ("b", 2)}


def test_an_entry_with_too_many_failures_moves_to_the_dead_letters(
    say: Say, clock: ManualClock
) -> None:
    say("KVSTREAM.POLICY SET s g LEASE 1000 DELIVERIES 2")
    add(say, 1, 2)
    read(say, "a", "COUNT 1")
    clock.advance(1000)
    assert read(say, "b", "COUNT 1") == ["1-0"]
    clock.advance(1000)
    assert read(say, "c") == ["2-0"]
    ((_, fields),) = say("XRANGE s:dead - +")
    dead_letter = dict(zip(fields[::2], fields[1::2], strict=True))
    assert dead_letter[b"dead:reason"] == b"max-deliveries"
    assert dead_letter[b"f"] == b"1"
    assert (dead_letter[b"dead:id"], dead_letter[b"dead:deliveries"]) == (b"1-0", b"2")
    assert pending(say) == {"2-0": ("c", 1)}


def test_four_failing_entries_do_not_block_the_others(say: Say, clock: ManualClock) -> None:
    say("KVSTREAM.POLICY SET s g LEASE 1000 DELIVERIES 3")
    add(say, *range(1, 501))
    bad, done = {"10-0", "11-0", "200-0", "500-0"}, set()
    for _ in range(4):
        while found := read(say, "c", "COUNT 100"):
            done |= {*found} - bad
            for eid in {*found} - bad:
                say(f"XACK s g {eid}")
        clock.advance(1000)
    assert len(done) == 496
    assert pending(say) == {}
    assert say("XLEN s:dead") == 4


def test_more_dead_letters_than_a_read_moves_are_moved_by_the_next_reads(
    store: Store, say: Say, clock: ManualClock
) -> None:
    change_thresholds(store.engine, buried_entries=2)
    say("KVSTREAM.POLICY SET s g LEASE 1000 DELIVERIES 1")
    for number in range(1, 7):
        add(say, number)
        read(say, "c")
        clock.advance(1)
    add(say, 7)
    clock.advance(1000)
    assert read(say, "d") == ["7-0"]
    assert say("XLEN s:dead") == 2
    for _ in range(2):
        read(say, "d")
    assert say("XLEN s:dead") == 6


# --- limits -------------------------------------------------------------------------------------


def count_limited(store: Store) -> dict[str, int]:
    return {kind: n for kind, n in store.engine.catalog.queue_events.limited.items() if n}


def test_the_policy_limits_the_entries_in_flight(store: Store, say: Say) -> None:
    say("KVSTREAM.POLICY SET s g INFLIGHT 2")
    add(say, 1, 2, 3)
    assert read(say, "a") == ["1-0", "2-0"]
    assert count_limited(store) == {"in-flight": 1}
    assert read(say, "b") == []
    say("XACK s g 1-0")
    assert read(say, "b") == ["3-0"]
    assert count_limited(store) == {"in-flight": 2}
    assert read(say, "b") == []
    assert count_limited(store) == {"in-flight": 2}, "no entry was held back"


def test_entries_that_wait_are_not_in_flight(say: Say, clock: ManualClock) -> None:
    say("KVSTREAM.POLICY SET s g INFLIGHT 1 LEASE 1000 BACKOFF 5000")
    add(say, 1, 2)
    read(say, "a")
    say("XNACK s g FAIL IDS 1 1-0")
    assert read(say, "b") == ["2-0"]
    clock.advance(1000)
    assert read(say, "c") == ["2-0"], "a lapsed lease frees its own place"


def test_a_rate_holds_in_every_window(store: Store, say: Say, clock: ManualClock) -> None:
    say("KVSTREAM.POLICY SET s g RATE 3 1000")
    add(say, *range(1, 60))
    delivered: list[int] = []
    for _ in range(700):
        delivered += [clock.ms] * len(read(say, "a", "COUNT 2"))
        clock.advance(7)
    for at in delivered:
        assert sum(at <= each < at + 1000 for each in delivered) <= 3
    assert len(delivered) >= 13
    assert count_limited(store)["rate"] > 100


def test_a_rate_survives_a_restart(open_store: Stores, clock: ManualClock) -> None:
    store = open_store("own")
    say = speaker(Dispatcher(store.engine))
    say("XGROUP CREATE s g $ MKSTREAM")
    say("KVSTREAM.POLICY SET s g RATE 3 1000")
    add(say, *range(1, 9))
    assert len(read(say)) == 3
    store.close()
    say = speaker(Dispatcher(open_store("own").engine))
    clock.advance(999)
    assert read(say) == []
    clock.advance(1)
    assert len(read(say)) == 3


def test_a_rate_holds_for_its_own_time_after_a_clock_was_set_back(
    store: Store, say: Say, clock: ManualClock
) -> None:
    say("KVSTREAM.POLICY SET s g RATE 3 1000")
    add(say, *range(1, 9))
    assert len(read(say)) == 3
    clock.advance(-3_600_000)
    assert read(say) == []
    clock.advance(999)
    assert read(say) == []
    clock.advance(1)
    assert len(read(say)) == 3


def test_a_paused_group_delivers_nothing(store: Store, say: Say, clock: ManualClock) -> None:
    lease(say, 2, count=1)
    assert say("KVSTREAM.POLICY PAUSE s g") == b"OK"
    clock.advance(1000)
    assert read(say, "b") == read(say, "b", "CLAIM 0") == read(say, "b", "COUNT 1") == []
    assert count_limited(store) == {"paused": 3}
    assert say("KVSTREAM.POLICY RESUME s g") == 1
    assert say("KVSTREAM.POLICY RESUME s g") == 0
    assert read(say, "b") == ["1-0", "2-0"]


# --- order by key -------------------------------------------------------------------------------


def keyed(say: Say, *values: str) -> None:
    for number, value in enumerate(values, 1):
        say(f"XADD s {number}-0 user {value}")


def test_an_ordered_group_delivers_one_entry_of_a_key_at_a_time(say: Say) -> None:
    say("KVSTREAM.POLICY SET s g ORDERBY user LEASE 1000")
    keyed(say, "ann", "ann", "bob")
    assert read(say, "a") == ["1-0", "3-0"]
    assert say("KVSTREAM.ACK s g a 1-0 1") == [1]
    assert read(say, "b", "COUNT 1") == ["2-0"]


def test_a_waiting_or_expired_entry_keeps_its_key_busy(
    store: Store, say: Say, clock: ManualClock
) -> None:
    say("KVSTREAM.POLICY SET s g ORDERBY user LEASE 1000 BACKOFF 5000")
    keyed(say, "ann", "ann")
    assert read(say, "a") == ["1-0"]
    clock.advance(1000)
    assert read(say, "b") == ["1-0"]
    say("XNACK s g FAIL IDS 1 1-0")
    assert read(say, "b") == []
    clock.advance(5000)
    step(store)
    assert read(say, "b") == ["1-0"]


def test_a_dead_entry_frees_its_key(say: Say, ask: Any, clock: ManualClock) -> None:
    say("KVSTREAM.POLICY SET s g ORDERBY user LEASE 1000 DELIVERIES 1")
    keyed(say, "ann", "ann", "ann")
    assert read(say, "a") == ["1-0"]
    future = ask(BLOCKED)
    clock.advance(1000)
    assert read_by(future) == ["2-0"]
    future = ask(BLOCKED)
    say("KVSTREAM.NACK s g b FATAL 2-0 1")
    assert read_by(future) == ["3-0"]


# --- moved back ---------------------------------------------------------------------------------


def test_a_group_that_is_moved_back_leaves_pending_entries_alone(say: Say) -> None:
    lease(say, 6, count=5)
    for number in (1, 3, 5):
        say(f"XACK s g {number}-0")
    assert say("KVSTREAM.POLICY SEEK s g 2") == b"1-18446744073709551615"
    assert read(say, "b", "COUNT 1") == ["3-0"]
    assert read(say, "b") == ["5-0", "6-0"]
    assert pending(say)["2-0"] == ("a", 1)


def test_a_read_of_a_group_moved_far_back_looks_at_a_bounded_number_of_entries(
    store: Store, say: Say, ask: Any
) -> None:
    """Later reads, and a blocked one, continue where it stopped."""
    change_thresholds(store.engine, ordered_entries=200)
    say("KVSTREAM.POLICY SET s g LEASE 100000000")
    add(say, *range(1, 1002))
    read(say, "a", "COUNT 1000")
    say("KVSTREAM.POLICY SEEK s g 0")
    assert [read(say, "b") for _ in range(6)] == [[], [], [], [], [], ["1001-0"]]
    add(say, 1002)
    say("KVSTREAM.POLICY SEEK s g 0")
    assert read_by(ask(BLOCKED)) == ["1002-0"]


# --- waking -------------------------------------------------------------------------------------


@pytest.fixture
def ask(store: Store) -> Any:
    pool = ThreadPoolExecutor(max_workers=4)

    def run(line: str) -> "Future[Any]":
        waiting = store.engine.run(lambda txn: len(store.engine.waiters))  # none being served
        future = pool.submit(speaker(Dispatcher(store.engine)), line)
        until(lambda: len(store.engine.waiters) != waiting or future.done(), line)
        return future

    yield run
    pool.shutdown(wait=False)


def read_by(future: "Future[Any]") -> Read:
    return ids(future.result(timeout=PATIENCE_S))


BLOCKED = "XREADGROUP GROUP g b BLOCK 0 STREAMS s >"


def test_a_blocked_reader_wakes_when_a_lease_ends(say: Say, ask: Any, clock: ManualClock) -> None:
    lease(say, 1)
    future = ask(BLOCKED)
    clock.advance(900)
    say("KVSTREAM.EXTEND s g a 1-0 1")
    clock.advance(999)
    assert not future.done()
    clock.advance(1)
    assert read_by(future) == ["1-0"]


def test_the_readers_of_very_many_streams_wake_in_steps(
    store: Store, say: Say, clock: ManualClock
) -> None:
    change_thresholds(store.engine, woken_streams=2)
    store.engine.timers.paused = True
    woken: list[Any] = []
    for number in range(3):
        name = qualified(0, b"s%d" % number)
        say(f"XADD s{number} 1-0 f v")
        say(f"XGROUP CREATE s{number} g 0")
        say(f"KVSTREAM.POLICY SET s{number} g LEASE 1000")
        say(f"XREADGROUP GROUP g a STREAMS s{number} >")
        attempt = GroupRead(b"g", b"b", [(name, None)], None, False, None, lambda: None)
        store.engine.submit([name], attempt, woken.append)
    clock.advance(1000)
    steps = []
    for _ in range(3):
        store.engine.run(timer_thread.run_due, 100)
        steps.append(len(woken))
    assert steps == [2, 3, 3]
    store.engine.timers.paused = False


def test_a_blocked_reader_wakes_when_a_retry_is_due(say: Say, ask: Any, clock: ManualClock) -> None:
    say("KVSTREAM.POLICY SET s g BACKOFF 1000")
    add(say, 1)
    read(say, "a")
    say("XNACK s g FAIL IDS 1 1-0")
    future = ask(BLOCKED)
    clock.advance(1000)
    assert read_by(future) == ["1-0"]


@pytest.mark.parametrize(
    "freeing",
    [
        "XACK s g 1-0",
        "KVSTREAM.ACK s g a 1-0 1",
        "KVSTREAM.NACK s g a DELAY 99999 1-0 1",
        "KVSTREAM.NACK s g a FATAL 1-0 1",
        "XACKDEL s g IDS 1 1-0",
        "XGROUP DELCONSUMER s g a",
        "XNACK s g FATAL IDS 1 1-0",
        "KVSTREAM.POLICY SET s g INFLIGHT 2",
        "KVSTREAM.POLICY DEL s g",
        "XDELEX s DELREF IDS 1 1-0",
        "XTRIM s MINID = 2 DELREF",
    ],
)
def test_a_blocked_reader_wakes_when_there_is_room_again(say: Say, ask: Any, freeing: str) -> None:
    say("KVSTREAM.POLICY SET s g INFLIGHT 1")
    add(say, 1, 2)
    read(say, "a")
    future = ask(BLOCKED)
    say(freeing)
    assert read_by(future) == ["2-0"]


def test_a_blocked_reader_wakes_when_the_rate_allows_more(
    say: Say, ask: Any, clock: ManualClock
) -> None:
    say("KVSTREAM.POLICY SET s g RATE 1 1000")
    add(say, 1, 2)
    read(say, "a")
    future = ask(BLOCKED)
    clock.advance(1000)
    assert read_by(future) == ["2-0"]


def test_a_blocked_reader_wakes_when_the_group_is_resumed(say: Say, ask: Any) -> None:
    say("KVSTREAM.POLICY PAUSE s g")
    add(say, 1)
    future = ask(BLOCKED)
    say("KVSTREAM.POLICY RESUME s g")
    assert read_by(future) == ["1-0"]


def test_a_policy_set_while_a_reader_waits_applies_to_it(
    say: Say, ask: Any, clock: ManualClock
) -> None:
    add(say, 1)
    read(say, "a")
    future = ask(BLOCKED)
    clock.advance(400)
    say("KVSTREAM.POLICY SET s g LEASE 1000")
    clock.advance(600)
    assert read_by(future) == ["1-0"]


def test_a_claim_while_a_reader_waits_begins_a_lease(
    say: Say, ask: Any, clock: ManualClock
) -> None:
    say("KVSTREAM.POLICY SET s g LEASE 1000")
    say("XADD s 5-0 f v")
    say("XGROUP SETID s g $")
    future = ask(BLOCKED)
    say("XCLAIM s g a 0 5-0 FORCE JUSTID")
    clock.advance(1000)
    assert read_by(future) == ["5-0"]


def test_an_entry_that_is_given_up_makes_room(say: Say, clock: ManualClock) -> None:
    say("KVSTREAM.POLICY SET s g INFLIGHT 1 LEASE 1000 DELIVERIES 1")
    add(say, 1, 2)
    read(say, "a")
    clock.advance(1000)
    assert read(say, "b") == ["2-0"]


def test_a_dead_letter_made_by_a_blocked_reader_wakes_its_readers(
    say: Say, ask: Any, clock: ManualClock
) -> None:
    say("KVSTREAM.POLICY SET s g LEASE 1000 DELIVERIES 1")
    add(say, 1)
    read(say, "a")
    future = ask("XREAD BLOCK 0 STREAMS s:dead $")
    ask(BLOCKED)
    clock.advance(1000)
    assert len(read_by(future)) == 1
    add(say, 2)


def test_a_reader_that_is_blocked_with_claim_wakes_when_a_lease_ends(
    store: Store, say: Say, ask: Any, clock: ManualClock
) -> None:
    lease(say, 1)
    future = ask("XREADGROUP GROUP g b BLOCK 0 CLAIM 1000 STREAMS s >")
    clock.advance(1000)
    assert read_by(future) == ["1-0"]
    group = store.engine.catalog.streams[b"\0\0s"].groups[b"g"]
    assert group.index is None, "small groups need no index for leases"
