"""The interface between sources and targets: items, selections, and the protocols of both.

A source yields items one by one; the value of an item is read before the next item. A *ranged*
source, a store or a live server, can also return a single key at any time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kvstream.errors import KVStreamError, NoSuchKey
from kvstream.layout.values import encode_flat
from kvstream.rdb.streams import StreamReading
from kvstream.rdb.versions import Kind, Loss
from kvstream.types.clock import now_ms
from kvstream.types.glob import matcher
from kvstream.types.ids import PACKED
from kvstream.types.images import (
    ID_BYTES,
    NodeImage,
    PackedID,
    QueueRow,
    StreamState,
)
from kvstream.types.options import KEY_BYTES_MAX, STREAM_NODE_MAX_BYTES, STREAM_NODE_MAX_ENTRIES

_ENTRY_OVERHEAD = 9
"""Estimated bytes of an entry's flags, deltas and counts in a listpack."""

DbKey = tuple[int, bytes]
"""A database and a key."""
RawEntry = tuple[bytes, list[bytes]]
"""An entry in a reply: its ID as text, and field, value, field, value ..."""


def packed_id(text: bytes) -> PackedID:
    """Return the 16 bytes of an ID in its text form."""
    ms, _, seq = text.partition(b"-")
    return PACKED(int(ms), int(seq))


def nodes_of(entries: Iterable[RawEntry]) -> Iterator[NodeImage]:
    """Yield entries as nodes, which end about where those of Redis's defaults would.

    Their ``size`` is 0: that of the source's nodes is unknown.
    """
    ids: list[PackedID] = []
    values: list[bytes] = []
    first_names: list[bytes] = []
    size = shared = 0
    for text, flat in entries:
        value = encode_flat(flat)[0]
        names = flat[::2]
        # A field takes one or two extra bytes, in msgpack as in a listpack.
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
SUPPORTED = (STREAM, STRING)
"""The types of keys that kvstream has; keys of other types are a loss."""
LIBRARY = "function library"
"""The kind of a library of functions in plans and differences."""
STAGED_PREFIX = b"kvstream:migrate:"
"""Prefix of the keys under which streams are built at a server."""
JOURNAL_PREFIX = b"kvstream:follow:"
"""Prefix of the keys of followers' journals."""
OWN_PREFIXES = (STAGED_PREFIX, JOURNAL_PREFIX)
"""Prefixes of temporary keys that a migration keeps at its target, and never copies."""


def key_gone(key: bytes) -> NoSuchKey:
    """Return the error for a key that was deleted before it was read."""
    return NoSuchKey(f"{key!r} was deleted before it was read: run again")


class NotRead(KVStreamError):
    """The item is not a stream."""


class Outline(NamedTuple):
    """What is known of a stream without reading its entries."""

    entries: int
    bytes: Callable[[], int]
    """Returns the size of the stream, which takes a request or reads of its own."""
    state: StreamState
    notes: list[Loss]
    """What reading the stream will lose."""


Watch = Callable[[int, int], None]
"""Is called with the entries and bytes of each node that was read."""


def watch_nothing(entries: int, size: int) -> None:
    """Ignore what was read."""


class Content(ABC):
    """A stream that is being read, nodes first, and the losses of this way of reading."""

    tells_counters = True
    """Whether ``state`` has entries-added and the entries-read of groups."""

    def __init__(self) -> None:
        self.notes: list[Loss] = []
        """What is lost by reading it this way; complete after ``state``."""
        self.corrections: list[str] = []
        """Wrong counters of the source, which were counted again; complete after ``state``."""
        self.inexact_ms = 0
        """Error bound of delivery times; known after ``state``."""
        self.entries = self.bytes = 0
        """What was read so far."""
        self.watch: Watch = watch_nothing

    def nodes(self) -> Iterator[NodeImage]:
        """Yield the nodes, and count their entries and bytes."""
        for node in self._read():
            count = node.count
            size = node.value_bytes + ID_BYTES * count
            self.entries += count
            self.bytes += size
            yield node
            self.watch(count, size)

    @abstractmethod
    def _read(self) -> Iterator[NodeImage]: ...

    @abstractmethod
    def state(self) -> StreamState:
        """Return all but the entries, after the last node."""


Page = tuple[list[PackedID], list[bytes]]
"""IDs and stored values of entries, ascending."""


@dataclass(slots=True)
class Item:
    """A key of a source."""

    db: int
    """The number of its database."""
    key: bytes
    """Its name."""
    kind: str
    """The type, as TYPE names it."""
    expire_at_ms: int = 0
    """Unix milliseconds; 0: never."""
    inexact_ms: int = 0
    """Error bound of times that the source had to compute."""
    rereadable: bool = False
    """Whether the value can be read any number of times; else once, before the next item."""
    size: int = 0
    """Bytes of a value that is skipped, if the source tells."""
    is_repeated: bool = False
    """Whether a file has had the key before; no server loads such a file."""
    stream: Callable[[], Content] | None = None
    """Starts reading the stream."""
    value: Callable[[], bytes | None] | None = None
    """Reads the string; returns None if it was deleted meanwhile."""
    read_range: Callable[[PackedID, PackedID], Iterator[Page]] | None = None
    """Reads the entries from one ID to another; ranged sources only."""
    outline: Callable[[], Outline] | None = None
    """Returns the outline of the stream, if the source has it without reading all."""

    @property
    def is_expired(self) -> bool:
        """Whether the key has expired; a file may still contain it."""
        return bool(self.expire_at_ms and self.expire_at_ms <= now_ms())

    def content(self, watch: Watch = watch_nothing) -> Content:
        """Start to read the stream; NotRead if it is none."""
        if self.stream is None:
            raise NotRead(f"{self.key!r} is not a stream")
        content = self.stream()
        content.watch = watch
        return content


def keep_value(item: Item) -> None:
    """Read a string once, so that it can be looked at and then copied."""
    value = None if item.value is None else item.value()
    item.value, item.rereadable = lambda: value, True


def too_long(item: Item) -> Loss | None:
    """Return why kvstream cannot hold a key of such a long name; None if it can."""
    if len(item.key) <= KEY_BYTES_MAX:
        return None
    text = f"names of keys have at most {KEY_BYTES_MAX} bytes in kvstream"
    return Loss("long-names", 1, text, f"name of {len(item.key)} bytes")


class Source(Protocol):
    """A place that is read."""

    ranged: bool
    """Whether ``item`` and ``Item.read_range`` work."""
    may_lose: bool
    """Whether reading may lose a part of a stream."""
    has_queues: bool
    """Whether a stream may be a queue: it is a store or a server of kvstream."""
    remarks: list[str]
    """Messages about parts of the source that are not copied and belong to no key."""

    def size(self, selection: "Selection") -> int | None:
        """Return the amount to read, in the units of ``position``; None: unknown."""
        ...

    def position(self) -> int | None:
        """Return the amount read so far; None: count the entries."""
        ...

    def items(self, selection: "Selection") -> Iterator[Item]:
        """Yield the selected keys, each once, in the order of the place."""
        ...

    def item(self, db: int, key: bytes) -> Item | None:
        """Return one key, or None if it does not exist; ranged sources only."""
        ...

    def functions(self) -> list[bytes]:
        """Return the texts of the libraries of functions."""
        ...

    def refused_functions(self, libraries: Sequence[bytes]) -> Mapping[bytes, str]:
        """Return those of the libraries that cannot be loaded here, with the reasons."""
        ...

    def close(self) -> None:
        """Close the place."""
        ...


class Done(NamedTuple):
    """The result of writing a stream."""

    entries: int
    corrections: list[str]
    """Wrong counters, which were counted again."""
    resumed: int = 0
    """Entries that an earlier run had written."""


Consent = Callable[[list[Loss]], None]
"""Gets the losses of a key before it is visible; raises if one is not allowed."""


class PlannedTarget(Protocol):
    """A target that is only asked, not written."""

    @property
    def existing(self) -> Source | None:
        """Its present keys as a ranged source; None for a new place."""
        ...

    takes_keys_once: bool
    """Whether a key that comes twice spoils it: no server loads such a file."""
    remarks: list[str]
    """Messages about the target that are no losses."""
    may_lose: bool
    """Whether the target may be unable to hold a part of a stream."""
    has_queues: bool
    """Whether it takes what a stream has as a queue."""

    def find_exclusion(self, item: Item) -> Loss | None:
        """Return why the target cannot hold ``item`` at all; None if it can."""
        ...

    def losses(self, state: StreamState) -> list[Loss]:
        """Return the parts of a stream that the target cannot hold."""
        ...

    def refused_functions(self, libraries: Sequence[bytes]) -> Mapping[bytes, str]:
        """Return those of the libraries that the target cannot load, with the reasons."""
        ...

    def close(self) -> None:
        """Close the place; a file without ``finish`` is removed."""
        ...


class Target(PlannedTarget, Protocol):
    """A place that is written."""

    def reduce(self, state: StreamState) -> None:
        """Remove from a state what the target cannot hold."""
        ...

    def put_stream(
        self, item: Item, content: Content, *, label: bytes, replace: bool, consent: Consent
    ) -> Done:
        """Write ``content`` as the stream ``item``, which becomes visible as a whole.

        ``consent`` says which losses are accepted. An interrupted call with the same ``label``
        is resumed.
        """
        ...

    def put_string(self, item: Item, value: bytes, *, replace: bool) -> None:
        """Write the string ``item`` with its ``value``, over a key only with ``replace``."""
        ...

    def put_function(self, text: bytes, *, replace: bool) -> None:
        """Write ``text``, a library of functions; RequestError if the target refuses it."""
        ...

    def finish(self) -> None:
        """Make all keys durable and visible."""
        ...


@dataclass(frozen=True, slots=True)
class Selection:
    """The keys that a migration is about."""

    match: tuple[bytes, ...] = ()
    """Glob patterns, one of which must match; none: every key."""
    databases: frozenset[int] | None = None
    """None: all."""
    without: frozenset[DbKey] = frozenset()
    """Keys to exclude, each with its database."""
    _matchers: tuple[Callable[[bytes], bool], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_matchers", tuple(map(matcher, self.match)))

    def has(self, db: int, key: bytes) -> bool:
        """Return whether a key is selected; temporary keys of migrations never are."""
        if self.databases is not None and db not in self.databases:
            return False
        if key.startswith(OWN_PREFIXES) or (db, key) in self.without:
            return False
        return not self._matchers or any(fits(key) for fits in self._matchers)

    def has_database(self, db: int) -> bool:
        """Tell whether a database is selected."""
        return self.databases is None or db in self.databases

    def within(self, databases: int) -> "Selection":
        """Return the part of it in the first databases."""
        numbers = range(databases) if self.databases is None else self.databases
        kept = frozenset(db for db in numbers if db < databases)
        return Selection(self.match, kept, self.without)


class ReadStream(Content):
    """A stream of an RDB file or a DUMP payload: nothing is lost by reading it."""

    def __init__(self, reading: StreamReading, queue: list[QueueRow] | None = None) -> None:
        """``queue``: what the stream has as a queue, which no such format holds."""
        super().__init__()
        self.corrections = reading.corrections
        self.tells_counters = reading.kind >= Kind.COUNTERS
        self._reading = reading
        self._queue = queue

    def _read(self) -> Iterator[NodeImage]:
        return self._reading.nodes()

    def state(self) -> StreamState:
        state = self._reading.state()
        state.queue = self._queue
        return state
