"""XCLAIM and XAUTOCLAIM of very many entries, in steps: see ``moving``."""

from collections.abc import Sequence
from typing import NamedTuple

from kvstream.ids import MAX_ID, MIN_ID, StreamID
from kvstream.layout.keys import ID_BYTES
from kvstream.layout.rows import Rows
from kvstream.meta import weaving
from kvstream.meta.pending import Shared, ids_between, runs_from
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.runs import PackedID, Run
from kvstream.meta.txn import Txn
from kvstream.meta.weaving import Targets, Weaving
from kvstream.operations.claims import ATTEMPTS_PER_COUNT, advance, idle_bound, moment_of
from kvstream.operations.entries import live_rows
from kvstream.operations.groups import consumer_of
from kvstream.operations.hauls import count_after, refuse_damaged, refuse_retrycount
from kvstream.operations.moving import STEPS_FACTOR, LongMove
from kvstream.operations.witness import STEP_ROWS
from kvstream.storage.batch import Row

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

        woven = weaving.weave(txn, group, ids, decide)
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
