"""Stream objects of RDB files and DUMP payloads, read as an image and written from one.

::

    stream      := LEN(n) node*n  LEN(length) LEN-ID(last)
                   [19] LEN-ID(first) LEN-ID(max deleted) LEN(entries added)
                   LEN(n) group*n
                   [26] idempotency
    node        := STRING(key: 16 bytes) STRING(listpack)
    group       := STRING(name) LEN-ID(last delivered)  [19] LEN(entries read, or -1)
                   pending  LEN(n) consumer*n  [27] ids(nacked)
    pending     := LEN(n) (RAW-ID MS-TIME(delivered) LEN(deliveries))*n      ascending
    consumer    := STRING(name) MS-TIME(seen)  [21] MS-TIME(active, or -1)  ids(pending)
    ids         := LEN(n) RAW-ID*n
    idempotency := LEN(duration) LEN(maximum) LEN(n) producer*n  LEN(added) LEN(duplicates)
    producer    := STRING(pid) LEN(n) (STRING(iid) LEN-ID)*n

[21] marks fields of that stream type and the later ones. Pieces in capitals are those of
primitives.py, listpacks are those of nodes.py. The lists of consumers tell who owns a pending
entry; an entry in none of them was released by XNACK, and is in the list of those.

The writer makes everything true that loaders check: it counts length and first entry, sorts groups
and consumers, and lets no counter contradict another.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator

from kvstream.errors import BadPayload
from kvstream.rdb import twins
from kvstream.rdb.nodes import NODE_BYTES_MAX, NodesReader, decode_node, encode_node
from kvstream.rdb.primitives import (
    Reader,
    encode_fixed_length,
    encode_id,
    encode_length,
    encode_string,
    encode_time,
)
from kvstream.rdb.versions import STREAM_KINDS, Kind
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.images import (
    ID_BYTES,
    ConsumerImage,
    GroupImage,
    IdempotencyImage,
    NodeImage,
    PackedID,
    PendingTable,
    ProducerImage,
    StreamState,
)
from kvstream.types.options import STREAM_IDMP_DURATION_S, STREAM_IDMP_MAXSIZE

_ENTRY_BYTES_MIN = ID_BYTES + 8 + 1
_PIECE = 1 << 12
"""Pending entries that are read or written at once: about a hundred kilobytes."""

Columns = tuple[bytes, "array[int]", "array[int]"]
"""IDs, times and delivery counts of pending entries."""


# --- reading pending entries ----------------------------------------------------------------------


def read_pending(reader: Reader, table: PendingTable) -> None:
    """Read the pending list of a group into an empty table, without owners."""
    left = reader.length()
    while left:
        columns = _read_columns(reader, min(left, _PIECE))
        try:
            table.extend_columns(*columns)
        except ValueError as error:
            raise reader.bad(str(error)) from None
        left -= len(columns[1])


def _read_columns(reader: Reader, most: int) -> Columns:
    """Read one to ``most`` pending entries."""
    if twins is not None:
        columns = twins.decode_pending(*reader.window(most * _ENTRY_BYTES_MIN), most)
        if columns is not None:
            ids, times, deliveries, size = columns
            reader.skip(size)
            return ids, array("q", times), array("Q", deliveries)
    return read_columns_in_python(reader, most)


def read_columns_in_python(reader: Reader, count: int) -> Columns:
    """Read ``count`` pending entries in Python."""
    ids, times, deliveries = bytearray(), array("q"), array("Q")
    for _ in range(count):
        ids += reader.raw_id()
        times.append(reader.time())
        deliveries.append(reader.length())
    return bytes(ids), times, deliveries


def read_owned(reader: Reader, table: PendingTable, owner: bytes) -> None:
    """Read the ID list of a consumer, and make it the owner of these entries."""
    at = reader.offset
    ids = reader.take(ID_BYTES * reader.length(len(table)))
    find = find_ids_in_python if twins is None else twins.find_ids
    places = find(table.packed_ids, ids)
    if places is None:
        raise reader.bad(f"consumer {owner!r} has an entry that is not pending in its group", at)
    if not table.give_all(array("q", places), owner):
        raise reader.bad(f"consumer {owner!r} has an entry of another consumer", at)


def find_ids_in_python(ids: bytes | bytearray, wanted: bytes) -> bytes | None:
    """Return the positions of ascending IDs among ascending IDs; None if one is missing."""
    found, place = array("q"), -1
    places = range(len(ids) // ID_BYTES)
    for at in range(0, len(wanted), ID_BYTES):
        eid = wanted[at : at + ID_BYTES]
        place = bisect_left(places, eid, place + 1, key=lambda n: bytes(ids[16 * n : 16 * (n + 1)]))
        if ids[ID_BYTES * place : ID_BYTES * (place + 1)] != eid:
            return None
        found.append(place)
    return found.tobytes()


def read_ids(reader: Reader, most: int) -> list[PackedID]:
    """Read a list of at most ``most`` IDs."""
    return [reader.raw_id() for _ in range(reader.length(most))]


def check_owners(group: GroupImage) -> None:
    """Raise BadPayload unless the entries without an owner are those released by XNACK."""
    ownerless = group.pending.ownerless()
    if ownerless != sorted(group.nacked):
        odd = set(ownerless).symmetric_difference(group.nacked) or set(group.nacked)
        eid = StreamID.unpack(min(odd))
        raise BadPayload(f"entry {eid} has no owner and was not released by XNACK, or vice versa")


def skip_pending(reader: Reader) -> None:
    """Skip the pending list of a group."""
    left = reader.length()
    while left:
        left -= len(_read_columns(reader, min(left, _PIECE))[1])


def skip_ids(reader: Reader) -> None:
    """Skip a list of IDs."""
    reader.skip(ID_BYTES * reader.length())


# --- writing pending entries ----------------------------------------------------------------------


def encode_pending(table: PendingTable) -> Iterator[bytes]:
    """Yield the pending list of a group in pieces."""
    yield encode_length(len(table))
    encode = encode_columns_in_python if twins is None else twins.encode_pending
    for start in range(0, len(table), _PIECE):
        yield encode(*table.columns(start, start + _PIECE))


def encode_columns_in_python(ids: bytes, times: "array[int]", deliveries: "array[int]") -> bytes:
    """Return pending entries without their count, in Python."""
    parts = []
    for at, (time_ms, count) in enumerate(zip(times, deliveries, strict=True)):
        parts.append(ids[ID_BYTES * at : ID_BYTES * (at + 1)])
        parts.append(encode_time(time_ms))
        parts.append(encode_length(count))
    return b"".join(parts)


def encode_ids(ids: bytes) -> bytes:
    """Return a list of IDs, given side by side."""
    return encode_length(len(ids) // ID_BYTES) + ids


# --- reading streams ------------------------------------------------------------------------------

GROUPS_MAX = 1 << 17
"""Groups of a stream: each takes ten bytes of a payload, and a thousand of memory."""

_UNKNOWN = -1
_NODES_AHEAD, _NODES_ALONE = 1024, 16
"""Most nodes that are read at once from a file, and from a payload, which may be read in steps."""
_WINDOW_BYTES = 1 << 16
"""Bytes that are buffered before nodes are read many at a time."""


class StreamReading:
    """A stream that is being read node by node: a StreamSource."""

    def __init__(self, reader: Reader, kind: int, *, alone: bool = False) -> None:
        """Raise BadPayload if ``kind`` is not a stream type; ``alone``: nothing may follow it."""
        if kind not in STREAM_KINDS:
            raise reader.bad(f"type {kind} is not a known type of stream")
        self.kind = Kind(kind)
        self.entries = 0
        """Living entries of the nodes read so far."""
        self.corrections: list[str] = []
        """Wrong counters of nodes, which were counted again."""
        self._reader = reader
        self._alone = alone
        self._last: PackedID = b""
        self._nodes_told: int | None = None
        self._nodes_begun = 0
        self._nodes = self._read_nodes()
        self._rest_begun = False
        self._ended = False

    def nodes(self) -> Iterator[NodeImage]:
        """Return an iterator over the unread nodes; it raises BadPayload for damage."""
        return self._nodes

    def state(self) -> StreamState:
        """Return the state that follows the nodes; unread nodes are skipped.

        Counters that the stream type lacks are None. Without an active time a consumer was last
        active when it was last seen, as in Redis.
        """
        for _ in self._nodes:
            pass
        self._rest_begun = True
        state = self._read_counters()
        state.groups = self._read_groups()
        if self.kind >= Kind.IDEMPOTENCY:
            state.idempotency = _read_idempotency(self._reader)
        self._end()
        return state

    def skip(self) -> None:
        """Skip the rest of the stream without decoding it.

        Raises BadPayload after a failed ``state``: the position is unknown then.
        """
        if self._ended:
            return
        if self._rest_begun:
            raise self._reader.bad("the stream could not be read to its end")
        self._rest_begun = True
        self._nodes.close()
        if self._nodes_told is None:
            self._nodes_told = self._reader.length()
        for _ in range(self._nodes_told - self._nodes_begun):
            self._reader.skip_string()
            self._reader.skip_string()
        self._read_counters()
        _skip_groups(self._reader, self.kind)
        if self.kind >= Kind.IDEMPOTENCY:
            _read_idempotency(self._reader)
        self._end()

    def _end(self) -> None:
        self._ended = True
        if self._alone and not self._reader.is_at_end():
            raise self._reader.bad("bytes follow the stream")

    # --- nodes ----------------------------------------------------------------------------------

    def _read_nodes(self) -> Generator[NodeImage, None, None]:
        self._nodes_told = self._reader.length()
        node: NodeImage | None = None
        for image in self._images(self._nodes_told):
            if node is not None:
                yield _ending_before(node, image)
            node = image
        if node is not None:
            yield node

    def _images(self, declared: int) -> Iterator[NodeImage]:
        """Yield the nodes that have entries: plain ones many at a time, others one by one."""
        compiled = NodesReader()
        while self._nodes_begun < declared:
            buffer, start, stop = self._reader.window(_WINDOW_BYTES)
            left = min(declared - self._nodes_begun, _NODES_ALONE if self._alone else _NODES_AHEAD)
            used, images = compiled.read(buffer, start, stop, left, self._last)
            self._reader.skip(used)
            self._nodes_begun += len(images)
            for node in images:
                self.entries += node.count
                self._last = node.last_id
                yield node
            if not images:
                self._nodes_begun += 1
                image = self._read_node()
                if image is not None:
                    yield image

    def _read_node(self) -> NodeImage | None:
        """Return a node, or None if it has no living entries."""
        at = self._reader.offset
        key = self._reader.string(ID_BYTES)
        data = self._reader.string(NODE_BYTES_MAX)
        try:
            node = decode_node(key, data)
        except BadPayload as error:
            inside = "" if error.offset is None else f", at byte {error.offset} of the node"
            raise self._reader.bad(error.reason + inside, at) from None
        if key <= self._last:
            raise self._reader.bad(f"node {StreamID.unpack(key)} is out of order", at)
        self._last = node.ids[-1] if node.ids else self._last
        self.entries += len(node.ids)
        if node.claimed != len(node.ids) or not node.ids:
            self.corrections.append(
                f"node {StreamID.unpack(key)} claims {node.claimed} entries and has {len(node.ids)}"
            )
        if not node.ids:
            return None
        return NodeImage(
            key, node.names, node.ids, node.values, node.appended, len(data), node.last
        )

    # --- all else -------------------------------------------------------------------------------

    def _read_counters(self) -> StreamState:
        reader = self._reader
        length = reader.length()
        if length and not self._nodes_told:
            raise reader.bad(f"a stream of {length} entries has no nodes")
        state = StreamState(length, reader.length_id())
        if self.kind >= Kind.COUNTERS:
            state.first = reader.length_id()
            state.max_deleted = reader.length_id()
            state.entries_added = reader.length()
        return state

    def _read_groups(self) -> list[GroupImage]:
        groups: dict[bytes, GroupImage] = {}
        for _ in range(self._reader.length(GROUPS_MAX)):
            at = self._reader.offset
            group = self._read_group()
            if groups.setdefault(group.name, group) is not group:
                raise self._reader.bad(f"group {group.name!r} comes twice", at)
        return [groups[name] for name in sorted(groups)]

    def _read_group(self) -> GroupImage:
        reader = self._reader
        group = GroupImage(reader.string(), reader.length_id(), None)
        if self.kind >= Kind.COUNTERS:
            declared = reader.signed_length()
            group.entries_read = None if declared == _UNKNOWN else declared
        read_pending(reader, group.pending)
        names = set()
        for _ in range(reader.length()):
            at = reader.offset
            consumer = self._read_consumer(group)
            if consumer.name in names:
                raise reader.bad(f"consumer {consumer.name!r} comes twice", at)
            names.add(consumer.name)
            group.consumers.append(consumer)
        group.consumers.sort()
        if self.kind >= Kind.NACKED:
            group.nacked = read_ids(reader, len(group.pending))
        try:
            check_owners(group)
        except BadPayload as error:
            raise reader.bad(f"group {group.name!r}: {error.reason}") from None
        return group

    def _read_consumer(self, group: GroupImage) -> ConsumerImage:
        name, seen_ms = self._reader.string(), self._reader.time()
        active_ms = self._reader.time() if self.kind >= Kind.ACTIVE_TIMES else seen_ms
        read_owned(self._reader, group.pending, name)
        return ConsumerImage(name, seen_ms, active_ms)


def _ending_before(node: NodeImage, following: NodeImage) -> NodeImage:
    """Return a node whose last deleted entry is below the next node.

    It is not if XSETID set a lower ID before the next node was begun.
    """
    if node.last is None or node.last < following.first:
        return node
    node.last = None
    return node


def _skip_groups(reader: Reader, kind: Kind) -> None:
    for _ in range(reader.length()):
        reader.skip_string()
        reader.length_id()
        if kind >= Kind.COUNTERS:
            reader.length()
        skip_pending(reader)
        for _ in range(reader.length()):
            reader.skip_string()
            reader.skip(16 if kind >= Kind.ACTIVE_TIMES else 8)
            skip_ids(reader)
        if kind >= Kind.NACKED:
            skip_ids(reader)


def _read_idempotency(reader: Reader) -> IdempotencyImage:
    image = IdempotencyImage(reader.length(), reader.length())
    pids = set()
    for _ in range(reader.length()):
        at = reader.offset
        pid = reader.string()
        if pid in pids:
            raise reader.bad(f"producer {pid!r} comes twice", at)
        pids.add(pid)
        iids = [(reader.string(), reader.length_id()) for _ in range(reader.length())]
        if len({iid for iid, _ in iids}) != len(iids):
            raise reader.bad(f"producer {pid!r} has an idempotent ID twice", at)
        image.producers.append(ProducerImage(pid, iids))
    image.producers.sort(key=lambda producer: producer.pid)
    image.iids_added, image.iids_duplicates = reader.length(), reader.length()
    return image


# --- writing streams ------------------------------------------------------------------------------
def encode_stream(
    kind: Kind,
    nodes: Iterable[NodeImage],
    state: StreamState | Callable[[], StreamState],
    node_count: int | None = None,
    *,
    compress: bool = False,
) -> Iterator[bytes]:
    """Yield a stream object in pieces, one per node.

    Without ``node_count`` the first piece is a LEN of FIXED_LENGTH_BYTES with the number 0, to be
    overwritten. ``compress`` applies LZF to nodes and names. A callable ``state`` is called after
    the last node. Raises ValueError if the state has something that ``kind`` cannot hold
    (``versions.reduce`` removes it), if nodes are out of order, or if their count is wrong.
    """
    if isinstance(state, StreamState):
        _refuse_what_is_lost(kind, state)
    yield encode_fixed_length(0) if node_count is None else encode_length(node_count)
    written = _Written()
    for node in nodes:
        yield written.add(node, compress)
    if node_count not in (None, written.nodes):
        raise ValueError(f"the stream has {written.nodes} nodes, not {node_count}")
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
        raise ValueError(f"type {kind} has no pending entries without an owner")


class _Written:
    """What the counters must agree with: the number of nodes and entries, first and last ID."""

    def __init__(self) -> None:
        self.nodes = 0
        self.entries = 0
        self.first = MIN_ID
        """The first living entry."""
        self._last: PackedID = b""

    @property
    def last(self) -> StreamID:
        """The last entry ever added to the nodes."""
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
    yield from encode_pending(group.pending)
    owned = group.pending.ids_by_owner()
    yield encode_length(len(group.consumers))
    for consumer in sorted(group.consumers):
        yield encode_string(consumer.name, compress=compress) + encode_time(consumer.seen_ms)
        if kind >= Kind.ACTIVE_TIMES:
            yield encode_time(consumer.active_ms)
        yield encode_ids(owned.pop(consumer.name, b""))
    if owned:
        raise ValueError(f"group {group.name!r} has entries of {min(owned)!r}, not a consumer")
    if kind >= Kind.NACKED:
        if sorted(group.nacked) != group.pending.ownerless():
            raise ValueError(f"group {group.name!r}: nacked does not list the ownerless entries")
        yield encode_ids(b"".join(group.nacked))


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
