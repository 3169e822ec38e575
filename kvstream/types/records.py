"""The results of reads, with Redis's names; IDs are StreamIDs.

``S`` is the type of names, field names and values: bytes, or str in a store opened with
``decode=True``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TypeAlias

from kvstream.errors import show
from kvstream.surface import where_field_is
from kvstream.types.ids import StreamID, Ticket

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers have it: before Python 3.13, defaults

    S = TypeVar("S", bound=bytes | str, default=bytes)
else:
    from typing import TypeVar

    S = TypeVar("S", bound=bytes | str)


Fields: TypeAlias = dict[S, S]
"""The fields of an entry in their order; a repeated field keeps its last value here."""


class EntryFields(dict[S, S]):
    """Fields that were read; a name of the wrong type is explained."""

    __slots__ = ()

    def __missing__(self, name: object) -> S:
        """Raise KeyError, which explains a name of text where names are bytes, or vice versa."""
        own = next(map(type, self), None)
        if type(name) is str and own is bytes:
            other = repr(name.encode("utf-8", "surrogateescape"))
            raise KeyError(
                f"no field {show(name)}: names and values are bytes here; use {other}, or open "
                "the store with decode=True"
            )
        if type(name) is bytes and own is str:
            text = show(name.decode("utf-8", "replace"))
            raise KeyError(
                f"no field {show(name)}: the store was opened with decode=True; use {text}"
            )
        raise KeyError(name)


class RepeatedFields(EntryFields[S]):
    """The fields of an entry with a repeated field name."""

    __slots__ = ("flat",)

    def __init__(self, flat: tuple[S, ...]) -> None:
        super().__init__(zip(flat[::2], flat[1::2], strict=True))
        self.flat = flat

    def __reduce__(self) -> tuple[type, tuple[tuple[S, ...]]]:
        return type(self), (self.flat,)


def fields_of(flat: Sequence[S]) -> EntryFields[S]:
    """Return the fields of field, value, field, value ...; a name may repeat."""
    fields: EntryFields[S] = EntryFields(zip(flat[::2], flat[1::2], strict=True))
    return fields if 2 * len(fields) == len(flat) else RepeatedFields(tuple(flat))


def flat_of(fields: Fields[S]) -> tuple[S, ...]:
    """Return field, value, field, value ... in order, repeated fields included."""
    if isinstance(fields, RepeatedFields):
        return fields.flat
    return tuple(chain.from_iterable(fields.items()))


class Entry(NamedTuple, Generic[S]):
    """One message of a stream."""

    id: StreamID
    """Its ID, which has its time."""
    fields: Fields[S]
    """Names and values, in their order."""
    idle_ms: int | None = None
    """Milliseconds since the previous delivery; only after a read with CLAIM, and None if it was
    given back."""
    deliveries: int | None = None
    """Number of previous deliveries; only after a read with CLAIM."""

    @property
    def flat(self) -> tuple[S, ...]:
        """Field, value, field, value ... in order, repeated fields included."""
        return flat_of(self.fields)

    @property
    def pairs(self) -> tuple[tuple[S, S], ...]:
        """The (field, value) pairs in order, repeated fields included."""
        flat = self.flat
        return tuple(zip(flat[::2], flat[1::2], strict=True))


_TIMES = ("time", "timestamp", "datetime", "ms")


def _explain_attribute(entry: "AnyEntry", name: str) -> NoReturn:
    hint = "" if name.startswith("_") else where_field_is(entry.fields, name)
    if name in _TIMES and not hint.startswith(": use"):
        hint = ": its time is .id.ms, in Unix milliseconds"
    raise AttributeError(
        f"{type(entry).__name__!r} object has no attribute {name!r}{hint}",
        name=name,
        obj=entry,
    )


def _item(entry: "AnyEntry", at: Any) -> Any:
    """Return a member of the tuple; explain the name of a field."""
    if isinstance(at, str | bytes):
        where = where_field_is(entry.fields, at)
        raise TypeError(f"{type(entry).__name__!r} object has no item {show(at)}{where}")
    return tuple.__getitem__(entry, at)


if not TYPE_CHECKING:  # a checker would take every name; a NamedTuple has no other base class
    Entry.__getattr__, Entry.__getitem__ = _explain_attribute, _item


_new_entry = partial(tuple.__new__, Entry)


def clear_deliveries(entries: Iterable[Entry]) -> list[Entry]:
    """Return entries with idle time 0 and no deliveries: those that were not delivered before."""
    return [_new_entry((eid, fields, 0, 0)) for eid, fields, _, _ in entries]


class BareEntry(NamedTuple):
    """An entry without its fields, as a claim with ``justid`` returns it."""

    id: StreamID
    """Its ID."""
    fields: None = None
    """Always None."""
    idle_ms: int | None = None
    """As in an Entry."""
    deliveries: int | None = None
    """As in an Entry."""

    @property
    def flat(self) -> tuple[bytes, ...]:
        """Nothing: the entry was deleted."""
        return ()

    @property
    def pairs(self) -> tuple[tuple[bytes, bytes], ...]:
        """Nothing: the entry was deleted."""
        return ()


if not TYPE_CHECKING:
    BareEntry.__getattr__, BareEntry.__getitem__ = _explain_attribute, _item


class DeletedEntry(BareEntry):
    """A pending entry whose message has been deleted; ``fields`` is None."""

    __slots__ = ()


HistoryEntry: TypeAlias = Entry[S] | DeletedEntry
"""An entry in a read of pending entries."""
AnyEntry: TypeAlias = Entry | BareEntry


class PendingEntry(NamedTuple, Generic[S]):
    """One row of XPENDING's extended form."""

    id: StreamID
    """The ID of the entry."""
    consumer: S
    """Empty if XNACK has released the entry."""
    idle_ms: int | None
    """Milliseconds since the last delivery; None if XNACK has released the entry."""
    deliveries: int
    """How often it was delivered."""


@dataclass(frozen=True, slots=True)
class PendingSummary(Generic[S]):
    """XPENDING's summary form."""

    count: int
    """The number of pending entries of the group."""
    min_id: StreamID | None
    """The first pending ID; None if nothing is pending."""
    max_id: StreamID | None
    """The last pending ID; None if nothing is pending."""
    consumers: dict[S, int]
    """The number of pending entries of each consumer that has any."""


class Claimed(NamedTuple, Generic[S]):
    """The result of XAUTOCLAIM."""

    cursor: StreamID
    """Start of the next call; 0-0 at the end of the list."""
    entries: list[Entry[S]]
    """The claimed entries."""
    deleted: list[StreamID]
    """Pending IDs of deleted messages, which were removed from the list."""


class ClaimedIDs(NamedTuple):
    """The result of XAUTOCLAIM with ``justid``: as ``Claimed``, without fields."""

    cursor: StreamID
    """Start of the next call; 0-0 at the end of the list."""
    entries: list[BareEntry]
    """The claimed entries, without their fields."""
    deleted: list[StreamID]
    """Pending IDs of deleted messages, which were removed from the list."""


@dataclass(frozen=True, slots=True)
class StreamInfo(Generic[S]):
    """XINFO STREAM."""

    length: int
    """The number of entries."""
    radix_tree_keys: int
    """Nodes of the stream, as Redis groups its entries."""
    radix_tree_nodes: int
    """Nodes of the tree that Redis would have above them."""
    last_generated_id: StreamID
    """The last ID that an entry got; the next one is greater."""
    max_deleted_entry_id: StreamID
    """The greatest ID that was deleted; 0-0: none."""
    entries_added: int
    """How many entries were ever added."""
    recorded_first_entry_id: StreamID
    """The ID of the first entry; 0-0 if there is none."""
    idmp_duration: int
    """Seconds for which idempotent IDs are remembered."""
    idmp_maxsize: int
    """The most idempotent IDs that are remembered of each producer."""
    pids_tracked: int
    """Producers of which idempotent IDs are remembered."""
    iids_tracked: int
    """Idempotent IDs that are remembered."""
    iids_added: int
    """Entries that were ever added with an idempotent ID."""
    iids_duplicates: int
    """Additions that were left out, since their idempotent ID was remembered."""
    groups: int
    """The number of consumer groups."""
    first_entry: Entry[S] | None
    """The first entry; None if there is none."""
    last_entry: Entry[S] | None
    """The last entry; None if there is none."""


@dataclass(frozen=True, slots=True)
class GroupInfo(Generic[S]):
    """One group of XINFO GROUPS."""

    name: S
    """The name of the group."""
    consumers: int
    """The number of its consumers."""
    pending: int
    """The number of its pending entries."""
    last_delivered_id: StreamID
    """The ID after which the next read of new entries begins."""
    entries_read: int | None
    """None if unknown by Redis's rules."""
    lag: int | None
    """Entries not yet delivered; None if unknown by Redis's rules."""


@dataclass(frozen=True, slots=True)
class ConsumerInfo(Generic[S]):
    """One consumer of XINFO CONSUMERS; times in milliseconds."""

    name: S
    """The name of the consumer."""
    pending: int
    """The number of its pending entries."""
    idle: int
    """Milliseconds since its last command."""
    inactive: int | None
    """Milliseconds since it last got an entry; -1: never; None: unknown on a Redis before 7.2."""


class PendingDetail(NamedTuple, Generic[S]):
    """One pending entry of XINFO STREAM FULL."""

    id: StreamID
    """The ID of the entry."""
    consumer: S
    """Who has it; empty if XNACK has released the entry."""
    delivery_time_ms: int
    """When it was last delivered, in Unix milliseconds; 0 if XNACK has released it."""
    deliveries: int
    """How often it was delivered."""


@dataclass(frozen=True, slots=True)
class ConsumerDetail(Generic[S]):
    """One consumer of XINFO STREAM FULL; times are Unix milliseconds."""

    name: S
    """The name of the consumer."""
    seen_time_ms: int
    """When it last sent a command."""
    active_time_ms: int
    """-1: never."""
    pel_count: int
    """The number of its pending entries."""
    pending: list[PendingDetail[S]]
    """The first of them, as many as were asked for."""


@dataclass(frozen=True, slots=True)
class GroupDetail(Generic[S]):
    """One group of XINFO STREAM FULL."""

    name: S
    """The name of the group."""
    last_delivered_id: StreamID
    """The ID after which the next read of new entries begins."""
    entries_read: int | None
    """How many entries it has read; None if unknown by Redis's rules."""
    lag: int | None
    """Entries not yet delivered; None if unknown by Redis's rules."""
    pel_count: int
    """The number of its pending entries."""
    nacked_count: int
    """Those of them that XNACK has released."""
    pending: list[PendingDetail[S]]
    """The first pending entries, as many as were asked for."""
    consumers: list[ConsumerDetail[S]]
    """Its consumers, by name."""


@dataclass(frozen=True, slots=True)
class StreamDetail(Generic[S]):
    """XINFO STREAM FULL."""

    info: StreamInfo[S]
    """The counters of the stream."""
    entries: list[Entry[S]]
    """The first entries, as many as were asked for."""
    groups: list[GroupDetail[S]]
    """Its groups, by name."""


class KeyInfo(NamedTuple, Generic[S]):
    """A key with its type, counters and expiry."""

    key: S
    """The name of the key."""
    type: str
    """``"stream"`` or ``"string"``; of a Redis, also other types."""
    length: int | None
    """None if the key is not a stream; so are the next two fields."""
    groups: int | None
    """The number of consumer groups."""
    last_id: StreamID | None
    """The last ID that an entry got."""
    ttl: float | None
    """Seconds until the key expires; None if it does not."""
    lag: int | None = None
    """Entries that the slowest group has yet to read; None if unknown, or there is no group."""
    size: int | None = None
    """An estimate of the bytes of the key's rows, as MEMORY USAGE."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A broken invariant found by ``check``."""

    place: str
    """The key, group or row."""
    message: str
    """What is wrong there."""
    repaired: bool = False
    """Whether this ``check`` has mended it."""


@dataclass(frozen=True, slots=True)
class UnfinishedLoad:
    """A load of a stream that is running, or was interrupted."""

    label: bytes
    """Resumes the load; empty if it cannot be resumed."""
    db: int
    """The number of the database."""
    key: bytes
    """The name of the stream."""
    last: StreamID
    """The last entry loaded."""
    entries: int
    """The number of entries loaded."""
    begun_ms: int
    """When it began, in Unix milliseconds."""


# --- queues ---------------------------------------------------------------------------------------


class Outcome(IntEnum):
    """The result of XDELEX and XACKDEL for one ID."""

    MISSING = -1
    """No such entry; in XACKDEL: not pending in the group."""
    DELETED = 1
    KEPT = 2
    """Not deleted, because a group still refers to it (ACKED)."""


class LeaseOutcome(IntEnum):
    """What became of one message in a batch that was acknowledged, given back or extended."""

    DONE = 1
    NOT_PENDING = 0
    """It was acknowledged before, or moved to the dead letters."""
    LOST = -1
    """It was given back, or delivered again after its lease had ended."""


class DeadLetter(NamedTuple, Generic[S]):
    """A message that a queue has given up."""

    id: StreamID
    """Its ID in the stream of the dead letters, which ``redrive`` takes."""
    fields: Fields[S]
    """The fields of the message."""
    origin: S
    """The key of the stream that it comes from."""
    origin_id: StreamID
    """The ID that it had there."""
    group: S
    """The group that has given it up."""
    consumer: S
    """The consumer that had it last; empty if none had it."""
    deliveries: int
    """How often it was delivered."""
    reason: str
    """``"max-deliveries"``, ``"fatal"`` or ``"expired"``."""
    at: datetime
    """When it was given up, in UTC."""
    error: S
    """The error of its last try; empty if none was given."""
    traceback: S
    """The traceback of that error; empty if none was given."""


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """How many messages a queue has, by their state."""

    ready: int
    """For the next readers: not delivered yet, given back, or with a lease that has ended."""
    delayed: int
    """Added with a delay, and not due yet."""
    leased: int
    """With consumers, whose leases have not ended."""
    waiting: int
    """Given back, to be repeated after a delay."""
    held: int
    """Waiting for another message of their key (``order_by``)."""
    dead: int
    """In the stream of the dead letters; those of other queues there do not count."""
    oldest_age: float | None
    """Seconds since the oldest message that is not done was added; None if there is none."""
    paused: bool
    """Whether the queue gives out nothing."""


@dataclass(frozen=True, slots=True)
class RedriveInfo(Generic[S]):
    """What a redrive of dead letters has done, or would do."""

    state: str
    """``"running"``, ``"done"``, ``"cancelled"``, ``"failed"`` or ``"dry-run"``."""
    moved: int
    """How many messages were moved back, or would be."""
    skipped: int
    """Entries that stay, since they name no stream to go back to."""
    streams: dict[S, int]
    """How many were moved to each of the first 100 streams."""
    error: str
    """Why it failed."""


class DelayedMessage(NamedTuple, Generic[S]):
    """A message that is not in its stream yet."""

    ticket: Ticket
    """Its name, which has the time when it is due."""
    fields: Fields[S]
    """The fields of the message."""


@dataclass(frozen=True, slots=True)
class Schedule(Generic[S]):
    """A message that is added at the times of a cron expression."""

    name: S
    """Its name in the stream."""
    cron: str
    """The cron expression."""
    tz: str
    """The time zone of the expression, such as ``Europe/Berlin``; UTC by default."""
    misfire: str
    """``"skip"``, ``"once"`` or ``"all"``: what becomes of times that have passed."""
    most: int
    """How many messages ``"all"`` adds at once."""
    next: datetime | None
    """None: it has stopped."""
    last: datetime | None
    """The planned time of the last message; None: there was none."""
    error: str
    """Why it has stopped."""
    fields: Fields[S]
    """The fields of each message."""
