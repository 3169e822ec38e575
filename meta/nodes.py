"""Keep nodes: runs of a stream's entries with the borders of the listpacks in Redis's radix tree.

``XTRIM ~`` removes whole nodes, so their borders are part of the semantics. The open node, which
XADD fills, is kept in the stream's record; each closed one has a row in the stream's node tree::

    nodes row := tree(u64) first(id)  ->  node

A node goes with its last live entry, as in Redis; if it was the open one, the node before it
becomes open again.

Appending keeps an upper bound of the open node's listpack bytes, from the length of each value.
``measure`` makes it exact, from the entries recorded since or from their rows.

Deletions of single entries would read a row each. So a node from which several are deleted has its
live IDs looked up at once, and keeps them (``Node.ids``, ``StreamMeta.open_ids``). If such a node
precedes one that is not in memory, the deletions are in order: the nodes that follow are read with
it.

Live entries between two IDs are counted by nodes, a page of them at a time, as they are when the
count begins. Only the two nodes at the bounds are read entry by entry.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from struct import error as StructError
from typing import NamedTuple

from kvstream.errors import Corruption
from kvstream.layout import twins
from kvstream.layout.keys import ID_BYTES, U64, key_of, successor, tree_prefix
from kvstream.layout.listpack import (
    SMALL_INTEGER_BYTES,
    SMALL_INTEGER_MAX,
    elements_size,
    entry_size,
    fields_size,
    integer_size,
    node_size,
)
from kvstream.layout.values import Names, decode_checked, decode_page
from kvstream.meta.changeset import Changeset
from kvstream.meta.records import Node, StreamMeta, encode_node, lives_in
from kvstream.storage.batch import Batch, Family, Row
from kvstream.storage.options import LARGE_VALUE
from kvstream.types.ids import MIN_ID, PACKED, UNPACKED, StreamID, new_id
from kvstream.types.images import PackedID
from kvstream.types.records import flat_of

_MESSAGES, _TREES = Family.MESSAGES, Family.TREES
_NEAR_VALUE = 128
"""Values below this length take at most one byte more in a listpack than in msgpack."""
_FEW = 16
"""Below this many fields msgpack's map takes one byte to open."""
_HEAD_NEAR = 10
"""Most bytes of an entry's flags, near deltas and counter, when it has the node's few fields."""
_WHOLE_NODE = 1 << 30
"""Rows of a page that holds a whole node, however large."""


def set_names(stream: StreamMeta, plain: tuple[bytes, ...], names_seen: Names) -> None:
    """Record the field names of the open node, and how tightly its entries can be bounded."""
    names, near, width, empty_bytes = _sizes_of(plain)
    if names != stream.names:
        stream.names = names
        stream.forget_cold_part()
    stream.names_seen = names_seen
    stream.near, stream.width, stream.empty_bytes = near, width, empty_bytes


@lru_cache(maxsize=64)  # most nodes have the names of an earlier one
def _sizes_of(names: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], int, int, int]:
    """Return field names, and the ``near``, ``width`` and ``empty_bytes`` of a node with them.

    An entry with the node's own names does not repeat them. While all values are below 128 bytes,
    each takes at most one byte more as a listpack element than in msgpack. So the length of the
    entry, less the names and the two bytes that open it, plus one for each value and its head, is
    an upper bound of its bytes. It is close, so that entries are seldom measured.
    """
    count = len(names)
    overhead = sum(map(len, names)) + count
    near = _NEAR_VALUE + overhead if count < _FEW else 0
    empty_bytes = node_size(elements_size(names)[0], count)
    return names, near, _HEAD_NEAR + count - overhead - 2, empty_bytes


def measure(batch: Batch, stream: StreamMeta) -> None:
    """Add the open node's unmeasured entries to its bytes, exactly."""
    entries = stream.unmeasured
    if entries is None:
        entries = _read_back(batch, stream)
    if entries:
        stream.open_bytes += _entries_size(stream, entries)
        if stream.open_ids is not None:
            stream.open_ids += _ids_of(entries)
    stream.measured = stream.open_last
    stream.unmeasured, stream.slack = [], 0


def data_size(value: bytes) -> int:
    """Return the bytes of an entry's fields and values themselves."""
    if twins is not None:
        size = twins.data_size(value)
        if size is not None:
            return size
    return sum(map(len, flat_of(decode_page([value])[0])))


def _read_back(batch: Batch, stream: StreamMeta) -> list[Row]:
    lower = max(stream.open_first, stream.measured.next())
    upper = stream.prefix + stream.open_last.packed + b"\x00"
    rows = batch.page(_MESSAGES, stream.prefix + lower.packed, upper, _WHOLE_NODE)
    decode_checked([value for _, value in rows])
    return rows


def _entries_size(stream: StreamMeta, rows: list[Row]) -> int:
    """Return the listpack bytes of entries in the open node."""
    if twins is not None:
        size = twins.entries_size(rows, stream.names, *stream.open_first)
        if size is not None:
            return size
    return size_in_python(rows, stream.names, stream.open_first)


def size_in_python(rows: list[Row], names: tuple[bytes, ...], first: StreamID) -> int:
    """Return the listpack bytes of entries in a node with these names and first ID."""
    count = len(names)
    fields = decode_page([value for _, value in rows])
    heads = deltas_size(first, [UNPACKED(key[-ID_BYTES:]) for key, _ in rows])
    if list(map(tuple, fields)).count(names) == len(fields) and list(map(type, fields)).count(
        dict
    ) == len(fields):
        own = list(chain.from_iterable(map(dict.values, fields)))
        return heads + len(fields) * entry_size(count) + elements_size(own)[0]
    return heads + sum(fields_size(names, flat_of(entry)) for entry in fields)


def deltas_size(first: tuple[int, int], ids: Iterable[tuple[int, int]]) -> int:
    """Return the listpack bytes of what IDs differ by from the first ID of their node."""
    master_ms, master_seq = first
    size = 0
    for ms, seq in ids:
        ms -= master_ms
        seq -= master_seq
        size += SMALL_INTEGER_BYTES if ms <= SMALL_INTEGER_MAX else integer_size(ms)
        size += SMALL_INTEGER_BYTES if 0 <= seq <= SMALL_INTEGER_MAX else integer_size(seq)
    return size


FIRST_PAGE, PAGE_MAX = 4, 256
"""Rows of nodes read at once: most callers need one, some need thousands."""
_NODES_PAGE = 5000
CACHED_NODES_MAX = 256
"""Closed nodes of a stream that are kept in memory: 80 KB, and 400 KB with the IDs of 100 entries
each. Fifty clients that share a deletion of entries in order are at some 50 nodes at a time."""
IDS_MAX, IDS_BYTES_MAX = 512, 64 << 10
"""Live IDs are not looked up in nodes of more entries or bytes than that together."""
READS_MAX = 6
"""Reads of single rows of a node that take as long as to look up all of its live IDs."""
AHEAD = 16
"""Nodes that are read with the one that is wanted if deletions are in order."""
NEAR = 32
"""Nodes over which clients are spread that share a deletion in order: fifty with 16 requests each
are at 800 entries."""
_first_of_node = attrgetter("first")


def open_node(stream: StreamMeta) -> Node:
    """Return the open node, which is kept in the stream's own record."""
    return Node(
        stream.open_first,
        stream.open_last,
        stream.open_appended,
        stream.open_live,
        stream.open_bytes,
        stream.names,
        is_open=True,
        ids=stream.open_ids,
    )


def damage_error(stream: StreamMeta, what: str) -> Corruption:
    """Return the error for a stream whose rows contradict its record."""
    return Corruption(f"stream {key_of(stream.name)!r} {what}")


def put(batch: Batch, stream: StreamMeta, node: Node) -> None:
    """Write the row of a node that is closed, or is being closed."""
    node.is_open = False
    cached, is_head = stream.cached_nodes, node.first == stream.head
    at = 0 if is_head else _place(stream, node.first) - 1
    if 0 <= at < len(cached) and cached[at].first == node.first:
        cached[at] = node
    elif is_head or node.ids is not None:
        _cache_node(stream, node)
    if not node.is_changed:
        node.is_changed = True
        if not stream.changed_nodes:
            batch.deferred.append(stream.put_nodes)
        stream.changed_nodes.append(node)


def put_open(batch: Batch, stream: StreamMeta) -> None:
    """Write the row of the open node, which is being closed and has been measured."""
    if stream.open_first == stream.head or stream.open_ids is not None:
        put(batch, stream, open_node(stream))
        return
    counts = stream.open_appended, stream.open_live, stream.open_bytes
    _put_row(batch, stream, stream.open_first, stream.open_last, *counts, stream.names)


def _put_row(
    batch: Batch,
    stream: StreamMeta,
    first: StreamID,
    last: StreamID,
    appended: int,
    live: int,
    size: int,
    names: tuple[bytes, ...],
) -> None:
    try:
        record = encode_node(last, appended, live, size, names)
    except StructError as error:
        raise damage_error(stream, f"has a node, {first}, of impossible counts") from error
    batch.puts[_TREES][U64.pack(stream.nodes_tree) + PACKED(*first)] = record


def _place(stream: StreamMeta, eid: StreamID) -> int:
    """Return the place behind the nodes in memory that begin at or below an ID."""
    return bisect_right(stream.cached_nodes, eid, key=_first_of_node)


def _cache_node(stream: StreamMeta, node: Node) -> Node:
    """Keep a closed node in memory; at the limit drop every other one but the head."""
    cached = stream.cached_nodes
    if len(cached) >= CACHED_NODES_MAX:
        del cached[1::2]
    place = _place(stream, node.first)
    if place and cached[place - 1].first == node.first:
        cached[place - 1] = node
    else:
        cached.insert(place, node)
    return node


def begin_at(stream: StreamMeta, head: Node) -> None:
    """Make a node the first one of its stream, after those before it were trimmed."""
    stream.first = stream.head = head.first
    stream.cached_nodes = stream.cached_nodes[_place(stream, head.first) :]
    if not head.is_open:
        stream.cached_nodes.insert(0, head)


def _delete(txn: Changeset, stream: StreamMeta, first: StreamID) -> Node | None:
    """Delete the row of a closed node; return the node if it was in memory."""
    node = None
    at = _place(stream, first)
    if at and stream.cached_nodes[at - 1].first == first:
        node = stream.cached_nodes.pop(at - 1)
        node.is_changed = False
    txn.batch.puts[_TREES][tree_prefix(stream.nodes_tree) + PACKED(*first)] = None
    return node


def scan_closed(
    txn: Changeset, stream: StreamMeta, start: StreamID, reverse: bool = False
) -> Iterator[Node]:
    """Yield the closed nodes from first ID ``start`` on, or in reverse from the last."""
    prefix = tree_prefix(stream.nodes_tree)
    lower, upper = prefix + start.packed, successor(prefix)
    if reverse:
        for row in txn.batch.scan(_TREES, lower, upper, reverse):
            yield _decode(row)
        return
    for page in _pages(txn, stream, start):
        for row in page:
            yield _decode(row)


def _next_node(stream: StreamMeta, nodes: Iterator[Node]) -> Node:
    """Return the first of the nodes; raise Corruption if there is none."""
    node = next(nodes, None)
    if node is None:
        raise damage_error(stream, "has fewer nodes than it counts")
    return node


def head_of(txn: Changeset, stream: StreamMeta) -> Node:
    """Return the first node of a stream that has entries."""
    cached = stream.cached_nodes
    if cached and cached[0].first == stream.head:
        return cached[0]
    if not stream.closed_nodes:
        return open_node(stream)
    return _cache_node(stream, _next_node(stream, scan_closed(txn, stream, stream.head)))


def from_head(txn: Changeset, stream: StreamMeta) -> Iterator[Node]:
    """Yield the nodes of the stream in order, the open one last."""
    closed_nodes = stream.closed_nodes
    if closed_nodes:
        head = head_of(txn, stream)
        yield head
        if closed_nodes > 1:
            yield from scan_closed(txn, stream, head.first.next())
    if stream.open_live:
        yield open_node(stream)


def whole_from_head(
    txn: Changeset, stream: StreamMeta, most: int, below: bytes
) -> tuple[int, int, Node | None]:
    """Return how many nodes at the head a trim may remove, their live entries, and the next node.

    They have at most ``most`` live entries together, and end below the packed ID ``below``. A trim
    may pass thousands of nodes: their entries are not read.
    """
    closed_nodes = stream.closed_nodes
    whole = removed = 0
    if closed_nodes:
        head = head_of(txn, stream)
        if head.live > most or head.last.packed >= below:
            return 0, 0, head
        whole, removed = 1, head.live
        for page in _pages(txn, stream, head.first.next()) if closed_nodes > 1 else ():
            lives = list(accumulate(lives_in([value for _, value in page])))
            count = bisect_right(lives, most - removed)
            count = bisect_left(page, below, 0, count, key=_last_of)
            whole += count
            removed += lives[count - 1] if count else 0
            if count < len(page):
                return whole, removed, _decode(page[count])
    if not stream.open_live:
        return whole, removed, None
    last = open_node(stream)
    if removed + last.live > most or last.last.packed >= below:
        return whole, removed, last
    return whole + 1, removed + last.live, None


def _decode(row: Row) -> Node:
    """Return the closed node of a row."""
    key, value = row
    return Node.decode(StreamID.unpack(key[U64.size :]), value)


def _last_of(row: Row) -> bytes:
    return row[1][:ID_BYTES]


def _pages(txn: Changeset, stream: StreamMeta, start: StreamID) -> Iterator[list[Row]]:
    """Yield the rows of the closed nodes from an ID on."""
    prefix = tree_prefix(stream.nodes_tree)
    lower, upper = prefix + start.packed, successor(prefix)
    limit = FIRST_PAGE
    while page := txn.batch.page(_TREES, lower, upper, limit):
        yield page
        if len(page) < limit:
            return
        lower, limit = page[-1][0] + b"\x00", PAGE_MAX


def node_in_memory(stream: StreamMeta, eid: StreamID) -> Node | None:
    """Return the node over an ID if it is in memory."""
    if stream.open_live and eid >= stream.open_first:
        return open_node(stream)
    at = _place(stream, eid)
    if at and eid <= stream.cached_nodes[at - 1].last:
        return stream.cached_nodes[at - 1]
    return None


def live_ids(
    txn: Changeset, stream: StreamMeta, node: Node, at_once: bool = False
) -> bytearray | None:
    """Return the live IDs of a node in memory; None if they are not known.

    They are looked up after READS_MAX calls, in the open node if an entry was deleted before.
    """
    if node.is_open and stream.slack:
        if stream.measured < stream.open_first and stream.unmeasured is not None:
            stream.open_ids = node.ids = bytearray()  # all of its entries are in memory
        try:
            measure(txn.batch, stream)
        except Corruption:  # of an entry that can be deleted all the same
            stream.open_ids = None
            return None
    node.reads += 1
    is_wanted = node.live < node.appended if node.is_open else node.reads > READS_MAX
    if node.ids is None and (is_wanted or at_once):
        _look_up_ids(txn, stream, [node])
        if node.is_open:
            stream.open_ids = node.ids
    ids = node.ids
    return ids if ids is not None and len(ids) == node.live * ID_BYTES else None


def _look_up_ids(txn: Changeset, stream: StreamMeta, nodes: list[Node]) -> list[Node]:
    """Look up the live IDs of adjacent nodes, the first small ones, and return these."""
    count, small = 0, []
    left = IDS_BYTES_MAX
    for node in nodes:
        left -= node.size
        if left < 0 or count + node.live > IDS_MAX:
            break
        count += node.live
        small.append(node)
    if not small:
        return []
    lower = stream.prefix + max(stream.first, nodes[0].first).packed
    upper = stream.prefix + small[-1].last.packed + b"\x00"
    ids = _ids_of(txn.batch.page(_MESSAGES, lower, upper, count))
    for node in small:
        node.ids, ids = bytearray(ids[: node.live * ID_BYTES]), ids[node.live * ID_BYTES :]
    return small


def _ids_of(rows: list[Row]) -> bytes:
    return b"".join([key[-ID_BYTES:] for key, _ in rows])


def place_among(ids: bytearray, eid: PackedID) -> int:
    """Return where an ID begins among packed ones; -1 if it is not there."""
    at = ids.find(eid)
    while at % ID_BYTES and at >= 0:
        at = ids.find(eid, at + 1)
    return at


def _leave_out(node: Node, ids: Iterable[StreamID]) -> None:
    """Remove deleted entries from the live IDs of their node, if these are known."""
    known = node.ids
    if known is not None:
        for eid in ids:
            if (at := place_among(known, PACKED(*eid))) >= 0:
                del known[at : at + ID_BYTES]


def node_of(txn: Changeset, stream: StreamMeta, eid: StreamID) -> Node:
    """Return the node that holds a live entry."""
    known = node_in_memory(stream, eid)
    if known is not None:
        return known
    rows = _rows_at(txn, stream, eid, 2)
    node = _decode(rows[0]) if rows else None
    if node is None or node.last < eid:
        raise damage_error(stream, f"has no node for entry {eid}")
    if len(rows) == 1:
        return _read_ahead(txn, stream, node)
    at = _place(stream, eid)
    before = stream.cached_nodes[at - 1] if at else None
    if before is not None and before.ids is not None and before.live < before.appended:
        lower = rows[0][0][: U64.size] + before.first.packed + b"\x00"
        gap = txn.batch.page(_TREES, lower, rows[0][0], NEAR)
        if not gap:
            return _read_ahead(txn, stream, node)
        if len(gap) < NEAR:
            _read_ahead(txn, stream, _decode(gap[0]))
            return node_in_memory(stream, eid) or _cache_node(stream, node)
    return _cache_node(stream, node)


def _read_ahead(txn: Changeset, stream: StreamMeta, node: Node) -> Node:
    """Cache a node and the small ones behind it, up to the next in memory, with their live IDs."""
    cached, prefix = stream.cached_nodes, tree_prefix(stream.nodes_tree)
    place = _place(stream, node.first)
    lower = prefix + node.first.packed + b"\x00"
    upper = prefix + cached[place].first.packed if place < len(cached) else successor(prefix)
    adjacent = [node, *map(_decode, txn.batch.page(_TREES, lower, upper, AHEAD))]
    if len(adjacent) <= AHEAD and place < len(cached):
        adjacent[-1].following = cached[place]
    for each, after in pairwise(adjacent):
        each.following = after
    for each in _look_up_ids(txn, stream, adjacent):
        _cache_node(stream, each)
    return _cache_node(stream, node)


def has_large(
    txn: Changeset, stream: StreamMeta, above: StreamID, last: StreamID, most: int
) -> bool:
    """Return whether a large value, or more than ``most`` nodes, lie among ``above < id <= last``.

    A large entry begins a node and is alone in it, unless the limit of bytes is set higher.
    """
    if stream.open_live and above >= stream.open_first:
        return False
    if above < stream.open_first <= last and stream.open_bytes >= LARGE_VALUE:
        return True
    prefix = tree_prefix(stream.nodes_tree)
    lower, upper = prefix + above.packed + b"\x00", prefix + last.packed + b"\x00"
    nodes = txn.batch.page(_TREES, lower, upper, most + 1)
    return len(nodes) > most or any(_decode(row).size >= LARGE_VALUE for row in nodes)


def is_behind_large(txn: Changeset, stream: StreamMeta, eid: StreamID) -> bool:
    """Return whether the node of an ID, or the last one below it, has a large value."""
    if stream.open_live and eid >= stream.open_first:
        if stream.open_bytes >= LARGE_VALUE:
            return True
        eid = stream.open_first
    node = node_at(txn, stream, eid)
    return node is not None and node.size >= LARGE_VALUE


def subtract(txn: Changeset, stream: StreamMeta, node: Node, ids: list[StreamID]) -> None:
    """Subtract live entries, whose rows still exist, from the node that holds them."""
    if _count_off(txn, stream, node, len(ids)):
        _leave_out(node, ids)


def subtract_first(txn: Changeset, stream: StreamMeta, node: Node, count: int) -> None:
    """Subtract the first ``count`` live entries of a node, whose rows still exist."""
    if _count_off(txn, stream, node, count) and node.ids is not None:
        del node.ids[: count * ID_BYTES]


def _count_off(txn: Changeset, stream: StreamMeta, node: Node, count: int) -> bool:
    """Subtract from the live entries of a node; return whether any are left."""
    if count == node.live:
        remove(txn, stream, node)
        return False
    node.live -= count
    if node.is_open:
        if stream.slack:
            measure(txn.batch, stream)
        stream.open_live = node.live
    else:
        put(txn.batch, stream, node)
    return True


class Part(NamedTuple):
    """Some of the live entries of a node."""

    node: Node
    ids: list[StreamID]
    whole: bool
    """These are all entries of the node."""
    follows: bool
    """No other node lies between this one and that of the part before."""


def parts_of(txn: Changeset, stream: StreamMeta, ids: list[StreamID]) -> list[Part]:
    """Divide live entries, in ascending order, among the nodes that hold them."""
    parts: list[Part] = []
    ahead: Iterator[Node] = iter(())
    at = 0
    while at < len(ids):
        node = next(ahead, None)
        follows = node is not None and node.first <= ids[at] <= node.last
        if node is None or not follows:
            node = node_of(txn, stream, ids[at])
            ahead = iter(()) if node.is_open else scan_closed(txn, stream, node.first.next())
        stop = len(ids) if node.is_open else bisect_right(ids, node.last, at)
        if stop == at:
            raise damage_error(stream, f"has no node for entry {ids[at]}")
        parts.append(Part(node, ids[at:stop], stop - at == node.live, follows))
        at = stop
    return parts


def subtract_parts(txn: Changeset, stream: StreamMeta, parts: list[Part]) -> None:
    """Subtract the parts of ``parts_of``, whose rows still exist, from the nodes' counts."""
    if len(parts) == 1:
        subtract(txn, stream, parts[0].node, parts[0].ids)
        return
    headless = False
    for node, ids, whole, _ in parts:
        if node.is_open:  # the last part
            subtract(txn, stream, node, ids)
        elif not whole:
            _leave_out(node, ids)
            node.live -= len(ids)
            put(txn.batch, stream, node)
        else:
            stream.nodes -= 1
            _delete(txn, stream, node.first)
            headless = headless or node.first == stream.head
    if headless:
        stream.head = _first_of(txn, stream)


def remove(txn: Changeset, stream: StreamMeta, node: Node) -> None:
    """Remove a node that has no live entry left."""
    stream.nodes -= 1
    if node.is_open:
        _reopen_last(txn, stream)
    else:
        _delete(txn, stream, node.first)
    if node.first == stream.head:
        stream.head = _first_of(txn, stream, node)


def _first_of(txn: Changeset, stream: StreamMeta, removed: Node | None = None) -> StreamID:
    """Return the first ID of the first node, after those before it were removed.

    If entries of the ``removed`` one were deleted one by one, the next ones are read ahead.
    """
    if not stream.closed_nodes:
        return stream.open_first
    cached = stream.cached_nodes
    if removed is not None and cached and cached[0] is removed.following:
        return cached[0].first
    node = _next_node(stream, scan_closed(txn, stream, stream.head))
    if cached and cached[0].first == node.first:
        return node.first
    if removed is not None and removed.ids is not None:
        _read_ahead(txn, stream, node)
    else:
        cached.insert(0, node)
    return node.first


def _reopen_last(txn: Changeset, stream: StreamMeta) -> None:
    """Open the last closed node again, as Redis appends to whichever node is last."""
    clear_open(stream)
    if stream.nodes == 0:
        return
    node = _next_node(stream, scan_closed(txn, stream, stream.head, reverse=True))
    known = _delete(txn, stream, node.first)
    stream.open_ids = None if known is None else known.ids
    stream.open_first, stream.open_last = node.first, node.last
    stream.open_appended, stream.open_live = node.appended, node.live
    stream.open_bytes, stream.measured = node.size, node.last
    set_names(stream, node.names, node.names)


def clear_open(stream: StreamMeta) -> None:
    """Leave the stream without an open node."""
    stream.open_appended = stream.open_live = stream.open_bytes = 0
    stream.open_first = stream.open_last = stream.measured = MIN_ID
    stream.unmeasured, stream.slack = [], 0
    stream.open_ids = None


def live_counts(
    txn: Changeset, stream: StreamMeta, low: StreamID, high: StreamID
) -> Iterator[tuple[bytes, int]]:
    """Yield first ID, packed, and live entries of each node that may hold ``low <= id <= high``."""
    prefix = tree_prefix(stream.nodes_tree)
    row = _row_at(txn, stream, low)
    lower = prefix + stream.head.packed if row is None else row[0]
    upper = prefix + high.packed + b"\x00"
    while True:
        page = txn.batch.page(_TREES, lower, upper, _NODES_PAGE)
        lives = lives_in([value for _, value in page])
        yield from zip([key[U64.size :] for key, _ in page], lives, strict=True)
        if len(page) < _NODES_PAGE:
            break
        lower = page[-1][0] + b"\x00"
    if stream.open_live and stream.open_first <= high:
        yield stream.open_first.packed, stream.open_live


def live_after(txn: Changeset, stream: StreamMeta, eid: StreamID) -> int:
    """Return the exact number of live entries above ``eid``, at a cost of nodes, not entries."""
    if eid >= stream.last or stream.length == 0:
        return 0
    if eid < stream.first:
        return stream.length
    total = 0
    if stream.open_live:
        if eid < stream.open_first:
            total += stream.open_live
        else:
            return _count_rows(txn, stream, new_id(eid).next(), stream.last)
    for node in scan_closed(txn, stream, stream.head, reverse=True):
        if node.first > eid:
            total += node.live
            continue
        if node.last > eid:
            total += _count_rows(txn, stream, new_id(eid).next(), node.last)
        break
    return total


def live_between(
    txn: Changeset, stream: StreamMeta, start: StreamID, end: StreamID
) -> Iterator[int]:
    """Return numbers that add up to the live entries of ``start <= id <= end``, as of this call."""
    start, end = max(start, stream.first), min(end, stream.last)
    if stream.length == 0 or start > end:
        return iter(())
    if start == stream.first and end == stream.last:
        return iter((stream.length,))
    if stream.open_live and start >= stream.open_first:
        return iter((_count_rows(txn, stream, start, end),))
    parts: list[int] = []
    if stream.open_live and end >= stream.open_first:
        whole, first = end == stream.last, stream.open_first
        parts.append(stream.open_live if whole else _count_rows(txn, stream, first, end))
    low, high = node_at(txn, stream, start), node_at(txn, stream, end)
    if high is None:
        return iter(parts)
    if low is None or low.first != high.first:
        whole = high.last <= end
        parts.append(high.live if whole else _count_rows(txn, stream, high.first, end))
    if low is not None:
        parts.append(_count_rows(txn, stream, start, min(low.last, end)))
    above = start if low is None else low.first
    return chain(parts, _whole_nodes(txn, stream, above, high.first))


def node_at(txn: Changeset, stream: StreamMeta, eid: StreamID) -> Node | None:
    """Return the last closed node that begins at or before an ID."""
    row = _row_at(txn, stream, eid)
    return None if row is None else _decode(row)


def _row_at(txn: Changeset, stream: StreamMeta, eid: StreamID) -> Row | None:
    """Return the row of the last closed node that begins at or before an ID."""
    rows = _rows_at(txn, stream, eid, 1)
    return rows[0] if rows else None


def _rows_at(txn: Changeset, stream: StreamMeta, eid: StreamID, count: int) -> list[Row]:
    """Return the rows of the last closed nodes that begin at or before an ID, the last first."""
    prefix = tree_prefix(stream.nodes_tree)
    lower, upper = prefix + stream.head.packed, prefix + eid.packed + b"\x00"
    return txn.batch.page(_TREES, lower, upper, count, reverse=True)


def _count_rows(txn: Changeset, stream: StreamMeta, start: StreamID, end: StreamID) -> int:
    """Return the number of entries of ``start <= id <= end``, which are in one node."""
    if start > end:
        return 0
    lower, upper = stream.prefix + start.packed, stream.prefix + end.packed + b"\x00"
    return len(txn.batch.page(_MESSAGES, lower, upper, _WHOLE_NODE))


def _whole_nodes(
    txn: Changeset, stream: StreamMeta, above: StreamID, below: StreamID
) -> Iterator[int]:
    """Return the live entries of the closed nodes that begin between two IDs, page by page."""
    prefix = tree_prefix(stream.nodes_tree)
    lower, upper = prefix + above.packed + b"\x00", prefix + below.packed
    if lower >= upper:
        return iter(())
    pages = txn.batch.snapshot(_TREES, lower, upper)
    return (sum(lives_in([value for _, value in page])) for page in pages)
