"""Stalls and tombstones: a loaded store stays responsive, and raises when it cannot continue."""

import os
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvstream.errors import WriteStalled
from kvstream.storage import options as opener
from kvstream.storage.batch import Batch, Family
from kvstream.storage.database import Database
from kvstream.storage.maintenance import RANGE_DELETES_IN_MEMTABLE
from kvstream.storage.options import (
    WRITE_BUFFERS,
    Settings,
    database_settings,
)
from kvstream.storage.stalls import LEVEL0_FREE, LOOK_BYTES, MEMORY_FREE, PAUSE_MAX_S
from kvstream.types.options import MEGABYTE, StoreOptions
from tests.patience import PATIENCE_S, until
from tests.storage.stores import SMALL, key_of, put, stalled, stops_at, value_of

DEFAULTS = StoreOptions(
    free_space_reserve=0, write_buffer_bytes=16 * MEGABYTE, wal_bytes_max=64 * MEGABYTE
)


def test_a_stalled_write_waits_without_holding_up_other_threads(database: Database) -> None:
    release = stalled(database)
    turns = 0
    begins = threading.Event()

    def other() -> None:
        """End the write after a hundred turns of this thread, which it must not delay."""
        nonlocal turns
        assert begins.wait(PATIENCE_S)
        while turns < 100:
            time.sleep(0.001)
            turns += 1
        release()

    thread = threading.Thread(target=other)
    thread.start()
    begins.set()
    put(database, {b"key": b"value"})
    assert turns == 100
    thread.join()
    assert database.get(0, b"key") == b"value"
    assert database.failure is None


def test_a_write_that_stalls_too_long_is_refused_and_not_written(directory: Path) -> None:
    database = Database.open(directory, replace(SMALL, stall_seconds_max=0.2))
    release = stalled(database)
    before = database.sequence
    began = time.monotonic()
    with pytest.raises(WriteStalled):
        put(database, {b"key": b"value"})
    assert 0.2 <= time.monotonic() - began < PATIENCE_S
    assert database.sequence == before
    assert database.get(0, b"key") is None
    release()
    put(database, {b"key": b"value"})
    assert database.get(0, b"key") == b"value"
    database.close()


def test_a_stopped_write_waits_as_long_as_compaction_makes_progress(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction takes a multiple of the time after which a write is refused."""
    stall_seconds_max, bytes_s, tables = 0.5, MEGABYTE, 8
    small = replace(
        SMALL,
        stall_seconds_max=stall_seconds_max,
        rocksdb={"level0_file_num_compaction_trigger": 2 * tables},
    )
    database = Database.open(directory, small)
    behind(database, tables)
    database.close()

    def throttled(*arguments: object, **named: object) -> Settings:
        settings = database_settings(*arguments, **named)  # type: ignore[arg-type]
        return settings | {"set_ratelimiter": (bytes_s, 100_000, 10)}

    monkeypatch.setattr(opener, "database_settings", throttled)
    database = Database.open(directory, small)
    messages = database._families[Family.MESSAGES]
    messages.set_options(stops_at(tables // 2))
    messages.set_options({"level0_file_num_compaction_trigger": "4"})
    began = time.monotonic()
    put(database, {b"key": b"value"})
    assert time.monotonic() - began > 2 * stall_seconds_max
    assert database.get(0, b"key") == b"value"
    assert database.failure is None
    database.close()


def behind(database: Database, tables: int) -> None:
    """Put messages into this many more tables at level 0, without compaction."""
    messages = database._families[Family.MESSAGES]
    messages.set_options({"disable_auto_compactions": "true"})
    for number in range(tables):
        rows = {key_of(n): os.urandom(1000) for n in range(number, 250 * tables, tables)}
        put(database, rows)
        messages.flush(True)


def pause_after(database: Database, size: int) -> float:
    """Write this many bytes and return the pause of the writer."""
    database.pause_s = 0.0
    put(database, {b"one": os.urandom(size // 2), b"two": os.urandom(size // 2)})
    pause_s = database.pause_s
    database.pause_s = 0.0
    return pause_s


def test_writers_pause_the_longer_the_more_compaction_is_behind(directory: Path) -> None:
    database = Database.open(directory, DEFAULTS)
    assert pause_after(database, 2 * LOOK_BYTES) == 0
    behind(database, LEVEL0_FREE)
    assert pause_after(database, 2 * LOOK_BYTES) == 0
    behind(database, 8)
    little = pause_after(database, 2 * LOOK_BYTES)
    assert pause_after(database, LOOK_BYTES // 8) == 0
    assert 0 < little < pause_after(database, 4 * LOOK_BYTES) <= PAUSE_MAX_S
    behind(database, 8)
    assert little < pause_after(database, 2 * LOOK_BYTES) <= PAUSE_MAX_S
    assert pause_after(database, 16 * MEGABYTE) == PAUSE_MAX_S
    database.compact()
    assert pause_after(database, 2 * LOOK_BYTES) == 0
    database.close()


def test_writers_pause_before_all_write_buffers_are_full(directory: Path) -> None:
    database = Database.open(directory, DEFAULTS)
    messages = database._families[Family.MESSAGES]
    full = int(WRITE_BUFFERS * DEFAULTS.write_buffer_bytes * MEMORY_FREE)
    while messages.property_int_value("rocksdb.cur-size-all-mem-tables") <= full:
        assert pause_after(database, MEGABYTE) == 0
        # As if flushing full buffers took long.
        messages.set_options({"write_buffer_size": str(WRITE_BUFFERS * 16 * MEGABYTE)})
    assert pause_after(database, 4 * MEGABYTE) > 0
    database.flush()
    assert pause_after(database, 2 * LOOK_BYTES) == 0
    database.close()


def median_ms(call: Callable[[], object]) -> float:
    times = []
    for _ in range(21):
        began = time.thread_time()
        call()
        times.append(time.thread_time() - began)
    return statistics.median(times) * 1000


def test_the_head_of_a_trimmed_stream_is_read_as_fast_as_that_of_a_new_one(
    directory: Path,
) -> None:
    database = Database.open(directory, DEFAULTS)
    total, live, step = 200_000, 1000, 1000
    slowest = 0.0
    for begin in range(0, total, step):
        batch = Batch(database)
        for number in range(begin, begin + step):
            batch.put(Family.MESSAGES, key_of(number), value_of(number))
        if begin >= live:
            batch.delete_range(Family.MESSAGES, key_of(begin - live), key_of(begin - live + step))
        database.write(batch)
        if begin >= live and begin % 20_000 == 0:
            first = key_of(begin - live + step)
            found = median_ms(lambda first=first: database.page(0, first, b"\xff", 10))  # type: ignore[misc]
            slowest = max(slowest, found)
    assert slowest < 1.0
    assert database.page(0, b"", b"\xff", 1)[0][0] == key_of(total - live)
    database.close()


def test_stuck_rows_are_found_fast_among_many_deleted_ones(directory: Path) -> None:
    """Pending entries: a hundred thousand are added and deleted, ten stay."""
    database = Database.open(directory, replace(DEFAULTS, tree_write_buffer_bytes=MEGABYTE))
    total, step, stuck = 100_000, 100, 10
    for begin in range(0, total, step):
        batch = Batch(database)
        for number in range(begin, begin + step):
            batch.put(Family.TREES, key_of(number), value_of(number))
        database.write(batch)
        batch = Batch(database)
        for number in range(begin, begin + step):
            if number % (total // stuck):
                batch.delete(Family.TREES, key_of(number))
        database.write(batch)
    found = database.page(Family.TREES, b"", b"\xff", stuck + 1)
    assert len(found) == stuck
    assert median_ms(lambda: database.page(Family.TREES, b"", b"\xff", stuck + 1)) < 50
    database.close()


def test_many_range_deletes_do_not_accumulate_in_memory(database: Database) -> None:
    for number in range(RANGE_DELETES_IN_MEMTABLE):
        assert tables_written(database) == 0
        batch = Batch(database)
        batch.delete_range(Family.MESSAGES, key_of(number), key_of(number + 1))
        database.write(batch)
    until(lambda: tables_written(database) > 0, "a flush")


def tables_written(database: Database) -> int:
    return database.property_int("rocksdb.total-sst-files-size", Family.MESSAGES)
