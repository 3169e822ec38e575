"""Who still refers to an entry: what KEEPREF, DELREF and ACKED ask.

The rule is that of Redis 8.2's code: a stream without groups refers to nothing; otherwise an entry
is referred to while it is pending in any group, or while some group has yet to be given it.
"""

from enum import StrEnum

from kvstream.errors import InvalidArgument
from kvstream.ids import StreamID
from kvstream.meta.pending import find, take
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


def is_referenced(txn: Txn, stream: StreamMeta, eid: StreamID) -> bool:
    """Tell whether a group has ``eid`` pending or has not reached it yet."""
    packed = eid.packed
    return any(
        eid > group.last_delivered or find(txn, group, packed) is not None
        for group in txn.catalog.groups(txn, stream)
    )


def drop_references(txn: Txn, stream: StreamMeta, ids: list[StreamID]) -> None:
    """Make ``ids`` no longer pending in any group."""
    packed = sorted({eid.packed for eid in ids})
    for group in txn.catalog.groups(txn, stream):
        take(txn, group, packed)
