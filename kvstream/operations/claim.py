"""XCLAIM, XAUTOCLAIM and XPENDING: looking after what consumers have not acknowledged.

What a claim takes over, run by run: rows that are handed on as they are, and IDs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from typing import NamedTuple

from kvstream.errors import InvalidArgument
from kvstream.layout.keys import ID_BYTES
from kvstream.layout.rows import Rows
from kvstream.layout.values import decode_checked
from kvstream.meta.pel import (
    COUNT_MAX,
    drop,
    find,
    ids_between,
    place,
    runs_at,
    runs_by_time,
    runs_from,
    runs_of,
    take,
)
from kvstream.meta.pel_index import pending_in, pending_with
from kvstream.meta.records import ConsumerMeta, GroupMeta, StreamMeta
from kvstream.meta.runs import PackedID, Run
from kvstream.meta.txn import Txn
from kvstream.operations import entries
from kvstream.operations.entries import live_rows
from kvstream.operations.groups import consumer_of, group_of_key
from kvstream.operations.pages import RUNS_TOGETHER, Steps
from kvstream.storage.batch import Row
from kvstream.types.ids import MAX_ID, MIN_ID, PACKED, StreamID, is_ascending
from kvstream.types.records import AnyEntry, BareEntry, PendingEntry, PendingSummary


def count_after(before: int, retrycount: int | None, justid: bool) -> int:
    """Return the deliveries of an entry that is claimed."""
    if retrycount is not None:
        return retrycount
    return before if justid else min(before + 1, COUNT_MAX)


def refuse_retrycount(retrycount: int | None) -> None:
    """Raise InvalidArgument where deliveries cannot be so many."""
    if retrycount is not None and not 0 <= retrycount <= COUNT_MAX:
        raise InvalidArgument("Invalid RETRYCOUNT value, must be >= 0")


def refuse_damaged(stream: StreamMeta, rows: Sequence[Row], justid: bool) -> None:
    """Raise Corruption where rows cannot be read: before anything is claimed."""
    Rows(list(rows), len(stream.prefix)).packed_ids()
    if not justid:
        decode_checked([value for _, value in rows])


@dataclass(slots=True)
class Haul:
    """What one call takes over of a stream's group."""

    stream: StreamMeta
    bound: int
    """The latest delivery that may be claimed."""
    retrycount: int | None
    justid: bool
    rows: list[Row] = field(default_factory=list)
    moves: list[tuple[int, Sequence[PackedID]]] = field(default_factory=list)
    """What is claimed, in ascending order, with the deliveries that are to be noted."""
    gone: list[PackedID] = field(default_factory=list)
    """Pending IDs whose message is gone."""

    def look(self, txn: Txn, run: Run, ids: Sequence[PackedID], left: int | None = None) -> int:
        """Take over what may be of some IDs of a run; return how many were looked at.

        No more are taken over, or found to be gone, than are ``left``; None: all of them.
        """
        rows = live_rows(txn, self.stream, ids)
        may_take = not run.owned or run.time_ms <= self.bound
        most = len(ids) if left is None else min(left, len(ids))
        if may_take and None not in rows:
            self._add(run, ids[:most], rows[:most])  # type: ignore[arg-type]
            return most
        mine, gone, looked = 0, 0, 0
        for row in rows:
            if mine + gone == left:
                break
            looked += 1
            gone += row is None
            mine += may_take and row is not None
        pairs = list(zip(ids[:looked], rows[:looked], strict=True))
        self.gone += [eid for eid, row in pairs if row is None]
        if mine:
            there = [(eid, row) for eid, row in pairs if row is not None]
            self._add(run, [eid for eid, _ in there], [row for _, row in there])
        return looked

    def _add(self, run: Run, ids: Sequence[PackedID], rows: Sequence[Row]) -> None:
        refuse_damaged(self.stream, rows, self.justid)
        self.rows += rows
        self.moves.append((count_after(run.deliveries, self.retrycount, self.justid), ids))

    @property
    def entries(self) -> Rows:
        """The entries that were taken over."""
        return Rows(self.rows, len(self.stream.prefix))

    def move(self, txn: Txn, group: GroupMeta, owner: bytes, time_ms: int) -> None:
        """Give what was taken over to a consumer, and drop what is gone."""
        drop(txn, group, self.gone)
        moved = [eid for _, ids in self.moves for eid in ids]
        drop(txn, group, moved)
        for count, same in groupby(self.moves, key=itemgetter(0)):
            ids = [eid for _, each in same for eid in each]
            place(txn, group, ids, owner, time_ms, count)


AUTOCLAIM_COUNT = 100
"""Redis's default COUNT of XAUTOCLAIM."""
AUTOCLAIM_COUNT_MAX = ((1 << 63) - 1) // 16
"""Redis refuses a COUNT whose buffer of IDs would overflow."""
ATTEMPTS_PER_COUNT = 10
"""XAUTOCLAIM looks at no more than this many pending entries for each that it may return."""
_LAST = MAX_ID.packed
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
) -> Sequence[AnyEntry]:
    """Take over pending entries as XCLAIM does; with ``justid`` the entries have no fields.

    ``time_ms`` is the Unix time of delivery to note; one in the future counts as now.
    """
    refuse_retrycount(retrycount)
    stream, found = group_of_key(txn, name, group)
    member = consumer_of(txn, found, consumer)
    advance(txn, found, last_id)
    moment = moment_of(txn, time_ms)
    haul = Haul(stream, idle_bound(txn, min_idle_ms), retrycount, justid)
    packed = [PACKED(*eid) for eid in ids]
    claimed: Sequence[AnyEntry]
    if not force and is_ascending(packed):
        _look_by_runs(txn, found, packed, haul)
        haul.move(txn, found, consumer, moment)
        claimed = haul.entries
        if justid:
            claimed = [BareEntry(StreamID.unpack(key[-ID_BYTES:])) for key, _ in haul.rows]
    else:
        claimed = _claim_each(txn, found, consumer, ids, moment, force, haul)
    if claimed:
        member.active_ms = txn.now_ms
    txn.member_changed(member)
    return claimed


def advance(txn: Txn, group: GroupMeta, last_id: StreamID | None) -> None:
    """Have a group count as given at least all up to an ID."""
    if last_id is not None and last_id > group.last_delivered:
        group.last_delivered = last_id
        txn.member_changed(group)


def moment_of(txn: Txn, time_ms: int | None) -> int:
    """Return the time of delivery that a claim notes."""
    return txn.now_ms if time_ms is None or time_ms > txn.now_ms else max(0, time_ms)


def _look_by_runs(txn: Txn, group: GroupMeta, ids: list[bytes], haul: Haul) -> None:
    """Look at those of some IDs, ascending and distinct, that are pending."""
    for run, wanted in runs_at(txn, group, ids):
        if wanted != run.ids:
            there = set(run.ids)
            wanted = [eid for eid in wanted if eid in there]
        haul.look(txn, run, wanted)


def _claim_each(
    txn: Txn,
    group: GroupMeta,
    consumer: bytes,
    ids: Sequence[StreamID],
    moment: int,
    force: bool,
    haul: Haul,
) -> list[AnyEntry]:
    """Claim IDs one by one: they may come in any order and again, and be forced."""
    stream, bound = haul.stream, haul.bound
    claimed: list[AnyEntry] = []
    counts: dict[bytes, int] = {}
    gone: set[bytes] = set()
    for eid in ids:
        packed = eid.packed
        pending = None if packed in gone else find(txn, group, packed)
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
        counts[packed] = count_after(before, haul.retrycount, haul.justid)
        claimed.append(BareEntry(eid) if haul.justid else entry)
    take(txn, group, sorted(gone))
    _move(txn, group, counts, consumer, moment)
    return claimed


def idle_bound(txn: Txn, min_idle_ms: int) -> int:
    """Return the latest delivery that may be claimed: any at all where no idle time is asked for.

    Deliveries lie in the future when the clock has been set back.
    """
    return txn.now_ms - min_idle_ms if min_idle_ms > 0 else _END_OF_TIME


def _move(txn: Txn, group: GroupMeta, counts: dict[bytes, int], owner: bytes, time_ms: int) -> None:
    """Give the IDs of ``counts`` to ``owner`` with these delivery counts."""
    ids = sorted(counts)
    take(txn, group, ids)
    for count, same in groupby(ids, key=counts.__getitem__):
        place(txn, group, list(same), owner, time_ms, count)


class Taken(NamedTuple):
    """What ``autoclaim`` did: see ``Claimed`` and ``ClaimedIDs``."""

    cursor: StreamID
    entries: Sequence[AnyEntry]
    deleted: list[StreamID]


def autoclaim(
    txn: Txn,
    name: bytes,
    group: bytes,
    consumer: bytes,
    min_idle_ms: int,
    start: StreamID = MIN_ID,
    count: int = AUTOCLAIM_COUNT,
    justid: bool = False,
) -> Taken:
    """Scan the pending entries from ``start`` and take over those idle for ``min_idle_ms``."""
    if not 0 < count <= AUTOCLAIM_COUNT_MAX:
        raise InvalidArgument("COUNT must be > 0")
    stream, found = group_of_key(txn, name, group)
    member = consumer_of(txn, found, consumer)
    haul = Haul(stream, idle_bound(txn, min_idle_ms), None, justid)
    cursor = _look_from(txn, found, start.packed, count, haul)
    return taken_over(txn, found, member, haul, cursor)


def taken_over(
    txn: Txn, group: GroupMeta, member: ConsumerMeta, haul: Haul, cursor: StreamID
) -> Taken:
    """Give a consumer what was found, and tell what that is."""
    haul.move(txn, group, member.name, txn.now_ms)
    if haul.rows:
        member.active_ms = txn.now_ms
    txn.member_changed(member)
    claimed: Sequence[AnyEntry] = haul.entries
    if haul.justid:
        claimed = [BareEntry(StreamID.unpack(key[-ID_BYTES:])) for key, _ in haul.rows]
    return Taken(cursor, claimed, [StreamID.unpack(eid) for eid in haul.gone])


def _look_from(txn: Txn, group: GroupMeta, start: bytes, count: int, haul: Haul) -> StreamID:
    """Look at pending entries from an ID on until there are ``count``; return where it stopped."""
    attempts = count * ATTEMPTS_PER_COUNT
    for run in runs_from(txn, group, start):
        ids = ids_between(run, start, _LAST)
        at = 0
        while at < len(ids):
            left = count - len(haul.rows) - len(haul.gone)
            if not left or not attempts:
                return StreamID.unpack(ids[at])
            looked = haul.look(txn, run, ids[at : at + attempts], left)
            at += looked
            attempts -= looked
    return MIN_ID


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
    pieces = pending_pieces(txn, name, group, start, end, count, consumer, min_idle_ms)
    return [
        PendingEntry(StreamID.unpack(eid), piece.consumer, piece.idle_ms, piece.deliveries)
        for piece in pieces
        for eid in piece.ids
    ]


class Piece(NamedTuple):
    """Pending entries, in the order of their IDs, that share all but these."""

    ids: list[bytes]
    """As they are stored."""
    consumer: bytes
    idle_ms: int
    deliveries: int


def pending_pieces(
    txn: Txn,
    name: bytes,
    group: bytes,
    start: StreamID,
    end: StreamID,
    count: int,
    consumer: bytes | None = None,
    min_idle_ms: int = 0,
) -> Iterator[Piece]:
    """Return the same in pieces."""
    _, found = group_of_key(txn, name, group)
    if count <= 0 or start > end:
        return iter(())
    runs = _candidates(txn, found, start.packed, consumer, min_idle_ms)
    parts = _pieces(txn.now_ms, runs, start, end, count, consumer, min_idle_ms)
    return (part for part in parts if part is not None)


def pending_steps(
    txn: Txn,
    name: bytes,
    group: bytes,
    start: StreamID,
    end: StreamID,
    count: int,
    consumer: bytes | None = None,
    min_idle_ms: int = 0,
) -> Steps[Piece]:
    """Return the same in steps, as it is now."""
    _, found = group_of_key(txn, name, group)
    first = found.runs.floor(txn.batch, start.packed)
    (runs,) = found.runs.snapshot(txn.batch, first.anchor if first else start.packed)
    return counted(_pieces(txn.now_ms, runs, start, end, count, consumer, min_idle_ms))


def counted(parts: Iterator[Piece | None]) -> Steps[Piece]:
    """Return steps that tell the number of entries before their pieces."""
    pieces: list[Piece] = []
    for part in parts:
        if part is None:
            yield None
        else:
            pieces.append(part)
    yield sum(len(piece.ids) for piece in pieces)
    yield from pieces


def _pieces(
    now_ms: int,
    runs: Iterator[Run],
    start: StreamID,
    end: StreamID,
    count: int,
    consumer: bytes | None,
    min_idle_ms: int,
) -> Iterator[Piece | None]:
    """Yield what runs have in a range, and None now and then."""
    lower, upper = start.packed, end.packed
    left = count
    for at, run in enumerate(runs, 1):
        if not at % RUNS_TOGETHER:
            yield None
        if run.anchor > upper or left <= 0:
            return
        if consumer is not None and (run.rank or run.owner != consumer):
            continue
        if run.owned and min_idle_ms and now_ms - run.time_ms < min_idle_ms:
            continue
        ids = list(ids_between(run, lower, upper)[:left])
        if ids:
            left -= len(ids)
            idle = max(0, now_ms - run.time_ms) if run.owned else -1
            yield Piece(ids, run.owner, idle, run.deliveries)


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
