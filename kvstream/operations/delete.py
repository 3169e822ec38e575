"""XDEL and XDELEX, in one turn and in steps.

``delete`` and ``delete_with_policy`` decide which entries to delete. Their argument ``live`` finds
the live entries among some IDs. In one turn it reads their rows. ``plan_erasure`` reads the rows in
steps and calls the operation in the last step; ``live`` then returns the entries found, without
those that others have deleted (``meta/catalog.py``) or trimmed since.

While a long command runs, others may append entries to its stream, trim entries from its head, or
delete entries. ``StreamVersion`` tells whether entries were deleted or the last ID was set back.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeAlias, TypeVar

from kvstream.meta import nodes
from kvstream.meta.catalog import DeletionWatch
from kvstream.meta.compiled import plain
from kvstream.meta.events.keys import XDEL
from kvstream.meta.records import StreamMeta
from kvstream.meta.strings import Key
from kvstream.meta.txn import Txn
from kvstream.operations.plans import Plan, Planning, Progress
from kvstream.operations.reads.rows import exists, find_live
from kvstream.operations.trim import drop_references, find_referenced, remove_entries
from kvstream.types.ids import PACKED, StreamID, ascending
from kvstream.types.images import PackedID
from kvstream.types.options import RefPolicy
from kvstream.types.records import Outcome


@dataclass(frozen=True, slots=True)
class StreamVersion:
    """A stream as it was when a long command began to look at it."""

    stream: StreamMeta
    deletions: int

    @classmethod
    def of(cls, stream: StreamMeta) -> Self:
        return cls(stream, stream.deletions)

    def is_current(self, key: Key | None) -> bool:
        """Return whether no entry was deleted and the last ID was not set back since then."""
        return key is self.stream and self.stream.deletions == self.deletions


Live = Callable[[Txn, StreamMeta, list[StreamID]], list[StreamID]]
"""Returns the live ones of some IDs, ascending and distinct."""


def delete(txn: Txn, name: bytes, ids: Sequence[StreamID], live: Live = find_live) -> int:
    """Delete entries and return how many there were; a repeated ID counts once."""
    if len(ids) == 1:
        return delete_one(txn, name, PACKED(*ids[0]))
    stream = txn.stream(name)
    if stream is None:
        return 0
    txn.frees = True
    deleted = live(txn, stream, ascending(ids))
    erase(txn, stream, deleted)
    return len(deleted)


def delete_one(txn: Txn, name: bytes, packed: PackedID) -> int:
    """Delete an entry by its packed ID; return 1 if there was one."""
    if plain is not None:
        count = plain.delete(nodes.measure, txn, name, packed)
        if count >= 0:
            return count
    stream = txn.stream(name)
    if stream is None:
        return 0
    txn.frees = True
    eid = StreamID.unpack(packed)
    if not _is_live(txn, stream, eid, packed):
        return 0
    erase(txn, stream, [eid])
    return 1


def _is_live(txn: Txn, stream: StreamMeta, eid: StreamID, packed: PackedID) -> bool:
    """Return whether an entry is live: read its row unless its node's live IDs are known."""
    if not stream.length or not stream.first <= eid <= stream.last:
        return False
    node = nodes.node_in_memory(stream, eid)
    ids = None if node is None else nodes.live_ids(txn, stream, node)
    if ids is None:
        return exists(txn, stream, eid)
    return nodes.place_among(ids, packed) >= 0


def delete_with_policy(
    txn: Txn, name: bytes, ids: Sequence[StreamID], policy: RefPolicy, live: Live = find_live
) -> list[Outcome]:
    """Delete entries as XDELEX does; return each ID's outcome.

    DELREF removes the groups' references to every ID, even if its entry is already gone.
    """
    stream = txn.stream(name)
    if stream is None:
        return [Outcome.MISSING] * len(ids)
    txn.frees = True
    distinct = ascending(ids)
    kept = find_referenced(txn, stream, distinct) if policy is RefPolicy.ACKED else frozenset()
    deleted = delete_but(txn, stream, distinct, kept, live)
    if policy is RefPolicy.DELREF:
        drop_references(txn, stream, distinct)
    if len(deleted) == len(ids):
        return [Outcome.DELETED] * len(ids)
    outcomes = dict.fromkeys(kept, Outcome.KEPT) | dict.fromkeys(deleted, Outcome.DELETED)
    result = [outcomes.get(eid, Outcome.MISSING) for eid in ids]
    if len(distinct) < len(ids):
        _note_repeated(ids, result)
    return result


def delete_but(
    txn: Txn,
    stream: StreamMeta,
    ids: list[StreamID],
    kept: Set[StreamID],
    live: Live = find_live,
) -> list[StreamID]:
    """Delete the live entries among ``ids``, ascending and distinct, except those to keep."""
    deleted = live(txn, stream, [eid for eid in ids if eid not in kept] if kept else ids)
    erase(txn, stream, deleted)
    return deleted


def _note_repeated(ids: Sequence[StreamID], outcomes: list[Outcome]) -> None:
    """Set the outcome of a repeated ID to MISSING if the entry was deleted."""
    seen: set[StreamID] = set()
    for at, eid in enumerate(ids):
        if eid in seen and outcomes[at] is Outcome.DELETED:
            outcomes[at] = Outcome.MISSING
        seen.add(eid)


def erase(txn: Txn, stream: StreamMeta, ids: list[StreamID]) -> None:
    """Delete live entries, in ascending order, and update the stream's greatest deleted ID."""
    if not ids:
        return
    remove_entries(txn, stream, ids)
    if txn.wanted_events:
        txn.notify_stream(XDEL, stream)
    top = ids[-1]
    if top > stream.max_deleted:
        stream.max_deleted = top
        txn.record_changed(stream)


T = TypeVar("T")
Erasure: TypeAlias = Callable[[Txn, Live], T]
"""An operation that deletes entries of a stream; its second argument finds the live ones."""


def plan_erasure(name: bytes, ids: Sequence[StreamID], operation: Erasure[T]) -> Plan[T]:
    """Plan an operation that deletes some of ``ids``: find the live ones, then run it."""
    wanted = ascending(ids)

    def plan(txn: Txn) -> Planning[T]:
        stream = txn.stream(name)
        if stream is None:
            return operation(txn, find_live)
        watch = txn.catalog.deletions.watch(stream)
        progress = Progress(lambda txn: watch.holds(txn.stream(name)))
        found: list[StreamID] = []
        at = 0
        while True:
            end = bisect_right(wanted, stream.last, at)
            found += find_live(txn, stream, wanted[at : min(end, at + txn.thresholds.step_rows)])
            at += txn.thresholds.step_rows
            if at >= end:
                return operation(txn, partial(_find_live, watch, wanted, found))
            txn = yield progress

    return plan


def _find_live(
    watch: DeletionWatch,
    wanted: list[StreamID],
    found: list[StreamID],
    txn: Txn,
    stream: StreamMeta,
    ids: list[StreamID],
) -> list[StreamID]:
    """Return the live IDs among ``ids``; steps have found ``found`` of ``wanted`` to be live."""
    if not stream.length:
        return []
    live, gone = found[bisect_left(found, stream.first) :], watch.deleted_ids()
    if gone:
        live = [eid for eid in live if eid not in gone]
    if len(ids) == len(wanted):
        return live
    asked = set(ids)
    return [eid for eid in live if eid in asked]
