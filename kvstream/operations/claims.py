"""XCLAIM, XAUTOCLAIM and XPENDING: looking after what consumers have not acknowledged."""

from collections.abc import Iterator, Sequence
from itertools import groupby, islice

from kvstream.errors import InvalidArgument
from kvstream.ids import MIN_ID, StreamID
from kvstream.meta.indexes import pending_in, pending_with
from kvstream.meta.pending import (
    COUNT_MAX,
    Pending,
    find,
    ids_between,
    pending_of,
    place,
    runs_by_time,
    runs_from,
    runs_of,
    take,
)
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.runs import Run
from kvstream.meta.txn import Txn
from kvstream.operations import entries
from kvstream.operations.groups import consumer_of, group_of_key
from kvstream.records import Claimed, Entry, PendingEntry, PendingSummary

AUTOCLAIM_COUNT = 100
"""Redis's default COUNT of XAUTOCLAIM."""
AUTOCLAIM_COUNT_MAX = ((1 << 63) - 1) // 16
"""Redis refuses a COUNT whose buffer of IDs would overflow."""
_ATTEMPTS_PER_COUNT = 10
"""XAUTOCLAIM looks at no more than this many pending entries for each that it may return."""
_END_OF_TIME = (1 << 63) - 1
_IDLE_RUNS_MAX = 4096
"""Idle runs that are sorted by ID; where there are more, reading in ID order meets them soon."""


def claim(
    txn: Txn,
    name: bytes,
    group: bytes,
    consumer: bytes,
    min_idle_ms: int,
    ids: Sequence[StreamID],
    *,
    time_ms: int | None = None,
    retrycount: int | None = None,
    force: bool = False,
    justid: bool = False,
    last_id: StreamID | None = None,
) -> list[Entry]:
    """Take over pending entries as XCLAIM does; with ``justid`` the entries have no fields.

    ``time_ms`` is the Unix time of delivery to note; one in the future counts as now.
    """
    if retrycount is not None and not 0 <= retrycount <= COUNT_MAX:
        raise InvalidArgument("Invalid RETRYCOUNT value, must be >= 0")
    stream, found = group_of_key(txn, name, group)
    member = consumer_of(txn, found, consumer)
    if last_id is not None and last_id > found.last_delivered:
        found.last_delivered = last_id
        txn.member_changed(found)
    moment = txn.now_ms if time_ms is None or time_ms > txn.now_ms else max(0, time_ms)
    bound = _idle_bound(txn, min_idle_ms)
    claimed: list[Entry] = []
    counts: dict[bytes, int] = {}
    gone: set[bytes] = set()
    for eid in ids:
        packed = eid.packed
        pending = None if packed in gone else find(txn, found, packed)
        entry = entries.get(txn, stream, eid)
        if entry is None:
            if pending is not None:
                gone.add(packed)
            continue
        if packed in counts:  # claimed a moment ago by this very command
            if moment > bound:
                continue
            before = counts[packed]
        elif pending is not None:
            if pending.owned and pending.time_ms > bound:
                continue
            before = pending.deliveries
        elif force:
            before = 1
        else:
            continue
        counts[packed] = _count_after(before, retrycount, justid)
        claimed.append(Entry(eid, None) if justid else entry)
    take(txn, found, sorted(gone))
    _move(txn, found, counts, consumer, moment)
    if claimed:
        member.active_ms = txn.now_ms
    txn.member_changed(member)
    return claimed


def _idle_bound(txn: Txn, min_idle_ms: int) -> int:
    """Return the latest delivery that may be claimed: any at all where no idle time is asked for.

    Deliveries lie in the future when the clock has been set back.
    """
    return txn.now_ms - min_idle_ms if min_idle_ms > 0 else _END_OF_TIME


def _count_after(before: int, retrycount: int | None, justid: bool) -> int:
    if retrycount is not None:
        return retrycount
    return before if justid else min(before + 1, COUNT_MAX)


def _move(txn: Txn, group: GroupMeta, counts: dict[bytes, int], owner: bytes, time_ms: int) -> None:
    """Give the IDs of ``counts`` to ``owner`` with these delivery counts."""
    ids = sorted(counts)
    take(txn, group, ids)
    for count, same in groupby(ids, key=counts.__getitem__):
        place(txn, group, list(same), owner, time_ms, count)


def autoclaim(
    txn: Txn,
    name: bytes,
    group: bytes,
    consumer: bytes,
    min_idle_ms: int,
    start: StreamID = MIN_ID,
    count: int = AUTOCLAIM_COUNT,
    justid: bool = False,
) -> Claimed:
    """Scan the pending entries from ``start`` and take over those idle for ``min_idle_ms``."""
    if not 0 < count <= AUTOCLAIM_COUNT_MAX:
        raise InvalidArgument("COUNT must be > 0")
    stream, found = group_of_key(txn, name, group)
    member = consumer_of(txn, found, consumer)
    bound = _idle_bound(txn, min_idle_ms)
    claimed: list[Entry] = []
    counts: dict[bytes, int] = {}
    deleted: list[StreamID] = []
    scanned = _with_entries(txn, stream, found, start)
    for pending, entry in islice(scanned, count * _ATTEMPTS_PER_COUNT):
        if entry is None:
            deleted.append(StreamID.unpack(pending.id))
        elif not pending.owned or pending.time_ms <= bound:
            counts[pending.id] = _count_after(pending.deliveries, None, justid)
            claimed.append(Entry(entry.id, None) if justid else entry)
        if len(claimed) + len(deleted) == count:
            break
    following = next(scanned, None)
    cursor = MIN_ID if following is None else StreamID.unpack(following[0].id)
    take(txn, found, [eid.packed for eid in deleted])
    _move(txn, found, counts, consumer, txn.now_ms)
    if claimed:
        member.active_ms = txn.now_ms
    txn.member_changed(member)
    return Claimed(cursor, claimed, deleted)


def _with_entries(
    txn: Txn, stream: StreamMeta, group: GroupMeta, start: StreamID
) -> Iterator[tuple[Pending, Entry | None]]:
    """Yield the pending entries from ``start`` on, each with its message or None."""
    lower, upper = start.packed, b"\xff" * 16
    for run in runs_from(txn, group, lower):
        ids = list(ids_between(run, lower, upper))
        for eid, entry in zip(ids, entries.get_packed(txn, stream, ids), strict=True):
            yield pending_of(run, eid), entry


def pending_summary(txn: Txn, name: bytes, group: bytes) -> PendingSummary:
    """Return XPENDING's summary."""
    _, found = group_of_key(txn, name, group)
    first = found.runs.first(txn.batch)
    last = found.runs.floor(txn.batch, b"\xff" * 16)
    if first is None or last is None:
        return PendingSummary(0, None, None, {})
    counts = {
        member.name: pending_with(txn, found, member)
        for member in txn.catalog.consumers(txn, found)
    }
    return PendingSummary(
        pending_in(txn, found),
        StreamID.unpack(first.ids[0]),
        StreamID.unpack(last.ids[-1]),
        {name: count for name, count in counts.items() if count},
    )


def pending_range(
    txn: Txn,
    name: bytes,
    group: bytes,
    start: StreamID,
    end: StreamID,
    count: int,
    consumer: bytes | None = None,
    min_idle_ms: int = 0,
) -> list[PendingEntry]:
    """Return XPENDING's rows of ``start <= id <= end``; one ``consumer``'s where it is given.

    Entries given back belong to nobody: their idle time is -1, and every idle filter lets them by.
    """
    _, found = group_of_key(txn, name, group)
    if count <= 0 or start > end:
        return []
    lower, upper = start.packed, end.packed
    rows: list[PendingEntry] = []
    for run in _candidates(txn, found, lower, consumer, min_idle_ms):
        if run.anchor > upper:
            break
        if run.owned and min_idle_ms and txn.now_ms - run.time_ms < min_idle_ms:
            continue
        idle = max(0, txn.now_ms - run.time_ms) if run.owned else -1
        for eid in ids_between(run, lower, upper)[: count - len(rows)]:
            rows.append(PendingEntry(StreamID.unpack(eid), run.owner, idle, run.deliveries))
        if len(rows) == count:
            break
    return rows


def _candidates(
    txn: Txn, group: GroupMeta, lower: bytes, consumer: bytes | None, min_idle_ms: int
) -> Iterator[Run]:
    """Yield runs in ID order, from the index that has the fewest others in it."""
    if consumer is not None:
        member = txn.catalog.consumer(txn, group, consumer)
        return iter(()) if member is None else runs_of(txn, group, member, lower)
    if min_idle_ms > 0:
        idle = runs_by_time(txn, group, txn.now_ms - min_idle_ms)
        few = list(islice(idle, _IDLE_RUNS_MAX))
        if len(few) < _IDLE_RUNS_MAX:
            return iter(sorted(few))
    return runs_from(txn, group, lower)
