"""One transaction: the rows that a command reads and changes, on their way to one commit.

A transaction never commits itself; the engine does. It hands out the catalog's objects, which are
changed in place; ``counters_changed`` and ``record_changed`` put their records into the batch. If
it fails after a change, the catalog drops everything that it has in memory.
"""

from collections.abc import Collection, Iterable
from struct import error as StructError
from typing import TYPE_CHECKING

from kvstream.errors import Corruption, NoSuchKey, quoted
from kvstream.layout.keys import key_of
from kvstream.meta.key_events import OVERWRITTEN, TYPE_CHANGED, Event
from kvstream.meta.records import ConsumerMeta, GroupMeta, StreamMeta
from kvstream.meta.strings import Key, StringMeta
from kvstream.meta.wakeups import Wake
from kvstream.storage.batch import Batch, Family, Rows
from kvstream.types.ids import StreamID

if TYPE_CHECKING:  # a circle: the catalog loads what a transaction asks it for
    from kvstream.meta.catalog import Catalog

_METADATA, _TREES = Family.METADATA, Family.TREES
_ADDED = Wake.ADDED


class Txn:
    """The state of one transaction."""

    __slots__ = (
        "_awaited",
        "_known",
        "_members",
        "_streams",
        "_strings",
        "batch",
        "catalog",
        "events",
        "expiry_ms",
        "failed",
        "frees",
        "groups_dropped",
        "keeps_expired",
        "missing",
        "now_ms",
        "only_redelivered",
        "read_only",
        "signals",
        "thresholds",
        "unwritten",
        "wanted_events",
    )

    def __init__(
        self,
        rows: Rows,
        catalog: "Catalog",
        now_ms: int,
        awaited: Collection[bytes] = (),
        read_only: bool = False,
    ) -> None:
        self.batch = Batch(rows)
        self.catalog = catalog
        self.thresholds = catalog.thresholds
        """The sizes at which a command takes another form."""
        self.now_ms = now_ms
        """The time of the whole transaction."""
        self.expiry_ms = now_ms
        """Keys that expire at or before this time are gone.

        It is ``now_ms``, except on a replica, whose master decides what has expired.
        """
        self.read_only = read_only
        """The store cannot be written: reads delete nothing."""
        self.keeps_expired = read_only
        """Expired keys are skipped, not deleted; nothing is created in their place."""
        self.failed = False
        """A command failed after a change: the transaction must not be committed."""
        self.frees = False
        """The transaction makes the store smaller: allowed when the disk is nearly full."""
        self.groups_dropped = 0
        """Groups that were deleted with their streams."""
        self.only_redelivered = False
        """The call changed nothing but the deliveries of entries that it showed once more."""
        self.signals: dict[bytes, Wake] = {}
        """Names whose blocked clients look again after the commit, in order, and why."""
        self.unwritten: dict[bytes, StreamID] = {}
        """By the prefix of a stream's rows: no entry above this ID is committed yet. Only streams
        for which clients are blocked are noted."""
        self.missing: set[bytes] = set()
        """Names that this call looked up and did not find, for keyspace_misses."""
        self.wanted_events = catalog.wanted_events
        """The classes of keyspace events that are noted, as bits; 0: none."""
        self.events: list[tuple[Event, bytes]] = []
        """Events and the names of their keys; whoever publishes some takes them out."""
        self._awaited = awaited
        """The names on which clients are blocked."""
        self._known, self._strings = catalog.streams, catalog.strings
        self._streams: dict[bytes, StreamMeta] = {}
        self._members: dict[bytes, GroupMeta | ConsumerMeta] = {}

    def reset(self, now_ms: int, read_only: bool) -> None:
        """Make a committed transaction ready for the next one, which is cheaper than a new one."""
        self.now_ms = self.expiry_ms = now_ms
        self.frees = self.only_redelivered = False
        self.groups_dropped = 0
        self.read_only = self.keeps_expired = read_only
        self.wanted_events = self.catalog.wanted_events
        if self.events:
            self.events = []  # the former ones may still be in use
        if self.signals:
            self.signals = {}  # the former ones may still be in use
        if self.unwritten:
            self.unwritten.clear()
        if self.missing:
            self.missing.clear()

    def stream(self, name: bytes) -> StreamMeta | None:
        """Return the stream of a name, or None; raise WrongType for a key of another type."""
        stream = self._known.get(name)
        if stream is None or stream.expire_at:
            return self.catalog.stream(self, name)
        return stream

    def existing_stream(self, name: bytes) -> StreamMeta:
        """Return the stream of a name; raise NoSuchKey if there is none."""
        stream = self.stream(name)
        if stream is None:
            raise NoSuchKey().with_detail(f"there is no stream {quoted(key_of(name))}")
        return stream

    def string(self, name: bytes) -> StringMeta | None:
        """Return the string of a name, or None; raise WrongType for a key of another type."""
        string = self._strings.get(name)
        if string is None or string.expire_at:
            return self.catalog.string(self, name)
        return string

    def key(self, name: bytes) -> Key | None:
        """Return the key of a name, of any type, or None."""
        return self.catalog.key(self, name)

    def allocate(self) -> int:
        """Allocate a number for a tree or a generation."""
        return self.catalog.numbers.reserve(self)

    def counters_changed(self, stream: StreamMeta) -> None:
        """Write the part of the stream's record that changes often."""
        self._streams[stream.row] = stream

    def record_changed(self, stream: StreamMeta) -> None:
        """Write the whole record of a stream."""
        stream.forget_cold_part()
        self._streams[stream.row] = stream

    def member_changed(self, member: GroupMeta | ConsumerMeta) -> None:
        """Write the record of a group or consumer."""
        self._members[member.row] = member

    def forget_stream(self, stream: StreamMeta) -> None:
        self._streams.pop(stream.row, None)

    def forget_member(self, member: GroupMeta | ConsumerMeta) -> None:
        self._members.pop(member.row, None)
        self.catalog.seen.pop(member.row, None)

    def forget_members(self, prefix: bytes) -> None:
        """Forget all members whose rows begin with ``prefix``, loaded or not."""
        for known in (self._members, self.catalog.seen):
            for row in [row for row in known if row.startswith(prefix)]:
                del known[row]

    def notify(self, event: Event, name: bytes) -> None:
        """Note a keyspace event, if its class is wanted."""
        if self.wanted_events & event.bit:
            self.events.append((event, name))

    def notify_stream(self, event: Event, stream: StreamMeta) -> None:
        """Note a keyspace event of a stream, if its class is wanted."""
        if self.wanted_events & event.bit:
            self.events.append((event, self.catalog.databases.shown_name(self, stream.name)))

    def notify_overwritten(self, name: bytes, old: Key | None, kind: type[Key]) -> None:
        """Note that a key of some ``kind`` has taken the place of another one, if there was one."""
        if old is not None:
            self.notify(OVERWRITTEN, name)
            if not isinstance(old, kind):
                self.notify(TYPE_CHANGED, name)

    def signal(self, name: bytes, reason: Wake) -> None:
        """Wake the clients blocked on a name after the commit; the last reason counts."""
        if name in self._awaited:
            self.signals[name] = reason

    def signal_added(self, name: bytes, stream: StreamMeta, last: StreamID) -> None:
        """Wake the clients blocked on a stream; ``last`` was its last ID before new entries."""
        if name in self._awaited:
            self.signals[name] = _ADDED
            self.unwritten.setdefault(stream.prefix, last)

    def signal_some(self, names: Iterable[bytes], reason: Wake) -> None:
        """Wake the clients blocked on any of the names; read none if no client is blocked."""
        if self._awaited:
            for name in names:
                self.signal(name, reason)

    def signal_all(self, prefix: bytes, reason: Wake) -> None:
        """Wake the clients blocked on names that begin with ``prefix``."""
        self.signals |= {name: reason for name in self._awaited if name.startswith(prefix)}

    @property
    def dirty(self) -> bool:
        """Return whether anything has been changed so far."""
        puts, batch = self.batch.puts, self.batch
        rows = puts[0] or puts[1] or puts[2] or batch.ranges or batch.deferred
        return bool(rows or self._streams or self._members)

    def finish(self) -> Batch | None:
        """Put the changed records into the batch and return it, or None if nothing was changed."""
        batch = self.batch
        if self._streams:
            puts = batch.puts[_METADATA]
            for row, stream in self._streams.items():
                try:
                    puts[row] = stream.encode()
                except StructError as error:
                    raise Corruption(
                        f"stream {key_of(stream.name)!r} has impossible counts"
                    ) from error
                stream.unrecorded_entries = 0
            self._streams.clear()
        elif not (self._members or batch):
            return None
        seen = self.catalog.seen
        if seen:
            self._members.update(seen)
            seen.clear()
        if self._members:
            puts = batch.puts[_TREES]
            for row, member in self._members.items():
                try:
                    puts[row] = member.encode()
                except StructError as error:
                    kind = type(member).__name__.removesuffix("Meta").lower()
                    raise Corruption(f"{kind} {member.name!r} has impossible counts") from error
            self._members.clear()
        return batch

    def write_seen(self) -> None:
        """Write the seen times that have changed."""
        for consumer in self.catalog.seen.values():
            self.member_changed(consumer)

    def abandon(self, changed: bool) -> None:
        """Undo the transaction in memory; ``changed``: an object may have changed unmarked."""
        if changed or self._streams or self._members or self.batch:
            self.catalog.forget()
