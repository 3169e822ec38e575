"""A stream as an image: read from its rows as they are in one moment, with nothing changed by it.

The state is copied at once, in time that its groups and pending entries take. The nodes are read
afterwards, one at a time: through the transaction, or through walks that were begun in the same
moment and see nothing of what is written later.
"""

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol, Self

from kvstream.errors import Corruption, InvalidArgument, NoSuchKey
from kvstream.ids import MIN_ID, StreamID
from kvstream.images import (
    ID_BYTES,
    ConsumerImage,
    GroupImage,
    IdempotencyImage,
    NodeImage,
    PackedID,
    ProducerImage,
    StreamState,
)
from kvstream.layout.keys import tree_prefix
from kvstream.layout.listpack import counters_size
from kvstream.meta import idempotency, nodes
from kvstream.meta.measuring import measure
from kvstream.meta.pending import runs_from
from kvstream.meta.records import UNKNOWN, GroupMeta, Node, StreamMeta
from kvstream.meta.txn import Txn
from kvstream.operations import entries
from kvstream.operations.still import StillGroups
from kvstream.storage.batch import Family, Pages, Row

Walks = Callable[[int, bytes, bytes], Pages]
"""Gives the rows between two keys of a family, page by page."""


class Walkable(Protocol):
    """Committed rows, of which walks see one moment."""

    def pages(self, family: int, lower: bytes, upper: bytes) -> Pages: ...


_NODE_ROWS = 256
"""Rows of closed nodes that are read at once."""
_STEP_GROUPS = 16
"""Groups that are copied in one step."""


class StreamImage:
    """One stream in one moment: its state, and its nodes, each of them once."""

    def __init__(
        self, state: StreamState, expire_at: int, node_count: int, found: Iterator[NodeImage]
    ) -> None:
        self.expire_at_ms = expire_at
        """Unix milliseconds at which the key expires; 0: never."""
        self.node_count = node_count
        """How many nodes the whole stream has."""
        self._state = state
        self._nodes = found

    @property
    def length(self) -> int:
        return self._state.length

    @property
    def last(self) -> StreamID:
        """The last ID that the stream has given out."""
        return self._state.last

    def nodes(self) -> Iterator[NodeImage]:
        """Return the nodes that have not been taken yet.

        Taking one raises Corruption where rows and counts contradict each other, StoreClosed once
        the store is.
        """
        return self._nodes

    def state(self) -> StreamState:
        """Return the rest, which is known before the nodes are."""
        return self._state

    def close(self) -> None:
        """Let go of what RocksDB keeps for the nodes that were not taken."""
        self._nodes = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def image(
    txn: Txn, name: bytes, start: PackedID | None = None, walks: Walks | None = None
) -> StreamImage | None:
    """Return the image of a stream, None where there is none; WrongType for a string.

    Its nodes begin with the one in which ``start`` is, or would be. Without ``walks`` they are read
    through the transaction, and must be taken before anything else is done in it.
    """
    stream = txn.stream(name)
    if stream is None:
        return None
    if stream.slack:
        measure(txn.batch, stream)
    found = _Nodes(txn, stream, start, walks or txn.batch.pages)
    return StreamImage(state(txn, stream), stream.expire_at, stream.nodes, found.each())


def image_of_now(
    txn: Txn, name: bytes, rows: Walkable, start: PackedID | None = None
) -> StreamImage | None:
    """Return an image that can be read after the transaction, from the committed ``rows``."""
    if txn.dirty:
        raise InvalidArgument("an image needs a transaction that has changed nothing")
    return image(txn, name, start, rows.pages)


def image_in_steps(txn: Txn, name: bytes) -> Iterator[StreamImage | None]:
    """Return what yields None again and again, and then the image of a stream as it is now.

    The transaction must have changed nothing; NoSuchKey where there is no stream.
    """
    stream = txn.stream(name)
    if stream is None:
        raise NoSuchKey
    if stream.slack:
        measure(txn.batch, stream)
    found = _Nodes(txn, stream, None, txn.batch.committed.pages)
    return _in_steps(StillGroups(txn, stream), _without_groups(txn, stream), found)


def _in_steps(
    still: StillGroups, found: StreamState, nodes: "_Nodes"
) -> Iterator[StreamImage | None]:
    for at, group in enumerate(still, 1):
        found.groups.append(_group(still.txn, group))
        if not at % _STEP_GROUPS:
            yield None
    stream = still.stream
    yield StreamImage(found, stream.expire_at, stream.nodes, nodes.each())


def page(
    txn: Txn, name: bytes, first: StreamID, last: StreamID, count: int
) -> list[tuple[PackedID, bytes]]:
    """Return the first ``count`` entries of a range as packed IDs and stored values."""
    stream = txn.stream(name)
    if stream is None:
        return []
    rows = entries.rows(txn, stream, first, last, count)
    return [(key[-ID_BYTES:], value) for key, value in rows]


# --- nodes --------------------------------------------------------------------------------------


class _Nodes:
    """The nodes of a stream, with what was open when they were asked for."""

    def __init__(self, txn: Txn, stream: StreamMeta, start: PackedID | None, walks: Walks) -> None:
        self._name = stream.name
        self._stream = stream
        self._key_bytes = len(stream.prefix) + ID_BYTES
        self._open = nodes.open_node(stream) if stream.open_live else None
        self._last = b""
        """The last ID that a node before this one was given."""
        if self._open is None:
            return
        head = _head(txn, stream, start)
        trees, prefix = tree_prefix(stream.nodes_tree), stream.prefix
        # No node is put below the open one, and no entry below the last: the walks end for good.
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
                yield self._image(Node.decode(StreamID.unpack(key[8:]), value))
        yield self._image(self._open)

    def _image(self, node: Node) -> NodeImage:
        first, last = node.first.packed, node.last.packed
        rows: list[Row] = self._messages.send(node.live)
        ids = [key[-ID_BYTES:] for key, _ in rows]
        whole = len(ids) == node.live > 0 and self._last < first <= ids[0] and ids[-1] <= last
        self._last = last
        if not whole or any(len(key) != self._key_bytes for key, _ in rows):
            raise nodes.damaged(self._stream, f"has other entries than node {node.first} counts")
        values = [value for _, value in rows]
        size = node.size + counters_size(node.live, node.appended - node.live)
        return NodeImage(first, node.names, ids, values, node.appended, size, last)


def _head(txn: Txn, stream: StreamMeta, start: PackedID | None) -> StreamID:
    """Return the first ID of the node to begin with."""
    if start is None or start <= stream.first.packed:
        return stream.head
    if start >= stream.open_first.packed:
        return stream.open_first
    prefix = tree_prefix(stream.nodes_tree)
    lower, upper = prefix + stream.head.packed, prefix + start + b"\0"
    found = txn.batch.page(Family.TREES, lower, upper, 1, reverse=True)
    if not found:
        raise nodes.damaged(stream, "has fewer nodes than it counts")
    return StreamID.unpack(found[0][0][8:])


# --- the rest -----------------------------------------------------------------------------------


def state(txn: Txn, stream: StreamMeta) -> StreamState:
    """Return all of a stream but its entries."""
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
    known = None if group.entries_read == UNKNOWN else group.entries_read
    image = GroupImage(group.name, group.last_delivered, known)
    image.consumers = [
        ConsumerImage(each.name, each.seen_ms, each.active_ms)
        for each in txn.catalog.consumers(txn, group)
    ]
    members = {each.name for each in image.consumers}
    given_back: list[tuple[int, PackedID]] = []
    try:
        for run in runs_from(txn, group, b""):
            owner = run.owner if run.owned else None
            if owner is not None and owner not in members:
                raise ValueError(f"it has pending entries of no consumer {owner!r}")
            image.pending.extend(run.ids, owner, run.time_ms, run.deliveries)
            if owner is None:
                given_back += [(run.rank, eid) for eid in run.ids]
    except ValueError as error:
        raise Corruption(f"group {group.name!r} is damaged: {error}") from None
    image.nacked = [eid for _, eid in sorted(given_back)]
    return image


def _idempotency(txn: Txn, stream: StreamMeta) -> IdempotencyImage | None:
    """Return what is remembered of producers, less what is too old to count."""
    producers = []
    oldest = txn.now_ms - idempotency.duration_ms(txn, stream)
    for pid in idempotency.producers(txn, stream):
        remembered = idempotency.remembered(txn, stream, pid)
        iids = [(iid, eid) for iid, eid, stamp_ms in remembered if stamp_ms > oldest]
        if iids:
            producers.append(ProducerImage(pid, iids))
    told = stream.idmp_duration, stream.idmp_maxsize, stream.iids_added, stream.iids_duplicates
    if not producers and not any(told):
        return None
    return IdempotencyImage(
        duration_s=stream.idmp_duration or txn.catalog.limits.idmp_duration_s,
        maxsize=idempotency.maxsize(txn, stream),
        producers=producers,
        iids_added=stream.iids_added,
        iids_duplicates=stream.iids_duplicates,
    )
