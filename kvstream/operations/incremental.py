"""XACK, XNACK, XCLAIM and XAUTOCLAIM of very many IDs, in steps between which other commands run.

Steps plan the change of the runs that the IDs are in (``meta/pel.py``) and change nothing. A watch
tells which runs other commands have changed since; these are planned again. The last step applies
the whole plan in one commit, so the command happens in its last step. Its clock stands still, as a
command's clock does in Redis. The short forms use the same decision functions, ``Claim.decide`` and
``Nack.decide``.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from kvstream.layout.rows import Rows
from kvstream.meta import pel, pel_index
from kvstream.meta.pel import (
    Change,
    Targets,
    ids_between,
    run_at,
    runs_from,
    signal_freed,
    signal_owned,
)
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.runs import Run, RunWatch
from kvstream.meta.txn import Txn
from kvstream.operations.ack import Nack, note_released, stream_and_group
from kvstream.operations.claim import (
    ATTEMPTS_PER_COUNT,
    Claim,
    ClaimProgress,
    advance,
    delivery_time,
    idle_bound,
    looked_at,
    note_claimed,
    plan_claim,
    refuse_autoclaim_count,
    refuse_retrycount,
    repeated,
)
from kvstream.operations.delete import StreamVersion
from kvstream.operations.entries import live_rows
from kvstream.operations.groups import consumer_of, group_of_key
from kvstream.storage.batch import Row
from kvstream.types.ids import MAX_ID, MIN_ID, StreamID, ascending_packed
from kvstream.types.images import PackedID

T = TypeVar("T")
F = TypeVar("F")
_last = attrgetter("last")


class _Part(NamedTuple, Generic[F]):
    """The planned change of some of the IDs, made from the runs between ``first`` and ``last``."""

    first: PackedID
    last: PackedID
    ids: list[PackedID]
    change: Change
    rows: dict[PackedID, bytes]
    """The new runs, encoded before the last step."""
    result: F
    head: PackedID
    """The first entry of the stream when the part was planned."""


_EMPTY = MAX_ID.packed


def _head(stream: StreamMeta) -> PackedID:
    return stream.first.packed if stream.length else _EMPTY


class LongChange(Generic[F, T]):
    """A command that changes the runs of pending IDs of one group in its last step."""

    def __init__(self, name: bytes, group: bytes, ids: Sequence[PackedID]) -> None:
        """``ids`` are ascending and distinct."""
        self._name, self._group, self._ids = name, group, list(ids)
        self._watch: RunWatch | None = None
        self._tries = 0

    def step(self, txn: Txn) -> T | None:
        """Plan more of the change; return the result in the last step, None before."""
        found = self._find(txn)
        if found is None:
            return self._finish_without()
        stream, group = found
        if self._watch is None or not self._holds(stream, group):
            self._begin(txn, stream, group)
        self._replan_changed(stream)
        done, before = 0, self._next
        while self._again or self._next < len(self._ids) or self._extend(txn, stream, group):
            if done >= txn.thresholds.step_rows and self._may_go_on(txn):
                return None
            done += self._plan_next(txn, stream, group)
        if self._next - before > txn.thresholds.last_step_ids and self._may_go_on(txn):
            return None  # the last step has enough to do
        self._prepare(txn, group)
        parts, self._watch = self._parts, None
        change = Change(
            [run for part in parts for run in part.change.old],
            {anchor: run for part in parts for anchor, run in part.change.new.items()},
            sum(part.change.count for part in parts),
        )
        change.apply(
            txn, group, {anchor: row for part in parts for anchor, row in part.rows.items()}
        )
        return self._finish(txn, stream, group, [part.result for part in parts])

    def _may_go_on(self, txn: Txn) -> bool:
        """Count a step; return whether there may be another one."""
        self._steps -= 1
        return self._tries <= txn.thresholds.tries and self._steps >= 0

    # --- what each command defines --------------------------------------------------------------

    def _find(self, txn: Txn) -> tuple[StreamMeta, GroupMeta] | None:
        return group_of_key(txn, self._name, self._group)

    def _finish_without(self) -> T:
        raise NotImplementedError

    def _plan(
        self, txn: Txn, stream: StreamMeta, group: GroupMeta, ids: list[PackedID]
    ) -> tuple[Change, F]:
        """Return the change of some IDs, and what ``_finish`` needs to know of it."""
        raise NotImplementedError

    def _extend(self, txn: Txn, stream: StreamMeta, group: GroupMeta) -> bool:
        """Find more IDs; return whether there are any."""
        return False

    def _prepare(self, txn: Txn, group: GroupMeta) -> None:
        """Do what comes before the change of runs."""

    def _finish(self, txn: Txn, stream: StreamMeta, group: GroupMeta, results: list[F]) -> T:
        """Do what comes after the change of runs, and return the result."""
        raise NotImplementedError

    # --- planning -------------------------------------------------------------------------------

    def _holds(self, stream: StreamMeta, group: GroupMeta) -> bool:
        return group is self._seen_group and self._seen.is_current(stream)

    def _begin(self, txn: Txn, stream: StreamMeta, group: GroupMeta) -> None:
        if not self._tries:
            steps = len(self._ids) // txn.thresholds.step_rows + 1
            self._steps = txn.thresholds.steps_factor * steps
        self._tries += 1
        self._seen, self._seen_group = StreamVersion.of(stream), group
        self._watch = pel_index.watch(group)
        self._parts: list[_Part[F]] = []
        """The planned parts, in the order of IDs."""
        self._next = 0
        """The position of the first ID that was not planned."""
        self._again: list[PackedID] = []
        """IDs before that position that are to be planned again."""

    def _replan_changed(self, stream: StreamMeta) -> None:
        """Plan again the parts whose runs, or messages, other commands have changed."""
        assert self._watch is not None
        for first, last in self._watch.take():
            self._again += self._unplan(first, last)
        head = _head(stream)
        for part in [part for part in self._parts if part.head != head]:
            if (part.ids[0] < head and part.ids[-1] >= part.head) or _EMPTY in (head, part.head):
                self._again += self._unplan(part.first, part.last)
        self._again.sort()

    def _unplan(self, first: PackedID, last: PackedID) -> list[PackedID]:
        """Remove the parts that overlap a stretch; return their IDs."""
        parts = self._parts
        at = end = bisect_left(parts, first, key=_last)
        while end < len(parts) and parts[end].first <= last:
            end += 1
        ids = [eid for part in parts[at:end] for eid in part.ids]
        del parts[at:end]
        return ids

    def _plan_next(self, txn: Txn, stream: StreamMeta, group: GroupMeta) -> int:
        """Plan the next IDs; return how many they are."""
        most = txn.thresholds.step_rows
        ids = self._next_ids(min(len(self._again), most) or most)
        while True:
            low, high = run_at(txn, group, ids[0]), run_at(txn, group, ids[-1])
            first = ids[0] if low is None else low.anchor
            last = ids[-1] if high is None else high.ids[-1]
            others = self._unplan(first, last) + self._ids_up_to(last)
            if not others:
                break
            ids = sorted([*ids, *others])
        change, found = self._plan(txn, stream, group, ids)
        rows = {anchor: run.encode() for anchor, run in change.new.items()}
        insort(self._parts, _Part(first, last, ids, change, rows, found, _head(stream)), key=_last)
        return len(ids)

    def _next_ids(self, count: int) -> list[PackedID]:
        if self._again:
            ids = self._again[:count]
            del self._again[:count]
        else:
            ids = self._ids[self._next : self._next + count]
            self._next += len(ids)
        return ids

    def _ids_up_to(self, last: PackedID) -> list[PackedID]:
        """Remove the IDs up to ``last`` from those that are to be planned, and return them."""
        end = bisect_right(self._again, last)
        ids = self._again[:end]
        del self._again[:end]
        end = bisect_right(self._ids, last, self._next)
        ids += self._ids[self._next : end]
        self._next = end
        return ids


class LongAck(LongChange[int, int]):
    """XACK."""

    def _find(self, txn: Txn) -> tuple[StreamMeta, GroupMeta] | None:
        return stream_and_group(txn, self._name, self._group)

    def _finish_without(self) -> int:
        return 0

    def _holds(self, stream: StreamMeta, group: GroupMeta) -> bool:
        return group is self._seen_group  # it does not look at messages

    def _plan(
        self, txn: Txn, stream: StreamMeta, group: GroupMeta, ids: list[PackedID]
    ) -> tuple[Change, int]:
        change = pel.plan(group, pel.stretches(txn, group, ids), _drop)
        return change, change.count

    def _finish(self, txn: Txn, stream: StreamMeta, group: GroupMeta, results: list[int]) -> int:
        txn.frees = True
        signal_freed(txn, self._name, group)
        return sum(results)


def _drop(run: Run | None, ids: Sequence[PackedID]) -> Targets:
    return {} if run is None else dict.fromkeys(ids)


class LongNack(LongChange[int, int]):
    """XNACK of ascending IDs, which share one rank."""

    def __init__(self, name: bytes, group: bytes, ids: Sequence[PackedID], nack: Nack) -> None:
        super().__init__(name, group, ids)
        self._nack = nack

    def _holds(self, stream: StreamMeta, group: GroupMeta) -> bool:
        return group.nack_rank + 1 == self._rank and super()._holds(stream, group)

    def _begin(self, txn: Txn, stream: StreamMeta, group: GroupMeta) -> None:
        super()._begin(txn, stream, group)
        self._rank = group.nack_rank + 1

    def _plan(
        self, txn: Txn, stream: StreamMeta, group: GroupMeta, ids: list[PackedID]
    ) -> tuple[Change, int]:
        decide = partial(self._nack.decide, txn, stream, self._rank)
        change = pel.plan(group, pel.stretches(txn, group, ids), decide)
        return change, change.count

    def _finish(self, txn: Txn, stream: StreamMeta, group: GroupMeta, results: list[int]) -> int:
        note_released(txn, self._name, group, self._rank, sum(results))
        return sum(results)


_LAST = MAX_ID.packed


class ClaimedParts(NamedTuple):
    """The result of a claim."""

    parts: list[Rows]
    """The entries, in order."""
    gone: list[PackedID]
    """Pending IDs whose messages were deleted."""
    cursor: StreamID = MIN_ID
    """Where the next XAUTOCLAIM starts."""


class LongClaim(LongChange[ClaimProgress, ClaimedParts]):
    """XCLAIM."""

    def __init__(
        self,
        name: bytes,
        group: bytes,
        ids: Sequence[PackedID],
        consumer: bytes,
        min_idle_ms: int,
        *,
        time_ms: int | None = None,
        retrycount: int | None = None,
        force: bool = False,
        justid: bool = False,
        last_id: StreamID | None = None,
    ) -> None:
        """``ids`` are in any order, and may repeat."""
        distinct = ascending_packed(ids)
        super().__init__(name, group, distinct)
        self._asked, self._is_unordered = ids, distinct is not ids
        self._repeats = repeated(ids, distinct)
        refuse_retrycount(retrycount)
        self._consumer, self._min_idle_ms, self._time_ms = consumer, min_idle_ms, time_ms
        self._retrycount, self._force, self._justid = retrycount, force, justid
        self._last_id = last_id

    def _begin(self, txn: Txn, stream: StreamMeta, group: GroupMeta) -> None:
        super()._begin(txn, stream, group)
        self._rule = Claim(
            stream,
            self._consumer,
            idle_bound(txn, self._min_idle_ms),
            delivery_time(txn, self._time_ms),
            self._retrycount,
            self._force,
            self._justid,
            self._repeats,
        )

    def _plan(
        self, txn: Txn, stream: StreamMeta, group: GroupMeta, ids: list[PackedID]
    ) -> tuple[Change, ClaimProgress]:
        progress = ClaimProgress(self._room())
        read, asked = partial(self._rows, txn, stream), pel.stretches(txn, group, ids)
        change = plan_claim(group, self._rule, read, progress, asked)
        progress.rows.sort()
        return change, progress

    def _room(self) -> int | None:
        """Return how many more entries may be claimed."""
        return None

    def _rows(self, txn: Txn, stream: StreamMeta, ids: Sequence[PackedID]) -> Sequence[Row | None]:
        return live_rows(txn, stream, ids)

    def _prepare(self, txn: Txn, group: GroupMeta) -> None:
        self._member = consumer_of(txn, self._name, group, self._consumer)
        advance(txn, group, self._last_id)

    def _finish(
        self, txn: Txn, stream: StreamMeta, group: GroupMeta, results: list[ClaimProgress]
    ) -> ClaimedParts:
        prefix = len(stream.prefix)
        parts = [Rows(part.rows, prefix) for part in results if part.rows]
        note_claimed(txn, self._member, bool(parts))
        signal_owned(txn, self._name, group)
        if parts and self._is_unordered:
            rows = [row for part in parts for row in part.page]
            parts = [Rows(self._rule.in_order(rows, self._asked), prefix)]
        return ClaimedParts(parts, [eid for part in results for eid in part.gone])


class LongAutoclaim(LongClaim):
    """XAUTOCLAIM, which finds its entries itself."""

    def __init__(
        self,
        name: bytes,
        group: bytes,
        consumer: bytes,
        min_idle_ms: int,
        start: StreamID,
        count: int,
        justid: bool,
    ) -> None:
        refuse_autoclaim_count(count)
        super().__init__(name, group, [], consumer, min_idle_ms, justid=justid)
        self._start, self._count = start.packed, count
        self._seen_rows: dict[PackedID, Row | None] = {}
        """Rows that this step has read."""

    def step(self, txn: Txn) -> ClaimedParts | None:
        self._seen_rows = {}
        return super().step(txn)

    def _begin(self, txn: Txn, stream: StreamMeta, group: GroupMeta) -> None:
        super()._begin(txn, stream, group)
        self._steps = max(
            self._steps,
            txn.thresholds.steps_factor
            * (min(self._count, txn.thresholds.long_autoclaim) // txn.thresholds.step_rows + 1),
        )
        self._ids, self._left = [], self._count
        self._attempts = self._count * ATTEMPTS_PER_COUNT
        self._next_id = self._start
        """The first ID that was not looked at."""
        self._at_end = False

    def _extend(self, txn: Txn, stream: StreamMeta, group: GroupMeta) -> bool:
        start, before = self._next_id, len(self._ids)
        self._at_end = True
        for run in runs_from(txn, group, start):
            ids = ids_between(run, start, _LAST)
            looked = 0
            if len(self._ids) - before < txn.thresholds.step_rows:
                looked = self._look(txn, stream, run, ids[: self._attempts])
                self._ids += ids[:looked]
                self._attempts -= looked
            if looked < len(ids):
                self._next_id, self._at_end = ids[looked], False
                break
            if ids:
                self._next_id = ids[-1] + b"\0"
        return len(self._ids) > before

    def _look(self, txn: Txn, stream: StreamMeta, run: Run, ids: Sequence[PackedID]) -> int:
        """Return how many IDs of a run to look at, and count those that use up room."""
        rows = live_rows(txn, stream, ids) if self._left else []
        self._seen_rows.update(zip(ids, rows, strict=False))
        places: Sequence[int] = range(len(rows))
        if not self._rule.may_take(run):
            places = [at for at, row in enumerate(rows) if row is None]
        looked = looked_at(self._left, len(rows), places)
        self._left -= min(self._left, len(places))
        return looked

    def _room(self) -> int:
        taken = [len(part.result.rows) + len(part.result.gone) for part in self._parts]
        return max(0, self._count - sum(taken))

    def _rows(self, txn: Txn, stream: StreamMeta, ids: Sequence[PackedID]) -> Sequence[Row | None]:
        seen = self._seen_rows
        try:
            return [seen[eid] for eid in ids]
        except KeyError:
            return live_rows(txn, stream, ids)

    def _finish(
        self, txn: Txn, stream: StreamMeta, group: GroupMeta, results: list[ClaimProgress]
    ) -> ClaimedParts:
        left = [part.next for part in results if part.next is not None]
        if left:
            cursor = StreamID.unpack(min(left))
        else:
            cursor = MIN_ID if self._at_end else StreamID.unpack(self._next_id)
        return super()._finish(txn, stream, group, results)._replace(cursor=cursor)
