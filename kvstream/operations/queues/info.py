"""KVSTREAM.INFO: a stream as a queue, with the figures of each group.

The cost grows with the groups, not with the entries. Entries that were given back are ready,
waiting or held: of each kind at most ``given_back_runs`` are counted. If one kind has more runs,
its number is the rest of all entries given back. Of leases that have ended, at most as many runs
are counted. If Redis's rules do not tell the lag of a group, its nodes are counted, unless the
stream has more than ``counted_nodes``.
"""

from itertools import islice
from typing import NamedTuple

from kvstream.layout.keys import U64, database_of, key_of, qualified
from kvstream.layout.rows import Rows
from kvstream.meta import nodes, pel, timers
from kvstream.meta.pel_index import nacked_in, pending_in
from kvstream.meta.policy import GroupPolicy, Retention
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.runs import HELD_MS, OWNED_FIRST, first_waiting
from kvstream.meta.txn import Txn
from kvstream.operations import delayed
from kvstream.operations.groups import lag
from kvstream.operations.info import count_given_back
from kvstream.operations.queues import schedules
from kvstream.operations.queues.retention import needs_of_group, progress_of
from kvstream.operations.reads.rows import read_rows
from kvstream.types.ids import MAX_ID

_HELD_FIRST = U64.pack(HELD_MS)


class GroupQueue(NamedTuple):
    """One group of a queue. An entry that it needs is in one of ready, leased, waiting, held."""

    name: bytes
    consumers: int
    ready: int | None
    """Entries for the next reads: not delivered yet, given back, or with a lease that has ended.
    None: too many to count."""
    leased: int
    """Entries pending with a consumer whose lease has not ended."""
    waiting: int
    """Entries that failed and wait for another delivery."""
    held: int
    """Entries that wait for another entry of their key."""
    dead: int
    """Entries of its dead-letter stream, which other groups may share."""
    oldest_ms: int
    """The age, by its ID, of the first entry that is not acknowledged; 0 if there is none."""
    policy: GroupPolicy | None
    next_ms: int | None = None
    """Milliseconds until the first waiting entry is ready; None if none waits."""


class QueueInfo(NamedTuple):
    """A stream as a queue."""

    length: int
    delayed: int
    schedules: int
    groups: list[GroupQueue]
    retention: Retention | None
    added: int | None = None
    """Entries that were ever added; None from a server that does not say it."""


def queue_info(txn: Txn, name: bytes, first: bytes = b"", count: int | None = None) -> QueueInfo:
    """Return the figures of a stream as a queue; raise NoSuchKey if there is none.

    Those of groups are of at most ``count``, by name, from the name ``first`` on.
    """
    stream = txn.existing_stream(name)
    progress = progress_of(txn, stream)
    groups = islice(txn.catalog.groups(txn, stream, first), count)
    return QueueInfo(
        length=stream.length,
        delayed=delayed.count(txn, stream),
        schedules=sum(1 for _ in timers.scan_rows(txn, stream, schedules.ROW_TAG)),
        groups=[group_queue(txn, name, stream, group) for group in groups],
        retention=None if progress is None else progress.rules,
        added=stream.entries_added,
    )


def group_queue(txn: Txn, name: bytes, stream: StreamMeta, group: GroupMeta) -> GroupQueue:
    """Return the figures of one group of a queue."""
    pending, nacked = pending_in(txn, group), nacked_in(txn, group)
    again, waiting, held = _count_given_back(txn, group, nacked) if nacked else (0, 0, 0)
    lapsed = _count_lapsed(txn, group)
    behind = _count_undelivered(txn, stream, group)
    ready_ms = pel.next_ready_ms(txn, group) if waiting else None
    return GroupQueue(
        name=group.name,
        consumers=group.consumers_count,
        ready=None if behind is None else behind + again + lapsed,
        leased=pending - nacked - lapsed,
        waiting=waiting,
        held=held,
        dead=_count_dead(txn, name, group.policy),
        oldest_ms=_oldest_ms(txn, stream, group),
        policy=group.policy,
        next_ms=0 if waiting and ready_ms is None else ready_ms and ready_ms - txn.now_ms,
    )


def _count_lapsed(txn: Txn, group: GroupMeta) -> int:
    """Return how many entries have a lease that has ended, among the first runs."""
    if group.policy is None or not group.policy.lease_ms:
        return 0
    runs = pel.lapsed_runs(txn, group, txn.now_ms - group.policy.lease_ms)
    return sum(run.length for run in islice(runs, txn.thresholds.given_back_runs))


def _count_given_back(txn: Txn, group: GroupMeta, nacked: int) -> tuple[int, int, int]:
    """Return how many of the entries that were given back are ready, wait and are held."""
    again, is_all_again = count_given_back(txn, group, b"", OWNED_FIRST)
    held, is_all_held = count_given_back(txn, group, _HELD_FIRST, b"\xff")
    if not (is_all_again and is_all_held):
        waiting, is_all = count_given_back(txn, group, first_waiting(txn.now_ms), _HELD_FIRST)
        rest = nacked - again - waiting - held
        if is_all:
            return (again, waiting, held + rest) if is_all_again else (again + rest, waiting, held)
    return again, max(0, nacked - again - held), held


def _count_undelivered(txn: Txn, stream: StreamMeta, group: GroupMeta) -> int | None:
    """Return how many entries a group has not delivered, None if they are too many to count."""
    if group.last_delivered >= stream.last or not stream.length:
        return 0
    known = lag(stream, group)
    if known is not None or stream.nodes > txn.thresholds.counted_nodes:
        return known
    return nodes.live_after(txn, stream, group.last_delivered)


def _count_dead(txn: Txn, name: bytes, policy: GroupPolicy | None) -> int:
    """Return the length of a group's dead-letter stream."""
    if policy is None:
        return 0
    dead = qualified(database_of(name), policy.dead_key(key_of(name)))
    streams = txn.catalog.peek_all(txn, [dead])
    return sum(key.length for key in streams if isinstance(key, StreamMeta))


def _oldest_ms(txn: Txn, stream: StreamMeta, group: GroupMeta) -> int:
    needs = needs_of_group(txn, group, stream.first)
    if needs.first < needs.undelivered:
        return max(0, txn.now_ms - needs.first.ms)
    page = Rows(read_rows(txn, stream, needs.undelivered, MAX_ID, 1), len(stream.prefix))
    return max(0, txn.now_ms - page[0].id.ms) if page else 0
