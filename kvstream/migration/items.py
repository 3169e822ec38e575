"""Keys on their way: what every source gives and every target takes.

A source yields items one by one; what an item holds is read before the next is asked for. Sources
that can be asked for one key at any time are *ranged*: stores and live servers.

Pages of entries as nodes, where a source does not show the nodes that it keeps.

They end about where those of a Redis with its usual settings would: their sizes are estimated, as
whoever keeps nodes measures them. It knows no source.

A stream as an RDB file or a DUMP has it: nothing is lost by reading it so.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kvstream.errors import KVStreamError
from kvstream.layout.values import encode_flat
from kvstream.rdb.streams import StreamReading
from kvstream.rdb.versions import Kind, Loss
from kvstream.types.clock import NANOSECONDS_PER_MS
from kvstream.types.glob import matcher
from kvstream.types.ids import PACKED
from kvstream.types.images import ID_BYTES, NodeImage, PackedID, StreamSource, StreamState
from kvstream.types.options import STREAM_NODE_MAX_BYTES, STREAM_NODE_MAX_ENTRIES

_ENTRY_OVERHEAD = 9
"""Bytes of an entry's flags, deltas and counts in a listpack, in most streams."""

RawEntry = tuple[bytes, list[bytes]]
"""An entry as a server replies it: its ID as text, and field, value, field, value ..."""


def packed_id(text: bytes) -> PackedID:
    """Return the 16 bytes of an ID in its text form."""
    ms, _, seq = text.partition(b"-")
    return PACKED(int(ms), int(seq))


def nodes_of(entries: Iterable[RawEntry]) -> Iterator[NodeImage]:
    """Yield entries as nodes; ``size`` is 0, since the node that the source has is not known."""
    ids: list[PackedID] = []
    values: list[bytes] = []
    first_names: list[bytes] = []
    size = shared = 0
    for text, flat in entries:
        value = encode_flat(flat)[0]
        names = flat[::2]
        # A field takes a byte or two beside its bytes, in msgpack as in a listpack.
        length = len(value) + _ENTRY_OVERHEAD - (shared if names == first_names else 0)
        if ids and (size + length > STREAM_NODE_MAX_BYTES or len(ids) == STREAM_NODE_MAX_ENTRIES):
            yield _image(first_names, ids, values)
            ids, values = [], []
        if not ids:
            first_names, shared = names, sum(map(len, names)) + len(names)
            size, length = 0, len(value) + _ENTRY_OVERHEAD
        size += length
        ids.append(packed_id(text))
        values.append(value)
    if ids:
        yield _image(first_names, ids, values)


def _image(names: list[bytes], ids: list[PackedID], values: list[bytes]) -> NodeImage:
    return NodeImage(ids[0], tuple(names), ids, values, len(ids), 0)


STREAM, STRING = "stream", "string"
CARRIED = (STREAM, STRING)
"""The kinds of keys that kvstream has; all others are named and skipped."""
OWN_PREFIXES = (b"kvstream:migrate:", b"kvstream:follow:")
"""Open the names of keys that a migration keeps at its target while it lasts."""


def now_ms() -> int:
    """Return the Unix time in milliseconds."""
    return time.time_ns() // NANOSECONDS_PER_MS


class NotRead(KVStreamError):
    """A source was asked for what only a read stream can tell."""


class Outline(NamedTuple):
    """What there is to say of a stream before it is carried."""

    entries: int
    bytes: int
    state: StreamState
    notes: list[Loss]
    """What reading it this way loses."""


class Content(StreamSource, Protocol):
    """A stream being read, and what this way of reading it cannot tell."""

    @property
    def tells_counters(self) -> bool:
        """Whether ``state`` surely tells how many entries were added, and what groups have read."""
        ...

    @property
    def notes(self) -> list[Loss]:
        """What is lost by reading it this way; complete after ``state``."""
        ...

    @property
    def corrections(self) -> list[str]:
        """What its source told wrongly, and was counted anew; complete after ``state``."""
        ...

    @property
    def inexact_ms(self) -> int:
        """By how much times of delivery may be off; known after ``state``."""
        ...


Watch = Callable[[int, int], None]
Page = tuple[list[PackedID], list[bytes]]
"""IDs and stored values of entries, ascending."""


@dataclass(slots=True)
class Item:
    """A key of a source."""

    db: int
    key: bytes
    kind: str
    """TYPE's word for it."""
    expire_at_ms: int = 0
    """Unix milliseconds; 0: never."""
    inexact_ms: int = 0
    """By how much times may be off that this source had to calculate."""
    again: bool = False
    """Whether what it holds can be read any number of times; else once, before the next item."""
    size: int = 0
    """Bytes of a value that is skipped, where the source tells."""
    stream: Callable[[], Content] | None = None
    """Begin to read the stream."""
    value: Callable[[], bytes | None] | None = None
    """Read the string; None: it has gone meanwhile."""
    between: Callable[[PackedID, PackedID], Iterator[Page]] | None = None
    """Read the entries from one ID to another; ranged sources only."""
    outline: Callable[[], Outline] | None = None
    """Say what there is without reading it all, where the source can."""

    @property
    def is_over(self) -> bool:
        """Whether the key's time has come: a file may still have it."""
        return bool(self.expire_at_ms and self.expire_at_ms <= now_ms())

    def content(self) -> Content:
        if self.stream is None:
            raise NotRead(f"{self.key!r} is no stream")
        return self.stream()


class Source(Protocol):
    """A place that is read."""

    ranged: bool
    """Whether ``item`` and ``Item.between`` work."""
    may_lose: bool
    """Whether there are streams that it cannot read whole."""
    remarks: list[str]
    """What was met there that is not carried and belongs to no key."""

    def size(self, selection: "Selection") -> int | None:
        """Return how much there is to read, in the units of ``position``; None: nobody knows."""
        ...

    def position(self) -> int | None:
        """Return how much has been read; None where that is the entries that have come."""
        ...

    def items(self, selection: "Selection") -> Iterator[Item]:
        """Yield the keys selected, each once, in the order of the place."""
        ...

    def item(self, db: int, key: bytes) -> Item | None:
        """Return one key, None where it is not there; ranged sources only."""
        ...

    def close(self) -> None: ...


class Done(NamedTuple):
    """What became of a stream at its target."""

    entries: int
    corrections: list[str]
    """Counters that were wrong, and have been counted anew."""
    resumed: int = 0
    """Entries that an earlier run had brought there already."""


Consent = Callable[[list[Loss]], None]
"""Told what is lost of a key before any of it can be seen; raises where that is not allowed."""


class Reception(Protocol):
    """What a target says before it is written."""

    @property
    def existing(self) -> Source | None:
        """What is there already, as a ranged source; None where the place is made anew."""
        ...

    def losses(self, state: StreamState) -> list[Loss]:
        """Return what of a stream does not arrive."""
        ...

    def close(self) -> None:
        """Let go of the place; without ``finish`` an unfinished file is not left behind."""
        ...


class Target(Reception, Protocol):
    """A place that is written."""

    may_lose: bool
    """Whether there are streams that it cannot hold whole."""

    def put_stream(
        self, item: Item, content: Content, *, label: bytes, replace: bool, consent: Consent
    ) -> Done:
        """Write a stream, which is seen whole or not at all.

        What an interrupted call with the same ``label`` has written is gone on with.
        """
        ...

    def put_string(self, item: Item, value: bytes, *, replace: bool) -> None: ...

    def finish(self) -> None:
        """Make all that was put there durable, and visible."""
        ...


@dataclass(frozen=True, slots=True)
class Selection:
    """Which keys a migration is about."""

    match: tuple[bytes, ...] = ()
    """Redis patterns, of which one must fit; none: every key."""
    databases: frozenset[int] | None = None
    """None: all."""
    without: frozenset[tuple[int, bytes]] = frozenset()
    """Keys by their databases that are left to others."""
    _matchers: tuple[Callable[[bytes], bool], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_matchers", tuple(map(matcher, self.match)))

    def has(self, db: int, key: bytes) -> bool:
        """Tell whether a key is selected; those that migrations keep for themselves never are."""
        if self.databases is not None and db not in self.databases:
            return False
        if key.startswith(OWN_PREFIXES) or (db, key) in self.without:
            return False
        return not self._matchers or any(fits(key) for fits in self._matchers)

    def has_database(self, db: int) -> bool:
        return self.databases is None or db in self.databases


class Counted:
    """A stream whose entries are counted on their way."""

    def __init__(self, content: Content, watch: Watch = lambda entries, bytes: None) -> None:
        """``watch`` is told of the entries and bytes of each node."""
        self.entries = self.bytes = 0
        self._content = content
        self._watch = watch

    @property
    def tells_counters(self) -> bool:
        return self._content.tells_counters

    @property
    def notes(self) -> list[Loss]:
        return self._content.notes

    @property
    def corrections(self) -> list[str]:
        return self._content.corrections

    @property
    def inexact_ms(self) -> int:
        return self._content.inexact_ms

    def nodes(self) -> Iterator[NodeImage]:
        for node in self._content.nodes():
            count = node.count
            size = node.value_bytes + ID_BYTES * count
            self.entries += count
            self.bytes += size
            yield node
            self._watch(count, size)

    def state(self) -> StreamState:
        return self._content.state()


class ReadStream:
    """A stream as a file or a payload has it."""

    def __init__(self, reading: StreamReading) -> None:
        self.notes: list[Loss] = []
        self.inexact_ms = 0
        self.tells_counters = reading.kind >= Kind.COUNTERS
        self._reading = reading

    def nodes(self) -> Iterator[NodeImage]:
        return self._reading.nodes()

    def state(self) -> StreamState:
        return self._reading.state()

    @property
    def corrections(self) -> list[str]:
        return self._reading.corrections
