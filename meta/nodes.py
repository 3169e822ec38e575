"""Nodes: runs of a stream's entries, bounded as Redis bounds its radix tree's listpacks.

``XTRIM ~`` removes whole nodes, so their borders are part of the semantics. The node that XADD
fills is kept in the stream's record; each closed one has a row in the stream's node tree:

::

    nodes row := tree(u64) first(id)  ->  node

A node leaves when its last live entry does, as in Redis; when that was the open node, the one
before it is open again.
"""

from collections.abc import Iterator
from struct import error as StructError

from kvstream.errors import Corruption
from kvstream.ids import MIN_ID, StreamID, new_id
from kvstream.layout.keys import key_of, successor, tree_prefix
from kvstream.meta.measuring import measure, set_names
from kvstream.meta.records import Node, StreamMeta
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Batch, Family

_WHOLE_NODE = 1 << 30
"""Rows of a page that takes what a node holds, however many that is."""


def open_node(stream: StreamMeta) -> Node:
    """Return the node that stands in the stream's own record."""
    return Node(
        stream.open_first,
        stream.open_last,
        stream.open_appended,
        stream.open_live,
        stream.open_bytes,
        stream.names,
        is_open=True,
    )


def damaged(stream: StreamMeta, what: str) -> Corruption:
    """Return the error for a stream whose rows and record contradict each other."""
    return Corruption(f"stream {key_of(stream.name)!r} {what}")


def put(batch: Batch, stream: StreamMeta, node: Node) -> None:
    """Write the row of a node that is closed, or is being closed."""
    if node.first == stream.head:
        node.is_open = False
        stream.head_node = node
    try:
        record = node.encode()
    except StructError as error:
        raise damaged(stream, f"has a node, {node.first}, of impossible counts") from error
    batch.put(Family.TREES, tree_prefix(stream.nodes_tree) + node.first.packed, record)


def closed(txn: Txn, stream: StreamMeta, start: StreamID, reverse: bool = False) -> Iterator[Node]:
    """Yield the closed nodes from the one whose first ID is ``start``, or back from the last."""
    prefix = tree_prefix(stream.nodes_tree)
    rows = txn.batch.scan(Family.TREES, prefix + start.packed, successor(prefix), reverse)
    for key, value in rows:
        yield Node.decode(StreamID.unpack(key[8:]), value)


def _any(stream: StreamMeta, found: Iterator[Node]) -> Node:
    """Return the first of the nodes, of which there must be one."""
    node = next(found, None)
    if node is None:
        raise damaged(stream, "has fewer nodes than it counts")
    return node


def from_head(txn: Txn, stream: StreamMeta) -> Iterator[Node]:
    """Yield the nodes of the stream in order, the open one last.

    The first is kept in memory: a trim of each new entry looks at it each time.
    """
    closed_nodes = stream.nodes - bool(stream.open_live)
    if closed_nodes:
        if stream.head_node is None:
            stream.head_node = _any(stream, closed(txn, stream, stream.head))
        yield stream.head_node
        if closed_nodes > 1:
            yield from closed(txn, stream, stream.head_node.first.next())
    if stream.open_live:
        yield open_node(stream)


def node_of(txn: Txn, stream: StreamMeta, eid: StreamID) -> Node:
    """Return the node that holds a live entry."""
    if stream.open_live and eid >= stream.open_first:
        return open_node(stream)
    prefix = tree_prefix(stream.nodes_tree)
    rows = txn.batch.scan(
        Family.TREES,
        prefix + stream.head.packed,
        prefix + eid.packed + b"\x00",
        reverse=True,
    )
    row = next(rows, None)
    if row is None:
        raise damaged(stream, f"has no node for entry {eid}")
    key, value = row
    return Node.decode(StreamID.unpack(key[8:]), value)


def lose(txn: Txn, stream: StreamMeta, node: Node, count: int) -> None:
    """Take ``count`` live entries, whose rows still stand, out of a node's count."""
    if count == node.live:
        remove(txn, stream, node)
        return
    node.live -= count
    if node.is_open:
        if stream.slack:
            measure(txn.batch, stream)
        stream.open_live = node.live
    else:
        put(txn.batch, stream, node)


def remove(txn: Txn, stream: StreamMeta, node: Node) -> None:
    """Take out a node that has no live entry left."""
    stream.nodes -= 1
    if node.is_open:
        _reopen_last(txn, stream)
    else:
        txn.batch.delete(Family.TREES, tree_prefix(stream.nodes_tree) + node.first.packed)
    if node.first == stream.head:
        stream.head_node = None
        stream.head = _first_of(txn, stream)


def _first_of(txn: Txn, stream: StreamMeta) -> StreamID:
    if stream.nodes == bool(stream.open_live):
        return stream.open_first
    return _any(stream, closed(txn, stream, stream.head)).first


def _reopen_last(txn: Txn, stream: StreamMeta) -> None:
    """Make the last closed node the open one, as Redis appends to whichever node is last."""
    clear_open(stream)
    if stream.nodes == 0:
        return
    node = _any(stream, closed(txn, stream, stream.head, reverse=True))
    if node.first == stream.head:
        stream.head_node = None
    txn.batch.delete(Family.TREES, tree_prefix(stream.nodes_tree) + node.first.packed)
    stream.open_first, stream.open_last = node.first, node.last
    stream.open_appended, stream.open_live = node.appended, node.live
    stream.open_bytes, stream.measured = node.size, node.last
    set_names(stream, node.names, node.names)


def clear_open(stream: StreamMeta) -> None:
    """Leave the stream without an open node."""
    stream.open_appended = stream.open_live = stream.open_bytes = 0
    stream.open_first = stream.open_last = stream.measured = MIN_ID
    stream.unmeasured, stream.slack = [], 0


def live_after(txn: Txn, stream: StreamMeta, eid: StreamID) -> int:
    """Return the exact number of live entries above ``eid``; costs nodes, not entries."""
    if eid >= stream.last or stream.length == 0:
        return 0
    if eid < stream.first:
        return stream.length
    total = 0
    if stream.open_live:
        if eid < stream.open_first:
            total += stream.open_live
        else:
            return _rows_between(txn, stream, eid, stream.last)
    for node in closed(txn, stream, stream.head, reverse=True):
        if node.first > eid:
            total += node.live
            continue
        if node.last > eid:
            total += _rows_between(txn, stream, eid, node.last)
        break
    return total


def _rows_between(txn: Txn, stream: StreamMeta, above: StreamID, last: StreamID) -> int:
    lower = max(stream.first, new_id(above).next())
    upper = stream.prefix + last.packed + b"\x00"
    rows = txn.batch.page(Family.MESSAGES, stream.prefix + lower.packed, upper, _WHOLE_NODE)
    return len(rows)
