"""Thousands of keys deleted by one small commit, whose rows are freed later."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kvstream import ManualClock, Store, StoreFull
from kvstream.layout.keys import (
    ALLOCATOR_KEY,
    UNLINKED_TAG,
    key_count_row,
    qualified,
    scan_row,
    successor,
    unlinked_row,
)
from kvstream.meta.records import GroupMeta
from kvstream.meta.txn import Txn
from kvstream.operations import keyspace, strings
from kvstream.operations.images import copy
from kvstream.storage.batch import Batch, Family
from kvstream.types.thresholds import Thresholds
from tests.library.test_flush import EVERYTHING, rows, sweep
from tests.opening import Stores

KEYS = [f"s{number}" for number in range(130)]
"""More deleted generations than one row can hold."""
NOTHING = [ALLOCATOR_KEY, key_count_row(0)]


@pytest.fixture
def store(open_store: Stores) -> Store:
    """A store with keys, in which only the test sweeps."""
    sizes = {"long_keys": 2, "groups_together": 2, "groups_of_commit": 4}
    store = open_store(thresholds=Thresholds(cycle_pause_s=3600, **sizes))
    fill(store)
    return store


def fill(store: Store) -> None:
    """Create keys that together have every kind of row."""
    with store.transaction():
        for key in KEYS[1:]:
            store.stream(key).add({"f": key})
        put(store, KEYS[0], "v" * 200_000)  # in pieces
        rich = store.stream(KEYS[1])
        rich.add_many([{"n": n} for n in range(300)])
        rich.create_group("g", "0").consumer("c").read(count=150)
        rich.add({"n": "once"}, idmp=("p", "i"))
        store.expire(KEYS[2], 60)


def name(key: str) -> bytes:
    return qualified(0, key.encode())


def put(store: Store, key: str, text: str) -> None:
    store.engine.run(strings.put, name(key), text.encode())


def value(store: Store, key: str) -> bytes | None:
    return store.engine.run(strings.get, name(key))


def deleted_rows(store: Store) -> list[bytes]:
    """Return the rows that name deleted keys."""
    found = store.engine.database.scan(Family.METADATA, UNLINKED_TAG, successor(UNLINKED_TAG))
    return [row for row, _ in found]


def sweep_all(store: Store) -> None:
    while sweep(store):
        assert store.check() == []


def test_keys_are_deleted_before_their_rows(store: Store) -> None:
    before = len(rows(store))
    assert store.delete(*KEYS, "no such key", KEYS[5]) == len(KEYS)
    assert len(deleted_rows(store)) == 2
    assert len(rows(store)) == before + 2
    assert (store.size(), store.keys(), list(store.scan_keys())) == (0, [], [])
    assert not any(store.exists(key) for key in KEYS)
    assert (value(store, KEYS[0]), store.ttl(KEYS[2])) == (None, None)
    assert store.engine.run(keyspace.random_key, 0) is None
    assert store.delete(*KEYS) == 0
    assert store.check() == []
    sweep_all(store)
    assert rows(store) == NOTHING


def test_they_stay_deleted_after_any_end_of_the_store(
    store: Store, reopen: Callable[..., Store], tmp_path: Path, open_store: Stores
) -> None:
    store.delete(*KEYS[:100])
    store.checkpoint(tmp_path / "copy")
    store.engine.reopen(from_log=True)  # as after a crash
    assert sorted(store.keys()) == sorted(key.encode() for key in KEYS[100:])
    store = reopen(store)
    assert (store.size(), len(store.keys()), len(deleted_rows(store))) == (30, 30, 1)
    reader = open_store("copy", read_only=True)
    assert (reader.size(), len(reader.keys()), reader.exists(KEYS[1])) == (30, 30, False)
    sweep_all(store)
    assert store.size() == 30


def test_names_can_be_reused_at_once(store: Store, reopen: Callable[..., Store]) -> None:
    store.delete(*KEYS)
    put(store, KEYS[1], "new")
    store.stream(KEYS[2]).add({"new": "1"}, id="1-1")
    store.stream("x").add({"new": "1"}, id="1-1")
    assert store.rename("x", KEYS[3])
    assert store.engine.run(copy.copy, name(KEYS[3]), name(KEYS[4]))
    assert not store.exists("x")
    store = reopen(store)
    made = [KEYS[number].encode() for number in (1, 2, 3, 4)]
    for _ in range(3):
        assert store.keys() == made
        assert value(store, KEYS[1]) == b"new"
        assert [len(store.stream(key)) for key in made[1:]] == [1, 1, 1]
        assert store.ttl(KEYS[2]) is None
        assert store.check() == []
        sweep(store)
    assert store.delete(*made) == 4
    sweep_all(store)
    assert rows(store) == NOTHING


def test_a_flush_and_a_swap_see_them_as_deleted(store: Store) -> None:
    store.delete(*KEYS[:120])
    store.engine.run(keyspace.swap, 0, 1)
    other = store.select(1)
    assert (store.size(), other.size(), len(other.keys())) == (0, 10, 10)
    assert other.flush() == 10
    other.stream(KEYS[1]).add({"new": "1"})
    fill(store)
    assert store.delete(*KEYS) == len(KEYS)
    sweep_all(store)
    assert (store.keys(), other.keys()) == ([], [KEYS[1].encode()])


def test_an_undone_deletion_deletes_nothing(store: Store) -> None:
    keys = store.keys()
    with suppress(RuntimeError), store.transaction():
        store.stream("made").add({"f": "v"})
        assert store.delete(*KEYS, "made") == len(KEYS) + 1
        assert store.keys() == []
        store.stream(KEYS[7]).add({"new": "1"})
        assert store.keys() == [KEYS[7].encode()]
        raise RuntimeError
    assert (store.keys(), deleted_rows(store)) == (keys, [])
    assert store.stream(KEYS[1]).group("g").pending().count == 150


def test_a_transaction_can_delete_its_own_keys(store: Store) -> None:
    with store.transaction():
        store.stream("made").add({"f": "v"})
        put(store, "string", "v")
        assert store.delete("made", "string", *KEYS) == len(KEYS) + 2
        store.stream("made").add({"f": "v"})
    assert (store.keys(), store.size()) == ([b"made"], 1)
    sweep_all(store)
    assert store.keys() == [b"made"]


def test_the_time_of_a_key_may_come_before_or_after(store: Store, clock: ManualClock) -> None:
    store.expire(KEYS[3], 10)
    clock.advance(10_000)
    assert store.delete(*KEYS[:10]) == 9
    clock.advance(60_000)
    assert store.engine.run(keyspace.delete_expired, 10) == 2
    assert store.check() == []
    sweep_all(store)
    assert store.size() == len(KEYS) - 10


def test_rows_of_streams_with_lagging_records_are_freed_too(store: Store) -> None:
    stream = store.stream("lagging")
    for number in range(60):
        stream.add({"n": number})
    store.delete("lagging", *KEYS)
    sweep_all(store)
    assert rows(store) == NOTHING


def test_a_damaged_row_is_reported_and_its_keys_reappear(store: Store) -> None:
    store.delete(*KEYS)
    batch = Batch(store.engine.database)
    for row in deleted_rows(store):
        batch.put(Family.METADATA, row, b"\0" * 9)
    batch.put(Family.METADATA, unlinked_row(0, 5), (7).to_bytes(8))
    store.engine.database.write(batch)
    (found,) = [fault.message for fault in store.check() if fault.place == "the store"]
    assert found.startswith("what was deleted cannot be known: 47")
    assert found.count(";") == 2
    store.check(repair=True)
    assert store.check() == []
    assert store.size() == len(store.keys()) == len(KEYS)
    assert deleted_rows(store) == []


def test_a_list_of_keys_is_that_of_its_moment(store: Store) -> None:
    store.delete(*KEYS[:60])
    txn = store.engine.begin_turn()
    pages = keyspace.pages(txn, 0)
    store.engine.undo_turn(txn)
    store.delete(*KEYS[60:100])
    sweep_all(store)
    assert sum(len(page) for page in pages) == 70
    assert any(True for _ in store.engine.database.scan(Family.METADATA, *EVERYTHING))


def test_they_are_freed_on_a_full_disk(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        store.stream("buried").create_group(f"g{number}")
    database = store.engine.database
    monkeypatch.setattr(database._opened.directory, "free_bytes", lambda: 0)
    database.write_guard.open_until = 0.0
    assert store.delete("buried")
    clock.advance(60_000)
    with pytest.raises(StoreFull):
        store.stream(KEYS[2]).add({"f": "v"})  # replaces the expired key
    assert store.delete(*KEYS) == len(KEYS) - 1
    with pytest.raises(StoreFull):
        put(store, KEYS[1], "new")
    assert store.engine.run(keyspace.delete_expired, 10) == 1
    sweep_all(store)
    assert rows(store) == NOTHING


def test_a_key_that_the_sweep_cannot_find_is_reported(store: Store) -> None:
    key = store.engine.run(lambda txn: txn.key(name(KEYS[110])))
    assert key is not None
    assert store.delete(*KEYS) == len(KEYS)
    batch = Batch(store.engine.database)
    batch.delete(Family.METADATA, scan_row(0, key.generation))
    store.engine.database.write(batch)
    (reply,) = store.check()
    assert reply.message.startswith("the row for SCAN is missing")
    store.check(repair=True)
    sweep_all(store)
    assert rows(store) == NOTHING


@pytest.mark.parametrize("gone", ["one by one", "together", "flushed"])
def test_groups_of_many_streams_are_freed_in_batches(
    store: Store, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    catalog, dropped = store.engine.catalog, list[GroupMeta]()
    drop = catalog._drop_group_trees

    def note(txn: Txn, group: GroupMeta) -> None:
        dropped.append(group)
        drop(txn, group)

    monkeypatch.setattr(catalog, "_drop_group_trees", note)
    names = [f"rich {number}" for number in range(6)]
    for key in names:
        store.stream(key).create_group("a")
        store.stream(key).create_group("b")
    if gone == "one by one":
        with store.transaction():
            assert all(store.delete(key) for key in names)
    else:
        assert store.flush() if gone == "flushed" else store.delete(*names)
    assert len(dropped) <= 4
    assert not any(store.exists(key) for key in names)
    before = len(dropped)
    while sweep(store):
        assert len(dropped) - before <= 2
        before = len(dropped)
        assert store.check() == []
    assert len(dropped) == 12 + (gone == "flushed")


def test_a_flush_is_sound_while_a_stream_still_has_groups(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.flush()
    sweep_all(store)
    store.stream("a").add({"f": "v"})
    for number in range(5):
        store.stream("b").create_group(f"g{number}", mkstream=True)
    store.flush()
    assert store.check() == []
    sweep_all(store)
