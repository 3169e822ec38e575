"""XREADGROUP: deliver new entries to a consumer, or show its pending ones again.

The library's reads of new entries begin with those that were given back (XNACK), which XREADGROUP
returns only with CLAIM. ``plan_delivery`` delivers very many entries in steps.
"""

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from operator import itemgetter

from kvstream.errors import InvalidArgument
from kvstream.layout.rows import EncodedEntries, Rows
from kvstream.meta.compiled import plain
from kvstream.meta.pel import (
    COUNT_MAX,
    discard,
    ids_between,
    note_renewal,
    oldest_time,
    redeliver,
    runs_by_time,
    runs_of,
)
from kvstream.meta.pel_index import nacked_in
from kvstream.meta.records import ConsumerMeta, GroupMeta, StreamMeta
from kvstream.meta.runs import Run
from kvstream.meta.txn import Txn
from kvstream.operations.delete import StreamVersion
from kvstream.operations.delivery import policy_delivery
from kvstream.operations.groups import Reader, consumer_of, give, group_of_key, lag
from kvstream.operations.plans import Plan, Planning, Progress
from kvstream.operations.reads.limits import UNLIMITED, Budget, Room, memory_of
from kvstream.operations.reads.range import is_short, read_next
from kvstream.operations.reads.read import Reply
from kvstream.operations.reads.rows import FEW, read_ahead, read_entries_of, read_ids, read_rows
from kvstream.storage.batch import Row
from kvstream.types.ids import MAX_ID, PACKED, StreamID, ascending_packed
from kvstream.types.images import PackedID
from kvstream.types.records import DeletedEntry, Entry, HistoryEntry, clear_deliveries

WHERE = " in XREADGROUP with GROUP option"
"""The end of XREADGROUP's errors."""
_LAST = MAX_ID.packed
_WOKEN_MS = 60_000
"""When a blocked reader of a group with a policy reads again, if nothing wakes it before."""

SMALL_READ = FEW
"""Reads of up to this many entries use the group's readahead."""

NEW = None
"""In place of an ID: entries that the group has not delivered yet (``>``)."""

GIVEN_BACK_MS = 50 * 365 * 86_400_000
"""An idle time that CLAIM finds only in entries that were given back: their time is 1970."""
_NO_TIME = -1
"""A time before every delivery, at which only entries that were given back can be claimed."""


def refuse_min_idle(min_idle_ms: int | None) -> None:
    """Raise InvalidArgument if the idle time of CLAIM is negative."""
    if min_idle_ms is not None and min_idle_ms < 0:
        raise InvalidArgument("min-idle-time must be a positive integer")


def no_history_from(sign: str) -> InvalidArgument:
    """Return the error of an XREADGROUP from ``$`` or ``+``."""
    return InvalidArgument(
        f"The {sign} ID is meaningless in the context of XREADGROUP: you want to read the "
        "history of this consumer by specifying a proper ID, or use the > ID to get new "
        f"messages. The {sign} ID would just return an empty result set."
    )


def read_group(
    txn: Txn,
    group_name: bytes,
    consumer_name: bytes,
    wanted: Sequence[tuple[bytes, StreamID | None]],
    count: int | None = None,
    noack: bool = False,
    claim_min_idle_ms: int | None = None,
    budget: Budget | None = None,
    encoded: bool = False,
    given_back: bool = False,
) -> Reply:
    """Deliver new entries (NEW), or show the consumer's pending entries after an ID.

    With ``claim_min_idle_ms``, pending entries idle for that long come first, and every entry has
    its idle time and deliveries. With ``given_back``, entries given back by XNACK come first. A
    stream read for its pending entries is in the reply even without entries; a stream read for new
    ones only with entries. With ``encoded`` new entries may be EncodedEntries.
    """
    groups = [group_of_key(txn, name, group_name, WHERE) for name, _ in wanted]
    refuse_min_idle(claim_min_idle_ms)
    budget = budget or UNLIMITED
    room = Room(len(wanted), txn.catalog.limits.reply_left)
    encoded = encoded and room.ignores_few
    reply: Reply = []
    for (name, after), (stream, group) in zip(wanted, groups, strict=True):
        if budget is not UNLIMITED:
            if budget.exhausted:
                break
            budget.open(name)
        consumer = consumer_of(txn, name, group, consumer_name)
        delivered: Sequence[HistoryEntry]
        if after is None:
            marks_new = claim_min_idle_ms is not None
            reader = Reader(
                *(name, stream, group, consumer, noack),
                *(claim_min_idle_ms, marks_new, budget, room.left),
            )
            delivered = _deliver(txn, reader, count, encoded, given_back)
            txn.only_redelivered = False
        else:
            delivered = _history(txn, stream, group, consumer, after, count, budget)
        in_reply = bool(delivered) or after is not None or budget.is_cut
        if budget is not UNLIMITED:
            budget.close(len(delivered) if in_reply else None)
        if in_reply:
            reply.append((name, delivered))
        if not room.take(delivered):
            break
    return reply


def read_new(
    txn: Txn,
    name: bytes,
    group_name: bytes,
    consumer_name: bytes,
    count: int | None = None,
    noack: bool = False,
    claim_min_idle_ms: int | None = None,
    budget: Budget | None = None,
) -> Sequence[Entry]:
    """Deliver new entries of one stream, as the library does.

    Entries that were given back come before them, or all that are idle for ``claim_min_idle_ms``.
    """
    most = count if claim_min_idle_ms is None and budget is None else None
    if most is not None and not noack and plain is not None:
        new = plain.read_new(Run, txn, name, group_name, consumer_name, most, True)
        if new is not None:
            return Rows(*new)
    refuse_min_idle(claim_min_idle_ms)
    stream, group = group_of_key(txn, name, group_name, WHERE)
    if most is not None and not group.nack_rank:
        found = read_short(txn, name, group_name, consumer_name, most, noack)
        if found is not None:
            return found
    consumer, limits = consumer_of(txn, name, group, consumer_name), budget or UNLIMITED
    marks_new = claim_min_idle_ms is not None
    reader = Reader(name, stream, group, consumer, noack, claim_min_idle_ms, marks_new, limits)
    given_back = claim_min_idle_ms is None and not noack
    return _deliver(txn, reader, count, given_back=given_back)


def lease(
    txn: Txn,
    names: Sequence[bytes],
    group_name: bytes,
    consumer_name: bytes,
    count: int,
    lease_ms: int,
) -> Reply:
    """Lease up to ``count`` messages of queues to a consumer, in the order of their streams.

    Only messages that were delivered before have a delivery count. ``lease_ms`` is used if the
    policy of the group has no lease any more.
    """
    if plain is not None and len(names) == 1:
        [name] = names
        new = plain.lease(Run, txn, name, group_name, consumer_name, count, lease_ms)
        if new is not None:
            return [(name, Rows(*new))]
    groups = [group_of_key(txn, name, group_name, WHERE) for name in names]
    reply: Reply = []
    for name, (stream, group) in zip(names, groups, strict=True):
        consumer = consumer_of(txn, name, group, consumer_name)
        if _has_nothing(stream, group):  # as most priorities of a queue
            continue
        leased = _deliver(txn, Reader(name, stream, group, consumer, idle_ms=lease_ms), count)
        if taken := len(leased):
            reply.append((name, leased))
            count -= taken
            if count <= 0:
                break
    return reply


def _has_nothing(stream: StreamMeta, group: GroupMeta) -> bool:
    """Return whether a group certainly has no entry to deliver: none is new or pending."""
    memory = group.runs.memory
    if memory is None or memory.items:
        return False
    return group.last_delivered >= stream.last or stream.length == 0


def _deliver(
    txn: Txn,
    reader: Reader,
    count: int | None,
    encoded: bool = False,
    given_back: bool = False,
) -> Sequence[Entry]:
    """Deliver idle entries or those that were given back, then new ones."""
    group, idle_ms, budget = reader.group, reader.idle_ms, reader.budget
    if group.policy is not None:
        return _deliver_by_policy(txn, reader, count)
    takes_given_back = given_back and group.nack_rank and nacked_in(txn, group)
    if idle_ms is None and budget is UNLIMITED and not takes_given_back:
        return _deliver_new(txn, reader, count, encoded)
    most = budget.most(count)
    delivered: list[Entry] = []
    if idle_ms is not None:
        delivered = _claim_idle(txn, reader, idle_ms, most)
    elif takes_given_back:
        delivered = _take_given_back(txn, reader, most)
    rest = budget.most(None if count is None else count - len(delivered))
    if rest is not None and rest <= 0:
        return delivered
    encoded = encoded and idle_ms is None and not budget.limited
    fresh = _deliver_new(txn, reader, rest, encoded)
    return [*delivered, *fresh] if delivered else fresh


def _deliver_by_policy(txn: Txn, reader: Reader, count: int | None) -> Sequence[Entry]:
    """Deliver entries as the policy of the group says."""
    most = count if reader.budget is UNLIMITED else reader.budget.most(count)
    if reader.room:
        room = txn.thresholds.room_entries
        most = min(most or room, room)
    has_new = reader.group.last_delivered < reader.stream.last
    if has_new and policy_delivery.is_plain(txn, reader, most):
        new = _deliver_new(txn, reader, most)
        if new:
            return new
    return policy_delivery.deliver(txn, reader, count, _deliver_new)


def read_short(
    txn: Txn, name: bytes, group_name: bytes, consumer_name: bytes, count: int, noack: bool
) -> Sequence[Entry] | None:
    """Deliver up to SMALL_READ new entries of one stream; None if they may be large."""
    if plain is not None and not noack:
        found = plain.read_new(Run, txn, name, group_name, consumer_name, count)
        if found is not None:
            return Rows(*found)
    stream, group = group_of_key(txn, name, group_name, WHERE)
    if not is_short(count, stream):
        return None
    consumer = consumer_of(txn, name, group, consumer_name)
    if group.policy is not None:
        reader = Reader(name, stream, group, consumer, noack)
        return _deliver_by_policy(txn, reader, count)
    if group.last_delivered >= stream.last or stream.length == 0:
        return []
    rows = read_ahead(txn, stream, group, count)
    if rows.page:
        give(txn, stream, group, consumer, rows.packed_ids(), noack)
    return rows


def claimable_at(txn: Txn, name: bytes, group_name: bytes, min_idle_ms: int) -> int:
    """Return the earliest time at which an entry of the group may be idle for ``min_idle_ms``.

    If none is pending, that is ``min_idle_ms`` from now. Readers of a group with a policy are woken
    when a lease ends, so a time far enough ahead is returned for them.
    """
    _, group = group_of_key(txn, name, group_name, WHERE)
    if group.policy is not None:
        return txn.now_ms + _WOKEN_MS
    oldest = oldest_time(txn, group)
    return (txn.now_ms if oldest is None else oldest) + min_idle_ms


# --- new entries --------------------------------------------------------------------------------


def _deliver_new(
    txn: Txn, reader: Reader, count: int | None, encoded: bool = False
) -> Sequence[Entry]:
    """Deliver new entries; with CLAIM their idle time and delivery count are 0."""
    stream, group, budget = reader.stream, reader.group, reader.budget
    if group.last_delivered >= stream.last or stream.length == 0:
        return []
    new: Sequence[Entry] = read_next(txn, stream, group, count, reader.room, encoded)
    if reader.marks_new:
        new = clear_deliveries(new)
    if budget is not UNLIMITED and budget.limited:
        new = new[: budget.take(new)]
    if not new:
        return []
    if type(new) is list:
        ids = [PACKED(*entry[0]) for entry in new]
    else:
        assert isinstance(new, Rows | EncodedEntries)
        ids = new.packed_ids()
    give(txn, stream, group, reader.consumer, ids, reader.noack)
    return new


# --- history ------------------------------------------------------------------------------------


def _history(
    txn: Txn,
    stream: StreamMeta,
    group: GroupMeta,
    consumer: ConsumerMeta,
    after: StreamID,
    count: int | None,
    budget: Budget,
) -> Sequence[HistoryEntry]:
    if after == MAX_ID or budget.exhausted:
        return []
    count = budget.most(count)
    start = after.next().packed
    shown = 0
    pages: list[Sequence[HistoryEntry]] = []
    touched: list[tuple[Run, list[bytes]]] = []
    for run in runs_of(txn, group, consumer, start):
        rest = None if count is None else count - shown
        if (rest is not None and rest <= 0) or budget.exhausted:
            break
        page, live = _pending_page(txn, stream, list(ids_between(run, start, _LAST))[:rest])
        if budget.limited:
            page = page[: budget.take(page)]
            live = [entry.id.packed for entry in page if entry.fields is not None]
        shown += len(page)
        pages.append(page)
        touched.append((run, live))
    txn.only_redelivered = not txn.dirty
    note_renewal(txn, group)
    for run, ids in touched:
        redeliver(txn, group, run, ids, consumer.name)
    undecoded = [page for page in pages if isinstance(page, Rows)]
    if len(undecoded) == len(pages):  # entries would take three times as long
        return Rows([row for page in undecoded for row in page.page], len(stream.prefix))
    return [entry for page in pages for entry in page]


def _pending_page(
    txn: Txn, stream: StreamMeta, ids: list[bytes]
) -> tuple[Sequence[HistoryEntry], list[bytes]]:
    """Return pending entries, including deleted ones, and the IDs of the live ones."""
    rows = [row for row in read_ids(txn, stream, ids) if row is not None]
    page = Rows(rows, len(stream.prefix))
    live = page.packed_ids()
    if len(live) == len(ids):
        return page, live
    by_id: dict[bytes, Entry] = dict(zip(live, page.entries(), strict=True))
    return [by_id.get(eid) or DeletedEntry(StreamID.unpack(eid)) for eid in ids], live


# --- CLAIM --------------------------------------------------------------------------------------


def _claim_idle(txn: Txn, reader: Reader, min_idle_ms: int, count: int | None) -> list[Entry]:
    """Claim pending entries idle for ``min_idle_ms``: those given back, then the longest idle.

    Entries whose message was deleted are skipped, and stay pending.
    """
    stream, group, consumer, budget = reader.stream, reader.group, reader.consumer, reader.budget
    claimed: list[Entry] = []
    moves: list[tuple[Run, list[bytes]]] = []
    for run in runs_by_time(txn, group, txn.now_ms - min_idle_ms):
        rest = None if count is None else count - len(claimed)
        if (rest is not None and rest <= 0) or budget.refuses():
            break
        if run.waits:
            continue
        live = [entry for entry in read_entries_of(txn, stream, run.ids) if entry][:rest]
        idle = max(0, txn.now_ms - run.time_ms)
        live = [entry._replace(idle_ms=idle, deliveries=run.deliveries) for entry in live]
        live = live[: budget.take(live)]
        claimed += live
        moves.append((run, [entry.id.packed for entry in live]))
    for run, ids in moves:
        redeliver(txn, group, run, ids, consumer.name)
    if claimed:
        consumer.active_ms = txn.now_ms
        txn.member_changed(consumer)
    return claimed


def _take_given_back(txn: Txn, reader: Reader, count: int | None) -> list[Entry]:
    """Take over entries that were given back, in that order, and return their delivery counts too.

    Entries of XNACK FATAL are taken over but not returned, and entries whose message was deleted
    are acknowledged: otherwise every later read would meet them again.
    """
    stream, group, consumer, budget = reader.stream, reader.group, reader.consumer, reader.budget
    taken: list[Entry] = []
    moves: list[tuple[Run, list[PackedID]]] = []
    gone: list[PackedID] = []
    for run in runs_by_time(txn, group, _NO_TIME):
        rest = None if count is None else count - len(taken)
        if (rest is not None and rest <= 0) or budget.refuses():
            break
        if run.deliveries == COUNT_MAX:
            moves.append((run, run.ids))
            continue
        ids = run.ids
        page = read_entries_of(txn, stream, ids)
        gone += [eid for eid, entry in zip(ids, page, strict=True) if entry is None]
        live = [entry._replace(deliveries=run.deliveries) for entry in page if entry][:rest]
        live = live[: budget.take(live)]
        taken += live
        moves.append((run, [entry.id.packed for entry in live]))
    for run, ids in moves:
        redeliver(txn, group, run, ids, consumer.name)
    if gone:
        discard(txn, group, ascending_packed(gone))
    if taken:
        consumer.active_ms = txn.now_ms
    txn.member_changed(consumer)
    return taken


def as_library_read(reply: Reply) -> tuple[Reply, bool]:
    """Convert the reply to XREADGROUP with CLAIM GIVEN_BACK_MS into that of a library read.

    Also return whether the reply had entries that were given back.
    """
    plain_reply: Reply = []
    has_given_back = False
    for name, delivered in reply:
        kept: list[HistoryEntry] = []
        for entry in delivered:
            if not entry.idle_ms:  # a new one
                kept.append(entry._replace(idle_ms=None, deliveries=None))
                continue
            has_given_back = True
            if entry.deliveries != COUNT_MAX:
                kept.append(entry._replace(idle_ms=None))
        if kept:
            plain_reply.append((name, kept))
    return plain_reply, has_given_back


def share_key(group_name: bytes, claim_ms: int | None, given_back: bool = False) -> Hashable:
    """Return the key of blocked reads that find nothing if one of them finds nothing.

    With CLAIM the key includes the idle time; it is the lease for all readers of a queue.
    """
    if given_back or (claim_ms is not None and claim_ms >= GIVEN_BACK_MS):
        return group_name, GIVEN_BACK_MS
    return group_name if claim_ms is None else (group_name, claim_ms)


def plan_delivery(
    name: bytes, group_name: bytes, consumer_name: bytes, count: int | None, noack: bool
) -> Plan[Reply]:
    """Plan XREADGROUP of very many new entries of one stream.

    Steps read rows. The last one leaves out what others have read or trimmed, and delivers the
    rest.
    """

    def plan(txn: Txn) -> Planning[Reply]:
        stream, group = group_of_key(txn, name, group_name, WHERE)
        new = _NewRows(stream, group)
        while new.read(txn, count):
            txn = yield Progress(lambda txn: new.holds(*group_of_key(txn, name, group_name, WHERE)))
        rows, ids = new.take(txn.catalog.limits.reply_left)
        consumer = consumer_of(txn, name, group, consumer_name)
        if not ids:
            return []
        give(txn, stream, group, consumer, ids, noack)
        return [(name, rows)]

    return plan


class _NewRows:
    """The rows that a group has not delivered, read in steps."""

    def __init__(self, stream: StreamMeta, group: GroupMeta) -> None:
        self._stream, self._group, self._version = stream, group, StreamVersion.of(stream)
        self._after = group.last_delivered
        """The group's last delivered ID in the last step."""
        self._rows: list[Row] = []
        self._ids: list[PackedID] = []
        self._size = 0

    def holds(self, stream: StreamMeta, group: GroupMeta) -> bool:
        """Return whether no entry was deleted and the group's last ID was not moved back."""
        return (
            self._version.is_current(stream)
            and group is self._group
            and group.last_delivered >= self._after
        )

    def read(self, txn: Txn, count: int | None) -> bool:
        """Read the next rows; return whether there may be more."""
        stream, room = self._stream, txn.catalog.limits.reply_left
        self._after = self._group.last_delivered
        self._cut(stream)
        left = txn.thresholds.step_rows if count is None else count - len(self._rows)
        if left <= 0 or (room and self._size > room):
            return False
        after = StreamID.unpack(self._ids[-1]) if self._ids else self._after
        if after >= stream.last:
            return False
        page = read_rows(txn, stream, after.next(), MAX_ID, min(left, txn.thresholds.step_rows))
        self._ids += Rows(page, len(stream.prefix)).packed_ids()  # or raises Corruption
        self._rows += page
        self._size += memory_of(page)
        return len(page) == txn.thresholds.step_rows

    def _cut(self, stream: StreamMeta) -> None:
        """Drop rows that were delivered to other consumers or trimmed since the last step."""
        if not stream.length or self._after == MAX_ID:
            self._rows, self._ids, self._size = [], [], 0
            return
        bound = stream.prefix + max(self._after.next(), stream.first).packed
        if self._rows and self._rows[0][0] < bound:
            gone = bisect_left(self._rows, bound, key=itemgetter(0))
            self._size -= memory_of(self._rows[:gone])
            del self._rows[:gone], self._ids[:gone]

    def take(self, room: int) -> tuple[Rows, list[PackedID]]:
        """Return as many rows as fit into ``room`` bytes (0: all), at least one, and their IDs."""
        while room and self._size > room and len(self._rows) > 1:
            self._size -= memory_of([self._rows.pop()])
            self._ids.pop()
        return Rows(self._rows, len(self._stream.prefix)), self._ids


def delivers_many(txn: Txn, name: bytes, group_name: bytes, count: int | None) -> bool:
    """Return whether XREADGROUP may deliver very many new entries."""
    if count is not None and count <= txn.thresholds.long_rows:
        return False
    stream, group = group_of_key(txn, name, group_name, WHERE)
    if (
        group.policy is not None
        or stream.length <= txn.thresholds.long_rows
        or group.last_delivered >= stream.last
    ):
        return False
    behind = lag(stream, group)
    return behind is None or behind > txn.thresholds.long_rows
