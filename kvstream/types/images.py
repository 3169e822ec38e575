"""The image of a stream, independent of its storage: the form that DUMP and migration carry.

An image is read in the order of Redis's files: nodes one at a time, then the state. So a stream of
any length needs the memory of one node and its pending lists. An entry is a packed ID (16 bytes,
big-endian) and a stored value (layout/values.py); equal entries have equal bytes.
"""

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, repeat
from operator import eq, lt
from struct import Struct
from typing import Any, NamedTuple, Protocol

from kvstream.types.ids import StreamID

PackedID = bytes
"""An ID as 16 bytes, which sort as IDs do."""

NEVER = -1
"""The active time of a consumer that never got an entry."""

ID_BYTES = 16
_NOBODY = -1
_EACH_ID = Struct(f"{ID_BYTES}s")


@dataclass(slots=True, eq=False)
class NodeImage:
    """The entries of one listpack of Redis."""

    first: PackedID
    """The master ID: the first entry ever added to the node, living or deleted."""
    names: tuple[bytes, ...]
    """The field names of that first entry."""
    ids: list[PackedID]
    """The living entries, ascending; never empty."""
    values: list[bytes]
    """Their stored values, in the same order."""
    appended: int
    """Entries ever added to the node, living or deleted."""
    size: int
    """Bytes of the listpack with deleted entries; 0 if unknown."""
    last: PackedID | None = None
    """The last entry ever added to the node, living or deleted; None: the last living one."""

    @property
    def count(self) -> int:
        """The number of living entries."""
        return len(self.ids)

    @property
    def value_bytes(self) -> int:
        """Bytes of the stored values."""
        return sum(map(len, self.values))

    @property
    def first_id(self) -> PackedID:
        """The first living entry."""
        return self.ids[0]

    @property
    def last_id(self) -> PackedID:
        """The last living entry."""
        return self.ids[-1]

    def _replace(self, **changed: Any) -> "NodeImage":
        """Return a copy with other values of some fields."""
        return NodeImage(**{name: getattr(self, name) for name in _NODE_FIELDS} | changed)

    def __eq__(self, other: object) -> bool:
        """Compare all fields, also with a subclass."""
        if not isinstance(other, NodeImage):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _NODE_FIELDS)

    __hash__ = None  # type: ignore[assignment]


_NODE_FIELDS = ("first", "names", "ids", "values", "appended", "size", "last")


class PendingImage(NamedTuple):
    """One pending entry; its message may be gone."""

    id: PackedID
    owner: bytes | None
    """None if XNACK has released it."""
    time_ms: int
    """Unix milliseconds of the last delivery; 0 if XNACK has released it."""
    deliveries: int


class PendingTable:
    """The pending entries of a group, ascending by ID, in 40 bytes each."""

    def __init__(self) -> None:
        self._ids = bytearray()
        self._times = array("q")
        self._deliveries = array("Q")
        self._owners = array("q")
        self._names: list[bytes] = []
        self._numbers: dict[bytes, int] = {}

    def add(self, eid: PackedID, owner: bytes | None, time_ms: int, deliveries: int) -> None:
        """Add an entry; raise ValueError unless its ID is above all others."""
        if self._ids and eid <= self._ids[-ID_BYTES:]:
            raise ValueError(f"pending entry {StreamID.unpack(eid)} is out of order")
        self._ids += eid
        self._times.append(time_ms)
        self._deliveries.append(deliveries)
        self._owners.append(_NOBODY if owner is None else self._number(owner))

    def extend(
        self, ids: Sequence[PackedID], owner: bytes | None, time_ms: int, deliveries: int
    ) -> None:
        """Add ascending entries that share the other fields; raise ValueError as ``add`` does."""
        count = len(ids)
        if not count:
            return
        last = bytes(self._ids[-ID_BYTES:])
        if (self._ids and ids[0] <= last) or not all(map(lt, ids, ids[1:])):
            raise ValueError(f"pending entries from {StreamID.unpack(ids[0])} on are out of order")
        self._ids += b"".join(ids)
        self._times.extend(repeat(time_ms, count))
        self._deliveries.extend(repeat(deliveries, count))
        self._owners.extend(repeat(_NOBODY if owner is None else self._number(owner), count))

    def extend_columns(self, ids: bytes, times_ms: "array[int]", deliveries: "array[int]") -> None:
        """Add ascending entries without owners, by column; raise ValueError as ``add`` does."""
        count = len(ids) // ID_BYTES
        in_order = [*_EACH_ID.iter_unpack(self._ids[-ID_BYTES:]), *_EACH_ID.iter_unpack(ids)]
        if not all(map(lt, in_order, in_order[1:])):
            raise ValueError(
                f"pending entries from {StreamID.unpack(*in_order[0])} on are out of order"
            )
        self._ids += ids
        self._times += times_ms
        self._deliveries += deliveries
        self._owners.extend(repeat(_NOBODY, count))

    def columns(self, start: int, stop: int) -> tuple[bytes, "array[int]", "array[int]"]:
        """Return IDs, times and deliveries of the entries between two indexes."""
        ids = bytes(self._ids[ID_BYTES * start : ID_BYTES * stop])
        return ids, self._times[start:stop], self._deliveries[start:stop]

    @property
    def packed_ids(self) -> bytearray:
        """The IDs of all entries, side by side; do not change them."""
        return self._ids

    def ids_by_owner(self) -> dict[bytes, bytes]:
        """Return the IDs of each consumer with entries, side by side."""
        found: defaultdict[int, list[PackedID]] = defaultdict(list)
        for number, (eid,) in zip(self._owners, _EACH_ID.iter_unpack(self._ids), strict=True):
            found[number].append(eid)
        found.pop(_NOBODY, None)
        return {self._names[number]: b"".join(ids) for number, ids in found.items()}

    def give_all(self, places: Iterable[int], owner: bytes) -> bool:
        """Set the owner of the entries at these indexes; return False if one has an owner."""
        number, owners = self._number(owner), self._owners
        for at in places:
            if owners[at] != _NOBODY:
                return False
            owners[at] = number
        return True

    def give(self, eid: PackedID, owner: bytes) -> bool:
        """Set the owner of an entry; return False if it is missing or has an owner."""
        at = self._position(eid)
        if at is None or self._owners[at] != _NOBODY:
            return False
        self._owners[at] = self._number(owner)
        return True

    def owners(self) -> list[bytes]:
        """Return the consumers that own an entry, or owned one when it was added."""
        return list(self._names)

    def spans(self, most: int) -> Iterator[tuple[list[PackedID], bytes | None, int, int]]:
        """Yield runs of at most ``most`` neighbours that share owner, time and deliveries.

        Each comes as the IDs and the three values that they share.
        """
        start = 0
        shared = zip(self._owners, self._times, self._deliveries, strict=True)
        for (number, time_ms, deliveries), same in groupby(shared):
            stop = start + len(list(same))
            owner = None if number == _NOBODY else self._names[number]
            for at in range(start, stop, most):
                packed = bytes(self._ids[ID_BYTES * at : ID_BYTES * min(at + most, stop)])
                ids = [packed[i : i + ID_BYTES] for i in range(0, len(packed), ID_BYTES)]
                yield ids, owner, time_ms, deliveries
            start = stop

    def ownerless(self) -> list[PackedID]:
        """Return the IDs of the entries without an owner."""
        if _NOBODY not in self._owners:
            return []
        return [self._id(at) for at, number in enumerate(self._owners) if number == _NOBODY]

    def _number(self, owner: bytes) -> int:
        number = self._numbers.setdefault(owner, len(self._names))
        if number == len(self._names):
            self._names.append(owner)
        return number

    def _position(self, eid: PackedID) -> int | None:
        at = bisect_left(range(len(self)), eid, key=self._id)
        return at if at < len(self) and self._id(at) == eid else None

    def _id(self, at: int) -> PackedID:
        return bytes(self._ids[ID_BYTES * at : ID_BYTES * (at + 1)])

    def __len__(self) -> int:
        return len(self._owners)

    def __contains__(self, eid: object) -> bool:
        return isinstance(eid, bytes) and self._position(eid) is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PendingTable):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[PendingImage]:
        for at, number in enumerate(self._owners):
            owner = None if number == _NOBODY else self._names[number]
            yield PendingImage(self._id(at), owner, self._times[at], self._deliveries[at])


class ConsumerImage(NamedTuple):
    """A consumer, with or without pending entries. Times are Unix milliseconds."""

    name: bytes
    seen_ms: int
    active_ms: int
    """-1: it never got an entry."""


@dataclass(slots=True)
class GroupImage:
    """A group with its consumers and pending entries."""

    name: bytes
    last_delivered: StreamID
    entries_read: int | None
    """None if unknown."""
    consumers: list[ConsumerImage] = field(default_factory=list)
    """By name, as Redis keeps them."""
    pending: PendingTable = field(default_factory=PendingTable)
    nacked: list[PackedID] = field(default_factory=list)
    """The ownerless entries of ``pending``, in the order of redelivery."""


class ProducerImage(NamedTuple):
    """The idempotent IDs of a producer."""

    pid: bytes
    iids: list[tuple[bytes, StreamID]]
    """Idempotent IDs with the IDs of their entries, oldest first."""


@dataclass(slots=True)
class IdempotencyImage:
    """The idempotent producers of a stream, and their limits."""

    duration_s: int
    maxsize: int
    producers: list[ProducerImage] = field(default_factory=list)
    iids_added: int = 0
    iids_duplicates: int = 0


QueueRow = tuple[bytes, bytes]
"""A row of a stream that is a queue: a tag of QUEUE_PARTS with the rest of the key, and the value
(operations/queues/image.py)."""

QUEUE_PARTS = {
    b"a": "policies",
    b"b": "unique",
    b"c": "policies",
    b"d": "delayed",
    b"e": "waiting",
    b"l": "lifetimes",
    b"r": "retention",
    b"s": "schedules",
    b"u": "unique",
    b"x": "redrive",
}
"""The name of the part that a row belongs to, by its tag."""


@dataclass(slots=True)
class StreamState:
    """Everything of a stream except its entries, as its source has it.

    A counter that the source's format lacks is None; restoring the stream computes it. ``length``
    may be wrong, as it is in some real files.
    """

    length: int
    last: StreamID
    first: StreamID | None = None
    max_deleted: StreamID | None = None
    entries_added: int | None = None
    groups: list[GroupImage] = field(default_factory=list)
    idempotency: IdempotencyImage | None = None
    """None: nothing is set or remembered, and the server's limits apply."""
    queue: list[QueueRow] | None = None
    """The rows of the stream as a queue, ascending; None if the source's format has none."""


class StreamSource(Protocol):
    """A stream that is being read: all nodes first, then the state, each once."""

    def nodes(self) -> Iterator[NodeImage]: ...

    def state(self) -> StreamState:
        """Return the rest; only after the last node."""
        ...
