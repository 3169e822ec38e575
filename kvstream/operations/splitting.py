"""Parts of a stream for readers that share it: ranges of IDs with the entries that each has."""

from typing import NamedTuple

from kvstream.ids import StreamID
from kvstream.layout.keys import ID_BYTES
from kvstream.meta import nodes
from kvstream.meta.txn import Txn
from kvstream.operations import entries
from kvstream.storage.batch import Row


class Span(NamedTuple):
    """A range of a stream's IDs."""

    start: StreamID
    end: StreamID
    entries: int
    """How many it has; an estimate unless ``exact``."""
    exact: bool


def spans(txn: Txn, name: bytes, start: StreamID, end: StreamID, size: int) -> list[Span]:
    """Return spans that cover ``start <= id <= end``, each of about ``size`` entries.

    They begin where nodes do, and cost nodes, not entries. [] where there is no entry at all.
    """
    stream = txn.stream(name)
    if stream is None or not stream.length:
        return []
    low, high = max(start, stream.first), min(end, stream.last)
    if low > high:
        return []
    found: list[Span] = []
    first, count, exact = low, 0, low == stream.first
    lowest = low.packed
    for packed, live in nodes.live_counts(txn, stream, low, high):
        if count >= size and packed > lowest:
            begin = StreamID.unpack(packed)
            found.append(Span(first, begin.previous(), count, exact))
            first, count, exact = begin, 0, True
        count += live
    found.append(Span(first, high, count, exact and high == stream.last))
    return found


class Reach(NamedTuple):
    """Where the rows of a range of IDs lie."""

    prefix: bytes
    lower: bytes
    upper: bytes
    """The keys that the first and the last row may have."""


def reach(txn: Txn, name: bytes, start: StreamID, end: StreamID) -> Reach | None:
    """Return where the entries of ``start <= id <= end`` lie; None where there can be none."""
    stream = txn.stream(name)
    if stream is None or not stream.length:
        return None
    low, high = max(start, stream.first), min(end, stream.last)
    if low > high:
        return None
    return Reach(stream.prefix, stream.prefix + low.packed, stream.prefix + high.packed)


class Ends(NamedTuple):
    """Where a stream begins and ends, and how many entries it has and was ever given."""

    length: int
    added: int
    first: StreamID
    last: StreamID


def ends(txn: Txn, name: bytes) -> Ends | None:
    """Return the ends of a stream, None where there is none; an empty one begins at its last ID."""
    stream = txn.stream(name)
    if stream is None:
        return None
    first = stream.first if stream.length else stream.last
    return Ends(stream.length, stream.entries_added, first, stream.last)


def nth_after(txn: Txn, name: bytes, after: StreamID, count: int) -> StreamID:
    """Return the ID of the ``count``-th entry above ``after``; the last ID where there are fewer.

    It costs nodes, and the entries of two of them.
    """
    stream = txn.stream(name)
    if stream is None or not stream.length or after >= stream.last:
        return after
    low, last = max(after.next(), stream.first), stream.last
    lowest = low.packed
    counts = [each for each in nodes.live_counts(txn, stream, low, last) if each[0] > lowest]
    end = StreamID.unpack(counts[0][0]).previous() if counts else last
    page = entries.rows(txn, stream, low, end, count)
    if len(page) == count:
        return _id_of(page[-1])
    counted = len(page)
    for packed, live in counts:
        if counted + live >= count:
            begin = StreamID.unpack(packed)
            return _id_of(entries.rows(txn, stream, begin, last, count - counted)[-1])
        counted += live
    return last


def _id_of(row: Row) -> StreamID:
    return StreamID.unpack(row[0][-ID_BYTES:])
