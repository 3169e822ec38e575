"""Work on whole column families: reading all rows, figures for people, care for range deletes.

The families are open ``rocksdict`` handles, given by ``database``.
"""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from operator import itemgetter
from typing import Any

from kvstream.storage.batch import Family
from kvstream.storage.write_guard import classify
from kvstream.types.thresholds import Thresholds

RANGE_DELETES_IN_MEMTABLE = 512
"""The next read after a range delete sorts all of the memtable's: 0.1 ms for these, 1 ms for 5000.

RocksDB's own memtable_max_range_deletions can be set only after opening, and then does not apply
to the memtable there is.
"""

DELETES_MAX, DELETES_LEFT = 1 << 14, 1 << 10
"""An iterator steps over the deleted rows of a memtable: 0.3 us each, backwards 4 us. In a table
they mark it for compaction. A memtable with the first number of them is flushed by the write that
finds it, one with the second by the expiry thread: 4,096 in the first place would cost a queue that
deletes its messages a third more processor time."""

_FIGURES = {
    "keys": "rocksdb.estimate-num-keys",
    "data_bytes": "rocksdb.estimate-live-data-size",
    "table_bytes": "rocksdb.total-sst-files-size",
    "large_value_bytes": "rocksdb.live-blob-file-size",
    "memtable_bytes": "rocksdb.cur-size-all-mem-tables",
    "memtable_deletes": "rocksdb.num-deletes-active-mem-table",
    "index_and_filter_bytes": "rocksdb.estimate-table-readers-mem",
    "pending_compaction_bytes": "rocksdb.estimate-pending-compaction-bytes",
}
_LEVELS = 7

RANGES_MAX = 1000
"""More deleted ranges than these are left to RocksDB as well."""

Range = tuple[bytes, bytes]


class RangeDeletes:
    """Flushes a memtable once it has many range deletes, and frees the space of large ones."""

    def __init__(self, families: list[Any], thresholds: Thresholds) -> None:
        self._families = families
        self._thresholds = thresholds
        self._counts = [0] * len(families)
        self._deleted: list[Range] = []
        """Ranges of MESSAGES that were deleted, and may have tables of their own."""

    def count(self, ranges: list[tuple[int, bytes, bytes]]) -> None:
        """Note the range deletes of a write that has succeeded."""
        for family, lower, upper in ranges:
            if family == Family.MESSAGES:
                self._deleted.append((lower, upper))
                if len(self._deleted) > RANGES_MAX:
                    self._deleted = unite(self._deleted)[-RANGES_MAX // 2 :]
            self._counts[family] += 1
            if self._counts[family] >= RANGE_DELETES_IN_MEMTABLE:
                self._counts[family] = 0
                # If this fails, RocksDB refuses the next write.
                with suppress(Exception):
                    self._families[family].flush(False)

    def take_large(self, any_size: bool) -> list[Range]:
        """Return the deleted ranges of MESSAGES that have large tables of their own, in slices.

        With ``any_size``: all deleted ranges. They are returned once. RocksDB would leave the
        tables until a compaction happens to come to them; the compaction of a slice drops them.
        """
        if not self._deleted:
            return []
        ranges, self._deleted = unite(self._deleted), []
        tables = sorted(self._families[0].live_files(), key=itemgetter("start_key"))
        starts = [table["start_key"] for table in tables]
        slices: list[Range] = []
        sizes = self._thresholds
        for lower, upper in ranges:
            among = tables[bisect_left(starts, lower) : bisect_left(starts, upper)]
            inside = [table for table in among if table["end_key"] < upper]
            if any_size or sum(table["size"] for table in inside) >= sizes.reclaim_bytes:
                slices += _slices(lower, upper, inside, sizes.slice_bytes)
            else:
                self._deleted.append((lower, upper))  # it may grow, and its tables come later
        return slices


def flush_deletes(families: list[Any], least: int) -> None:
    """Flush the memtables with many deleted rows, but for trees, whose rows are in memory."""
    for family in families[: Family.TREES]:
        deletes = family.property_int_value("rocksdb.num-deletes-active-mem-table") or 0
        if deletes < least:
            continue
        if family.property_int_value("rocksdb.num-immutable-mem-table"):
            continue  # a flush is under way, and the disk may be slow
        # If this fails, RocksDB refuses the next write.
        with suppress(Exception):
            family.flush(False)


def unite(ranges: list[Range]) -> list[Range]:
    """Return ranges, sorted, with those that overlap or touch as one."""
    result: list[Range] = []
    for lower, upper in sorted(ranges):
        if result and lower <= result[-1][1]:
            result[-1] = result[-1][0], max(result[-1][1], upper)
        else:
            result.append((lower, upper))
    return result


def _slices(
    lower: bytes, upper: bytes, tables: list[dict[str, Any]], slice_bytes: int
) -> Iterator[Range]:
    """Cut a range at its tables, which are sorted, into parts of some ``slice_bytes``."""
    size = 0
    for table in tables:
        if size >= slice_bytes:
            yield lower, table["start_key"]
            lower, size = table["start_key"], 0
        size += table["size"]
    yield lower, upper


def count_checked(family: Any, read_options: Any) -> int:
    """Read every row, and so check every block in use; return the number of rows."""
    try:
        count, rows = 0, family.iter(read_options)
        rows.seek_to_first()
        while rows.valid():
            count += 1
            rows.next()
        rows.status()
    except Exception as error:
        raise classify(error) from None
    finally:  # an error may be kept with this frame, and an iterator keeps RocksDB open
        rows = None
    return count


def figures(family: Any) -> dict[str, Any]:
    """Return the sizes and counts of one family; those of keys are RocksDB's estimates."""
    result: dict[str, Any] = {
        title: family.property_int_value(name) or 0 for title, name in _FIGURES.items()
    }
    levels = [
        family.property_value(f"rocksdb.num-files-at-level{level}") or "0"
        for level in range(_LEVELS)
    ]
    result["tables_per_level"] = [int(count) for count in levels]
    return result


def statistics(families: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of the column families, and those of all RocksDB."""
    first = next(iter(families.values()))
    return {
        "block_cache_bytes": first.property_int_value("rocksdb.block-cache-usage") or 0,
        "background_errors": first.property_int_value("rocksdb.background-errors") or 0,
        "families": {name: figures(family) for name, family in families.items()},
    }
