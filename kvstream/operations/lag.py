"""How far a group has come: Redis's entries-read and lag, which sometimes cannot be known.

The rules are those of Redis 7.0 with the later corrections; ``nodes.live_after`` counts exactly,
where Redis's own numbers give up.
"""

from collections.abc import Sequence

from kvstream.ids import MAX_ID, MIN_ID, StreamID
from kvstream.meta.records import UNKNOWN, GroupMeta, StreamMeta


def _tombstone_ahead(stream: StreamMeta, after: StreamID) -> bool:
    """Tell whether an entry at or above ``after`` may have been deleted."""
    if stream.length == 0 or stream.max_deleted == MIN_ID:
        return False
    return after <= stream.max_deleted <= MAX_ID


def position(stream: StreamMeta, eid: StreamID) -> int:
    """Estimate how many entries were ever added up to ``eid``; UNKNOWN where nothing tells."""
    added = stream.entries_added
    if added == 0:
        return 0
    if stream.length == 0 and eid <= stream.last:
        return added
    if eid != MIN_ID and eid < stream.max_deleted:
        return UNKNOWN
    if eid == stream.last:
        return added
    if eid > stream.last:
        return UNKNOWN
    if stream.max_deleted == MIN_ID or stream.max_deleted < stream.first:
        if eid < stream.first:
            return added - stream.length
        if eid == stream.first:
            return added - stream.length + 1
    return UNKNOWN


def lag(stream: StreamMeta, group: GroupMeta) -> int | None:
    """Return how many entries the group has not been given, or None."""
    if stream.entries_added == 0 or stream.length == 0:
        return 0
    last = group.last_delivered
    if last < stream.first and stream.max_deleted < stream.first:
        return stream.length
    if group.entries_read != UNKNOWN and not _tombstone_ahead(stream, last):
        return stream.entries_added - group.entries_read
    estimate = position(stream, last)
    return None if estimate == UNKNOWN else stream.entries_added - estimate


def advance(stream: StreamMeta, group: GroupMeta, eid: StreamID) -> None:
    """Count the delivery of one entry above the group's last one."""
    if (
        group.entries_read != UNKNOWN
        and group.last_delivered >= stream.first
        and not _tombstone_ahead(stream, group.last_delivered)
    ):
        group.entries_read += 1
    else:
        group.entries_read = position(stream, eid)
    group.last_delivered = eid


def advance_over(stream: StreamMeta, group: GroupMeta, ids: Sequence[bytes]) -> None:
    """Count the delivery of packed ``ids``, ascending, as ``advance`` for each would.

    It costs what the first does: once an entry of the stream itself has been counted with no
    tombstone ahead, each further one adds one.
    """
    for at, packed in enumerate(ids):
        eid = StreamID.unpack(packed)
        advance(stream, group, eid)
        rest = len(ids) - at - 1
        if rest and group.entries_read != UNKNOWN and not _tombstone_ahead(stream, eid):
            group.entries_read += rest
            group.last_delivered = StreamID.unpack(ids[-1])
            return
