"""Tokens of leases: which entries they settle, and the outcomes of lost leases."""

from collections.abc import Callable
from typing import Any

import pytest

from kvstream import ManualClock, Store
from kvstream.engine import timer_thread
from kvstream.layout.keys import qualified
from kvstream.operations.queues import leases
from kvstream.types.ids import StreamID
from tests.commands.conftest import Say, speaker
from tests.commands.dispatcher import Dispatcher
from tests.opening import change_thresholds
from tests.operations.queue_commands import step

NAME = qualified(0, b"s")


@pytest.fixture
def say(store: Store) -> Say:
    """Run one command; consumer a of group g has read entries 1 to 3."""
    found = speaker(Dispatcher(store.engine))
    found("XGROUP CREATE s g $ MKSTREAM")
    for number in (1, 2, 3):
        found(f"XADD s {number}-0 f {number}")
    found("XREADGROUP GROUP g a COUNT 3 STREAMS s >")
    return found


def rows(say: Say) -> list[tuple[str, str, int, int]]:
    found = say("XPENDING s g - + 99")
    return [(row[0].decode(), row[1].decode(), row[2], row[3]) for row in found]


# --- tokens -------------------------------------------------------------------------------------


def test_each_token_has_its_own_outcome(say: Say) -> None:
    say("XACK s g 1-0")
    assert say("KVSTREAM.ACK s g a 1-0 1 2-0 1 3-0 2 9-9 1") == [0, 1, -1, 0]
    assert rows(say) == [("3-0", "a", 0, 1)]


@pytest.mark.parametrize("command", ["ACK", "EXTEND", "NACK"])
def test_a_lost_lease_changes_nothing(say: Say, clock: ManualClock, command: str) -> None:
    clock.advance(50)
    say("XCLAIM s g b 0 1-0")
    say("XCLAIM s g a 0 2-0")
    say("XNACK s g FAIL IDS 1 3-0")
    before = rows(say)
    clock.advance(50)
    assert say(f"KVSTREAM.{command} s g a 1-0 1 2-0 1 3-0 1") == [-1, -1, -1]
    after = rows(say)
    assert [(row[0], row[1], row[3]) for row in after] == [(r[0], r[1], r[3]) for r in before]
    assert [row[2] for row in after] == [50, 50, -1]


@pytest.mark.parametrize(("command", "again"), [("ACK", 0), ("EXTEND", 1), ("NACK DELAY 5", -1)])
def test_a_token_that_is_given_twice_counts_once(say: Say, command: str, again: int) -> None:
    name, _, options = command.partition(" ")
    reply = say(f"KVSTREAM.{name} s g a {options} 2-0 1 1-0 1 2-0 1 2-0 7")
    assert reply == [1, 1, again, -1]


def test_an_ack_deletes_only_what_it_has_settled(store: Store, say: Say) -> None:
    assert say("KVSTREAM.ACK s g a DELETE 1-0 1 2-0 2 9-0 1 3-0 1") == [1, -1, 0, 1]
    assert [str(entry.id) for entry in store.stream("s")] == ["2-0"]
    assert [row[0] for row in rows(say)] == ["2-0"]
    assert say("KVSTREAM.ACK s g b DELETE 2-0 1") == [-1]


def test_an_extended_lease_begins_now_with_the_same_token(say: Say, clock: ManualClock) -> None:
    clock.advance(70)
    assert say("KVSTREAM.EXTEND s g a 3-0 1 1-0 1") == [1, 1]
    assert rows(say) == [("1-0", "a", 0, 1), ("2-0", "a", 70, 1), ("3-0", "a", 0, 1)]
    assert say("KVSTREAM.ACK s g a 1-0 1 3-0 1") == [1, 1]


def test_a_late_ack_does_not_settle_the_work_of_another(say: Say, clock: ManualClock) -> None:
    say("KVSTREAM.POLICY SET s g LEASE 100")
    clock.advance(100)
    say("XREADGROUP GROUP g b COUNT 1 STREAMS s >")
    assert say("KVSTREAM.ACK s g a 1-0 1") == [-1]
    assert say("KVSTREAM.ACK s g b 1-0 2") == [1]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("KVSTREAM.ACK s g a", "wrong number of arguments"),
        ("KVSTREAM.ACK s g a 1-0", "wrong number of arguments"),
        ("KVSTREAM.ACK s g a 1-0 1 2-0", "each ID needs the number of its deliveries"),
        ("KVSTREAM.ACK s g a x 1", "Invalid stream ID"),
        ("KVSTREAM.EXTEND s g a 1-0 x", "deliveries must be a positive integer"),
        ("KVSTREAM.ACK s none a 1-0 1", "NOGROUP"),
        ("KVSTREAM.EXTEND none g a 1-0 1", "NOGROUP"),
        ("KVSTREAM.NACK s none a 1-0 1", "NOGROUP"),
        ("KVSTREAM.NACK s g a DELAY -1 1-0 1", "DELAY must not be negative"),
        ("KVSTREAM.NACK s g a DELAY x 1-0 1", "DELAY must be an integer"),
        ("KVSTREAM.NACK s g a FATAL ERROR", "each ID needs"),
        ("KVSTREAM.NACK s g a FATAL NONSENSE 1-0 1", "each ID needs"),
    ],
)
def test_wrong_requests_are_refused(say: Say, command: str, error: str) -> None:
    before = rows(say)
    assert error in say(command)
    assert rows(say) == before


def test_one_of_very_many_deliveries_is_settled(store: Store, say: Say) -> None:
    for number in range(4, 2000):
        say(f"XADD s {number}-0 f v")
    say("XREADGROUP GROUP g a STREAMS s >")
    tokens = [(StreamID(number, 0), 1) for number in range(1999, 0, -2)]
    outcomes = store.engine.run(leases.ack, NAME, b"g", b"a", tokens)
    assert outcomes == [1] * 1000
    assert {int(row[0][:-2]) % 2 for row in rows(say)} == {0}


# --- giving back --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["XNACK s g FAIL IDS 1 1-0", "KVSTREAM.NACK s g a 1-0 1"])
def test_the_backoff_of_the_policy_grows_with_the_deliveries(
    store: Store, say: Say, clock: ManualClock, mode: str
) -> None:
    say("KVSTREAM.POLICY SET s g BACKOFF 100,1000")
    for deliveries, delay in enumerate((100, 1000, 1000), 1):
        say(mode.replace("1-0 1", f"1-0 {deliveries}"))
        clock.advance(delay - 1)
        step(store)
        assert say("XREADGROUP GROUP g a STREAMS s >") is None
        clock.advance(1)
        step(store)
        reply = say("XREADGROUP GROUP g a STREAMS s >")
        assert reply == [[b"s", [[b"1-0", [b"f", b"1"]]]]]


def test_a_nack_without_a_delay_does_not_use_up_all_deliveries_at_once(say: Say) -> None:
    say("KVSTREAM.POLICY SET s g BACKOFF 1000 DELIVERIES 5")
    for _ in range(10):
        say("XNACK s g FAIL IDS 3 1-0 2-0 3-0")
        say("XREADGROUP GROUP g a STREAMS s >")
    assert [row[3] for row in rows(say)] == [1, 1, 1]
    assert say("EXISTS s:dead") == 0


def test_a_delay_of_the_caller_overrides_the_policy(
    store: Store, say: Say, clock: ManualClock
) -> None:
    say("KVSTREAM.POLICY SET s g BACKOFF 100000")
    assert say("KVSTREAM.NACK s g a DELAY 5 1-0 1") == [1]
    assert say("KVSTREAM.NACK s g a DELAY 0 2-0 1") == [1]
    assert [row[:2] for row in rows(say)] == [("1-0", ""), ("2-0", ""), ("3-0", "a")]
    assert [e[0] for e in say("XREADGROUP GROUP g b STREAMS s >")[0][1]] == [b"2-0"]
    clock.advance(5)
    step(store)
    assert [e[0] for e in say("XREADGROUP GROUP g b STREAMS s >")[0][1]] == [b"1-0"]


def test_a_delay_needs_no_policy(store: Store, say: Say, clock: ManualClock) -> None:
    assert say("KVSTREAM.NACK s g a DELAY 5 1-0 1") == [1]
    assert say("XREADGROUP GROUP g b CLAIM 1577847600000 STREAMS s >") is None
    clock.advance(5)
    step(store)
    found = say("XREADGROUP GROUP g b CLAIM 1577847600000 STREAMS s >")
    assert [entry[0] for entry in found[0][1]] == [b"1-0"]


def test_entries_given_back_untried_are_ready_at_once(say: Say) -> None:
    say("KVSTREAM.POLICY SET s g BACKOFF 1000 DELIVERIES 1")
    assert say("XNACK s g SILENT IDS 1 1-0") == 1
    reply = say("XREADGROUP GROUP g b STREAMS s >")
    assert reply == [[b"s", [[b"1-0", [b"f", b"1"]]]]]
    assert rows(say)[0] == ("1-0", "b", 0, 1)


def test_jitter_spreads_entries_that_fail_together(
    store: Store, say: Say, clock: ManualClock
) -> None:
    say("KVSTREAM.POLICY SET s g BACKOFF 1000 JITTER 100")
    for number in range(4, 60):
        say(f"XADD s {number}-0 f v")
    say("XREADGROUP GROUP g a STREAMS s >")
    given = [f"{number}-0" for number in range(1, 60)]
    assert say(f"XNACK s g FAIL IDS {len(given)} {' '.join(given)}") == len(given)
    came: list[int] = []
    for _ in range(10):
        clock.advance(100)
        step(store)
        reply = say("XREADGROUP GROUP g b STREAMS s >")
        came.append(0 if reply is None else len(reply[0][1]))
    assert sum(came) == len(given)
    assert sum(map(bool, came)) > 4


def letters(say: Say) -> list[dict[bytes, bytes]]:
    found = say("XRANGE s:dead - +")
    return [dict(zip(each[1][::2], each[1][1::2], strict=True)) for each in found]


def test_a_fatal_failure_moves_to_the_dead_letters_at_once(say: Say) -> None:
    say("KVSTREAM.POLICY SET s g BACKOFF 1000")
    reply = say("KVSTREAM.NACK s g a FATAL ERROR boom TRACEBACK line-1 2-0 1 3-0 9")
    assert reply == [1, -1]
    (letter,) = letters(say)
    assert (letter[b"dead:reason"], letter[b"dead:error"]) == (b"fatal", b"boom")
    assert (letter[b"dead:traceback"], letter[b"dead:consumer"]) == (b"line-1", b"a")
    assert [row[0] for row in rows(say)] == ["1-0", "3-0"]
    assert say("XNACK s g FATAL IDS 1 1-0") == 1
    assert [each[b"dead:id"] for each in letters(say)] == [b"2-0", b"1-0"]
    assert letters(say)[1][b"dead:deliveries"] == b"1"


@pytest.mark.parametrize(
    "command", ["XNACK s g FAIL IDS 2 1-0 3-0", "KVSTREAM.NACK s g a 1-0 1 3-0 1"]
)
def test_the_last_failure_moves_to_the_dead_letters_at_once(say: Say, command: str) -> None:
    say("KVSTREAM.POLICY SET s g DELIVERIES 1 BACKOFF 1000 DEAD lost")
    assert say(command) in (2, [1, 1])
    assert say("XLEN lost") == 2
    assert [row[0] for row in rows(say)] == ["2-0"]


def test_refused_dead_letters_change_nothing(say: Say) -> None:
    say("SET lost string")
    say("KVSTREAM.POLICY SET s g DELIVERIES 1 DEAD lost")
    before = rows(say)
    assert "lost" in say("KVSTREAM.NACK s g a 1-0 1 2-0 1")
    assert "lost" in say("XNACK s g FAIL IDS 1 3-0")
    assert rows(say) == before


# --- entries that wait --------------------------------------------------------------------------


@pytest.fixture
def waiting(say: Say) -> Say:
    say("KVSTREAM.POLICY SET s g LEASE 100000")
    say("KVSTREAM.NACK s g a DELAY 1000 1-0 1 2-0 1")
    return say


def test_claims_skip_a_waiting_entry(waiting: Say, clock: ManualClock) -> None:
    clock.advance(500)
    assert waiting("XCLAIM s g b 0 1-0") == []
    assert waiting("XAUTOCLAIM s g b 0 0 JUSTID")[1] == [b"3-0"]
    assert waiting("XREADGROUP GROUP g b STREAMS s >") is None
    assert rows(waiting)[0] == ("1-0", "", -1, 1)


def test_force_claims_a_waiting_entry(store: Store, waiting: Say, clock: ManualClock) -> None:
    assert waiting("XCLAIM s g b 0 1-0 FORCE JUSTID") == [b"1-0"]
    clock.advance(1000)
    step(store)
    assert rows(waiting)[:2] == [("1-0", "b", 1000, 1), ("2-0", "", -1, 1)]


def test_claim_of_a_group_without_policy_leaves_waiting_entries(
    store: Store, waiting: Say, clock: ManualClock
) -> None:
    waiting("KVSTREAM.POLICY DEL s g")
    clock.advance(500)
    assert waiting("XREADGROUP GROUP g b CLAIM 501 STREAMS s >") is None
    clock.advance(500)
    step(store)
    found = waiting("XREADGROUP GROUP g b CLAIM 1001 STREAMS s >")
    assert [entry[0] for entry in found[0][1]] == [b"1-0", b"2-0"]


def test_a_waiting_entry_can_be_acknowledged(
    store: Store, waiting: Say, clock: ManualClock
) -> None:
    assert waiting("XACK s g 1-0") == 1
    clock.advance(1000)
    step(store)
    assert [row[0] for row in rows(waiting)] == ["2-0", "3-0"]


def test_another_nack_moves_a_waiting_entry(store: Store, waiting: Say, clock: ManualClock) -> None:
    assert waiting("XNACK s g SILENT IDS 1 1-0") == 1
    found = waiting("XREADGROUP GROUP g b STREAMS s >")
    assert [entry[0] for entry in found[0][1]] == [b"1-0"]


def test_xpending_lists_waiting_entries_of_any_idle_time(waiting: Say) -> None:
    for idle in (0, 1, 10**6):
        found = waiting(f"XPENDING s g IDLE {idle} - + 9")
        assert [row[0] for row in found][:2] == [b"1-0", b"2-0"]


def test_xinfo_shows_waiting_entries_as_given_back(waiting: Say) -> None:
    for reply in (waiting("XINFO STREAM s FULL"), waiting("XINFO STREAM s FULL COUNT 0")):
        group = dict(zip(reply[-1][0][::2], reply[-1][0][1::2], strict=True))
        assert group[b"nacked-count"] == 2
        assert [row[:3] for row in group[b"pending"]][:2] == [[b"1-0", b"", 0], [b"2-0", b"", 0]]


def test_a_waiting_entry_is_ready_after_dump_and_restore(store: Store, waiting: Say) -> None:
    waiting("RESTORE", "t", "0", waiting("DUMP s"))
    waiting("KVSTREAM.POLICY SET t g LEASE 100000")
    found = waiting("XREADGROUP GROUP g b STREAMS t >")
    assert [entry[0] for entry in found[0][1]] == [b"1-0", b"2-0"]


def test_a_waiting_entry_survives_a_restart(
    store: Store, waiting: Say, clock: ManualClock, reopen: Callable[..., Store]
) -> None:
    store = reopen(store)
    say = speaker(Dispatcher(store.engine))
    clock.advance(1000)
    step(store)
    found = say("XREADGROUP GROUP g b STREAMS s >")
    assert [entry[0] for entry in found[0][1]] == [b"1-0", b"2-0"]


@pytest.mark.parametrize("change", ["COPY s t", "RENAME s t", "SWAPDB 0 1"])
def test_a_waiting_entry_keeps_its_time_in_a_renamed_stream(
    store: Store, waiting: Say, clock: ManualClock, change: str
) -> None:
    waiting(change)
    clock.advance(1000)
    step(store)
    key = "t"
    if change.startswith("SWAPDB"):
        waiting("SELECT 1")
        key = "s"
    found = waiting(f"XREADGROUP GROUP g b STREAMS {key} >")
    assert [entry[0] for entry in found[0][1]] == [b"1-0", b"2-0"]


def test_very_many_entries_become_ready_in_steps(
    store: Store, say: Say, clock: ManualClock
) -> None:
    change_thresholds(store.engine, ready_runs=1)
    clock.advance(1)
    say("XCLAIM s g a 0 2-0 JUSTID RETRYCOUNT 2")
    assert say("KVSTREAM.NACK s g a DELAY 5 1-0 1 2-0 2 3-0 1") == [1, 1, 1]
    say("KVSTREAM.POLICY SET s g LEASE 9")
    clock.advance(5)
    assert store.engine.run(timer_thread.run_due, 100) > 0
    step(store)
    found = say("XREADGROUP GROUP g b STREAMS s >")
    assert [entry[0] for entry in found[0][1]] == [b"1-0", b"2-0", b"3-0"]


# --- what does not count, and what counts as the last try -----------------------------------------


def test_a_delivery_that_was_not_tried_waits_and_does_not_count(
    store: Store, say: Say, clock: ManualClock
) -> None:
    say("KVSTREAM.POLICY SET s g LEASE 1000 DELIVERIES 1 BACKOFF 50")
    assert say("KVSTREAM.NACK s g a UNTRIED DELAY 100 1-0 1") == [1]
    assert say("KVSTREAM.NACK s g a UNTRIED 2-0 1") == [1]
    assert rows(say)[:2] == [("1-0", "", -1, 0), ("2-0", "", -1, 0)]
    assert ids_of(say("XREADGROUP GROUP g b STREAMS s >")) == ["2-0"]
    clock.advance(100)
    step(store)
    assert ids_of(say("XREADGROUP GROUP g b STREAMS s >")) == ["1-0"]
    assert rows(say)[0] == ("1-0", "b", 0, 1)
    assert "s:dead" not in store


def ids_of(reply: Any) -> list[str]:
    ((_, entries),) = reply
    return [entry[0].decode() for entry in entries]


@pytest.mark.parametrize("rules", ["", "LEASE 1000 DELIVERIES 9"])
def test_a_consumer_says_after_how_many_deliveries_it_gives_up(
    store: Store, say: Say, rules: str
) -> None:
    if rules:
        say(f"KVSTREAM.POLICY SET s g {rules}")
    assert say("KVSTREAM.NACK s g a DELIVERIES 2 DELAY 0 1-0 1") == [1]
    assert "s:dead" not in store
    assert say("KVSTREAM.NACK s g a DELIVERIES 1 ERROR boom 2-0 1") == [1]
    (letter,) = store.stream("s:dead").range()
    found = letter.fields[b"dead:reason"], letter.fields[b"dead:error"]
    assert found == (b"max-deliveries", b"boom")


@pytest.mark.parametrize("options", ["DELIVERIES 0", "DELIVERIES x", "UNTRIED FATAL"])
def test_options_of_a_nack_that_cannot_be_are_refused(say: Say, options: str) -> None:
    assert say(f"KVSTREAM.NACK s g a {options} 1-0 1").startswith("ERR ")
    assert rows(say)[0][1] == "a"
