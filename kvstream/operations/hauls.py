"""What a claim takes over, run by run: rows that are handed on as they are, and IDs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

from kvstream.errors import InvalidArgument
from kvstream.layout.rows import Rows
from kvstream.layout.values import decode_checked
from kvstream.meta.pending import COUNT_MAX, drop, place
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.runs import PackedID, Run
from kvstream.meta.txn import Txn
from kvstream.operations.entries import live_rows
from kvstream.storage.batch import Row


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
