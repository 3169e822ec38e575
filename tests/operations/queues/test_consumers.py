"""Remove consumers without losing their entries, by hand or when idle; move groups."""

from collections.abc import Callable

import pytest

from kvstream import ManualClock, NoGroup, Queue, RequestError, Store
from kvstream.commands.command import Stepwise
from kvstream.commands.table import find
from kvstream.engine import timer_thread
from kvstream.layout.keys import qualified
from kvstream.meta import timers
from kvstream.operations import groups
from kvstream.operations.queues import consumers, policy
from kvstream.types.ids import StreamID
from tests.commands.conftest import Say, speaker, words
from tests.commands.dispatcher import Dispatcher
from tests.opening import Stores, change_thresholds
from tests.operations.queue_commands import step

NAME = qualified(0, b"s")


@pytest.fixture
def say(store: Store) -> Say:
    found = speaker(Dispatcher(store.engine))
    found("XGROUP CREATE s g $ MKSTREAM")
    for number in (1000, 2000, 3000):
        found(f"XADD s {number}-5 f v")
    return found


def test_the_entries_of_a_removed_consumer_are_delivered_again(say: Say) -> None:
    say("KVSTREAM.POLICY SET s g LEASE 9999")
    say("XREADGROUP GROUP g a COUNT 2 STREAMS s >")
    assert say("KVSTREAM.POLICY REMOVE s g a") == 2
    assert say("XINFO CONSUMERS s g") == []
    found = say("XREADGROUP GROUP g b STREAMS s >")
    assert [entry[0] for entry in found[0][1]] == [b"1000-5", b"2000-5", b"3000-5"]
    assert [row[3] for row in say("XPENDING s g - + 9")] == [2, 2, 1]


def test_a_late_ack_of_a_removed_consumer_is_refused(say: Say) -> None:
    say("XREADGROUP GROUP g a COUNT 2 STREAMS s >")
    say("KVSTREAM.POLICY REMOVE s g a")
    assert say("KVSTREAM.ACK s g a 1000-5 1") == [-1]


def test_a_consumer_of_very_many_entries_is_removed_in_steps(
    store: Store, say: Say, clock: ManualClock
) -> None:
    change_thresholds(store.engine, ready_runs=1)
    for _ in range(3):
        clock.advance(1)
        say("XREADGROUP GROUP g a COUNT 1 STREAMS s >")
    session = Dispatcher(store.engine).session
    session.pages = True
    argv = words("KVSTREAM.POLICY REMOVE s g a")
    answer, steps = store.engine.run(find(argv).run, session, argv), 0
    while isinstance(answer, Stepwise):
        answer, steps = store.engine.run(answer.run, session, argv), steps + 1
        assert store.check() == []
    assert (answer, steps) == (3, 4)
    assert say("XINFO CONSUMERS s g") == []


def test_a_consumer_that_is_missing_is_named(store: Store, say: Say) -> None:
    with pytest.raises(RequestError, match="there is no consumer"):
        store.engine.run(consumers.pass_on, NAME, b"g", b"none")
    with pytest.raises(NoGroup):
        store.engine.run(consumers.pass_on, NAME, b"none", b"a")


@pytest.mark.parametrize(
    ("at_ms", "after", "lag"),
    [
        (0, StreamID(0, 0), 3),
        (2000, StreamID(1999, 2**64 - 1), 2),
        (2001, StreamID(2000, 2**64 - 1), 1),
        (9999, StreamID(9998, 2**64 - 1), 0),
    ],
)
def test_a_group_is_moved_to_a_time(
    store: Store, say: Say, at_ms: int, after: StreamID, lag: int
) -> None:
    say("XREADGROUP GROUP g a COUNT 2 STREAMS s >")
    assert store.engine.run(groups.seek, NAME, b"g", at_ms) == after
    group = store.stream("s").groups()[0]
    assert (group.last_delivered_id, group.lag, group.pending) == (after, lag, 2)


def test_an_impossible_time_is_refused(say: Say) -> None:
    assert "cannot be -1" in say("KVSTREAM.POLICY SEEK s g -1")
    assert "must be Unix milliseconds" in say("KVSTREAM.POLICY SEEK s g soon")
    assert say("KVSTREAM.POLICY SEEK s none 5").startswith("NOGROUP")


@pytest.fixture
def quiet(open_store: Stores) -> Store:
    """A store whose timer thread does nothing, with a stream of six entries and a group."""
    store = open_store("own")
    store.engine.timers.paused = True
    for number in range(6):
        store.stream("s").add({"n": str(number)})
    store.stream("s").create_group("g", "0")
    return store


def rule(store: Store, idle_ms: int) -> None:
    store.engine.run(policy.set_policy, NAME, b"g", {"reap_idle_ms": idle_ms})


def names(store: Store) -> list[bytes]:
    return [each.name for each in store.stream("s").group("g").consumers()]


def test_an_idle_consumer_is_removed_and_its_entries_are_delivered_again(
    quiet: Store, clock: ManualClock
) -> None:
    group = quiet.stream("s").group("g")
    first = group.consumer("old").read(count=3)
    clock.advance(600)
    group.consumer("new").read(count=1)
    rule(quiet, 1000)
    clock.advance(399)
    step(quiet)
    assert names(quiet) == [b"new", b"old"]
    clock.advance(1)
    step(quiet)
    assert names(quiet) == [b"new"]
    assert quiet.stats()["queues"]["consumers_reaped"] == 1
    info = quiet.stream("s").group("g").info()
    assert info.pending == 4
    again = group.consumer("new").read(count=10)
    assert [entry.id for entry in again][:3] == [entry.id for entry in first]


def test_a_consumer_that_renews_its_lease_is_not_idle(quiet: Store, clock: ManualClock) -> None:
    queue = Queue(quiet, "work", consumer="busy", lease=0.6)
    queue.put({"n": 1})
    (message,) = queue.get()
    queue.groups()[0].set_policy(reap=1)
    for _ in range(5):
        clock.advance(500)
        step(quiet)
        message.extend()
    message.ack()
    clock.advance(1000)
    step(quiet)
    assert queue.groups()[0].consumers() == []


def test_a_consumer_that_appears_later_is_removed_too(quiet: Store, clock: ManualClock) -> None:
    rule(quiet, 5000)
    clock.advance(4000)
    quiet.stream("s").group("g").consumer("late").read(count=1)
    clock.advance(4999)
    step(quiet)
    assert names(quiet) == [b"late"]
    clock.advance(1)
    step(quiet)
    assert names(quiet) == []


def test_very_many_entries_are_given_back_in_steps(quiet: Store, clock: ManualClock) -> None:
    change_thresholds(quiet.engine, reaped_runs=2)
    group = quiet.stream("s").group("g")
    for _ in range(5):
        group.consumer("old").read(count=1)
        clock.advance(10)  # each in a run of its own
    rule(quiet, 1000)
    clock.advance(1000)
    assert quiet.engine.run(timer_thread.run_due, 1) == 1
    assert names(quiet) == [b"old"]
    step(quiet)
    assert names(quiet) == []
    assert group.info().pending == 5


def test_very_many_consumers_are_removed_in_steps(
    quiet: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_thresholds(quiet.engine, reaped_consumers=2)
    for number in range(5):
        quiet.stream("s").group("g").create_consumer(f"c{number}")
    rule(quiet, 1000)
    clock.advance(1000)
    assert quiet.engine.run(timer_thread.run_due, 1) == 1
    assert len(names(quiet)) == 3
    with monkeypatch.context() as patch:  # no step sorts all consumers
        patch.setattr(quiet.engine.catalog, "consumers", None)
        step(quiet)
    assert names(quiet) == []


@pytest.mark.parametrize(
    "end",
    [
        lambda store: rule(store, 0),
        lambda store: store.engine.run(policy.drop_policy, NAME, b"g"),
    ],
    ids=["the rule is removed", "the policy is removed"],
)
def test_no_consumer_is_removed_after_the_rule_is(
    quiet: Store, clock: ManualClock, end: Callable[[Store], object]
) -> None:
    rule(quiet, 1000)
    quiet.stream("s").group("g").consumer("c").read(count=1)
    end(quiet)
    clock.advance(5000)
    step(quiet)
    assert names(quiet) == [b"c"]


def test_a_group_that_was_deleted_leaves_no_timer(quiet: Store, clock: ManualClock) -> None:
    rule(quiet, 1000)
    quiet.stream("s").group("g").destroy()
    clock.advance(5000)
    step(quiet)
    stream = quiet.engine.catalog.streams[NAME]
    assert quiet.engine.run(lambda txn: list(timers.scan(txn, stream))) == []
    assert quiet.engine.run(lambda txn: list(timers.scan_rows(txn, stream, b"P"))) == []


def test_setting_the_rule_again_leaves_one_timer(quiet: Store, clock: ManualClock) -> None:
    for idle_ms in (1000, 2000, 3000):
        rule(quiet, idle_ms)
    stream = quiet.engine.catalog.streams[NAME]
    found = quiet.engine.run(lambda txn: list(timers.scan(txn, stream)))
    assert [timer.at_ms for timer in found] == [clock.now_ms() + 3000]
