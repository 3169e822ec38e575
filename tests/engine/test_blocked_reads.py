"""Blocked XREAD: which readers are woken, by what, and what they get."""

import time

import pytest

from kvstream import InvalidArgument, Store
from tests.engine.waiting import Call, add, blocked, ms_of, waiting, watch_stream
from tests.patience import retried, until


def test_a_waiting_read_is_woken_by_one_add(store: Store) -> None:
    call = blocked(store, lambda: store.stream("s").read(block=60))
    eid = store.stream("s").add({"f": "v"})
    (entry,) = call.result()
    assert (entry.id, entry.fields) == (eid, {b"f": b"v"})
    assert call.seconds < 5
    assert waiting(store) == 0


def test_every_waiting_read_is_served_by_one_add(store: Store) -> None:
    calls = [blocked(store, lambda: store.stream("s").read(block=60)) for _ in range(5)]
    eid = store.stream("s").add({"f": "v"})
    assert [[entry.id for entry in call.result()] for call in calls] == [[eid]] * 5


def test_a_read_of_several_streams_is_woken_by_any(store: Store) -> None:
    call = blocked(store, lambda: store.read({"a": "$", "b": "$", "c": "$"}, block=60))
    eid = store.stream("b").add({"f": "v"})
    assert {key: [e.id for e in found] for key, found in call.result().items()} == {b"b": [eid]}
    assert waiting(store) == 0


def test_a_read_of_several_streams_has_its_own_order(store: Store) -> None:
    call = blocked(store, lambda: store.read({"b": "$", "a": "$"}, block=60))
    with store.transaction():
        add_to_both = [store.stream(key).add({"f": "v"}) for key in ("a", "b")]
    assert list(call.result()) == [b"b", b"a"]
    assert len(add_to_both) == 2


def test_a_read_that_waits_on_one_key_twice_is_served_once(store: Store) -> None:
    add(store, b"s", "1-0")
    watch = watch_stream(store, b"s", after=1)
    watch.waiter.names.append(watch.waiter.names[0])
    add(store, b"s", "2-0")
    assert watch.ids == [2]
    assert len(watch.outcomes) == 1


@pytest.mark.parametrize(("before", "added"), [(["1-0"], ["2-0", "3-0"]), ([], ["0-1"])])
def test_the_dollar_is_resolved_at_the_start_of_the_call(
    store: Store, before: list[str], added: list[str]
) -> None:
    add(store, b"s", *before)
    call = blocked(store, lambda: store.stream("s").read("$", block=60))
    add(store, b"s", *added)
    assert [str(entry.id) for entry in call.result()] == added


def test_plus_returns_only_the_last_entry_at_once(store: Store) -> None:
    add(store, b"s", "1-0", "2-0", "3-0")
    assert ms_of(store.stream("s").read("+", block=60)) == [3]
    assert ms_of(store.stream("s").read(b"+", count=5, block=60)) == [3]


@pytest.mark.parametrize("made", [True, False])
def test_plus_waits_if_there_is_no_entry(store: Store, made: bool) -> None:
    if made:
        add(store, b"s", "1-0")
        store.stream("s").trim(maxlen=0)
    call = blocked(store, lambda: store.stream("s").read("+", block=60))
    add(store, b"s", "5-0")
    assert ms_of(call.result()) == [5]


def test_plus_is_one_entry_while_others_add(store: Store) -> None:
    stream = store.stream("s")
    stream.add({"f": "v"})
    enough = time.monotonic() + 0.3

    def add_on() -> None:
        while time.monotonic() < enough:
            stream.add({"f": "v"}, maxlen=10)

    call = Call(add_on)
    while not call.ended:
        assert len(stream.read("+")) == 1
    call.result()


def test_a_wait_on_a_missing_key_ends_when_the_key_is_created(store: Store) -> None:
    call = blocked(store, lambda: store.stream("s").read(block=60))
    store.stream("other").create_group("g")
    store.stream("s").create_group("g")  # an empty stream wakes nobody
    assert waiting(store) == 1
    add(store, b"s", "7-0")
    assert ms_of(call.result()) == [7]


def test_a_wait_returns_nothing_after_its_timeout(store: Store) -> None:
    began = time.monotonic()
    assert store.stream("s").read(block=0.05) == []
    assert 0.05 <= time.monotonic() - began < 20
    assert store.read({"a": "$", "b": "0"}, block=0.001) == {}
    assert waiting(store) == 0


@pytest.mark.parametrize("block", [1e12, float("inf")])
def test_a_wait_may_be_longer_than_any_clock_can_count(store: Store, block: float) -> None:
    call = blocked(store, lambda: store.stream("s").read(block=block))
    add(store, b"s", "1-0")
    assert ms_of(call.result()) == [1]


@pytest.mark.parametrize("block", [-1, -0.001, float("-inf"), float("nan")])
def test_an_invalid_length_of_a_wait_is_refused(store: Store, block: float) -> None:
    with pytest.raises(InvalidArgument, match=r"block is (negative|not a number)"):
        store.stream("s").read(block=block)


def test_a_read_with_new_entries_does_not_wait(store: Store) -> None:
    add(store, b"s", "1-0", "2-0")
    assert ms_of(store.stream("s").read("0", block=0)) == [1, 2]
    assert ms_of(store.stream("s").read("0", count=1, block=0)) == [1]


def test_only_live_entries_prevent_a_wait(store: Store) -> None:
    add(store, b"s", "666-0", "667-0")
    store.stream("s").delete("667-0")
    assert store.stream("s").read("666", block=0.01) == []
    watch = watch_stream(store, b"s", after=666)
    with store.transaction():
        add_one_and_delete_it(store, "668-0")
    assert watch.outcomes == []
    add(store, b"s", "669-0")
    assert watch.ids == [669]


def test_a_blocked_read_keeps_waiting_when_its_key_is_deleted(store: Store) -> None:
    add(store, b"s", "666-0")
    watch = watch_stream(store, b"s", after=666)
    store.delete("s")
    store.stream("s").create_group("g")
    store.flush()
    assert watch.outcomes == []
    add(store, b"s", "600-0")  # a lower ID of the new stream is not after 666
    assert watch.outcomes == []
    add(store, b"s", "667-0")
    assert watch.ids == [667]


def test_renaming_a_stream_with_new_entries_to_the_key_wakes_readers(store: Store) -> None:
    add(store, b"s", "1-0")
    add(store, b"old", "1-0")
    add(store, b"new", "2-0")
    watch = watch_stream(store, b"s", after=1)
    store.rename("old", "s")
    assert watch.outcomes == []
    store.rename("new", "s")
    assert watch.ids == [2]


def test_a_blocked_read_returns_at_most_its_count(store: Store) -> None:
    calls = [
        blocked(store, lambda: store.stream("s").read(count=2, block=60)),
        blocked(store, lambda: store.stream("s").read(max_count=3, block=60)),
        blocked(store, lambda: store.stream("s").read(max_size=1, block=60)),
    ]
    add(store, b"s", *(f"{ms}-0" for ms in range(1, 6)))
    assert [ms_of(call.result()) for call in calls] == [[1, 2], [1, 2, 3], [1]]


def test_a_useless_wake_up_does_not_extend_the_deadline(store: Store) -> None:
    def once() -> None:
        store.flush_all()
        add(store, b"s", "1-0")
        group = store.stream("s").create_group("g")
        calls = [
            blocked(store, lambda: store.stream("s").read("$", block=1.0)),
            blocked(store, lambda: group.consumer("c").read(block=1.0)),
            blocked(store, lambda: group.consumer("d").read(block=1.0, claim_min_idle=60)),
        ]
        until(lambda: time.monotonic() - calls[0].began > 0.8, "most of a second")
        with store.transaction():
            add_one_and_delete_it(store, "2-0")
        assert [call.result() for call in calls] == [[], [], []]
        for call in calls:
            assert 1.0 <= call.seconds < 1.7  # a restarted wait would take 1.8 at least

    retried(once)


def add_one_and_delete_it(store: Store, eid: str) -> None:
    store.stream("s").delete(store.stream("s").add({"f": "v"}, id=eid))


def test_keys_that_are_to_be_served_are_not_lost_with_a_call_that_fails(store: Store) -> None:
    store.engine.expiry.paused = True
    add(store, b"s", "1-0")
    with store.engine.hold():  # the expiry thread makes a commit every tenth of a second
        watch = watch_stream(store, b"s", after=1)
        watch.waiter.attempt = lambda txn: "found"
        store.engine.serve_later(watch.waiter.names)
        with pytest.raises(InvalidArgument):
            store.stream("s").trim(maxlen=-1)
        assert watch.outcomes == []
        store.engine.run(lambda txn: None)
    assert [outcome.reply for outcome in watch.outcomes] == ["found"]
