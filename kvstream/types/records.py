"""What reads give back: frozen values, named in Redis's words. IDs are StreamIDs, names bytes."""

from dataclasses import dataclass
from typing import NamedTuple

from kvstream.types.ids import StreamID

Fields = dict[bytes, bytes]
"""The fields of an entry in their order; a repeated field keeps its last value here."""


class RepeatedFields(dict[bytes, bytes]):
    """The fields of an entry in which a field name stands more than once."""

    def __init__(self, flat: tuple[bytes, ...]) -> None:
        super().__init__(zip(flat[::2], flat[1::2], strict=True))
        self.flat = flat


class Entry(NamedTuple):
    """One message of a stream."""

    id: StreamID
    fields: Fields
    idle_ms: int | None = None
    """Milliseconds since the delivery before this one, where a CLAIM read told it."""
    deliveries: int | None = None
    """How often it had been delivered before this read, where a CLAIM read told it."""

    @property
    def flat(self) -> tuple[bytes, ...]:
        """Field, value, field, value ... in order, repeated fields included."""
        fields = self.fields
        if type(fields) is RepeatedFields:
            return fields.flat
        return tuple(part for pair in fields.items() for part in pair)

    @property
    def pairs(self) -> tuple[tuple[bytes, bytes], ...]:
        """The (field, value) pairs in order, repeated fields included."""
        flat = self.flat
        return tuple(zip(flat[::2], flat[1::2], strict=True))


class BareEntry(NamedTuple):
    """An entry without its fields: what a claim with ``justid`` returns."""

    id: StreamID
    fields: None = None
    idle_ms: int | None = None
    deliveries: int | None = None

    @property
    def flat(self) -> tuple[bytes, ...]:
        return ()

    @property
    def pairs(self) -> tuple[tuple[bytes, bytes], ...]:
        return ()


class DeletedEntry(BareEntry):
    """A pending entry whose message has been deleted; ``fields`` is None."""

    __slots__ = ()


HistoryEntry = Entry | DeletedEntry
"""What a read of pending entries shows."""
AnyEntry = Entry | BareEntry


class PendingEntry(NamedTuple):
    """One row of XPENDING's extended form."""

    id: StreamID
    consumer: bytes
    """Empty when the entry was given back by XNACK and belongs to nobody."""
    idle_ms: int
    """Milliseconds since the last delivery; -1 when it belongs to nobody."""
    deliveries: int


@dataclass(frozen=True, slots=True)
class PendingSummary:
    """XPENDING's summary form."""

    count: int
    min_id: StreamID | None
    max_id: StreamID | None
    consumers: dict[bytes, int]
    """Pending entries of each consumer that has any, by name."""


class Claimed(NamedTuple):
    """What XAUTOCLAIM did in one call."""

    cursor: StreamID
    """Where the next call goes on; 0-0 when the whole list has been seen."""
    entries: list[Entry]
    """The claimed entries."""
    deleted: list[StreamID]
    """Pending IDs whose message is gone: dropped from the list."""


class ClaimedIDs(NamedTuple):
    """What XAUTOCLAIM did in one call with ``justid``: as ``Claimed``, without any fields."""

    cursor: StreamID
    entries: list[BareEntry]
    deleted: list[StreamID]


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """XINFO STREAM."""

    length: int
    radix_tree_keys: int
    """Nodes of the stream, as Redis groups its entries."""
    radix_tree_nodes: int
    last_generated_id: StreamID
    max_deleted_entry_id: StreamID
    entries_added: int
    recorded_first_entry_id: StreamID
    idmp_duration: int
    """Seconds for which an idempotent ID is remembered."""
    idmp_maxsize: int
    pids_tracked: int
    iids_tracked: int
    iids_added: int
    iids_duplicates: int
    groups: int
    first_entry: Entry | None
    last_entry: Entry | None


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """One group of XINFO GROUPS."""

    name: bytes
    consumers: int
    pending: int
    last_delivered_id: StreamID
    entries_read: int | None
    """None where it cannot be known by Redis's rules."""
    lag: int | None
    """Entries not yet delivered, by Redis's rules; None where these cannot tell."""


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """One consumer of XINFO CONSUMERS; times in milliseconds."""

    name: bytes
    pending: int
    idle: int
    """Since it last asked for anything."""
    inactive: int
    """Since something was last delivered to it; -1: never."""


class PendingDetail(NamedTuple):
    """One pending entry of XINFO STREAM FULL."""

    id: StreamID
    consumer: bytes
    delivery_time_ms: int
    deliveries: int


@dataclass(frozen=True, slots=True)
class ConsumerDetail:
    """One consumer of XINFO STREAM FULL; times are Unix milliseconds."""

    name: bytes
    seen_time_ms: int
    active_time_ms: int
    """-1: never."""
    pel_count: int
    pending: list[PendingDetail]


@dataclass(frozen=True, slots=True)
class GroupDetail:
    """One group of XINFO STREAM FULL."""

    name: bytes
    last_delivered_id: StreamID
    entries_read: int | None
    lag: int | None
    pel_count: int
    nacked_count: int
    pending: list[PendingDetail]
    consumers: list[ConsumerDetail]


@dataclass(frozen=True, slots=True)
class StreamDetail:
    """XINFO STREAM FULL."""

    info: StreamInfo
    entries: list[Entry]
    groups: list[GroupDetail]


@dataclass(frozen=True, slots=True)
class Fault:
    """One broken invariant that ``check`` found."""

    place: str
    """The key, group or row it is about."""
    message: str
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class UnfinishedLoad:
    """A load of a stream that is under way, or was interrupted and can be gone on with."""

    label: bytes
    """Empty where nobody can go on with it."""
    db: int
    key: bytes
    last: StreamID
    """The last entry that is there already."""
    entries: int
    begun_ms: int
