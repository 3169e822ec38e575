"""Build a stream from entries in order, a node or a page at a time.

The rows go into a transaction's batch. No other command uses the stream meanwhile. Nodes that come
with their borders keep them, because ``XTRIM ~`` depends on them; pages are divided into nodes as
XADD would divide them. Every entry is measured here.
"""

from collections.abc import Sequence
from itertools import repeat
from operator import add, lt
from typing import Protocol

from kvstream.errors import InvalidArgument
from kvstream.layout import twins
from kvstream.layout.columns import unpack_rows
from kvstream.layout.keys import ID_BYTES, tree_prefix
from kvstream.layout.listpack import counters_size
from kvstream.layout.values import decode_checked
from kvstream.meta.changeset import Changeset
from kvstream.meta.filling import NODE_BYTES_MAX, NODE_ENTRIES_MAX, begin_node, close, count_joined
from kvstream.meta.nodes import data_size, measure, set_names, size_in_python
from kvstream.meta.records import StreamMeta
from kvstream.rdb.nodes import PackedNode
from kvstream.storage.batch import Family
from kvstream.types.ids import StreamID
from kvstream.types.images import NodeImage, PackedID
from kvstream.types.records import Fields, RepeatedFields

_MESSAGES: int = Family.MESSAGES
_TREES: int = Family.TREES
_UNLIMITED = 1 << 62
_U32_MAX = (1 << 32) - 1


def names_of(value: bytes) -> tuple[bytes, ...]:
    """Return the field names of a stored value in order, with repeats."""
    fields: Fields = decode_checked([value])[0]
    return tuple(fields.flat[::2]) if type(fields) is RepeatedFields else tuple(fields)


class Sink(Protocol):
    """Where rows of entries are written."""

    def put(self, prefix: bytes, ids: list[PackedID], values: list[bytes]) -> None: ...

    def put_packed(self, prefix: bytes, rows: bytes, count: int) -> None: ...


class _IntoBatch:
    """Writes rows into the transaction's batch."""

    def __init__(self, txn: Changeset) -> None:
        self._puts = txn.batch.puts[_MESSAGES]

    def put(self, prefix: bytes, ids: list[PackedID], values: list[bytes]) -> None:
        self._puts.update(zip(map(add, repeat(prefix), ids), values, strict=False))

    def put_packed(self, prefix: bytes, rows: bytes, count: int) -> None:
        self.put(prefix, *unpack_rows(rows))


def append_node(
    txn: Changeset, stream: StreamMeta, node: NodeImage, into: Sink | None = None
) -> None:
    """Append a node and keep its borders; raise InvalidArgument if its IDs are out of order.

    The rows go into the transaction's batch, or into ``into``.
    """
    into = into or _IntoBatch(txn)
    first, first_id, last_id, live = node.first, node.first_id, node.last_id, node.count
    packed = node if type(node) is PackedNode and node.measure >= 0 else None
    if packed is None:
        _check(stream, node.ids, node.values)
    begun = StreamID.unpack(first)
    if not stream.last < begun or not first <= first_id:
        raise _order_error(first)
    close(txn, stream)
    if packed is not None:
        begin_node(stream, begun, node.names, node.names, packed.measure)
        into.put_packed(stream.prefix, packed.rows, live)
    else:
        names = names_of(node.values[0]) if first == first_id else node.names
        begin_node(stream, begun, names, names)
        empty = stream.open_bytes, 0, 0
        _, size = fit(node.ids, node.values, 0, live, names, first, empty, _UNLIMITED)
        stream.open_bytes = size
        into.put(stream.prefix, node.ids, node.values)
    count_joined(stream, StreamID.unpack(first_id), StreamID.unpack(last_id), live)
    stream.measured = stream.open_last
    last = max(node.last or last_id, last_id)
    gone = (first != first_id) + (last != last_id)
    if node.appended > live or gone:
        _count_gone(stream, node, gone, StreamID.unpack(last))


def _count_gone(stream: StreamMeta, node: NodeImage, gone: int, last: StreamID) -> None:
    """Count the deleted entries of the open node, of which ``gone`` are known."""
    live = stream.open_live
    appended = min(max(node.appended, live + gone), _U32_MAX)
    # Deleted entries take room as well; the source knows how much.
    size = min(node.size, _U32_MAX) - counters_size(live, appended - live)
    stream.open_bytes = max(stream.open_bytes, size)
    stream.open_appended = appended
    stream.open_last = stream.measured = stream.last = last
    stream.entries_added += appended - live


def append_page(
    txn: Changeset,
    stream: StreamMeta,
    ids: list[PackedID],
    values: list[bytes],
    into: Sink | None = None,
) -> None:
    """Append entries in nodes as XADD would form them; raise InvalidArgument if out of order.

    The rows go into the transaction's batch, or into ``into``.
    """
    if not ids:
        return
    _check(stream, ids, values)
    if stream.slack:
        measure(txn.batch, stream)
    stream.open_ids = None  # since no entry is noted as unmeasured
    (into or _IntoBatch(txn)).put(stream.prefix, ids, values)
    limits = txn.catalog.limits
    entries_max = limits.node_max_entries or NODE_ENTRIES_MAX
    bytes_max = limits.node_max_bytes or NODE_BYTES_MAX
    at = 0
    while at < len(ids):
        stop = min(len(ids), at + max(0, entries_max - stream.open_appended))
        end, size = at, stream.open_bytes
        if stream.open_live:
            node = size, stream.open_live, stream.open_appended - stream.open_live
            first = stream.open_first.packed
            end, size = fit(ids, values, at, stop, stream.names, first, node, bytes_max)
        if end == at:
            close(txn, stream)
            first, names = ids[at], names_of(values[at])
            begin_node(stream, StreamID.unpack(first), names, names)
            end = at + 1
            node = stream.open_bytes, 0, 0
            _, size = fit(ids, values, at, end, names, first, node, bytes_max)
        count_joined(stream, StreamID.unpack(ids[at]), StreamID.unpack(ids[end - 1]), end - at)
        stream.open_bytes, stream.measured = size, stream.open_last
        at = end


def _check(stream: StreamMeta, ids: list[PackedID], values: list[bytes]) -> None:
    """Check that the entries may follow those of the stream."""
    if not ids or len(ids) != len(values) or set(map(len, ids)) != {ID_BYTES}:
        raise InvalidArgument("entries are an ID of 16 bytes and a value each, one at least")
    if not all(map(lt, ids, ids[1:])):
        raise _order_error(
            next(one for one, other in zip(ids[1:], ids, strict=False) if one <= other)
        )
    if ids[0] <= stream.last.packed:
        raise _order_error(ids[0])


def _order_error(eid: PackedID) -> InvalidArgument:
    return InvalidArgument(f"entry {StreamID.unpack(eid)} is out of order")


# --- measuring ----------------------------------------------------------------------------------


def fit_in_python(
    ids: Sequence[PackedID],
    values: Sequence[bytes],
    start: int,
    stop: int,
    names: tuple[bytes, ...],
    first: PackedID,
    node: tuple[int, int, int],
    limit: int,
) -> tuple[int, int]:
    """Measure entries from ``start`` on while they fit into a node of ``limit`` bytes.

    ``node`` is its bytes without counters, and its numbers of live and deleted entries; an empty
    node takes any entry. Return the index where it stopped, and the bytes then.
    """
    size, live, dead = node
    master = StreamID.unpack(first)
    for at in range(start, stop):
        value = values[at]
        if live + dead and size + counters_size(live, dead) + data_size(value) >= limit:
            return at, size
        size += size_in_python([(ids[at], value)], names, master)
        live += 1
    return max(start, stop), size


def fit(
    ids: list[PackedID],
    values: list[bytes],
    start: int,
    stop: int,
    names: tuple[bytes, ...],
    first: PackedID,
    node: tuple[int, int, int],
    limit: int,
) -> tuple[int, int]:
    """Do the same in compiled code, if there is any; raise Corruption for a damaged value."""
    if twins is not None:
        fitted = twins.fit(ids, values, start, stop, names, first, node, limit)
        if fitted is not None:
            return fitted
    decode_checked(values[start:stop])
    return fit_in_python(ids, values, start, stop, names, first, node, limit)


# --- pieces of bulk loads -----------------------------------------------------------------------


def join(
    txn: Changeset, stream: StreamMeta, piece: StreamMeta, closed: list[tuple[PackedID, bytes]]
) -> None:
    """Append a piece, a stream with its open node alone, whose rows are in the store already.

    ``closed`` has the first ID and the row of each closed node. The nodes keep their borders.
    """
    if not stream.last < piece.first:
        raise _order_error(piece.first.packed)
    close(txn, stream)
    if stream.nodes == 0:
        stream.head, stream.cached_nodes = piece.head, []
    if stream.length == 0:
        stream.first = piece.first
    tree = tree_prefix(stream.nodes_tree)
    txn.batch.puts[_TREES].update((tree + first, row) for first, row in closed)
    stream.nodes += piece.nodes
    stream.length += piece.length
    stream.entries_added += piece.length
    stream.last = piece.last
    set_names(stream, piece.names, piece.names)
    stream.open_first, stream.open_last = piece.open_first, piece.open_last
    stream.open_appended, stream.open_live = piece.open_appended, piece.open_live
    stream.open_bytes, stream.measured = piece.open_bytes, piece.measured
    stream.unmeasured, stream.slack, stream.open_ids = [], 0, None
    txn.record_changed(stream)
