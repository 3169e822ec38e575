"""Remove consumers of a group without losing their pending entries: by hand, or when they are idle.

XGROUP DELCONSUMER forgets the entries that are pending with the consumer. ``pass_on`` and ``reap``
give them back to the group first, with their delivery counts, for the next readers.

A policy may remove the consumers that are idle for a time: since their last attempt to read, as in
XINFO CONSUMERS. A group with this rule has one timer, at the time at which its first consumer could
be removed. That is never later than the rule's time from now, so a consumer that appears meanwhile
needs no timer.
"""

from collections.abc import Iterable
from itertools import islice

from kvstream.errors import RequestError, quote
from kvstream.meta import timers
from kvstream.meta.events.keys import XGROUP_DELCONSUMER
from kvstream.meta.pel import release_runs, runs_of
from kvstream.meta.records import ConsumerMeta, GroupMeta, StreamMeta
from kvstream.meta.timers import Kind, Timer
from kvstream.meta.txn import Txn
from kvstream.operations.ack import note_released
from kvstream.operations.groups import delete_consumer, existing_group
from kvstream.operations.plans import ALWAYS_HOLDS, Plan, Planning, run_at_once


def give_back(
    txn: Txn, name: bytes, group: GroupMeta, member: ConsumerMeta, most: int
) -> tuple[int, int]:
    """Make up to ``most`` runs of a consumer ready; return the numbers of runs and of entries.

    Their delivery counts stay.
    """
    runs = list(islice(runs_of(txn, group, member), most))
    rank = group.nack_rank + 1
    release_runs(txn, group, runs, rank)
    count = sum(run.length for run in runs)
    note_released(txn, name, group, rank, count)
    return len(runs), count


def plan_passing_on(name: bytes, group_name: bytes, consumer: bytes) -> Plan[int]:
    """Plan ``pass_on``: each step gives some entries back, the last one deletes the consumer."""

    def plan(txn: Txn) -> Planning[int]:
        total = 0
        while True:
            _, group = existing_group(txn, name, group_name)
            member = txn.catalog.consumer(txn, group, consumer)
            if member is None:
                place = f"in group {quote(group_name)}"
                raise RequestError(f"there is no consumer {quote(consumer)} {place}")
            runs, count = give_back(txn, name, group, member, txn.thresholds.ready_runs)
            total += count
            if runs < txn.thresholds.ready_runs:
                txn.frees = True
                txn.catalog.drop_consumer(txn, group, member)
                txn.notify(XGROUP_DELCONSUMER, name)
                return total
            txn = yield ALWAYS_HOLDS

    return plan


def pass_on(txn: Txn, name: bytes, group: bytes, consumer: bytes) -> int:
    """Give the pending entries of a consumer back to its group, and delete the consumer.

    They keep their delivery counts and are ready at once. Returns how many there were.
    """
    return run_at_once(txn, plan_passing_on(name, group, consumer))


def watch(txn: Txn, stream: StreamMeta, group: GroupMeta) -> None:
    """Set or remove the timer of a group after the rule of its policy has changed."""
    idle_ms = 0 if group.policy is None else group.policy.reap_idle_ms
    if idle_ms:
        timers.arm(txn, stream, Kind.REAP, _next_check(txn, group, idle_ms), group.name)
    else:
        timers.disarm(txn, stream, Kind.REAP, group.name)


def fire(txn: Txn, name: bytes, stream: StreamMeta, due: list[Timer]) -> None:
    """Remove the idle consumers of groups whose timers are due."""
    for timer in due:
        group = txn.catalog.group(txn, stream, timer.rest)
        if group is None or group.policy is None or not group.policy.reap_idle_ms:
            timers.disarm(txn, stream, Kind.REAP, timer.rest)
            continue
        idle_ms = group.policy.reap_idle_ms
        done = reap(txn, name, stream, group, idle_ms)
        next_ms = _next_check(txn, group, idle_ms) if done else txn.now_ms
        timers.arm(txn, stream, Kind.REAP, next_ms, group.name)


def _next_check(txn: Txn, group: GroupMeta, idle_ms: int) -> int:
    """Return when the first consumer of a group, or a new one, could be idle for ``idle_ms``."""
    seen = [member.seen_ms for member in _members(txn, group)]
    return max(min([*seen, txn.now_ms]) + idle_ms, txn.now_ms + 1)


def _members(txn: Txn, group: GroupMeta) -> Iterable[ConsumerMeta]:
    """Return all consumers of a group, in any order; load them if they are not in memory."""
    if len(group.consumers) < group.consumers_count:
        return list(txn.catalog.consumers(txn, group))
    return group.consumers.values()


def reap(txn: Txn, name: bytes, stream: StreamMeta, group: GroupMeta, idle_ms: int) -> bool:
    """Remove consumers that were idle for ``idle_ms``; return False if there is more to do."""
    bound, members = txn.now_ms - idle_ms, _members(txn, group)
    most, left = txn.thresholds.reaped_consumers, txn.thresholds.reaped_runs
    idle = list(islice((each for each in members if each.seen_ms <= bound), most + 1))
    for member in idle[:most]:
        left -= give_back(txn, name, group, member, left)[0]
        if left <= 0:
            return False
        delete_consumer(txn, name, group.name, member.name)
        txn.catalog.queue_events.reap(stream.name, group.name, member.name)
    return len(idle) <= most
