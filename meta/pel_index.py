"""Keep the runs of a group together with their indexes by time and by owner.

A group has one of two forms. Normally only its runs are rows, at most ``cached_rows`` of them with
``cached_ids`` IDs (``Thresholds``); the indexes and counts follow from them and are built in memory
when first used. A group that outgrows this is *indexed*: both indexes are rows as well, in the
times tree and the consumers' trees, and its records count what is pending. The commit that crosses
the limit also changes the form.

::

    consumer row := consumer's tree(u64) anchor(id) -> empty      of indexed groups only
    times row    := group's times tree(u64) times   -> empty      of indexed groups only
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby

from kvstream.errors import Corruption
from kvstream.layout.keys import ID_BYTES
from kvstream.meta import trees
from kvstream.meta.changeset import Changeset
from kvstream.meta.records import ConsumerMeta, GroupMeta
from kvstream.meta.runs import (
    HEAD_BYTES,
    Owner,
    Run,
    RunIndex,
    RunWatch,
    RunWatches,
    new_run,
    owner_of,
)
from kvstream.meta.trees import Tree
from kvstream.storage.batch import Family
from kvstream.types.images import PackedID

_TREES = Family.TREES
_EVERYTHING = Run(b"", b"\xff" * ID_BYTES, b"", 0, 0)
"""A run that overlaps all IDs."""


def index_of(txn: Changeset, group: GroupMeta) -> RunIndex:
    """Return the index in memory of a group that is not indexed on disk."""
    index = group.index
    if index is None:
        index = group.index = RunIndex.of(txn.thresholds, group.runs.scan(txn.batch))
    return index


def _ordered_index_of(txn: Changeset, group: GroupMeta) -> RunIndex:
    """Return the index in memory with the order of the runs."""
    index = group.index
    if index is None or not index.is_ordered:
        index = group.index = RunIndex.of(txn.thresholds, group.runs.scan(txn.batch), ordered=True)
    return index


# --- what is pending ----------------------------------------------------------------------------


def pending_in(txn: Changeset, group: GroupMeta) -> int:
    """Return the number of pending entries of a group."""
    return group.pending if group.indexed else (group.index or index_of(txn, group)).pending


def nacked_in(txn: Changeset, group: GroupMeta) -> int:
    """Return the number of pending entries without an owner (XNACK)."""
    return group.nacked if group.indexed else index_of(txn, group).pending_with(None)


def pending_with(txn: Changeset, group: GroupMeta, consumer: ConsumerMeta) -> int:
    """Return the number of pending entries of a consumer."""
    if group.indexed:
        return consumer.pending
    return index_of(txn, group).pending_with(consumer.name)


def pending_by_consumer(txn: Changeset, group: GroupMeta) -> dict[bytes, int]:
    """Return the number of pending entries of each consumer that has any, sorted by name."""
    if group.indexed:
        members = txn.catalog.consumers(txn, group)
        return {member.name: member.pending for member in members if member.pending}
    shares = (group.index or index_of(txn, group)).shares
    owners = sorted([owner for owner in shares if owner is not None])
    return {owner: shares[owner].pending for owner in owners}


def times_of(txn: Changeset, group: GroupMeta, start: bytes = b"") -> Iterator[bytes]:
    """Yield the ``times_suffix`` of each run: first those without an owner, then the oldest."""
    if group.indexed:
        return group.times.scan(txn.batch, start)
    return _ordered_index_of(txn, group).by_time(start)


def anchors_of(
    txn: Changeset, group: GroupMeta, consumer: ConsumerMeta, start: PackedID
) -> Iterator[PackedID]:
    """Yield the anchors of a consumer's runs, from the last one at or below ``start`` on."""
    if group.indexed:
        first = consumer.runs.floor(txn.batch, start)
        return consumer.runs.scan(txn.batch, first or start)
    return _ordered_index_of(txn, group).anchors_of(consumer.name, start)


# --- changes ------------------------------------------------------------------------------------


def watch(group: GroupMeta) -> RunWatch:
    """Record changes of a group's runs for as long as the caller keeps the watch."""
    if group.watches is None:
        group.watches = RunWatches()
    return group.watches.add()


def _report_change(group: GroupMeta, runs: Iterable[Run]) -> None:
    if group.watches is not None and not group.watches.report(runs):
        group.watches = None


def add(txn: Changeset, group: GroupMeta, run: Run) -> None:
    """Write a run where none is anchored; raise Corruption if its owner is no consumer."""
    if not run.rank and run.owner not in group.consumers:
        txn.catalog.owner(txn, group, run.owner)
    if group.watches is not None:
        _report_change(group, [run])
    if not group.indexed:
        group.grown += run.length
        if _has_room(txn, group) and (
            group.grown <= txn.thresholds.cached_ids or _is_light(txn, group)
        ):
            group.runs.put(txn.batch, run.anchor, run)
            if group.index is not None:
                group.index.add(run)
            return
        _write_indexes(txn, group)
    group.runs.put(txn.batch, run.anchor, run)
    suffix = run.times_suffix
    group.times.put(txn.batch, suffix, suffix)
    if run.owned:
        consumer = txn.catalog.owner(txn, group, run.owner)
        consumer.runs.put(txn.batch, run.anchor, run.anchor)
    _count(txn, group, owner_of(run), run.length)


def add_all(txn: Changeset, group: GroupMeta, runs: list[Run]) -> None:
    """Write runs where none are anchored: all at once if they are many and stay in memory."""
    grown = group.grown + sum([run.length for run in runs])
    together = (
        len(runs) > txn.thresholds.few_runs
        and not group.indexed
        and grown <= txn.thresholds.cached_ids
    )
    if not together or not _has_room(txn, group, len(runs)):
        for run in runs:
            add(txn, group, run)
        return
    for owner in {run.owner for run in runs if not run.rank}:
        txn.catalog.owner(txn, group, owner)
    _report_change(group, runs)
    group.grown = grown
    group.runs.put_all(txn.batch, {run.anchor: run for run in runs})
    if group.index is not None:
        group.index.add_all(runs)


def remove(txn: Changeset, group: GroupMeta, run: Run) -> None:
    """Delete a run."""
    group.near = None
    if group.watches is not None:
        _report_change(group, [run])
    group.runs.delete(txn.batch, run.anchor)
    if group.indexed:
        owner = owner_of(run)
        group.times.delete(txn.batch, run.times_suffix)
        if owner is not None:
            txn.catalog.owner(txn, group, owner).runs.delete(txn.batch, run.anchor)
        _count(txn, group, owner, -run.length)
    elif group.index is not None:
        group.index.remove(run)


def remove_all(txn: Changeset, group: GroupMeta, runs: list[Run]) -> None:
    """Delete runs: all at once if they are many and in memory."""
    if len(runs) <= txn.thresholds.few_runs or group.indexed or group.runs.memory is None:
        for run in runs:
            remove(txn, group, run)
        return
    _report_change(group, runs)
    group.runs.delete_all(txn.batch, [run.anchor for run in runs])
    if group.index is not None:
        group.index.remove_all(runs)


def resize(txn: Changeset, group: GroupMeta, run: Run, packed: bytes) -> None:
    """Replace the IDs of a run: by some of them, or by more behind the last one."""
    resized = new_run((run.anchor, packed, *run[2:]))
    change = (len(packed) - len(run.packed)) // ID_BYTES
    if change > 0:
        group.grown += change
    if group.watches is not None:
        _report_change(group, [resized if change > 0 else run])
    group.runs.put(txn.batch, run.anchor, resized)
    if group.indexed:
        group.near = resized
        _count(txn, group, owner_of(run), change)
    elif group.index is not None:
        group.index.count(run, change)


def replace(
    txn: Changeset,
    group: GroupMeta,
    old: list[Run],
    new: Mapping[PackedID, Run],
    rows: Mapping[PackedID, bytes] | None = None,
) -> None:
    """Replace runs by others, given by their anchors; ``rows``: the others, if encoded already."""
    group.near = None
    if len(old) + len(new) <= txn.thresholds.few_runs:
        return _replace_few(txn, group, old, new)
    runs = list(new.values())
    for owner in {run.owner for run in runs if not run.rank}:
        txn.catalog.owner(txn, group, owner)
    _report_change(group, old)
    _report_change(group, runs)
    gone = [run.anchor for run in old if run.anchor not in new]
    if not group.indexed:
        more = sum([run.length for run in runs]) - sum([run.length for run in old])
        group.grown += max(0, more)
        if _has_room(txn, group, len(new) - len(old)) and (
            group.grown <= txn.thresholds.cached_ids or _is_light(txn, group)
        ):
            group.runs.replace(txn.batch, gone, new, rows)
            if group.index is not None:
                group.index.remove_all(old)
                group.index.add_all(runs)
            return
        _write_indexes(txn, group)
    if not new and sum([run.length for run in old]) == group.pending:
        _empty(txn, group, {run.owner for run in old if not run.rank})
    else:
        group.runs.replace(txn.batch, gone, new, rows)
        _replace_index_rows(txn, group, old, runs)
    unindex_if_small(txn, group)


def _replace_few(
    txn: Changeset, group: GroupMeta, old: list[Run], new: Mapping[PackedID, Run]
) -> None:
    """Replace runs one by one."""
    kept = set()
    for run in old:
        other = None if group.indexed else new.get(run.anchor)
        if other is not None and other.length <= run.length:
            _overwrite(txn, group, run, other)
            kept.add(run.anchor)
        else:
            remove(txn, group, run)
    for anchor, run in new.items():
        if anchor not in kept:
            add(txn, group, run)
    if group.indexed:
        unindex_if_small(txn, group)


def _overwrite(txn: Changeset, group: GroupMeta, old: Run, new: Run) -> None:
    """Replace a run by one of the same anchor and no more IDs: the group keeps its form."""
    if not new.rank and new.owner not in group.consumers:
        txn.catalog.owner(txn, group, new.owner)
    if group.watches is not None:
        _report_change(group, [old, new])
    group.runs.put(txn.batch, new.anchor, new)
    if group.index is not None:
        group.index.remove(old)
        group.index.add(new)


def remove_of(txn: Changeset, group: GroupMeta, consumer: ConsumerMeta) -> int:
    """Delete all runs of a consumer; return the number of their entries."""
    pending = consumer.pending
    if group.indexed and pending == group.pending:
        if group.watches is not None:
            group.watches.report([_EVERYTHING])
        _empty(txn, group, [consumer.name])
        unindex_if_small(txn, group)
        return pending
    if not group.indexed and not pending_with(txn, group, consumer):
        return 0
    anchors = [*anchors_of(txn, group, consumer, b"")]
    found = [group.runs.get(txn.batch, anchor) for anchor in anchors]
    if None in found:
        raise missing_run(group, anchors[found.index(None)])
    runs = [run for run in found if run is not None]
    replace(txn, group, runs, {})
    return sum([run.length for run in runs])


def missing_run(group: GroupMeta, anchor: PackedID) -> Corruption:
    """Return the error for an index that names a missing run."""
    return Corruption(f"group {group.name!r} has lost the run of pending entries {anchor.hex()}")


def _empty(txn: Changeset, group: GroupMeta, owners: Iterable[bytes]) -> None:
    """Delete all runs of an indexed group."""
    group.near = None
    group.runs.clear(txn.batch)
    group.times.clear(txn.batch)
    for owner in owners:
        consumer = txn.catalog.owner(txn, group, owner)
        consumer.runs.clear(txn.batch)
        consumer.pending = 0
        txn.member_changed(consumer)
    group.pending = group.nacked = 0
    txn.member_changed(group)


def _replace_index_rows(txn: Changeset, group: GroupMeta, old: list[Run], new: list[Run]) -> None:
    suffixes = [run.times_suffix for run in new]
    _replace_empty(txn, group.times, [run.times_suffix for run in old], suffixes)
    anchors: dict[Owner, tuple[list[PackedID], list[PackedID]]] = {}
    counts: dict[Owner, int] = {}
    for side, runs in enumerate((old, new)):
        for owner, same_owner in groupby(runs, owner_of):
            same = list(same_owner)
            anchors.setdefault(owner, ([], []))[side].extend([run.anchor for run in same])
            change = sum([run.length for run in same])
            counts[owner] = counts.get(owner, 0) + (change if side else -change)
    for owner, (gone, put) in anchors.items():
        if owner is not None:
            _replace_empty(txn, txn.catalog.owner(txn, group, owner).runs, gone, put)
        _count(txn, group, owner, counts[owner])


def _replace_empty(txn: Changeset, tree: Tree[bytes], old: list[bytes], new: list[bytes]) -> None:
    rows = {suffix: suffix for suffix in new}
    tree.replace(txn.batch, [suffix for suffix in old if suffix not in rows], rows)


def _count(txn: Changeset, group: GroupMeta, owner: Owner, change: int) -> None:
    """Count pending entries in the records of an indexed group."""
    group.pending += change
    txn.member_changed(group)
    if owner is None:
        group.nacked += change
    else:
        consumer = txn.catalog.owner(txn, group, owner)
        consumer.pending += change
        txn.member_changed(consumer)


# --- loading a group ----------------------------------------------------------------------------


def write_runs(txn: Changeset, group: GroupMeta, runs: Callable[[], Iterable[Run]]) -> None:
    """Write all runs of a group that has none, in the form that suits their number.

    ``runs`` returns them in the order of their anchors, again at each call. The caller writes the
    records of the group and of the owners in ``group.consumers``.
    """
    count = ids = size = 0
    for run in runs():
        count, ids, size = count + 1, ids + run.length, size + len(run.owner)
    group.indexed = (
        count > txn.thresholds.cached_rows
        or ids > txn.thresholds.cached_ids
        or size + count * HEAD_BYTES + ids * ID_BYTES > trees.CACHED_BYTES
    )
    for run in runs():
        txn.batch.put(_TREES, group.runs.prefix + run.anchor, run.encode())
        if not group.indexed:
            continue
        count = run.length
        txn.batch.put(_TREES, group.times.prefix + run.times_suffix, b"")
        group.pending += count
        if run.owned:
            consumer = group.consumers[run.owner]
            txn.batch.put(_TREES, consumer.runs.prefix + run.anchor, b"")
            consumer.pending += count
        else:
            group.nacked += count


# --- from one form to the other -----------------------------------------------------------------


def _has_room(txn: Changeset, group: GroupMeta, count: int = 1) -> bool:
    """Return whether a group's runs stay in memory with ``count`` more of them.

    Large groups share the room of ``store_rows``. They take it in steps, to add up rarely.
    """
    runs = group.runs
    if runs.has_room(txn.batch, count):
        return True
    if runs.memory is None:
        return False
    have, step = len(runs.memory.items), max(count, txn.thresholds.cached_rows)
    if have + step + _large_rows(txn) - runs.large_rows() > txn.thresholds.store_rows:
        return False
    runs.room = have + step
    return True


def _large_rows(txn: Changeset) -> int:
    """Return the runs of all large groups in memory."""
    streams = txn.catalog.streams.values()
    return sum([group.runs.large_rows() for stream in streams for group in stream.groups.values()])


def _is_light(txn: Changeset, group: GroupMeta) -> bool:
    """Count a group's IDs again; return whether they are well below ``cached_ids``."""
    group.grown = sum([run.length for run in group.runs.all(txn.batch)])
    return group.grown <= txn.thresholds.cached_ids // 2


def _write_indexes(txn: Changeset, group: GroupMeta) -> None:
    """Make a group indexed: write both indexes and all counts."""
    runs = group.runs.all(txn.batch)
    group.indexed, group.index, group.grown, group.near = True, None, 0, None
    group.times.fill(txn.batch, sorted([run.times_suffix for run in runs]))
    anchors: dict[Owner, list[PackedID]] = {}
    pending: dict[Owner, int] = {}
    for run in runs:
        owner = None if run.rank else run.owner
        anchors.setdefault(owner, []).append(run.anchor)
        pending[owner] = pending.get(owner, 0) + run.length
    group.pending, group.nacked = sum(pending.values()), pending.pop(None, 0)
    for consumer in txn.catalog.consumers(txn, group):
        consumer.runs.fill(txn.batch, anchors.pop(consumer.name, []))
        consumer.pending = pending.get(consumer.name, 0)
        txn.member_changed(consumer)
    for owner in anchors:
        if owner is not None:
            txn.catalog.owner(txn, group, owner)  # raises Corruption if there is no such consumer
    group.runs.leave_memory(txn.batch)
    txn.member_changed(group)


def _fits_again(txn: Changeset, group: GroupMeta) -> bool:
    """Return whether an indexed group has become so small that its runs fit into memory."""
    pending = group.pending
    if pending <= txn.thresholds.cached_rows // 2 or group.runs.is_small():
        return True
    if 0 < group.grown < 2 * pending:  # it was looked at when it was not twice as large
        return False
    group.grown = pending
    return pending + _large_rows(txn) <= txn.thresholds.store_rows // 2


def unindex_if_small(txn: Changeset, group: GroupMeta) -> None:
    """Delete the rows of the indexes, and the counts, of a group that has few runs again."""
    if not group.indexed or group.pending > txn.thresholds.cached_ids // 2:
        return
    if group.pending == 0:  # the trees are empty
        group.times.begin(txn.batch)
        group.runs.reload(txn.batch)
    elif _fits_again(txn, group):
        if group.runs.memory is None:
            group.runs.reload(txn.batch)
            group.runs.room = txn.thresholds.store_rows
        group.times.clear(txn.batch)
        for consumer in txn.catalog.consumers(txn, group):
            if consumer.pending:
                consumer.runs.clear(txn.batch)
                consumer.pending = 0
                txn.member_changed(consumer)
    else:
        return
    group.indexed, group.grown = False, group.pending
    group.pending = group.nacked = 0
    txn.member_changed(group)
