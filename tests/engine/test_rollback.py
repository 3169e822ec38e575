"""A rollback leaves no trace: in memory, on disk, and for waiters."""

from collections.abc import Callable
from contextlib import suppress

import pytest

from kvstream import ManualClock, Store, StoreFull, StreamID
from kvstream.storage.batch import Batch, Family
from tests.engine.waiting import waiting, watch_stream


class Undo(Exception):
    """Raised to leave a transaction without a commit."""


def roll_back(store: Store, *changes: Callable[[Store], object]) -> None:
    """Make ``changes`` in a transaction, and undo them."""
    with suppress(Undo), store.transaction() as tx:
        for change in changes:
            change(tx)
        raise Undo


def add_one(store: Store) -> StreamID:
    return store.stream("s").add({"f": "v"})


def rows(store: Store) -> list[list[tuple[bytes, bytes]]]:
    """Return every row on disk."""
    database = store.engine.database
    return [list(database.scan(family, b"", b"\xff" * 9)) for family in Family]


def view(store: Store) -> list[object]:
    """Return all that a user can see of the store."""
    seen: list[object] = [store.keys(), store.size()]
    for key in store.scan_keys():
        stream = store.stream(key)
        seen += [stream.info_full(count=0), store.ttl(key), stream.groups()]
        for group in stream.groups():
            named = stream.group(group.name)
            seen += [named.consumers(), named.pending(), named.pending_range(count=1000)]
    return seen


@pytest.fixture
def furnished(store: Store, clock: ManualClock) -> Store:
    """A store in which every kind of row exists."""
    orders = store.stream("orders")
    for n in range(250):
        orders.add({"n": n}, id=f"{n + 1}-0")
    orders.add({"n": "x"}, idmp=("producer", "1"))
    orders.trim(maxlen=220)
    group = orders.create_group("g", start="0")
    group.consumer("one").read(count=30)
    group.consumer("two").read(count=7)
    group.ack("40-0", "33-0")
    group.nack("35-0", "41-0")
    store.stream("other").create_group("h").create_consumer("c")
    store.expire("other", 1000)
    clock.advance(5000)
    group.consumer("one").read(count=1)
    return store


CHANGES: dict[str, Callable[[Store], object]] = {
    "an add": lambda tx: tx.stream("orders").add({"f": "v"}, maxlen=100),
    "many adds": lambda tx: tx.stream("orders").add_many([{"f": n} for n in range(300)]),
    "an add to a new key": lambda tx: tx.stream("new").add({"f": "v"}),
    "deletions": lambda tx: tx.stream("orders").delete(*[f"{n}-0" for n in range(60, 190)]),
    "a deletion of all": lambda tx: tx.stream("orders").trim(maxlen=0),
    "a deletion with references": lambda tx: tx.stream("orders").delete_entries(
        "40-0", "41-0", ref_policy="DELREF"
    ),
    "a set ID": lambda tx: tx.stream("orders").set_id(1 << 50, entries_added=999),
    "a setting": lambda tx: tx.stream("orders").configure(idmp_duration=5),
    "a duplicate": lambda tx: tx.stream("orders").add({"n": "x"}, idmp=("producer", "1")),
    "a read": lambda tx: tx.stream("orders").group("g").consumer("new").read(),
    "an empty read": lambda tx: tx.stream("other").group("h").consumer("c").read(),
    "a history": lambda tx: tx.stream("orders").group("g").consumer("one").history(),
    "a claim": lambda tx: tx.stream("orders").group("g").autoclaim("new"),
    "acks": lambda tx: tx.stream("orders").group("g").ack(*[f"{n}-0" for n in range(30, 60)]),
    "a nack": lambda tx: tx.stream("orders").group("g").nack("36-0", mode="FATAL"),
    "a deleted consumer": lambda tx: tx.stream("orders").group("g").delete_consumer("one"),
    "a destroyed group": lambda tx: tx.stream("orders").group("g").destroy(),
    "a new group": lambda tx: tx.stream("orders").create_group("new"),
    "a moved group": lambda tx: tx.stream("orders").group("g").set_id("100"),
    "a deleted key": lambda tx: tx.delete("orders", "other"),
    "a renamed key": lambda tx: tx.rename("orders", "other"),
    "an expiry": lambda tx: tx.expire("orders", 5),
    "a persisted key": lambda tx: tx.persist("other"),
    "a flush": lambda tx: tx.flush_all(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_rollback_leaves_no_trace(furnished: Store, change: Callable[[Store], object]) -> None:
    before, on_disk = view(furnished), rows(furnished)
    roll_back(furnished, change)
    assert view(furnished) == before
    assert rows(furnished) == on_disk
    furnished.engine.catalog.forget()
    assert view(furnished) == before


def test_a_rollback_keeps_the_seen_times_of_consumers(store: Store, clock: ManualClock) -> None:
    group = store.stream("s").create_group("g")
    group.create_consumer("c")
    clock.advance(7000)
    assert group.consumer("c").read() == []  # updates the seen time, in memory only
    clock.advance(1000)
    roll_back(store, add_one)
    assert [consumer.idle for consumer in group.consumers()] == [1000]


def test_everything_rolled_back_can_be_repeated(furnished: Store) -> None:
    for change in CHANGES.values():
        roll_back(furnished, change)
        assert furnished.check() == []
    with furnished.transaction() as tx:
        tx.stream("orders").add({"f": "v"})
        tx.stream("new").add({"f": "v"})
    assert furnished.size() == 3


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_undoes_a_transaction_too(
    store: Store, interrupt: type[BaseException]
) -> None:
    def add_and_stop(tx: Store) -> None:
        add_one(tx)
        raise interrupt

    with pytest.raises(interrupt):
        roll_back(store, add_and_stop)
    assert store.keys() == []


def test_a_rollback_wakes_no_client(store: Store) -> None:
    watch = watch_stream(store, b"s")
    roll_back(store, add_one)
    assert watch.outcomes == []
    assert waiting(store) == 1


def test_a_failing_commit_changes_nothing(
    furnished: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, on_disk = view(furnished), rows(furnished)

    def full(batch: Batch, frees: bool = False) -> int:
        raise StoreFull("no space")

    with monkeypatch.context() as patch:
        patch.setattr(furnished.engine.database, "write", full)
        with pytest.raises(StoreFull), furnished.transaction() as tx:
            CHANGES["many adds"](tx)
        with pytest.raises(StoreFull):
            furnished.stream("orders").add({"f": "v"})
    assert view(furnished) == before
    assert rows(furnished) == on_disk
