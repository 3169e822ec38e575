"""XRANGE, XREVRANGE and every other read of entries: the one decision on how they are read.

``read_entries`` decides for a server's replies:

- Up to 100 entries that are not large are read at once, through the cache of encoded replies
  (``meta/reply_cache.py``) unless they are very few.
- More entries are read whole if that is short (``types/thresholds.py``). Otherwise a ``LongRead``
  is returned, which reads nothing before it begins, and then page by page.
- A caller that takes no pages gets all entries, up to the limit of a reply. Above it XRANGE fails;
  a read that can be continued after its last entry, such as XREAD, returns those that fit.

The library reads rows, whole: ``scan``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeAlias, TypeGuard, TypeVar

from kvstream.layout.rows import EncodedEntries, Rows
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.txn import Txn
from kvstream.operations.reads.limits import (
    FIRST_PAGE,
    WIRE_TIMES,
    first_page,
    memory_of,
    short_bytes,
)
from kvstream.operations.reads.pages import Steps, read_pages
from kvstream.operations.reads.rows import FEW, read_ahead, read_rows, read_until
from kvstream.storage.batch import Family
from kvstream.types.ids import MAX_ID, MIN_ID, PACKED, StreamID

T = TypeVar("T")
_MESSAGES = Family.MESSAGES


@dataclass(slots=True)
class Range:
    """What a read of one stream asks for: entries of ``start <= id <= end``, IDs ascending.

    In reverse, the last entry of the range is the first one of the read.
    """

    name: bytes
    """The name of the stream."""
    start: StreamID = MIN_ID
    end: StreamID = MAX_ID
    count: int | None = None
    """The most entries, from the first one on; None: all."""
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class LongRead(Generic[T]):
    """A long read that has not begun."""

    begin: Callable[[], T]
    """Returns the steps, which see the store as it is at this call."""


Found: TypeAlias = Rows | EncodedEntries | LongRead[Steps[Rows]]
"""The entries of a read, or a read that is too long for one turn."""


def read_range(txn: Txn, asked: Range, in_pages: bool) -> Found | None:
    """Return the entries of a range for a reply, or with ``in_pages`` a read too long for one turn.

    None, Redis's null reply, if ``count`` is not positive and the key exists. Raise ReplyTooLarge
    if the entries are more than a reply may hold.
    """
    stream = txn.stream(asked.name)
    if stream is None:
        return Rows([], 0)
    count = asked.count
    if count is not None and count <= 0:
        return None
    return read_entries(txn, stream, asked.start, asked.end, count, in_pages, asked.reverse)


def scan(txn: Txn, asked: Range) -> Rows | None:
    """Return the entries of a range as rows, with the results of ``read_range``."""
    stream = txn.stream(asked.name)
    if stream is None:
        return Rows([], 0)
    if asked.count is not None and asked.count <= 0:
        return None
    return read_whole(txn, stream, asked.start, asked.end, asked.count, asked.reverse)


def read_entries(
    txn: Txn,
    stream: StreamMeta,
    start: StreamID,
    end: StreamID,
    count: int | None,
    in_pages: bool,
    reverse: bool = False,
    *,
    cuts: bool = False,
    rows_max: int | None = None,
) -> Found:
    """Decide how the entries of a range are read for a reply, and read them.

    ``in_pages``: return a LongRead if there are more than ``rows_max`` entries (by default the
    threshold) or they take much memory. Otherwise, if the entries are more than a reply may hold,
    ``cuts`` returns those that fit; without it ReplyTooLarge is raised.
    """
    if count is None and start == end:
        count = 1
    if count is not None and not reverse and (count == 1 or count <= first_page(stream)):
        cache = txn.catalog.reply_cache
        if count < cache.rows_min or not cache.memory_max:
            return Rows(read_rows(txn, stream, start, end, count), len(stream.prefix))
        return read_cached(txn, stream, start, end, count)
    if not in_pages or count == 1:
        room = txn.catalog.limits.reply_left // WIRE_TIMES if cuts else None
        return read_whole(txn, stream, start, end, count, reverse, room)
    most = txn.thresholds.short_rows if rows_max is None else rows_max
    limit, rows = short_bytes(txn), most + 1
    rows = rows if count is None else min(rows, count)
    page, size = read_until(txn, stream, start, end, rows, limit, reverse)
    if size > limit or len(page) > most:
        return LongRead(partial(read_pages, txn, stream, start, end, count, reverse))
    return Rows(page, len(stream.prefix))


def is_short(count: int | None, stream: StreamMeta) -> TypeGuard[int]:
    """Return whether ``count`` entries of a stream are read at once, without measuring them."""
    return count is not None and (count <= 1 or count <= first_page(stream))


def is_cached(txn: Txn, count: int | None) -> bool:
    """Return whether reads of ``count`` entries go through the cache of encoded replies."""
    cache = txn.catalog.reply_cache
    return count is not None and cache.rows_min <= count <= FIRST_PAGE and cache.memory_max > 0


def read_cached(
    txn: Txn, stream: StreamMeta, start: StreamID, end: StreamID, count: int
) -> Rows | EncodedEntries:
    """Return the first ``count`` entries of a range through the cache of encoded replies."""
    first, last = stream.first, stream.last
    first, last = start if start > first else first, end if end < last else last
    if first > last or not stream.length:
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
                page = read_rows(txn, stream, first, last, count)
            return Rows(page, len(prefix))
        found.parts.append(text.data)
        found.ids.append(text.ids)
    return EncodedEntries(found.count + len(page), found.parts, found.ids)


def read_whole(
    txn: Txn,
    stream: StreamMeta,
    start: StreamID,
    end: StreamID,
    count: int | None = None,
    reverse: bool = False,
    room: int | None = None,
) -> Rows:
    """Return the entries of a range as rows.

    ``room``: the memory in bytes that the entries may take; others, but not the first, are left for
    the next read. 0: no limit. None: raise ReplyTooLarge if they are more than a reply may hold.
    """
    if reverse and count == 1 and start <= stream.last <= end:
        newest = stream.prefix + PACKED(*stream.last)
        value = txn.batch.get(_MESSAGES, newest) if stream.length else None
        if value is not None:
            return Rows([(newest, value)], len(stream.prefix))
    most = txn.catalog.limits.reply_left if room is None else room
    page, size = read_until(txn, stream, start, end, count, most, reverse)
    if size > most and room is None:
        raise txn.catalog.limits.too_large()
    while size > most and len(page) > 1:
        size -= memory_of([page.pop()])
    return Rows(page, len(stream.prefix))


def read_next(
    txn: Txn, stream: StreamMeta, group: GroupMeta, count: int | None, room: int, encoded: bool
) -> Rows | EncodedEntries:
    """Return the first ``count`` entries after the last delivered one of a group.

    Small reads go through the readahead of the group. ``encoded``: others go through the cache of
    encoded replies if the stream has another group. ``room``: see ``read_whole``.
    """
    if is_short(count, stream) and count > 0:
        if count <= FEW:
            return read_ahead(txn, stream, group, count)
        if encoded and stream.groups_count > 1 and is_cached(txn, count):
            return read_cached(txn, stream, group.last_delivered.next(), MAX_ID, count)
    return read_whole(txn, stream, group.last_delivered.next(), MAX_ID, count, room=room)
