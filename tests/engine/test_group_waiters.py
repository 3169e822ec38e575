"""Blocked XREADGROUP: first come, first served, and what ends a wait."""

import time
from collections.abc import Callable

import pytest

from kvstream import ManualClock, NoGroup, Store
from tests.engine.waiting import (
    Call,
    Watch,
    add,
    blocked,
    ms_of,
    waiting,
    watch_group,
    watch_stream,
)
from tests.patience import until

NO_GROUP = "No such key 's' or consumer group 'g' in XREADGROUP with GROUP option"


@pytest.fixture(autouse=True)
def group(store: Store) -> None:
    """A stream of one entry, and a group that has received it."""
    add(store, b"s", "1-0")
    store.stream("s").create_group("g", start="$")


def three_waiters(store: Store, count: int | None = None) -> list[Watch]:
    return [watch_group(store, b"s", b"g", name, count) for name in (b"a", b"b", b"c")]


def test_waiters_of_a_group_are_served_in_the_order_they_came(store: Store) -> None:
    group = store.stream("s").group("g")
    calls = [
        blocked(store, lambda n=name: group.consumer(n).read(count=1, block=60))  # type: ignore[misc]
        for name in ("c", "a", "b")
    ]
    for ms in (2, 3, 4):
        add(store, b"s", f"{ms}-0")
    assert [ms_of(call.result()) for call in calls] == [[2], [3], [4]]
    assert group.pending().consumers == {b"c": 1, b"a": 1, b"b": 1}


def test_the_first_waiter_gets_all_entries(store: Store) -> None:
    first, second, third = three_waiters(store)
    add(store, b"s", "2-0", "3-0", "4-0")
    assert first.ids == [2, 3, 4]
    assert second.outcomes == third.outcomes == []
    add(store, b"s", "5-0")
    assert second.ids == [5]
    assert third.outcomes == []
    assert waiting(store) == 1


def test_entries_beyond_the_count_of_the_first_waiter_go_to_the_next(store: Store) -> None:
    waiters = three_waiters(store, count=2)
    add(store, b"s", *(f"{ms}-0" for ms in range(2, 7)))
    assert [watch.ids for watch in waiters] == [[2, 3], [4, 5], [6]]
    assert waiting(store) == 0


def test_a_waiter_that_gave_up_is_skipped(store: Store) -> None:
    first, second, third = three_waiters(store, count=1)
    assert store.engine.cancel(first.waiter)
    add(store, b"s", "2-0")
    assert first.outcomes == []
    assert second.ids == [2]
    assert not store.engine.cancel(second.waiter)
    assert store.engine.cancel(third.waiter)
    assert waiting(store) == 0
    assert set(store.stream("s").group("g").pending().consumers) == {b"b"}


def test_one_add_serves_each_group_and_every_reader(store: Store) -> None:
    store.stream("s").create_group("h")
    watches = [
        watch_group(store, b"s", b"g", b"a"),
        watch_stream(store, b"s", after=1),
        watch_group(store, b"s", b"h", b"a"),
        watch_stream(store, b"s", after=1),
    ]
    passed_over = watch_group(store, b"s", b"h", b"b")
    add(store, b"s", "2-0")
    assert [watch.ids for watch in watches] == [[2]] * 4
    assert passed_over.outcomes == []


def test_a_blocked_read_of_several_streams_is_served_by_any(store: Store) -> None:
    store.stream("t").create_group("g")
    call = blocked(store, lambda: store.read_group("g", "c", {"s": ">", "t": ">"}, block=60))
    add(store, b"t", "9-0")
    assert {key: ms_of(found) for key, found in call.result().items()} == {b"t": [9]}
    assert store.stream("t").group("g").pending().count == 1


def test_a_blocked_read_without_pending_entries_leaves_none(store: Store) -> None:
    group = store.stream("s").group("g")
    call = blocked(store, lambda: group.consumer("c").read(block=60, noack=True))
    add(store, b"s", "2-0")
    assert ms_of(call.result()) == [2]
    assert group.pending().count == 0
    assert group.info().last_delivered_id.ms == 2


def test_a_wait_returns_nothing_after_its_timeout(store: Store) -> None:
    group = store.stream("s").group("g")
    began = time.monotonic()
    assert group.consumer("c").read(block=0.05) == []
    assert 0.05 <= time.monotonic() - began < 20
    assert [consumer.name for consumer in group.consumers()] == [b"c"]


def test_history_never_waits(store: Store) -> None:
    assert store.read_group("g", "c", {"s": "0"}, block=0) == {b"s": []}
    assert waiting(store) == 0


def test_a_group_moved_back_serves_its_waiters(store: Store) -> None:
    first, second, _ = three_waiters(store)
    store.stream("s").group("g").set_id("0")
    assert first.ids == [1]
    assert second.outcomes == []


ENDS: dict[str, Callable[[Store, ManualClock], object]] = {
    "its key is deleted": lambda store, _: store.delete("s"),
    "all keys are deleted": lambda store, _: store.flush(),
    "its group is destroyed": lambda store, _: store.stream("s").group("g").destroy(),
    "its key is renamed": lambda store, _: store.rename("s", "t"),
    "a stream without the group is renamed over it": lambda store, _: rename_over(store),
    "its key is set to expire in the past": lambda store, _: store.expire("s", -1),
    "its key is found expired": lambda store, clock: expire(store, clock),
}
every_end = pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())


def rename_over(store: Store) -> None:
    add(store, b"t", "9-0")
    store.rename("t", "s")


def expire(store: Store, clock: ManualClock) -> None:
    store.expire("s", 60)
    clock.advance(60_000)
    store.exists("s")


@every_end
def test_the_waiters_of_a_group_are_notified_when(
    store: Store, clock: ManualClock, end: Callable[[Store, ManualClock], object]
) -> None:
    watches = three_waiters(store)
    reading = watch_stream(store, b"s", after=100)
    end(store, clock)
    if watches[0].outcomes == []:  # the expiry thread found the expired key
        until(lambda: bool(watches[-1].outcomes), "the notifications")
    for watch in watches:
        with pytest.raises(NoGroup) as caught:
            watch.outcomes[0].get()
        assert str(caught.value) == NO_GROUP
        assert len(watch.outcomes) == 1
    assert reading.outcomes == []  # XREAD keeps waiting
    assert waiting(store) == 1


def test_destroying_a_group_raises_in_its_waiting_threads(store: Store) -> None:
    group = store.stream("s").group("g")
    calls: list[Call[object]] = [
        blocked(store, lambda: group.consumer("c").read(block=60)),
        blocked(store, lambda: group.consumer("c").read(block=60, claim_min_idle=5)),
        blocked(store, lambda: store.read_group("g", "c", {"s": ">"}, block=0)),
    ]
    group.destroy()
    for call in calls:
        with pytest.raises(NoGroup):
            call.result()


def test_destroying_a_group_does_not_affect_the_waiters_of_another(store: Store) -> None:
    store.stream("s").create_group("h")
    stays = watch_group(store, b"s", b"h", b"c")
    goes = watch_group(store, b"s", b"g", b"c")
    store.stream("s").group("g").destroy()
    assert len(goes.outcomes) == 1
    assert stays.outcomes == []
    add(store, b"s", "2-0")
    assert stays.ids == [2]


def test_a_group_recreated_in_one_commit_keeps_its_waiters(store: Store) -> None:
    watch = watch_group(store, b"s", b"g", b"c")
    with store.transaction():
        store.delete("s")
        store.stream("s").create_group("g")
    assert watch.outcomes == []
    add(store, b"s", "1-0")
    assert watch.ids == [1]


def test_a_stream_renamed_over_the_key_serves_the_group_of_that_name(
    store: Store,
) -> None:
    store.stream("t").create_group("g")
    add(store, b"t", "8-0", "9-0")
    first, second, _ = three_waiters(store, count=1)
    store.rename("t", "s")
    assert [first.ids, second.ids] == [[8], [9]]
    assert waiting(store) == 1


def test_a_wait_on_a_missing_group_is_refused(store: Store) -> None:
    with pytest.raises(NoGroup, match="No such key 's' or consumer group 'x'"):
        store.stream("s").group("x").consumer("c").read(block=0)
    with pytest.raises(NoGroup, match="No such key 'missing' or consumer group 'g'"):
        store.read_group("g", "c", {"s": ">", "missing": ">"}, block=0)
    assert waiting(store) == 0
