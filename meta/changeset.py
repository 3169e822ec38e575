"""What a transaction has changed: rows, records of metadata objects, and names to wake.

The modules below the catalog read and change their rows through a changeset. Objects are changed in
place; ``counters_changed`` and ``record_changed`` put their records into the batch. ``Txn``
(``txn.py``) adds the catalog's keys, which commands need.
"""

from collections.abc import Collection, Iterator
from struct import error as StructError
from typing import Literal, Protocol

from kvstream.errors import Corruption
from kvstream.layout.keys import key_of
from kvstream.meta.compiled import plain
from kvstream.meta.events.keys import Event
from kvstream.meta.records import ConsumerMeta, GroupMeta, StreamMeta
from kvstream.meta.strings import Key
from kvstream.meta.wakeups import Wake
from kvstream.storage.batch import Batch, Family, Rows
from kvstream.types.options import Limits
from kvstream.types.thresholds import Thresholds

_MESSAGES, _METADATA, _TREES = Family.MESSAGES, Family.METADATA, Family.TREES


class Metadata(Protocol):
    """The metadata objects of a store, which the catalog has."""

    thresholds: Thresholds
    limits: Limits
    wanted_events: int
    streams: dict[bytes, StreamMeta]
    seen: dict[bytes, ConsumerMeta]
    timers_taken: dict[int, bytes]

    def allocate(self, txn: "Changeset") -> int: ...

    def shown_name(self, txn: "Changeset", name: bytes) -> bytes: ...

    def set_due(self, txn: "Changeset", stream: StreamMeta, at_ms: int) -> None: ...

    def peek(self, txn: "Changeset", name: bytes) -> Key | None: ...

    def consumers(self, txn: "Changeset", group: GroupMeta) -> Iterator[ConsumerMeta]: ...

    def owner(self, txn: "Changeset", group: GroupMeta, name: bytes) -> ConsumerMeta: ...


class Changeset:
    """The changes of one transaction, and reads that see them."""

    __slots__ = (
        "_members",
        "_streams",
        "awaited",
        "batch",
        "catalog",
        "events",
        "expiry_ms",
        "frees",
        "groups_dropped",
        "keeps_expired",
        "missing",
        "now_ms",
        "signals",
        "thresholds",
        "wanted_events",
    )

    def __init__(
        self,
        rows: Rows,
        catalog: Metadata,
        now_ms: int,
        awaited: Collection[bytes] = (),
        keeps_expired: bool = False,
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
        self.keeps_expired = keeps_expired
        """Expired keys are skipped, not deleted; nothing is created in their place."""
        self.frees = False
        """The transaction makes the store smaller: allowed when the disk is nearly full."""
        self.groups_dropped = 0
        """Groups that were deleted with their streams."""
        self.signals: dict[bytes, Wake] = {}
        """Names whose blocked clients look again after the commit, in order, and why."""
        self.missing: set[bytes] = set()
        """Names that this call looked up and did not find, for keyspace_misses."""
        self.wanted_events = catalog.wanted_events
        """The classes of keyspace events that are noted, as bits; 0: none."""
        self.events: list[tuple[Event, bytes]] = []
        """The noted events and the names of their keys; a publisher removes those it publishes."""
        self.awaited = awaited
        """The names on which clients are blocked."""
        self._streams: dict[bytes, StreamMeta] = {}
        self._members: dict[bytes, GroupMeta | ConsumerMeta] = {}

    def allocate(self) -> int:
        """Allocate a number for a tree or a generation."""
        return self.catalog.allocate(self)

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

    def signal(self, name: bytes, reason: Wake) -> None:
        """Wake the clients blocked on a name after the commit; the last reason counts."""
        if name in self.awaited:
            self.signals[name] = reason

    def signal_all(self, prefix: bytes, reason: Wake) -> None:
        """Wake the clients blocked on names that begin with ``prefix``."""
        self.signals |= {name: reason for name in self.awaited if name.startswith(prefix)}

    def finish(self) -> Batch | None:
        """Put the changed records into the batch and return it, or None if nothing was changed."""
        if plain is not None:
            finished: Batch | Literal[False] | None = plain.finish(self)
            if finished is not False:
                return finished
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
        elif not (batch.puts[_MESSAGES] or self._members or batch):  # most add a message
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
