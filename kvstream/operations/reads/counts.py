"""XLEN and KVSTREAM.COUNT, and ranges for readers that share a stream.

Nodes count their entries, so counts read no rows of entries. ``spans`` divides a stream among
readers.
"""

from collections.abc import Iterator
from typing import NamedTuple

from kvstream.layout.keys import ID_BYTES
from kvstream.meta import nodes
from kvstream.meta.txn import Txn
from kvstream.operations.reads.rows import read_rows
from kvstream.storage.batch import Row
from kvstream.types.ids import StreamID


def length(txn: Txn, name: bytes) -> int:
    """Return the number of entries, 0 if there is no stream."""
    stream = txn.stream(name)
    return 0 if stream is None else stream.length


def count(txn: Txn, name: bytes, start: StreamID, end: StreamID) -> int:
    """Return the exact number of entries of ``start <= id <= end``, 0 if there is no stream.

    The cost grows with the nodes, not with the entries.
    """
    return sum(count_in_steps(txn, name, start, end))


def count_in_steps(txn: Txn, name: bytes, start: StreamID, end: StreamID) -> Iterator[int]:
    """Yield numbers that add up to ``count`` as of this call, one for some hundreds of nodes."""
    stream = txn.stream(name)
    return iter(()) if stream is None else nodes.live_between(txn, stream, start, end)


class Span(NamedTuple):
    """A range of a stream's IDs."""

    start: StreamID
    end: StreamID
    entries: int
    """Number of entries, an estimate unless ``exact``."""
    exact: bool


def spans(txn: Txn, name: bytes, start: StreamID, end: StreamID, size: int) -> list[Span]:
    """Return spans that cover ``start <= id <= end``, each of about ``size`` entries.

    Each begins with a node, so no entries are read. [] if there is no entry.
    """
    stream = txn.stream(name)
    if stream is None or not stream.length:
        return []
    low, high = max(start, stream.first), min(end, stream.last)
    if low > high:
        return []
    result: list[Span] = []
    first, count, exact = low, 0, low == stream.first
    lowest = low.packed
    for packed, live in nodes.live_counts(txn, stream, low, high):
        if count >= size and packed > lowest:
            begin = StreamID.unpack(packed)
            result.append(Span(first, begin.previous(), count, exact))
            first, count, exact = begin, 0, True
        count += live
    result.append(Span(first, high, count, exact and high == stream.last))
    return result


class Ends(NamedTuple):
    """The first and last ID of a stream, its length, and how many entries were ever added."""

    length: int
    added: int
    first: StreamID
    last: StreamID


def ends(txn: Txn, name: bytes) -> Ends | None:
    """Return the ends of a stream, None if there is none. An empty stream begins at its last ID."""
    stream = txn.stream(name)
    if stream is None:
        return None
    first = stream.first if stream.length else stream.last
    return Ends(stream.length, stream.entries_added, first, stream.last)


def nth_after(txn: Txn, name: bytes, after: StreamID, count: int) -> StreamID:
    """Return the ID of the ``count``-th entry above ``after``; the last ID if there are fewer.

    It reads nodes, and the entries of two of them.
    """
    stream = txn.stream(name)
    if stream is None or not stream.length or after >= stream.last:
        return after
    low, last = max(after.next(), stream.first), stream.last
    lowest = low.packed
    counts = [
        (packed, live)
        for packed, live in nodes.live_counts(txn, stream, low, last)
        if packed > lowest
    ]
    end = StreamID.unpack(counts[0][0]).previous() if counts else last
    page = read_rows(txn, stream, low, end, count)
    if len(page) == count:
        return _id_of(page[-1])
    counted = len(page)
    for packed, live in counts:
        if counted + live >= count:
            begin = StreamID.unpack(packed)
            return _id_of(read_rows(txn, stream, begin, last, count - counted)[-1])
        counted += live
    return last


def _id_of(row: Row) -> StreamID:
    return StreamID.unpack(row[0][-ID_BYTES:])
