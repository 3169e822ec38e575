"""A flush: one small commit for any number of keys, whose rows are deleted afterwards."""

import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from kvstream import ManualClock, Queue, Store, StoreError
from kvstream.engine.timer_thread import run_due
from kvstream.layout.keys import (
    ALLOCATOR_KEY,
    FLUSHED_TAG,
    NUMBERS_KEY,
    TIMER_TAG,
    U64,
    flushed_row,
    key_count_row,
    qualified,
    stream_row,
)
from kvstream.meta.keyspace import free_number
from kvstream.operations import keyspace
from kvstream.storage.batch import Batch, Family
from kvstream.types.thresholds import Thresholds
from tests.opening import Stores
from tests.patience import tries

MANY = 1030
PAGES = 11
"""Of a hundred keys."""
LEFT = [ALLOCATOR_KEY, NUMBERS_KEY]
"""The number of rows after a flush of many keys and its sweep."""
EVERYTHING = (b"", b"\xff" * 64)


@pytest.fixture
def store(open_store: Stores) -> Store:
    """An empty store in which only the test sweeps."""
    return open_store(thresholds=Thresholds(cycle_pause_s=3600))


def fill(store: Store, count: int = MANY) -> None:
    """Create keys that together have every kind of row."""
    with store.transaction():
        for number in range(count):
            store.stream(f"s{number}").add({"n": number})
        rich = store.stream(f"s{count - 2}")
        rich.add_many([{"n": n} for n in range(300)])
        rich.create_group("g", "0").consumer("c").read(count=150)
        rich.add({"n": "once"}, idmp=("p", "i"))
        store.expire(f"s{count - 1}", 60)


def sweep(store: Store, limit: int = 100) -> int:
    return store.engine.run(keyspace.sweep, limit)


def sweep_all(store: Store) -> None:
    while sweep(store):
        assert not store.keys()


def rows(store: Store) -> list[bytes]:
    database = store.engine.database
    return [key for family in Family for key, _ in database.scan(family, *EVERYTHING)]


def put(store: Store, key: bytes, value: bytes | None) -> None:
    batch = Batch(store.engine.database)
    batch.puts[Family.METADATA][key] = value
    store.engine.database.write(batch)


@pytest.fixture
def sizes(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the rows and ranges that each batch changes."""
    found: list[int] = []
    write = store.engine.database.write

    def count(batch: Batch, frees: bool = False) -> int:
        found.append(sum(map(len, batch.puts)) + len(batch.ranges))
        return write(batch, frees)

    monkeypatch.setattr(store.engine.database, "write", count)
    return found


def test_a_flush_of_many_keys_is_one_commit_no_larger_than_that_of_few(
    store: Store, sizes: list[int]
) -> None:
    changed = {}
    for count in (MANY // 4, MANY):
        fill(store, count)
        sizes.clear()
        assert store.flush() == count
        (changed[count],) = sizes
        sweep_all(store)
    assert changed[MANY] == changed[MANY // 4]


def test_an_empty_database_is_flushed_without_a_write(store: Store, sizes: list[int]) -> None:
    assert store.flush() == store.flush_all() == 0
    assert sizes == []


def test_flushed_keys_are_missing_for_every_read(
    store: Store, reopen: Callable[..., Store]
) -> None:
    fill(store)
    cursor, _ = store.engine.run(keyspace.scan, 0, 0, 10)
    store.flush()
    for read_only in (False, True):
        assert (store.size(), store.keys()) == (0, [])
        assert store.engine.run(keyspace.scan, 0, cursor, 10) == (0, [])
        assert not store.exists(f"s{MANY - 1}")
        assert store.type(f"s{MANY - 2}") == "none"
        assert store.ttl(f"s{MANY - 1}") is None
        assert store.stream(f"s{MANY - 2}").range() == []
        assert store.check() == []
        store = reopen(store, read_only=not read_only)
    assert len(rows(store)) > MANY // 2


def test_few_flushed_keys_are_deleted_at_once_and_completely(store: Store) -> None:
    fill(store, 100)
    assert store.flush() == 100
    assert rows(store) == [ALLOCATOR_KEY]
    assert sweep(store) == 0


def test_many_flushed_keys_are_deleted_page_by_page_and_completely(store: Store) -> None:
    fill(store)
    store.flush()
    pages = 0
    while flushed_row(0) in rows(store):
        assert sweep(store) > 0
        assert (store.keys(), store.check()) == ([], [])
        pages += 1
    assert pages == PAGES
    assert rows(store) == LEFT


def test_a_sweep_begins_again_after_a_reopening(store: Store, reopen: Callable[..., Store]) -> None:
    fill(store)
    store.flush()
    for _ in range(PAGES - 1):
        sweep(store)
    store = reopen(store)
    assert sweep(store) > 0
    assert flushed_row(0) in rows(store)
    sweep_all(store)
    assert rows(store) == LEFT


def test_a_flushed_database_has_a_new_number_until_all_were_used(store: Store) -> None:
    numbers = [0, 32768, 32769, 32770]
    for number in numbers:
        assert store.engine.run(lambda txn: txn.catalog.databases.stored_number(txn, 0)) == number
        fill(store, 101)
        assert store.engine.run(keyspace.flush, 0) == 101
    assert [row[1:] for row in rows(store) if row.startswith(FLUSHED_TAG)] == [
        number.to_bytes(2) for number in numbers
    ]
    assert store.check() == []
    sweep_all(store)
    assert rows(store) == LEFT


@pytest.mark.parametrize(("after", "taken", "number"), [(0, {7}, 32768), (65535, {32768}, 32769)])
def test_the_next_number_is_a_free_one(after: int, taken: set[int], number: int) -> None:
    assert free_number(after, taken) == number


def test_a_flush_without_a_free_number_raises_and_can_be_repeated() -> None:
    with pytest.raises(StoreError, match="too many flushed databases wait for their deletion"):
        free_number(40_000, range(32768, 65536))


def test_all_databases_are_flushed_in_one_commit(store: Store, sizes: list[int]) -> None:
    for db in range(3):
        fill(store.select(db), 200)
    sizes.clear()
    assert store.flush_all() == 600
    assert len(sizes) == 1
    while sweep(store):
        pass
    assert rows(store) == LEFT


def test_an_undone_flush_deletes_no_key(store: Store) -> None:
    fill(store)
    keys = store.keys()
    with suppress(RuntimeError), store.transaction():
        store.stream("s5").add({"n": "more"})
        assert store.flush() == MANY
        assert store.keys() == []
        store.stream("s7").add({"new": "1"})
        raise RuntimeError
    assert (store.size(), store.keys()) == (MANY, keys)
    assert len(store.stream("s5")) == len(store.stream("s7")) == 1


def test_a_flush_inside_a_transaction_deletes_only_earlier_keys(store: Store) -> None:
    fill(store)
    with store.transaction():
        group = store.stream(f"s{MANY - 2}").group("g")
        assert len(group.consumer("late").read()) > 0
        store.stream("before").add({"a": "b"})
        assert store.flush() == MANY + 1
        store.stream("after").add({"a": "b"})
    assert store.keys() == [b"after"]
    sweep_all_but(store, b"after")
    assert store.delete("after") == 1
    assert rows(store) == [ALLOCATOR_KEY, key_count_row(32768), NUMBERS_KEY]


def sweep_all_but(store: Store, key: bytes) -> None:
    while sweep(store):
        assert store.keys() == [key]
        assert store.check() == []


def test_the_moved_seen_time_of_a_flushed_consumer_is_not_written(store: Store) -> None:
    fill(store)
    consumer = store.stream(f"s{MANY - 2}").group("g").consumer("c")
    consumer.read()
    assert consumer.read() == []
    assert len(store.engine.catalog.seen) == 1
    store.flush()
    sweep_all(store)
    store.sync()
    assert rows(store) == LEFT


def test_the_timer_of_a_flushed_stream_may_come_before_its_rows_are_swept(
    store: Store, clock: ManualClock
) -> None:
    fill(store)
    delayed = Queue(store, "mail")
    delayed.put({"n": "1"}, delay=30)
    store.flush()
    Queue(store, "mail").put({"n": "2"}, delay=30)
    clock.advance(31_000)
    assert store.engine.run(run_due, 10) > 0
    assert store.engine.run(run_due, 10) == 0
    (message,) = Queue(store, "mail").get()
    assert message.fields == {b"n": b"2"}
    assert not [row for row in rows(store) if row.startswith(TIMER_TAG) and b"\0\0mail" in row]
    assert store.check() == []
    while sweep(store):
        pass
    assert store.check() == []


def test_a_sweep_does_not_delay_other_commands(open_store: Stores) -> None:
    store = open_store("busy")
    for each in tries():
        fill(store, 10_000)
        store.flush()
        other, waits = store.stream("other"), []
        while store.engine.database.page(Family.METADATA, FLUSHED_TAG, b"G", 1):
            began = time.monotonic()
            other.add({"a": "b"})
            waits.append(time.monotonic() - began)
            time.sleep(0.002)
        assert store.keys() == [b"other"]
        with each:
            assert len(waits) > 50
            assert max(waits) < 0.5  # a second, if the sweep did not pause


# --- damage -------------------------------------------------------------------------------------


def test_a_damaged_key_does_not_stop_the_sweep_of_others(store: Store) -> None:
    fill(store)
    put(store, stream_row(qualified(0, b"s%d" % (MANY - 2))), b"\x01\x01damaged")
    store.engine.catalog.forget()
    store.flush()
    sweep_all(store)
    assert [fault.message.split(":")[0] for fault in store.check(repair=True)] == [
        "rows of no known tree"
    ]
    assert rows(store) == LEFT


def test_a_damaged_key_among_few_is_deleted_with_them(store: Store) -> None:
    fill(store, 50)
    put(store, stream_row(qualified(0, b"s5")), b"\x01\x01damaged")
    store.engine.catalog.forget()
    store.flush()
    assert rows(store) == [ALLOCATOR_KEY]


@pytest.mark.parametrize("value", [b"x", U64.pack(1 << 62) + U64.pack(0), None])
def test_a_damaged_row_of_a_flush_is_reported_and_its_keys_stay_deleted(
    store: Store, reopen: Callable[..., Store], value: bytes | None
) -> None:
    fill(store)
    store.flush()
    fill(store, 20)
    keys = store.keys()
    store.select(1).stream("elsewhere").add({"a": "b"})
    put(store, flushed_row(0), value)
    store = reopen(store)
    assert (store.keys(), store.size()) == (keys, 20)
    faults = [fault.message.split(":")[0] for fault in store.check(repair=True)]
    missing = ["the row of a flushed database is missing"]
    assert faults == missing if value is None else ["unknown metadata row", *missing]
    store = reopen(store)
    assert store.check() == []
    while sweep(store):
        pass
    assert (store.keys(), store.check()) == (keys, [])


def test_a_row_of_a_flush_never_costs_a_database_its_keys(
    store: Store, reopen: Callable[..., Store]
) -> None:
    fill(store, 20)
    keys = store.keys()
    put(store, flushed_row(0), b"")
    store = reopen(store)
    assert sweep(store) == 0
    assert (store.keys(), store.check()) == (keys, [])


def test_a_repair_finds_the_keys_of_a_database_whose_number_is_lost(
    store: Store, reopen: Callable[..., Store]
) -> None:
    fill(store)
    store.flush()
    fill(store, 20)
    keys = store.keys()
    put(store, NUMBERS_KEY, None)
    store = reopen(store)
    (fault,) = store.check(repair=True)
    assert fault.message == "keys of no database: 20 under 32768"
    store = reopen(store)
    assert (store.keys(), store.check()) == (keys, [])


def test_a_repair_gives_an_empty_flushed_database_a_number_again(
    store: Store, reopen: Callable[..., Store]
) -> None:
    fill(store)
    store.flush()
    put(store, NUMBERS_KEY, None)
    store = reopen(store)
    (fault,) = store.check(repair=True)
    assert fault.message == "its number is a flushed one"
    store = reopen(store)
    assert (store.keys(), store.check()) == ([], [])
    sweep_all(store)
    assert rows(store) == LEFT


def test_a_stray_row_of_the_expiry_index_is_due_only_once(store: Store, clock: ManualClock) -> None:
    put(store, b"X" + U64.pack(1) + qualified(0, b"nothing"), b"")
    assert store.engine.run(keyspace.delete_expired, 10) == 1
    assert store.engine.run(keyspace.delete_expired, 10) == 0
    assert rows(store) == []
