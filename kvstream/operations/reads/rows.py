"""Read message rows of one stream: of a range, from the end, by IDs, and the next ones of a group.

These functions read all the rows at once. ``range.py`` decides how many these may be.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice

from kvstream.layout.keys import ID_BYTES
from kvstream.layout.rows import Rows
from kvstream.layout.values import decode_checked
from kvstream.meta import nodes
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.reply_cache import Readahead
from kvstream.meta.txn import Txn
from kvstream.operations.reads.limits import ROW_MEMORY, first_page, memory_of
from kvstream.storage.batch import Family, Row
from kvstream.types.ids import MAX_ID, MIN_ID, PACKED, StreamID
from kvstream.types.records import Entry

_MESSAGES = Family.MESSAGES
_ALL = 1 << 62
PAGE_MAX = 1000
"""Rows that are read before their memory is measured again."""
FEW = 16
"""Up to this many rows are looked up one by one: to find out whether a large row lies between them
takes as long."""
TOGETHER = 128
"""Rows that are looked up at once."""


def has_after(stream: StreamMeta, after: StreamID) -> bool:
    """Return whether there may be entries after an ID."""
    return stream.length > 0 and after < stream.last


def read_rows(
    txn: Txn, stream: StreamMeta, start: StreamID, end: StreamID, count: int | None
) -> list[Row]:
    """Return the live rows of ``start <= id <= end``, the first ``count`` of them."""
    first, last, prefix = stream.first, stream.last, stream.prefix
    start, end = start if start > first else first, end if end < last else last
    lower, upper = prefix + PACKED(*start), prefix + PACKED(*end)
    if lower > upper or not stream.length:
        return []
    most = _ALL if count is None else count
    if stream.unmeasured and start >= stream.open_first:
        in_memory = read_recent(stream, start, most)
        if in_memory is not None:
            return [row for row in in_memory if row[0] <= upper]
    if lower == upper and most > 0:
        value = txn.batch.get(_MESSAGES, lower)
        return [] if value is None else [(lower, value)]
    upper += b"\0"
    if txn.unwritten and start > txn.unwritten.get(prefix, MAX_ID):
        return txn.batch.page_added(_MESSAGES, lower, upper, most)
    return txn.batch.page(_MESSAGES, lower, upper, most)


def read_recent(stream: StreamMeta, start: StreamID, count: int) -> list[Row] | None:
    """Return the first rows from ``start`` on; None if they are not all in memory."""
    rows = stream.unmeasured
    if not rows:
        return None
    lower = stream.prefix + PACKED(*start)
    if lower < rows[0][0] and not MIN_ID < stream.measured < start:
        return None
    at = bisect_left(rows, (lower, b""))
    return rows[at : at + count]


def read_ahead(txn: Txn, stream: StreamMeta, group: GroupMeta, count: int) -> Rows:
    """Return the next ``count`` new entries: through the group's readahead, or recent ones.

    A consumer that reads entries one by one would otherwise seek for each. The readahead is valid
    until one of its entries is deleted, and skipped if the group's last ID was moved.
    """
    known = group.readahead
    if known is None or not _has_next(stream, group, known, count):
        start = group.last_delivered.next()
        found = read_recent(stream, start, count)
        if found is not None:
            return Rows(found, len(stream.prefix))
        if known is None or not stream.keeps(known):
            known = group.readahead = Readahead(stream.shrinks, count)
        found = read_rows(txn, stream, start, MAX_ID, max(count, known.pace))
        known.pace = known.next_pace(found)
        known.rows = deque(found)
    queue = known.rows
    taken = [queue.popleft() for _ in range(min(count, len(queue)))]
    if taken:
        known.after = StreamID.unpack(taken[-1][0][-ID_BYTES:])
    return Rows(taken, len(stream.prefix))


def _has_next(stream: StreamMeta, group: GroupMeta, known: Readahead, count: int) -> bool:
    """Return whether a readahead has the next ``count`` new entries, or all that there are."""
    queue = known.rows
    if not queue or known.after != group.last_delivered or not stream.keeps(known):
        return False
    return len(queue) >= count or queue[-1][0] >= stream.prefix + PACKED(*stream.last)


def read_until(
    txn: Txn,
    stream: StreamMeta,
    start: StreamID,
    end: StreamID,
    count: int | None,
    most: int,
    reverse: bool = False,
) -> tuple[list[Row], int]:
    """Return the first ``count`` rows of ``start <= id <= end``, in reverse the last ones.

    It stops after the row with which their memory exceeds ``most`` bytes (0: no limit). Also return
    that memory; it is 0, not measured, if the rows are few or have no limit.
    """
    unmeasured = 1 if reverse else first_page(stream)  # in reverse, rows are read one by one
    if not most or (count is not None and count <= unmeasured):
        if reverse:
            return list(islice(_scan_back(txn, stream, start, end, count), count)), 0
        return read_rows(txn, stream, start, end, count), 0
    page: list[Row] = []
    size = 0
    if reverse:
        for row in islice(_scan_back(txn, stream, start, end, count), count):
            page.append(row)
            size += len(row[0]) + len(row[1]) + ROW_MEMORY
            if size > most:
                break
        return page, size
    left = stream.length if count is None else count
    limit = first_page(stream)
    while left > 0:
        part = read_rows(txn, stream, start, end, min(left, limit))
        page += part
        size += memory_of(part)
        if size > most or len(part) < limit:
            break
        left -= limit
        limit = min(PAGE_MAX, (most - size) * len(page) // size + 1)
        start = StreamID.unpack(part[-1][0][-ID_BYTES:]).next()
    return page, size


def _scan_back(
    txn: Txn, stream: StreamMeta, start: StreamID, end: StreamID, count: int | None
) -> Iterator[Row]:
    """Return an iterator of the live rows of ``start <= id <= end``, the last row first.

    The caller takes ``count`` of them.
    """
    if stream.length == 0 or max(start, stream.first) > end:
        return iter(())
    upper = stream.prefix + end.packed + b"\x00"
    lower, head = bound_reverse(txn, stream, start, end, count)
    return chain(txn.batch.scan(_MESSAGES, lower, upper, reverse=True), head)


def bound_reverse(
    txn: Txn, stream: StreamMeta, start: StreamID, end: StreamID, count: int | None
) -> tuple[bytes, list[Row]]:
    """Return the lower bound for a reverse read of a range, and the row below it to add.

    To return a row in reverse, RocksDB looks at the row below it. Below the first entry of a stream
    that may be very many trimmed or deleted ones, each of which it steps over, and below any entry
    a large value. So the read stops at an existing row above: at the second entry of the stream, or
    at the first of the range.
    """
    upper = stream.prefix + end.packed + b"\x00"
    lower = stream.prefix + max(start, stream.first).packed
    if start > stream.first:
        if not nodes.is_behind_large(txn, stream, start):
            return lower, []
        first = txn.batch.page(_MESSAGES, lower, upper, 1)
        return (first[0][0] if first else upper), []
    if count is not None and count < stream.length and end >= stream.last:
        return lower, []
    head = txn.batch.page(_MESSAGES, lower, upper, 2)
    return (head[1][0] if len(head) > 1 else upper), head[:1]


def first_row(txn: Txn, stream: StreamMeta) -> Rows | None:
    """Return the first entry of a stream, as its row; None if there is no entry."""
    return _row(txn, stream, stream.first)


def last_row(txn: Txn, stream: StreamMeta) -> Rows | None:
    """Return the last entry of a stream, as its row; None if there is no entry."""
    last = _row(txn, stream, stream.last)
    if last is not None:
        return last
    page, _ = read_until(txn, stream, MIN_ID, MAX_ID, 1, 0, reverse=True)
    return Rows(page, len(stream.prefix)) if page else None


def last_entry(txn: Txn, stream: StreamMeta) -> Entry | None:
    """Return the last entry of a stream; None if there is no entry."""
    last = last_row(txn, stream)
    return None if last is None else last[0]


def exists(txn: Txn, stream: StreamMeta, eid: StreamID) -> bool:
    """Return whether an entry is live; a dead entry's row may exist until the next sweep."""
    first_ids = stream.first_ids
    if first_ids and first_ids[0] == stream.first and eid <= first_ids[-1]:
        return eid in first_ids
    return _row(txn, stream, eid) is not None


def find_live(txn: Txn, stream: StreamMeta, ids: list[StreamID]) -> list[StreamID]:
    """Return the live ones of ``ids``, ascending and distinct."""
    rows = read_ids(txn, stream, [PACKED(*eid) for eid in ids])
    return [eid for eid, row in zip(ids, rows, strict=True) if row is not None]


def _rows_of(txn: Txn, stream: StreamMeta, ids: Sequence[bytes]) -> Sequence[Row | None]:
    """Return the row of each of ``ids``, ascending and distinct, or None.

    They are read as a page, in an eighth of the time, if few other rows and no large one lie
    between them.
    """
    prefix = stream.prefix
    keys = [prefix + eid for eid in ids]
    if len(keys) > FEW and not nodes.has_large(
        txn, stream, StreamID.unpack(ids[0]), StreamID.unpack(ids[-1]), len(keys)
    ):
        page = txn.batch.page(_MESSAGES, keys[0], keys[-1] + b"\x00", 2 * len(keys))
        if len(page) == len(keys) and [key for key, _ in page] == keys:
            return page
        if len(page) < 2 * len(keys):
            values_by_key = dict(page)
            return [(key, values_by_key[key]) if key in values_by_key else None for key in keys]
    values = txn.batch.get_many(_MESSAGES, keys)
    pairs = zip(keys, values, strict=True)
    return [None if value is None else (key, value) for key, value in pairs]


def _row(txn: Txn, stream: StreamMeta, eid: StreamID) -> Rows | None:
    """Return one live entry."""
    if stream.length == 0 or not stream.first <= eid <= stream.last:
        return None
    prefix = stream.prefix
    key = prefix + PACKED(*eid)
    value = txn.batch.get(_MESSAGES, key)
    return None if value is None else Rows([(key, value)], len(prefix))


def read_ids(txn: Txn, stream: StreamMeta, ids: Sequence[bytes]) -> Sequence[Row | None]:
    """Return the live rows of packed IDs, ascending and distinct; None for an ID without entry."""
    if stream.length == 0:
        return [None] * len(ids)
    first = stream.first.packed
    if len(ids) == 1:
        key = stream.prefix + ids[0]
        value = txn.batch.get(_MESSAGES, key) if ids[0] >= first else None
        return [None if value is None else (key, value)]
    rows: list[Row | None] = []
    for at in range(0, len(ids), TOGETHER):
        rows += _rows_of(txn, stream, ids[at : at + TOGETHER])
    if not ids or ids[0] >= first:
        return rows
    return [row if eid >= first else None for eid, row in zip(ids, rows, strict=True)]


def read_entries_of(txn: Txn, stream: StreamMeta, ids: Sequence[bytes]) -> list[Entry | None]:
    """Return the entries of packed IDs, ascending and distinct; None for an ID without entry."""
    rows = read_ids(txn, stream, ids)
    fields = iter(decode_checked([row[1] for row in rows if row is not None]))
    return [
        None if row is None else Entry(StreamID.unpack(eid), next(fields))
        for eid, row in zip(ids, rows, strict=True)
    ]
