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
"""

from collections.abc import Generator, Iterator

from kvstream.errors import BadPayload
from kvstream.ids import StreamID
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
from kvstream.rdb import pending
from kvstream.rdb.kinds import STREAM_KINDS, Kind
from kvstream.rdb.nodes import NODE_BYTES_MAX, decode_node
from kvstream.rdb.packed import NodesReader
from kvstream.rdb.primitives import Reader

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
        pending.read(reader, group.pending)
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
            group.nacked = pending.read_ids(reader, len(group.pending))
        try:
            pending.check_owners(group)
        except BadPayload as error:
            raise reader.bad(f"group {group.name!r}: {error.reason}") from None
        return group

    def _read_consumer(self, group: GroupImage) -> ConsumerImage:
        name, seen_ms = self._reader.string(), self._reader.time()
        active_ms = self._reader.time() if self.kind >= Kind.ACTIVE_TIMES else seen_ms
        pending.give(self._reader, group.pending, name)
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
        pending.skip(reader)
        for _ in range(reader.length()):
            reader.skip_string()
            reader.skip(16 if kind >= Kind.ACTIVE_TIMES else 8)
            pending.skip_ids(reader)
        if kind >= Kind.NACKED:
            pending.skip_ids(reader)


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
