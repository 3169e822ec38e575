"""XLEN, XRANGE, XREVRANGE and KVSTREAM.COUNT, and ranges for readers that share a stream.

``between`` reads through the cache of encoded replies (``meta/reply_cache.py``). ``spans`` divides
a stream among readers by its nodes.
"""

from collections.abc import Iterator
from typing import NamedTuple

from kvstream.layout.keys import ID_BYTES
from kvstream.layout.rows import EncodedEntries, Rows
from kvstream.meta import nodes
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.operations import entries
from kvstream.storage.batch import Family, Row
from kvstream.types.ids import PACKED, StreamID

_MESSAGES = Family.MESSAGES


def is_cached(txn: Txn, count: int | None) -> bool:
    """Return whether reads of ``count`` entries use the reply cache."""
    return (
        count is not None
        and 0 < count <= entries.FIRST_PAGE
        and txn.catalog.reply_cache.memory_max > 0
    )


def is_large(stream: StreamMeta, count: int) -> bool:
    """Return whether ``count`` entries may be too large for the reply cache."""
    return count > 1 and count > entries.first_page(stream)


def between(
    txn: Txn, stream: StreamMeta, start: StreamID, end: StreamID, count: int
) -> Rows | EncodedEntries:
    """Return the first ``count`` entries of ``start <= id <= end``.

    They go through the reply cache if they are enough for it to keep.
    """
    if count < txn.catalog.reply_cache.rows_min:
        return entries.few(txn, stream, start, end, count)
    first, last = max(start, stream.first), min(end, stream.last)
    if stream.length == 0 or first > last:
        return Rows([], 0)
    prefix, cache = stream.prefix, txn.catalog.reply_cache
    upper = PACKED(*last)
    found = cache.find(prefix, PACKED(*first), upper, count)
    left = count - found.count
    if left == 0 or found.start > upper:
        cache.hits += 1
        return EncodedEntries(found.count, found.parts, found.ids)
    cache.misses += 1
    page = txn.batch.page(_MESSAGES, prefix + found.start, prefix + upper + b"\x00", left)
    if page:
        text = cache.keep(prefix, found.start, page)
        if text is None:  # too long to cache, or a value that Python is to check
            if found.count:
                page = entries.rows(txn, stream, first, last, count)
            return Rows(page, len(prefix))
        found.parts.append(text.data)
        found.ids.append(text.ids)
    return EncodedEntries(found.count + len(page), found.parts, found.ids)


def few(
    txn: Txn, name: bytes, start: StreamID, end: StreamID, count: int, reverse: bool
) -> Rows | None:
    """Return the first few entries of ``start <= id <= end``, in reverse the last ones.

    None if they may be large.
    """
    stream = txn.stream(name)
    if stream is None:
        return Rows([], 0)
    if is_large(stream, count):
        return None
    if reverse:
        newest = count == 1 and start <= stream.last <= end and entries.newest(txn, stream)
        return newest or entries.between_for_reply(txn, stream, start, end, count, reverse=True)
    return entries.few(txn, stream, start, end, count)


def length(txn: Txn, name: bytes) -> int:
    """Return the number of entries, 0 if there is no stream."""
    stream = txn.stream(name)
    return 0 if stream is None else stream.length


def count(txn: Txn, name: bytes, start: StreamID, end: StreamID) -> int:
    """Return the exact number of entries of ``start <= id <= end``, 0 if there is no stream.

    The cost is that of nodes, not of entries.
    """
    return sum(counted(txn, name, start, end))


def counted(txn: Txn, name: bytes, start: StreamID, end: StreamID) -> Iterator[int]:
    """Return numbers that add up to ``count``, one for some hundreds of nodes, as of this call."""
    stream = txn.stream(name)
    return iter(()) if stream is None else nodes.live_between(txn, stream, start, end)


def scan(
    txn: Txn,
    name: bytes,
    start: StreamID,
    end: StreamID,
    count: int | None = None,
    reverse: bool = False,
) -> Rows | None:
    """Return the entries of ``start <= id <= end``, last first if ``reverse``.

    None, Redis's null reply, if ``count`` is not positive and the key exists.
    """
    stream = txn.stream(name)
    if stream is None:
        return Rows([], 0)
    if count is not None and count <= 0:
        return None
    return entries.between_for_reply(txn, stream, start, end, count, reverse)


class Span(NamedTuple):
    """A range of a stream's IDs."""

    start: StreamID
    end: StreamID
    entries: int
    """Number of entries, an estimate unless ``exact``."""
    exact: bool


def spans(txn: Txn, name: bytes, start: StreamID, end: StreamID, size: int) -> list[Span]:
    """Return spans that cover ``start <= id <= end``, each of about ``size`` entries.

    They begin where nodes do, so only nodes are read. [] if there is no entry.
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
    """Return the ends of a stream, None if there is none; an empty one begins at its last ID."""
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
