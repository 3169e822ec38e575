"""Scenarios of a failing disk: each runs in a process of its own, under the shim.

A scenario gets the disk that it may break, and asserts. Then the test opens the store that it has
left on a sound disk. ``python -m tests.storage.failing SCENARIO LIBRARY ROOT NOTES``
"""

import contextlib
import errno
import os
import queue
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvstream.errors import StoreError, StoreFull, StoreReadOnly, UnknownOutcome
from kvstream.storage.batch import Batch, Family
from kvstream.storage.changes import ChangeReader
from kvstream.storage.database import Database
from kvstream.storage.durability import Committer
from kvstream.storage.stalls import Stop
from kvstream.types.options import Durability
from tests import forking
from tests.faultshim.disk import FaultyDisk
from tests.patience import PATIENCE_S
from tests.storage.stores import SMALL, key_of, keys, put, put_one_by_one, stalled, value_of

ALWAYS = replace(SMALL, durability=Durability.ALWAYS)


@contextlib.contextmanager
def opened(disk: FaultyDisk) -> Iterator[tuple[Database, Committer]]:
    """A store with 100 durable rows, and its committer at ``always``."""
    database = Database.open(disk.root / "store", ALWAYS)
    committer = Committer(database, Durability.ALWAYS)
    committer.wait(put_one_by_one(database, range(100)))
    yield database, committer
    committer.close()
    database.close()


def row(database: Database, number: int) -> Batch:
    batch = Batch(database)
    batch.put(0, key_of(number), value_of(number))
    return batch


def fill(database: Database, then: Callable[[int], object] = int) -> None:
    """Write large rows until the disk fails; call ``then`` with the sequence number of each."""
    for number in range(100, 100_000):
        then(put(database, {key_of(number): os.urandom(1000)}))  # does not compress


def reads_go_on(database: Database) -> None:
    assert keys(database)[:100] == [key_of(number) for number in range(100)]
    assert database.get(0, key_of(7)) == value_of(7)


def stays_read_only(disk: FaultyDisk, database: Database, committer: Committer) -> None:
    """Check that the store writes and fsyncs no more, though the disk works again."""
    disk.heal()
    synced = disk.syncs()
    for _ in range(3):
        with pytest.raises(StoreReadOnly):
            database.write(row(database, 9999), frees=True)
        for refused in (database.flush, database.reopen):
            with pytest.raises(StoreReadOnly):
                refused()
        with pytest.raises(UnknownOutcome):
            committer.wait(committer.durable_sequence + 1)
    assert disk.syncs() == synced
    assert isinstance(database.failure, StoreReadOnly)
    reads_go_on(database)


def failed_fsync_of_the_log(disk: FaultyDisk) -> None:
    with opened(disk) as (database, committer):
        disk.fail("sync", errno.EIO, ".log")
        outcomes: queue.SimpleQueue[UnknownOutcome | None] = queue.SimpleQueue()
        sequence = database.write(row(database, 100))
        committer.after(sequence, lambda: outcomes.put(None), failed=outcomes.put)
        with pytest.raises(UnknownOutcome):
            committer.wait(sequence)
        assert isinstance(outcomes.get(timeout=PATIENCE_S), UnknownOutcome)
        assert committer.durable_sequence < sequence
        stays_read_only(disk, database, committer)


def failed_write_of_the_log(disk: FaultyDisk) -> None:
    with opened(disk) as (database, committer):
        disk.fail("write", errno.EIO, ".log")
        with pytest.raises(UnknownOutcome):
            database.write(row(database, 100))
        assert database.get(0, key_of(100)) is None
        stays_read_only(disk, database, committer)


def failed_fsync_of_a_table(disk: FaultyDisk) -> None:
    failed_flush(disk, "sync", ".sst")


def failed_write_of_a_table(disk: FaultyDisk) -> None:
    failed_flush(disk, "write", ".sst")


def failed_fsync_of_the_manifest(disk: FaultyDisk) -> None:
    with opened(disk) as (database, committer):
        (manifest,) = database.directory.glob("MANIFEST-*")
        disk.fail("sync", errno.EIO, manifest.name)
        with pytest.raises(UnknownOutcome):
            database.flush()
        stays_read_only(disk, database, committer)


def failed_flush(disk: FaultyDisk, call: str, suffix: str) -> None:
    with opened(disk) as (database, committer):
        disk.fail(call, errno.EIO, suffix)
        with pytest.raises(UnknownOutcome):
            database.flush()
        stays_read_only(disk, database, committer)


def failed_flush_in_the_background(disk: FaultyDisk) -> None:
    with opened(disk) as (database, committer):
        disk.fail("write", errno.EIO, ".sst")
        with pytest.raises((UnknownOutcome, StoreReadOnly)):
            fill(database, committer.wait)
        stays_read_only(disk, database, committer)


def failed_write_of_the_watermark(disk: FaultyDisk) -> None:
    with opened(disk) as (database, committer):
        disk.fail("write", errno.EIO, "WATERMARK")
        with pytest.raises(UnknownOutcome):
            committer.wait(database.write(row(database, 100)))
        stays_read_only(disk, database, committer)


def no_space_for_the_watermark(disk: FaultyDisk) -> None:
    with opened(disk) as (database, committer):
        disk.fail("write", errno.ENOSPC, "WATERMARK")
        committer.wait(put_one_by_one(database, range(100, 110)))
        disk.heal()
        committer.wait(put_one_by_one(database, range(110, 120)))


def no_space_for_the_log(disk: FaultyDisk) -> None:
    with opened(disk) as (database, committer):
        waiting = database.write(row(database, 100))
        late = threading.Event()
        disk.fail("write", errno.ENOSPC, ".log")
        for _ in range(3):
            with pytest.raises(StoreFull):
                database.write(row(database, 101))
        # The log must not be flushed now: RocksDB would never recover.
        with pytest.raises(UnknownOutcome):
            committer.wait(waiting)
        with pytest.raises(UnknownOutcome):
            committer.sync()
        committer.after(waiting, late.set)
        reads_go_on(database)
        assert database.get(0, key_of(101)) is None
        disk.heal()
        recovers(database, committer)
        reads_go_on(database)
        assert late.wait(PATIENCE_S)


def no_space_for_a_log_that_is_read(disk: FaultyDisk) -> None:
    """The record that failed has no number, and the next one follows the last that succeeded."""
    database = Database.open(disk.root / "store", ALWAYS, keep_logs=True)
    committer = Committer(database, Durability.ALWAYS)
    committer.wait(put_one_by_one(database, range(100)))
    reader = ChangeReader(database.directory)
    disk.fail("write", errno.ENOSPC, ".log")
    with pytest.raises(StoreFull):
        database.write(row(database, 100))
    disk.heal()
    recovers(database, committer)
    put_one_by_one(database, range(100, 110))
    numbers: list[int] = []
    while records := reader.read():
        numbers += [record.sequence for record in records if record.row_count]
    assert numbers == list(range(1, database.sequence + 1))
    assert numbers[-1] >= 110
    reader.close()
    committer.close()
    database.close()


def kept_error_of_a_write(disk: FaultyDisk) -> None:
    """An error that is kept, with the frames of the write, does not keep RocksDB open."""
    with opened(disk) as (database, committer):
        disk.fail("write", errno.ENOSPC, ".log")
        with pytest.raises(StoreFull) as kept:
            put(database, {b"a": b"1", b"b": b"2"})
        disk.heal()
        recovers(database, committer)
    Database.open(disk.root / "store", ALWAYS).close()
    assert "No space" in str(kept.value)


def no_space_for_a_table(disk: FaultyDisk) -> None:
    with opened(disk) as (database, committer):
        disk.fail("write", errno.ENOSPC, ".sst")
        with pytest.raises(StoreFull):
            fill(database)
        reads_go_on(database)
        disk.heal()
        recovers(database, committer)
        reads_go_on(database)


def no_space_for_a_table_while_writes_are_stopped(disk: FaultyDisk) -> None:
    """A flush that fails during a stop ends the wait of a writer at once."""
    with opened(disk) as (database, committer):
        release = stopped_writes(database)
        waits, look = threading.Event(), Stop._look

        def looked(stop: Stop, now: float) -> None:
            waits.set()
            look(stop, now)

        Stop._look = looked  # type: ignore[method-assign, assignment]
        refused: queue.Queue[StoreError] = queue.Queue()

        def writes() -> None:
            with pytest.raises(StoreFull) as error:
                database.write(row(database, 100_000))
            refused.put(error.value)

        disk.fail("write", errno.ENOSPC, ".sst")
        thread = threading.Thread(target=writes)
        thread.start()
        assert waits.wait(PATIENCE_S)
        with contextlib.suppress(Exception):
            database._families[Family.TREES].flush(True)
        refused.get(timeout=ALWAYS.stall_seconds_max / 2)
        thread.join()
        release()
        disk.heal()
        recovers(database, committer)
        batch = Batch(database)
        for number in range(2):  # which has stopped the writes
            batch.delete(Family.MESSAGES, b"%d" % number)
        database.write(batch)
        reads_go_on(database)


def stopped_writes(database: Database) -> Callable[[], None]:
    """Leave a row of another family unflushed, and stop all writes."""
    batch = Batch(database)
    batch.put(Family.TREES, b"key", b"value")
    database.write(batch)
    return stalled(database)


def recovers(database: Database, committer: Committer) -> None:
    """Without a restart the store accepts writes soon after there is space."""
    began = time.monotonic()
    while True:
        try:
            sequence = database.write(row(database, 100_001))
        except StoreFull:
            assert time.monotonic() - began < PATIENCE_S
            time.sleep(0.2)
        else:
            break
    assert database.failure is None
    committer.wait(sequence)


def no_space_to_open(disk: FaultyDisk) -> None:
    with opened(disk):
        pass
    disk.fail("write", errno.ENOSPC, ".dbtmp")
    with pytest.raises(StoreFull, match="No space left"):
        Database.open(disk.root / "store", ALWAYS)
    reader = Database.open(disk.root / "store", replace(ALWAYS, read_only=True))
    reads_go_on(reader)
    reader.close()
    disk.heal()


def no_file_descriptors(disk: FaultyDisk) -> None:
    with opened(disk) as (database, _):
        used = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2, used + 2))
        with pytest.raises(StoreError):
            fill(database)
        assert isinstance(database.failure, StoreReadOnly)
        reads_go_on(database)


SCENARIOS: list[Callable[[FaultyDisk], None]] = [
    failed_fsync_of_the_log,
    failed_write_of_the_log,
    failed_fsync_of_a_table,
    failed_write_of_a_table,
    failed_fsync_of_the_manifest,
    failed_flush_in_the_background,
    failed_write_of_the_watermark,
    no_space_for_the_watermark,
    no_space_for_the_log,
    no_space_for_a_log_that_is_read,
    kept_error_of_a_write,
    no_space_for_a_table,
    no_space_for_a_table_while_writes_are_stopped,
    no_space_to_open,
    no_file_descriptors,
]


def started(scenario: Callable[[FaultyDisk], None], disk: FaultyDisk) -> subprocess.Popen[str]:
    """Start a scenario in a process under the shim."""
    arguments = [disk.library, disk.root, disk.notes]
    return forking.start(
        [sys.executable, "-m", __name__, scenario.__name__, *map(str, arguments)],
        env=disk.environment(),
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


if __name__ == "__main__":
    name, library, root, notes = sys.argv[1:]
    chosen = {scenario.__name__: scenario for scenario in SCENARIOS}[name]
    chosen(FaultyDisk(Path(library), Path(root), Path(notes)))
