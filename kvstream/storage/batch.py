"""The puts and deletes of one commit, and reads that see them.

A batch knows rows and column families, nothing of streams. Range deletes are applied before the
puts and deletes of single rows: a row put after a range delete that covers it lives, and adding a
range drops the single changes inside it.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Generator, Iterator
from enum import IntEnum
from itertools import islice
from typing import Protocol, TypeAlias


class Family(IntEnum):
    """The column families of a store."""

    MESSAGES = 0
    METADATA = 1
    TREES = 2


Row = tuple[bytes, bytes]

Pages: TypeAlias = Generator[list[Row], int, None]
"""Rows of a range in order: an empty page first, then as many each time as are sent for."""

Seeks: TypeAlias = Generator[list[Row], tuple[bytes, bytes, int], None]
"""The first rows of each range that is sent for: by its first key, its last one, and how many rows
at most. An empty page has been taken from it."""


class Rows(Protocol):
    """What can be read of the committed rows."""

    def get(self, family: int, key: bytes) -> bytes | None: ...

    def get_many(self, family: int, keys: list[bytes]) -> list[bytes | None]: ...

    def scan(
        self, family: int, lower: bytes, upper: bytes, reverse: bool = False
    ) -> Iterator[Row]: ...

    def page(
        self, family: int, lower: bytes, upper: bytes, limit: int, reverse: bool = False
    ) -> list[Row]: ...

    def snapshot(
        self, family: int, lower: bytes, upper: bytes, reverse: bool = False
    ) -> Iterator[list[Row]]: ...

    def pages(self, family: int, lower: bytes, upper: bytes) -> Pages: ...

    def seeks(self, family: int) -> Seeks: ...


def pages_by(
    page_of: Callable[[int, bytes, bytes, int], list[Row]], family: int, lower: bytes, upper: bytes
) -> Pages:
    """Return the rows of ``lower <= key < upper`` by what reads the first ones of a range."""
    count = yield []
    while True:
        page = page_of(family, lower, upper, count)
        if page:
            lower = page[-1][0] + b"\0"
        count = yield page


_FEW = 8
"""So many new keys are put in their places one by one."""


class Batch:
    """Changes that will be written together, on top of the committed ``rows``."""

    __slots__ = ("_order", "_rows", "puts", "ranges")

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.puts: tuple[dict[bytes, bytes | None], ...] = ({}, {}, {})
        """Keys are only added here: what takes one out is ``delete_range``, and ``clear``."""
        self._order: tuple[list[bytes], ...] = ([], [], [])
        """Those keys that there were when one last looked between two, sorted."""
        self.ranges: list[tuple[int, bytes, bytes]] = []

    def __bool__(self) -> bool:
        return bool(self.puts[0] or self.puts[1] or self.puts[2] or self.ranges)

    def clear(self) -> None:
        """Drop all changes."""
        for puts in self.puts:
            if puts:
                puts.clear()
        for order in self._order:
            if order:
                order.clear()
        if self.ranges:
            self.ranges.clear()

    def put(self, family: int, key: bytes, value: bytes) -> None:
        self.puts[family][key] = value

    def delete(self, family: int, key: bytes) -> None:
        self.puts[family][key] = None

    def delete_range(self, family: int, lower: bytes, upper: bytes) -> None:
        """Delete every row of ``lower <= key < upper``, also those that this batch has put."""
        if lower >= upper:
            return  # RocksDB would fail on it after it has logged the batch
        puts = self.puts[family]
        if puts:
            order, first, end = self._between(family, lower, upper)
            for key in order[first:end]:
                del puts[key]
            del order[first:end]
        self.ranges.append((family, lower, upper))

    def get(self, family: int, key: bytes) -> bytes | None:
        puts = self.puts[family]
        if key in puts:
            return puts[key]
        if self.ranges and self._in_deleted_range(family, key):
            return None
        return self._rows.get(family, key)

    def get_many(self, family: int, keys: list[bytes]) -> list[bytes | None]:
        puts = self.puts[family]
        if self.ranges:
            return [self.get(family, key) for key in keys]
        if not puts:
            return self._rows.get_many(family, keys)
        found = iter(self._rows.get_many(family, [key for key in keys if key not in puts]))
        return [puts[key] if key in puts else next(found) for key in keys]

    def page(
        self, family: int, lower: bytes, upper: bytes, limit: int, reverse: bool = False
    ) -> list[Row]:
        """Return the first ``limit`` rows of ``lower <= key < upper``; in reverse, the last."""
        lower = self._behind_deleted(family, lower)
        if not self._touches(family, lower, upper):
            return self._rows.page(family, lower, upper, limit, reverse)
        return list(islice(self._merged(family, lower, upper, reverse), max(limit, 0)))

    def scan(self, family: int, lower: bytes, upper: bytes, reverse: bool = False) -> Iterator[Row]:
        """Yield the rows of ``lower <= key < upper``; the batch must not change meanwhile."""
        lower = self._behind_deleted(family, lower)
        if not self._touches(family, lower, upper):
            return self._rows.scan(family, lower, upper, reverse)
        return self._merged(family, lower, upper, reverse)

    def pages(self, family: int, lower: bytes, upper: bytes) -> Pages:
        """Return the same rows, with what the batch has by the time of each page."""
        return pages_by(self.page, family, lower, upper)

    def snapshot(
        self, family: int, lower: bytes, upper: bytes, reverse: bool = False
    ) -> Iterator[list[Row]]:
        """Yield the committed rows of ``lower <= key < upper`` as they are now, page by page.

        The batch must have changed nothing: what it has is not seen.
        """
        assert not self, "a snapshot has committed rows alone"
        return self._rows.snapshot(family, lower, upper, reverse)

    @property
    def committed(self) -> Rows:
        """The rows below: what is there, as the batch has changed nothing."""
        assert not self, "what is committed is not all that is there"
        return self._rows

    def seeks(self, family: int) -> Seeks:
        """Return what reads many ranges by one iterator; the batch must not change meanwhile.

        Where it has changed nothing they are those of one moment, whenever they are sent for.
        """
        found = self._rows.seeks(family)
        if not self:
            return found
        merged = self._merged_seeks(family, found)
        next(merged)
        return merged

    def _merged_seeks(self, family: int, found: Seeks) -> Seeks:
        page: list[Row] = []
        while True:
            lower, last, limit = yield page
            upper = last + b"\0"
            if self._touches(family, lower, upper):
                page = self.page(family, lower, upper, limit)
            else:
                page = found.send((lower, last, limit))

    def _between(self, family: int, lower: bytes, upper: bytes) -> tuple[list[bytes], int, int]:
        """Return the keys of all changes, sorted, and where those of ``lower <= key < upper`` are.

        A command may ask thousands of times, and change a row each time.
        """
        puts, order = self.puts[family], self._order[family]
        new = len(puts) - len(order)
        if new > _FEW:
            order += islice(reversed(puts), new)
            order.sort()
        elif new:
            for key in islice(reversed(puts), new):
                insort(order, key)
        first = bisect_left(order, lower)
        return order, first, bisect_left(order, upper, first)

    def _behind_deleted(self, family: int, lower: bytes) -> bytes:
        """Return where the rows from ``lower`` on begin that no range deletes which it is in."""
        for fam, low, high in self.ranges:
            if fam == family and low <= lower < high:
                _, first, end = self._between(family, lower, high)
                if first == end:
                    lower = high
        return lower

    def _touches(self, family: int, lower: bytes, upper: bytes) -> bool:
        if not self.puts[family] and not self.ranges:
            return False
        if self.puts[family]:
            _, first, end = self._between(family, lower, upper)
            if first < end:
                return True
        return bool(self.ranges) and any(
            fam == family and low < upper and lower < high for fam, low, high in self.ranges
        )

    def _in_deleted_range(self, family: int, key: bytes) -> bool:
        return any(fam == family and low <= key < high for fam, low, high in self.ranges)

    def _merged(self, family: int, lower: bytes, upper: bytes, reverse: bool) -> Iterator[Row]:
        puts = self.puts[family]
        order, first, end = self._between(family, lower, upper)
        places = range(end - 1, first - 1, -1) if reverse else range(first, end)
        changes = map(order.__getitem__, places)  # who looks for one row meets few of them
        own = next(changes, None)
        for key, value in self._rows.scan(family, lower, upper, reverse):
            while own is not None and (own > key if reverse else own < key):
                if (changed := puts[own]) is not None:
                    yield own, changed
                own = next(changes, None)
            if own == key:
                if (changed := puts[key]) is not None:
                    yield key, changed
                own = next(changes, None)
            elif not self._in_deleted_range(family, key):
                yield key, value
        while own is not None:
            if (changed := puts[own]) is not None:
                yield own, changed
            own = next(changes, None)
