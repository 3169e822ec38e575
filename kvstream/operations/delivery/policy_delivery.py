"""Deliver entries to a reader of new ones (``>``) in a group that has a policy.

First come the entries that were given back and are ready, in the order in which they became ready;
then those whose lease has run out, oldest first; then new ones. If keys take turns, those whose
lease has run out come first, and new ones become ready (turns.py). Entries that were delivered as
often as the policy allows move to the dead letters instead. The policy's limits bound every read:
pause, rate, entries in flight. Entries whose lease has run out are in flight already.

A read that finds nothing sets the time at which another read may succeed although the stream has
not changed: when the first lease ends, or the rate allows more. The timer thread then wakes the
blocked readers.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kvstream.meta.events.queues import Reason
from kvstream.meta.pel import (
    COUNT_MAX,
    acknowledge,
    discard,
    free_keys,
    lapsed_runs,
    oldest_delivery,
    pending_among,
    ready_runs,
    redeliver,
)
from kvstream.meta.pel import deliver as make_pending
from kvstream.meta.pel_index import nacked_in, pending_in
from kvstream.meta.policy import GroupPolicy
from kvstream.meta.records import GroupMeta
from kvstream.meta.runs import Run
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.operations import turns
from kvstream.operations.delivery import dead, ordering
from kvstream.operations.groups import Reader, advance_over
from kvstream.operations.reads.limits import first_page, memory_of_entries
from kvstream.operations.reads.range import read_whole
from kvstream.operations.reads.rows import read_entries_of
from kvstream.types.ids import MAX_ID, PACKED, ascending_packed
from kvstream.types.images import PackedID
from kvstream.types.records import Entry, clear_deliveries

DeliverNew = Callable[[Txn, Reader, int | None], Sequence[Entry]]
"""Delivers new entries to a reader, up to a number of them; None: all."""

_ALL = 1 << 62
_LAST = MAX_ID.packed
_PAGE = 100
_RATE_PARTS, _RATED_MAX = 16, 64
"""The time of a rate is divided into this many parts. The deliveries of a part are counted
together, at the time of the last one. The second number is the most parts that are kept."""


def is_plain(txn: Txn, reader: Reader, most: int | None) -> bool:
    """Return whether a read of up to ``most`` entries is as in a group without a policy."""
    group = reader.group
    policy = group.policy
    assert policy is not None
    lease_ms = policy.lease_ms or reader.idle_ms
    return not (
        policy.order_by
        or (policy.limits and not _is_within_limits(txn, group, policy, most))
        or _has_ready(txn, group)
        or (lease_ms is not None and _has_lapsed(txn, group, lease_ms))
        or _is_moved_back(txn, group)
    )


def _is_within_limits(txn: Txn, group: GroupMeta, policy: GroupPolicy, most: int | None) -> bool:
    """Return whether the limits of the policy certainly keep no entry from a read."""
    if policy.paused or policy.rate_count or most is None:
        return False
    return in_flight(txn, group) + most <= policy.max_in_flight


def deliver(
    txn: Txn, reader: Reader, count: int | None, deliver_new: DeliverNew
) -> Sequence[Entry]:
    """Deliver up to ``count`` entries to a reader by the policy of the group.

    Pending entries are delivered again after the lease of the policy; if it has none, after the
    idle time of the reader.
    """
    stream, group, budget = reader.stream, reader.group, reader.budget
    policy = group.policy
    assert policy is not None
    lease_ms = policy.lease_ms or reader.idle_ms  # 0: all that is pending
    has_new = group.last_delivered < stream.last and stream.length > 0
    if policy.fair:
        txn.catalog.with_turns.add(reader.name)
        has_new = has_new and turns.sort_new(txn, stream, group, txn.thresholds.sorted_entries)
    is_due = (lease_ms is not None and _has_lapsed(txn, group, lease_ms)) or _has_ready(txn, group)
    if not (is_due or has_new):
        _wake_later(txn, reader.name, group, policy, False)
        return ()
    asked = budget.most(count)
    wanted = _ALL if asked is None else asked
    if reader.room:
        wanted = min(wanted, txn.thresholds.room_entries)
    limits = _Limits.of(txn, group, policy) if policy.limits else _Limits()
    delivered: Sequence[Entry] = ()
    redelivery = None
    if limits.total and is_due:
        most = min(wanted, limits.total)
        if policy.fair:  # each key makes its share of these ready
            most = min(most, txn.thresholds.ordered_entries)
        redelivery = _Redelivery(txn, reader, policy, most)
        delivered = redelivery.deliver(limits, lease_ms)
        if group.keyed is not None and redelivery.is_left:
            delivered = redelivery.deliver(limits, None)  # held entries of freed keys
        while redelivery.turned and redelivery.left:
            delivered = redelivery.deliver(limits, None)  # the next entries of the same keys
        wanted = min(wanted, len(delivered) + redelivery.left)
    rest = min(wanted - len(delivered), limits.total - len(delivered), limits.owned)
    if group.keyed is not None and redelivery is not None and redelivery.is_left:
        rest = 0  # the next read goes on: held entries of freed keys come before new ones
    if rest > 0 and has_new and not policy.fair and not budget.exhausted:
        count = None if rest >= _ALL // 2 else rest
        new = _deliver_new(txn, reader, count, deliver_new)
        limits.owned -= len(new)
        delivered = [*delivered, *new] if delivered else new
    if policy.limits:
        limits.total -= len(delivered)
        if policy.rate_count and delivered:
            _count_rated(txn, group, policy, len(delivered))
        if len(delivered) < wanted and not budget.exhausted:
            _count_limited(txn, reader, policy, limits)
    if not delivered:
        is_left = redelivery is not None and redelivery.is_left
        _wake_later(txn, reader.name, group, policy, is_left or (policy.fair and has_new))
    return delivered


def _has_ready(txn: Txn, group: GroupMeta) -> bool:
    """Return whether entries that were given back are ready."""
    if group.looked_rank == group.nack_rank:
        return False
    if next(ready_runs(txn, group), None) is not None:
        return True
    group.looked_rank = group.nack_rank
    return False


def _has_lapsed(txn: Txn, group: GroupMeta, lease_ms: int) -> bool:
    """Return whether a lease has run out.

    Entries are looked up only if the oldest delivery may be ``lease_ms`` ago: none is earlier than
    ``owned_since``. It is set anew if the clock is set back or entries are claimed.
    """
    now_ms = txn.now_ms
    if now_ms < group.owned_since:
        group.owned_since = now_ms
    if now_ms - lease_ms < group.owned_since:
        return False
    oldest = oldest_delivery(txn, group)
    group.owned_since = now_ms if oldest is None else min(oldest, now_ms)
    return oldest is not None and oldest <= now_ms - lease_ms


def _deliver_new(
    txn: Txn, reader: Reader, count: int | None, deliver_new: DeliverNew
) -> Sequence[Entry]:
    """Deliver new entries."""
    assert reader.group.policy is not None
    if reader.group.policy.order_by:
        new = ordering.take_new(txn, reader, count)
        return clear_deliveries(new) if reader.marks_new else new
    if _is_moved_back(txn, reader.group):
        return _deliver_not_pending(txn, reader, count)
    return deliver_new(txn, reader, count)


# --- limits -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Limits:
    """How many entries a read may deliver at most."""

    total: int = _ALL
    owned: int = _ALL
    """The most of them that are not pending with a consumer yet."""

    @classmethod
    def of(cls, txn: Txn, group: GroupMeta, policy: GroupPolicy) -> "_Limits":
        total = owned = _ALL
        if policy.paused:
            total = 0
        elif policy.rate_count:
            total = _rate_left(txn, group, policy)
        if policy.max_in_flight:
            owned = max(0, policy.max_in_flight - in_flight(txn, group))
        return cls(total, owned)


def in_flight(txn: Txn, group: GroupMeta) -> int:
    """Return how many entries are pending with consumers."""
    return pending_in(txn, group) - nacked_in(txn, group)


def _rate_left(txn: Txn, group: GroupMeta, policy: GroupPolicy) -> int:
    """Return how many entries the rate allows now."""
    if any(at > txn.now_ms for at, _ in group.rated):  # the clock was set back
        group.rated = _recent_deliveries(txn, group, policy)
        txn.member_changed(group)
    return max(
        0, policy.rate_count - sum(count for _, count in _recent_deliveries(txn, group, policy))
    )


def _recent_deliveries(txn: Txn, group: GroupMeta, policy: GroupPolicy) -> list[tuple[int, int]]:
    """Return the deliveries within the time of the rate: when, and how many."""
    now = txn.now_ms
    return [(min(at, now), count) for at, count in group.rated if at > now - policy.rate_ms]


def _count_rated(txn: Txn, group: GroupMeta, policy: GroupPolicy, count: int) -> None:
    """Count deliveries for the rate, those in the same part of its time together."""
    part = max(1, policy.rate_ms // _RATE_PARTS)
    group.rated = _recent_deliveries(txn, group, policy)
    if group.rated and group.rated[-1][0] // part == txn.now_ms // part:
        count += group.rated.pop()[1]
    group.rated.append((txn.now_ms, count))
    if len(group.rated) > _RATED_MAX:  # the time of the rate has become longer
        group.rated[:2] = [(group.rated[1][0], group.rated[0][1] + group.rated[1][1])]
    txn.member_changed(group)


def _count_limited(txn: Txn, reader: Reader, policy: GroupPolicy, left: _Limits) -> None:
    """Count a read that got fewer entries because of a limit."""
    stream, group = reader.stream, reader.group
    if left.total > 0 and left.owned > 0:
        return
    has_new = stream.length > 0 and group.last_delivered < stream.last
    if has_new or _has_ready(txn, group):
        kind = "paused" if policy.paused else "in-flight" if left.total > 0 else "rate"
        txn.catalog.queue_events.limit(reader.name, group.name, kind)


def _wake_later(
    txn: Txn, name: bytes, group: GroupMeta, policy: GroupPolicy, is_left: bool
) -> None:
    """Set when blocked readers are woken although nothing changes; ``is_left``: at once."""
    wake_at = txn.catalog.index.wake_at
    if policy.paused:
        return
    if is_left:
        wake_at(name, txn.now_ms, Wake.MORE)
    elif policy.rate_count and not _rate_left(txn, group, policy):
        begun_ms, _ = _recent_deliveries(txn, group, policy)[0]
        wake_at(name, begun_ms + policy.rate_ms, Wake.RATE)
    elif policy.lease_ms and group.runs.first(txn.batch) is not None:
        wake_at(name, group.owned_since + policy.lease_ms, Wake.LEASE)


# --- entries that are delivered again -----------------------------------------------------------


@dataclass(slots=True)
class _Redelivery:
    """The pending entries that one read delivers again, or gives up."""

    txn: Txn
    reader: Reader
    policy: GroupPolicy
    left: int
    """How many may still be delivered."""
    taken: list[Entry] = field(default_factory=list)
    is_left: bool = False
    """Whether the next read may find more at once: entries to give up, or entries of freed keys."""
    turned: bool = False
    """Whether keys that take turns have given their turn to other entries."""
    _moves: list[tuple[Run, list[PackedID]]] = field(default_factory=list)
    _gone: list[PackedID] = field(default_factory=list)
    _dead: list[tuple[Run, Sequence[PackedID]]] = field(default_factory=list)
    _fatal: list[tuple[Run, Sequence[PackedID]]] = field(default_factory=list)
    _buried: int = 0

    def deliver(self, limits: "_Limits", lease_ms: int | None) -> Sequence[Entry]:
        """Deliver entries that are ready, then those that were delivered ``lease_ms`` ago.

        A second call goes on with the entries that the first one has made ready. Return the entries
        of all calls.
        """
        txn, group = self.txn, self.reader.group
        self._moves, self._gone, self._dead, self._fatal = [], [], [], []
        self.is_left = self.turned = False
        fair = self.policy.fair
        if fair:  # a key with very many entries always has one that is ready
            self._collect_lapsed(lease_ms)
        self._collect(ready_runs(txn, group), limits.owned)
        if not fair:
            self._collect_lapsed(lease_ms)
        self._apply()
        if self.policy.max_in_flight:
            limits.owned = max(0, self.policy.max_in_flight - in_flight(txn, group))
        if fair:
            ids = [eid for _, moved in self._moves for eid in moved]
            self.turned = bool(ids) and free_keys(txn, group, ids, min(self.left, limits.owned))
        return self.taken

    def _collect_lapsed(self, lease_ms: int | None) -> None:
        """Take entries that were delivered ``lease_ms`` ago; None: none."""
        if lease_ms is not None:
            txn, before = self.txn, len(self.taken)
            self._collect(lapsed_runs(txn, self.reader.group, txn.now_ms - lease_ms), _ALL)
            txn.catalog.queue_events.leases_lapsed += len(self.taken) - before

    def _collect(self, runs: Iterable[Run], most: int) -> None:
        """Take up to ``most`` entries of runs."""
        for run in runs:
            if not (self.left and most) or self.reader.budget.exhausted:
                return
            if self._is_given_up(run):
                if self._buried >= self.txn.thresholds.buried_entries:
                    self.is_left = True
                    return
                self._buried += run.length
                (self._fatal if run.deliveries == COUNT_MAX else self._dead).append((run, run.ids))
                continue
            most -= self._take(run, most)

    def _is_given_up(self, run: Run) -> bool:
        allowed = self.policy.max_deliveries
        return run.deliveries == COUNT_MAX or 0 < allowed <= run.deliveries

    def _take(self, run: Run, most: int) -> int:
        """Take entries of a run; return how many. Deleted ones will be acknowledged."""
        ids: list[PackedID] = []
        all_ids, at = run.ids, 0
        while at < len(all_ids) and len(ids) < most and self.left:
            page = min(most - len(ids), self.left, first_page(self.reader.stream))
            page_ids = all_ids[at : at + page]
            at += len(page_ids)
            page_entries = read_entries_of(self.txn, self.reader.stream, page_ids)
            self._gone += [
                eid for eid, entry in zip(page_ids, page_entries, strict=True) if entry is None
            ]
            live = [self._with_counters(entry, run) for entry in page_entries if entry is not None]
            taken = live[: self.reader.budget.take(live)]
            self.taken += taken
            self.left -= len(taken)
            ids += [PACKED(*entry.id) for entry in taken]
            self._use_room(taken)
            if len(taken) < len(live):
                break
        self._moves.append((run, ids))
        return len(ids)

    def _use_room(self, taken: list[Entry]) -> None:
        """Count the memory of entries; if there is no more, nothing more is delivered."""
        reader = self.reader
        if reader.room:
            reader.room = max(0, reader.room - memory_of_entries(taken))
            if not reader.room:
                self.left = 0

    def _with_counters(self, entry: Entry, run: Run) -> Entry:
        with_idle = self.reader.idle_ms is not None
        idle_ms = max(0, self.txn.now_ms - run.time_ms) if with_idle else None
        return entry._replace(idle_ms=idle_ms, deliveries=run.deliveries)

    def _apply(self) -> None:
        """Make the taken entries pending with the reader, and bury those that are given up."""
        txn, reader, group = self.txn, self.reader, self.reader.group
        for run, ids in self._moves:
            if reader.noack:
                acknowledge(txn, group, ids)  # keys that take turns go on with the next read
            else:
                redeliver(txn, group, run, ids, reader.consumer.name)
        if group.keyed is not None and (self._gone or self._dead or self._fatal):
            self.is_left = True
        if self._gone:
            discard(txn, group, ascending_packed(self._gone))
        for parts, reason in ((self._dead, Reason.MAX_DELIVERIES), (self._fatal, Reason.FATAL)):
            if parts:
                dead.bury_or_wait(txn, reader.name, reader.stream, group, parts, reason)
        if self.taken:
            txn.catalog.note_activity(txn, group, reader.consumer)


# --- new entries of a group that was moved back -------------------------------------------------


def _is_moved_back(txn: Txn, group: GroupMeta) -> bool:
    """Return whether entries above the group's last delivered ID are pending."""
    last = group.runs.floor(txn.batch, _LAST)
    return last is not None and last.last > group.last_delivered.packed


def _deliver_not_pending(txn: Txn, reader: Reader, count: int | None) -> list[Entry]:
    """Deliver new entries except those that are pending already.

    One read looks at ``ordered_entries`` at most; if it stops there, blocked readers are woken to
    go on.
    """
    stream, group, budget = reader.stream, reader.group, reader.budget
    delivered: list[Entry] = []
    looked = 0
    while group.last_delivered < stream.last and not budget.exhausted:
        if looked >= txn.thresholds.ordered_entries:
            txn.catalog.index.wake_at(reader.name, txn.now_ms, Wake.MORE)
            break
        most = _PAGE if count is None else min(_PAGE, count - len(delivered))
        after = group.last_delivered.next()
        page = read_whole(txn, stream, after, MAX_ID, most, room=reader.room)
        if most <= 0 or not page:
            break
        looked += len(page)
        ids = page.packed_ids()
        pending = frozenset(pending_among(txn, group, ids))
        free = [entry for entry, eid in zip(page, ids, strict=True) if eid not in pending]
        if reader.marks_new:
            free = clear_deliveries(free)
        taken = free[: budget.take(free)]
        if len(taken) < len(free):
            ids = [eid for eid in ids if eid < PACKED(*free[len(taken)].id)]
        delivered += taken
        if ids:
            advance_over(stream, group, ids)
            txn.member_changed(group)
        if taken and not reader.noack:
            packed = [PACKED(*entry.id) for entry in taken]
            make_pending(txn, group, packed, reader.consumer.name, txn.now_ms)
            txn.catalog.note_activity(txn, group, reader.consumer)
        if count is None and delivered:
            break
    return delivered
