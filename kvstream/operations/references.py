"""Who still refers to an entry: what KEEPREF, DELREF and ACKED ask.

The rule is that of Redis 8.2's code: a stream without groups refers to nothing; otherwise an entry
is referred to while it is pending in any group, or while some group has yet to be given it.
"""

from bisect import bisect_right
from enum import StrEnum

from kvstream.errors import InvalidArgument
from kvstream.ids import PACKED, StreamID
from kvstream.meta.pending import drop, pending_among
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn


class RefPolicy(StrEnum):
    """What happens to the groups' references when an entry is deleted."""

    KEEPREF = "KEEPREF"
    """They stay, dangling: the way of XDEL."""
    DELREF = "DELREF"
    """They go with the entry."""
    ACKED = "ACKED"
    """They protect it: only what every group has read and acknowledged is deleted."""

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise InvalidArgument("a policy is one of KEEPREF, DELREF or ACKED")


def referenced(txn: Txn, stream: StreamMeta, ids: list[StreamID]) -> set[StreamID]:
    """Return those of ``ids``, ascending, that a group has pending or has not reached yet."""
    packed = [PACKED(*eid) for eid in ids]
    found: set[StreamID] = set()
    for group in txn.catalog.groups(txn, stream):
        reached = bisect_right(ids, group.last_delivered)
        found.update(ids[reached:])
        found.update(map(StreamID.unpack, pending_among(txn, group, packed[:reached])))
    return found


def drop_references(txn: Txn, stream: StreamMeta, ids: list[StreamID]) -> None:
    """Make ``ids``, ascending and distinct, no longer pending in any group."""
    packed = [PACKED(*eid) for eid in ids]
    for group in txn.catalog.groups(txn, stream):
        drop(txn, group, packed)
