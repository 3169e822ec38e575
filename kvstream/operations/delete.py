"""XDEL and XDELEX."""

from collections.abc import Callable, Sequence, Set
from enum import IntEnum

from kvstream.ids import StreamID, ascending
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.operations.entries import exists, live
from kvstream.operations.references import RefPolicy, drop_references, referenced
from kvstream.operations.trim import remove_entries

Live = Callable[[Txn, StreamMeta, list[StreamID]], list[StreamID]]
"""What tells which of some IDs, ascending and distinct, are live."""


class Outcome(IntEnum):
    """What XDELEX and XACKDEL answer for one ID."""

    MISSING = -1
    """No such entry; for XACKDEL: not pending in the group."""
    DELETED = 1
    KEPT = 2
    """Still referred to by a group, so ACKED left it."""


def delete(txn: Txn, name: bytes, ids: Sequence[StreamID], live: Live = live) -> int:
    """Delete entries and return how many there were; an ID given twice counts once."""
    stream = txn.stream(name)
    if stream is None:
        return 0
    txn.frees = True
    if len(ids) == 1:
        doomed = list(ids) if exists(txn, stream, ids[0]) else []
    else:
        doomed = live(txn, stream, ascending(ids))
    erase(txn, stream, doomed)
    return len(doomed)


def delete_with_policy(
    txn: Txn, name: bytes, ids: Sequence[StreamID], policy: RefPolicy, live: Live = live
) -> list[Outcome]:
    """Delete entries as XDELEX does, and tell for each ID what became of it.

    DELREF clears the groups' references of every ID given, also where the entry is gone already.
    """
    stream = txn.stream(name)
    if stream is None:
        return [Outcome.MISSING] * len(ids)
    txn.frees = True
    distinct = ascending(ids)
    kept = referenced(txn, stream, distinct) if policy is RefPolicy.ACKED else frozenset()
    doomed = delete_but(txn, stream, distinct, kept, live)
    if policy is RefPolicy.DELREF:
        drop_references(txn, stream, distinct)
    if len(doomed) == len(ids):
        return [Outcome.DELETED] * len(ids)
    outcomes = dict.fromkeys(kept, Outcome.KEPT) | dict.fromkeys(doomed, Outcome.DELETED)
    found = [outcomes.get(eid, Outcome.MISSING) for eid in ids]
    if len(distinct) < len(ids):
        _note_repeated(ids, found)
    return found


def delete_but(
    txn: Txn,
    stream: StreamMeta,
    ids: list[StreamID],
    kept: Set[StreamID],
    live: Live = live,
) -> list[StreamID]:
    """Delete those of ``ids``, ascending and distinct, that are there and not to be kept."""
    doomed = live(txn, stream, [eid for eid in ids if eid not in kept] if kept else ids)
    erase(txn, stream, doomed)
    return doomed


def _note_repeated(ids: Sequence[StreamID], outcomes: list[Outcome]) -> None:
    """Have an ID that was deleted be missing where it is given again."""
    seen: set[StreamID] = set()
    for at, eid in enumerate(ids):
        if eid in seen and outcomes[at] is Outcome.DELETED:
            outcomes[at] = Outcome.MISSING
        seen.add(eid)


def erase(txn: Txn, stream: StreamMeta, ids: list[StreamID]) -> None:
    """Delete live entries, in ascending order, and remember the greatest of them as deleted."""
    if not ids:
        return
    remove_entries(txn, stream, ids)
    top = ids[-1]
    if top > stream.max_deleted:
        stream.max_deleted = top
        txn.reshaped(stream)
