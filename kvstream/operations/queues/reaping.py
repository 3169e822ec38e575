"""Remove the consumers of a group that were idle for as long as its policy says.

A consumer is idle since its last attempt to read, as in XINFO CONSUMERS. Its pending entries pass
on first: they are given back to the group, with their delivery counts, for the next readers.
A group with the rule has one timer, at the time at which its first consumer could be removed. That
is never later than the rule's time from now, so a consumer that appears meanwhile needs no timer.
"""

from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.retention import REAP_ROWS
from kvstream.meta.timers import Kind, Timer
from kvstream.meta.txn import Txn
from kvstream.operations.groups import delete_consumer
from kvstream.operations.queues.removal import give_back
from kvstream.operations.queues.retention import arm, disarm

STEP_CONSUMERS, STEP_RUNS = 20, 500
"""Consumers that one step removes, and runs of pending entries that it passes on."""


def watch(txn: Txn, stream: StreamMeta, group: GroupMeta) -> None:
    """Set the timer of a group by its policy, or take it away; call it when the rule changes."""
    idle_ms = 0 if group.policy is None else group.policy.reap_idle_ms
    if idle_ms:
        _arm(txn, stream, group, _next_check(txn, group, idle_ms))
    else:
        disarm(txn, stream, Kind.REAP, group.name, REAP_ROWS + group.name)


def _arm(txn: Txn, stream: StreamMeta, group: GroupMeta, at_ms: int) -> None:
    arm(txn, stream, Kind.REAP, group.name, REAP_ROWS + group.name, at_ms)


def fire(txn: Txn, name: bytes, stream: StreamMeta, due: list[Timer]) -> None:
    """Remove the idle consumers of groups whose timers are due."""
    for timer in due:
        group = txn.catalog.group(txn, stream, timer.rest)
        if group is None or group.policy is None or not group.policy.reap_idle_ms:
            disarm(txn, stream, Kind.REAP, timer.rest, REAP_ROWS + timer.rest)
            continue
        idle_ms = group.policy.reap_idle_ms
        done = reap(txn, name, stream, group, idle_ms)
        _arm(txn, stream, group, _next_check(txn, group, idle_ms) if done else txn.now_ms)


def _next_check(txn: Txn, group: GroupMeta, idle_ms: int) -> int:
    """Return when the first consumer of a group, or a new one, could be idle for so long."""
    seen = [member.seen_ms for member in txn.catalog.consumers(txn, group)]
    return max(min([*seen, txn.now_ms]) + idle_ms, txn.now_ms + 1)


def reap(txn: Txn, name: bytes, stream: StreamMeta, group: GroupMeta, idle_ms: int) -> bool:
    """Remove consumers that were idle for so long; return False if there is more to do."""
    members = list(txn.catalog.consumers(txn, group))
    idle = [member for member in members if txn.now_ms - member.seen_ms >= idle_ms]
    left = STEP_RUNS
    for member in idle[:STEP_CONSUMERS]:
        left -= give_back(txn, name, group, member, left)[0]
        if left <= 0:
            return False
        delete_consumer(txn, name, group.name, member.name)
        txn.catalog.queue_events.reap(stream.name, group.name, member.name)
    return len(idle) <= STEP_CONSUMERS
