"""Trees: sorted rows under a tree ID, kept in memory as a whole while they are few.

A queue writes and deletes pending rows all the time. In RocksDB each deleted row stays as a
tombstone that a scan must step over until a compaction removes it. So a tree of up to CACHED_ROWS
rows is kept in memory, decoded: its reads meet no tombstone. A larger tree is read from disk.
Either way the disk has every row, in the batch of the command that wrote it. A row in memory is
encoded once a commit, however often it changed: one that was made and deleted is never written.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby, islice
from typing import Generic, TypeVar

from kvstream.layout.keys import successor, tree_prefix
from kvstream.storage.batch import Batch, Family, Row

T = TypeVar("T")

CACHED_ROWS = 1 << 14
"""Rows of one tree kept in memory, with a quick insertion anywhere: 8 MB if each has one ID."""

CACHED_BYTES = 1 << 22
"""Bytes of the values of a tree that is loaded into memory: as many IDs as a group may keep."""

_PAGE_ROWS = 1 << 10

DELETE_RANGE_ROWS = 64
"""From this number of rows on, one range delete is cheaper for later readers than single ones."""

_STRETCH = 512
"""Adjacent rows that are deleted as a range among others that stay."""

SPARSE = 64
"""Keys are changed one by one in a sorted list that has more than this many times as many."""

_TREES = Family.TREES


class SortedRows(Generic[T]):
    """Rows in memory, sorted by suffix."""

    __slots__ = ("items", "keys")

    def __init__(self, items: dict[bytes, T]) -> None:
        """``items`` are in ascending order."""
        self.items = items
        self.keys = list(items)


def _remove_keys(memory: SortedRows[T], gone: list[bytes]) -> None:
    """Remove the keys of rows whose items were removed."""
    keys, items = memory.keys, memory.items
    if len(gone) * SPARSE < len(keys):
        for key in gone:
            del keys[bisect_left(keys, key)]
    else:
        memory.keys = [key for key in keys if key in items]


class Tree(Generic[T]):
    """The rows of one tree; a suffix is a row's key without the tree's ID.

    ``decode`` makes an item, which reads return, from a row's suffix and value; ``encode`` makes
    the value of an item.
    """

    __slots__ = (
        "_changed",
        "_decode",
        "_deletes",
        "_encode",
        "_tried",
        "id",
        "memory",
        "prefix",
    )

    def __init__(
        self,
        tree_id: int,
        decode: Callable[[bytes, bytes], T],
        encode: Callable[[T], bytes],
        new: bool = False,
    ) -> None:
        self.id = tree_id
        self.prefix = tree_prefix(tree_id)
        self._decode, self._encode = decode, encode
        self._changed: dict[bytes, bool] = {}
        """Rows in memory that changed and are not in the batch yet: whether they exist in it."""
        self.memory: SortedRows[T] | None = SortedRows({}) if new else None
        """All rows, or None if they are too many or not loaded."""
        self._tried = new
        """Whether a tree that is not in memory is known to be too large for it."""
        self._deletes = 0

    def _load(self, batch: Batch) -> SortedRows[T] | None:
        """Return the rows in memory; load them if that was never tried."""
        if not self._tried:
            self._tried = True
            rows = self._few_rows(batch)
            if rows is not None:
                start = len(self.prefix)
                decode = self._decode
                self.memory = SortedRows(
                    {key[start:]: decode(key[start:], value) for key, value in rows}
                )
        return self.memory

    def _few_rows(self, batch: Batch) -> list[Row] | None:
        """Return all rows, or None if they are too many for memory."""
        rows: list[Row] = []
        size = 0
        lower, upper = self.prefix, successor(self.prefix)
        while page := batch.page(_TREES, lower, upper, _PAGE_ROWS):
            rows += page
            size += sum(len(value) for _, value in page)
            if len(rows) > CACHED_ROWS or size > CACHED_BYTES:
                return None
            if len(page) < _PAGE_ROWS:
                break
            lower = page[-1][0] + b"\x00"
        return rows

    # --- rows that changed in memory ------------------------------------------------------------

    def _defer(self, batch: Batch, suffix: bytes, exists: bool) -> None:
        """Put or delete a row, which is changed in memory, when the batch is read or written."""
        changed = self._changed
        if not changed:
            batch.deferred.append(self._put_changed)
        if suffix not in changed:
            changed[suffix] = exists

    def _put_changed(self, batch: Batch) -> None:
        """Put the rows that changed in memory into the batch."""
        if not self._changed:
            return
        memory, prefix, puts, encode = self.memory, self.prefix, batch.puts[_TREES], self._encode
        assert memory is not None
        for suffix, exists in self._changed.items():
            item = memory.items.get(suffix)
            if item is not None:
                puts[prefix + suffix] = encode(item)
            elif exists:
                puts[prefix + suffix] = None
        self._changed.clear()

    # --- what is in memory ----------------------------------------------------------------------

    def has_room(self, batch: Batch, count: int = 1) -> bool:
        """Return whether the tree is in memory and has room for ``count`` more rows there."""
        memory = self.memory or self._load(batch)
        return memory is not None and len(memory.keys) + count <= CACHED_ROWS

    def is_small(self) -> bool:
        """Return whether the tree is in memory and takes no more than half of its limit."""
        return self.memory is not None and len(self.memory.keys) <= CACHED_ROWS // 2

    def begin(self, batch: Batch) -> None:
        """Begin as an empty tree without reading the disk."""
        self._put_changed(batch)
        self.memory, self._tried, self._deletes = SortedRows({}), True, 0

    def fill(self: "Tree[bytes]", batch: Batch, suffixes: list[bytes]) -> None:
        """Write empty rows, in ascending order, into an empty tree whose items are its suffixes."""
        prefix = self.prefix
        self._put_changed(batch)
        batch.puts[_TREES].update(dict.fromkeys([prefix + suffix for suffix in suffixes], b""))
        few = len(suffixes) <= CACHED_ROWS
        items = SortedRows(dict(zip(suffixes, suffixes, strict=True))) if few else None
        self.memory, self._tried, self._deletes = items, True, 0

    def leave_memory(self, batch: Batch) -> None:
        """Read from disk from now on, until many rows have been deleted."""
        self._put_changed(batch)
        self.memory, self._tried, self._deletes = None, True, 0

    def reload(self, batch: Batch) -> None:
        """Check again at the next use whether the rows are few enough for memory."""
        self._put_changed(batch)
        self.memory, self._tried, self._deletes = None, False, 0

    def clear(self, batch: Batch) -> None:
        """Delete every row as one range without reading the disk."""
        batch.delete_range(_TREES, self.prefix, successor(self.prefix))
        self.begin(batch)

    def agrees(self, rows: list[Row]) -> bool:
        """Return whether the tree, if in memory, has exactly these (suffix, value) rows."""
        memory = self.memory
        if memory is None:
            return True
        items = {suffix: self._decode(suffix, value) for suffix, value in rows}
        return memory.keys == list(items) and memory.items == items

    def get(self, batch: Batch, suffix: bytes) -> T | None:
        memory = self.memory or self._load(batch)
        if memory is not None:
            return memory.items.get(suffix)
        value = batch.get(_TREES, self.prefix + suffix)
        return None if value is None else self._decode(suffix, value)

    def put(self, batch: Batch, suffix: bytes, item: T) -> None:
        """Write a row."""
        memory = self.memory or self._load(batch)
        if memory is None:
            batch.puts[_TREES][self.prefix + suffix] = self._encode(item)
            return
        keys, exists = memory.keys, suffix in memory.items
        self._defer(batch, suffix, exists)
        memory.items[suffix] = item
        if not exists:
            if not keys or suffix > keys[-1]:
                keys.append(suffix)
            else:
                insort(keys, suffix)
            if len(keys) > CACHED_ROWS:
                self._put_changed(batch)
                self.memory = None

    def put_all(self, batch: Batch, rows: dict[bytes, T]) -> None:
        """Write many new rows; the tree is in memory and has room for them."""
        self._put_changed(batch)
        puts, prefix, memory = batch.puts[_TREES], self.prefix, self.memory
        assert memory is not None
        encode = self._encode
        puts.update({prefix + suffix: encode(item) for suffix, item in rows.items()})
        memory.items.update(rows)
        memory.keys += rows
        memory.keys.sort()

    def delete(self, batch: Batch, suffix: bytes) -> None:
        memory = self.memory or self._load(batch)
        if memory is not None:
            if suffix in memory.items:
                self._defer(batch, suffix, True)
                del memory.items[suffix]
                del memory.keys[bisect_left(memory.keys, suffix)]
            return
        batch.puts[_TREES][self.prefix + suffix] = None
        self._deletes += 1
        if self._deletes > CACHED_ROWS // 2:  # the tree may have become small again
            self.reload(batch)

    def delete_all(self, batch: Batch, suffixes: list[bytes]) -> None:
        """Delete many existing rows; the tree is in memory."""
        self._put_changed(batch)
        prefix, memory = self.prefix, self.memory
        assert memory is not None
        batch.puts[_TREES].update(dict.fromkeys([prefix + suffix for suffix in suffixes]))
        for suffix in suffixes:
            del memory.items[suffix]
        _remove_keys(memory, suffixes)

    def replace(
        self,
        batch: Batch,
        gone: list[bytes],
        rows: Mapping[bytes, T],
        values: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """Delete many rows and write many others, some of which may exist.

        ``values`` are all values of the others, if the caller has encoded them.
        """
        self._put_changed(batch)
        memory = self.memory or self._load(batch)
        puts, prefix = batch.puts[_TREES], self.prefix
        if memory is not None and len(gone) >= _STRETCH:
            gone_alone = self._clear_stretches(batch, memory.keys, set(gone))
        else:
            gone_alone = gone
        puts.update(dict.fromkeys([prefix + suffix for suffix in gone_alone]))
        if values is None:
            values = {suffix: self._encode(item) for suffix, item in rows.items()}
        puts.update({prefix + suffix: value for suffix, value in values.items()})
        if memory is None:
            self._deletes += len(gone)
            if self._deletes > CACHED_ROWS // 2:  # the tree may have become small again
                self.reload(batch)
            return
        items = memory.items
        _remove_keys(memory, [suffix for suffix in gone if items.pop(suffix, None) is not None])
        fresh = [suffix for suffix in rows if suffix not in items]
        if len(fresh) * SPARSE < len(memory.keys):
            for suffix in fresh:
                insort(memory.keys, suffix)
        else:
            memory.keys += fresh
            memory.keys.sort()
        items.update(rows)
        if len(memory.keys) > CACHED_ROWS:
            self.memory = None

    def _clear_stretches(self, batch: Batch, keys: list[bytes], gone: set[bytes]) -> list[bytes]:
        """Delete long sequences of adjacent rows as ranges; return the other rows."""
        alone: list[bytes] = []
        for is_gone, same in groupby(keys, gone.__contains__):
            if is_gone:
                stretch = list(same)
                if len(stretch) < _STRETCH:
                    alone += stretch
                else:
                    upper = self.prefix + stretch[-1] + b"\0"
                    batch.delete_range(_TREES, self.prefix + stretch[0], upper)
        return alone

    def is_next(self, one: bytes, other: bytes) -> bool:
        """Return whether a row is known to follow another directly."""
        memory = self.memory
        if memory is None:
            return False
        at = bisect_left(memory.keys, other)
        return at > 0 and memory.keys[at - 1] == one

    def floor(self, batch: Batch, suffix: bytes) -> T | None:
        """Return the item of the last row at or below ``suffix``."""
        memory = self.memory or self._load(batch)
        if memory is not None:
            at = bisect_right(memory.keys, suffix)
            return memory.items[memory.keys[at - 1]] if at else None
        return next(self._on_disk(batch, b"", suffix + b"\x00", reverse=True), None)

    def first(self, batch: Batch, start: bytes = b"") -> T | None:
        """Return the item of the first row at or above ``start``."""
        return next(self.scan(batch, start), None)

    def scan(self, batch: Batch, start: bytes = b"") -> Iterator[T]:
        """Yield the items at or above ``start``; rows already yielded may change meanwhile."""
        while (memory := self.memory or self._load(batch)) is not None:
            at = bisect_left(memory.keys, start)
            if at == len(memory.keys):
                return
            key = memory.keys[at]
            yield memory.items[key]
            start = key + b"\x00"
        yield from self._on_disk(batch, start, None)

    def all(self, batch: Batch) -> list[T]:
        """Return all items."""
        memory = self.memory or self._load(batch)
        if memory is not None:
            return [memory.items[key] for key in memory.keys]
        return list(self._on_disk(batch, b"", None))

    def snapshot(self, batch: Batch, start: bytes = b"", times: int = 1) -> list[Iterator[T]]:
        """Return iterators over the items at or above ``start``, as of this call."""
        memory = self.memory or self._load(batch)
        if memory is not None:
            items = memory.items
            found = [items[key] for key in memory.keys[bisect_left(memory.keys, start) :]]
            return [iter(found) for _ in range(times)]
        return [self._pages(batch, start) for _ in range(times)]

    def _pages(self, batch: Batch, start: bytes) -> Iterator[T]:
        cut, decode = len(self.prefix), self._decode
        pages = batch.snapshot(_TREES, self.prefix + start, successor(self.prefix))
        return (decode(key[cut:], value) for page in pages for key, value in page)

    def some(self, batch: Batch, start: bytes, limit: int) -> list[T]:
        """Return the first ``limit`` items at or above ``start``.

        If the tree is not in memory but has fewer rows than that, it is loaded, so that its
        tombstones are stepped over only once.
        """
        if self.memory is not None:
            return list(islice(self.scan(batch, start), limit))
        found = list(islice(self._on_disk(batch, start, None), limit))
        if not start and len(found) < limit:
            self._load(batch)
        return found

    def _on_disk(
        self, batch: Batch, start: bytes, end: bytes | None, reverse: bool = False
    ) -> Iterator[T]:
        upper = successor(self.prefix) if end is None else self.prefix + end
        cut = len(self.prefix)
        for key, value in batch.scan(_TREES, self.prefix + start, upper, reverse):
            yield self._decode(key[cut:], value)

    def drop(self, batch: Batch) -> None:
        """Delete every row of the tree, including those that cannot be decoded."""
        upper = successor(self.prefix)
        self._put_changed(batch)
        if self.memory is not None:
            keys = [self.prefix + suffix for suffix in self.memory.keys[:DELETE_RANGE_ROWS]]
        else:
            keys = [key for key, _ in batch.page(_TREES, self.prefix, upper, DELETE_RANGE_ROWS)]
        if len(keys) < DELETE_RANGE_ROWS:
            batch.puts[_TREES].update(dict.fromkeys(keys))
        else:
            batch.delete_range(_TREES, self.prefix, upper)
        self.begin(batch)


def key_tree(tree_id: int, new: bool = False) -> Tree[bytes]:
    """Return a tree of rows without values, whose items are their suffixes."""
    return Tree(tree_id, lambda suffix, value: suffix, lambda item: b"", new)
