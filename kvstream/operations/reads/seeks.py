"""Reads of many streams by one iterator.

Opening an iterator costs several times as much as reading a row, so one iterator (``Seeks``) serves
all streams of an XREAD. It sees the store as it was when it was opened, if the transaction has
changed nothing.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeAlias

from kvstream.errors import Corruption, quote
from kvstream.layout.keys import ID_BYTES, key_of
from kvstream.layout.rows import EncodedEntries, Rows
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.operations.reads.limits import memory_of
from kvstream.storage.batch import Family, Row, Seeks
from kvstream.storage.reads import Snapshot
from kvstream.types.ids import PACKED, StreamID
from kvstream.types.thresholds import Thresholds

PAGE_BYTES = 64 << 10
"""The bytes after which ``Seeks`` end a page."""

Items: TypeAlias = list[tuple[bytes, "Rows | EncodedEntries | Iterator[int | Rows | None]"]]
"""Keys and their entries, which come in steps if they may be many."""
Steps: TypeAlias = Iterator[int | Items | None]


Part: TypeAlias = tuple[bytes, bytes, StreamID, StreamID, StreamID]
"""A read of one stream: name, prefix, first and last ID at that moment, and the ID to read after.
A tuple, since they are made while all other commands wait.
"""


def find_parts(txn: Txn, parts: Sequence[tuple[bytes, StreamID]]) -> list[Part]:
    """Return the parts of streams that may have entries; WrongType for another kind of key."""
    known, find = txn.catalog.streams, txn.stream
    result = []
    for name, after in parts:
        stream = known.get(name)
        if stream is None or stream.expire_at:
            stream = find(name)
            if stream is None:
                continue
        last = stream.last
        if after < last and stream.length:
            result.append((name, stream.prefix, stream.first, last, after))
    return result


def seek_snapshot(txn: Txn) -> Seeks:
    """Return an iterator for later reads; it sees the transaction's changes up to now."""
    if not txn.dirty:
        return txn.batch.seeks(Family.MESSAGES)
    return txn.batch.copy_onto(partial(Snapshot, families=(Family.MESSAGES,))).seeks(
        Family.MESSAGES
    )


def part_of(name: bytes, stream: StreamMeta, after: StreamID) -> Part:
    """Return the part of one stream."""
    return name, stream.prefix, stream.first, stream.last, after


def _read(seeks: Seeks, part: Part, most: int) -> list[Row]:
    """Return the first rows of a part: up to ``most``, or 64 KB."""
    _, prefix, first, last, after = part
    if after >= first:
        first = after.next()
    return seeks.send((prefix + PACKED(*first), prefix + PACKED(*last), most))


def read_part(sizes: Thresholds, seeks: Seeks, part: Part, count: int | None) -> Rows | None:
    """Return all entries of a part; None if there may be more than one page."""
    most = sizes.seek_rows if count is None or count > sizes.seek_rows else count
    page = _read(seeks, part, most)
    if len(page) != count and (len(page) == most or _is_cut(page)):
        return None
    return Rows(page, len(part[1]))


def _is_cut(page: list[Row]) -> bool:
    """Return whether a page may have ended because of its bytes."""
    return sum([len(value) for _, value in page]) >= PAGE_BYTES


def read_parts(
    sizes: Thresholds, seeks: Seeks, parts: Sequence[Part], count: int | None, bytes_max: int
) -> list[tuple[bytes, Rows]] | None:
    """Return the key and entries of each part that has any; None if they exceed a limit."""
    found, rows_max = [], sizes.short_rows
    for part in parts:
        rows = read_part(sizes, seeks, part, count)
        if rows is None:
            return None
        if rows.page:
            rows_max -= len(rows)
            bytes_max -= memory_of(rows.page)
            found.append((key_of(part[0]), rows))
        if rows_max < 0 or bytes_max < 0:
            return None
    return found


def step_parts(
    sizes: Thresholds, seeks: Seeks, parts: Sequence[Part], count: int | None
) -> Steps | None:
    """Return the steps of the entries of each part; None if there are none at all."""
    for at, part in enumerate(parts):
        if _read(seeks, part, 1):
            return _steps(sizes, seeks, parts[at:], count)
    return None


def _steps(sizes: Thresholds, seeks: Seeks, parts: Sequence[Part], count: int | None) -> Steps:
    found: list[Part] = []
    for at in range(0, len(parts), sizes.searched_streams):
        searched = parts[at : at + sizes.searched_streams]
        found += [part for part in searched if part[4] < part[2] or _read(seeks, part, 1)]
        yield None
    yield len(found)
    for at in range(0, len(found), sizes.returned_streams):
        returned = found[at : at + sizes.returned_streams]
        yield [(key_of(part[0]), _read_or_step(sizes, seeks, part, count)) for part in returned]


def _read_or_step(
    sizes: Thresholds, seeks: Seeks, part: Part, count: int | None
) -> "Rows | Iterator[int | Rows | None]":
    rows = read_part(sizes, seeks, part, count)
    if rows is None:
        return _step_part(sizes, seeks, part, count)
    if not rows.page:
        raise Corruption(f"the stream {quote(key_of(part[0]))} has lost its first entry")
    return rows


def _step_part(
    sizes: Thresholds, seeks: Seeks, part: Part, count: int | None
) -> Iterator[int | Rows | None]:
    """Yield the number of entries of a part, and then the entries."""
    total = 0
    for page in _pages(sizes.seek_rows, seeks, part, count):
        total += len(page)
        yield None
    yield total
    for page in _pages(sizes.seek_rows, seeks, part, count):
        yield Rows(page, len(part[1]))


def _pages(rows_max: int, seeks: Seeks, part: Part, left: int | None) -> Iterator[list[Row]]:
    name, prefix, first, last, after = part
    while after < last and (left is None or left > 0):
        most = rows_max if left is None else min(left, rows_max)
        page = _read(seeks, (name, prefix, first, last, after), most)
        if not page:
            return
        yield page
        after = StreamID.unpack(page[-1][0][-ID_BYTES:])
        left = None if left is None else left - len(page)
