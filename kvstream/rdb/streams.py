"""A stream object as Redis writes it, read as an image: nodes first, then all else.

The pieces are those of primitives.py, a listpack is one of nodes.py, pending lists are in
pending.py; [21] marks what that type of stream, and those after it, have.

::

    stream      := LEN(n) node*n  LEN(length) LEN-ID(last)
                   [19] LEN-ID(first) LEN-ID(max deleted) LEN(entries added)
                   LEN(n) group*n
                   [26] idempotency
    node        := STRING(key: 16 bytes) STRING(listpack)
    group       := STRING(name) LEN-ID(last delivered)  [19] LEN(entries read, or -1)
                   pending  LEN(n) consumer*n  [27] LEN(n) RAW-ID*n
    consumer    := STRING(name) MS-TIME(seen)  [21] MS-TIME(active, or -1)  LEN(n) RAW-ID*n
    idempotency := LEN(duration) LEN(maximum) LEN(n) producer*n  LEN(added) LEN(duplicates)
    producer    := STRING(pid) LEN(n) (STRING(iid) LEN-ID)*n

An image as a stream object, as Redis itself writes it; the grammar is in streams.py.

What loaders check is made to hold: length and first entry are counted, groups, consumers and
pending entries stand in their order, and no counter contradicts another.

The pending entries of a group: its own list with times and counts, and its consumers' of IDs.

::

    pending := LEN(n) (RAW-ID MS-TIME(delivered) LEN(deliveries))*n      ascending
    ids     := LEN(n) RAW-ID*n

The lists of consumers say whose an entry is; one in none of them was given back by XNACK, and
stands in the list of those.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator

from kvstream.errors import BadPayload
from kvstream.rdb.compiled import twins
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
"""Entries that are read or written at once: some hundred kilobytes."""

Columns = tuple[bytes, "array[int]", "array[int]"]
"""IDs, times and counts of deliveries."""


# --- reading --------------------------------------------------------------------------------------


def read(reader: Reader, table: PendingTable) -> None:
    """Read the list of a group into an empty table, where it belongs to nobody yet."""
    left = reader.length()
    while left:
        columns = _take_some(reader, min(left, _PIECE))
        try:
            table.extend_columns(*columns)
        except ValueError as error:
            raise reader.bad(str(error)) from None
        left -= len(columns[1])


def _take_some(reader: Reader, most: int) -> Columns:
    """Take at least one entry, and at most so many."""
    if twins is not None:
        found = twins.decode_pending(*reader.window(most * _ENTRY_BYTES_MIN), most)
        if found is not None:
            ids, times, deliveries, size = found
            reader.skip(size)
            return ids, array("q", times), array("Q", deliveries)
    return take_in_python(reader, most)


def take_in_python(reader: Reader, count: int) -> Columns:
    """Take so many entries, in Python."""
    ids, times, deliveries = bytearray(), array("q"), array("Q")
    for _ in range(count):
        ids += reader.raw_id()
        times.append(reader.time())
        deliveries.append(reader.length())
    return bytes(ids), times, deliveries


def give(reader: Reader, table: PendingTable, owner: bytes) -> None:
    """Read the list of a consumer, and give it what it has."""
    at = reader.offset
    ids = reader.take(ID_BYTES * reader.length(len(table)))
    find = positions_in_python if twins is None else twins.find_ids
    found = find(table.packed_ids, ids)
    if found is None:
        raise reader.bad(f"consumer {owner!r} has what is not pending in its group", at)
    if not table.give_all(array("q", found), owner):
        raise reader.bad(f"consumer {owner!r} has what another one has", at)


def positions_in_python(ids: bytes | bytearray, wanted: bytes) -> bytes | None:
    """Return the places of ascending IDs among ascending IDs, None where one is not there."""
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
    """Read a list of at most so many IDs."""
    return [reader.raw_id() for _ in range(reader.length(most))]


def check_owners(group: GroupImage) -> None:
    """Refuse entries that belong to nobody, and are not among those given back, or otherwise."""
    ownerless = group.pending.ownerless()
    if ownerless != sorted(group.nacked):
        odd = set(ownerless).symmetric_difference(group.nacked) or set(group.nacked)
        eid = StreamID.unpack(min(odd))
        raise BadPayload(f"entry {eid} is pending for nobody, or was given back oddly")


def skip(reader: Reader) -> None:
    """Pass over the list of a group."""
    left = reader.length()
    while left:
        left -= len(_take_some(reader, min(left, _PIECE))[1])


def skip_ids(reader: Reader) -> None:
    """Pass over a list of IDs."""
    reader.skip(ID_BYTES * reader.length())


# --- writing --------------------------------------------------------------------------------------


def write(table: PendingTable) -> Iterator[bytes]:
    """Yield the list of a group."""
    yield encode_length(len(table))
    encode = encode_in_python if twins is None else twins.encode_pending
    for start in range(0, len(table), _PIECE):
        yield encode(*table.columns(start, start + _PIECE))


def encode_in_python(ids: bytes, times: "array[int]", deliveries: "array[int]") -> bytes:
    """Return entries without their number, made in Python."""
    parts = []
    for at, (time_ms, count) in enumerate(zip(times, deliveries, strict=True)):
        parts.append(ids[ID_BYTES * at : ID_BYTES * (at + 1)])
        parts.append(encode_time(time_ms))
        parts.append(encode_length(count))
    return b"".join(parts)


def write_ids(ids: bytes) -> bytes:
    """Return a list of IDs, given as one string of bytes."""
    return encode_length(len(ids) // ID_BYTES) + ids


GROUPS_MAX = 1 << 17
"""Groups of a stream: each takes ten bytes of a payload, and a hundred times as much in memory."""

_UNKNOWN = -1
_NODES_AHEAD, _NODES_ALONE = 1024, 16
"""Nodes that are read at once, at the most; and of a payload, which may be taken step by step."""
_WINDOW_BYTES = 1 << 16
"""Bytes that are there before nodes are read many at a time, where so many are left."""


class StreamReading:
    """A stream that is being read, node by node: a StreamSource."""

    def __init__(self, reader: Reader, kind: int, *, alone: bool = False) -> None:
        """BadPayload where ``kind`` is no type of streams; ``alone``: nothing may follow it."""
        if kind not in STREAM_KINDS:
            raise reader.bad(f"type {kind} is none of the streams that are known")
        self.kind = Kind(kind)
        self.entries = 0
        """Living entries of the nodes that were taken."""
        self.corrections: list[str] = []
        """What nodes said of themselves that was not so."""
        self._reader = reader
        self._alone = alone
        self._last: PackedID = b""
        self._nodes_told: int | None = None
        self._nodes_begun = 0
        self._nodes = self._read_nodes()
        self._rest_begun = False
        self._ended = False

    def nodes(self) -> Iterator[NodeImage]:
        """Return the nodes that have not been taken; taking one raises BadPayload for damage."""
        return self._nodes

    def state(self) -> StreamState:
        """Return the rest as its source tells it; nodes that were not taken are passed over.

        Counters that the type has not are None. Consumers of types that do not tell when they were
        active were so when they were seen: Redis has it the same way.
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
        """Go to the end of the stream, and decode nothing that was not taken.

        BadPayload where ``state`` has failed: nobody knows where the stream goes on.
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
        if self._alone and not self._reader.ended():
            raise self._reader.bad("something follows the stream")

    # --- nodes ----------------------------------------------------------------------------------

    def _read_nodes(self) -> Generator[NodeImage, None, None]:
        self._nodes_told = self._reader.length()
        held: NodeImage | None = None
        for image in self._images(self._nodes_told):
            if held is not None:
                yield _ending_before(held, image)
            held = image
        if held is not None:
            yield held

    def _images(self, told: int) -> Iterator[NodeImage]:
        """Yield the nodes that have entries: many at a time where they are plain, else one."""
        compiled = NodesReader()
        while self._nodes_begun < told:
            buffer, start, stop = self._reader.window(_WINDOW_BYTES)
            left = min(told - self._nodes_begun, _NODES_ALONE if self._alone else _NODES_AHEAD)
            used, found = compiled.read(buffer, start, stop, left, self._last)
            self._reader.skip(used)
            self._nodes_begun += len(found)
            for node in found:
                self.entries += node.count
                self._last = node.last_id
                yield node
            if not found:
                self._nodes_begun += 1
                image = self._read_node()
                if image is not None:
                    yield image

    def _read_node(self) -> NodeImage | None:
        """Return a node, None where nothing in it lives."""
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
        if node.told != len(node.ids) or not node.ids:
            self.corrections.append(
                f"node {StreamID.unpack(key)} tells of {node.told} entries, and has {len(node.ids)}"
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
            told = reader.signed_length()
            group.entries_read = None if told == _UNKNOWN else told
        read(reader, group.pending)
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
        give(self._reader, group.pending, name)
        return ConsumerImage(name, seen_ms, active_ms)


def _ending_before(node: NodeImage, following: NodeImage) -> NodeImage:
    """Return a node whose deleted entries do not reach into the next one.

    They may where XSETID has gone back below them before the next one was begun.
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
        skip(reader)
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
    yield from write(group.pending)
    owned = group.pending.ids_by_owner()
    yield encode_length(len(group.consumers))
    for consumer in sorted(group.consumers):
        yield encode_string(consumer.name, compress=compress) + encode_time(consumer.seen_ms)
        if kind >= Kind.ACTIVE_TIMES:
            yield encode_time(consumer.active_ms)
        yield write_ids(owned.pop(consumer.name, b""))
    if owned:
        raise ValueError(f"group {group.name!r} has entries of {min(owned)!r}, who is no consumer")
    if kind >= Kind.NACKED:
        if sorted(group.nacked) != group.pending.ownerless():
            raise ValueError(f"group {group.name!r} has entries of nobody without an order")
        yield write_ids(b"".join(group.nacked))


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
