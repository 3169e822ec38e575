"""XREAD: the entries after given IDs in several streams.

``read_streams`` decides how they are read for a server's reply. Short reads are served in one turn:
through the cache of encoded replies, or by one iterator (``seeks.py``). Longer ones are left
unread, each stream by itself, or all of them in steps if the streams are many. The library reads
all entries at once: ``read``.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from kvstream.errors import InvalidArgument, WrongType
from kvstream.layout.keys import key_of
from kvstream.layout.rows import Rows
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.operations.plans import ALWAYS_HOLDS, Plan, Planning
from kvstream.operations.reads import seeks
from kvstream.operations.reads.limits import Budget, Room, first_page, short_bytes
from kvstream.operations.reads.range import (
    Found,
    LongRead,
    is_cached,
    is_short,
    read_cached,
    read_entries,
    read_whole,
)
from kvstream.operations.reads.rows import has_after, last_entry
from kvstream.storage.batch import Family
from kvstream.types.ids import MAX_ID, MIN_ID, StreamID
from kvstream.types.records import Entry, HistoryEntry

Reply = list[tuple[bytes, Sequence[HistoryEntry]]]
"""(qualified name, entries) of each stream that has entries, in the order of the request."""


@dataclass(slots=True)
class StreamsRead:
    """What an XREAD asks for: the entries after an ID of each stream, in this order."""

    wanted: Sequence[tuple[bytes, StreamID]]
    """The (qualified name, ID) of each stream."""
    count: int | None = None
    """The most entries of each stream."""
    budget: Budget | None = None
    """MAXCOUNT and MAXSIZE, of all streams together."""
    block: Callable[[], Any] | None = None
    """Returns the answer of a command that waits if there are no entries."""


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
    newest = last_entry(txn, stream) if after is Position.NEWEST else None
    return stream.last if newest is None else newest.id.previous()


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
            with suppress(WrongType):  # the read raises the error
                txn.stream(name)
        return True

    return plan


def read_streams(
    txn: Txn, asked: StreamsRead, in_pages: bool
) -> Sequence[tuple[bytes, Sequence[HistoryEntry]]] | LongRead[seeks.Items | seeks.Steps | None]:
    """Return the key and entries of each stream that has any, for a reply; empty: nothing new.

    ``in_pages``: if the entries are too many for one turn, or the streams, a LongRead is returned.
    It begins the entries of each stream, or the steps of all; None if there are no entries.
    Otherwise those are returned that fit into a reply.
    """
    wanted, count = asked.wanted, asked.count
    if asked.budget is None:
        if len(wanted) == 1:
            ((name, after),) = wanted
            found = read_one(txn, name, after, count, in_pages)
            if type(found) is LongRead:
                return LongRead(partial(_begin_long, [(key_of(name), found)]))
            return [] if found is None else [(key_of(name), found)]  # type: ignore[list-item]
        if in_pages and _may_be_long(txn, wanted, count):
            return _read_or_leave(txn, wanted, count)
    reply = _read_all(txn, _find(txn, wanted), asked, encoded=True)
    return [(key_of(name), entries) for name, entries in reply]


def read_one(
    txn: Txn, name: bytes, after: StreamID, count: int | None, in_pages: bool
) -> Found | None:
    """Return the entries of one stream after an ID, as ``read_streams`` does; None: nothing new."""
    stream = txn.stream(name)
    if stream is None or not stream.length or after >= stream.last:
        return None
    found = read_entries(txn, stream, after.next(), MAX_ID, count, in_pages, cuts=True)
    if type(found) is Rows:  # most of them; __len__ of a class takes a call
        return found if found.page else None
    return found if found else None


def _may_be_long(txn: Txn, wanted: Sequence[tuple[bytes, StreamID]], count: int | None) -> bool:
    """Return whether ``count`` entries of each stream may make a long reply."""
    if count is None or count * len(wanted) > txn.thresholds.look_rows:
        return True
    streams = [txn.catalog.streams.get(name) for name, _ in wanted]
    return any(count > first_page(stream) for stream in streams if stream is not None)


def _read_or_leave(
    txn: Txn, wanted: Sequence[tuple[bytes, StreamID]], count: int | None
) -> Sequence[tuple[bytes, Sequence[HistoryEntry]]] | LongRead[seeks.Items | seeks.Steps | None]:
    """Read streams whose reply may be long, and leave what is too long for one turn."""
    parts, sizes = seeks.find_parts(txn, wanted), txn.thresholds
    if len(parts) > 1 and len(parts) <= sizes.short_streams:
        reader = txn.batch.seeks(Family.MESSAGES)
        short = seeks.read_parts(sizes, reader, parts, count, short_bytes(txn))
        if short is not None:
            return short
    if len(parts) > sizes.few_streams:
        return LongRead(lambda: seeks.step_parts(sizes, seeks.seek_snapshot(txn), parts, count))
    found: list[tuple[bytes, Any]] = []
    left, is_long = sizes.short_rows, False
    for name, _, _, _, after in parts:
        stream = txn.stream(name)
        assert stream is not None
        start = after.next()
        entries = read_entries(txn, stream, start, MAX_ID, count, True, rows_max=left)
        if isinstance(entries, LongRead):
            found.append((key_of(name), entries))
            left, is_long = 0, True
        elif entries:
            found.append((key_of(name), entries))
            left -= len(entries)
    return LongRead(partial(_begin_long, found)) if is_long else found


def _begin_long(found: Sequence[tuple[bytes, Found]]) -> seeks.Items:
    """Begin the long reads among the entries of streams."""
    return [
        (key, entries.begin() if isinstance(entries, LongRead) else entries)
        for key, entries in found
    ]


def _find(
    txn: Txn, wanted: Sequence[tuple[bytes, StreamID]]
) -> list[tuple[bytes, StreamMeta, StreamID]]:
    """Return the streams that may have entries after an ID; WrongType for another kind of key."""
    streams = [(name, txn.stream(name), after) for name, after in wanted]
    return [
        (name, stream, after)
        for name, stream, after in streams
        if stream is not None and has_after(stream, after)
    ]


def read(txn: Txn, asked: StreamsRead) -> Reply:
    """Return the name and entries of each stream that has any, at once; empty: nothing new.

    There may be fewer entries than asked for if a server limits replies.
    """
    return _read_all(txn, _find(txn, asked.wanted), asked, encoded=False)


def read_again(txn: Txn, asked: StreamsRead) -> Reply:
    """Read for a call that was blocked.

    A key that now has another type is ignored until another key has entries. Then WrongType is
    raised, as in the first attempt.
    """
    readable = []
    wrong: WrongType | None = None
    for name, after in asked.wanted:
        try:
            readable += _find(txn, [(name, after)])
        except WrongType as error:
            wrong = wrong or error
    reply = _read_all(txn, readable, asked, encoded=False)
    if reply and wrong is not None:
        raise wrong
    return reply


def _read_all(
    txn: Txn, streams: list[tuple[bytes, StreamMeta, StreamID]], asked: StreamsRead, encoded: bool
) -> Reply:
    """Read streams that may have entries; ``encoded``: through the cache of encoded replies."""
    reply: Reply = []
    if not streams:
        return reply
    count, budget = asked.count, asked.budget or Budget()
    room = Room(len(streams), txn.catalog.limits.reply_left)
    encoded = encoded and room.ignores_few and not budget.limited and is_cached(txn, count)
    reader = None if encoded or len(streams) == 1 else txn.batch.seeks(Family.MESSAGES)
    for name, stream, after in streams:
        if budget.exhausted:
            break
        found: Sequence[Entry] | None = None
        most = budget.most(count)
        if encoded and is_short(count, stream):
            found = read_cached(txn, stream, after.next(), MAX_ID, count)
        elif reader is not None:
            part = seeks.part_of(name, stream, after)
            found = seeks.read_part(txn.thresholds, reader, part, most)
        if found is None:
            found = read_whole(txn, stream, after.next(), MAX_ID, most, room=room.left)
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
