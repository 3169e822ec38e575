"""The rows of a store: get, scan and write over three column families of one RocksDB.

This is the only module that imports ``rocksdict``. It owns every handle of it, turns its text
errors into those of kvstream, and hands out only complete answers: a read error is raised, never
a shorter result. It knows nothing of streams.
"""

import os
import time
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

from rocksdict import Checkpoint, Options, Rdict, ReadOptions, WriteBatch, WriteOptions

from kvstream.errors import Corruption, StoreClosed, StoreError, StoreReadOnly, WriteStalled
from kvstream.options import StoreOptions
from kvstream.storage.batch import Batch, Row

FAMILY_NAMES = ("messages", "metadata", "trees")
_ROW_KEY = itemgetter(0)


class Database:
    """An open RocksDB."""

    def __init__(self, directory: Path, options: StoreOptions, rows: Rdict) -> None:
        self.directory = directory
        self._options = options
        self._rows = rows
        self._families = [rows.get_column_family(name) for name in FAMILY_NAMES]
        self._handles = [rows.get_column_family_handle(name) for name in FAMILY_NAMES]
        self._refusal: StoreError | None = None
        self._closed = False
        write_options = WriteOptions()
        write_options.no_slowdown = True
        rows.set_write_options(write_options)
        if options.read_only:
            self._refusal = StoreReadOnly("the store was opened read-only")

    @classmethod
    def open(cls, directory: Path, options: StoreOptions) -> Self:
        """Open the store in ``directory``, or make one there."""
        os.makedirs(directory, mode=0o700, exist_ok=True)
        general = Options(raw_mode=True)
        general.create_if_missing(options.create)
        general.create_missing_column_families(True)
        families = {name: Options(raw_mode=True) for name in FAMILY_NAMES}
        try:
            rows = Rdict(str(directory), options=general, column_families=families)
        except Exception as error:
            raise _classified(error) from None
        return cls(directory, options, rows)

    def get(self, family: int, key: bytes) -> bytes | None:
        try:
            return self._families[family].get(key)
        except Exception as error:
            raise _classified(error) from None

    def get_many(self, family: int, keys: list[bytes]) -> list[bytes | None]:
        """Return the value of each key; releases the GIL."""
        if not keys:
            return []
        try:
            values: list[bytes | None] = self._families[family].get(keys)  # type: ignore[assignment,arg-type]
        except Exception as error:
            raise _classified(error) from None
        return values

    def scan(self, family: int, lower: bytes, upper: bytes, reverse: bool = False) -> Iterator[Row]:
        """Yield the rows of ``lower <= key < upper`` as they were at the first of them."""
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(upper)
        rows = self._families[family].iter(bounds)
        if reverse:
            rows.seek_to_last()
            advance = rows.prev
        else:
            rows.seek(lower)
            advance = rows.next
        while rows.valid():
            key = rows.key()
            if key < lower:
                return
            yield key, rows.value()
            advance()
        try:
            rows.status()
        except Exception as error:
            raise _classified(error) from None

    def page(self, family: int, lower: bytes, upper: bytes, limit: int) -> list[Row]:
        """Return the first ``limit`` rows of ``lower <= key < upper``."""
        if limit <= 0:
            return []
        source: Any = self._families[family]
        rows: list[Row] = list(islice(source.items(from_key=lower), limit))
        if rows and rows[-1][0] >= upper:
            del rows[bisect_left(rows, upper, key=_ROW_KEY) :]
        elif len(rows) < limit:
            rows += self.scan(family, rows[-1][0] + b"\0" if rows else lower, upper)
        return rows

    def write(self, batch: Batch, frees: bool = False) -> int:
        """Write all of ``batch`` or nothing, and return the latest sequence number."""
        if self._refusal is not None:
            raise self._refusal
        deadline = 0.0
        while True:
            try:
                self._rows.write(self._prepared(batch))
                return self._rows.latest_sequence_number()
            except Exception as error:
                if not str(error).startswith("Result incomplete"):
                    raise _classified(error) from None
            now = time.monotonic()
            deadline = deadline or now + self._options.stall_seconds_max
            if now >= deadline:
                raise WriteStalled("compaction cannot keep up with the writes")
            time.sleep(0.001)

    def _prepared(self, batch: Batch) -> WriteBatch:
        prepared = WriteBatch(True)
        handles = self._handles
        for family, lower, upper in batch.ranges:
            prepared.delete_range(lower, upper, handles[family])
        put = prepared.put
        for puts, handle in zip(batch.puts, handles, strict=True):
            for key, value in puts.items():
                if value is None:
                    prepared.delete(key, handle)
                else:
                    put(key, value, handle)
        return prepared

    @property
    def sequence(self) -> int:
        """The sequence number of the latest write."""
        return self._rows.latest_sequence_number()

    def flush_wal(self) -> None:
        """fsync the log; releases the GIL."""
        self._rows.flush_wal(True)

    def flush(self) -> None:
        """Write all that is in memory into table files."""
        for family in self._families:
            family.flush(True)

    def checkpoint(self, target: Path) -> None:
        """Write a consistent copy of the store, sharing its table files where it can."""
        self.flush()
        Checkpoint(self._rows).create_checkpoint(str(target))

    def compact(self) -> None:
        """Compact every column family."""
        for family in self._families:
            family.compact_range(None, None)

    def property_int(self, name: str, family: int) -> int:
        """Return a numeric property of RocksDB for one column family."""
        return self._families[family].property_int_value(name) or 0

    def statistics(self) -> dict[str, Any]:
        """Return sizes and counts for people to read."""
        names = ("rocksdb.estimate-num-keys", "rocksdb.total-sst-files-size")
        return {
            title: {name: self.property_int(name, family) for name in names}
            for family, title in enumerate(FAMILY_NAMES)
        }

    def size_on_disk(self) -> int:
        """Return the bytes of all files of the store."""
        return sum(entry.stat().st_size for entry in os.scandir(self.directory))

    def verify(self) -> int:
        """Read every row of every column family and check its checksums; return their number."""
        count = 0
        for family in self._families:
            rows = family.iter()
            rows.seek_to_first()
            while rows.valid():
                count += 1
                rows.next()
            try:
                rows.status()
            except Exception as error:
                raise _classified(error) from None
        return count

    def close(self) -> None:
        """Close the store; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._refusal = StoreClosed("the store is closed")
        for family in self._families:
            family.close()
        self._handles.clear()
        self._families.clear()
        self._rows.close()


def _classified(error: Exception) -> StoreError | Corruption:
    text = str(error)
    if text.startswith("Corruption"):
        return Corruption(text)
    return StoreError(text)
