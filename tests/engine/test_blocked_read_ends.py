"""How a blocked read ends early: interrupts, the end of the store, and errors elsewhere."""

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from kvstream import NoGroup, Store, StoreClosed
from kvstream.engine.waiters import Outcome, Waiter
from kvstream.meta.wakeups import Wake
from tests.engine.waiting import (
    Call,
    add,
    blocked,
    ms_of,
    waiting,
    watch_group,
    watch_stream,
)
from tests.opening import Stores
from tests.patience import until

WAITS: dict[str, Callable[[Store], object]] = {
    "a read": lambda store: store.stream("s").read(block=30),
    "a read for ever": lambda store: store.read({"s": "$", "t": "$"}, block=0),
    "a group's read": lambda store: store.stream("s").group("g").consumer("c").read(block=30),
    "a claiming read": lambda store: (
        store.stream("s").group("g").consumer("c").read(block=30, claim_min_idle=60)
    ),
    "a claiming read that polls": lambda store: (
        store.stream("s").group("g").consumer("c").read(block=30, claim_min_idle=0)
    ),
}
every_wait = pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())


def interrupt_when(condition: Callable[[], bool]) -> Call[None]:
    """Send this process a SIGINT, as Ctrl-C does, once ``condition`` holds."""
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        until(condition, "something to interrupt")
        time.sleep(0.03)  # a signal just before the wait for a lock does not end that wait
        signal.pthread_kill(main, signal.SIGINT)

    return Call(interrupt)


@every_wait
def test_an_interrupted_wait_leaves_no_waiter(
    store: Store, wait: Callable[[Store], object]
) -> None:
    store.stream("s").create_group("g")
    interrupter = interrupt_when(lambda: waiting(store) == 1)
    with pytest.raises(KeyboardInterrupt):
        wait(store)
    interrupter.result()
    assert waiting(store) == 0
    add(store, b"s", "1-0")
    assert store.stream("s").group("g").pending().count == 0


def test_a_wait_interrupted_during_an_fsync_leaves_no_waiter(open_store: Stores) -> None:
    store = open_store("own", durability="always")
    group = store.stream("s").create_group("g")
    flushing = threading.Event()
    database = store.engine.database
    flush_wal = database.flush_wal

    def slow_flush() -> int:
        flushing.set()
        threading.Event().wait(30)
        return flush_wal()

    database.flush_wal = slow_flush  # type: ignore[method-assign]
    interrupter = interrupt_when(flushing.is_set)
    with pytest.raises(KeyboardInterrupt):
        group.consumer("c").read(block=30)  # creates the consumer, which must become durable
    interrupter.result()
    database.flush_wal = flush_wal  # type: ignore[method-assign]
    assert waiting(store) == 0
    add(store, b"s", "1-0")
    assert group.pending().count == 0


@every_wait
def test_closing_the_store_ends_every_wait(
    open_store: Stores, wait: Callable[[Store], object]
) -> None:
    store = open_store("own")
    store.stream("s").create_group("g")
    calls = [blocked(store, lambda: wait(store)) for _ in range(3)]
    store.close()
    errors = []
    for call in calls:
        with pytest.raises(StoreClosed, match="the store is closed") as caught:
            call.result()
        errors.append(caught.value)
    assert len(set(map(id, errors))) == 3  # each has its own traceback


def test_a_wait_on_a_closed_store_is_refused(open_store: Stores) -> None:
    store = open_store("own")
    store.stream("s").create_group("g")
    store.close()
    for wait in WAITS.values():
        with pytest.raises(StoreClosed):
            wait(store)


def test_closing_from_many_threads_at_once_closes_once(open_store: Stores) -> None:
    store = open_store("own")
    wait = blocked(store, lambda: store.stream("s").read(block=30))
    together = threading.Barrier(4)

    def close() -> None:
        together.wait()
        store.close()

    calls = [Call(close) for _ in range(4)]
    for call in calls:
        call.result()
    with pytest.raises(StoreClosed):
        wait.result()
    store.close()


def test_a_write_during_a_close_is_stored_completely_or_not_at_all(open_store: Stores) -> None:
    store = open_store("own")
    acknowledged: list[list[int]] = [[] for _ in range(4)]
    writing = threading.Event()

    def write(mine: list[int]) -> None:
        while True:
            mine.append(store.stream("s").add({"f": "v"}).seq)
            writing.set()

    calls = [Call(lambda mine=mine: write(mine)) for mine in acknowledged]  # type: ignore[misc]
    writing.wait()
    store.close()
    for call in calls:
        with pytest.raises(StoreClosed):
            call.result()
    reopened = open_store("own")
    found = [entry.id.seq for entry in reopened.stream("s").range()]
    assert found == sorted(seq for mine in acknowledged for seq in mine)


def test_a_write_made_durable_by_a_close_is_acknowledged(
    open_store: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(durability="always")
    committer, main = store.engine.committer, threading.current_thread()
    take_turn = committer._take_turn

    def closed_before(queued: Any) -> bool:
        if threading.current_thread() is main:
            Call(store.close).result()
        return take_turn(queued)

    monkeypatch.setattr(committer, "_take_turn", closed_before)
    assert store.stream("s").add({"f": "v"})


def test_a_failing_attempt_raises_only_in_its_own_waiter(store: Store) -> None:
    add(store, b"s", "1-0")
    breaks, sound = watch_stream(store, b"s", 1), watch_stream(store, b"s", 1)

    def fail(txn: object) -> None:
        raise ZeroDivisionError

    breaks.waiter.attempt = fail
    add(store, b"s", "2-0")
    with pytest.raises(ZeroDivisionError):
        breaks.outcomes[0].get()
    assert sound.ids == [2]
    assert ms_of(store.stream("s").range()) == [1, 2]


def test_a_failing_attempt_changes_nothing(store: Store) -> None:
    add(store, b"s", "1-0")
    group = store.stream("s").create_group("g")
    watch = watch_group(store, b"s", b"g", b"c")
    attempt = watch.waiter.attempt

    def fail(txn: object) -> None:
        attempt(txn)
        raise ZeroDivisionError

    watch.waiter.attempt = fail
    add(store, b"s", "2-0")
    with pytest.raises(ZeroDivisionError):
        watch.outcomes[0].get()
    assert group.pending().count == 0
    assert ms_of(group.consumer("d").read()) == [2]


def test_an_interrupt_during_a_served_read_is_raised_by_the_next_call(store: Store) -> None:
    group = store.stream("s").create_group("g")
    watch = watch_group(store, b"s", b"g", b"c")
    attempt = watch.waiter.attempt

    def interrupted(txn: object) -> None:
        attempt(txn)
        watch.waiter.attempt = attempt
        raise KeyboardInterrupt

    watch.waiter.attempt = interrupted
    with pytest.raises(KeyboardInterrupt):
        add(store, b"s", "1-0")
    assert ms_of(store.stream("s").range()) == [1]  # it was committed before
    until(lambda: bool(watch.outcomes), "the notification")
    assert watch.ids == [1]
    assert group.pending().count == 1
    assert waiting(store) == 0


def test_a_served_waiter_is_notified_despite_an_interrupt(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.stream("s").create_group("g")
    watch, committer = watch_group(store, b"s", b"g", b"c"), store.engine.committer
    after = committer.after

    def interrupted(*args: Any) -> None:
        monkeypatch.setattr(committer, "after", after)
        raise KeyboardInterrupt

    monkeypatch.setattr(committer, "after", interrupted)
    with pytest.raises(KeyboardInterrupt):
        add(store, b"s", "1-0")
    until(lambda: bool(watch.outcomes), "the notification")
    assert watch.ids == [1]
    assert waiting(store) == 0


def test_a_served_waiter_is_notified_once(store: Store) -> None:
    store.stream("s").create_group("g")
    watch = watch_group(store, b"s", b"g", b"c")
    add(store, b"s", "1-0")
    store.stream("s").group("g").destroy()
    store.delete("s")
    assert len(watch.outcomes) == 1
    assert watch.ids == [1]


def test_a_waiter_served_at_its_timeout_gets_exactly_one_outcome(store: Store) -> None:
    group = store.stream("s").create_group("g")
    for _ in range(20):
        call = Call(lambda: group.consumer("c").read(block=0.002))
        time.sleep(0.002)
        eid = store.stream("s").add({"f": "v"})
        found = [entry.id for entry in call.result()]
        assert found in ([], [eid])
        left = [entry.id for entry in group.consumer("d").read()]
        assert sorted(found + left) == [eid]
    with pytest.raises(NoGroup):
        store.stream("x").group("g").consumer("c").read(block=0.002)


def test_a_wait_served_just_at_its_timeout_ends(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = store.engine.cancel

    def serve_first(waiter: Waiter, reason: Wake) -> bool:
        waiter.found = 0, Outcome([])
        waiter.deliver(waiter.found[1])
        store.engine.waiters.remove(waiter)
        return cancel(waiter, reason)

    monkeypatch.setattr(store.engine, "cancel", serve_first)
    call = Call(lambda: store.stream("s").read(block=0.001))
    assert call.result() == []
