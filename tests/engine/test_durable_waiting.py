"""Durability "always": no reply and no reader sees a write before it is on disk."""

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from kvstream import Store, StoreReadOnly, UnknownOutcome
from kvstream.engine.waiters import Outcome, Waiter
from tests.engine.waiting import Call, add, blocked, ms_of, watch_group, watch_stream
from tests.opening import Stores
from tests.patience import PATIENCE_S, until


class HeldLog:
    """The store's RocksDB; each fsync of the log waits for ``release``, or fails."""

    def __init__(self, store: Store) -> None:
        self._rows: Any = store.engine.database._root
        self._go_on = threading.Event()
        self.begun = threading.Event()
        self.failing = False
        store.engine.database._root = cast("Any", self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    def flush_wal(self, sync: bool) -> None:
        self.begun.set()
        assert self._go_on.wait(PATIENCE_S)
        if self.failing:
            raise Exception("IO error: the disk is gone")
        self._rows.flush_wal(sync)

    def release(self) -> None:
        self._go_on.set()


@pytest.fixture
def store(open_store: Stores) -> Store:
    store = open_store("own", durability="always")
    add(store, b"s", "1-0")
    store.stream("s").create_group("g")
    store.stream("s").group("g").create_consumer("c")
    return store


@pytest.fixture
def held(store: Store) -> Iterator[HeldLog]:
    held = HeldLog(store)
    yield held
    held.release()


def test_a_write_returns_only_when_it_is_on_disk(store: Store, held: HeldLog) -> None:
    call = Call(lambda: add(store, b"s", "2-0"))
    held.begun.wait()
    assert not call.ended
    held.release()
    assert [eid.ms for eid in call.result()] == [2]


def test_waiters_are_notified_only_when_the_write_is_on_disk(store: Store, held: HeldLog) -> None:
    reading, taking = watch_stream(store, b"s", 1), watch_group(store, b"s", b"g", b"c")
    call = Call(lambda: add(store, b"s", "2-0"))
    held.begun.wait()
    assert reading.outcomes == taking.outcomes == []
    held.release()
    call.result()
    until(lambda: bool(reading.outcomes and taking.outcomes), "the notifications")
    assert reading.ids == taking.ids == [2]


def test_writes_that_share_an_fsync_each_notify_their_own_waiters(
    store: Store, held: HeldLog
) -> None:
    keys = (b"s", b"t", b"u")
    watches = [watch_stream(store, key, 1) for key in keys]
    calls = []
    for key in keys:
        before = store.engine.database.sequence
        calls.append(Call(lambda key=key: store.stream(key).add({"f": "v"}, id="2-0")))  # type: ignore[misc]
        until(lambda before=before: store.engine.database.sequence > before, "a write")  # type: ignore[misc]
    assert not any(watch.outcomes for watch in watches)
    held.release()
    for call in calls:
        call.result()
    until(lambda: all(watch.outcomes for watch in watches), "the notifications")
    assert [watch.ids for watch in watches] == [[2], [2], [2]]


def test_a_waiter_that_writes_is_notified_when_its_own_write_is_on_disk_too(store: Store) -> None:
    taking = watch_group(store, b"s", b"g", b"c")
    notified_at: list[int] = []
    committer = store.engine.committer
    taking.waiter.deliver = lambda outcome: notified_at.append(committer.durable_sequence)
    add(store, b"s", "2-0")
    until(lambda: bool(notified_at), "the notification")
    assert notified_at[0] >= store.engine.database.sequence
    assert store.stream("s").group("g").pending().count == 1


def test_a_reader_sees_nothing_that_may_still_be_lost(store: Store, held: HeldLog) -> None:
    write = Call(lambda: add(store, b"s", "2-0"))
    held.begun.wait()
    read = Call(lambda: ms_of(store.stream("s").range()))
    wait = Call(lambda: ms_of(store.stream("s").read("1", block=10)))
    length = Call(lambda: len(store.stream("s")))
    for call in (read, wait, length):
        assert not call.ended
    held.release()
    assert (read.result(), wait.result(), length.result()) == ([1, 2], [2], 2)
    write.result()


def test_a_transaction_returns_only_when_it_is_on_disk(store: Store, held: HeldLog) -> None:
    reading = watch_stream(store, b"s", 1)

    def transact() -> None:
        with store.transaction() as tx:
            for ms in (2, 3):
                tx.stream("s").add({"f": "v"}, id=f"{ms}-0")

    call = Call(transact)
    held.begun.wait()
    assert not call.ended
    assert reading.outcomes == []
    held.release()
    call.result()
    assert reading.ids == [2, 3]


def test_other_threads_write_while_one_waits_for_the_disk(store: Store, held: HeldLog) -> None:
    first = store.engine.database.sequence
    calls = [Call(lambda: store.stream("t").add({"f": "v"})) for _ in range(10)]
    until(lambda: store.engine.database.sequence >= first + 10, "ten writes")
    assert not any(call.ended for call in calls)
    held.release()
    assert len({call.result() for call in calls}) == 10


def test_a_failed_fsync_raises_in_the_writer_and_wakes_no_reader(
    store: Store, held: HeldLog
) -> None:
    watch = watch_stream(store, b"s", 1)
    call = Call(lambda: add(store, b"s", "2-0"))
    held.begun.wait()
    held.failing = True
    held.release()
    with pytest.raises(UnknownOutcome, match="the disk is gone"):
        call.result()
    assert watch.outcomes == []


def test_a_waiter_gets_the_error_of_its_own_fsync(store: Store, held: HeldLog) -> None:
    held.release()
    group = store.stream("s").group("g")
    call = blocked(store, lambda: group.consumer("c").read(block=10))
    attempt = store.engine._attempt

    def fail_from_now_on(waiter: Waiter) -> Outcome | None:
        held.failing = True
        return attempt(waiter)

    store.engine._attempt = fail_from_now_on  # type: ignore[method-assign]
    add(store, b"s", "2-0")
    with pytest.raises(UnknownOutcome, match="the disk is gone"):
        call.result()
    assert call.seconds < 5


def test_a_read_of_new_entries_raises_the_error_of_its_fsync(store: Store, held: HeldLog) -> None:
    held.release()
    add(store, b"s", "2-0")
    held.failing = True
    with pytest.raises(UnknownOutcome, match="the disk is gone"):
        store.stream("s").group("g").consumer("c").read(block=10)
    assert len(store.engine.waiters) == 0


def test_a_wait_whose_fsync_fails_leaves_no_waiter(store: Store, held: HeldLog) -> None:
    held.release()
    held.failing = True
    with pytest.raises(UnknownOutcome, match="the disk is gone"):
        store.stream("s").group("g").consumer("new").read(block=10)
    assert len(store.engine.waiters) == 0


def test_after_a_failed_fsync_reads_continue_and_writes_do_not(store: Store, held: HeldLog) -> None:
    held.release()
    held.failing = True
    with pytest.raises(UnknownOutcome):
        add(store, b"s", "2-0")
    stream = store.stream("s")
    assert ms_of(stream.range())[:1] == [1]
    assert stream.group("g").pending().count == 0
    assert stream.read("9", block=0.01) == []
    with pytest.raises(StoreReadOnly, match="the disk is gone"):
        stream.add({"f": "v"})


@pytest.mark.parametrize("durability", ["always", "everysec", "no"])
def test_all_writes_acknowledged_to_twenty_threads_are_stored(
    open_store: Stores, durability: str
) -> None:
    store = open_store("many", durability=durability)
    stream = store.stream("s")
    group = stream.create_group("g")
    read = [blocked(store, lambda: stream.read(block=10)) for _ in range(3)]

    def work(number: int) -> list[object]:
        done: list[object] = [stream.add({"thread": number, "n": n}) for n in range(10)]
        taken = group.consumer(f"c{number}").read(count=5)
        assert group.ack(taken) == len(taken)
        return done

    calls = [Call(lambda number=number: work(number)) for number in range(20)]  # type: ignore[misc]
    ids = [eid for call in calls for eid in call.result()]
    assert all(call.result() for call in read)
    assert len(set(ids)) == 200
    acknowledged = 200 - len(group.consumer("rest").read())
    reopened = open_store.reopen(store, durability=durability)
    assert {entry.id for entry in reopened.stream("s").range()} == set(ids)
    pending = reopened.stream("s").group("g").pending()
    assert pending.count == 200 - acknowledged


def test_closing_a_store_makes_its_writes_durable(open_store: Stores) -> None:
    store = open_store("own", durability="no")
    add(store, b"s", "1-0")
    committer = store.engine.committer
    sequence = store.engine.database.sequence
    assert committer.durable_sequence < sequence
    store.close()
    assert committer.durable_sequence >= sequence


def test_sync_waits_for_the_disk_at_every_level(open_store: Stores) -> None:
    store = open_store("own", durability="no")
    add(store, b"s", "1-0")
    store.sync()
    assert store.engine.committer.durable_sequence == store.engine.database.sequence
