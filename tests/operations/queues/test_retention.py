"""Retention: what its rules remove, what they keep, and when the background thread acts."""

from collections.abc import Callable

import pytest

from kvstream import ManualClock, Retention, Store
from kvstream.commands.replies import OK, ErrorReply
from kvstream.engine import timer_thread
from kvstream.layout.keys import qualified
from kvstream.meta import timers
from kvstream.meta.policy import LATEST_ROWS
from kvstream.meta.records import StreamMeta
from kvstream.operations.queues import retention
from tests.commands.dispatcher import Dispatcher
from tests.opening import Stores, change_thresholds
from tests.operations.queue_commands import ok, opened
from tests.patience import until

NAME = qualified(0, b"s")
Reopen = Callable[..., Store]


@pytest.fixture
def quiet(open_store: Stores) -> Store:
    return opened(open_store)


def add(store: Store, first: int, last: int, fields: str = "f v") -> None:
    """Append the entries first-0 ... last-0."""
    for ms in range(first, last + 1):
        ok(store, f"XADD s {ms}-0 {fields}")


def read(store: Store, count: int, group: str = "g") -> None:
    ok(store, f"XREADGROUP GROUP {group} c COUNT {count} STREAMS s >")


def list_left(store: Store) -> list[int]:
    return [entry.id.ms for entry in store.stream("s").range()]


def background(store: Store) -> None:
    """Run all due work of the background thread."""
    run = store.engine.run
    while run(retention.check_changed_streams)[0] or run(timer_thread.run_due, 100):
        pass


def stream_of(store: Store) -> StreamMeta:
    return store.engine.catalog.streams[NAME]


# --- rules --------------------------------------------------------------------------------------


def test_rules_are_kept_shown_and_removed(quiet: Store, reopen: Reopen) -> None:
    add(quiet, 1, 1)
    assert ok(quiet, "KVSTREAM.RETENTION GET s") == {}
    ok(quiet, "KVSTREAM.RETENTION SET s MAXAGE 1000 MAXLEN 5 ACKED LATEST user")
    store = reopen(quiet)
    shown = ok(store, "KVSTREAM.RETENTION GET s")
    assert shown == {
        **{"max_age_ms": 1000, "max_length": 5, "max_bytes": 0},
        **{"acked": 1, "latest": b"user", "force": 0},
    }
    assert ok(store, "KVSTREAM.RETENTION DEL s") == 1
    assert ok(store, "KVSTREAM.RETENTION DEL s") == 0
    assert ok(store, "KVSTREAM.RETENTION GET s") == {}


def test_a_short_stream_is_checked_when_it_gets_rules(quiet: Store) -> None:
    add(quiet, 1, 4)
    ok(quiet, "KVSTREAM.RETENTION SET s MAXLEN 2")
    assert list_left(quiet) == [3, 4]
    assert quiet.engine.run(timer_thread.run_due, 100) == 0
    quiet.stream("long").add_many([{"n": str(n)} for n in range(150)])
    ok(quiet, "KVSTREAM.RETENTION SET long MAXLEN 2")
    assert len(quiet.stream("long")) == 150
    background(quiet)
    assert len(quiet.stream("long")) == 2


def test_rules_of_a_stream_that_begins(quiet: Store) -> None:
    """SET creates a stream; with NX it changes none that has begun."""
    assert ok(quiet, "KVSTREAM.RETENTION SET new MAXLEN 5") == OK
    assert ok(quiet, "KVSTREAM.RETENTION SET new MAXLEN 6 NX") is None
    assert ok(quiet, "KVSTREAM.RETENTION SET newer ACKED NX") == OK
    add(quiet, 1, 1)
    quiet.stream("grouped").create_group("g")
    for name in ("s", "grouped"):
        assert ok(quiet, f"KVSTREAM.RETENTION SET {name} ACKED NX") is None
        assert quiet.stream(name).retention() is None
    assert quiet.stream("new").retention() == Retention(max_length=5)
    assert quiet.stream("newer").retention() == Retention(acked=True)
    quiet.stream("plain").schedule("nightly", "0 3 * * *", {"n": 1})
    assert ok(quiet, "KVSTREAM.RETENTION SET plain ACKED NX") == OK


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("SET s", "wrong number of arguments|syntax error"),
        ("SET s FORCE", "set at least one"),
        ("SET s MAXAGE 0", "between 1 and 2^62"),
        ("SET s MAXLEN -1", "between 1 and 2^62"),
        ("SET s MAXBYTES x", "not an integer"),
        ("SET s LATEST", "syntax error"),
        ("SET none NX", "syntax error"),
        ("RUN none", "no such key"),
    ],
)
def test_impossible_rules_are_refused(quiet: Store, command: str, error: str) -> None:
    add(quiet, 1, 1)
    words = f"KVSTREAM.RETENTION {command}".encode().split()
    reply = Dispatcher(quiet.engine).execute(words)
    assert isinstance(reply, ErrorReply)
    assert any(part in reply.text for part in error.split("|")), reply.text


def test_maxlen_keeps_the_last_entries(quiet: Store) -> None:
    add(quiet, 1, 250)
    ok(quiet, "KVSTREAM.RETENTION SET s MAXLEN 7")
    assert ok(quiet, "KVSTREAM.RETENTION RUN s") == 243
    assert list_left(quiet) == list(range(244, 251))
    assert quiet.stats()["queues"]["retained_removed"] == 243


def test_maxage_removes_entries_at_their_age(quiet: Store, clock: ManualClock) -> None:
    clock.ms = 10_000
    add(quiet, 9_000, 9_005)
    ok(quiet, "KVSTREAM.RETENTION SET s MAXAGE 1500")
    background(quiet)
    assert len(list_left(quiet)) == 6
    clock.ms = 10_502
    background(quiet)
    assert list_left(quiet) == [9003, 9004, 9005]


def test_maxbytes_removes_whole_nodes_and_never_the_last(quiet: Store) -> None:
    add(quiet, 1, 1000, "f " + "x" * 100)
    size = stream_of(quiet).length * 105
    ok(quiet, f"KVSTREAM.RETENTION SET s MAXBYTES {size // 2}")
    ok(quiet, "KVSTREAM.RETENTION RUN s")
    assert 400 < len(list_left(quiet)) < 520
    assert list_left(quiet)[-1] == 1000
    add(quiet, 1001, 1500, "f " + "x" * 100)
    ok(quiet, "KVSTREAM.RETENTION RUN s")
    assert 400 < len(list_left(quiet)) < 520
    ok(quiet, "KVSTREAM.RETENTION SET s MAXBYTES 1")
    ok(quiet, "KVSTREAM.RETENTION RUN s")
    assert 0 < len(list_left(quiet)) <= 100


def test_bytes_are_counted_again_after_other_trims_and_deletions(quiet: Store) -> None:
    add(quiet, 1, 2000, "f " + "x" * 100)
    ok(quiet, "KVSTREAM.RETENTION SET s MAXBYTES 10000000")
    ok(quiet, "KVSTREAM.RETENTION RUN s")
    ok(quiet, "XTRIM s MINID 333")
    ok(quiet, "XDEL s " + " ".join(f"{ms}-0" for ms in range(600, 900)))
    ok(quiet, "KVSTREAM.RETENTION RUN s")
    stream = stream_of(quiet)
    assert stream.retained is not None
    nodes = sum(segment.nodes for segment in stream.retained.segments)
    assert nodes == stream.closed_nodes


# --- what groups need ---------------------------------------------------------------------------


def test_acked_removes_what_every_group_has_acknowledged(quiet: Store) -> None:
    add(quiet, 1, 10)
    ok(quiet, "XGROUP CREATE s g 0")
    ok(quiet, "XGROUP CREATE s h 0")
    ok(quiet, "KVSTREAM.RETENTION SET s ACKED")
    read(quiet, 5)
    ok(quiet, "XACK s g 1-0 2-0 3-0 5-0")
    background(quiet)
    assert len(list_left(quiet)) == 10
    read(quiet, 3, "h")
    ok(quiet, "XACK s h 1-0 2-0 3-0")
    background(quiet)
    assert list_left(quiet) == list(range(4, 11))


def test_acked_keeps_a_stream_without_groups(quiet: Store) -> None:
    add(quiet, 1, 10)
    ok(quiet, "KVSTREAM.RETENTION SET s ACKED")
    background(quiet)
    assert len(list_left(quiet)) == 10


def test_an_unacknowledged_entry_keeps_only_itself(quiet: Store) -> None:
    add(quiet, 1, 5000)
    ok(quiet, "XGROUP CREATE s g 0")
    ok(quiet, "KVSTREAM.RETENTION SET s ACKED")
    read(quiet, 4900)
    ok(quiet, "XACK s g " + " ".join(f"{ms}-0" for ms in range(1, 4901) if ms not in (3, 777)))
    background(quiet)
    assert list_left(quiet) == [3, 777, *range(4901, 5001)]
    ok(quiet, "XACK s g 3-0 777-0")
    background(quiet)
    assert list_left(quiet) == list(range(4901, 5001))


@pytest.mark.parametrize("rule", ["MAXLEN 2", "MAXAGE 1", "MAXBYTES 1"])
def test_no_rule_removes_what_a_group_needs(quiet: Store, clock: ManualClock, rule: str) -> None:
    add(quiet, 1, 300)
    ok(quiet, "XGROUP CREATE s g 0")
    read(quiet, 150)
    ok(quiet, "XACK s g " + " ".join(f"{ms}-0" for ms in range(1, 151) if ms != 50))
    ok(quiet, f"KVSTREAM.RETENTION SET s {rule}")
    background(quiet)
    assert list_left(quiet) == [50, *range(151, 301)]


@pytest.mark.parametrize("rule", ["MAXLEN 2", "MAXAGE 1"])
def test_force_removes_what_a_group_needs(quiet: Store, rule: str) -> None:
    add(quiet, 1, 300)
    ok(quiet, "XGROUP CREATE s g 0")
    read(quiet, 150)
    ok(quiet, f"KVSTREAM.RETENTION SET s {rule} FORCE")
    background(quiet)
    assert list_left(quiet) == ([299, 300] if rule == "MAXLEN 2" else [])


def test_a_renamed_stream_keeps_its_retention(quiet: Store) -> None:
    add(quiet, 1, 10)
    ok(quiet, "RENAME s t")
    ok(quiet, "KVSTREAM.RETENTION SET t MAXLEN 3")
    ok(quiet, "RENAME t s")
    add(quiet, 11, 12)
    background(quiet)
    assert list_left(quiet) == [10, 11, 12]


# --- the latest entry of each value -------------------------------------------------------------


def test_latest_keeps_the_last_entry_of_each_value_and_those_without_the_field(
    quiet: Store, reopen: Reopen
) -> None:
    for ms, fields in enumerate(["u a n 1", "u b n 2", "x a", "u a n 3", "u c n 4", "u b n 5"], 1):
        ok(quiet, f"XADD s {ms}-0 {fields}")
    ok(quiet, "KVSTREAM.RETENTION SET s LATEST u")
    background(quiet)
    assert list_left(quiet) == [3, 4, 5, 6]
    store = reopen(quiet)
    store.engine.timers.paused = True
    ok(store, "XADD s 7-0 u c n 6")
    background(store)
    assert list_left(store) == [3, 4, 6, 7]


def test_latest_compacts_many_entries_in_steps(quiet: Store) -> None:
    for number in range(3000):
        ok(quiet, f"XADD s {number + 1}-0 u {number % 7}")
    ok(quiet, "KVSTREAM.RETENTION SET s LATEST u")
    assert quiet.engine.run(retention.run, NAME)[1]
    background(quiet)
    assert list_left(quiet) == list(range(2994, 3001))


def test_latest_waits_at_the_first_entry_that_a_group_needs(quiet: Store) -> None:
    for ms in range(1, 7):
        ok(quiet, f"XADD s {ms}-0 u a")
    ok(quiet, "XGROUP CREATE s g 0")
    read(quiet, 4)
    ok(quiet, "XACK s g 1-0 2-0 4-0")
    ok(quiet, "KVSTREAM.RETENTION SET s LATEST u")
    background(quiet)
    assert list_left(quiet) == [2, 3, 4, 5, 6]
    ok(quiet, "XACK s g 3-0")
    background(quiet)
    assert list_left(quiet) == [4, 5, 6]


def test_another_field_restarts_latest(quiet: Store) -> None:
    for ms in range(1, 5):
        ok(quiet, f"XADD s {ms}-0 u {ms} w same")
    ok(quiet, "KVSTREAM.RETENTION SET s LATEST u")
    background(quiet)
    assert len(list_left(quiet)) == 4
    ok(quiet, "KVSTREAM.RETENTION SET s LATEST w")
    background(quiet)
    assert list_left(quiet) == [4]


def test_rows_of_values_without_entries_are_deleted(quiet: Store) -> None:
    for ms in range(1, 200):
        ok(quiet, f"XADD s {ms}-0 u {ms}")
    ok(quiet, "KVSTREAM.RETENTION SET s LATEST u MAXLEN 5")
    for ms in range(200, 220):
        ok(quiet, f"XADD s {ms}-0 u {ms}")
        background(quiet)
    rows = quiet.engine.run(lambda txn: list(timers.scan_rows(txn, stream_of(quiet), LATEST_ROWS)))
    assert len(rows) < 30


# --- when the background looks ------------------------------------------------------------------


def test_an_idle_stream_has_no_timer(quiet: Store) -> None:
    add(quiet, 1, 10)
    ok(quiet, "XGROUP CREATE s g $")
    ok(quiet, "KVSTREAM.RETENTION SET s MAXLEN 100 MAXBYTES 100000 ACKED LATEST f")
    background(quiet)
    assert stream_of(quiet).due_at == 0
    assert quiet.engine.run(retention.check_changed_streams) == (0, 1)


def test_a_stream_waits_for_the_age_of_its_first_entry(quiet: Store, clock: ManualClock) -> None:
    now = clock.now_ms()
    add(quiet, now - 10, now)
    ok(quiet, "KVSTREAM.RETENTION SET s MAXAGE 60000")
    background(quiet)
    assert stream_of(quiet).due_at == now - 10 + 60_000


def test_a_stream_that_only_grows_is_checked_when_a_rule_may_remove_something(
    quiet: Store, clock: ManualClock
) -> None:
    now = clock.now_ms()
    add(quiet, now, now)
    ok(quiet, "KVSTREAM.RETENTION SET s MAXAGE 64000 MAXLEN 4")
    background(quiet)
    checked = []
    for ms in range(now + 1, now + 5):
        add(quiet, ms, ms)
        checked.append(quiet.engine.run(retention.check_changed_streams)[0])
    assert checked == [0, 0, 0, 1]
    assert list_left(quiet) == [*range(now + 1, now + 5)]
    background(quiet)
    clock.advance(64_001)
    background(quiet)
    assert list_left(quiet) == [*range(now + 2, now + 5)]
    assert stream_of(quiet).due_at == clock.now_ms() + 1000
    clock.advance(1000)
    background(quiet)
    assert list_left(quiet) == []
    add(quiet, clock.now_ms(), clock.now_ms())
    assert quiet.engine.run(retention.check_changed_streams) == (1, 1)
    assert stream_of(quiet).due_at == clock.now_ms() + 64_000


def test_rows_of_a_waiting_timer_do_not_grow(quiet: Store, clock: ManualClock) -> None:
    ok(quiet, "KVSTREAM.RETENTION GET s")
    add(quiet, 1, 1)
    ok(quiet, "XGROUP CREATE s g 0")
    ok(quiet, "KVSTREAM.RETENTION SET s ACKED MAXAGE 100000")
    for ms in range(2, 30):
        add(quiet, ms, ms)
        read(quiet, 1)
        clock.advance(1100)
        background(quiet)
    found = quiet.engine.run(lambda txn: list(timers.scan(txn, stream_of(quiet))))
    assert len(found) == 1


def test_the_background_threads_apply_the_rules(open_store: Stores) -> None:
    store = open_store("own")
    add(store, 1, 10)
    ok(store, "KVSTREAM.RETENTION SET s MAXLEN 3")
    until(lambda: len(list_left(store)) == 3, "the first check")
    add(store, 11, 20)
    until(lambda: list_left(store) == [18, 19, 20], "the check of a changed stream")


def test_steps_are_bounded_and_the_next_one_follows_at_once(quiet: Store) -> None:
    change_thresholds(quiet.engine, retained_entries=100)
    add(quiet, 1, 1000)
    ok(quiet, "KVSTREAM.RETENTION SET s MAXLEN 10")
    assert quiet.engine.run(timer_thread.run_due, 1) == 1
    assert len(list_left(quiet)) == 900
    assert quiet.engine.run(timer_thread.run_due, 1) == 1
    assert len(list_left(quiet)) == 800


def test_run_ends_when_entries_are_acknowledged_between_its_steps(quiet: Store) -> None:
    change_thresholds(quiet.engine, thinned_entries=150)
    add(quiet, 1, 1000)
    ok(quiet, "XGROUP CREATE s g 0")
    read(quiet, 1000)
    ok(quiet, "XACK s g " + " ".join(f"{ms}-0" for ms in range(1, 1001) if ms % 10))
    ok(quiet, "KVSTREAM.RETENTION SET s ACKED")
    assert quiet.engine.run(retention.run, NAME) == (180, True)
    ok(quiet, "XACK s g " + " ".join(f"{ms}-0" for ms in range(10, 1001, 10)))
    assert ok(quiet, "KVSTREAM.RETENTION RUN s") == 820


def test_age_and_length_together_pass_entries_that_stay_pending(
    quiet: Store, clock: ManualClock
) -> None:
    change_thresholds(quiet.engine, thinned_entries=150)
    now = clock.now_ms()
    add(quiet, now - 1000, now - 1)
    ok(quiet, "XGROUP CREATE s g 0")
    read(quiet, 1000)
    ok(quiet, "XACK s g " + " ".join(f"{ms}-0" for ms in range(now - 300, now)))
    ok(quiet, "KVSTREAM.RETENTION SET s MAXAGE 990 MAXLEN 710")
    assert ok(quiet, "KVSTREAM.RETENTION RUN s") == 290
    assert list_left(quiet) == [*range(now - 1000, now - 300), *range(now - 10, now)]


def test_ids_in_the_far_future_have_a_timer_too(quiet: Store) -> None:
    ok(quiet, "XADD s 18446744073709551614-0 f v")
    ok(quiet, "KVSTREAM.RETENTION SET s MAXAGE 1000")
    background(quiet)
    background(quiet)
    assert len(list_left(quiet)) == 1
    assert ok(quiet, "KVSTREAM.RETENTION DEL s") == 1
    assert quiet.engine.run(lambda txn: list(timers.scan(txn, stream_of(quiet)))) == []


def test_very_many_streams_are_processed_in_turn(quiet: Store) -> None:
    change_thresholds(quiet.engine, retained_streams=3)
    change_thresholds(quiet.engine, retained_checks=2)
    for number in range(8):
        ok(quiet, f"XADD s{number} * f v")
        ok(quiet, f"KVSTREAM.RETENTION SET s{number} MAXLEN 1")
    while quiet.engine.run(retention.check_changed_streams)[0]:
        pass
    for number in range(8):
        ok(quiet, f"XADD s{number} * f v")
    looks = [quiet.engine.run(retention.check_changed_streams) for _ in range(4)]
    assert looks == [(2, 2)] * 4
    assert [len(quiet.stream(f"s{number}")) for number in range(8)] == [1] * 8


def test_compaction_resumes_after_a_restart(quiet: Store, reopen: Reopen) -> None:
    change_thresholds(quiet.engine, compacted_entries=100)
    for number in range(1, 1001):
        ok(quiet, f"XADD s {number}-0 u {number % 7}")
    ok(quiet, "KVSTREAM.RETENTION SET s LATEST u")
    quiet.engine.run(timer_thread.run_due, 1)
    assert len(list_left(quiet)) == 907
    store = reopen(quiet)
    background(store)
    assert list_left(store) == list(range(994, 1001))
    rows = store.engine.run(lambda txn: list(timers.scan_rows(txn, stream_of(store), b"Pk")))
    assert len(rows) == 7
