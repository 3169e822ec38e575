"""Delivery in order by key: at most ``max_per_key`` entries of a key are in flight in a group.

A read of new entries gives those whose key has room and *holds* the others: these become pending
with no owner, and the read goes on behind them, so a key with a long backlog delays no other key.
When an entry of a key is no longer pending, ``pel.free_keys`` makes the key's next held entry ready
in the same commit. An entry is held only once, so the cost of a read grows with the entries that it
gives or holds. One read looks at ``ordered_entries`` at most; if it stops there, blocked readers
are woken to go on.

Entries without the field are not ordered, nor are those that were pending before the policy was
set.

If the keys take turns (``fair``), new entries are sorted before they are delivered: the first one
of a key becomes ready, as if it had been given back, and the others are held. Each delivery of a
key's ready entry makes the next one ready, behind those of the other keys. So a read finds the
next entry without a look at the entries before it (operations/turns.py).
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter

from kvstream.layout.keys import ID_BYTES
from kvstream.layout.rows import Rows
from kvstream.layout.values import decode_fields
from kvstream.meta import pel, pel_index
from kvstream.meta.keyed import Edit, key_of_value
from kvstream.meta.pel_index import times_of
from kvstream.meta.policy import GroupPolicy
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.runs import HELD_MS, TIME_BYTES, Run
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.operations.groups import Reader, advance_over, give
from kvstream.operations.reads.limits import FIRST_PAGE, UNLIMITED, first_page, memory_of
from kvstream.operations.reads.rows import FEW, read_ahead, read_rows
from kvstream.operations.turns import HELD_RANK, get_or_create_keyed, sort_anew
from kvstream.storage.batch import Row
from kvstream.types.ids import MAX_ID
from kvstream.types.images import PackedID

PAGE = 500
"""Entries that are looked at together."""
_GIVEN, _HELD, _PASSED = range(3)
"""What becomes of an entry; it is passed if it is pending already (XGROUP SETID)."""


def take_new(txn: Txn, reader: Reader, count: int | None) -> Rows:
    """Deliver the next entries whose keys have room, and hold the others before them.

    With ``noack`` a delivery makes no key busy, but entries of busy keys are held all the same.
    """
    stream, group, budget, room = reader.stream, reader.group, reader.budget, reader.room
    delivered: list[Row] = []
    looked, size, most = 0, 0, txn.thresholds.ordered_entries
    is_limited = budget is not UNLIMITED
    by_size = is_limited and budget.limits[1] is not None
    while group.last_delivered < stream.last and stream.length and looked < most:
        left = most if count is None else count - len(delivered)
        if left <= 0 or (room and size > room) or (is_limited and budget.exhausted):
            break
        page = _next(txn, stream, group, left, looked)
        if by_size:
            del page[1:]
        if not page:
            break
        ids = [key[-ID_BYTES:] for key, _ in page]
        if _has_no_key(txn, group, page, ids):
            fresh = page[:left]
            give(txn, stream, group, reader.consumer, ids[:left], reader.noack)
            looked += len(fresh)
        else:
            fates = _Choice(txn, reader).decide(page, ids, left)
            _record(txn, reader, ids[: len(fates)], fates)
            fresh = [row for row, fate in zip(page, fates, strict=False) if fate == _GIVEN]
            looked += len(fates)
        if is_limited:
            budget.take(Rows(fresh, len(stream.prefix)))
        delivered += fresh
        size += memory_of(fresh) if room else 0
    if looked >= most and (count is None or len(delivered) < count):
        txn.catalog.index.wake_at(reader.name, txn.now_ms, Wake.MORE)
    return Rows(delivered, len(stream.prefix))


def _next(txn: Txn, stream: StreamMeta, group: GroupMeta, left: int, looked: int) -> list[Row]:
    """Return the next entries to look at: as many as are wanted, or pages if many are held."""
    most = first_page(stream)
    is_large = most < FIRST_PAGE
    if left <= FEW and not looked and not is_large:
        return read_ahead(txn, stream, group, left).page
    rest = txn.thresholds.ordered_entries - looked
    most = min(most if is_large else PAGE, rest, max(left, 2 * looked))
    return read_rows(txn, stream, group.last_delivered.next(), MAX_ID, most)


def _has_no_key(txn: Txn, group: GroupMeta, page: list[Row], ids: Sequence[PackedID]) -> bool:
    """Return whether no entry of a page has a key or is pending, so that all are given."""
    assert group.policy is not None
    name = group.policy.order_by
    if any(name in row for _, row in page):
        return False
    last = group.runs.floor(txn.batch, ids[-1])
    return last is None or last.last < ids[0]


class _Choice:
    """Decides which entries of a page are given, and writes the rows of their keys."""

    def __init__(self, txn: Txn, reader: Reader) -> None:
        group = reader.group
        assert group.policy is not None
        self._txn, self._group, self._noack = txn, group, reader.noack
        self._edit = Edit(get_or_create_keyed(txn, reader.stream, group), txn.batch)
        self._field, self._most = group.policy.order_by, group.policy.max_per_key

    def decide(self, page: list[Row], ids: Sequence[PackedID], left: int) -> list[int]:
        """Return what becomes of the entries of a page, until ``left`` of them are given."""
        last = self._group.runs.floor(self._txn.batch, ids[-1])
        pending: frozenset[PackedID] = frozenset()
        if last is not None and last.last >= ids[0]:
            pending = frozenset(pel.pending_among(self._txn, self._group, ids))
        fates: list[int] = []
        for (_, row), eid in zip(page, ids, strict=True):
            if not left:
                break
            value = decode_fields(row).get(self._field) if self._field in row else None
            if eid in pending:
                fate = _PASSED
            else:
                fate = _GIVEN if value is None else self._fate(eid, value)
            left -= fate == _GIVEN
            fates.append(fate)
        self._edit.apply()
        return fates

    def _fate(self, eid: PackedID, value: bytes) -> int:
        edit, key = self._edit, key_of_value(value)
        counts = edit.counts(key)
        if counts.busy < self._most and not counts.held:
            if not self._noack:
                edit.make_busy(key, eid)
            return _GIVEN
        edit.hold(key, eid)
        return _HELD


def _record(txn: Txn, reader: Reader, ids: Sequence[PackedID], fates: Sequence[int]) -> None:
    """Make entries pending: the given ones with their consumer, the held ones with nobody."""
    group, consumer = reader.group, reader.consumer
    advance_over(reader.stream, group, ids)
    gives = False
    for fate, same in groupby(zip(fates, ids, strict=True), itemgetter(0)):
        part = [eid for _, eid in same]
        if fate == _GIVEN and not reader.noack:
            gives = True
            pel.deliver(txn, group, part, consumer.name, txn.now_ms)
        elif fate == _HELD:
            group.nack_rank = max(group.nack_rank, HELD_RANK)
            pel.insert(txn, group, part, b"", HELD_MS, 0, HELD_RANK)
    if gives:
        txn.catalog.note_activity(txn, group, consumer)
    else:
        txn.member_changed(group)
        txn.member_changed(consumer)


# --- the policy ---------------------------------------------------------------------------------


def follow_policy(txn: Txn, stream: StreamMeta, group: GroupMeta, before: GroupPolicy) -> None:
    """Adapt the held entries of a group to its changed policy.

    If the order ends, all of them become ready; another field sorts all that is pending anew.
    """
    keyed, policy = group.keyed, group.policy
    if keyed is None:
        return
    if policy is not None and policy.order_by == before.order_by:
        if policy.max_per_key > before.max_per_key or policy.fair != before.fair:
            keys = keyed.keys(txn.batch)
            pel.make_ready(txn, group, [key for key, of in keys if of.held or of.turn])
        return
    is_sorted = policy is not None and bool(policy.order_by)
    if not is_sorted:
        _make_ready(txn, group, list(_scan_held(txn, group)))
    keyed.tree.drop(txn.batch)
    group.keyed = None
    if policy is not None:
        group.policy = policy.with_rules({"keyed_tree": 0})
    if is_sorted:
        sort_anew(txn, stream, group)
    txn.member_changed(group)


def release_some(txn: Txn, group: GroupMeta, last: PackedID) -> bool:
    """Make some held entries up to an ID ready; return whether there are more.

    This is for a group whose order is about to end.
    """
    if group.keyed is None:
        return False
    most = txn.thresholds.released_runs
    held = list(islice(_scan_held(txn, group), most + 1))
    runs = [run for run in held[:most] if run.anchor <= last]
    edit = Edit(group.keyed, txn.batch)
    for run in runs:
        for eid in run.ids:
            known = edit.entry(eid)
            if known is None:
                raise pel_index.missing_run(group, eid)
            edit.end_hold(known[1], eid)
            edit.forget(eid)
    edit.apply()
    _make_ready(txn, group, runs)
    if runs:
        txn.member_changed(group)
        txn.signal(txn.catalog.databases.shown_name(txn, group.keyed.stream.name), Wake.FREED)
    return len(runs) == most and len(held) > most


def _scan_held(txn: Txn, group: GroupMeta) -> Iterator[Run]:
    """Yield the runs of held entries, in the order of their IDs."""
    start = Run(b"", b"", b"", HELD_MS, 0, HELD_RANK).times_suffix
    for suffix in times_of(txn, group, start):
        run = pel.run_by_anchor(txn, group, suffix[TIME_BYTES:])
        if run.rank:
            yield run


def _make_ready(txn: Txn, group: GroupMeta, held: list[Run]) -> None:
    if held:
        group.nack_rank += 1
        pel.release_runs(txn, group, held, group.nack_rank)
