"""Keys that take turns (``fair`` of a policy): sort the new entries of a group by their keys.

The first entry of a key becomes ready, as if it had been given back, and the others are held behind
it: they are pending with nobody. Each delivery of a key's ready entry makes its next one ready,
behind the ready ones of other keys (``pel.free_keys``). So a read takes the keys in turn and looks
at no entry that it does not deliver, however many of one key are before it. The entries without the
field are one key.

An append sorts what it adds, in its own commit. What was added otherwise is sorted by reads, some
entries each, and by ``sort_streams``, which the engine calls in the background: the entries before
the policy was set, those of bulk loads, and those of streams whose group is not in memory yet.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter

from kvstream.errors import Corruption, InvalidArgument, WrongType, quote
from kvstream.layout.keys import ID_BYTES
from kvstream.layout.values import decode_fields
from kvstream.meta import pel
from kvstream.meta.keyed import Edit, Key, Keyed, key_of_value
from kvstream.meta.pel_index import pending_in
from kvstream.meta.policy import GroupPolicy
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.runs import HELD_MS, Run
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.operations.groups import advance_over
from kvstream.operations.reads.limits import first_page
from kvstream.operations.reads.rows import read_entries_of, read_rows
from kvstream.storage.batch import Row
from kvstream.types.ids import MAX_ID
from kvstream.types.images import PackedID

PAGE = 500
"""Entries that are sorted together."""
HELD_RANK = 1
"""The rank of all held entries: it does not order them."""
_FEW_GROUPS = 16
"""A stream with more groups is not sorted by appends until a read has loaded the group."""
_AHEAD = 16
"""Entries that an append sorts beside its own, so that it reaches those added otherwise."""

_FIRST_RUNS = 16
"""Runs of pending entries that an append looks at for trimmed ones."""


def get_or_create_keyed(txn: Txn, stream: StreamMeta, group: GroupMeta) -> Keyed:
    """Return the rows of the keys of an ordered group; create their tree if there is none."""
    if group.keyed is None:
        assert group.policy is not None
        tree = txn.allocate()
        group.policy = group.policy.with_rules({"keyed_tree": tree})
        group.keyed = Keyed(stream, tree, txn.thresholds, new=True)
        txn.member_changed(group)
    return group.keyed


def sort_added(txn: Txn, name: bytes, count: int) -> None:
    """Sort ``count`` entries that were appended to a stream of which keys may take turns.

    Of very many, which were added at once, some are left for the background.
    """
    most = min(2 * count + _AHEAD, txn.thresholds.ordered_entries)
    for stream, group in _groups_with_turns(txn, name):
        sort_new(txn, stream, group, most)
        _drop_trimmed(txn, stream, group, most)


def _drop_trimmed(txn: Txn, stream: StreamMeta, group: GroupMeta, most: int) -> None:
    """Drop entries that were trimmed before any delivery, and so are of no use to the group.

    Else those of a stream with MAXLEN would become more and more while nobody reads.
    """
    first, dead = stream.first.packed, list[PackedID]()
    head = group.runs.first(txn.batch)
    if head is None or head.anchor >= first:
        return
    for run in group.runs.some(txn.batch, b"", _FIRST_RUNS):
        if run.anchor >= first:
            break
        if not (run.owned or run.deliveries):
            dead += [eid for eid in run.ids if eid < first]
    if dead:
        pel.discard(txn, group, dead[:most])


def sort_streams(txn: Txn, names: Sequence[bytes]) -> list[bytes]:
    """Sort some entries of the first of these streams that has new ones.

    Return the names to go on with: those behind it, then its own.
    """
    for at, name in enumerate(names):
        for stream, group in _groups_with_turns(txn, name):
            last = group.last_delivered
            sort_new(txn, stream, group, txn.thresholds.sorted_entries)
            if group.last_delivered > last:
                txn.signal(name, Wake.MORE)
                return [*names[at + 1 :], name]
    return []


def _groups_with_turns(txn: Txn, name: bytes) -> Iterator[tuple[StreamMeta, GroupMeta]]:
    """Yield the groups whose keys take turns and that have new entries.

    Forget the name if no group in memory takes turns, or if the stream or a group is damaged.
    """
    groups: list[GroupMeta] = []
    stream = None
    with suppress(Corruption, WrongType):
        stream = txn.stream(name)
        if stream is not None:
            groups = _groups_in_memory(txn, stream)
    fair = [group for group in groups if group.policy is not None and group.policy.fair]
    if not fair:
        txn.catalog.with_turns.discard(name)
    for group in fair:
        if stream is not None and group.last_delivered < stream.last:
            yield stream, group


def _groups_in_memory(txn: Txn, stream: StreamMeta) -> list[GroupMeta]:
    """Return the groups of a stream that are in memory; load all if these are few."""
    if len(stream.groups) < stream.groups_count <= _FEW_GROUPS:
        return list(txn.catalog.groups(txn, stream))
    return list(stream.groups.values())


def sort_new(txn: Txn, stream: StreamMeta, group: GroupMeta, most: int) -> bool:
    """Sort up to ``most`` new entries of a group whose keys take turns; return whether more are."""
    while most > 0 and group.last_delivered < stream.last and stream.length:
        count = min(most, PAGE, first_page(stream))
        page = read_rows(txn, stream, group.last_delivered.next(), MAX_ID, count)
        if not page:
            return False
        _sort(txn, stream, group, page)
        most -= len(page)
    return group.last_delivered < stream.last and stream.length > 0


def _sort(txn: Txn, stream: StreamMeta, group: GroupMeta, page: list[Row]) -> None:
    """Make new entries ready, or hold them behind others of their key."""
    assert group.policy is not None
    edit = Edit(get_or_create_keyed(txn, stream, group), txn.batch)
    field, most = group.policy.order_by, group.policy.max_per_key
    ids = [key[-ID_BYTES:] for key, _ in page]
    last = group.runs.floor(txn.batch, ids[-1])
    is_moved_back = last is not None and last.last >= ids[0]
    pending = frozenset(pel.pending_among(txn, group, ids)) if is_moved_back else frozenset()
    turns: list[bool | None] = []
    for (_, row), eid in zip(page, ids, strict=True):
        value = decode_fields(row).get(field, b"") if field in row else b""
        of_pending = eid in pending
        turns.append(None if of_pending else edit.take_turn(key_of_value(value), eid, most))
    edit.apply()
    advance_over(stream, group, ids)
    _insert(txn, group, ids, turns)


def _insert(
    txn: Txn, group: GroupMeta, ids: Sequence[PackedID], turns: Sequence[bool | None]
) -> None:
    """Make entries pending with nobody: ready (True) or held (False); leave others out (None)."""
    rank = group.nack_rank = max(group.nack_rank, HELD_RANK) + 1
    for turn, same in groupby(zip(turns, ids, strict=True), itemgetter(0)):
        if turn is not None:
            part = [eid for _, eid in same]
            time_ms, of_part = (0, rank) if turn else (HELD_MS, HELD_RANK)
            pel.insert(txn, group, part, b"", time_ms, 0, of_part)
    txn.member_changed(group)


# --- another key --------------------------------------------------------------------------------


def refuse_long(txn: Txn, group: GroupMeta, before: GroupPolicy, policy: GroupPolicy) -> None:
    """Raise InvalidArgument if more entries are pending than are sorted by another key at once."""
    most = txn.thresholds.ordered_entries
    is_other = policy.order_by and policy.order_by != before.order_by
    if group.keyed is None or not is_other or (count := pending_in(txn, group)) <= most:
        return
    raise InvalidArgument(
        f"order_by is {quote(before.order_by)} for {count} pending messages of the group "
        f"{quote(group.name)}: another field may take its place while at most {most} are pending. "
        "Let workers go on until then; or set order_by to nothing first, which makes these "
        "messages ready at once, without limits of keys"
    )


def sort_anew(txn: Txn, stream: StreamMeta, group: GroupMeta) -> None:
    """Sort the pending entries of a group that has no rows of keys, since its field has changed.

    Those that were delivered stay where they are and make their new keys busy. The others become
    ready or held by their new keys, in the order of the stream; deleted ones are dropped.
    """
    assert group.policy is not None
    edit = Edit(get_or_create_keyed(txn, stream, group), txn.batch)
    runs = list(pel.runs_from(txn, group, b""))
    new = [eid for run in runs if _is_undelivered(run) for eid in run.ids]
    for eid, key in _keys_of(txn, stream, group.policy, sorted(_ids(runs) - set(new))):
        if key:
            edit.make_busy(key, eid)
    turns = [
        None if key is None else _place(edit, group.policy, key, eid)
        for eid, key in _keys_of(txn, stream, group.policy, new)
    ]
    edit.apply()
    pel.detach(txn, group, new)
    _insert(txn, group, new, turns)


def _is_undelivered(run: Run) -> bool:
    return bool(run.rank) and not run.deliveries and run.time_ms in (0, HELD_MS)


def _ids(runs: Sequence[Run]) -> set[PackedID]:
    return {eid for run in runs for eid in run.ids}


def _keys_of(
    txn: Txn, stream: StreamMeta, policy: GroupPolicy, ids: Sequence[PackedID]
) -> Iterator[tuple[PackedID, Key | None]]:
    """Yield entries and their keys: empty for those without one, None for deleted entries."""
    count = min(PAGE, first_page(stream))
    for at in range(0, len(ids), count):
        part = ids[at : at + count]
        for eid, entry in zip(part, read_entries_of(txn, stream, part), strict=True):
            if entry is None:
                yield eid, None
            else:
                value = entry.fields.get(policy.order_by, b"" if policy.fair else None)
                yield eid, b"" if value is None else key_of_value(value)


def _place(edit: Edit, policy: GroupPolicy, key: Key, eid: PackedID) -> bool:
    """Return whether an entry that was not delivered is ready; hold it if its key has no room."""
    if policy.fair:
        return edit.take_turn(key, eid, policy.max_per_key)
    if not key:
        return True
    counts = edit.counts(key)
    if counts.held or counts.busy >= policy.max_per_key:
        edit.hold(key, eid)
        return False
    edit.make_busy(key, eid)
    return True
