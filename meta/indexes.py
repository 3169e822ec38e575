"""The runs of a group, kept together with what finds them by time and by owner.

A group is in one of two forms. Normally its runs alone are rows, at most CACHED_ROWS of them and
CACHED_IDS IDs in them; the indexes and the counts of pending entries follow from them, and stand in
memory once they were asked for. A group that outgrows this is *indexed*: both indexes are rows as
well, in the times tree and the consumers' trees, and its records count what is pending. Either
change of form is a part of the commit that makes it due.

::

    consumer row := consumer's tree(u64) anchor(id) -> empty      of indexed groups only
    times row    := group's times tree(u64) times   -> empty      of indexed groups only
"""

from collections.abc import Iterator

from kvstream.meta.records import ConsumerMeta, GroupMeta
from kvstream.meta.run_index import Owner, RunIndex, owner_of
from kvstream.meta.runs import PackedID, Run
from kvstream.meta.txn import Txn

CACHED_IDS = 1 << 18
"""IDs of one group whose runs are kept in memory as a whole: 15 MB."""


def index_of(txn: Txn, group: GroupMeta) -> RunIndex:
    """Return the index in memory of a group that is not indexed on disk."""
    index = group.index
    if index is None:
        index = group.index = RunIndex.of(group.runs.scan(txn.batch))
    return index


# --- what is pending ----------------------------------------------------------------------------


def pending_in(txn: Txn, group: GroupMeta) -> int:
    """Return how many entries are pending in a group."""
    return group.pending if group.indexed else index_of(txn, group).pending


def nacked_in(txn: Txn, group: GroupMeta) -> int:
    """Return how many of them were given back and belong to nobody."""
    return group.nacked if group.indexed else index_of(txn, group).pending_with(None)


def pending_with(txn: Txn, group: GroupMeta, consumer: ConsumerMeta) -> int:
    """Return how many entries are pending with a consumer."""
    if group.indexed:
        return consumer.pending
    return index_of(txn, group).pending_with(consumer.name)


def times_of(txn: Txn, group: GroupMeta, start: bytes = b"") -> Iterator[bytes]:
    """Yield the ``times_suffix`` of each run, those given back first and then the oldest."""
    if group.indexed:
        return group.times.scan(txn.batch, start)
    return index_of(txn, group).by_time(start)


def anchors_of(
    txn: Txn, group: GroupMeta, consumer: ConsumerMeta, start: PackedID
) -> Iterator[PackedID]:
    """Yield the anchors of a consumer's runs, from the last one at or below ``start`` on."""
    if group.indexed:
        first = consumer.runs.floor(txn.batch, start)
        return consumer.runs.scan(txn.batch, first or start)
    return index_of(txn, group).anchors_of(consumer.name, start)


# --- changes ------------------------------------------------------------------------------------


def add(txn: Txn, group: GroupMeta, run: Run) -> None:
    """Put a run where none is anchored; Corruption where its owner is no consumer."""
    if not run.rank and run.owner not in group.consumers:
        txn.catalog.owner(txn, group, run.owner)
    if not group.indexed:
        group.grown += len(run.ids)
        if group.runs.has_room(txn.batch) and (group.grown <= CACHED_IDS or _is_light(txn, group)):
            group.runs.put(txn.batch, run.anchor, run.encode(), run)
            if group.index is not None:
                group.index.add(run)
            return
        _write_indexes(txn, group)
    group.runs.put(txn.batch, run.anchor, run.encode(), run)
    _put_index_rows(txn, group, run)
    _count(txn, group, owner_of(run), len(run.ids))


def remove(txn: Txn, group: GroupMeta, run: Run) -> None:
    """Delete a run."""
    group.runs.delete(txn.batch, run.anchor)
    if group.indexed:
        owner = owner_of(run)
        group.times.delete(txn.batch, run.times_suffix)
        if owner is not None:
            txn.catalog.owner(txn, group, owner).runs.delete(txn.batch, run.anchor)
        _count(txn, group, owner, -len(run.ids))
    elif group.index is not None:
        group.index.remove(run)


def shrink(txn: Txn, group: GroupMeta, run: Run, left: list[PackedID]) -> None:
    """Leave a run only some of its IDs."""
    rest = run._replace(ids=left)
    group.runs.put(txn.batch, run.anchor, rest.encode(), rest)
    change = len(left) - len(run.ids)
    if group.indexed:
        _count(txn, group, owner_of(run), change)
    elif group.index is not None:
        group.index.count(run, change)


def _count(txn: Txn, group: GroupMeta, owner: Owner, change: int) -> None:
    """Have the records of an indexed group count what has become pending."""
    group.pending += change
    txn.member_changed(group)
    if owner is None:
        group.nacked += change
    else:
        consumer = txn.catalog.owner(txn, group, owner)
        consumer.pending += change
        txn.member_changed(consumer)


def _put_index_rows(txn: Txn, group: GroupMeta, run: Run) -> None:
    suffix = run.times_suffix
    group.times.put(txn.batch, suffix, b"", suffix)
    if run.owned:
        consumer = txn.catalog.owner(txn, group, run.owner)
        consumer.runs.put(txn.batch, run.anchor, b"", run.anchor)


# --- from one form to the other -----------------------------------------------------------------


def _is_light(txn: Txn, group: GroupMeta) -> bool:
    """Count the IDs of a group anew: well below CACHED_IDS, so that it is not soon done again."""
    group.grown = sum(len(run.ids) for run in group.runs.scan(txn.batch))
    return group.grown <= CACHED_IDS // 2


def _write_indexes(txn: Txn, group: GroupMeta) -> None:
    """Make a group indexed: write both indexes and all counts."""
    index, runs = index_of(txn, group), list(group.runs.scan(txn.batch))
    group.indexed, group.index = True, None
    group.times.begin()
    for consumer in txn.catalog.consumers(txn, group):
        consumer.runs.begin()
        consumer.pending = index.pending_with(consumer.name)
        txn.member_changed(consumer)
    for run in runs:
        _put_index_rows(txn, group, run)
    group.pending, group.nacked = index.pending, index.pending_with(None)
    group.runs.leave_memory()
    txn.member_changed(group)


def settle(txn: Txn, group: GroupMeta) -> None:
    """Drop the rows of the indexes, and the counts, where a group has few runs again."""
    if not group.indexed or group.pending > CACHED_IDS // 4:
        return
    if group.pending == 0:  # the trees are empty
        group.times.begin()
        group.runs.reload()
    elif group.runs.is_small():
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
