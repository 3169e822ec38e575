"""Trees: sorted rows under a tree ID, held in memory as a whole while they are few.

A queue puts and deletes pending rows all day long; in RocksDB each deleted row stays as a tombstone
that a scan must step over until compaction takes it away. A tree of up to CACHED_ROWS rows is
therefore kept in memory beside the disk: its reads touch no tombstone. A larger tree is read from
disk. Either way the disk has every row, in the batch of the command that made it.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from kvstream.layout.keys import successor, tree_prefix
from kvstream.storage.batch import Batch, Family, Row

CACHED_ROWS = 1 << 14
"""Rows of one tree kept in memory: a few megabytes at most, and a quick insertion anywhere."""

DELETE_RANGE_ROWS = 64
"""From this many rows on, one range delete is cheaper for later readers than single ones."""

_TREES = Family.TREES


class _SortedRows:
    """Rows in memory, sorted by suffix."""

    __slots__ = ("keys", "rows")

    def __init__(self, rows: dict[bytes, bytes]) -> None:
        """``rows`` stand in ascending order."""
        self.rows = rows
        self.keys = list(rows)

    def put(self, suffix: bytes, value: bytes) -> None:
        if suffix not in self.rows:
            if not self.keys or suffix > self.keys[-1]:
                self.keys.append(suffix)
            else:
                insort(self.keys, suffix)
        self.rows[suffix] = value

    def delete(self, suffix: bytes) -> None:
        if self.rows.pop(suffix, None) is not None:
            del self.keys[bisect_left(self.keys, suffix)]

    def floor(self, suffix: bytes) -> Row | None:
        at = bisect_right(self.keys, suffix)
        if at == 0:
            return None
        key = self.keys[at - 1]
        return key, self.rows[key]

    def ceiling(self, suffix: bytes) -> Row | None:
        at = bisect_left(self.keys, suffix)
        if at == len(self.keys):
            return None
        key = self.keys[at]
        return key, self.rows[key]


class Tree:
    """The rows of one tree; a suffix is a row's key without the tree's ID."""

    __slots__ = ("_deletes", "_memory", "_tried", "id", "prefix")

    def __init__(self, tree_id: int, new: bool = False) -> None:
        self.id = tree_id
        self.prefix = tree_prefix(tree_id)
        self._memory = _SortedRows({}) if new else None
        self._tried = new
        """Whether a tree that is not in memory is known to be too large for it."""
        self._deletes = 0

    def _cache(self, batch: Batch) -> _SortedRows | None:
        """Return the rows in memory, loading them where that was never tried."""
        if not self._tried:
            self._tried = True
            page = batch.page(_TREES, self.prefix, successor(self.prefix), CACHED_ROWS + 1)
            if len(page) <= CACHED_ROWS:
                start = len(self.prefix)
                self._memory = _SortedRows({key[start:]: value for key, value in page})
        return self._memory

    def get(self, batch: Batch, suffix: bytes) -> bytes | None:
        memory = self._cache(batch)
        if memory is not None:
            return memory.rows.get(suffix)
        return batch.get(_TREES, self.prefix + suffix)

    def put(self, batch: Batch, suffix: bytes, value: bytes) -> None:
        memory = self._cache(batch)
        batch.puts[_TREES][self.prefix + suffix] = value
        if memory is not None:
            memory.put(suffix, value)
            if len(memory.keys) > CACHED_ROWS:
                self._memory = None

    def delete(self, batch: Batch, suffix: bytes) -> None:
        memory = self._cache(batch)
        batch.puts[_TREES][self.prefix + suffix] = None
        if memory is not None:
            memory.delete(suffix)
            return
        self._deletes += 1
        if self._deletes > CACHED_ROWS:  # the tree may have become small again
            self._deletes, self._tried = 0, False

    def floor(self, batch: Batch, suffix: bytes) -> Row | None:
        """Return the last row at or below ``suffix``."""
        memory = self._cache(batch)
        if memory is not None:
            return memory.floor(suffix)
        return next(self._on_disk(batch, b"", suffix + b"\x00", reverse=True), None)

    def first(self, batch: Batch, start: bytes = b"") -> Row | None:
        """Return the first row at or above ``start``."""
        memory = self._cache(batch)
        if memory is not None:
            return memory.ceiling(start)
        return next(self._on_disk(batch, start, None), None)

    def scan(self, batch: Batch, start: bytes = b"") -> Iterator[Row]:
        """Yield the rows at or above ``start``; rows already yielded may change meanwhile."""
        while (memory := self._cache(batch)) is not None:
            row = memory.ceiling(start)
            if row is None:
                return
            yield row
            start = row[0] + b"\x00"
        yield from self._on_disk(batch, start, None)

    def _on_disk(
        self, batch: Batch, start: bytes, end: bytes | None, reverse: bool = False
    ) -> Iterator[Row]:
        upper = successor(self.prefix) if end is None else self.prefix + end
        cut = len(self.prefix)
        for key, value in batch.scan(_TREES, self.prefix + start, upper, reverse):
            yield key[cut:], value

    def drop(self, batch: Batch) -> None:
        """Delete every row of the tree."""
        memory = self._cache(batch)
        if memory is not None and len(memory.keys) < DELETE_RANGE_ROWS:
            puts = batch.puts[_TREES]
            for suffix in memory.keys:
                puts[self.prefix + suffix] = None
        else:
            batch.delete_range(_TREES, self.prefix, successor(self.prefix))
        self._memory, self._tried = _SortedRows({}), True
