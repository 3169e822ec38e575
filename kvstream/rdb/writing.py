"""An image as a stream object, as Redis itself writes it; the grammar is in streams.py.

What loaders check is made to hold: length and first entry are counted, groups, consumers and
pending entries stand in their order, and no counter contradicts another.
"""

from collections.abc import Callable, Iterable, Iterator

from kvstream.ids import MIN_ID, StreamID
from kvstream.images import GroupImage, IdempotencyImage, NodeImage, PackedID, StreamState
from kvstream.options import STREAM_IDMP_DURATION_S, STREAM_IDMP_MAXSIZE
from kvstream.rdb import pending
from kvstream.rdb.kinds import Kind
from kvstream.rdb.nodes import NODE_BYTES_MAX, encode_node
from kvstream.rdb.primitives import (
    encode_fixed_length,
    encode_id,
    encode_length,
    encode_string,
    encode_time,
)

_UNKNOWN = -1


def encode_stream(
    kind: Kind,
    nodes: Iterable[NodeImage],
    state: StreamState | Callable[[], StreamState],
    node_count: int | None = None,
    *,
    compress: bool = False,
) -> Iterator[bytes]:
    """Yield a stream object in pieces, one for a node.

    Without ``node_count`` the first piece is a LEN of FIXED_LENGTH_BYTES that says 0, to be written
    over. ``compress`` makes LZF of nodes and names. ``state`` is asked for after the last node, as
    many a source knows it then only. ValueError where it holds what ``kind`` does not
    (``targets.reduce`` takes it out), nodes are out of order, or not so many as was said.
    """
    if isinstance(state, StreamState):
        _refuse_what_is_lost(kind, state)
    yield encode_fixed_length(0) if node_count is None else encode_length(node_count)
    written = _Written()
    for node in nodes:
        yield written.add(node, compress)
    if node_count not in (None, written.nodes):
        raise ValueError(f"{node_count} nodes were announced, and {written.nodes} came")
    if not isinstance(state, StreamState):
        state = state()
        _refuse_what_is_lost(kind, state)
    yield _counters(kind, state, written)
    yield encode_length(len(state.groups))
    for group in sorted(state.groups, key=lambda each: each.name):
        yield from _group(kind, group, compress)
    if kind >= Kind.IDEMPOTENCY:
        yield from _idempotency(state.idempotency, compress)


def _refuse_what_is_lost(kind: Kind, state: StreamState) -> None:
    if kind < Kind.IDEMPOTENCY and state.idempotency is not None:
        raise ValueError(f"type {kind} has no idempotent producers")
    if kind < Kind.NACKED and any(group.pending.ownerless() for group in state.groups):
        raise ValueError(f"type {kind} has no entries that belong to nobody")


class _Written:
    """The nodes that were written: what the counters behind them must agree with."""

    def __init__(self) -> None:
        self.nodes = 0
        self.entries = 0
        self.first = MIN_ID
        """The first living entry."""
        self._last: PackedID = b""

    @property
    def last(self) -> StreamID:
        """The last entry ever put into the nodes."""
        return StreamID.unpack(self._last) if self._last else MIN_ID

    def add(self, node: NodeImage, compress: bool) -> bytes:
        data = encode_node(node)
        if node.first <= self._last:
            raise ValueError(f"node {StreamID.unpack(node.first)} is out of order")
        if len(data) > NODE_BYTES_MAX:
            raise ValueError(f"node {StreamID.unpack(node.first)} is above {NODE_BYTES_MAX} bytes")
        if not self.entries:
            self.first = StreamID.unpack(node.ids[0])
        self.nodes += 1
        self.entries += len(node.ids)
        self._last = max(node.ids[-1], node.last or b"")
        return encode_string(node.first) + encode_string(data, compress=compress)


def _counters(kind: Kind, state: StreamState, written: _Written) -> bytes:
    max_deleted = state.max_deleted or MIN_ID
    last = max(state.last, written.last, max_deleted)
    parts = [encode_length(written.entries), encode_id(last)]
    if kind >= Kind.COUNTERS:
        added = max(state.entries_added or 0, written.entries)
        parts += [encode_id(written.first), encode_id(max_deleted), encode_length(added)]
    return b"".join(parts)


def _group(kind: Kind, group: GroupImage, compress: bool) -> Iterator[bytes]:
    yield encode_string(group.name, compress=compress) + encode_id(group.last_delivered)
    if kind >= Kind.COUNTERS:
        yield encode_length(_UNKNOWN if group.entries_read is None else group.entries_read)
    yield from pending.write(group.pending)
    owned = group.pending.ids_by_owner()
    yield encode_length(len(group.consumers))
    for consumer in sorted(group.consumers):
        yield encode_string(consumer.name, compress=compress) + encode_time(consumer.seen_ms)
        if kind >= Kind.ACTIVE_TIMES:
            yield encode_time(consumer.active_ms)
        yield pending.write_ids(owned.pop(consumer.name, b""))
    if owned:
        raise ValueError(f"group {group.name!r} has entries of {min(owned)!r}, who is no consumer")
    if kind >= Kind.NACKED:
        if sorted(group.nacked) != group.pending.ownerless():
            raise ValueError(f"group {group.name!r} has entries of nobody without an order")
        yield pending.write_ids(b"".join(group.nacked))


def _idempotency(image: IdempotencyImage | None, compress: bool) -> Iterator[bytes]:
    if image is None:
        image = IdempotencyImage(STREAM_IDMP_DURATION_S, STREAM_IDMP_MAXSIZE)
    yield encode_length(image.duration_s) + encode_length(image.maxsize)
    yield encode_length(len(image.producers))
    for producer in sorted(image.producers):
        yield encode_string(producer.pid, compress=compress) + encode_length(len(producer.iids))
        for iid, eid in producer.iids:
            yield encode_string(iid, compress=compress) + encode_id(eid)
    yield encode_length(image.iids_added) + encode_length(image.iids_duplicates)
