"""TTL of KVSTREAM.ADD: delete messages at the end of their time to live.

At its end a message is deleted from the stream and from all pending lists, acknowledged or not. If
a group has it pending, and has dead letters (DEAD or DELIVERIES of its policy), it is moved there
with the reason ``expired``. The time begins when the message is due. If it ends before the message
was added, because the store was closed, the message is not added::

    timer   kind 7, rest = id
"""

import logging

from kvstream.logs import Throttle
from kvstream.meta import pel, timers
from kvstream.meta.records import StreamMeta
from kvstream.meta.timers import Kind, Timer
from kvstream.meta.txn import Txn
from kvstream.operations import entries
from kvstream.operations.delete import erase
from kvstream.operations.delivery import dead
from kvstream.operations.trim import drop_references
from kvstream.types.ids import StreamID

_log = logging.getLogger(__name__)
_refusals = Throttle()


def set_ttl(txn: Txn, stream: StreamMeta, eid: StreamID, at_ms: int) -> None:
    """Delete an entry at a Unix time in milliseconds."""
    timers.put(txn, stream, at_ms, Kind.EXPIRED, eid.packed)


def fire(txn: Txn, name: bytes, stream: StreamMeta, due: list[Timer]) -> None:
    """Delete the entries whose time is over, or move them to the dead letters."""
    ids = sorted({StreamID.unpack(timer.rest) for timer in due})
    txn.frees = True
    try:
        _bury(txn, name, stream, ids)
    except dead.DeadLettersRefused as refused:
        _refusals.log(_log, logging.WARNING, "%s", refused)
        for eid in ids:
            set_ttl(txn, stream, eid, txn.now_ms + dead.WAIT_MS)
        return
    drop_references(txn, stream, ids)
    erase(txn, stream, entries.live(txn, stream, ids))
    txn.catalog.index.note(stream)
    txn.signal(name)  # a group that had reached a limit may deliver again


def _bury(txn: Txn, name: bytes, stream: StreamMeta, ids: list[StreamID]) -> None:
    """Move pending entries to the dead letters of the groups that have such."""
    packed = [eid.packed for eid in ids]
    for group in list(txn.catalog.groups(txn, stream)):
        policy = group.policy
        if policy is not None and (policy.dead_letter or policy.max_deliveries):
            parts = list(pel.runs_at(txn, group, packed))
            if parts:
                dead.bury(txn, name, stream, group, parts, dead.Reason.EXPIRED)
