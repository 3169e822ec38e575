"""Planned changes of a group's pending entries: XACK, XNACK, XCLAIM, XAUTOCLAIM of very many IDs.

Steps plan the change of the runs that the IDs are in (``meta/pel.py``) and change nothing. A watch
tells which runs other commands have changed since; these are planned again. The last step applies
the whole change in one commit. The clock of the command stands still, as in Redis.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections.abc import Generator, Sequence
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from kvstream.meta import pel_index
from kvstream.meta.pel import Change, run_at
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.txn import Txn
from kvstream.operations.delete import StreamVersion
from kvstream.operations.plans import Progress
from kvstream.types.ids import MAX_ID
from kvstream.types.images import PackedID

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


class SteppedPelChange(ABC, Generic[F]):
    """The change of the runs of a group's pending IDs, planned in steps and applied as a whole."""

    def __init__(
        self,
        name: bytes,
        stream: StreamMeta,
        group: GroupMeta,
        ids: Sequence[PackedID],
        reads_messages: bool = True,
    ) -> None:
        """``ids`` are ascending and distinct; ``reads_messages``: decisions depend on messages."""
        self._name, self._stream, self._group, self._ids = name, stream, group, [*ids]
        self._version = StreamVersion.of(stream) if reads_messages else None
        self._watch = pel_index.watch(group)
        self._parts: list[_Part[F]] = []
        """The planned parts, in the order of IDs."""
        self._next = 0
        """The position of the first ID that was not planned."""
        self._again: list[PackedID] = []
        """IDs before that position that are to be planned again."""

    def plan(self, txn: Txn, count: int) -> Generator[Progress, Txn, Txn]:
        """Plan the change of about ``count`` IDs; return the transaction in which to apply it.

        After ``steps_factor`` times the steps that it needs without other commands, it plans all
        that is left in one step.
        """
        progress = Progress(self._holds)
        for _ in range(txn.thresholds.steps_factor * (count // txn.thresholds.step_rows + 1)):
            if self._plan_step(txn):
                return txn
            txn = yield progress
            self._replan_changed()
        while not self._plan_step(txn):
            pass
        return txn

    def apply(self, txn: Txn) -> int:
        """Change the runs as planned; return how many IDs were changed."""
        changes = [part.change for part in self._parts]
        change = Change(
            [run for each in changes for run in each.old],
            {anchor: run for each in changes for anchor, run in each.new.items()},
            sum([each.count for each in changes]),
        )
        rows = {anchor: row for part in self._parts for anchor, row in part.rows.items()}
        change.apply(txn, self._group, rows)
        return change.count

    @property
    def results(self) -> list[F]:
        """The results of the planned parts, in the order of IDs."""
        return [part.result for part in self._parts]

    @abstractmethod
    def _decide(self, txn: Txn, ids: list[PackedID]) -> tuple[Change, F]:
        """Return the change of some IDs, and its result for the command."""

    def _find_more(self, txn: Txn) -> list[PackedID]:
        """Return the IDs that follow those known so far."""
        return []

    def _holds(self, txn: Txn) -> bool:
        """Return whether the group still exists, and no message was deleted if they were read."""
        stream = txn.stream(self._name)
        if stream is None or (self._version and not self._version.is_current(stream)):
            return False
        return txn.catalog.group(txn, stream, self._group.name) is self._group

    def _has_more(self, txn: Txn) -> bool:
        if not self._again and self._next == len(self._ids):
            self._ids += self._find_more(txn)
        return bool(self._again) or self._next < len(self._ids)

    def _plan_step(self, txn: Txn) -> bool:
        """Plan some of the IDs; return whether all are planned and this step may apply them."""
        done, before = 0, self._next
        while self._has_more(txn):
            if done >= txn.thresholds.step_rows:
                return False
            done += self._plan_next(txn)
        return self._next - before <= txn.thresholds.last_step_ids

    def _replan_changed(self) -> None:
        """Discard the parts whose runs or messages other commands changed, to plan them again."""
        for first, last in self._watch.take():
            self._again += self._unplan(first, last)
        head = _head(self._stream)
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

    def _plan_next(self, txn: Txn) -> int:
        """Plan the next IDs, with all others in the same runs; return their number."""
        group = self._group
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
        change, found = self._decide(txn, ids)
        rows = {anchor: run.encode() for anchor, run in change.new.items()}
        part = _Part(first, last, ids, change, rows, found, _head(self._stream))
        insort(self._parts, part, key=_last)
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
        """Take the IDs up to ``last`` that are not planned yet, and return them."""
        end = bisect_right(self._again, last)
        ids = self._again[:end]
        del self._again[:end]
        end = bisect_right(self._ids, last, self._next)
        ids += self._ids[self._next : end]
        self._next = end
        return ids
