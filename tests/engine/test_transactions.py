"""Transactions: one commit of all changes inside, invisible before it."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kvstream import (
    BusyGroup,
    Corruption,
    IDsExhausted,
    IDTooSmall,
    InvalidArgument,
    ManualClock,
    Store,
    StoreClosed,
    StoreError,
)
from kvstream.layout.keys import qualified
from kvstream.storage.batch import Batch, Family
from kvstream.types.ids import U64_MAX
from tests.engine.waiting import Call, add, ms_of, waiting, watch_group, watch_stream
from tests.opening import Stores
from tests.patience import until

# --- commit -------------------------------------------------------------------------------------


def test_all_changes_inside_are_one_write(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    group = store.stream("in").create_group("g", start="0")
    add(store, b"in", "1-0", "2-0")
    entries = group.consumer("c").read()
    writes: list[Batch] = []
    database = store.engine.database
    write = database.write

    def note(batch: Batch, frees: bool = False) -> int:
        writes.append(batch)
        return write(batch, frees)

    monkeypatch.setattr(database, "write", note)
    with store.transaction() as tx:
        for entry in entries:
            tx.stream("out").add(entry.pairs)
            group.ack(entry)
        assert writes == []
    assert len(writes) == 1
    assert (len(store.stream("out")), group.pending().count) == (2, 0)


def test_a_transaction_sees_its_own_changes(store: Store) -> None:
    with store.transaction() as tx:
        stream = tx.stream("s")
        ids = [stream.add({"n": n}) for n in range(3)]
        assert [entry.id for entry in stream.range()] == ids
        assert stream.delete(ids[1], ids[1]) == 1
        assert [entry.id for entry in stream.scan(page=1)] == [ids[0], ids[2]]
        group = stream.create_group("g", start="0")
        assert len(group.consumer("c").read()) == 2
        assert group.ack(ids[0], ids[0]) == 1
        assert tx.keys() == [b"s"]
        tx.rename("s", "t")
        assert tx.keys() == [b"t"]
        assert tx.stream("t").group("g").pending().count == 1
    assert store.stream("t").group("g").pending().count == 1


def test_a_transaction_that_changes_nothing_writes_nothing(store: Store) -> None:
    before = store.engine.database.sequence
    with store.transaction() as tx:
        assert tx.stream("s").range() == []
    assert store.engine.database.sequence == before


def test_the_time_does_not_advance_inside(store: Store, clock: ManualClock) -> None:
    with store.transaction() as tx:
        first = tx.stream("s").add({"f": "v"})
        clock.advance(1000)
        second = tx.stream("s").add({"f": "v"})
    assert (second.ms, second.seq) == (first.ms, first.seq + 1)


# --- waiters ------------------------------------------------------------------------------------


def test_waiters_get_all_entries_at_once_after_the_commit(store: Store) -> None:
    add(store, b"s", "1-0")
    store.stream("s").create_group("g")
    reading, taking = watch_stream(store, b"s", 1), watch_group(store, b"s", b"g", b"c")
    with store.transaction() as tx:
        for ms in (2, 3, 4):
            tx.stream("s").add({"f": "v"}, id=f"{ms}-0")
        assert reading.outcomes == taking.outcomes == []
    assert reading.ids == taking.ids == [2, 3, 4]


def test_entries_deleted_in_the_same_transaction_wake_no_client(store: Store) -> None:
    watch = watch_stream(store, b"s")
    with store.transaction() as tx:
        tx.stream("s").delete(tx.stream("s").add({"f": "v"}))
        tx.delete("s")
    assert watch.outcomes == []
    assert waiting(store) == 1


def test_no_call_waits_inside(store: Store) -> None:
    with store.transaction() as tx:
        stream = tx.stream("s")
        group = stream.create_group("g")
        reads: list[Callable[[], object]] = [
            lambda: stream.read(block=0),
            lambda: tx.read({"s": "$", "t": "+"}, block=0),
            lambda: group.consumer("c").read(block=0),
            lambda: group.consumer("c").read(block=0, claim_min_idle=0),
        ]
        for read in reads:
            with pytest.warns(UserWarning, match="block does not wait inside transaction"):
                assert not read()
        stream.add({"f": "v"}, id="1-0")
        assert ms_of(stream.read("0", block=0)) == [1]
        assert ms_of(group.consumer("c").read(block=0)) == [1]
        assert len(store.engine.waiters) == 0


# --- refusals -----------------------------------------------------------------------------------


def test_a_nested_transaction_is_refused_without_side_effects(store: Store) -> None:
    with store.transaction() as tx:
        tx.stream("s").add({"f": "v"})
        for nested in (store.transaction(), tx.transaction(), store.select(1).transaction()):
            with pytest.raises(InvalidArgument, match="a transaction is open in this thread"):
                nested.__enter__()
        tx.stream("s").add({"f": "v"})
    assert len(store.stream("s")) == 2


def test_a_refused_request_does_not_affect_the_rest_of_a_transaction(store: Store) -> None:
    add(store, b"s", "5-0")
    group = store.stream("s").create_group("g", start="0")
    with store.transaction() as tx:
        tx.stream("s").add({"f": "v"}, id="6-0")
        for refused, error in (
            (lambda: tx.stream("s").add({"f": "v"}, id="1-0"), IDTooSmall),
            (lambda: tx.stream("s").create_group("g"), BusyGroup),
            (lambda: group.nack("5-0", retrycount=-1), InvalidArgument),
            (lambda: tx.stream("s").trim(maxlen=-1), InvalidArgument),
        ):
            with pytest.raises(error):
                refused()
        tx.stream("s").add({"f": "v"}, id="7-0")
    assert ms_of(store.stream("s").range()) == [5, 6, 7]


def test_one_refused_entry_of_many_cancels_the_add(store: Store) -> None:
    stream = store.stream("s")
    stream.add({"f": "v"}, id=(U64_MAX, U64_MAX - 2))
    with store.transaction(), pytest.raises(IDsExhausted):
        stream.add_many([{"f": "v"}] * 3)
    assert len(stream) == 1
    assert len(stream.add_many([{"f": "v"}] * 2)) == 2


def test_a_transaction_that_failed_inside_cannot_be_committed(
    open_store: Stores,
) -> None:
    store = open_store("own")
    add(store, b"s", "1-0")
    database = store.engine.database
    broken = Batch(database)
    (key, _) = database.page(Family.MESSAGES, b"", b"\xff", 1)[0]
    broken.put(Family.MESSAGES, key, b"\x09")
    database.write(broken)

    def go_on_regardless() -> None:
        with store.transaction() as tx:
            tx.stream("t").add({"f": "v"})
            with pytest.raises(Corruption):
                tx.stream("s").info()
            tx.stream("t").add({"f": "v"})

    with pytest.raises(StoreError, match="failed inside and cannot be committed"):
        go_on_regardless()
    assert store.keys() == [b"s"]
    with store.transaction() as tx:
        tx.stream("t").add({"f": "v"})
    assert len(store.stream("t")) == 1
    store.stream("s").delete("1-0")  # an undecodable record is a fault


def test_a_store_is_not_closed_inside_a_transaction(open_store: Stores) -> None:
    store = open_store("own")
    with store.transaction() as tx:
        tx.stream("s").add({"f": "v"})
        with pytest.raises(InvalidArgument, match="inside a transaction"):
            store.close()
    assert len(store.stream("s")) == 1
    store.close()
    with pytest.raises(StoreClosed), store.transaction():
        raise AssertionError("not reached")


# --- other threads ------------------------------------------------------------------------------


def test_other_threads_wait_until_a_transaction_is_over(store: Store) -> None:
    began = threading.Event()
    found: list[Any] = []

    def others() -> list[int]:
        began.set()
        found.append(ms_of(store.stream("s").range()))
        return [store.stream("s").add({"f": "v"}, id="9-0").ms]

    with store.transaction() as tx:
        call = Call(others)
        began.wait()
        for ms in (1, 2, 3):
            tx.stream("s").add({"f": "v"}, id=f"{ms}-0")
        assert not call.ended
        assert found == []
    assert call.result() == [9]
    assert found == [[1, 2, 3]]


def test_each_thread_has_a_transaction_of_its_own(store: Store) -> None:
    together = threading.Barrier(4)

    def move() -> None:
        together.wait()
        for _ in range(20):
            with store.transaction() as tx:
                number = int(tx.stream("n").range()[0].fields[b"n"])
                tx.stream("n").add({"n": number + 1}, maxlen=1)

    store.stream("n").add({"n": 0})
    calls = [Call(move) for _ in range(4)]
    for call in calls:
        call.result()
    (entry,) = store.stream("n").range()
    assert entry.fields == {b"n": b"80"}


def test_the_thread_of_a_transaction_serves_a_waiting_thread(store: Store) -> None:
    watch = watch_stream(store, b"s")
    served_by: list[str] = []
    watch.waiter.deliver = lambda outcome: served_by.append(threading.current_thread().name)
    with store.transaction() as tx:
        tx.stream("s").add({"f": "v"})
    until(lambda: bool(served_by), "the waiter to be served")
    assert served_by == [threading.current_thread().name]
    assert qualified(0, b"s") not in store.engine.waiters
