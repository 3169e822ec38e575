"""Reading the message rows of one stream: what every other operation looks at."""

from kvstream.errors import ReplyTooLarge
from kvstream.ids import MAX_ID, MIN_ID, StreamID
from kvstream.layout.keys import ID_BYTES
from kvstream.layout.rows import Rows
from kvstream.layout.values import decode_checked, decode_fields
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.records import Entry
from kvstream.storage.batch import Family, Row

_MESSAGES = Family.MESSAGES
_ALL = 1 << 62
FIRST_PAGE, PAGE_MAX = 100, 1000
"""Rows of a long reply that are read before it is looked at how much memory they take."""
ROW_MEMORY = 160
"""What a row takes beside its bytes: two objects of Python, the pair, and its place in a list."""


def rows(
    txn: Txn, stream: StreamMeta, start: StreamID, end: StreamID, count: int | None
) -> list[Row]:
    """Return the live rows of ``start <= id <= end``, the first ``count`` of them."""
    if stream.length == 0:
        return []
    start = max(start, stream.first)
    end = min(end, stream.last)
    if start > end:
        return []
    prefix = stream.prefix
    lower, upper = prefix + start.packed, prefix + end.packed + b"\x00"
    return txn.batch.page(_MESSAGES, lower, upper, _ALL if count is None else count)


def between(
    txn: Txn, stream: StreamMeta, start: StreamID, end: StreamID, count: int | None
) -> Rows:
    """Return the entries of ``start <= id <= end``, the first ``count`` of them."""
    return Rows(rows(txn, stream, start, end, count), len(stream.prefix))


def between_for_reply(
    txn: Txn, stream: StreamMeta, start: StreamID, end: StreamID, count: int | None
) -> Rows:
    """Do the same, or raise ReplyTooLarge once there are more than one reply may have."""
    most = txn.catalog.limits.reply_max
    if not most or (count is not None and count <= FIRST_PAGE):
        return between(txn, stream, start, end, count)
    page, size = _gathered(txn, stream, start, end, count, most)
    if size > most:
        raise ReplyTooLarge.beyond(most)
    return Rows(page, len(stream.prefix))


def as_many_as_fit(
    txn: Txn, stream: StreamMeta, start: StreamID, end: StreamID, count: int | None, most: int
) -> Rows:
    """Do the same, but for those at the end that take more memory than ``most``; 0: no limit.

    One is there at least. For reads that go on where they were: whoever asks again gets the rest.
    """
    if not most or (count is not None and count <= FIRST_PAGE):
        return between(txn, stream, start, end, count)
    page, size = _gathered(txn, stream, start, end, count, most)
    while size > most and len(page) > 1:
        size -= memory_of([page.pop()])
    return Rows(page, len(stream.prefix))


def _gathered(
    txn: Txn, stream: StreamMeta, start: StreamID, end: StreamID, count: int | None, most: int
) -> tuple[list[Row], int]:
    """Return the rows up to the first that go beyond so much memory, and what they take."""
    left = stream.length if count is None else count
    page: list[Row] = []
    size, limit = 0, FIRST_PAGE
    while left > 0:
        part = rows(txn, stream, start, end, min(left, limit))
        page += part
        size += memory_of(part)
        if size > most or len(part) < limit:
            break
        left -= limit
        limit = min(PAGE_MAX, (most - size) * len(page) // size + 1)
        start = StreamID.unpack(part[-1][0][-ID_BYTES:]).next()
    return page, size


def memory_of(page: list[Row]) -> int:
    """Return the bytes of memory that rows take."""
    return sum(len(key) + len(value) for key, value in page) + len(page) * ROW_MEMORY


def between_reversed(
    txn: Txn, stream: StreamMeta, start: StreamID, end: StreamID, count: int | None
) -> Rows:
    """Return the entries of ``start <= id <= end`` from the last, ``count`` of them at most.

    Raises ReplyTooLarge once there are more than one reply may have.
    """
    prefix = stream.prefix
    page: list[Row] = []
    most = left = txn.catalog.limits.reply_max
    if stream.length and max(start, stream.first) <= end:
        lower = prefix + max(start, stream.first).packed
        for row in txn.batch.scan(_MESSAGES, lower, prefix + end.packed + b"\x00", reverse=True):
            page.append(row)
            if len(page) == count:
                break
            if most:
                left -= len(row[0]) + len(row[1]) + ROW_MEMORY
                if left < 0:
                    raise ReplyTooLarge.beyond(most)
    return Rows(page, len(prefix))


def first_entry(txn: Txn, stream: StreamMeta) -> Entry | None:
    found = between(txn, stream, MIN_ID, MAX_ID, 1)
    return found[0] if found else None


def last_entry(txn: Txn, stream: StreamMeta) -> Entry | None:
    found = between_reversed(txn, stream, MIN_ID, MAX_ID, 1)
    return found[0] if found else None


def exists(txn: Txn, stream: StreamMeta, eid: StreamID) -> bool:
    """Tell whether an entry is live; its row may outlive it until the next sweep."""
    return _value(txn, stream, eid) is not None


def get(txn: Txn, stream: StreamMeta, eid: StreamID) -> Entry | None:
    """Return one live entry."""
    value = _value(txn, stream, eid)
    return None if value is None else Entry(eid, decode_fields(value))


def _value(txn: Txn, stream: StreamMeta, eid: StreamID) -> bytes | None:
    if stream.length == 0 or not stream.first <= eid <= stream.last:
        return None
    return txn.batch.get(_MESSAGES, stream.prefix + eid.packed)


def get_packed(txn: Txn, stream: StreamMeta, ids: list[bytes]) -> list[Entry | None]:
    """Return the entries of packed IDs in the same order; None where there is none any more."""
    first = stream.first.packed
    keys = [stream.prefix + eid for eid in ids]
    values = txn.batch.get_many(_MESSAGES, keys)
    live = [
        value is not None and stream.length > 0 and eid >= first
        for eid, value in zip(ids, values, strict=True)
    ]
    found = [v for v, alive in zip(values, live, strict=True) if alive and v is not None]
    fields = iter(decode_checked(found))
    return [
        Entry(StreamID.unpack(eid), next(fields)) if alive else None
        for eid, alive in zip(ids, live, strict=True)
    ]
