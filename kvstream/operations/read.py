"""XREAD: the entries after given IDs in several streams.

``read`` serves short reads in one turn. Long ones are read in steps: opening an iterator costs
several times as much as reading a row, so one iterator (``Seeks``) serves all streams. It sees the
store as it was when it was opened, if the transaction has changed nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import TypeAlias

from kvstream.errors import Corruption, InvalidArgument, WrongType, quoted
from kvstream.layout.keys import ID_BYTES, key_of
from kvstream.layout.rows import Rows
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.operations import entries
from kvstream.operations import range as ranges
from kvstream.operations.plans import ALWAYS_HOLDS, Plan, Planning
from kvstream.operations.reply_limits import Budget, Room
from kvstream.storage.batch import Family, Row, Seeks
from kvstream.storage.reads import Snapshot
from kvstream.types.ids import MAX_ID, MIN_ID, PACKED, StreamID
from kvstream.types.records import Entry, HistoryEntry

PAGE_ROWS, PAGE_BYTES = 256, 64 << 10
"""The most rows of one stream that are read at once, and the bytes after which ``Seeks`` end a
page."""
TOGETHER, FEW_TOGETHER = 64, 16
"""Streams that one step searches for entries, and streams that one step returns."""

Items: TypeAlias = list[tuple[bytes, "Rows | Iterator[int | Rows | None]"]]
"""Keys and their entries, which come in steps if they may be many."""
Steps: TypeAlias = Iterator[int | Items | None]


Part: TypeAlias = tuple[bytes, bytes, StreamID, StreamID, StreamID]
"""A read of one stream: name, prefix, first and last ID at that moment, and the ID to read after.
A tuple, since they are made while all other commands wait.
"""


def begin(txn: Txn) -> Seeks:
    """Return the iterator that reads the parts."""
    return txn.batch.seeks(Family.MESSAGES)


def parts(txn: Txn, wanted: Sequence[tuple[bytes, StreamID]]) -> list[Part]:
    """Return the parts of streams that may have entries; WrongType for another kind of key."""
    known, find = txn.catalog.streams, txn.stream
    result = []
    for name, after in wanted:
        stream = known.get(name)
        if stream is None or stream.expire_at:
            stream = find(name)
            if stream is None:
                continue
        last = stream.last
        if after < last and stream.length:
            result.append((name, stream.prefix, stream.first, last, after))
    return result


def begin_snapshot(txn: Txn) -> Seeks:
    """Return an iterator for later reads; it sees the transaction's changes up to now."""
    if not txn.dirty:
        return begin(txn)
    return txn.batch.copied(partial(Snapshot, families=(Family.MESSAGES,))).seeks(Family.MESSAGES)


def plan_loading_streams(txn: Txn, names: Sequence[bytes]) -> Plan[bool] | None:
    """Plan loading streams into memory; None if that needs no steps."""
    known = txn.catalog.streams
    left = [name for name in names if name not in known]
    if len(names) <= txn.thresholds.long_read and len(left) <= txn.thresholds.long_loading:
        return None

    def plan(txn: Txn) -> Planning[bool]:
        for at, name in enumerate(left):
            if at and not at % txn.thresholds.loaded_together:
                txn = yield ALWAYS_HOLDS
            with suppress(WrongType):  # whoever reads it raises the error
                txn.stream(name)
        return True

    return plan


def part_of(name: bytes, stream: StreamMeta, after: StreamID) -> Part:
    """Return the part of one stream."""
    return name, stream.prefix, stream.first, stream.last, after


def _read(seeks: Seeks, part: Part, most: int) -> list[Row]:
    """Return the first rows, up to ``most`` or 64 KB."""
    _, prefix, first, last, after = part
    if after >= first:
        first = after.next()
    return seeks.send((prefix + PACKED(*first), prefix + PACKED(*last), most))


def whole(seeks: Seeks, part: Part, count: int | None) -> Rows | None:
    """Return all entries of a part; None if there may be more than one page."""
    most = PAGE_ROWS if count is None or count > PAGE_ROWS else count
    page = _read(seeks, part, most)
    if len(page) != count and (len(page) == most or _is_cut(page)):
        return None
    return Rows(page, len(part[1]))


def _is_cut(page: list[Row]) -> bool:
    """Return whether a page may have ended because of its bytes."""
    return sum([len(value) for _, value in page]) >= PAGE_BYTES


def few(
    seeks: Seeks, wanted: Sequence[Part], count: int | None, rows_max: int, bytes_max: int
) -> list[tuple[bytes, Rows]] | None:
    """Return the entries of each part; None if they exceed ``rows_max`` or ``bytes_max``."""
    streams = []
    for part in wanted:
        rows = whole(seeks, part, count)
        if rows is None:
            return None
        if rows.page:
            rows_max -= len(rows)
            bytes_max -= entries.memory_of(rows.page)
            streams.append((key_of(part[0]), rows))
        if rows_max < 0 or bytes_max < 0:
            return None
    return streams


def steps(seeks: Seeks, wanted: Sequence[Part], count: int | None) -> Steps | None:
    """Return the steps of the entries of each part; None if there are none at all."""
    for at, part in enumerate(wanted):
        if _read(seeks, part, 1):
            return _steps(seeks, wanted[at:], count)
    return None


def _steps(seeks: Seeks, wanted: Sequence[Part], count: int | None) -> Steps:
    found: list[Part] = []
    for at in range(0, len(wanted), TOGETHER):
        searched = wanted[at : at + TOGETHER]
        found += [part for part in searched if part[4] < part[2] or _read(seeks, part, 1)]
        yield None
    yield len(found)
    for at in range(0, len(found), FEW_TOGETHER):
        returned = found[at : at + FEW_TOGETHER]
        yield [(key_of(part[0]), _read_part(seeks, part, count)) for part in returned]


def _read_part(seeks: Seeks, part: Part, count: int | None) -> "Rows | Iterator[int | Rows | None]":
    rows = whole(seeks, part, count)
    if rows is None:
        return _many(seeks, part, count)
    if not rows.page:
        raise Corruption(f"the stream {quoted(key_of(part[0]))} has lost its first entry")
    return rows


def _many(seeks: Seeks, part: Part, count: int | None) -> Iterator[int | Rows | None]:
    """Yield the number of entries of a part, and then the entries."""
    total = 0
    for page in _pages(seeks, part, count):
        total += len(page)
        yield None
    yield total
    for page in _pages(seeks, part, count):
        yield Rows(page, len(part[1]))


def _pages(seeks: Seeks, part: Part, left: int | None) -> Iterator[list[Row]]:
    name, prefix, first, last, after = part
    while after < last and (left is None or left > 0):
        most = PAGE_ROWS if left is None else min(left, PAGE_ROWS)
        page = _read(seeks, (name, prefix, first, last, after), most)
        if not page:
            return
        yield page
        after = StreamID.unpack(page[-1][0][-ID_BYTES:])
        left = None if left is None else left - len(page)


Reply = list[tuple[bytes, Sequence[HistoryEntry]]]
"""(qualified name, entries) of each stream that has entries, in the order of the request."""


class Position(Enum):
    """A position to read from that is not an ID."""

    LAST = "$"
    """After the last ID of the stream."""
    NEWEST = "+"
    """Before the last entry; in an empty stream, after the last ID."""


def new_only() -> InvalidArgument:
    """Return the error of an XREAD from ``>``."""
    return InvalidArgument(
        "The > ID can be specified only when calling XREADGROUP using the GROUP <group> "
        "<consumer> option."
    ).with_detail("in the library, read as group.consumer(name).read() does")


def resolve(txn: Txn, name: bytes, after: StreamID | Position) -> StreamID:
    """Return the ID to read after, fixed for as long as the call blocks."""
    if isinstance(after, StreamID):
        return after
    stream = txn.stream(name)
    if stream is None:
        return MIN_ID
    newest = entries.last_entry(txn, stream) if after is Position.NEWEST else None
    return stream.last if newest is None else newest.id.previous()


def read(
    txn: Txn,
    wanted: Sequence[tuple[bytes, StreamID]],
    count: int | None = None,
    budget: Budget | None = None,
    encoded: bool = False,
) -> Reply:
    """Return up to ``count`` entries after the given ID of each stream; empty: nothing new.

    There may be fewer if a server limits replies. With ``encoded`` they may be EncodedEntries.
    """
    streams = [(name, txn.stream(name), after) for name, after in wanted]  # or raises WrongType
    found = [
        (name, stream, after)
        for name, stream, after in streams
        if stream is not None and entries.has_after(stream, after)
    ]
    return _read_streams(txn, found, count, budget, encoded)


def _read_streams(
    txn: Txn,
    wanted: list[tuple[bytes, StreamMeta, StreamID]],
    count: int | None,
    budget: Budget | None,
    encoded: bool,
) -> Reply:
    """Read streams that may have entries after an ID."""
    reply: Reply = []
    if not wanted:
        return reply
    budget = budget or Budget()
    room = Room(len(wanted), txn.catalog.limits.reply_left)
    encoded = encoded and room.counts_few and not budget.limited and ranges.is_cached(txn, count)
    seeks = None if encoded or len(wanted) == 1 else begin(txn)
    for name, stream, after in wanted:
        if budget.exhausted:
            break
        found: Sequence[Entry] | None = None
        most = budget.most(count)
        if encoded and count is not None and not ranges.is_large(stream, count):
            found = ranges.between(txn, stream, after.next(), MAX_ID, count)
        elif seeks is not None:
            found = whole(seeks, part_of(name, stream, after), most)
        if found is None:
            found = entries.as_many_as_fit(txn, stream, after.next(), MAX_ID, most, room.left)
        if not found:
            continue
        if budget.limited:
            budget.open(name)
            found = found[: budget.take(found)]
            budget.close(len(found))
        reply.append((name, found))
        if not room.take(found):
            break
    return reply


def read_on(
    txn: Txn,
    wanted: Sequence[tuple[bytes, StreamID]],
    count: int | None,
    budget: Budget | None,
) -> Reply:
    """Read for a call that has waited.

    A key that has become another kind is ignored unless another key has entries; then it fails the
    command, as it does in the first attempt.
    """
    readable = []
    wrong: WrongType | None = None
    for name, after in wanted:
        try:
            stream = txn.stream(name)
        except WrongType as error:
            wrong = wrong or error
            continue
        if stream is not None and entries.has_after(stream, after):
            readable.append((name, stream, after))
    reply = _read_streams(txn, readable, count, budget, encoded=False)
    if reply and wrong is not None:
        raise wrong
    return reply
