"""Loading a stream from its image: all that belongs to it, and the key last, in one commit.

What a source tells is held against what it brings. Counts are taken from the entries, not from the
source; what does not fit is set right, and each correction is told. Counters that the source's
format has not are found out by Redis's rules for such files, or counted, where Redis gives up.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kvstream.errors import KeyExists
from kvstream.ids import MIN_ID
from kvstream.images import GroupImage, NodeImage, PackedID, StreamSource, StreamState
from kvstream.layout.keys import tree_prefix
from kvstream.meta import idempotency, indexes, nodes
from kvstream.meta.building import Sink, append_node, append_page
from kvstream.meta.pending import COUNT_MAX, RUN_IDS_MAX
from kvstream.meta.records import (
    ENTRIES_ADDED_MAX,
    ENTRIES_READ_MAX,
    UNKNOWN,
    ConsumerMeta,
    GroupMeta,
    StreamMeta,
)
from kvstream.meta.runs import Run
from kvstream.meta.trees import Tree, as_is
from kvstream.meta.txn import Txn
from kvstream.operations.keyspace import exists, make_room
from kvstream.storage.batch import Batch, Family

Allocate = Callable[[], int]
"""Gives a number for a tree that was never given before."""

_TREES: int = Family.TREES


@dataclass(slots=True)
class Loaded:
    """What was loaded, and what of its source's word was wrong."""

    entries: int = 0
    groups: int = 0
    pending: int = 0
    corrections: list[str] = field(default_factory=list)


def load(
    txn: Txn, name: bytes, source: StreamSource, replace: bool = False, expire_at: int = 0
) -> Loaded:
    """Make a stream of a source under a name, over what has it only with ``replace``.

    The source is read to its end before anything is changed, whatever it raises; its rows are in
    memory until they are written. KeyExists where the name is taken.
    """
    refuse_existing(txn, name, replace)
    stream = new_stream(txn, name)
    scratch = scratch_of(txn)
    for node in source.nodes():
        take_node(scratch, stream, node)
    state = source.state()
    loaded = seal(scratch, stream, state, txn.allocate)
    publish(txn, name, stream, replace, expire_at)
    merge(txn, scratch.batch)
    return loaded


def refuse_existing(txn: Txn, name: bytes, replace: bool) -> None:
    """Raise KeyExists where a name is taken and what has it is not to be replaced."""
    if not replace and exists(txn, name):
        raise KeyExists


def new_stream(txn: Txn, name: bytes) -> StreamMeta:
    """Return an empty stream with numbers of its own, which nobody sees yet."""
    stored = txn.catalog.databases.stored_name(txn, name)
    stream = StreamMeta(stored, txn.allocate())
    stream.nodes_tree = txn.allocate()
    return stream


def scratch_of(txn: Txn) -> Txn:
    """Return a transaction whose changes are not part of ``txn`` until they are merged."""
    return Txn(txn.batch, txn.catalog, txn.now_ms, read_only=txn.read_only)


def merge(txn: Txn, batch: Batch) -> None:
    """Have rows that were made apart written with a transaction."""
    for puts, made in zip(txn.batch.puts, batch.puts, strict=True):
        puts.update(made)


def take_node(txn: Txn, stream: StreamMeta, node: NodeImage, into: Sink | None = None) -> None:
    """Append a node as it is, or the entries of a plain page, whose size is not told.

    The rows go into the transaction's batch, or into something else.
    """
    if node.size:
        append_node(txn, stream, node, into)
    else:
        append_page(txn, stream, node.ids, node.values, into)


def publish(txn: Txn, name: bytes, stream: StreamMeta, replace: bool, expire_at: int) -> None:
    """Make a stream, all rows of which are there or in the transaction, the key of a name."""
    refuse_existing(txn, name, replace)
    make_room(txn, name)
    stream.expire_at = expire_at
    txn.catalog.add_stream(txn, name, stream)
    txn.signal(name)


# --- what stands beside the entries -------------------------------------------------------------


def seal(txn: Txn, stream: StreamMeta, state: StreamState, allocate: Allocate) -> Loaded:
    """Give a stream that has all its entries the rest of what belongs to it."""
    loaded = Loaded(entries=stream.length)
    _set_counters(stream, state, loaded.corrections)
    add_groups(txn, stream, state, allocate, loaded)
    if state.idempotency is not None:
        stream.idmp_tree = allocate() if state.idempotency.producers else 0
        loaded.corrections += idempotency.restore(txn, stream, state.idempotency)
    stream.cool()
    return loaded


def restate(txn: Txn, name: bytes, state: StreamState) -> Loaded:
    """Give an existing stream the groups, counters and producers of a state, in place of its own.

    NoSuchKey is for the caller to raise where there is none.
    """
    stream = txn.stream(name)
    if stream is None:
        return Loaded()
    for group in list(txn.catalog.groups(txn, stream)):
        txn.catalog.drop_group(txn, stream, group)
    if stream.idmp_tree:
        Tree(stream.idmp_tree, as_is).drop(txn.batch)
    stream.idmp_tree = stream.pids = stream.iids = 0
    loaded = seal(txn, stream, state, txn.allocate)
    txn.reshaped(stream)
    txn.signal(name)
    return loaded


def _set_counters(stream: StreamMeta, state: StreamState, told: list[str]) -> None:
    greatest = stream.last
    if state.length != stream.length:
        told.append(f"the length was {state.length}, but there are {stream.length} entries")
    first = stream.first if stream.length else MIN_ID
    if state.first is not None and state.first != first:
        told.append(f"the first entry was told as {state.first}, but is {first}")
    stream.max_deleted = state.max_deleted or MIN_ID
    stream.last = max(state.last, greatest, stream.max_deleted)
    if stream.last != state.last:
        told.append(f"the last ID was {state.last}, below {stream.last}")
    added = stream.length if state.entries_added is None else state.entries_added
    stream.entries_added = min(max(added, stream.length), ENTRIES_ADDED_MAX)
    if added > ENTRIES_ADDED_MAX:
        told.append(f"{added} entries were said to be added, which nothing can count")
    elif stream.entries_added != added:
        told.append(f"{added} entries were said to be added, but there are {stream.length}")


def add_groups(
    txn: Txn, stream: StreamMeta, state: StreamState, allocate: Allocate, loaded: Loaded
) -> None:
    """Add the groups of a state to a stream that has none."""
    stream.groups, stream.groups_count = {}, 0
    if not state.groups:
        return
    if not stream.groups_tree:
        stream.groups_tree = allocate()
    counted = state.entries_added is None
    for image in state.groups:
        row = tree_prefix(stream.groups_tree) + image.name
        if txn.batch.get(_TREES, row) is not None:
            loaded.corrections.append(f"group {image.name!r} came twice")
            continue
        group = _add_group(txn, row, image, allocate, loaded)
        group.entries_read = _entries_read(txn, stream, image, counted, loaded.corrections)
        txn.batch.put(_TREES, row, group.encode())
        stream.groups_count += 1
    loaded.groups = stream.groups_count


def _entries_read(
    txn: Txn, stream: StreamMeta, image: GroupImage, counted: bool, told: list[str]
) -> int:
    """Return how many entries a group has read; ``counted``: the source's format does not say.

    Such a source says nothing of entries that were deleted either. So what lies above the group's
    last ID is what it has not read; Redis knows that at both ends of the stream alone.
    """
    if counted:
        if image.last_delivered > stream.last:
            return UNKNOWN
        return stream.length - nodes.live_after(txn, stream, image.last_delivered)
    if image.entries_read is None:
        return UNKNOWN
    if not 0 <= image.entries_read <= ENTRIES_READ_MAX:
        told.append(f"group {image.name!r} was said to have read {image.entries_read} entries")
        return UNKNOWN
    return image.entries_read


def _add_group(
    txn: Txn, row: bytes, image: GroupImage, allocate: Allocate, loaded: Loaded
) -> GroupMeta:
    consumers, runs, times = allocate(), allocate(), allocate()
    group = GroupMeta(image.name, row, consumers, Tree(runs, Run.decode), Tree(times, as_is))
    group.last_delivered = image.last_delivered
    _add_consumers(txn, group, image, allocate, loaded.corrections)
    ranks = _ranks(image, loaded.corrections)
    group.nack_rank = len(ranks)
    indexes.lay_down(txn, group, lambda: _runs(image, ranks))
    for consumer in group.consumers.values():
        txn.batch.put(_TREES, consumer.row, consumer.encode())
    loaded.pending += len(image.pending)
    return group


def _add_consumers(
    txn: Txn, group: GroupMeta, image: GroupImage, allocate: Allocate, told: list[str]
) -> None:
    prefix = tree_prefix(group.consumers_tree)
    for each in image.consumers:
        if each.name in group.consumers:
            told.append(f"group {image.name!r}: consumer {each.name!r} came twice")
            continue
        consumer = _consumer(prefix, each.name, each.seen_ms, allocate)
        consumer.active_ms = max(each.active_ms, UNKNOWN)
        group.consumers[each.name] = consumer
    for name in image.pending.owners():
        if name not in group.consumers:
            told.append(f"group {image.name!r}: {name!r} has pending entries, but was no consumer")
            group.consumers[name] = _consumer(prefix, name, txn.now_ms, allocate)
    group.consumers_count = len(group.consumers)


def _consumer(prefix: bytes, name: bytes, seen_ms: int, allocate: Allocate) -> ConsumerMeta:
    return ConsumerMeta(name, prefix + name, Tree(allocate(), as_is), max(0, seen_ms))


def _ranks(image: GroupImage, told: list[str]) -> dict[PackedID, int]:
    """Return the places of the entries that belong to nobody in the order of handing out."""
    ownerless = set(image.pending.ownerless())
    order = [eid for eid in dict.fromkeys(image.nacked) if eid in ownerless]
    missing = sorted(ownerless.difference(order))
    if missing or len(order) != len(image.nacked):
        told.append(f"group {image.name!r}: the order of entries given back was not whole")
    return {eid: rank for rank, eid in enumerate(order + missing, 1)}


def _runs(image: GroupImage, ranks: dict[PackedID, int]) -> Iterator[Run]:
    """Yield the pending entries as runs: neighbours that share owner, time and count."""
    for ids, owner, time_ms, deliveries in image.pending.spans():
        count = min(deliveries, COUNT_MAX)
        if owner is None:
            yield Run(ids[0], ids, b"", 0, count, ranks[ids[0]])
            continue
        for at in range(0, len(ids), RUN_IDS_MAX):
            part = ids[at : at + RUN_IDS_MAX]
            yield Run(part[0], part, owner, max(0, time_ms), count)


def trees_needed(state: StreamState) -> int:
    """Return how many numbers ``seal`` takes at most."""
    groups = sum(
        3 + len(group.consumers) + len(set(group.pending.owners())) for group in state.groups
    )
    return 2 + groups
