"""Pending entries: a group's PEL as runs, in three trees.

A run is a piece of the list that one consumer got at one moment: IDs in ascending order that share
owner, delivery time and delivery count. Reading a hundred entries writes one run, not three hundred
rows; a run of one is the plain case of an entry on its own.

::

    runs row     := group's tree(u64) anchor(id)            -> run
    run          := time_ms(u64) count(u64) rank(u64) owner_length(u32) owner id*
    consumer row := consumer's tree(u64) anchor(id)         -> empty
    times row    := times tree(u64) time_ms(u64) rank(u64) anchor(id)  -> empty

The anchor is the first ID that the run ever had. No two runs overlap: every ID between a run's
anchor and its last ID either is in that run or is not pending; so the run of an ID is the last one
anchored at or below it. Whoever puts IDs where a run already reaches splits that run first.
``rank`` is 0 for owned runs; entries given back (XNACK) are owned by nobody, have time 0 and a rank
that grows, so that the times tree gives them out first and in the order in which they came back.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from kvstream.errors import Corruption
from kvstream.layout.keys import ID_BYTES
from kvstream.meta.records import ConsumerMeta, GroupMeta
from kvstream.meta.txn import Txn

RUN_IDS_MAX = 128
"""IDs of one run: an acknowledgement rewrites what remains of it."""

COUNT_MAX = (1 << 63) - 1
"""The greatest delivery count: Redis's XNACK FATAL sets it, and it does not grow further."""

_HEAD = Struct(">QQQI")
_TIME = Struct(">QQ")

PackedID = bytes
"""The 16 bytes of a StreamID: what this module sorts and compares."""


class Run(NamedTuple):
    """IDs that share owner, delivery time and count."""

    anchor: PackedID
    ids: Sequence[PackedID]
    owner: bytes
    time_ms: int
    deliveries: int
    rank: int = 0

    @property
    def owned(self) -> bool:
        return self.rank == 0

    def encode(self) -> bytes:
        head = _HEAD.pack(self.time_ms, self.deliveries, self.rank, len(self.owner))
        return head + self.owner + b"".join(self.ids)

    @classmethod
    def decode(cls, anchor: bytes, value: bytes) -> "Run":
        time_ms, count, rank, length = _HEAD.unpack_from(value)
        start = _HEAD.size + length
        size = len(value) - start
        if size <= 0 or size % ID_BYTES:
            raise Corruption(f"a run of pending entries at {anchor.hex()} is damaged")
        ids = [value[at : at + ID_BYTES] for at in range(start, len(value), ID_BYTES)]
        return cls(anchor, ids, value[_HEAD.size : start], time_ms, count, rank)

    def times_suffix(self) -> bytes:
        return _TIME.pack(self.time_ms, self.rank) + self.anchor


class Pending(NamedTuple):
    """One pending entry."""

    id: PackedID
    owner: bytes
    time_ms: int
    deliveries: int
    rank: int

    @property
    def owned(self) -> bool:
        return self.rank == 0


def pending_of(run: Run, eid: PackedID) -> Pending:
    return Pending(eid, run.owner, run.time_ms, run.deliveries, run.rank)


# --- reading ------------------------------------------------------------------------------------


def run_at(txn: Txn, group: GroupMeta, eid: PackedID) -> Run | None:
    """Return the run whose stretch of IDs includes ``eid``, whether or not it is pending."""
    row = group.runs.floor(txn.batch, eid)
    if row is None:
        return None
    run = Run.decode(*row)
    return run if run.ids[-1] >= eid else None


def find(txn: Txn, group: GroupMeta, eid: PackedID) -> Pending | None:
    """Return the pending entry of an ID."""
    run = run_at(txn, group, eid)
    if run is None or run.ids[bisect_left(run.ids, eid)] != eid:
        return None
    return pending_of(run, eid)


def runs_from(txn: Txn, group: GroupMeta, start: PackedID) -> Iterator[Run]:
    """Yield the runs that may hold IDs at or above ``start``, in order."""
    first = group.runs.floor(txn.batch, start)
    for row in group.runs.scan(txn.batch, first[0] if first else b""):
        yield Run.decode(*row)


def runs_of(
    txn: Txn, group: GroupMeta, consumer: ConsumerMeta, start: PackedID = b""
) -> Iterator[Run]:
    """Yield the runs of one consumer that may hold IDs at or above ``start``, in order."""
    first = consumer.runs.floor(txn.batch, start)
    for anchor, _ in consumer.runs.scan(txn.batch, first[0] if first else b""):
        yield _run(txn, group, anchor)


def runs_by_time(txn: Txn, group: GroupMeta, latest_ms: int) -> Iterator[Run]:
    """Yield the runs delivered at ``latest_ms`` or before: those given back, then oldest first."""
    for suffix, _ in group.times.scan(txn.batch):
        if _TIME.unpack_from(suffix)[0] > latest_ms:
            return
        yield _run(txn, group, suffix[_TIME.size :])


def oldest_time(txn: Txn, group: GroupMeta) -> int | None:
    """Return the least delivery time of all pending entries."""
    row = group.times.first(txn.batch)
    return None if row is None else int(_TIME.unpack_from(row[0])[0])


def _run(txn: Txn, group: GroupMeta, anchor: bytes) -> Run:
    value = group.runs.get(txn.batch, anchor)
    if value is None:
        raise Corruption(f"group {group.name!r} has lost the run of pending entries {anchor.hex()}")
    return Run.decode(anchor, value)


def ids_between(run: Run, start: PackedID, end: PackedID) -> Sequence[PackedID]:
    """Return the run's IDs of ``start <= id <= end``."""
    return run.ids[bisect_left(run.ids, start) : bisect_right(run.ids, end)]


# --- changing -----------------------------------------------------------------------------------


def _tree_of(txn: Txn, group: GroupMeta, run: Run) -> ConsumerMeta | None:
    if not run.owned:
        return None
    return txn.catalog.owner(txn, group, run.owner)


def _put(txn: Txn, group: GroupMeta, run: Run) -> None:
    group.runs.put(txn.batch, run.anchor, run.encode())
    group.times.put(txn.batch, run.times_suffix(), b"")
    consumer = _tree_of(txn, group, run)
    if consumer is not None:
        consumer.runs.put(txn.batch, run.anchor, b"")


def _delete(txn: Txn, group: GroupMeta, run: Run) -> None:
    group.runs.delete(txn.batch, run.anchor)
    group.times.delete(txn.batch, run.times_suffix())
    consumer = _tree_of(txn, group, run)
    if consumer is not None:
        consumer.runs.delete(txn.batch, run.anchor)


def _count(txn: Txn, group: GroupMeta, run: Run, change: int) -> None:
    group.pending += change
    txn.member_changed(group)
    if not run.owned:
        group.nacked += change
        return
    consumer = txn.catalog.owner(txn, group, run.owner)
    consumer.pending += change
    txn.member_changed(consumer)


def place(
    txn: Txn,
    group: GroupMeta,
    ids: Sequence[PackedID],
    owner: bytes,
    time_ms: int,
    count: int,
    rank: int = 0,
) -> None:
    """Make ``ids``, ascending and none of them pending, pending."""
    at = 0
    while at < len(ids):
        _split_before(txn, group, ids[at])
        following = group.runs.first(txn.batch, ids[at])
        end = len(ids) if following is None else bisect_left(ids, following[0], at)
        end = min(end, at + RUN_IDS_MAX)
        run = Run(ids[at], ids[at:end], owner, time_ms, count, rank)
        _put(txn, group, run)
        _count(txn, group, run, end - at)
        at = end


def _split_before(txn: Txn, group: GroupMeta, eid: PackedID) -> None:
    """Cut the run that reaches over ``eid`` in two."""
    run = run_at(txn, group, eid)
    if run is None:
        return
    cut = bisect_left(run.ids, eid)
    _delete(txn, group, run)
    if cut:
        _put(txn, group, run._replace(ids=run.ids[:cut]))
    _put(txn, group, run._replace(anchor=run.ids[cut], ids=run.ids[cut:]))


def take(txn: Txn, group: GroupMeta, ids: Sequence[PackedID]) -> list[Pending]:
    """Make ``ids``, ascending and distinct, no longer pending; return those that were."""
    taken: list[Pending] = []
    at = 0
    while at < len(ids):
        run = run_at(txn, group, ids[at])
        if run is None:
            at += 1
            continue
        end = bisect_right(ids, run.ids[-1], at)
        taken += _take_from(txn, group, run, ids[at:end])
        at = end
    return taken


def _take_from(txn: Txn, group: GroupMeta, run: Run, ids: Sequence[PackedID]) -> list[Pending]:
    if ids == run.ids:
        found: Sequence[PackedID] = ids
        rest: list[PackedID] = []
    else:
        wanted = set(ids)
        found = [eid for eid in run.ids if eid in wanted]
        if not found:
            return []
        rest = [eid for eid in run.ids if eid not in wanted]
    if rest:
        group.runs.put(txn.batch, run.anchor, run._replace(ids=rest).encode())
    else:
        _delete(txn, group, run)
    _count(txn, group, run, -len(found))
    return [pending_of(run, eid) for eid in found]


def give_back(txn: Txn, group: GroupMeta, eid: PackedID, count: int) -> None:
    """Put an ID that is not pending at the end of the entries that belong to nobody."""
    group.nack_rank += 1
    place(txn, group, [eid], b"", 0, count, group.nack_rank)
