"""XACK, XACKDEL and XNACK: how entries leave a consumer's hands."""

from collections.abc import Sequence
from enum import StrEnum
from itertools import groupby

from kvstream.errors import InvalidArgument
from kvstream.meta.pel import COUNT_MAX, drop, find, give_back, take_counts, take_ids
from kvstream.meta.txn import Txn
from kvstream.operations.claim import refuse_retrycount
from kvstream.operations.delete import Live, Outcome, delete_but
from kvstream.operations.entries import live
from kvstream.operations.groups import group_of_key
from kvstream.operations.trim import RefPolicy, drop_references, referenced
from kvstream.types.ids import PACKED, StreamID, ascending, ascending_packed, ascending_parts


class NackMode(StrEnum):
    """What giving an entry back says about the attempt that was made."""

    SILENT = "SILENT"
    """It was not tried: one delivery fewer."""
    FAIL = "FAIL"
    """It failed: the deliveries stand."""
    FATAL = "FATAL"
    """It must not be tried again: the deliveries are set to the greatest number."""

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise InvalidArgument("mode must be SILENT, FAIL, or FATAL")


def acknowledge(txn: Txn, name: bytes, group: bytes, ids: Sequence[StreamID]) -> int:
    """Make entries no longer pending, and return how many were; missing key or group: 0."""
    return acknowledge_packed(txn, name, group, [PACKED(*eid) for eid in ids])


def acknowledge_packed(txn: Txn, name: bytes, group: bytes, ids: Sequence[bytes]) -> int:
    """Do the same with IDs as they are stored."""
    stream = txn.stream(name)
    found = None
    if stream is not None:
        found = stream.groups.get(group) or txn.catalog.group(txn, stream, group)
    if found is None:
        return 0
    txn.frees = True
    return drop(txn, found, ascending_packed(ids))


def acknowledge_and_delete(
    txn: Txn,
    name: bytes,
    group: bytes,
    ids: Sequence[StreamID],
    policy: RefPolicy,
    live: Live = live,
) -> list[Outcome]:
    """Acknowledge entries and delete their messages as XACKDEL does; each ID's outcome."""
    stream = txn.stream(name)
    found = None if stream is None else txn.catalog.group(txn, stream, group)
    if stream is None or found is None:
        return [Outcome.MISSING] * len(ids)
    txn.frees = True
    distinct = ascending(ids)
    taken = take_ids(txn, found, [PACKED(*eid) for eid in distinct])
    whole = len(taken) == len(distinct)
    acked = distinct if whole else [StreamID.unpack(eid) for eid in taken]
    kept = referenced(txn, stream, acked) if policy is RefPolicy.ACKED else frozenset()
    delete_but(txn, stream, acked, kept, live)
    if policy is RefPolicy.DELREF:
        drop_references(txn, stream, acked)
    if len(acked) == len(ids) and not kept:
        return [Outcome.DELETED] * len(ids)
    outcomes = {eid: Outcome.KEPT if eid in kept else Outcome.DELETED for eid in acked}
    return [outcomes.pop(eid, Outcome.MISSING) for eid in ids]  # one given again is not pending


def negative_acknowledge(
    txn: Txn,
    name: bytes,
    group: bytes,
    ids: Sequence[StreamID],
    mode: NackMode,
    retrycount: int | None = None,
    force: bool = False,
) -> int:
    """Give pending entries back to the group, owned by nobody, and return how many.

    ``force`` also takes entries of the stream that are not pending.
    """
    refuse_retrycount(retrycount)
    stream, found = group_of_key(txn, name, group)
    released = 0
    for some in ascending_parts(ids):  # one may come again
        packed = [PACKED(*eid) for eid in some]
        counts = take_counts(txn, found, packed)
        if force and len(counts) < len(some):
            others = [eid for eid in some if eid.packed not in counts]
            counts |= dict.fromkeys([eid.packed for eid in live(txn, stream, others)], 0)
        given = [eid for eid in packed if eid in counts]
        for count, same in groupby(given, key=counts.__getitem__):
            give_back(txn, found, list(same), count_after_nack(mode, count, retrycount))
        released += len(given)
    if released:
        txn.signal(name)
    return released


def count_after_nack(mode: NackMode, count: int, retrycount: int | None) -> int:
    if retrycount is not None:
        return retrycount
    if mode is NackMode.FATAL:
        return COUNT_MAX
    return max(0, count - 1) if mode is NackMode.SILENT else count


def is_pending(txn: Txn, name: bytes, group: bytes, eid: StreamID) -> bool:
    """Tell whether an entry is pending in a group."""
    _, found = group_of_key(txn, name, group)
    return find(txn, found, eid.packed) is not None
