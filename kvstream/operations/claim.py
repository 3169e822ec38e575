"""XCLAIM, XAUTOCLAIM and XPENDING.

``Claim`` decides what becomes of pending entries. ``claim`` and ``autoclaim`` apply it in one turn,
``plan_claim`` and ``plan_autoclaim`` in steps (``operations/pel_plans.py``).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import NamedTuple, TypedDict, Unpack

from kvstream.errors import InvalidArgument
from kvstream.layout.keys import ID_BYTES
from kvstream.layout.rows import Rows
from kvstream.meta.pel import (
    COUNT_MAX,
    Change,
    Stretches,
    Targets,
    ids_between,
    note_renewal,
    plan,
    runs_by_time,
    runs_from,
    runs_of,
    signal_owned,
    stretches,
)
from kvstream.meta.pel_index import nacked_in, pending_by_consumer, pending_in
from kvstream.meta.records import ConsumerMeta, GroupMeta, StreamMeta
from kvstream.meta.runs import Run, Shared
from kvstream.meta.txn import Txn
from kvstream.operations.groups import consumer_of, group_of_key
from kvstream.operations.pel_plans import SteppedPelChange
from kvstream.operations.plans import Plan, Planning
from kvstream.operations.reads.pages import Steps
from kvstream.operations.reads.rows import read_ids
from kvstream.storage.batch import Row
from kvstream.types.ids import MAX_ID, MIN_ID, PACKED, StreamID, ascending_packed
from kvstream.types.images import PackedID
from kvstream.types.records import AnyEntry, BareEntry, PendingEntry, PendingSummary

AUTOCLAIM_COUNT = 100
"""Redis's default COUNT of XAUTOCLAIM."""
AUTOCLAIM_COUNT_MAX = ((1 << 63) - 1) // 16
"""Redis refuses a COUNT whose buffer of IDs would overflow."""
ATTEMPTS_PER_COUNT = 10
"""XAUTOCLAIM looks at no more than this many pending entries for each that it may return."""
_LAST = MAX_ID.packed
_END_OF_TIME = (1 << 63) - 1
_NO_REPEATS: Mapping[PackedID, int] = {}
_IDLE_RUNS_MAX = 4096
"""The most idle runs to sort by ID; if there are more, a scan in ID order soon finds some."""


Read = Callable[[Sequence[PackedID]], Sequence[Row | None]]
"""Returns the message rows of IDs; None for an entry that is not there."""


# --- what is claimed, in one turn and in steps --------------------------------------------------


@dataclass(slots=True)
class ClaimProgress:
    """The entries that a claim has found so far."""

    room: int | None = None
    """How many entries it may still claim or find deleted; None: any number."""
    rows: list[Row] = field(default_factory=list)
    """Messages of the claimed entries."""
    gone: list[PackedID] = field(default_factory=list)
    """Pending IDs whose message was deleted."""
    next: PackedID | None = None
    """The first ID that was not looked at because there was no room."""

    def take_room(self, ids: Sequence[PackedID], places: Sequence[int]) -> int:
        """Return how many of ``ids`` to look at; those at ``places`` use up room."""
        if self.room is None:
            return len(ids)
        looked = len(ids)
        if len(places) >= self.room:
            looked = places[self.room - 1] + 1 if self.room else 0
        self.room -= min(self.room, len(places))
        if looked < len(ids) and self.next is None:
            self.next = ids[looked]
        return looked


@dataclass(slots=True)
class Claim:
    """The rule by which one XCLAIM or XAUTOCLAIM takes over pending entries of a stream."""

    stream: StreamMeta
    owner: bytes
    bound: int
    """The latest delivery time at which an entry may be claimed."""
    time_ms: int
    """The delivery time of what is claimed."""
    retrycount: int | None = None
    force: bool = False
    justid: bool = False
    repeats: Mapping[PackedID, int] = field(default_factory=dict)
    """How often the request repeats an ID; if the new time allows it, it is claimed each time."""

    @property
    def claims_repeats(self) -> bool:
        return self.time_ms <= self.bound

    def may_take(self, run: Run | None) -> bool:
        if run is None or run.owned:
            return run is None or run.time_ms <= self.bound
        return self.force or not run.waits

    def decide(
        self, read: Read, progress: ClaimProgress, run: Run | None, ids: Sequence[PackedID]
    ) -> Targets:
        """Return what becomes of IDs of a run, or of IDs that are not pending; add to ``progress``.

        ``read`` returns the message rows of IDs.
        """
        if run is None and not self.force:
            return {}
        if self.may_take(run):
            looked = None if progress.room is None else progress.take_room(ids, range(len(ids)))
            rows = read(ids[:looked])
            live = [row for row in rows if row is not None]
        else:
            rows, live = read(ids), []
            if None not in rows:
                return {}
            places = [at for at, row in enumerate(rows) if row is None]
            rows = rows[: progress.take_room(ids, places)]
        progress.rows += live
        if len(live) == len(rows):
            return self._targets(run, ids[: len(rows)])
        targets = self._targets(run, [row[0][-ID_BYTES:] for row in live])
        if run is not None:
            gone = [eid for eid, row in zip(ids, rows, strict=False) if row is None]
            progress.gone += gone
            targets.update(dict.fromkeys(gone))
        return targets

    def _targets(self, run: Run | None, ids: Sequence[PackedID]) -> dict[PackedID, Shared | None]:
        before = 1 if run is None else run.deliveries
        targets: dict[PackedID, Shared | None] = dict.fromkeys(ids, self._state_after(before))
        if self.repeats and self.claims_repeats:
            again = [eid for eid in ids if eid in self.repeats]
            targets.update({eid: self._state_after(before, 1 + self.repeats[eid]) for eid in again})
        return targets

    def _state_after(self, before: int, times: int = 1) -> Shared:
        """Return the state of an entry that is claimed after ``before`` deliveries."""
        count = before if self.justid else min(before + times, COUNT_MAX)
        return self.owner, self.time_ms, count if self.retrycount is None else self.retrycount, 0

    def order_rows(self, rows: list[Row], ids: Sequence[PackedID]) -> list[Row]:
        """Return claimed rows in the order of the request's ``ids``."""
        by_id = {row[0][-ID_BYTES:]: row for row in rows}
        asked = ids if self.claims_repeats else dict.fromkeys(ids)
        return [by_id[eid] for eid in asked if eid in by_id]


def _change_by(
    txn: Txn,
    group: GroupMeta,
    rule: Claim,
    read: Read,
    progress: ClaimProgress,
    stretches: Stretches,
) -> Change:
    """Return the change that claims pending entries; add the claimed ones to ``progress``."""
    change = plan(txn, group, stretches, partial(rule.decide, read, progress))
    if progress.rows:
        Rows(progress.rows, len(rule.stream.prefix)).packed_ids()  # or raises Corruption
    return change


def refuse_retrycount(retrycount: int | None) -> None:
    """Raise InvalidArgument if a delivery count is out of range."""
    if retrycount is not None and not 0 <= retrycount <= COUNT_MAX:
        raise InvalidArgument("Invalid RETRYCOUNT value, must be >= 0")


def refuse_autoclaim_count(count: int) -> None:
    """Raise InvalidArgument if the COUNT of XAUTOCLAIM is out of range."""
    if not 0 < count <= AUTOCLAIM_COUNT_MAX:
        raise InvalidArgument("COUNT must be > 0")


def _count_repeats(ids: Sequence[PackedID], distinct: Sequence[PackedID]) -> Mapping[PackedID, int]:
    """Return how often a request with ``ids`` repeats each of them."""
    return Counter(ids) - Counter(distinct) if len(distinct) < len(ids) else {}


def advance(txn: Txn, group: GroupMeta, last_id: StreamID | None) -> None:
    """Move a group's last delivered ID forward to ``last_id``."""
    if last_id is not None and last_id > group.last_delivered:
        group.last_delivered = last_id
        txn.member_changed(group)


class RuleOptions(TypedDict, total=False):
    """The options by which XCLAIM decides, named as the arguments of ``claim``."""

    time_ms: int | None
    retrycount: int | None
    force: bool
    justid: bool


class ClaimOptions(RuleOptions, total=False):
    """All options of XCLAIM."""

    last_id: StreamID | None


def _rule_of(
    txn: Txn,
    stream: StreamMeta,
    owner: bytes,
    min_idle_ms: int,
    repeats: Mapping[PackedID, int] = _NO_REPEATS,
    time_ms: int | None = None,
    retrycount: int | None = None,
    force: bool = False,
    justid: bool = False,
) -> Claim:
    """Return the rule of a claim that begins now.

    A delivery time in the future counts as now. Without an idle time any entry may be claimed:
    deliveries lie in the future if the clock was set back.
    """
    now_ms = txn.now_ms
    bound = now_ms - min_idle_ms if min_idle_ms > 0 else _END_OF_TIME
    delivered_ms = now_ms if time_ms is None or time_ms > now_ms else max(0, time_ms)
    return Claim(stream, owner, bound, delivered_ms, retrycount, force, justid, repeats)


def _note_claimed(
    txn: Txn, name: bytes, group: GroupMeta, consumer: ConsumerMeta, claimed: bool
) -> None:
    """Record that a consumer was seen, and active if it claimed; wake readers if leases begin."""
    if claimed:
        consumer.active_ms = txn.now_ms
    txn.member_changed(consumer)
    signal_owned(txn, name, group)


def claim(
    txn: Txn,
    name: bytes,
    group_name: bytes,
    consumer_name: bytes,
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

    ``time_ms`` is the Unix time of delivery to set; one in the future counts as now.
    """
    refuse_retrycount(retrycount)
    stream, group = group_of_key(txn, name, group_name)
    consumer = consumer_of(txn, name, group, consumer_name)
    advance(txn, group, last_id)
    packed = [PACKED(*eid) for eid in ids]
    distinct = packed if len(packed) == 1 else ascending_packed(packed)
    repeats = _count_repeats(packed, distinct)
    rule = _rule_of(
        txn, stream, consumer_name, min_idle_ms, repeats, time_ms, retrycount, force, justid
    )
    progress = ClaimProgress()
    asked = list(stretches(txn, group, distinct))
    read = _reader(txn, rule, asked)
    _change_by(txn, group, rule, read, progress, asked).apply(txn, group)
    rows = progress.rows
    if distinct is not packed:
        rows = rule.order_rows(rows, packed)
    elif force:
        rows.sort()
    _note_claimed(txn, name, group, consumer, bool(rows))
    return _entries(rule, rows)


def renew(
    txn: Txn, name: bytes, group_name: bytes, consumer_name: bytes, ids: Sequence[StreamID]
) -> list[StreamID]:
    """Set the idle time of entries that are pending with a consumer to 0; return their IDs."""
    _, group = group_of_key(txn, name, group_name)
    kept: list[PackedID] = []

    def decide(run: Run | None, ids: Sequence[PackedID]) -> Targets:
        if run is None or not run.owned or run.owner != consumer_name:
            return {}
        kept.extend(ids)
        return dict.fromkeys(ids, (consumer_name, txn.now_ms, run.deliveries, 0))

    packed = ascending_packed([PACKED(*eid) for eid in ids])
    plan(txn, group, stretches(txn, group, packed), decide).apply(txn, group)
    if kept:
        note_renewal(txn, group)
        txn.member_changed(group)
    return [*map(StreamID.unpack, kept)]


def _reader(txn: Txn, rule: Claim, asked: list[tuple[Run | None, Sequence[PackedID]]]) -> Read:
    """Return a reader of message rows, which reads those of several short runs together."""
    ids = [some for run, some in asked if run is not None or rule.force] if asked[1:] else []
    if len(ids) < 2:
        return partial(read_ids, txn, rule.stream)
    every = [*chain.from_iterable(ids)]
    known = dict(zip(every, read_ids(txn, rule.stream, every), strict=True))
    return lambda ids: [known[eid] for eid in ids]


class AutoclaimResult(NamedTuple):
    """What ``autoclaim`` did: see ``Claimed`` and ``ClaimedIDs``."""

    cursor: StreamID
    entries: Sequence[AnyEntry]
    deleted: list[StreamID]


def autoclaim(
    txn: Txn,
    name: bytes,
    group_name: bytes,
    consumer_name: bytes,
    min_idle_ms: int,
    start: StreamID = MIN_ID,
    count: int = AUTOCLAIM_COUNT,
    justid: bool = False,
) -> AutoclaimResult:
    """Scan the pending entries from ``start`` and take over those idle for ``min_idle_ms``."""
    refuse_autoclaim_count(count)
    stream, group = group_of_key(txn, name, group_name)
    consumer = consumer_of(txn, name, group, consumer_name)
    rule = _rule_of(txn, stream, consumer_name, min_idle_ms, justid=justid)
    progress, scan = ClaimProgress(count), _Scan(start.packed, count * ATTEMPTS_PER_COUNT)
    read = partial(read_ids, txn, stream)
    pending = scan.take(txn, group, progress)
    _change_by(txn, group, rule, read, progress, pending).apply(txn, group)
    _note_claimed(txn, name, group, consumer, bool(progress.rows))
    cursor = scan.cursor if progress.next is None else StreamID.unpack(progress.next)
    return AutoclaimResult(
        cursor, _entries(rule, progress.rows), [*map(StreamID.unpack, progress.gone)]
    )


def _entries(rule: Claim, rows: list[Row]) -> Sequence[AnyEntry]:
    if rule.justid:
        return [BareEntry(StreamID.unpack(key[-ID_BYTES:])) for key, _ in rows]
    return Rows(rows, len(rule.stream.prefix))


@dataclass(slots=True)
class _Scan:
    """The pending entries that one XAUTOCLAIM looks at."""

    next: PackedID
    """The first ID that it has not looked at."""
    attempts: int
    """How many more entries it looks at, at most."""
    at_end: bool = False

    @property
    def cursor(self) -> StreamID:
        return MIN_ID if self.at_end else StreamID.unpack(self.next)

    def take(self, txn: Txn, group: GroupMeta, progress: ClaimProgress) -> Stretches:
        """Yield the next IDs of runs while ``progress`` has room."""
        start, self.at_end = self.next, True
        for run in runs_from(txn, group, start):
            ids = ids_between(run, start, _LAST)
            left = self.attempts if progress.room else 0
            if left and ids:
                yield run, ids[:left]
                if progress.next is not None:  # among these
                    return
            count = len(ids)
            if left < count:
                self.next, self.at_end = ids[left], False
                return
            if count:
                self.next = ids[-1] + b"\0"
                self.attempts = left - count


# --- very many entries, in steps ----------------------------------------------------------------


class ClaimedParts(NamedTuple):
    """The result of a claim in steps."""

    parts: list[Rows]
    """The entries, in order."""
    gone: list[PackedID]
    """Pending IDs whose messages were deleted."""
    justid: bool
    cursor: StreamID = MIN_ID
    """Where the next XAUTOCLAIM starts."""


def plan_claim(
    name: bytes,
    group_name: bytes,
    consumer_name: bytes,
    min_idle_ms: int,
    ids: Sequence[PackedID],
    last_id: StreamID | None = None,
    **asked: Unpack[RuleOptions],
) -> Plan[ClaimedParts]:
    """Plan XCLAIM of very many IDs, in any order; the arguments are those of ``claim``."""
    refuse_retrycount(asked.get("retrycount"))
    distinct = ascending_packed(ids)
    repeats = _count_repeats(ids, distinct)

    def plan(txn: Txn) -> Planning[ClaimedParts]:
        stream, group = group_of_key(txn, name, group_name)
        rule = _rule_of(txn, stream, consumer_name, min_idle_ms, repeats, **asked)
        stepped = _SteppedClaim(name, group, rule, distinct)
        txn = yield from stepped.plan(txn, len(distinct))
        consumer = consumer_of(txn, name, group, consumer_name)
        advance(txn, group, last_id)
        claimed = stepped.claim(txn, consumer)
        if not claimed.parts or distinct is ids:
            return claimed
        rows = rule.order_rows([row for part in claimed.parts for row in part.page], ids)
        return claimed._replace(parts=[Rows(rows, len(stream.prefix))])

    return plan


def plan_autoclaim(
    name: bytes,
    group_name: bytes,
    consumer_name: bytes,
    min_idle_ms: int,
    start: StreamID,
    count: int,
    justid: bool,
) -> Plan[ClaimedParts]:
    """Plan XAUTOCLAIM of very many entries; the arguments are those of ``autoclaim``."""
    refuse_autoclaim_count(count)

    def plan(txn: Txn) -> Planning[ClaimedParts]:
        stream, group = group_of_key(txn, name, group_name)
        rule = _rule_of(txn, stream, consumer_name, min_idle_ms, justid=justid)
        stepped = _SteppedAutoclaim(name, group, rule, start, count)
        txn = yield from stepped.plan(txn, min(count, txn.thresholds.long_autoclaim))
        consumer = consumer_of(txn, name, group, consumer_name)
        return stepped.claim(txn, consumer)._replace(cursor=stepped.cursor)

    return plan


class _SteppedClaim(SteppedPelChange[ClaimProgress]):
    """The claim of very many IDs."""

    def __init__(self, name: bytes, group: GroupMeta, rule: Claim, ids: Sequence[PackedID]) -> None:
        super().__init__(name, rule.stream, group, ids)
        self._rule = rule

    def _decide(self, txn: Txn, ids: list[PackedID]) -> tuple[Change, ClaimProgress]:
        progress, read = ClaimProgress(self._room()), partial(read_ids, txn, self._stream)
        asked = stretches(txn, self._group, ids)
        change = _change_by(txn, self._group, self._rule, read, progress, asked)
        progress.rows.sort()
        return change, progress

    def _room(self) -> int | None:
        """Return how many more entries may be claimed; None: any number."""
        return None

    def claim(self, txn: Txn, consumer: ConsumerMeta) -> ClaimedParts:
        """Apply the change; return the claimed entries, in the order of their IDs."""
        self.apply(txn)
        parts = [Rows(part.rows, len(self._stream.prefix)) for part in self.results if part.rows]
        _note_claimed(txn, self._name, self._group, consumer, bool(parts))
        gone = [eid for part in self.results for eid in part.gone]
        return ClaimedParts(parts, gone, self._rule.justid)


class _SteppedAutoclaim(_SteppedClaim):
    """The claim of very many pending entries, which steps find."""

    def __init__(
        self, name: bytes, group: GroupMeta, rule: Claim, start: StreamID, count: int
    ) -> None:
        super().__init__(name, group, rule, [])
        self._count, self._scan = count, _Scan(start.packed, count * ATTEMPTS_PER_COUNT)

    def _room(self) -> int:
        taken = [len(part.rows) + len(part.gone) for part in self.results]
        return max(0, self._count - sum(taken))

    def _find_more(self, txn: Txn) -> list[PackedID]:
        found: list[PackedID] = []
        step = ClaimProgress(txn.thresholds.step_rows if self._room() else 0)
        for _, ids in self._scan.take(txn, self._group, step):
            found += ids
            step.room = max(0, txn.thresholds.step_rows - len(found))
        return found

    @property
    def cursor(self) -> StreamID:
        """Where the next XAUTOCLAIM starts."""
        left = [part.next for part in self.results if part.next is not None]
        return self._scan.cursor if not left else StreamID.unpack(min(left))


# --- XPENDING -----------------------------------------------------------------------------------


SummaryRow = tuple[int, PackedID, PackedID, dict[bytes, int]]
"""The fields of PendingSummary, in its order; a tuple takes a tenth of the time."""


def pending_summary(txn: Txn, name: bytes, group_name: bytes) -> PendingSummary:
    """Return XPENDING's summary."""
    found = summary_row(txn, name, group_name)
    if found is None:
        return PendingSummary(0, None, None, {})
    count, first, last, by_consumer = found
    return PendingSummary(count, StreamID.unpack(first), StreamID.unpack(last), by_consumer)


def summary_row(txn: Txn, name: bytes, group_name: bytes) -> SummaryRow | None:
    """Return the row of XPENDING's summary; None if nothing is pending."""
    _, group = group_of_key(txn, name, group_name)
    ends = group.runs.ends(txn.batch)
    if ends is None:
        return None
    first, last = ends[0].packed[:ID_BYTES], ends[1].packed[-ID_BYTES:]
    return pending_in(txn, group), first, last, pending_by_consumer(txn, group)


def pending_range(
    txn: Txn,
    name: bytes,
    group_name: bytes,
    start: StreamID,
    end: StreamID,
    count: int,
    consumer_name: bytes | None = None,
    min_idle_ms: int = 0,
) -> list[PendingEntry]:
    """Return XPENDING's rows of ``start <= id <= end``; with ``consumer_name``, only its own.

    Entries given back have no owner and no idle time, and every idle filter includes them.
    """
    pieces = pending_pieces(txn, name, group_name, start, end, count, consumer_name, min_idle_ms)
    return [
        PendingEntry(
            StreamID.unpack(eid),
            piece.consumer,
            None if piece.idle_ms < 0 else piece.idle_ms,
            piece.deliveries,
        )
        for piece in pieces
        for eid in piece.ids
    ]


class Piece(NamedTuple):
    """Consecutive pending entries that share owner, idle time and delivery count."""

    ids: list[bytes]
    """Packed."""
    consumer: bytes
    idle_ms: int
    deliveries: int


def pending_pieces(
    txn: Txn,
    name: bytes,
    group_name: bytes,
    start: StreamID,
    end: StreamID,
    count: int,
    consumer_name: bytes | None = None,
    min_idle_ms: int = 0,
) -> Iterator[Piece]:
    """Return the rows of XPENDING, those that differ only in their IDs together."""
    _, group = group_of_key(txn, name, group_name)
    if count <= 0 or start > end:
        return iter(())
    runs = _candidates(txn, group, start.packed, consumer_name, min_idle_ms)
    at = txn.now_ms, txn.thresholds.runs_together
    parts = _pieces(*at, runs, start, end, count, consumer_name, min_idle_ms)
    return (part for part in parts if part is not None)


def pending_steps(
    txn: Txn,
    name: bytes,
    group_name: bytes,
    start: StreamID,
    end: StreamID,
    count: int,
    consumer_name: bytes | None = None,
    min_idle_ms: int = 0,
) -> Steps[Piece]:
    """Return steps that yield XPENDING's rows as of this call."""
    _, group = group_of_key(txn, name, group_name)
    first = group.runs.floor(txn.batch, start.packed)
    (runs,) = group.runs.snapshot(txn.batch, first.anchor if first else start.packed)
    at = txn.now_ms, txn.thresholds.runs_together
    return count_first(_pieces(*at, runs, start, end, count, consumer_name, min_idle_ms))


def count_first(parts: Iterator[Piece | None]) -> Steps[Piece]:
    """Return steps that yield the number of entries first, and then the pieces."""
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
    step: int,
    runs: Iterator[Run],
    start: StreamID,
    end: StreamID,
    count: int,
    consumer_name: bytes | None,
    min_idle_ms: int,
) -> Iterator[Piece | None]:
    """Yield the part of runs that lies in a range, and None after each ``step`` runs."""
    lower, upper = start.packed, end.packed
    left = count
    for at, run in enumerate(runs, 1):
        if not at % step:
            yield None
        if run.anchor > upper or left <= 0:
            return
        if consumer_name is not None and (run.rank or run.owner != consumer_name):
            continue
        if run.owned and min_idle_ms and now_ms - run.time_ms < min_idle_ms:
            continue
        ids = list(ids_between(run, lower, upper)[:left])
        if ids:
            left -= len(ids)
            idle = max(0, now_ms - run.time_ms) if run.owned else -1
            yield Piece(ids, run.owner, idle, run.deliveries)


def _candidates(
    txn: Txn, group: GroupMeta, lower: bytes, consumer_name: bytes | None, min_idle_ms: int
) -> Iterator[Run]:
    """Yield runs in ID order, from the index that needs the fewest of them."""
    if consumer_name is not None:
        consumer = txn.catalog.consumer(txn, group, consumer_name)
        return iter(()) if consumer is None else runs_of(txn, group, consumer, lower)
    if min_idle_ms > 0:
        idle = runs_by_time(txn, group, txn.now_ms - min_idle_ms)
        few = list(islice(idle, _IDLE_RUNS_MAX))
        ownerless = sum([run.length for run in few if not run.owned])
        if len(few) < _IDLE_RUNS_MAX and ownerless == nacked_in(txn, group):  # none waits
            return iter(sorted(few))
    return runs_from(txn, group, lower)
