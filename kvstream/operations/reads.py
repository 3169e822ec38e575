"""XREAD: what lies after given IDs, in several streams at once."""

from collections.abc import Sequence
from enum import Enum

from kvstream.errors import WrongType
from kvstream.ids import MAX_ID, MIN_ID, StreamID
from kvstream.meta.txn import Txn
from kvstream.operations import abreast, entries, showing
from kvstream.operations.budget import Budget, Room
from kvstream.records import Entry, HistoryEntry

Reply = list[tuple[bytes, Sequence[HistoryEntry]]]
"""(qualified name, entries) for each stream that has something, in the caller's order."""


class Position(Enum):
    """Where a read starts, other than after an ID."""

    LAST = "$"
    """After the last ID that the stream has given out."""
    NEWEST = "+"
    """At the last entry there is, and only at that one; in an empty stream after the last ID."""


def resolve(txn: Txn, name: bytes, after: StreamID | Position) -> StreamID:
    """Return the ID after which to read, fixed for as long as the call blocks."""
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
    shown: bool = False,
) -> Reply:
    """Return up to ``count`` entries after the given ID of each stream; empty: nothing new.

    There may be fewer of them where a server bounds replies. ``shown``: entries may be Written.
    """
    budget = budget or Budget()
    for name, _ in wanted:
        txn.stream(name)  # a key of another kind fails the whole command
    room = Room(len(wanted), txn.catalog.limits.reply_left)
    shown = shown and room.counts_few and not budget.limited and showing.is_kept(txn, count)
    seeks = None if shown or len(wanted) == 1 else abreast.begin(txn)
    reply: Reply = []
    for name, after in wanted:
        if budget.exhausted:
            break
        stream = txn.stream(name)
        if stream is None or not entries.has_after(stream, after):
            continue
        found: Sequence[Entry] | None = None
        most = budget.most(count)
        if shown and count is not None and not showing.is_large(stream, count):
            found = showing.between(txn, stream, after.next(), MAX_ID, count)
        elif seeks is not None:
            found = abreast.whole(seeks, abreast.part_of(name, stream, after), most)
        if found is None:
            found = entries.as_many_as_fit(txn, stream, after.next(), MAX_ID, most, room.left)
        if budget.limited:
            budget.open(name)
            found = found[: budget.take(found)]
            budget.close(len(found) or None)
        if found:
            reply.append((name, found))
            if not room.take(found):
                break
    return reply


def read_on(
    txn: Txn,
    wanted: Sequence[tuple[bytes, StreamID]],
    count: int | None = None,
    budget: Budget | None = None,
    shown: bool = False,
) -> Reply:
    """Do the same for a call that has waited.

    A key that became another kind may come back, so it is no news. With news of another key it
    fails the whole command, as it does at the beginning.
    """
    readable = [pair for pair in wanted if _may_be_read(txn, pair[0])]
    reply = read(txn, readable, count, budget, shown)
    if reply and len(readable) < len(wanted):
        for name, _ in wanted:
            txn.stream(name)
    return reply


def _may_be_read(txn: Txn, name: bytes) -> bool:
    try:
        return txn.stream(name) is not None
    except WrongType:
        return False
