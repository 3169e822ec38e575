"""A stream as a whole, apart from where it is kept: what DUMP, migration and backups carry.

An image is read in the order of Redis's own files: nodes first, one at a time, then the state that
closes them. So a stream of any length passes through the memory of one node and its pending lists.
Entries are pairs of a packed ID (16 bytes, big-endian) and a value as kvstream stores it
(layout/values.py): equal entries have equal bytes.
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
"""The active time of a consumer that was never given anything."""

ID_BYTES = 16
_NOBODY = -1
_EACH_ID = Struct(f"{ID_BYTES}s")


@dataclass(slots=True, eq=False)
class NodeImage:
    """Entries that Redis keeps in one listpack."""

    first: PackedID
    """The master ID: the first entry ever put into the node, living or not."""
    names: tuple[bytes, ...]
    """The field names of that first entry."""
    ids: list[PackedID]
    """The living entries, ascending; never empty."""
    values: list[bytes]
    """Their stored values, in the same order."""
    appended: int
    """Entries ever put into the node: the living, and those deleted inside it."""
    size: int
    """Bytes of the listpack, deleted entries included; 0 where the source cannot tell."""
    last: PackedID | None = None
    """The last entry ever put into the node, living or not; None: the last living one."""

    @property
    def count(self) -> int:
        """How many entries live."""
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
        """Return the same with other values of some fields."""
        return NodeImage(**{name: getattr(self, name) for name in _NODE_FIELDS} | changed)

    def __eq__(self, other: object) -> bool:
        """Tell whether all fields are equal, however the entries are held."""
        if not isinstance(other, NodeImage):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _NODE_FIELDS)

    __hash__ = None  # type: ignore[assignment]


_NODE_FIELDS = ("first", "names", "ids", "values", "appended", "size", "last")


class PendingImage(NamedTuple):
    """One pending entry; its message may be gone."""

    id: PackedID
    owner: bytes | None
    """None where XNACK gave it back."""
    time_ms: int
    """Unix milliseconds of the last delivery; 0 where it was given back."""
    deliveries: int


class PendingTable:
    """The pending entries of a group, ascending by ID: 40 bytes each, so that millions fit."""

    def __init__(self) -> None:
        self._ids = bytearray()
        self._times = array("q")
        self._deliveries = array("Q")
        self._owners = array("q")
        self._names: list[bytes] = []
        self._numbers: dict[bytes, int] = {}

    def add(self, eid: PackedID, owner: bytes | None, time_ms: int, deliveries: int) -> None:
        """Add an entry above all others; ValueError where it is not."""
        if self._ids and eid <= self._ids[-ID_BYTES:]:
            raise ValueError(f"pending entry {StreamID.unpack(eid)} is out of order")
        self._ids += eid
        self._times.append(time_ms)
        self._deliveries.append(deliveries)
        self._owners.append(_NOBODY if owner is None else self._number(owner))

    def extend(
        self, ids: Sequence[PackedID], owner: bytes | None, time_ms: int, deliveries: int
    ) -> None:
        """Add entries that share all else, ascending and above all others; else ValueError."""
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
        """Add entries that belong to nobody yet, column by column; else as ``extend`` does."""
        count = len(ids) // ID_BYTES
        each = [*_EACH_ID.iter_unpack(self._ids[-ID_BYTES:]), *_EACH_ID.iter_unpack(ids)]
        if not all(map(lt, each, each[1:])):
            raise ValueError(
                f"pending entries from {StreamID.unpack(*each[0])} on are out of order"
            )
        self._ids += ids
        self._times += times_ms
        self._deliveries += deliveries
        self._owners.extend(repeat(_NOBODY, count))

    def columns(self, start: int, stop: int) -> tuple[bytes, "array[int]", "array[int]"]:
        """Return IDs, times and deliveries of the entries between two places."""
        ids = bytes(self._ids[ID_BYTES * start : ID_BYTES * stop])
        return ids, self._times[start:stop], self._deliveries[start:stop]

    @property
    def packed_ids(self) -> bytearray:
        """The IDs of all entries, one after the other; not to be changed."""
        return self._ids

    def ids_by_owner(self) -> dict[bytes, bytes]:
        """Return the IDs that each consumer has, one after the other, of those that have any."""
        found: defaultdict[int, list[PackedID]] = defaultdict(list)
        for number, (eid,) in zip(self._owners, _EACH_ID.iter_unpack(self._ids), strict=True):
            found[number].append(eid)
        found.pop(_NOBODY, None)
        return {self._names[number]: b"".join(ids) for number, ids in found.items()}

    def give_all(self, places: Iterable[int], owner: bytes) -> bool:
        """Make the entries at these places a consumer's; False where one is owned already."""
        number, owners = self._number(owner), self._owners
        for at in places:
            if owners[at] != _NOBODY:
                return False
            owners[at] = number
        return True

    def give(self, eid: PackedID, owner: bytes) -> bool:
        """Make an ownerless entry a consumer's; False where it is not here, or is owned."""
        at = self._position(eid)
        if at is None or self._owners[at] != _NOBODY:
            return False
        self._owners[at] = self._number(owner)
        return True

    def owners(self) -> list[bytes]:
        """Return the consumers that have any of the entries, or had when it was added."""
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
        """Return the entries that belong to nobody."""
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
    """-1: it was never given anything."""


@dataclass(slots=True)
class GroupImage:
    """A group with its consumers and pending entries."""

    name: bytes
    last_delivered: StreamID
    entries_read: int | None
    """None where it cannot be known."""
    consumers: list[ConsumerImage] = field(default_factory=list)
    """By name, as Redis keeps them."""
    pending: PendingTable = field(default_factory=PendingTable)
    nacked: list[PackedID] = field(default_factory=list)
    """The ownerless entries of ``pending``, in the order in which they are handed out again."""


class ProducerImage(NamedTuple):
    """What is remembered of an idempotent producer."""

    pid: bytes
    iids: list[tuple[bytes, StreamID]]
    """Idempotent IDs with the entries that they made, oldest first."""


@dataclass(slots=True)
class IdempotencyImage:
    """What a stream remembers of idempotent producers."""

    duration_s: int
    maxsize: int
    producers: list[ProducerImage] = field(default_factory=list)
    iids_added: int = 0
    iids_duplicates: int = 0


@dataclass(slots=True)
class StreamState:
    """All of a stream but its entries, as its source tells it.

    A counter that the source's format has not is None; whoever restores the stream finds it out by
    Redis's rules for such files, or better. ``length`` may be wrong: real files have such.
    """

    length: int
    last: StreamID
    first: StreamID | None = None
    max_deleted: StreamID | None = None
    entries_added: int | None = None
    groups: list[GroupImage] = field(default_factory=list)
    idempotency: IdempotencyImage | None = None
    """None: nothing was ever set or remembered, the server's own limits hold."""


class StreamSource(Protocol):
    """A stream that is being read: all nodes first, then the state, each once."""

    def nodes(self) -> Iterator[NodeImage]: ...

    def state(self) -> StreamState:
        """Return the rest; only after the last node."""
        ...
