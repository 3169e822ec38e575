"""XACK, XCLAIM and XNACK of very many IDs, in steps between which others go on.

Steps look what the IDs are, and make ready what becomes of their runs (meta/weaving.py). What
others change meanwhile is told (meta/run_watch.py), and made ready anew. The last step puts all
new runs in the place of the old ones, in one commit. The command's clock stands still from its
beginning on, as it does in Redis.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from kvstream.ids import MAX_ID
from kvstream.meta import indexes, weaving
from kvstream.meta.pending import run_at
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.run_watch import RunWatch
from kvstream.meta.runs import PackedID, Run
from kvstream.meta.txn import Txn
from kvstream.meta.weaving import Targets, Weaving
from kvstream.operations.acks import NackMode, count_after_nack
from kvstream.operations.entries import live_rows
from kvstream.operations.groups import group_of_key
from kvstream.operations.hauls import refuse_retrycount
from kvstream.operations.witness import STEP_ROWS, TRIES, Witness

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
        indexes.replace(
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
        self._watch = indexes.watched(group)
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

        return weaving.weave(txn, group, ids, decide), count

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

        return weaving.weave(txn, group, ids, decide), count

    def _finish(self, txn: Txn, stream: StreamMeta, group: GroupMeta, found: list[int]) -> int:
        released = sum(found)
        if released:
            group.nack_rank = self._rank
            txn.member_changed(group)
            txn.signal(self._name)
        return released
