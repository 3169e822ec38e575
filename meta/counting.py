"""How many live entries lie between two IDs: counted by nodes, a page of them at a time.

What is counted is what there is when the counting begins. Only the two nodes in which
the bounds fall are looked into, and that at once; the nodes between them are read bit by bit.
"""

from collections.abc import Iterator
from itertools import chain
from struct import Struct
from struct import error as StructError

from kvstream.errors import Corruption
from kvstream.ids import StreamID
from kvstream.layout.keys import tree_prefix
from kvstream.meta.node import Node
from kvstream.meta.nodes import WHOLE_NODE
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family, Row

LIVE = Struct(">20xI")
"""The live entries in a node's row."""


def live_between(txn: Txn, stream: StreamMeta, start: StreamID, end: StreamID) -> Iterator[int]:
    """Return numbers that add up to the live entries of ``start <= id <= end`` as they are now."""
    start, end = max(start, stream.first), min(end, stream.last)
    if stream.length == 0 or start > end:
        return iter(())
    if start == stream.first and end == stream.last:
        return iter((stream.length,))
    if stream.open_live and start >= stream.open_first:
        return iter((_rows(txn, stream, start, end),))
    parts: list[int] = []
    if stream.open_live and end >= stream.open_first:
        whole = end == stream.last
        parts.append(stream.open_live if whole else _rows(txn, stream, stream.open_first, end))
    low, high = _node_at(txn, stream, start), _node_at(txn, stream, end)
    if high is None:
        return iter(parts)
    if low is None or low.first != high.first:
        whole = high.last <= end
        parts.append(high.live if whole else _rows(txn, stream, high.first, end))
    if low is not None:
        parts.append(_rows(txn, stream, start, min(low.last, end)))
    above = start if low is None else low.first
    return chain(parts, _whole_nodes(txn, stream, above, high.first))


def _node_at(txn: Txn, stream: StreamMeta, eid: StreamID) -> Node | None:
    """Return the last closed node that begins at an ID or before."""
    prefix = tree_prefix(stream.nodes_tree)
    lower, upper = prefix + stream.head.packed, prefix + eid.packed + b"\x00"
    page = txn.batch.page(Family.TREES, lower, upper, 1, reverse=True)
    return Node.decode(StreamID.unpack(page[0][0][8:]), page[0][1]) if page else None


def _rows(txn: Txn, stream: StreamMeta, start: StreamID, end: StreamID) -> int:
    if start > end:
        return 0
    lower, upper = stream.prefix + start.packed, stream.prefix + end.packed + b"\x00"
    return len(txn.batch.page(Family.MESSAGES, lower, upper, WHOLE_NODE))


def _whole_nodes(txn: Txn, stream: StreamMeta, above: StreamID, below: StreamID) -> Iterator[int]:
    """Return the live entries of the closed nodes that begin between two IDs, a page at a time."""
    prefix = tree_prefix(stream.nodes_tree)
    lower, upper = prefix + above.packed + b"\x00", prefix + below.packed
    if lower >= upper:
        return iter(())
    return map(live_of, txn.batch.snapshot(Family.TREES, lower, upper))


def live_of(page: list[Row]) -> int:
    """Return how many live entries the nodes of a page have."""
    try:
        return sum([LIVE.unpack_from(value)[0] for _, value in page])
    except StructError as error:
        raise Corruption(f"the record of a node is damaged: {error!r}") from error
