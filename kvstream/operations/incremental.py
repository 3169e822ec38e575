"""XACK, XCLAIM and XNACK of very many IDs, in steps between which others go on.

Steps look what the IDs are, and make ready what becomes of their runs (meta/pel.py). What
others change meanwhile is told (meta/runs.py), and made ready anew. The last step puts all
new runs in the place of the old ones, in one commit. The command's clock stands still from its
beginning on, as it does in Redis.

XCLAIM and XAUTOCLAIM of very many entries, in steps: see ``moving``.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from kvstream.layout.keys import ID_BYTES
from kvstream.layout.rows import Rows
from kvstream.meta import pel, pel_index
from kvstream.meta.pel import Shared, Targets, Weaving, ids_between, run_at, runs_from
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.runs import PackedID, Run, RunWatch
from kvstream.meta.txn import Txn
from kvstream.operations.ack import NackMode, count_after_nack
from kvstream.operations.claim import (
    ATTEMPTS_PER_COUNT,
    advance,
    count_after,
    idle_bound,
    moment_of,
    refuse_damaged,
    refuse_retrycount,
)
from kvstream.operations.delete import STEP_ROWS, TRIES, Witness
from kvstream.operations.entries import live_rows
from kvstream.operations.groups import consumer_of, group_of_key
from kvstream.storage.batch import Row
from kvstream.types.ids import MAX_ID, MIN_ID, StreamID

T = TypeVar("T")
F = TypeVar("F")
_last = attrgetter("last")
_LITTLE = 50
"""IDs that may be looked at in the last step for the first time."""
STEPS_FACTOR = 4
"""Others may have it take so many times the steps that it needs alone, and then it ends at once."""


class _Part(NamedTuple, Generic[F]):
    """What was made ready for some of the IDs, by what was there between two IDs."""

    first: PackedID
    last: PackedID
    ids: list[PackedID]
    weaving: Weaving
    found: F
    head: PackedID
    """The first entry of the stream by then."""


_EMPTY = MAX_ID.packed


def _head(stream: StreamMeta) -> PackedID:
    return stream.first.packed if stream.length else _EMPTY


class LongMove(Generic[F, T]):
    """What changes the runs of some pending IDs of one group. It happens in its last step."""

    def __init__(self, name: bytes, group: bytes, ids: Sequence[PackedID]) -> None:
        """``ids`` are ascending and distinct."""
        self._name, self._group, self._ids = name, group, list(ids)
        self._watch: RunWatch | None = None
        self._tries = 0

    def step(self, txn: Txn) -> T | None:
        """Look on; return what was done once all is made ready, None before."""
        found = self._find(txn)
        if found is None:
            return self._finish_without()
        stream, group = found
        if self._watch is None or not self._holds(stream, group):
            self._begin(txn, stream, group)
        self._reclaim_changed(stream)
        done, before = 0, self._next
        while self._again or self._next < len(self._ids) or self._extend(txn, stream, group):
            if done >= STEP_ROWS and self._may_go_on():
                return None
            done += self._make_ready(txn, stream, group)
        if self._next - before > _LITTLE and self._may_go_on():
            return None  # there is enough to be done in the last step
        self._prepare(txn, group)
        parts, self._watch = self._parts, None
        pel_index.replace(
            txn,
            group,
            [run for part in parts for run in part.weaving.old],
            {anchor: new for part in parts for anchor, new in part.weaving.new.items()},
        )
        return self._finish(txn, stream, group, [part.found for part in parts])

    def _may_go_on(self) -> bool:
        """Tell whether there is to be another step, and count it."""
        self._steps -= 1
        return self._tries <= TRIES and self._steps >= 0

    # --- what each command says -----------------------------------------------------------------

    def _find(self, txn: Txn) -> tuple[StreamMeta, GroupMeta] | None:
        return group_of_key(txn, self._name, self._group)

    def _finish_without(self) -> T:
        raise NotImplementedError

    def _weave(
        self, txn: Txn, stream: StreamMeta, group: GroupMeta, ids: list[PackedID]
    ) -> tuple[Weaving, F]:
        """Return what becomes of some IDs, and what is to be told of them."""
        raise NotImplementedError

    def _extend(self, txn: Txn, stream: StreamMeta, group: GroupMeta) -> bool:
        """Find further IDs; tell whether there were any."""
        return False

    def _prepare(self, txn: Txn, group: GroupMeta) -> None:
        """Do what comes before the runs are changed."""

    def _finish(self, txn: Txn, stream: StreamMeta, group: GroupMeta, found: list[F]) -> T:
        """Do what is left once the runs are changed."""
        raise NotImplementedError

    # --- making ready ---------------------------------------------------------------------------

    def _holds(self, stream: StreamMeta, group: GroupMeta) -> bool:
        return group is self._seen_group and self._seen.holds(stream)

    def _begin(self, txn: Txn, stream: StreamMeta, group: GroupMeta) -> None:
        if not self._tries:
            self._steps = STEPS_FACTOR * (len(self._ids) // STEP_ROWS + 1)
        self._tries += 1
        self._seen, self._seen_group = Witness.of(stream), group
        self._watch = pel_index.watched(group)
        self._parts: list[_Part[F]] = []
        """What is made ready, in the order of IDs."""
        self._next = 0
        """The first ID that was never looked at."""
        self._again: list[PackedID] = []
        """Those before it that are to be looked at anew."""

    def _reclaim_changed(self, stream: StreamMeta) -> None:
        """Have looked at anew what others have changed since."""
        assert self._watch is not None
        for first, last in self._watch.take():
            self._again += self._reclaimed(first, last)
        head = _head(stream)
        for part in [part for part in self._parts if part.head != head]:
            if (part.ids[0] < head and part.ids[-1] >= part.head) or _EMPTY in (head, part.head):
                self._again += self._reclaimed(part.first, part.last)
        self._again.sort()

    def _reclaimed(self, first: PackedID, last: PackedID) -> list[PackedID]:
        """Take away the parts that reach into a stretch; return their IDs."""
        parts = self._parts
        at = end = bisect_left(parts, first, key=_last)
        while end < len(parts) and parts[end].first <= last:
            end += 1
        ids = [eid for part in parts[at:end] for eid in part.ids]
        del parts[at:end]
        return ids

    def _make_ready(self, txn: Txn, stream: StreamMeta, group: GroupMeta) -> int:
        """Look at the IDs that come next; return how many they were."""
        ids = self._pulled(len(self._again[:STEP_ROWS]) or STEP_ROWS)
        while True:
            low, high = run_at(txn, group, ids[0]), run_at(txn, group, ids[-1])
            first = ids[0] if low is None else low.anchor
            last = ids[-1] if high is None else high.ids[-1]
            others = self._reclaimed(first, last) + self._pulled_up_to(last)
            if not others:
                break
            ids = sorted([*ids, *others])
        woven, found = self._weave(txn, stream, group, ids)
        insort(self._parts, _Part(first, last, ids, woven, found, _head(stream)), key=_last)
        return len(ids)

    def _pulled(self, count: int) -> list[PackedID]:
        if self._again:
            ids = self._again[:count]
            del self._again[:count]
        else:
            ids = self._ids[self._next : self._next + count]
            self._next += len(ids)
        return ids

    def _pulled_up_to(self, last: PackedID) -> list[PackedID]:
        """Take those that are not made ready up to an ID."""
        end = bisect_right(self._again, last)
        ids = self._again[:end]
        del self._again[:end]
        end = bisect_right(self._ids, last, self._next)
        ids += self._ids[self._next : end]
        self._next = end
        return ids


class LongAck(LongMove[int, int]):
    """XACK."""

    def _find(self, txn: Txn) -> tuple[StreamMeta, GroupMeta] | None:
        stream = txn.stream(self._name)
        group = None if stream is None else txn.catalog.group(txn, stream, self._group)
        return None if stream is None or group is None else (stream, group)

    def _finish_without(self) -> int:
        return 0

    def _holds(self, stream: StreamMeta, group: GroupMeta) -> bool:
        return group is self._seen_group  # messages are not looked at

    def _weave(
        self, txn: Txn, stream: StreamMeta, group: GroupMeta, ids: list[PackedID]
    ) -> tuple[Weaving, int]:
        count = 0

        def decide(run: Run | None, some: Sequence[PackedID]) -> Targets:
            nonlocal count
            if run is None:
                return {}
            count += len(some)
            return dict.fromkeys(some)

        return pel.weave(txn, group, ids, decide), count

    def _finish(self, txn: Txn, stream: StreamMeta, group: GroupMeta, found: list[int]) -> int:
        txn.frees = True
        return sum(found)


class LongNack(LongMove[int, int]):
    """XNACK of ascending IDs: so they are of one rank."""

    def __init__(
        self,
        name: bytes,
        group: bytes,
        ids: Sequence[PackedID],
        mode: NackMode,
        retrycount: int | None,
        force: bool,
    ) -> None:
        super().__init__(name, group, ids)
        refuse_retrycount(retrycount)
        self._mode, self._retrycount, self._force = mode, retrycount, force

    def _holds(self, stream: StreamMeta, group: GroupMeta) -> bool:
        if group.nack_rank + 1 != self._rank:
            return False
        return super()._holds(stream, group)

    def _begin(self, txn: Txn, stream: StreamMeta, group: GroupMeta) -> None:
        super()._begin(txn, stream, group)
        self._rank = group.nack_rank + 1

    def _weave(
        self, txn: Txn, stream: StreamMeta, group: GroupMeta, ids: list[PackedID]
    ) -> tuple[Weaving, int]:
        count = 0

        def decide(run: Run | None, some: Sequence[PackedID]) -> Targets:
            nonlocal count
            if run is None:
                if not self._force:
                    return {}
                rows = live_rows(txn, stream, some)
                some = [eid for eid, row in zip(some, rows, strict=True) if row is not None]
            count += len(some)
            deliveries = 0 if run is None else run.deliveries
            after = count_after_nack(self._mode, deliveries, self._retrycount)
            return dict.fromkeys(some, (b"", 0, after, self._rank))

        return pel.weave(txn, group, ids, decide), count

    def _finish(self, txn: Txn, stream: StreamMeta, group: GroupMeta, found: list[int]) -> int:
        released = sum(found)
        if released:
            group.nack_rank = self._rank
            txn.member_changed(group)
            txn.signal(self._name)
        return released


_LAST = MAX_ID.packed
_MANY = 500_000
"""Entries for which XAUTOCLAIM gets as many steps as it needs, whatever others do."""


class Seized(NamedTuple):
    """What was taken over."""

    parts: list[Rows]
    """The entries, in order."""
    gone: list[PackedID]
    """Pending IDs whose messages are gone."""
    cursor: StreamID = MIN_ID
    """Where XAUTOCLAIM is to go on."""

    def in_order(self, ids: Sequence[PackedID]) -> "Seized":
        """Return the same with the entries as they were asked for."""
        found = {row[0][-ID_BYTES:]: row for part in self.parts for row in part.page}
        rows = [found[eid] for eid in ids if eid in found]
        return self._replace(parts=[Rows(rows, part.prefix) for part in self.parts[:1]])


class _Found(NamedTuple):
    """What was found of some IDs."""

    rows: list[Row]
    gone: list[PackedID]
    """Those that were pending, and whose messages are gone."""
    left: list[PackedID]
    """Where there was no more room."""


class LongClaim(LongMove[_Found, Seized]):
    """XCLAIM of ascending IDs."""

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
        super().__init__(name, group, ids)
        refuse_retrycount(retrycount)
        self._consumer, self._min_idle_ms, self._time_ms = consumer, min_idle_ms, time_ms
        self._retrycount, self._force, self._justid = retrycount, force, justid
        self._last_id = last_id

    def _begin(self, txn: Txn, stream: StreamMeta, group: GroupMeta) -> None:
        super()._begin(txn, stream, group)
        self._moment = moment_of(txn, self._time_ms)
        self._bound = idle_bound(txn, self._min_idle_ms)

    def _weave(
        self, txn: Txn, stream: StreamMeta, group: GroupMeta, ids: list[PackedID]
    ) -> tuple[Weaving, _Found]:
        found = _Found([], [], [])

        def decide(run: Run | None, some: Sequence[PackedID]) -> Targets:
            if run is None and not self._force:
                return {}
            rows = self._rows(txn, stream, some)
            may_take = run is None or not run.owned or run.time_ms <= self._bound
            some, rows = self._within_count(found, some, rows, may_take)
            taken = [row for row in rows if row is not None] if may_take else []
            refuse_damaged(stream, taken, self._justid)
            found.rows.extend(taken)
            shared = self._shared_after(1 if run is None else run.deliveries)
            if len(taken) == len(some):
                return dict.fromkeys(some, shared)
            pairs = list(zip(some, rows, strict=True))
            if run is None:
                return {eid: shared for eid, row in pairs if row is not None}
            found.gone.extend([eid for eid, row in pairs if row is None])
            return {
                eid: None if row is None else shared
                for eid, row in pairs
                if may_take or row is None
            }

        woven = pel.weave(txn, group, ids, decide)
        found.rows.sort()
        return woven, found

    def _rows(self, txn: Txn, stream: StreamMeta, ids: Sequence[PackedID]) -> Sequence[Row | None]:
        return live_rows(txn, stream, ids)

    def _within_count(
        self,
        found: _Found,
        ids: Sequence[PackedID],
        rows: Sequence[Row | None],
        may_take: bool,
    ) -> tuple[Sequence[PackedID], Sequence[Row | None]]:
        """Return those of some IDs, and their rows, that there is room for besides ``found``."""
        return ids, rows

    def _shared_after(self, deliveries: int) -> Shared:
        count = count_after(deliveries, self._retrycount, self._justid)
        return self._consumer, self._moment, count, 0

    def _prepare(self, txn: Txn, group: GroupMeta) -> None:
        self._member = consumer_of(txn, group, self._consumer)
        advance(txn, group, self._last_id)

    def _finish(
        self, txn: Txn, stream: StreamMeta, group: GroupMeta, found: list[_Found]
    ) -> Seized:
        parts = [Rows(rows, len(stream.prefix)) for rows, *_ in found if rows]
        if parts:
            self._member.active_ms = txn.now_ms
        txn.member_changed(self._member)
        return Seized(parts, [eid for part in found for eid in part.gone])


class LongAutoclaim(LongClaim):
    """XAUTOCLAIM of many entries, which it finds by itself."""

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
        super().__init__(name, group, [], consumer, min_idle_ms, justid=justid)
        self._start, self._count = start.packed, count
        self._seen_rows: dict[PackedID, Row | None] = {}
        """What this step has read already."""

    def step(self, txn: Txn) -> Seized | None:
        self._seen_rows = {}
        return super().step(txn)

    def _begin(self, txn: Txn, stream: StreamMeta, group: GroupMeta) -> None:
        super()._begin(txn, stream, group)
        self._steps = max(self._steps, STEPS_FACTOR * (min(self._count, _MANY) // STEP_ROWS + 1))
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
            if len(self._ids) - before < STEP_ROWS:
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
        """Count which of some IDs of a run are taken or gone; return how many are looked at."""
        rows = live_rows(txn, stream, ids) if self._left else []
        self._seen_rows.update(zip(ids, rows, strict=False))
        if not run.owned or run.time_ms <= self._bound:
            looked = min(self._left, len(rows))
            self._left -= looked
            return looked
        for looked, row in enumerate(rows):
            if not self._left:
                return looked
            self._left -= row is None
        return len(rows)

    def _weave(
        self, txn: Txn, stream: StreamMeta, group: GroupMeta, ids: list[PackedID]
    ) -> tuple[Weaving, _Found]:
        done = [len(part.found.rows) + len(part.found.gone) for part in self._parts]
        self._room = self._count - sum(done)
        return super()._weave(txn, stream, group, ids)

    def _within_count(
        self,
        found: _Found,
        ids: Sequence[PackedID],
        rows: Sequence[Row | None],
        may_take: bool,
    ) -> tuple[Sequence[PackedID], Sequence[Row | None]]:
        """Do so: others may have given back meanwhile what could not be taken."""
        room = self._room - len(found.rows) - len(found.gone)
        if room >= len(ids):
            return ids, rows
        places = [at for at, row in enumerate(rows) if may_take or row is None]
        if room >= len(places):
            return ids, rows
        stop = places[room]
        found.left.append(ids[stop])
        return ids[:stop], rows[:stop]

    def _rows(self, txn: Txn, stream: StreamMeta, ids: Sequence[PackedID]) -> Sequence[Row | None]:
        seen = self._seen_rows
        try:
            return [seen[eid] for eid in ids]
        except KeyError:
            return live_rows(txn, stream, ids)

    def _finish(
        self, txn: Txn, stream: StreamMeta, group: GroupMeta, found: list[_Found]
    ) -> Seized:
        left = [eid for part in found for eid in part.left]
        if left:
            cursor = StreamID.unpack(min(left))
        else:
            cursor = MIN_ID if self._at_end else StreamID.unpack(self._next_id)
        return super()._finish(txn, stream, group, found)._replace(cursor=cursor)
