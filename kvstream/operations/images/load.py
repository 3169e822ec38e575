"""A stream as an image, and loading a stream from one.

``load`` creates a key from a source in one commit. It counts the entries itself, corrects numbers
of the source that differ, and reports each correction. Counters that the source's format lacks
follow Redis's rules for such files, or are counted exactly.

``image`` reads a stream as it is at one moment, and changes nothing. The state is copied at once;
the time grows with groups and pending entries. The nodes are read later, one at a time, through the
transaction or through iterators that were opened at the same moment.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from kvstream.errors import Corruption, InvalidArgument, KeyExists, quote
from kvstream.layout.keys import U64, key_of, tree_prefix
from kvstream.layout.listpack import counters_size
from kvstream.meta import idempotency, nodes, pel_index
from kvstream.meta.bulk_fill import Sink, append_node, append_page
from kvstream.meta.events.keys import RESTORE
from kvstream.meta.nodes import measure
from kvstream.meta.pel import COUNT_MAX, runs_from
from kvstream.meta.records import (
    ENTRIES_ADDED_MAX,
    ENTRIES_READ_MAX,
    UNKNOWN,
    ConsumerMeta,
    GroupMeta,
    Node,
    StreamMeta,
)
from kvstream.meta.runs import Run, run_tree
from kvstream.meta.trees import key_tree
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.operations.info import GroupsSnapshot
from kvstream.operations.keyspace import exists, make_room
from kvstream.operations.queues import image as queue_image
from kvstream.operations.reads.rows import read_rows
from kvstream.storage.batch import Batch, Family, Pages, Row
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.images import (
    ID_BYTES,
    ConsumerImage,
    GroupImage,
    IdempotencyImage,
    NodeImage,
    PackedID,
    ProducerImage,
    StreamSource,
    StreamState,
)
from kvstream.types.thresholds import Thresholds

Allocate = Callable[[], int]
"""Returns a tree ID that was never used before."""

_TREES: int = Family.TREES


@dataclass(slots=True)
class Loaded:
    """The result of a load, with corrections of the source."""

    entries: int = 0
    """The number of entries."""
    groups: int = 0
    """The number of consumer groups."""
    pending: int = 0
    """The number of pending entries of all groups."""
    corrections: list[str] = field(default_factory=list)
    """What was wrong in the source, and what it became."""


def load(
    txn: Txn, name: bytes, source: StreamSource, replace: bool = False, expire_at: int = 0
) -> Loaded:
    """Create a stream from a source, over an existing key only with ``replace``.

    The source is read to its end before anything changes; its rows are in memory until they are
    written. Raise KeyExists if the name is taken.
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
    add_queue(txn, name, state, loaded)
    return loaded


def add_queue(txn: Txn, name: bytes, state: StreamState, loaded: Loaded) -> None:
    """Restore the queue state of a stream that has become a key."""
    left_out = queue_image.restore(txn, name, state.queue) if state.queue else 0
    if left_out:
        loaded.corrections.append(f"{left_out} rows of the queue were of no group or entry")


def refuse_existing(txn: Txn, name: bytes, replace: bool) -> None:
    """Raise KeyExists if a name is taken and its key is not to be replaced."""
    if not replace and exists(txn, name):
        raise KeyExists().with_detail(f"{quote(key_of(name))}; replace overwrites it")


def new_stream(txn: Txn, name: bytes) -> StreamMeta:
    """Return an empty stream with new numbers that no reader sees."""
    stored = txn.catalog.databases.stored_name(txn, name)
    stream = StreamMeta(stored, txn.allocate())
    stream.nodes_tree = txn.allocate()
    return stream


def scratch_of(txn: Txn) -> Txn:
    """Return a transaction whose changes are kept apart from ``txn`` until they are merged."""
    return Txn(txn.batch, txn.catalog, txn.now_ms, read_only=txn.read_only)


def merge(txn: Txn, batch: Batch) -> None:
    """Add rows that were made in another batch to a transaction."""
    batch.put_deferred()
    for puts, others in zip(txn.batch.puts, batch.puts, strict=True):
        puts.update(others)


def take_node(txn: Txn, stream: StreamMeta, node: NodeImage, into: Sink | None = None) -> None:
    """Append a node as it is, or, if it has no size, the entries of a plain page.

    The rows go to the transaction's batch, or to ``into``.
    """
    if node.size:
        append_node(txn, stream, node, into)
    else:
        append_page(txn, stream, node.ids, node.values, into)


def publish(txn: Txn, name: bytes, stream: StreamMeta, replace: bool, expire_at: int) -> None:
    """Make a stream the key of a name; its rows are in the store or in the transaction."""
    refuse_existing(txn, name, replace)
    replaced = make_room(txn, name)
    stream.expire_at = expire_at
    txn.catalog.add_stream(txn, name, stream)
    txn.notify(RESTORE, name)
    txn.notify_overwritten(name, replaced, StreamMeta)
    txn.signal(name, Wake.REPLACED)


# --- what stands beside the entries -------------------------------------------------------------


def seal(txn: Txn, stream: StreamMeta, state: StreamState, allocate: Allocate) -> Loaded:
    """Add groups, counters and producers to a stream that has all its entries."""
    loaded = Loaded(entries=stream.length)
    _set_counters(stream, state, loaded.corrections)
    add_groups(txn, stream, state, allocate, loaded)
    if state.idempotency is not None:
        stream.idmp_tree = allocate() if state.idempotency.producers else 0
        loaded.corrections += idempotency.restore(txn, stream, state.idempotency)
    stream.forget_cold_part()
    return loaded


def restate(txn: Txn, name: bytes, state: StreamState) -> Loaded:
    """Replace the groups, counters and producers of a stream by those of a state.

    Nothing is changed if there is no stream.
    """
    stream = txn.stream(name)
    if stream is None:
        return Loaded()
    for group in list(txn.catalog.groups(txn, stream)):
        txn.catalog.drop_group(txn, stream, group)
    if stream.idmp_tree:
        key_tree(stream.idmp_tree, txn.thresholds).drop(txn.batch)
    stream.idmp_tree = stream.pids = stream.iids = 0
    loaded = seal(txn, stream, state, txn.allocate)
    txn.record_changed(stream)
    txn.notify(RESTORE, name)
    txn.signal(name, Wake.REPLACED)
    return loaded


def _set_counters(stream: StreamMeta, state: StreamState, notes: list[str]) -> None:
    greatest = stream.last
    if state.length != stream.length:
        notes.append(f"the length was {state.length}, but there are {stream.length} entries")
    first = stream.first if stream.length else MIN_ID
    if state.first is not None and state.first != first:
        notes.append(f"the first entry was given as {state.first}, but is {first}")
    stream.max_deleted = state.max_deleted or MIN_ID
    stream.last = max(state.last, greatest, stream.max_deleted)
    if stream.last != state.last:
        notes.append(f"the last ID was {state.last}, below {stream.last}")
    added = stream.length if state.entries_added is None else state.entries_added
    stream.entries_added = min(max(added, stream.length), ENTRIES_ADDED_MAX)
    if added > ENTRIES_ADDED_MAX:
        notes.append(f"{added} entries were said to be added, which nothing can count")
    elif stream.entries_added != added:
        notes.append(f"{added} entries were said to be added, but there are {stream.length}")


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
    txn: Txn, stream: StreamMeta, image: GroupImage, counted: bool, notes: list[str]
) -> int:
    """Return how many entries a group has read; ``counted``: the source's format does not say.

    Such a source does not record deleted entries either, so the entries above the group's last ID
    are those that it has not read. Redis knows their number at both ends of the stream only.
    """
    if counted:
        if image.last_delivered > stream.last:
            return UNKNOWN
        return stream.length - nodes.live_after(txn, stream, image.last_delivered)
    if image.entries_read is None:
        return UNKNOWN
    if not 0 <= image.entries_read <= ENTRIES_READ_MAX:
        notes.append(f"group {image.name!r} was said to have read {image.entries_read} entries")
        return UNKNOWN
    return image.entries_read


def _add_group(
    txn: Txn, row: bytes, image: GroupImage, allocate: Allocate, loaded: Loaded
) -> GroupMeta:
    consumers, runs, times = allocate(), allocate(), allocate()
    sizes = txn.thresholds
    trees = run_tree(runs, sizes), key_tree(times, sizes)
    group = GroupMeta(image.name, row, consumers, *trees)
    group.last_delivered = image.last_delivered
    _add_consumers(txn, group, image, allocate, loaded.corrections)
    ranks = _ranks(image, loaded.corrections)
    group.nack_rank = len(ranks)
    pel_index.write_runs(txn, group, lambda: _runs(sizes, image, ranks))
    for consumer in group.consumers.values():
        txn.batch.put(_TREES, consumer.row, consumer.encode())
    loaded.pending += len(image.pending)
    return group


def _add_consumers(
    txn: Txn, group: GroupMeta, image: GroupImage, allocate: Allocate, notes: list[str]
) -> None:
    consumer = partial(_consumer, txn.thresholds, tree_prefix(group.consumers_tree), allocate)
    for member in image.consumers:
        if member.name in group.consumers:
            notes.append(f"group {image.name!r}: consumer {member.name!r} came twice")
            continue
        made = group.consumers[member.name] = consumer(member.name, member.seen_ms)
        made.active_ms = max(member.active_ms, UNKNOWN)
    for name in image.pending.owners():
        if name not in group.consumers:
            notes.append(f"group {image.name!r}: {name!r} has pending entries, but was no consumer")
            group.consumers[name] = consumer(name, txn.now_ms)
    group.consumers_count = len(group.consumers)


def _consumer(
    sizes: Thresholds, prefix: bytes, allocate: Allocate, name: bytes, seen_ms: int
) -> ConsumerMeta:
    return ConsumerMeta(name, prefix + name, key_tree(allocate(), sizes), max(0, seen_ms))


def _ranks(image: GroupImage, notes: list[str]) -> dict[PackedID, int]:
    """Return the ranks of the entries without an owner, by which they are delivered next."""
    ownerless = set(image.pending.ownerless())
    order = [eid for eid in dict.fromkeys(image.nacked) if eid in ownerless]
    missing = sorted(ownerless.difference(order))
    if missing or len(order) != len(image.nacked):
        notes.append(f"group {image.name!r}: the order of entries given back was not whole")
    return {eid: rank for rank, eid in enumerate(order + missing, 1)}


def _runs(sizes: Thresholds, image: GroupImage, ranks: dict[PackedID, int]) -> Iterator[Run]:
    """Yield the pending entries as runs of neighbours that share owner, time and count."""
    for ids, owner, time_ms, deliveries in image.pending.spans(sizes.run_ids):
        count = min(deliveries, COUNT_MAX)
        if owner is None:
            yield from (Run(eid, eid, b"", 0, count, ranks[eid]) for eid in ids)
        else:
            yield Run.of(ids, (owner, max(0, time_ms), count, 0))


def trees_needed(state: StreamState) -> int:
    """Return the greatest number of tree IDs that ``seal`` takes."""
    groups = sum(
        3 + len(group.consumers) + len(set(group.pending.owners())) for group in state.groups
    )
    return 2 + groups


Walks = Callable[[int, bytes, bytes], Pages]
"""Returns the rows between two keys of a family, page by page."""

_NODE_ROWS = 256
"""Rows of closed nodes that are read at once."""


class StreamImage:
    """One stream at one moment: its state, and its nodes, which can be read once."""

    def __init__(
        self, state: StreamState, expire_at: int, node_count: int, nodes: Iterator[NodeImage]
    ) -> None:
        self.expire_at_ms = expire_at
        """Unix milliseconds at which the key expires; 0: never."""
        self.node_count = node_count
        """Number of nodes of the whole stream."""
        self._state = state
        self._nodes = nodes

    @property
    def length(self) -> int:
        return self._state.length

    @property
    def last(self) -> StreamID:
        """The last ID that the stream has given out."""
        return self._state.last

    def nodes(self) -> Iterator[NodeImage]:
        """Return the nodes that have not been taken yet.

        Taking one raises Corruption if rows and counts contradict each other, StoreClosed after the
        store was closed.
        """
        return self._nodes

    def state(self) -> StreamState:
        """Return the state, which is known before the nodes are read."""
        return self._state

    def close(self) -> None:
        """Release the iterators of the nodes that were not taken."""
        self._nodes = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def image(
    txn: Txn, name: bytes, start: PackedID | None = None, walks: Walks | None = None
) -> StreamImage | None:
    """Return the image of a stream, None if there is none; WrongType for a string.

    It has no queue state. Its nodes begin with the one whose range has ``start``. Without ``walks``
    they are read through the transaction, and must be taken before anything else is done in it.
    """
    stream = txn.stream(name)
    if stream is None:
        return None
    if stream.slack:
        measure(txn.batch, stream)
    nodes_image = _Nodes(txn, stream, start, walks or txn.batch.pages)
    return StreamImage(state(txn, stream), stream.expire_at, stream.nodes, nodes_image.each())


def image_of_now(txn: Txn, name: bytes, walks: Walks, start: PackedID | None) -> StreamImage | None:
    """Return the whole image, which can be read after the transaction, through ``walks``."""
    if txn.dirty:
        raise InvalidArgument("an image needs a transaction that has changed nothing")
    found, stream = image(txn, name, start, walks), txn.stream(name)
    if found is not None and stream is not None:
        found.state().queue = [*queue_image.rows(txn, stream)]
    return found


def state_of_now(txn: Txn, name: bytes) -> StreamState | None:
    """Return everything of a stream except its entries, None if there is none."""
    stream = txn.stream(name)
    if stream is None:
        return None
    found = state(txn, stream)
    found.queue = [*queue_image.rows(txn, stream)]
    return found


def image_in_steps(txn: Txn, name: bytes) -> Iterator[StreamImage | None]:
    """Return an iterator that yields None in each step, then the image of a stream as it is now.

    The transaction must have changed nothing; NoSuchKey if there is no stream.
    """
    stream = txn.existing_stream(name)
    if stream.slack:
        measure(txn.batch, stream)
    found = _Nodes(txn, stream, None, txn.batch.committed.pages)
    return _in_steps(GroupsSnapshot(txn, stream), _without_groups(txn, stream), found)


def _in_steps(
    snapshot: GroupsSnapshot, state: StreamState, nodes: "_Nodes"
) -> Iterator[StreamImage | None]:
    for at, group in enumerate(snapshot, 1):
        state.groups.append(_group(snapshot.txn, group))
        if not at % snapshot.txn.thresholds.step_groups:
            yield None
    stream = snapshot.stream
    yield StreamImage(state, stream.expire_at, stream.nodes, nodes.each())


def page(
    txn: Txn, name: bytes, first: StreamID, last: StreamID, count: int
) -> list[tuple[PackedID, bytes]]:
    """Return the first ``count`` entries of a range as packed IDs and stored values."""
    stream = txn.stream(name)
    if stream is None:
        return []
    rows = read_rows(txn, stream, first, last, count)
    return [(key[-ID_BYTES:], value) for key, value in rows]


# --- nodes --------------------------------------------------------------------------------------


class _Nodes:
    """The nodes of a stream, and the open node as it was when they were asked for."""

    def __init__(self, txn: Txn, stream: StreamMeta, start: PackedID | None, walks: Walks) -> None:
        self._name = stream.name
        self._stream = stream
        self._key_bytes = len(stream.prefix) + ID_BYTES
        self._open = nodes.open_node(stream) if stream.open_live else None
        self._last = b""
        """The greatest ID of the nodes so far."""
        if self._open is None:
            return
        head = _head(txn, stream, start)
        trees, prefix = tree_prefix(stream.nodes_tree), stream.prefix
        # No node is added below the open one, and no entry below the last: these rows are complete.
        self._records = walks(Family.TREES, trees + head.packed, trees + self._open.first.packed)
        first = max(stream.first, head)
        self._messages = walks(
            Family.MESSAGES, prefix + first.packed, prefix + stream.last.packed + b"\0"
        )
        next(self._records)
        next(self._messages)

    def each(self) -> Iterator[NodeImage]:
        if self._open is None:
            return
        while rows := self._records.send(_NODE_ROWS):
            for key, value in rows:
                yield self._image(Node.decode(StreamID.unpack(key[U64.size :]), value))
        yield self._image(self._open)

    def _image(self, node: Node) -> NodeImage:
        first, last = node.first.packed, node.last.packed
        rows: list[Row] = self._messages.send(node.live)
        ids = [key[-ID_BYTES:] for key, _ in rows]
        whole = len(ids) == node.live > 0 and self._last < first <= ids[0] and ids[-1] <= last
        self._last = last
        if not whole or any(len(key) != self._key_bytes for key, _ in rows):
            raise nodes.damage_error(
                self._stream, f"has other entries than node {node.first} counts"
            )
        values = [value for _, value in rows]
        size = node.size + counters_size(node.live, node.appended - node.live)
        return NodeImage(first, node.names, ids, values, node.appended, size, last)


def _head(txn: Txn, stream: StreamMeta, start: PackedID | None) -> StreamID:
    """Return the first ID of the first node."""
    if start is None or start <= stream.first.packed:
        return stream.head
    if start >= stream.open_first.packed:
        return stream.open_first
    node = nodes.node_at(txn, stream, StreamID.unpack(start))
    if node is None:
        raise nodes.damage_error(stream, "has fewer nodes than it counts")
    return node.first


# --- the rest -----------------------------------------------------------------------------------


def state(txn: Txn, stream: StreamMeta) -> StreamState:
    """Return everything of a stream except its entries."""
    found = _without_groups(txn, stream)
    found.groups = [_group(txn, group) for group in txn.catalog.groups(txn, stream)]
    return found


def _without_groups(txn: Txn, stream: StreamMeta) -> StreamState:
    return StreamState(
        length=stream.length,
        last=stream.last,
        first=stream.first if stream.length else MIN_ID,
        max_deleted=stream.max_deleted,
        entries_added=stream.entries_added,
        idempotency=_idempotency(txn, stream),
    )


def _group(txn: Txn, group: GroupMeta) -> GroupImage:
    image = GroupImage(group.name, group.last_delivered, group.known_entries_read)
    image.consumers = [
        ConsumerImage(consumer.name, consumer.seen_ms, consumer.active_ms)
        for consumer in txn.catalog.consumers(txn, group)
    ]
    members = {consumer.name for consumer in image.consumers}
    given_back: list[tuple[int, int, PackedID]] = []
    try:
        for run in runs_from(txn, group, b""):
            owner = run.owner if run.owned else None
            if owner is not None and owner not in members:
                raise ValueError(f"it has pending entries of no consumer {owner!r}")
            time_ms = 0 if owner is None else run.time_ms  # ready times are queue state
            image.pending.extend(run.ids, owner, time_ms, run.deliveries)
            if owner is None:
                given_back += [(run.time_ms, run.rank, eid) for eid in run.ids]
    except ValueError as error:
        raise Corruption(f"group {group.name!r} is damaged: {error}") from None
    image.nacked = [eid for _, _, eid in sorted(given_back)]
    return image


def _idempotency(txn: Txn, stream: StreamMeta) -> IdempotencyImage | None:
    """Return the producers, without idempotent IDs that have expired."""
    producers = []
    oldest = txn.now_ms - idempotency.duration_ms(txn, stream)
    for pid in idempotency.producers(txn, stream):
        remembered = idempotency.Producer(txn, stream, pid).iids()
        iids = [(iid, eid) for iid, eid, stamp_ms in remembered if stamp_ms > oldest]
        if iids:
            producers.append(ProducerImage(pid, iids))
    figures = stream.idmp_duration, stream.idmp_maxsize, stream.iids_added, stream.iids_duplicates
    if not producers and not any(figures):
        return None
    return IdempotencyImage(
        duration_s=stream.idmp_duration or txn.catalog.limits.idmp_duration_s,
        maxsize=idempotency.maxsize(txn, stream),
        producers=producers,
        iids_added=stream.iids_added,
        iids_duplicates=stream.iids_duplicates,
    )
