"""Scans of the indexes of keys start after deleted rows, and read few expired keys."""

from contextlib import suppress

import pytest

from kvstream import ManualClock, Store
from kvstream.engine import timer_thread
from kvstream.layout.keys import EXPIRY_TAG, SCAN_TAG, TIMER_TAG, scan_row
from kvstream.meta import keyspace as index
from kvstream.meta.catalog import Catalog
from kvstream.meta.strings import Key
from kvstream.meta.txn import Txn
from kvstream.operations import keyspace, strings
from kvstream.operations.plans import Stepped
from kvstream.storage.batch import Batch, Row
from tests.engine.waiting import add
from tests.opening import Stores, change_thresholds
from tests.operations.images.kept import take_image

Read = list[tuple[bytes, int]]
"""The first key of each page read, and the number of its rows."""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """The pages read since the test cleared the list."""
    found: Read = []
    page = Batch.page

    def noted(batch: Batch, family: int, lower: bytes, *more: object) -> list[Row]:
        rows = page(batch, family, lower, *more)  # type: ignore[arg-type]
        found.append((lower, len(rows)))
        return rows

    monkeypatch.setattr(Batch, "page", noted)
    return found


def begun(read: Read, tag: bytes) -> list[bytes]:
    """Return the starts of the pages of an index."""
    return [lower for lower, _ in read if lower[:1] == tag]


def expired(store: Store, clock: ManualClock, count: int = 3000) -> None:
    """Create keys that have expired but still exist, and others before and after them."""
    store.engine.expiry.active = False
    with store.transaction():
        store.stream("first").add({"f": "v"})
        for number in range(count):
            store.stream(b"key %d" % number).add({"f": "v"})
            store.expire(b"key %d" % number, 1)
        store.stream("last").add({"f": "v"})
    clock.advance(2000)


def scan(store: Store, cursor: int = 0, count: int = 10) -> tuple[int, list[bytes]]:
    return store.engine.run(keyspace.scan, 0, cursor, count)


def test_each_scan_for_due_timers_starts_after_those_already_fired(
    open_store: Stores, clock: ManualClock, read: Read
) -> None:
    store = open_store("own")
    store.engine.timers.paused = True
    stream = store.stream("s")
    for number in range(20):
        stream.add({"n": str(number)}, delay=1 + number / 1000)
    clock.advance(1000)
    for number in range(20):
        store.engine.run(timer_thread.run_due, 100)
        assert len(stream) == number + 1
        clock.advance(1)
    looks = begun(read, TIMER_TAG)
    assert looks == sorted(looks)
    assert len(set(looks)) >= 19

    store.engine.run(timer_thread.run_due, 100)
    stream.add({"n": "late"}, delay=20)
    store.stream("other").add({"n": "early"}, delay=10)
    clock.advance(10_000)
    store.engine.run(timer_thread.run_due, 100)
    assert len(store.stream("other")) == 1


def test_scan_starts_after_deleted_keys(store: Store, read: Read) -> None:
    for number in range(30):
        add(store, b"key %d" % number, "1-0")
    for number in range(20):
        store.delete(b"key %d" % number)
    assert scan(store)[1][0] == b"key 20"
    read.clear()
    assert scan(store)[1][0] == b"key 20"
    assert begun(read, SCAN_TAG) > [scan_row(0, 1)]

    with suppress(ZeroDivisionError), store.transaction():
        store.delete(b"key 20")
        assert scan(store)[1][0] == b"key 21"
        raise ZeroDivisionError
    assert scan(store)[1][0] == b"key 20"

    for number in range(20, 30):
        store.delete(b"key %d" % number)
    read.clear()
    assert scan(store) == (0, [])
    assert store.engine.run(keyspace.random_key, 0) is None
    assert begun(read, SCAN_TAG) == []


def test_scan_finds_keys_created_before_its_first_key(
    store: Store,
) -> None:
    change_thresholds(store.engine, step_names=1, direct_entries=0)
    values = Stepped(strings.plan_put(0, {b"early": b"1", b"other": b"2"}))
    assert store.engine.run(values.step) is None
    add(store, b"source", "1-0", "2-0")
    source = take_image(store, "source")
    with store.loader("loaded", label=b"mine") as load:
        for node in source.found:
            load.node(node)
        add(store, b"late", "1-0")
        store.delete("source")
        assert scan(store) == (0, [b"late"])
        load.finish(source.rest)
    assert scan(store) == (0, [b"loaded", b"late"])
    while store.engine.run(values.step) is None:
        pass
    assert scan(store)[1][0] == b"other"
    assert sorted(scan(store)[1]) == [b"early", b"late", b"loaded", b"other"]


def test_scan_does_not_read_all_expired_keys(
    open_store: Stores, clock: ManualClock, read: Read
) -> None:
    store = open_store("own")
    expired(store, clock)
    read.clear()
    cursor, found = scan(store)
    assert found == [b"first"]
    assert sum(rows for lower, rows in read if lower[:1] == EXPIRY_TAG) <= index.DUE_MAX + 1
    while cursor:
        cursor, more = scan(store, cursor, 100)
        found += more
    assert found == [b"first", b"last"]


def test_random_key_does_not_read_all_expired_keys(
    open_store: Stores, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store("own")
    expired(store, clock)
    looked: list[bytes] = []
    peek = Catalog.peek

    def noted(catalog: Catalog, txn: Txn, name: bytes) -> Key | None:
        looked.append(name)
        return peek(catalog, txn, name)

    monkeypatch.setattr(Catalog, "peek", noted)
    monkeypatch.setattr(keyspace, "randint", lambda first, last: first + 2)
    assert store.engine.run(keyspace.random_key, 0) == b"last"
    assert len(looked) < 8 * keyspace.LOOKED_AT
