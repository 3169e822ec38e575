"""Stalls and tombstones: a store under load stays responsive, and says when it cannot go on."""

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvstream.errors import WriteStalled
from kvstream.options import MEGABYTE, StoreOptions
from kvstream.storage.batch import Batch, Family
from kvstream.storage.database import Database
from kvstream.storage.upkeep import RANGE_DELETES_IN_MEMTABLE
from tests.patience import PATIENCE_S, until
from tests.storage.stores import SMALL, key_of, put, value_of

DEFAULTS = StoreOptions(free_space_reserve=0)


def stalled(database: Database) -> Callable[[], None]:
    """Bring the messages to a halt, as when compaction is behind; return what lets them go on."""
    messages = database._families[Family.MESSAGES]
    # Two tables stop the writes, but would not be compacted before there are four.
    messages.set_options({"level0_slowdown_writes_trigger": "1", "level0_stop_writes_trigger": "2"})
    for number in range(2):
        put(database, {b"%d" % number: b""})
        messages.flush(True)

    def release() -> None:
        messages.set_options(
            {"level0_slowdown_writes_trigger": "20", "level0_stop_writes_trigger": "36"}
        )

    return release


def test_a_stalled_write_waits_without_holding_up_other_threads(database: Database) -> None:
    release = stalled(database)
    turns = 0
    begins = threading.Event()

    def other() -> None:
        """Let the write end after a hundred turns of this thread, which it must not hold up."""
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


def median_ms(call: Callable[[], object]) -> float:
    times = []
    for _ in range(21):
        began = time.thread_time()
        call()
        times.append(time.thread_time() - began)
    return statistics.median(times) * 1000


@pytest.mark.unmeasured
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


@pytest.mark.unmeasured
def test_stuck_rows_are_found_fast_among_many_deleted_ones(directory: Path) -> None:
    """Pending entries: a hundred thousand come and go, ten stay."""
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


def test_many_range_deletes_do_not_pile_up_in_memory(database: Database) -> None:
    for number in range(RANGE_DELETES_IN_MEMTABLE):
        assert tables_written(database) == 0
        batch = Batch(database)
        batch.delete_range(Family.MESSAGES, key_of(number), key_of(number + 1))
        database.write(batch)
    until(lambda: tables_written(database) > 0, "a flush")


def tables_written(database: Database) -> int:
    return database.property_int("rocksdb.total-sst-files-size", Family.MESSAGES)
