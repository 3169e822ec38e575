"""Nodes: runs of a stream's entries, bounded as Redis bounds its radix tree's listpacks.

``XTRIM ~`` removes whole nodes, so their borders are part of the semantics. The node that XADD
fills is kept in the stream's record; each closed one has a row in the stream's node tree:

::

    nodes row := tree(u64) first(id)  ->  node

A node leaves when its last live entry does, as in Redis; when that was the open node, the one
before it is open again.
"""

from collections.abc import Iterator
from itertools import chain

from kvstream.ids import MIN_ID, PACKED, StreamID, new_id
from kvstream.layout.keys import successor, tree_prefix
from kvstream.layout.listpack import (
    SMALL_INTEGER_BYTES,
    SMALL_INTEGER_MAX,
    elements_size,
    entry_size,
    foreign_entry_size,
    integer_size,
    node_size,
)
from kvstream.layout.values import Names, decode_page
from kvstream.meta.records import Node, StreamMeta
from kvstream.meta.txn import Txn
from kvstream.records import Fields, RepeatedFields
from kvstream.storage.batch import Batch, Family

_MESSAGES: int = Family.MESSAGES
_NODE_BYTES_MAX = 1 << 30
"""Redis's own limit of a listpack, in force when stream-node-max-bytes is 0."""
_NEAR = 4096
"""Deltas nearer to zero than this take three bytes at most."""
_NEAR_VALUE = 128
"""Values below this take at most one byte more in a listpack than in msgpack."""
_FEW = 16
"""Below this many fields msgpack's map takes one byte to open."""
_HEAD_NEAR = 10
"""Most bytes of an entry's flags, near deltas and counter, when it has the node's few fields."""
_COUNTERS_MAX = 20
"""Most bytes of a node's two counters."""
_HEAD_FAR = 32
"""Most bytes of an entry's flags, deltas and counters."""
_WHOLE_NODE = 1 << 30
"""Rows of a page that takes what a node holds, however many that is."""


def _open_node(stream: StreamMeta) -> Node:
    return Node(
        stream.open_first,
        stream.open_last,
        stream.open_appended,
        stream.open_live,
        stream.open_bytes,
        stream.names,
        is_open=True,
    )


# --- appending ----------------------------------------------------------------------------------


def append(txn: Txn, stream: StreamMeta, eid: StreamID, value: bytes, names: Names) -> None:
    """Append an entry above the last one: its row, the stream's counters, and its node."""
    limits = txn.catalog.limits
    length = len(value)
    appended = stream.open_appended
    if (
        appended == 0
        or 0 < limits.node_max_entries <= appended
        or stream.open_bytes + stream.slack + length + _COUNTERS_MAX
        >= (limits.node_max_bytes or _NODE_BYTES_MAX)
    ) and _is_full(txn.batch, stream, value, limits.node_max_entries, limits.node_max_bytes):
        _close(txn, stream)
        _open(txn, stream, eid, names)
        appended = 0
    ms, seq = eid
    first_ms, first_seq = stream.open_first
    if (
        length < stream.near
        and ms - first_ms < _NEAR
        and -_NEAR < seq - first_seq < _NEAR
        and (names == stream.names_seen or _same_names(stream, names))
    ):
        stream.slack += length + stream.width
    else:
        stream.slack += 2 * length + 16 * len(names) + _HEAD_FAR
    stream.unmeasured.append((eid, value))  # type: ignore[union-attr]
    stream.open_appended = appended + 1
    stream.open_live += 1
    stream.open_last = stream.last = eid
    if stream.length == 0:
        stream.first = eid
    stream.length += 1
    stream.entries_added += 1
    txn.batch.puts[_MESSAGES][stream.prefix + PACKED(ms, seq)] = value


def extend(
    txn: Txn, stream: StreamMeta, ids: list[StreamID], entries: list[tuple[bytes, Names]]
) -> None:
    """``append`` for many entries at once."""
    at = 0
    while at < len(ids):
        at = _fill(txn, stream, ids, entries, at)
        if at < len(ids):
            append(txn, stream, ids[at], *entries[at])
            at += 1


def _fill(
    txn: Txn,
    stream: StreamMeta,
    ids: list[StreamID],
    entries: list[tuple[bytes, Names]],
    start: int,
) -> int:
    """Append entries from ``start`` on while they are plain and surely fit into the open node.

    Returns where it stopped: there ``append`` must look closer.
    """
    if stream.open_live == 0 or stream.unmeasured is None:
        return start
    limits = txn.catalog.limits
    room = (limits.node_max_bytes or _NODE_BYTES_MAX) - stream.open_bytes - _COUNTERS_MAX
    most = start + (limits.node_max_entries or _WHOLE_NODE) - stream.open_appended
    near, width, slack, seen = stream.near, stream.width, stream.slack, stream.names_seen
    first_ms, first_seq = stream.open_first
    note, puts, prefix = stream.unmeasured.append, txn.batch.puts[_MESSAGES], stream.prefix
    at = start
    for at in range(start, min(len(ids), most)):
        value, names = entries[at]
        length = len(value)
        ms, seq = eid = ids[at]
        if (
            length >= near
            or slack + length >= room
            or names != seen
            or ms - first_ms >= _NEAR
            or not -_NEAR < seq - first_seq < _NEAR
        ):
            break
        slack += length + width
        note((eid, value))
        puts[prefix + PACKED(ms, seq)] = value
    else:
        at = max(start, min(len(ids), most))
    if at > start:
        _note_filled(stream, ids[start], ids[at - 1], at - start, slack)
    return at


def _note_filled(
    stream: StreamMeta, first: StreamID, last: StreamID, count: int, slack: int
) -> None:
    stream.slack = slack
    stream.open_appended += count
    stream.open_live += count
    stream.open_last = stream.last = last
    if stream.length == 0:
        stream.first = first
    stream.length += count
    stream.entries_added += count


def _is_full(
    batch: Batch, stream: StreamMeta, value: bytes, max_entries: int, max_bytes: int
) -> bool:
    """Tell, exactly, whether Redis would start a new node for an entry; so where there is none."""
    if stream.open_appended == 0 or 0 < max_entries <= stream.open_appended:
        return True
    measure(batch, stream)
    dead = stream.open_appended - stream.open_live
    counters = integer_size(stream.open_live) + integer_size(dead)
    fields = _flat(decode_page([value])[0])
    limit = max_bytes or _NODE_BYTES_MAX
    return stream.open_bytes + counters + sum(map(len, fields)) >= limit


def _same_names(stream: StreamMeta, names: Names) -> bool:
    """Tell whether ``names`` are the node's, given as text or as bytes; remember the form."""
    plain = tuple(name.encode() if isinstance(name, str) else name for name in names)
    if plain != stream.names:
        return False
    stream.names_seen = names
    return True


def _set_names(stream: StreamMeta, plain: tuple[bytes, ...], given: Names) -> None:
    """Note the field names of the open node, and how tightly its entries can be bounded.

    An entry with the node's own names does not repeat them, and each of its values, while none is
    of 128 bytes, takes at most one byte more as a listpack element than in msgpack. So its length,
    less the names and the two bytes that open it, plus one for each value and its own head, is an
    upper bound of its bytes; and a close one, so that entries are seldom measured.
    """
    if plain != stream.names:
        stream.names = plain
        stream.cool()
    stream.names_seen = given
    count = len(plain)
    overhead = sum(map(len, plain)) + count
    stream.near = _NEAR_VALUE + overhead if count < _FEW else 0
    stream.width = _HEAD_NEAR + count - overhead - 2


def _close(txn: Txn, stream: StreamMeta) -> None:
    """Write the open node's row, so that it is open no more."""
    if stream.open_live:
        measure(txn.batch, stream)
        _put(txn.batch, stream, _open_node(stream))


def _open(txn: Txn, stream: StreamMeta, eid: StreamID, names: Names) -> None:
    plain = tuple(name.encode() if isinstance(name, str) else name for name in names)
    if names != stream.names_seen or plain != stream.names:
        _set_names(stream, plain, names)
    if stream.nodes == 0:
        stream.head = eid
    stream.nodes += 1
    stream.open_first = stream.open_last = eid
    stream.open_appended = stream.open_live = 0
    stream.open_bytes = node_size(elements_size(plain)[0], len(plain))
    stream.measured = MIN_ID
    stream.unmeasured, stream.slack = [], 0


def measure(batch: Batch, stream: StreamMeta) -> None:
    """Count the open node's unmeasured entries into its bytes, exactly."""
    entries = stream.unmeasured
    if entries is None:
        entries = _read_back(batch, stream)
    if entries:
        stream.open_bytes += _entries_size(stream, entries)
    stream.measured = stream.open_last
    stream.unmeasured, stream.slack = [], 0


def _read_back(batch: Batch, stream: StreamMeta) -> list[tuple[StreamID, bytes]]:
    lower = max(stream.open_first, stream.measured.next())
    upper = stream.prefix + stream.open_last.packed + b"\x00"
    rows = batch.page(Family.MESSAGES, stream.prefix + lower.packed, upper, _WHOLE_NODE)
    return [(StreamID.unpack(key[-16:]), value) for key, value in rows]


def _flat(fields: Fields) -> list[bytes]:
    if type(fields) is RepeatedFields:
        return list(fields.flat)
    return [part for pair in fields.items() for part in pair]


def _entries_size(stream: StreamMeta, entries: list[tuple[StreamID, bytes]]) -> int:
    """Return the listpack bytes of ``entries`` in the open node."""
    names, count = stream.names, len(stream.names)
    fields = decode_page([value for _, value in entries])
    heads = _deltas_size(stream, entries)
    if list(map(tuple, fields)).count(names) == len(fields) and list(map(type, fields)).count(
        dict
    ) == len(fields):
        own = list(chain.from_iterable(map(dict.values, fields)))
        return heads + len(fields) * entry_size(count) + elements_size(own)[0]
    return heads + sum(_one_size(names, _flat(each)) for each in fields)


def _deltas_size(stream: StreamMeta, entries: list[tuple[StreamID, bytes]]) -> int:
    master_ms, master_seq = stream.open_first
    size = 0
    for (ms, seq), _ in entries:
        ms -= master_ms
        seq -= master_seq
        size += SMALL_INTEGER_BYTES if ms <= SMALL_INTEGER_MAX else integer_size(ms)
        size += SMALL_INTEGER_BYTES if 0 <= seq <= SMALL_INTEGER_MAX else integer_size(seq)
    return size


def _one_size(names: tuple[bytes, ...], flat: list[bytes]) -> int:
    count = len(flat) // 2
    if tuple(flat[::2]) == names:
        return entry_size(count) + elements_size(flat[1::2])[0]
    return foreign_entry_size(count) + elements_size(flat)[0]


# --- finding and shrinking ----------------------------------------------------------------------


def _put(batch: Batch, stream: StreamMeta, node: Node) -> None:
    if node.first == stream.head:
        node.is_open = False
        stream.head_node = node
    batch.put(Family.TREES, tree_prefix(stream.nodes_tree) + node.first.packed, node.encode())


def closed(txn: Txn, stream: StreamMeta, start: StreamID, reverse: bool = False) -> Iterator[Node]:
    """Yield the closed nodes from the one whose first ID is ``start``, or back from the last."""
    prefix = tree_prefix(stream.nodes_tree)
    rows = txn.batch.scan(Family.TREES, prefix + start.packed, successor(prefix), reverse)
    for key, value in rows:
        yield Node.decode(StreamID.unpack(key[8:]), value)


def from_head(txn: Txn, stream: StreamMeta) -> Iterator[Node]:
    """Yield the nodes of the stream in order, the open one last.

    The first is kept in memory: a trim of each new entry looks at it each time.
    """
    closed_nodes = stream.nodes - bool(stream.open_live)
    if closed_nodes:
        if stream.head_node is None:
            stream.head_node = next(closed(txn, stream, stream.head))
        yield stream.head_node
        if closed_nodes > 1:
            yield from closed(txn, stream, stream.head_node.first.next())
    if stream.open_live:
        yield _open_node(stream)


def node_of(txn: Txn, stream: StreamMeta, eid: StreamID) -> Node:
    """Return the node that holds a live entry."""
    if stream.open_live and eid >= stream.open_first:
        return _open_node(stream)
    prefix = tree_prefix(stream.nodes_tree)
    rows = txn.batch.scan(
        Family.TREES,
        prefix + stream.head.packed,
        prefix + eid.packed + b"\x00",
        reverse=True,
    )
    key, value = next(rows)
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
        _put(txn.batch, stream, node)


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
    return next(closed(txn, stream, stream.head)).first


def _reopen_last(txn: Txn, stream: StreamMeta) -> None:
    """Make the last closed node the open one, as Redis appends to whichever node is last."""
    clear_open(stream)
    if stream.nodes == 0:
        return
    node = next(closed(txn, stream, stream.head, reverse=True))
    if node.first == stream.head:
        stream.head_node = None
    txn.batch.delete(Family.TREES, tree_prefix(stream.nodes_tree) + node.first.packed)
    stream.open_first, stream.open_last = node.first, node.last
    stream.open_appended, stream.open_live = node.appended, node.live
    stream.open_bytes, stream.measured = node.size, node.last
    _set_names(stream, node.names, node.names)


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
