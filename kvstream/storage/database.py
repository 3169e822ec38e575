"""The rows of a store: get, scan and write over three column families of one RocksDB.

Only this module, ``options`` and ``sst`` import ``rocksdict``. It owns all of its open handles,
hides its fifteen traps (tests/canaries), and gives complete answers only: a read error is raised,
never a shorter result. It knows nothing of streams. After the first failed write or flush the
store is still read, and no longer written.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import sleep
from typing import Any, Self
from uuid import uuid4

from rocksdict import Rdict, ReadOptions, WriteBatch, WriteOptions

from kvstream.errors import (
    DataError,
    ReentrantCall,
    StoreClosed,
    StoreError,
    StoreReadOnly,
    WriteStalled,
)
from kvstream.layout.keys import HISTORY_KEY
from kvstream.logs import DeferredLogger, Throttle
from kvstream.storage import checkpoint, directory, files, maintenance, reads, replacement, sst
from kvstream.storage.batch import Batch, Family, Pages, Row, Seeks
from kvstream.storage.changes import remove_archive, trim_logs
from kvstream.storage.directory import Directory
from kvstream.storage.opening import Opened, open_any
from kvstream.storage.options import Opener, below, buffer_sizes
from kvstream.storage.stalls import LOOK_BYTES, Stalls, Stop
from kvstream.storage.write_guard import WriteGuard, classify, is_broken_log, is_stall
from kvstream.types.clock import monotonic
from kvstream.types.options import MEGABYTE, StoreOptions
from kvstream.types.thresholds import DEFAULT, Thresholds

_log = DeferredLogger(__name__)

FAMILY_NAMES = tuple(family.name.lower() for family in Family)

_CLOSED = "the store is closed"
_BEHIND_ALL = b"\xff" * 64
TABLE_BATCH_ROWS = 100
"""Rows of tables that are one commit where somebody follows the log: each may be large."""
_ANY_SIZE = 1 << 62
LARGE_WRITE = 1 * MEGABYTE
"""Writes of more bytes than this are checked against the free space one by one."""


class Database:
    """An open RocksDB, for any number of threads; ``write`` expects one at a time."""

    def __init__(
        self,
        rows: Rdict,
        opened: Opened,
        options: StoreOptions,
        thresholds: Thresholds = DEFAULT,
        keep_logs: bool = False,
    ) -> None:
        self.directory = opened.directory.path
        self.loss = opened.loss
        """What opening gave up; None unless ``accept_loss`` was asked for and needed."""
        self._options = options
        self._thresholds, self._keep_logs = thresholds, keep_logs
        self.is_followed = bool(options.archive)
        """Somebody follows the log, so the rows of tables must be in it."""
        self._logs_needed: dict[str, int] = {}
        """The first log that each reader of the logs still needs."""
        self._scans, self._ingesting = reads.Scans(), threading.RLock()
        self._families: list[Any] = []
        self.pause_s = 0.0
        """How long the last writer must pause, without any lock, so that compaction keeps up."""
        self._sleep: Callable[[float], None] = sleep
        self._closed = False
        self._stall_log = Throttle()
        self._ending: list[Any] = []  # handles that are out of use and not closed yet
        self.write_guard = WriteGuard(opened.directory, options.free_space_reserve)
        if options.read_only:
            self.write_guard.shut(StoreReadOnly("the store was opened read-only"))
        self._use(rows, opened)

    def _use(self, rows: Rdict, opened: Opened) -> None:
        """Read and write an open RocksDB from now on; release it on failure, except ``rows``."""
        try:
            self._take(rows, opened)
        except BaseException:
            for family in self._families:
                with suppress(Exception):
                    family.close()
            self._replace_handles(directory.Gone(_CLOSED))
            opened.close_files()
            raise

    def _take(self, rows: Rdict, opened: Opened) -> None:
        self._opened = opened
        if not self._options.read_only:  # a reader writes nothing
            self.write_guard.describe_displacement = opened.describe_displacement
        no_slowdown = WriteOptions()
        no_slowdown.no_slowdown = True  # a stalled write would hold the GIL
        rows.set_write_options(no_slowdown)
        self._root = rows
        self._families = [rows.get_column_family(name) for name in FAMILY_NAMES]
        for family in self._families:
            family.set_write_options(no_slowdown)
        self._handles = [rows.get_column_family_handle(name) for name in FAMILY_NAMES]
        buffers = buffer_sizes(self._options)
        self._stalls: Any = Stalls(self._families, buffers, opened.directory)
        self._write_rows: Any = rows.write
        self._latest_sequence: Callable[[], int] = rows.latest_sequence_number
        self._range_deletes: Any = maintenance.RangeDeletes(self._families, self._thresholds)
        directory.register(self)

    @classmethod
    def open(
        cls,
        directory: Path,
        options: StoreOptions,
        thresholds: Thresholds = DEFAULT,
        keep_logs: bool = False,
    ) -> Self:
        """Open the store in ``directory``, or create one if the options allow it.

        With ``keep_logs`` finished logs stay until they are trimmed (storage/changes.py); an
        opening without it removes them.

        Raises StoreLocked, UnsafeDirectory, UnknownLayout, Corruption or LostWrites with the
        store unchanged; StoreFull if recovery needs more space than there is.
        """
        opener = Opener(options, keep_logs)
        place = Directory.acquire(directory, **options.access())
        opened: Opened | None = None
        try:
            if not options.read_only:
                replacement.finish(place.own_path)
            rows, opened = open_any(place, options, opener)
            if not options.read_only:
                sst.clear_staging(place.own_path)
                if not keep_logs:
                    remove_archive(place.own_path)
            if opened.loss is not None:
                _log.warning("%s was opened with a loss: %s", place.path, opened.loss)
            return cls(rows, opened, options, thresholds, keep_logs)
        except BaseException:
            opener.close()
            if opened is not None:
                opened.close_files()
            place.release()
            raise

    def get(self, family: int, key: bytes) -> bytes | None:
        """Return the value of ``key``, None if there is no such row."""
        try:
            value: bytes | None = self._families[family].get(key)
        except Exception as error:
            raise classify(error) from None
        return value

    def get_many(self, family: int, keys: list[bytes]) -> list[bytes | None]:
        """Return the value of each key; other threads run meanwhile."""
        if not keys:
            return []
        try:
            values: list[bytes | None] = self._families[family].get(keys)
        except Exception as error:
            raise classify(error) from None
        return values

    def scan(self, family: int, lower: bytes, upper: bytes, reverse: bool = False) -> Iterator[Row]:
        """Yield the rows of ``lower <= key < upper`` as they are when the first is requested.

        For few rows, or when the caller stops early; ``page`` is faster for many.
        """
        rows = reads.walk(self._families[family], below(upper), lower, upper, reverse)
        return self._scans.track(rows)

    def page(
        self, family: int, lower: bytes, upper: bytes, limit: int, reverse: bool = False
    ) -> list[Row]:
        """Return the first ``limit`` rows of a range, in reverse the last, as of one moment.

        Other threads wait meanwhile: half a microsecond a row.
        """
        return reads.page(self._families[family], below, lower, upper, limit, reverse)

    def pages(self, family: int, lower: bytes, upper: bytes) -> Pages:
        """Return rows as they are now, in pages: see ``reads.walk_pages``."""
        pages = reads.walk_pages(self._families[family], below(upper), lower, upper)
        return self._scans.track(pages)

    def snapshot(
        self, family: int, lower: bytes, upper: bytes, reverse: bool = False
    ) -> Iterator[list[Row]]:
        """Yield the rows of ``lower <= key < upper`` as they are now, in pages of some 64 KB.

        Later writes are not seen. Until the iterator is closed it keeps what it sees on disk.
        """
        pages = reads.snapshot(self._families[family], below(upper), lower, upper, reverse)
        return self._scans.track(reads.begin(pages))

    def seeks(self, family: int) -> Seeks:
        """Return a reader of any number of ranges, as they are now, by one iterator."""
        return self._scans.track(reads.begin(reads.walk_seeks(self._families[family])))

    def write(self, batch: Batch, frees: bool = False) -> int:
        """Write all of ``batch`` or nothing, and return the latest sequence number.

        The range deletes come first, then the single rows. A write that ``frees`` space may use the
        reserve of free space. Raises StoreFull, WriteStalled or StoreReadOnly with nothing
        written, UnknownOutcome if RocksDB failed in the middle.
        """
        if batch.deferred:
            batch.put_deferred()
        guard = self.write_guard
        if monotonic() >= guard.open_until:
            guard.admit(frees)
        messages, metadata, trees = batch.puts
        try:
            if len(messages) + len(metadata) + len(trees) == 1 and not batch.ranges:
                family = 0 if messages else 2 if trees else 1
                size = self._write_row(family, messages or trees or metadata, frees)
            else:
                size = self._write_prepared(batch, frees)
        except Exception as error:
            # A caller that keeps the error must not keep a WriteBatch, which keeps RocksDB open.
            size = self._write_failed(error.with_traceback(None), batch, frees)
        if guard.recovers:
            guard.resume_writes()
        stalls = self._stalls
        stalls.unseen += size
        if stalls.unseen >= LOOK_BYTES:
            self.pause_s = stalls.look()
            maintenance.flush_deletes(self._families, maintenance.DELETES_MAX)
        if batch.ranges:
            self._range_deletes.count(batch.ranges)
        latest = self._latest_sequence  # Python calls a local faster than an attribute
        return latest()

    def pause_by(self, sleep: Callable[[float], None]) -> None:
        """Make ``rest`` pause by ``sleep`` instead of ``time.sleep``."""
        self._sleep = sleep

    def rest(self) -> None:
        """Pause as the last write requires; the caller holds no lock."""
        pause_s, self.pause_s = self.pause_s, 0.0
        self._sleep(pause_s)

    def _write_row(self, family: int, row: dict[bytes, bytes | None], frees: bool) -> int:
        """Write one row and return its bytes; a WriteBatch would take 1 us more."""
        [(key, value)] = row.items()
        if value is None:
            del self._families[family][key]
            return len(key)
        size = len(key) + len(value)
        if size > LARGE_WRITE:
            self.write_guard.admit(frees, size)
        self._families[family][key] = value
        return size

    def _write_prepared(self, batch: Batch, frees: bool) -> int:
        """Write a batch and return its bytes; a WriteBatch can be written only once."""
        prepared: Any = WriteBatch(True)
        handle = None
        try:
            for family, lower, upper in batch.ranges:
                prepared.delete_range(lower, upper, self._handles[family])
            for handle, puts in zip(self._handles, batch.puts):  # noqa: B905 - strict costs 0.1 us
                if puts:
                    prepared.set_default_column_family(handle)
                    for key, value in puts.items():
                        if value is None:
                            del prepared[key]
                        else:
                            prepared[key] = value
            size: int = prepared.size_in_bytes()
            if size > LARGE_WRITE:
                self.write_guard.admit(frees, size)
            self._write_rows(prepared)
            return size
        finally:  # an interrupt may be kept with this frame, and both keep RocksDB open
            prepared = handle = None

    def _write_failed(self, error: Exception, batch: Batch, frees: bool) -> int:
        """Wait for the end of a stall and write again; raise the meaning of any other failure."""
        stop, begun = Stop(self._stalls, self._options.stall_seconds_max), monotonic()
        while is_stall(error):
            try:
                stop.wait()
            except WriteStalled as stalled:
                self._stall_log.log(_log, logging.WARNING, "a write was refused: %s", stalled)
                raise
            try:
                size = self._write_prepared(batch, frees)
            except Exception as again:
                error = again.with_traceback(None)
            else:
                waited_s = monotonic() - begun
                self._stall_log.log(_log, logging.INFO, "a write waited %.3f s for space", waited_s)
                return size
        raise self.write_guard.stop_writes(error, recovers=True) from None

    def ingest(self, family: int, paths: list[Path]) -> None:
        """Ingest SST files, all or none, durably; none of their rows may be there already."""
        self._refuse_within()
        self.write_guard.admit(False, sum(path.stat().st_size for path in paths))
        if self.is_followed:
            self._write_tables(family, paths)
            return
        try:
            with self._ingesting:
                self._end_history()
                sst.ingest(self._families[family], paths)
        except Exception as error:
            raise self.write_guard.stop_writes(error, recovers=True) from None

    def _end_history(self) -> None:
        """Delete the row by which replicas find their place: the log will not have all rows."""
        metadata = self._families[Family.METADATA]
        if metadata.get(HISTORY_KEY) is not None:
            del metadata[HISTORY_KEY]
            self.flush_wal()

    def _write_tables(self, family: int, paths: list[Path]) -> None:
        """Write the rows of SST files through the log, which somebody follows; remove the files.

        A crash leaves a part of them, as an ingestion of several files may.
        """
        with self._ingesting:
            merged = sst.Merged(self.staging() / uuid4().hex, paths)
            try:
                lower = b""
                while rows := merged.page(lower, _BEHIND_ALL, TABLE_BATCH_ROWS):
                    batch = Batch(self)
                    batch.puts[family].update(rows)
                    self.write(batch)
                    lower = rows[-1][0] + b"\0"
            finally:
                merged.close()
        for path in paths:
            path.unlink(missing_ok=True)
        self.flush_wal()

    def trim_logs(self, reader: str, needed: int, place: Path | None = None) -> None:
        """Remove the kept logs that no reader needs; ``reader`` needs those from ``needed`` on.

        A thread that may end after the store was closed gives its own path of the directory: that
        of the store may lead to another one by then.
        """
        self._logs_needed[reader] = needed
        trim_logs(place or self.own_path, _ANY_SIZE, min([*self._logs_needed.values()]))

    def _refuse_within(self) -> None:
        """Raise ReentrantCall if this thread is ingesting, or copying the files, already."""
        if self._ingesting._is_owned():  # type: ignore[attr-defined]
            raise ReentrantCall

    def staging(self) -> Path:
        """Return the folder for SST files that are to be ingested."""
        return sst.staging_of(self.own_path)

    @property
    def own_path(self) -> Path:
        """The path for accesses of this process to files of the store (storage/directory.py)."""
        return self._opened.directory.own_path

    def is_displaced(self) -> bool:
        """Return whether the store's path leads elsewhere; then writes are refused from now on.

        That is so after its directory was moved, removed or replaced, or the files in it.
        """
        return self.write_guard.is_displaced()

    @property
    def failure(self) -> StoreError | None:
        """Why the store takes no writes now; None if it does."""
        return self.write_guard.failure

    def refusal(self) -> StoreError | None:
        """Return why a write that takes space would be refused now; None if it would be tried."""
        return self.write_guard.refusal()

    @property
    def sequence(self) -> int:
        """The sequence number of the latest write."""
        sequence: int = self._latest_sequence()
        return sequence

    def flush_wal(self) -> int:
        """Fsync the log; return the sequence number up to which it is now durable.

        Raises StoreReadOnly if the store's path leads elsewhere. Other threads run and write
        meanwhile. After a failed fsync none is tried again: the system may have dropped the pages
        that it could not write, and would report success.
        """
        # RocksDB, flushed on a full disk, would not recover from it.
        self.write_guard.refuse_failed()
        sequence = self.sequence
        try:
            self._root.flush_wal(True)
            files.sync_drive(self._opened.directory.own_path)
            if self._opened.watermark is not None:
                self._opened.watermark.record(sequence)
        except Exception as error:
            raise self.write_guard.stop_writes(error, is_broken_log(error)) from None
        self.write_guard.refuse_displaced()
        return sequence

    def flush(self) -> None:
        """Flush all memtables, durably; other threads run meanwhile."""
        self.write_guard.admit_files()
        try:
            for family in self._families:
                family.flush(True)
        except Exception as error:
            raise self.write_guard.stop_writes(error, recovers=False) from None

    def _refuse_displaced(self) -> None:
        """Raise an error if the store's path leads elsewhere, for a reader too."""
        self.write_guard.refuse_displaced()
        what = self._opened.describe_displacement()
        if what is not None:
            raise StoreError(f"{what}: open it again")

    def catch_up(self) -> None:
        """Read what the writer of a followed store has written since."""
        self._refuse_displaced()
        try:
            self._root.try_catch_up_with_primary()
        except Exception as error:
            raise classify(error) from None

    def checkpoint(self, target: Path, alone: AbstractContextManager[object]) -> None:
        """Make ``target`` a store with all that is written so far.

        SST files are hard links, or copies on another file system. If there are no links at all,
        RocksDB copies them while ``alone`` is held, which keeps writers out. Raises StoreError if
        ``target`` exists.
        """
        self._refuse_within()
        with directory.stage(target) as built:
            sequence = self.sequence
            if not self._copy_files(built):
                with alone:
                    self.flush()
                    sequence = self.sequence
                    sst.checkpoint(self._root, built)
            directory.publish(built, target, sequence)

    def _copy_files(self, target: Path) -> bool:
        """Copy the files without RocksDB; return whether that was possible."""
        tables = checkpoint.LiveTables(self._root, self._ingesting)
        near = os.stat(self.own_path).st_dev == os.stat(target.parent).st_dev
        if near or self._options.read_only:  # which writes nothing into its directory
            return checkpoint.copy_database(self.own_path, target, tables)
        stage = self.staging() / uuid4().hex
        return checkpoint.copy_across(self.own_path, target, tables, stage)

    def compact(self) -> None:
        """Compact every column family, which frees the space of deleted rows."""
        self.write_guard.admit_files()
        try:
            for family in self._families:
                family.compact_range(None, None)
            # compact_range() hides its errors, but after one RocksDB refuses to write.
            self._write_rows(WriteBatch(True))
        except Exception as error:
            raise self.write_guard.stop_writes(error, recovers=True) from None

    def has_room(self) -> bool:
        """Return whether the disk has room to open the store again.

        The rows of the log become tables, and a view has a link to each file (storage/opening.py).
        """
        place = self._opened.directory
        return self.write_guard.has_room(place.size(".log"), 2 * place.count())

    def has_recovered(self) -> bool:
        """Return whether writes go on after a full disk, by a write of nothing."""
        if not self.write_guard.recovers:
            return True
        try:
            self._write_rows(WriteBatch(True))
        except Exception as error:
            self.write_guard.stop_writes(error.with_traceback(None), recovers=True)
            return False
        self.write_guard.resume_writes()
        return True

    @property
    def needs_space(self) -> bool:
        """Whether writes were refused because less than the reserve is free."""
        return self.write_guard.needs_space

    def large_deleted(self) -> list[maintenance.Range]:
        """Return the large ranges of messages deleted since the last call, in parts of 64 MB.

        If writes are refused because space is low, small ranges count too. RocksDB compacts
        nothing if a write has met a full disk.
        """
        if self.failure is not None or self.write_guard.lack_of_files() is not None:
            return []
        try:
            ranges: list[maintenance.Range] = self._range_deletes.take_large(self.needs_space)
        except Exception as error:
            raise classify(error) from None
        return ranges

    def flush_deletes(self) -> None:
        """Flush the memtables whose deleted rows delay readers."""
        if self.failure is None and self.write_guard.lack_of_files() is None:
            maintenance.flush_deletes(self._families, maintenance.DELETES_LEFT)

    def compact_messages(self, lower: bytes, upper: bytes) -> None:
        """Compact a range of messages; the next write raises what goes wrong."""
        try:
            self._families[Family.MESSAGES].compact_range(lower, upper)
        except Exception as error:
            raise classify(error) from None

    def verify(self) -> int:
        """Read and check every row, and return their number; Corruption at the first damage."""
        once = ReadOptions()
        once.fill_cache(False)  # type: ignore[call-arg]
        return sum(maintenance.count_checked(family, once) for family in self._families)

    def property_int(self, name: str, family: int) -> int:
        """Return a numeric property of RocksDB, such as ``rocksdb.estimate-num-keys``."""
        try:
            return self._families[family].property_int_value(name) or 0
        except Exception as error:  # another thread is closing or reopening it
            raise classify(error) from None

    def statistics(self) -> dict[str, Any]:
        """Return sizes and counts for people; the names may change with any version."""
        return {
            "sequence": self.sequence,
            "size_on_disk": self.size_on_disk(),
            "failure": str(self.failure) if self.failure else None,
            **maintenance.statistics(dict(zip(FAMILY_NAMES, self._families, strict=True))),
        }

    def size_on_disk(self, suffix: str = "") -> int:
        """Return the bytes of all files of the store, or of those with a suffix."""
        return self._opened.directory.size(suffix)

    def reopen(self, from_log: bool = False) -> None:
        """Close and reopen RocksDB, so that reads return what the disk has.

        The log is flushed first, or with ``from_log`` stays and is recovered: then the state of a
        full disk ends, if the disk has room. No other thread may use the database meanwhile;
        unfinished scans raise StoreClosed. If opening fails, its error is raised and the database
        is closed; after a failed write StoreReadOnly or UnknownOutcome is raised, and it stays
        open.
        """
        writes = not self._options.read_only
        self._refuse_displaced()
        was_full = from_log and self.write_guard.recovers and self.has_room()
        if writes and not was_full:
            self.flush_wal() if from_log else self.flush()
        self._release_rows(sound=writes and not was_full)
        self._open_again()
        if was_full:
            self.write_guard.resume_writes()

    def replace(self) -> None:
        """Go on with the store that ``replacement.prepare`` has chosen.

        No other thread may use the database meanwhile. If opening fails, its error is raised and
        the database is closed; the next opening goes on.
        """
        self._refuse_displaced()
        self.write_guard.describe_displacement = lambda: None  # its own files are replaced
        self._release_rows(sound=False)
        self._open_again(replacement.finish)

    def _open_again(self, prepare: Callable[[Path], None] = lambda place: None) -> None:
        self._opened.close_files()
        place, opener = self._opened.directory, Opener(self._options, self._keep_logs)
        try:
            prepare(place.own_path)
            self._use(*open_any(place, self._options, opener))
        except BaseException as error:
            self._closed = True
            why = f"the store could not be opened again: {error}"
            self.write_guard.shut(StoreClosed(why))
            gone = self._latest_sequence = directory.Gone(why)
            self._replace_handles(gone)
            opener.close()
            place.release()
            raise

    def close(self, discard: bool = False) -> None:
        """Flush and close the store; idempotent.

        Unfinished scans raise StoreClosed at their next use. If the last flush fails, the log has
        what was durable. After an interrupt the next call continues. ``discard`` removes the
        directory if this opening created it and nothing was ever written. If the store's path
        leads elsewhere, the log is flushed, which is open already, and nothing else is written.
        """
        if self._closed:
            return
        if self.is_displaced():
            self._close_displaced()
            return
        sound = False
        with suppress(StoreError, DataError):  # then the next opening recovers the log
            self.flush()
            sound = True
        self.write_guard.shut(StoreClosed(_CLOSED))
        try:
            self._release_rows(sound)
        except Exception:
            self._release()
            raise
        self._release(discard)

    def _close_displaced(self) -> None:
        """Leave RocksDB as it is: to close it would write files among those of others."""
        with suppress(Exception):
            self._root.cancel_all_background(True)
            self._root.flush_wal(True)
        self._abandon(_CLOSED)
        self._opened.release(abandoned=True)

    def _release(self, discard: bool = False) -> None:
        self._opened.release(discard)
        self._closed = True
        self._latest_sequence = directory.Gone(_CLOSED)

    def _release_rows(self, sound: bool) -> None:
        """Close RocksDB; ``sound`` means that all writes are durable."""
        sequence, watermark = self.sequence, self._opened.watermark
        self._latest_sequence = lambda: sequence  # threads that wait for its fsync still ask
        if not self._ending:
            self._ending = [self._root, *self._families]
        self._replace_handles(directory.Gone(_CLOSED))
        self._scans.revoke()
        errors: list[Exception] = []
        while self._ending:
            try:
                self._ending.pop().close()  # each that stays open would keep RocksDB open
            except Exception as error:
                errors.append(error.with_traceback(None))
        if not sound:
            return
        try:
            if errors:
                raise errors[0]
            if watermark is not None:
                watermark.record(sequence)
        except Exception as error:
            raise classify(error) from None

    def _replace_handles(self, gone: Any) -> None:
        self._root = self._write_rows = self._range_deletes = self._stalls = gone
        self._families = [gone] * len(Family)
        self._handles = []
        directory.unregister(self)

    def refuse_after_fork(self) -> None:
        """Make every use in this process, a forked child, raise StoreClosed."""
        self._abandon(directory.FORKED)

    def _abandon(self, why: str) -> None:
        """Make every use raise StoreClosed, and leave RocksDB as it is."""
        used = self._root, *self._families, *self._handles
        for handle in (*used, *self._ending, *self._scans.live()):
            directory.leak(handle)
        self._closed = True
        self.write_guard.shut(StoreClosed(why))
        gone = self._latest_sequence = directory.Gone(why)
        self._replace_handles(gone)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What a recovery found and gave up."""

    directory: Path
    rows: int
    """Rows of the store, every one of them read and checked."""
    sequence: int
    """The last sequence number that the store has now."""
    damage: str | None = None
    """Why the store had been refused; None if it had not been."""
    promised: int | None = None
    """The last sequence number acknowledged as durable; None if unknown."""
    skipped_records: bool = False
    """Records in the middle were lost: the counters need ``check --repair``."""
    kept_logs: Path | None = None
    """Where the logs, and all other files, lie as they were; at first they take no space."""

    @property
    def lost(self) -> range:
        """The sequence numbers that were acknowledged as durable and are gone."""
        if self.damage is None or self.promised is None:
            return range(0)
        return range(self.sequence + 1, self.promised + 1)


def recover(
    directory: str | os.PathLike[str], options: StoreOptions | None = None, *, accept_loss: bool
) -> RecoveryReport:
    """Open the store, recover what can be recovered, read all of it, and close it.

    Without ``accept_loss`` a store that has lost acknowledged writes is refused as by any other
    opening, and left as it was. With it the loss is final; the files are kept as they were, in
    the directory of the store. A damaged table is never given up: Corruption is raised, and a
    checkpoint is the cure.
    """
    chosen = replace(options or StoreOptions(), create=False, accept_loss=accept_loss)
    database = Database.open(Path(directory), chosen)
    try:
        report = RecoveryReport(database.directory, database.verify(), database.sequence)
        loss = database.loss
        if loss is None:
            return report
        return replace(
            report,
            sequence=loss.recovered,
            damage=loss.damage,
            promised=loss.promised,
            skipped_records=loss.skipped_records,
            kept_logs=loss.kept,
        )
    finally:
        database.close()
