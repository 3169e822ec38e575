"""Building a stream from entries that come in order, whole nodes or pages at a time.

The rows go into a transaction's batch; the stream is one that nobody has seen yet, or its owner has
to himself. Nodes that come with their borders keep them, since what ``XTRIM ~`` does depends on
these; pages are shared out among nodes as XADD would. Either way every entry is measured here.
"""

from collections.abc import Sequence
from itertools import repeat
from operator import add, lt

from kvstream.errors import InvalidArgument
from kvstream.ids import StreamID
from kvstream.images import NodeImage, PackedID
from kvstream.layout.compiled import twins
from kvstream.layout.keys import ID_BYTES, tree_prefix
from kvstream.layout.listpack import counters_size
from kvstream.layout.values import decode_checked
from kvstream.meta.filling import NODE_BYTES_MAX, NODE_ENTRIES_MAX, begin_node, close
from kvstream.meta.measuring import data_size, measure, set_names, size_in_python
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.records import Fields, RepeatedFields
from kvstream.storage.batch import Family

_MESSAGES: int = Family.MESSAGES
_TREES: int = Family.TREES
_UNLIMITED = 1 << 62
_U32_MAX = (1 << 32) - 1


def names_of(value: bytes) -> tuple[bytes, ...]:
    """Return the field names of a stored value in order, repeats included."""
    fields: Fields = decode_checked([value])[0]
    return tuple(fields.flat[::2]) if type(fields) is RepeatedFields else tuple(fields)


def append_node(txn: Txn, stream: StreamMeta, node: NodeImage) -> None:
    """Append a node with the borders that it has; InvalidArgument where it cannot follow."""
    ids, values, live = node.ids, node.values, len(node.ids)
    _check(stream, ids, values)
    first, last = node.first, max(node.last or ids[-1], ids[-1])
    if not stream.last.packed < first <= ids[0]:
        raise _disordered(first)
    gone = len({first, last} - {ids[0], ids[-1]})
    names = names_of(values[0]) if first == ids[0] else node.names
    close(txn, stream)
    begin_node(stream, StreamID.unpack(first), names, names)
    appended = min(max(node.appended, live + gone), _U32_MAX)
    _, size = fit(ids, values, 0, live, stream.names, first, (stream.open_bytes, 0, 0), _UNLIMITED)
    if appended > live:  # what is gone took room as well: the source knows how much
        size = max(size, min(node.size, _U32_MAX) - counters_size(live, appended - live))
    _join(txn, stream, ids, values, 0, live)
    stream.open_bytes, stream.open_appended = size, appended
    stream.open_last = stream.measured = stream.last = StreamID.unpack(last)
    stream.entries_added += appended - live


def append_page(txn: Txn, stream: StreamMeta, ids: list[PackedID], values: list[bytes]) -> None:
    """Append entries, in nodes as XADD would have made them; InvalidArgument out of order."""
    if not ids:
        return
    _check(stream, ids, values)
    if stream.slack:
        measure(txn.batch, stream)
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
        if end > at:
            _join(txn, stream, ids, values, at, end)
            stream.open_bytes, stream.measured = size, stream.open_last
            at = end
        if at < len(ids):
            close(txn, stream)
            first, names = ids[at], names_of(values[at])
            begin_node(stream, StreamID.unpack(first), names, names)
            _, size = fit(
                ids, values, at, at + 1, stream.names, first, (stream.open_bytes, 0, 0), bytes_max
            )
            _join(txn, stream, ids, values, at, at + 1)
            stream.open_bytes, stream.measured = size, stream.open_last
            at += 1


def _check(stream: StreamMeta, ids: list[PackedID], values: list[bytes]) -> None:
    """See that entries may follow those of a stream."""
    if not ids or len(ids) != len(values) or set(map(len, ids)) != {ID_BYTES}:
        raise InvalidArgument("entries are an ID of 16 bytes and a value each, one at least")
    if not all(map(lt, ids, ids[1:])):
        raise _disordered(
            next(one for one, other in zip(ids[1:], ids, strict=False) if one <= other)
        )
    if ids[0] <= stream.last.packed:
        raise _disordered(ids[0])


def _disordered(eid: PackedID) -> InvalidArgument:
    return InvalidArgument(f"entry {StreamID.unpack(eid)} is out of order")


def _join(
    txn: Txn, stream: StreamMeta, ids: list[PackedID], values: list[bytes], start: int, stop: int
) -> None:
    """Put the rows of some entries, and count them into the open node."""
    if stop - start < len(ids):
        ids, values = ids[start:stop], values[start:stop]
    txn.batch.puts[_MESSAGES].update(
        zip(map(add, repeat(stream.prefix), ids), values, strict=False)
    )
    last = StreamID.unpack(ids[-1])
    count = len(ids)
    if stream.length == 0:
        stream.first = StreamID.unpack(ids[0])
    stream.length += count
    stream.entries_added += count
    stream.open_live += count
    stream.open_appended += count
    stream.open_last = stream.last = last


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
    """Measure entries from ``start`` on as long as they fit into a node of ``limit`` bytes.

    ``node`` is the bytes that it has without its counters, and how many entries of it are living
    and gone; whatever comes into an empty one fits. Returns where it stopped, and the bytes then.
    """
    size, live, dead = node
    master = StreamID.unpack(first)
    for at in range(start, stop):
        value = values[at]
        if live + dead and size + counters_size(live, dead) + data_size(value) >= limit:
            return at, size
        size += size_in_python([(StreamID.unpack(ids[at]), value)], names, master)
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
    """Do the same, sooner where the compiled twin is there; Corruption for a value that is none."""
    if twins is not None:
        found = twins.fit(ids, values, start, stop, names, first, node, limit)
        if found is not None:
            return found
    decode_checked(values[start:stop])
    return fit_in_python(ids, values, start, stop, names, first, node, limit)


# --- what was built elsewhere -------------------------------------------------------------------


def join(
    txn: Txn, stream: StreamMeta, piece: StreamMeta, closed: list[tuple[PackedID, bytes]]
) -> None:
    """Append a piece whose rows are there already: a stream of its own, with all nodes but one.

    ``closed`` are first ID and row of each node before its open one. The nodes stay as they are.
    """
    if not stream.last < piece.first:
        raise _disordered(piece.first.packed)
    close(txn, stream)
    if stream.nodes == 0:
        stream.head, stream.head_node = piece.head, None
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
    stream.unmeasured, stream.slack = [], 0
    txn.reshaped(stream)
