"""Trees: sorted rows under a tree ID, kept in memory as a whole while they are few.

A queue writes and deletes pending rows all the time. In RocksDB each deleted row stays as a
tombstone that a scan must step over until a compaction removes it. So a tree of up to
``cached_rows`` rows (``Thresholds``) is kept in memory, decoded: its reads meet no tombstone. A
larger tree is read from disk. Either way the disk has every row, in the batch of the command that
wrote it. A row in memory is encoded once a commit, however often it changed: one that was made and
deleted is never written.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from typing import Generic, TypeVar

from kvstream.layout.keys import successor, tree_prefix
from kvstream.meta.compiled import plain
from kvstream.storage.batch import Batch, Family, Row
from kvstream.types.thresholds import Thresholds

T = TypeVar("T")

CACHED_BYTES, ROW_BYTES = 1 << 24, 64
"""Bytes of the values of a tree that is loaded into memory: as many IDs as a group may keep, and
ROW_BYTES more for each row."""

LOADS_TRIED, LOADS_DOUBLED = 3, 3
"""A tree that shrinks is loaded again after ``cached_rows`` / 2 deletions. After the first number
of loads that failed the deletions between two are doubled, this many times."""

_PAGE_ROWS = 1 << 10

_TREES = Family.TREES


class SortedKeys:
    """Distinct keys in ascending order, in chunks, so that a change moves few of them."""

    __slots__ = ("_chunks", "_firsts", "_sizes")

    def __init__(self, sizes: Thresholds, keys: Sequence[bytes] = ()) -> None:
        """``keys`` are in ascending order."""
        self._sizes = sizes
        self._fill(keys)

    def _fill(self, keys: Sequence[bytes]) -> None:
        size = self._sizes.chunk_keys
        self._chunks = [list(keys[at : at + size]) for at in range(0, len(keys), size)]
        """None of them is empty."""
        self._firsts = [chunk[0] for chunk in self._chunks]

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self._chunks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SortedKeys) and list(self) == list(other)

    def floor(self, key: bytes) -> bytes | None:
        """Return the last key at or below ``key``."""
        at = bisect_right(self._firsts, key) - 1
        if at < 0:
            return None
        chunk = self._chunks[at]
        return chunk[bisect_right(chunk, key) - 1]

    def ceiling(self, key: bytes) -> bytes | None:
        """Return the first key at or above ``key``."""
        at = bisect_right(self._firsts, key) - 1
        if at >= 0:
            chunk = self._chunks[at]
            place = bisect_left(chunk, key)
            if place < len(chunk):
                return chunk[place]
        return self._firsts[at + 1] if at + 1 < len(self._firsts) else None

    def scan(self, start: bytes) -> Iterator[bytes]:
        """Yield the keys at or above ``start``; keys may change meanwhile."""
        key = self.ceiling(start)
        while key is not None:
            yield key
            key = self.ceiling(key + b"\0")

    def last(self) -> bytes | None:
        """Return the greatest key."""
        return self._chunks[-1][-1] if self._chunks else None

    def ends(self) -> tuple[bytes, bytes] | None:
        """Return the least and the greatest key; None if there is no key."""
        chunks = self._chunks
        return (chunks[0][0], chunks[-1][-1]) if chunks else None

    def add(self, key: bytes) -> None:
        """Add a key that is not there."""
        firsts, chunks = self._firsts, self._chunks
        if not chunks:
            chunks.append([key])
            firsts.append(key)
            return
        at, chunk = len(chunks) - 1, chunks[-1]
        if key > chunk[-1]:  # most keys
            chunk.append(key)
        else:
            at = max(bisect_right(firsts, key) - 1, 0)
            chunk = chunks[at]
            insort(chunk, key)
            firsts[at] = chunk[0]
        size = self._sizes.chunk_keys
        if len(chunk) >= 2 * size:
            chunks[at : at + 1] = chunk[:size], chunk[size:]
            firsts.insert(at + 1, chunk[size])

    def remove(self, key: bytes) -> None:
        """Remove a key that is there."""
        at = bisect_right(self._firsts, key) - 1
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, key)]
        if not chunk:
            del self._chunks[at], self._firsts[at]
        elif self._firsts[at] == key:
            self._firsts[at] = chunk[0]

    def add_all(self, keys: Collection[bytes]) -> None:
        """Add keys that are not there."""
        if len(keys) * self._sizes.sparse_keys < len(self):
            for key in keys:
                self.add(key)
        else:
            self._fill(sorted([*self, *keys]))

    def remove_all(self, keys: Collection[bytes]) -> None:
        """Remove keys that are there."""
        if len(keys) * self._sizes.sparse_keys < len(self):
            for key in keys:
                self.remove(key)
        else:
            gone = frozenset(keys)
            self._fill([key for key in self if key not in gone])

    def copy(self) -> "SortedKeys":
        return SortedKeys(self._sizes, list(self))


class SortedRows(Generic[T]):
    """Rows in memory, sorted by suffix."""

    __slots__ = ("items", "keys")

    def __init__(self, sizes: Thresholds, items: dict[bytes, T]) -> None:
        """``items`` are in ascending order."""
        self.items = items
        self.keys = SortedKeys(sizes, list(items))


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
        "_failures",
        "_sizes",
        "_tried",
        "id",
        "memory",
        "prefix",
        "room",
    )

    def __init__(
        self,
        tree_id: int,
        decode: Callable[[bytes, bytes], T],
        encode: Callable[[T], bytes],
        sizes: Thresholds,
        new: bool = False,
    ) -> None:
        self.id = tree_id
        self.prefix = tree_prefix(tree_id)
        self._decode, self._encode, self._sizes = decode, encode, sizes
        self._changed: dict[bytes, bool] = {}
        """Rows in memory that changed and are not in the batch yet: whether they exist in it."""
        self.memory: SortedRows[T] | None = SortedRows(sizes, {}) if new else None
        """All rows, or None if they are too many or not loaded."""
        self._tried = new
        """Whether a tree that is not in memory is known to be too large for it."""
        self.room = 0
        """Rows that are kept in memory if they are more than ``cached_rows``."""
        self._deletes = 0
        self._failures = 0
        """How often in a row its rows were too many to load."""

    def _load(self, batch: Batch) -> SortedRows[T] | None:
        """Return the rows in memory; load them if that was never tried."""
        if not self._tried:
            self._tried = True
            rows = self._few_rows(batch)
            if rows is not None:
                start = len(self.prefix)
                decode = self._decode
                items = {key[start:]: decode(key[start:], value) for key, value in rows}
                self.memory = SortedRows(self._sizes, items)
            self._failures = self._failures + 1 if rows is None else 0
            self.room = 0 if rows is None else min(self.room, len(rows))
        return self.memory

    def _may_be_small(self) -> bool:
        """Return whether so many rows were deleted on disk that it is to be loaded again.

        A load that fails has read ``cached_rows`` rows: for a very large tree it is tried less
        often.
        """
        doubled = min(max(0, self._failures - LOADS_TRIED), LOADS_DOUBLED)
        return self._deletes > self._sizes.cached_rows // 2 << doubled

    def _few_rows(self, batch: Batch) -> list[Row] | None:
        """Return all rows, or None if they are too many for memory."""
        rows: list[Row] = []
        size, most = 0, max(self.room, self._sizes.cached_rows)
        lower, upper = self.prefix, successor(self.prefix)
        while page := batch.page(_TREES, lower, upper, _PAGE_ROWS):
            rows += page
            size += sum(len(value) for _, value in page)
            if len(rows) > most or size > CACHED_BYTES + ROW_BYTES * len(rows):
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
        changed.setdefault(suffix, exists)

    def _put_changed(self, batch: Batch) -> None:
        """Put the rows that changed in memory into the batch."""
        if not self._changed or (plain is not None and plain.put_changed(self, batch)):
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
        return memory is not None and len(memory.items) + count <= max(
            self.room, self._sizes.cached_rows
        )

    def large_rows(self) -> int:
        """Return the number of rows in memory if they are more than ``cached_rows``, else 0."""
        count = 0 if self.memory is None else len(self.memory.items)
        return count if count > self._sizes.cached_rows else 0

    def is_small(self) -> bool:
        """Return whether the tree is in memory and takes no more than half of its limit."""
        return self.memory is not None and len(self.memory.items) <= self._sizes.cached_rows // 2

    def begin(self, batch: Batch) -> None:
        """Begin as an empty tree without reading the disk."""
        self._put_changed(batch)
        self.memory, self._tried, self._deletes = SortedRows(self._sizes, {}), True, 0

    def fill(self: "Tree[bytes]", batch: Batch, suffixes: list[bytes]) -> None:
        """Write empty rows, in ascending order, into an empty tree whose items are its suffixes."""
        prefix = self.prefix
        self._put_changed(batch)
        batch.puts[_TREES].update(dict.fromkeys([prefix + suffix for suffix in suffixes], b""))
        few = len(suffixes) <= self._sizes.cached_rows
        items = SortedRows(self._sizes, dict(zip(suffixes, suffixes, strict=True))) if few else None
        self.memory, self._tried, self._deletes = items, True, 0

    def leave_memory(self, batch: Batch) -> None:
        """Read from disk from now on, until many rows have been deleted."""
        self._put_changed(batch)
        self.memory, self._tried, self._deletes, self.room = None, True, 0, 0

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
        return list(memory.keys) == list(items) and memory.items == items

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
        items = memory.items
        exists = suffix in items
        if suffix not in self._changed:
            self._defer(batch, suffix, exists)
        items[suffix] = item
        if not exists:
            memory.keys.add(suffix)
            if len(items) > self._sizes.cached_rows and len(items) > self.room:
                self.leave_memory(batch)

    def put_all(self, batch: Batch, rows: dict[bytes, T]) -> None:
        """Write many new rows; the tree is in memory and has room for them."""
        self._put_changed(batch)
        puts, prefix, memory = batch.puts[_TREES], self.prefix, self.memory
        assert memory is not None
        encode = self._encode
        puts.update({prefix + suffix: encode(item) for suffix, item in rows.items()})
        memory.items.update(rows)
        memory.keys.add_all(rows)

    def delete(self, batch: Batch, suffix: bytes) -> None:
        memory = self.memory or self._load(batch)
        if memory is not None:
            if suffix in memory.items:
                self._defer(batch, suffix, True)
                del memory.items[suffix]
                memory.keys.remove(suffix)
            return
        batch.puts[_TREES][self.prefix + suffix] = None
        self._deletes += 1
        if self._may_be_small():
            self.reload(batch)

    def delete_all(self, batch: Batch, suffixes: list[bytes]) -> None:
        """Delete many existing rows; the tree is in memory."""
        self._put_changed(batch)
        prefix, memory = self.prefix, self.memory
        assert memory is not None
        batch.puts[_TREES].update(dict.fromkeys([prefix + suffix for suffix in suffixes]))
        for suffix in suffixes:
            del memory.items[suffix]
        memory.keys.remove_all(suffixes)

    def replace(
        self,
        batch: Batch,
        gone: list[bytes],
        rows: Mapping[bytes, T],
        values: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """Delete many rows and write many others, some of which may exist.

        ``values`` are the values of ``rows``, if the caller has encoded them.
        """
        self._put_changed(batch)
        memory = self.memory or self._load(batch)
        puts, prefix = batch.puts[_TREES], self.prefix
        if memory is not None and len(gone) >= self._sizes.stretch_rows:
            gone_alone = self._clear_stretches(batch, memory.keys, set(gone))
        else:
            gone_alone = gone
        puts.update(dict.fromkeys([prefix + suffix for suffix in gone_alone]))
        if values is None:
            values = {suffix: self._encode(item) for suffix, item in rows.items()}
        puts.update({prefix + suffix: value for suffix, value in values.items()})
        if memory is None:
            self._deletes += len(gone)
            if self._may_be_small():
                self.reload(batch)
            return
        items = memory.items
        memory.keys.remove_all([key for key in gone if items.pop(key, None) is not None])
        memory.keys.add_all([suffix for suffix in rows if suffix not in items])
        items.update(rows)
        if len(items) > max(self.room, self._sizes.cached_rows):
            self.leave_memory(batch)

    def _clear_stretches(self, batch: Batch, keys: SortedKeys, gone: set[bytes]) -> list[bytes]:
        """Delete long sequences of adjacent rows as ranges; return the other rows."""
        alone: list[bytes] = []
        for is_gone, same in groupby(keys, gone.__contains__):
            if is_gone:
                stretch = list(same)
                if len(stretch) < self._sizes.stretch_rows:
                    alone += stretch
                else:
                    upper = self.prefix + stretch[-1] + b"\0"
                    batch.delete_range(_TREES, self.prefix + stretch[0], upper)
        return alone

    def is_next(self, one: bytes, other: bytes) -> bool:
        """Return whether a row is known to follow another directly."""
        memory = self.memory
        return memory is not None and memory.keys.ceiling(one + b"\0") == other

    def floor(self, batch: Batch, suffix: bytes) -> T | None:
        """Return the item of the last row at or below ``suffix``."""
        memory = self.memory or self._load(batch)
        if memory is not None:
            key = memory.keys.floor(suffix)
            return None if key is None else memory.items[key]
        return next(self._on_disk(batch, b"", suffix + b"\x00", reverse=True), None)

    def last(self, batch: Batch) -> T | None:
        """Return the item of the last row."""
        memory = self.memory or self._load(batch)
        if memory is not None:
            key = memory.keys.last()
            return None if key is None else memory.items[key]
        return next(self._on_disk(batch, b"", None, reverse=True), None)

    def ends(self, batch: Batch) -> tuple[T, T] | None:
        """Return the items of the first and the last row; None if there is no row."""
        memory = self.memory or self._load(batch)
        if memory is not None:
            keys = memory.keys.ends()
            return None if keys is None else (memory.items[keys[0]], memory.items[keys[1]])
        first, last = self.first(batch), self.last(batch)
        return None if first is None or last is None else (first, last)

    def first(self, batch: Batch, start: bytes = b"") -> T | None:
        """Return the item of the first row at or above ``start``."""
        memory = self.memory or self._load(batch)
        if memory is not None:
            key = memory.keys.ceiling(start)
            return None if key is None else memory.items[key]
        return next(self._on_disk(batch, start, None), None)

    def scan(self, batch: Batch, start: bytes = b"") -> Iterator[T]:
        """Yield the items at or above ``start``; rows already yielded may change meanwhile."""
        while (memory := self.memory or self._load(batch)) is not None:
            key = memory.keys.ceiling(start)
            if key is None:
                return
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
            values = [items[key] for key in memory.keys if key >= start]
            return [iter(values) for _ in range(times)]
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
        values = list(islice(self._on_disk(batch, start, None), limit))
        if not start and len(values) < limit:
            self._load(batch)
        return values

    def page(self, batch: Batch, start: bytes, limit: int) -> list[tuple[bytes, T]]:
        """Return the suffixes and items of the first ``limit`` rows at or above ``start``."""
        memory = self.memory or self._load(batch)
        if memory is not None:
            return [(key, memory.items[key]) for key in islice(memory.keys.scan(start), limit)]
        cut, upper = len(self.prefix), successor(self.prefix)
        rows = batch.page(_TREES, self.prefix + start, upper, limit)
        return [(key[cut:], self._decode(key[cut:], value)) for key, value in rows]

    def _on_disk(
        self, batch: Batch, start: bytes, end: bytes | None, reverse: bool = False
    ) -> Iterator[T]:
        upper = successor(self.prefix) if end is None else self.prefix + end
        cut = len(self.prefix)
        for key, value in batch.scan(_TREES, self.prefix + start, upper, reverse):
            yield self._decode(key[cut:], value)

    def drop(self, batch: Batch) -> None:
        """Delete every row of the tree, including those that cannot be decoded."""
        upper, most = successor(self.prefix), self._sizes.range_rows
        self._put_changed(batch)
        if self.memory is not None:
            keys = [self.prefix + suffix for suffix in islice(self.memory.keys, most)]
        else:
            keys = [key for key, _ in batch.page(_TREES, self.prefix, upper, most)]
        if len(keys) < most:
            batch.puts[_TREES].update(dict.fromkeys(keys))
        else:
            batch.delete_range(_TREES, self.prefix, upper)
        self.begin(batch)


def key_tree(tree_id: int, sizes: Thresholds, new: bool = False) -> Tree[bytes]:
    """Return a tree of rows without values, whose items are their suffixes."""
    return Tree(tree_id, lambda suffix, value: suffix, lambda item: b"", sizes, new)
