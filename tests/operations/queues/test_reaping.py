"""Idle consumers are removed by the policy of their group, and their entries pass on."""

from collections.abc import Callable

import pytest

from kvstream import ManualClock, Store
from kvstream.layout.keys import qualified
from kvstream.meta import timers
from kvstream.operations.queues import due, policy, reaping
from tests.opening import Stores

NAME = qualified(0, b"s")


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


def fire(store: Store) -> None:
    while store.engine.run(due.run_due, 100):
        pass


def consumers(store: Store) -> list[bytes]:
    return [each.name for each in store.stream("s").group("g").consumers()]


def test_an_idle_consumer_is_removed_and_its_entries_pass_on(
    quiet: Store, clock: ManualClock
) -> None:
    group = quiet.stream("s").group("g")
    first = group.consumer("old").read(count=3)
    clock.advance(600)
    group.consumer("new").read(count=1)
    rule(quiet, 1000)
    clock.advance(399)
    fire(quiet)
    assert consumers(quiet) == [b"new", b"old"]
    clock.advance(1)
    fire(quiet)
    assert consumers(quiet) == [b"new"]
    assert quiet.stats()["queues"]["consumers_reaped"] == 1
    info = quiet.stream("s").group("g").info()
    assert info.pending == 4
    again = group.consumer("new").read(count=10)
    assert [entry.id for entry in again][:3] == [entry.id for entry in first]


def test_a_consumer_that_appears_later_is_removed_too(quiet: Store, clock: ManualClock) -> None:
    rule(quiet, 5000)
    clock.advance(4000)
    quiet.stream("s").group("g").consumer("late").read(count=1)
    clock.advance(4999)
    fire(quiet)
    assert consumers(quiet) == [b"late"]
    clock.advance(1)
    fire(quiet)
    assert consumers(quiet) == []


def test_very_many_entries_pass_on_in_steps(
    quiet: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaping, "STEP_RUNS", 2)
    group = quiet.stream("s").group("g")
    for _ in range(5):
        group.consumer("old").read(count=1)
        clock.advance(10)  # each has a run of its own
    rule(quiet, 1000)
    clock.advance(1000)
    assert quiet.engine.run(due.run_due, 1) == 1
    assert consumers(quiet) == [b"old"]
    fire(quiet)
    assert consumers(quiet) == []
    assert group.info().pending == 5


def test_very_many_consumers_are_removed_in_steps(
    quiet: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaping, "STEP_CONSUMERS", 2)
    for number in range(5):
        quiet.stream("s").group("g").create_consumer(f"c{number}")
    rule(quiet, 1000)
    clock.advance(1000)
    assert quiet.engine.run(due.run_due, 1) == 1
    assert len(consumers(quiet)) == 3
    fire(quiet)
    assert consumers(quiet) == []


@pytest.mark.parametrize(
    "end",
    [
        lambda store: rule(store, 0),
        lambda store: store.engine.run(policy.drop_policy, NAME, b"g"),
    ],
    ids=["the rule is removed", "the policy is removed"],
)
def test_nobody_is_removed_when_the_rule_has_gone(
    quiet: Store, clock: ManualClock, end: Callable[[Store], object]
) -> None:
    rule(quiet, 1000)
    quiet.stream("s").group("g").consumer("c").read(count=1)
    end(quiet)
    clock.advance(5000)
    fire(quiet)
    assert consumers(quiet) == [b"c"]


def test_a_group_that_was_deleted_leaves_no_timer(quiet: Store, clock: ManualClock) -> None:
    rule(quiet, 1000)
    quiet.stream("s").group("g").destroy()
    clock.advance(5000)
    fire(quiet)
    stream = quiet.engine.catalog.streams[NAME]
    assert quiet.engine.run(lambda txn: list(timers.scan(txn, stream))) == []
    assert quiet.engine.run(lambda txn: list(timers.scan_rows(txn, stream, b"P"))) == []


def test_setting_the_rule_again_leaves_one_timer(quiet: Store, clock: ManualClock) -> None:
    for idle_ms in (1000, 2000, 3000):
        rule(quiet, idle_ms)
    stream = quiet.engine.catalog.streams[NAME]
    found = quiet.engine.run(lambda txn: list(timers.scan(txn, stream)))
    assert [timer.at_ms for timer in found] == [clock.now_ms() + 3000]
