"""What lies behind an ID in each of many streams, read by one iterator for all of them.

To begin an iterator, and to see that it has ended well, takes several times as long as to read a
row by one that is there. Where the transaction has changed nothing, all that is read, however
late, is of the moment in which the reading began.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeAlias

from kvstream.errors import Corruption, WrongType
from kvstream.ids import PACKED, StreamID
from kvstream.layout.keys import ID_BYTES
from kvstream.layout.rows import Rows
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.operations import entries
from kvstream.storage.batch import Family, Row, Seeks

PAGE_ROWS, PAGE_BYTES = 256, 64 << 10
"""Rows of one stream that are read at once; ``Seeks`` end a page behind as many bytes."""
TOGETHER, FEW_TOGETHER = 64, 16
"""Streams that one step looks into, for whether they have anything; and that one step gives."""
LONG_LOADING, LOADED_TOGETHER = 200, 50
"""Streams from which on they are loaded in steps, 50 us each; and those of one step."""

Items: TypeAlias = list[tuple[bytes, "Rows | Iterator[int | Rows | None]"]]
"""Keys and their entries, which come in steps where they may be many."""
Steps: TypeAlias = Iterator[int | Items | None]


class Part(NamedTuple):
    """What is wanted of one stream, by its bounds as they were."""

    key: bytes
    prefix: bytes
    first: StreamID
    """The first entry of the stream."""
    last: StreamID
    after: StreamID

    def read(self, seeks: Seeks, most: int) -> list[Row]:
        """Return the first rows, ``most`` of them or some 64 KB."""
        first = self.first if self.after < self.first else self.after.next()
        prefix = self.prefix
        return seeks.send((prefix + PACKED(*first), prefix + PACKED(*self.last), most))


_new_part = partial(tuple.__new__, Part)


def begin(txn: Txn) -> Seeks:
    """Return what the parts are read by."""
    return txn.batch.seeks(Family.MESSAGES)


def parts(txn: Txn, wanted: Sequence[tuple[bytes, StreamID]]) -> list[Part]:
    """Return the streams that may have something, in order; WrongType where one is none."""
    find, has_after = txn.stream, entries.has_after
    found = []
    for name, after in wanted:
        stream = find(name)
        if stream is not None and has_after(stream, after):
            found.append(part_of(name, stream, after))
    return found


class Loading:
    """Takes streams into memory that are not there, some of them in each step."""

    def __init__(self, txn: Txn, names: Sequence[bytes]) -> None:
        known = txn.catalog.streams
        self._left = [name for name in reversed(names) if name not in known]

    @property
    def is_long(self) -> bool:
        return len(self._left) > LONG_LOADING

    def step(self, txn: Txn) -> bool:
        """Load on; tell whether all are loaded that there are."""
        for name in self._left[-LOADED_TOGETHER:]:
            with suppress(WrongType):  # told by whoever reads it
                txn.stream(name)
        del self._left[-LOADED_TOGETHER:]
        return not self._left


def part_of(name: bytes, stream: StreamMeta, after: StreamID) -> Part:
    """Return what is wanted of a stream."""
    return _new_part((name[2:], stream.prefix, stream.first, stream.last, after))


def whole(seeks: Seeks, part: Part, count: int | None) -> Rows | None:
    """Return all that is wanted of a stream; None: there may be more than some rows."""
    most = PAGE_ROWS if count is None or count > PAGE_ROWS else count
    page = part.read(seeks, most)
    if len(page) != count and (len(page) == most or _is_cut(page)):
        return None
    return Rows(page, len(part.prefix))


def _is_cut(page: list[Row]) -> bool:
    """Tell whether a page may have ended for the bytes that it has."""
    return sum([len(value) for _, value in page]) >= PAGE_BYTES


def few(
    seeks: Seeks, wanted: Sequence[Part], count: int | None, rows_max: int, bytes_max: int
) -> list[tuple[bytes, Rows]] | None:
    """Return what there is of each stream; None: it is more rows, or more memory, than that."""
    found = []
    for part in wanted:
        rows = whole(seeks, part, count)
        if rows is None:
            return None
        if rows.page:
            rows_max -= len(rows)
            bytes_max -= entries.memory_of(rows.page)
            found.append((part.key, rows))
        if rows_max < 0 or bytes_max < 0:
            return None
    return found


def steps(seeks: Seeks, wanted: Sequence[Part], count: int | None) -> Steps | None:
    """Return the steps of what there is of each stream; None: there is nothing in any."""
    for at, part in enumerate(wanted):
        if part.read(seeks, 1):
            return _steps(seeks, wanted[at:], count)
    return None


def _steps(seeks: Seeks, wanted: Sequence[Part], count: int | None) -> Steps:
    there: list[Part] = []
    for at in range(0, len(wanted), TOGETHER):
        some = wanted[at : at + TOGETHER]
        there += [part for part in some if part.after < part.first or part.read(seeks, 1)]
        yield None
    yield len(there)
    for at in range(0, len(there), FEW_TOGETHER):
        yield [(part.key, _found(seeks, part, count)) for part in there[at : at + FEW_TOGETHER]]


def _found(seeks: Seeks, part: Part, count: int | None) -> "Rows | Iterator[int | Rows | None]":
    rows = whole(seeks, part, count)
    if rows is None:
        return _many(seeks, part, count)
    if not rows.page:
        raise Corruption(f"the stream {part.key!r} has lost its first entry")
    return rows


def _many(seeks: Seeks, part: Part, count: int | None) -> Iterator[int | Rows | None]:
    """Yield how many entries are wanted of a stream, and then these."""
    total = 0
    for page in _pages(seeks, part, count):
        total += len(page)
        yield None
    yield total
    for page in _pages(seeks, part, count):
        yield Rows(page, len(part.prefix))


def _pages(seeks: Seeks, part: Part, left: int | None) -> Iterator[list[Row]]:
    while left is None or left > 0:
        page = part.read(seeks, PAGE_ROWS if left is None else min(left, PAGE_ROWS))
        if not page:
            return
        yield page
        after = StreamID.unpack(page[-1][0][-ID_BYTES:])
        if after >= part.last:
            return
        part = part._replace(after=after)
        left = None if left is None else left - len(page)
