"""Reading the message rows of one stream: what every other operation looks at."""

from functools import partial
from itertools import repeat
from struct import Struct

from kvstream.ids import MAX_ID, MIN_ID, StreamID, new_id
from kvstream.layout.compiled import twins
from kvstream.layout.values import decode_checked, decode_fields, decode_page
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.records import Entry
from kvstream.storage.batch import Family, Row

_MESSAGES = Family.MESSAGES
_ALL = 1 << 62
_NOTHING = repeat(None)
_new_entry = partial(tuple.__new__, Entry)


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


def decode_rows(stream: StreamMeta, page: list[Row]) -> list[Entry]:
    """Return the entries of a page of rows, decoded together."""
    if not page:
        return []
    if twins is not None:
        entries = twins.decode_rows(page, len(stream.prefix), Entry, StreamID)
        if entries is not None:
            return entries
    keys, values = zip(*page, strict=True)
    ids = Struct(f">{len(stream.prefix)}xQQ").iter_unpack(b"".join(keys))
    parts = zip(map(new_id, ids), decode_page(values), _NOTHING, _NOTHING, strict=False)
    return list(map(_new_entry, parts))


def between(
    txn: Txn, stream: StreamMeta, start: StreamID, end: StreamID, count: int | None
) -> list[Entry]:
    """Return the entries of ``start <= id <= end``, the first ``count`` of them."""
    return decode_rows(stream, rows(txn, stream, start, end, count))


def between_reversed(
    txn: Txn, stream: StreamMeta, start: StreamID, end: StreamID, count: int | None
) -> list[Entry]:
    """Return the entries of ``start <= id <= end`` from the last, ``count`` of them at most."""
    if stream.length == 0 or max(start, stream.first) > end:
        return []
    prefix = stream.prefix
    lower = prefix + max(start, stream.first).packed
    page: list[Row] = []
    for row in txn.batch.scan(_MESSAGES, lower, prefix + end.packed + b"\x00", reverse=True):
        page.append(row)
        if len(page) == count:
            break
    return decode_rows(stream, page)


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
