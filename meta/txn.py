"""One transaction: what a command reads and changes, on its way to one commit.

A transaction never commits itself; the engine does. It adds the keys of the catalog to a
changeset. If it fails after a change, the catalog drops everything that it has in memory.
"""

from collections.abc import Collection, Iterable

from kvstream.errors import NoSuchKey, quote
from kvstream.layout.keys import key_of
from kvstream.meta.catalog import Allocator, Catalog
from kvstream.meta.changeset import Changeset
from kvstream.meta.compiled import plain, plain_strings
from kvstream.meta.deleted_keys import Unlinked
from kvstream.meta.events.keys import OVERWRITTEN, TYPE_CHANGED, Event
from kvstream.meta.keyspace import Databases, KeyIndex
from kvstream.meta.records import Activity, ConsumerMeta, GroupMeta, Node, StreamMeta
from kvstream.meta.reply_cache import Readahead
from kvstream.meta.runs import Run
from kvstream.meta.strings import PLAIN_HEAD, Key, StringMeta
from kvstream.meta.trees import SortedKeys, SortedRows, Tree
from kvstream.meta.wakeups import Wake
from kvstream.storage.batch import Batch, Rows
from kvstream.types.ids import StreamID
from kvstream.types.options import Limits
from kvstream.types.thresholds import Thresholds

_ADDED = Wake.ADDED


class Txn(Changeset):
    """The state of one transaction."""

    __slots__ = (
        "_keys",
        "_known",
        "_strings",
        "failed",
        "only_redelivered",
        "read_only",
        "unwritten",
    )

    catalog: Catalog

    def __init__(
        self,
        rows: Rows,
        catalog: Catalog,
        now_ms: int,
        awaited: Collection[bytes] = (),
        read_only: bool = False,
    ) -> None:
        super().__init__(rows, catalog, now_ms, awaited, keeps_expired=read_only)
        self.read_only = read_only
        """The store cannot be written: reads delete nothing."""
        self.failed = False
        """A command failed after a change: the transaction must not be committed."""
        self.only_redelivered = False
        """The call only delivered pending entries again; it changed nothing else."""
        self.unwritten: dict[bytes, StreamID] = {}
        """The last committed ID of each stream that got entries and has blocked clients, by the
        prefix of its rows."""
        self._known, self._strings = catalog.streams, catalog.strings
        self._keys = catalog.index, catalog.numbers, catalog.databases, catalog.unlinked
        """What compiled code needs to create a key."""

    def reset(self, now_ms: int, read_only: bool) -> None:
        """Make a committed transaction ready for the next one, which is cheaper than a new one."""
        if plain is not None and plain.reset(self, now_ms, read_only):
            return
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
            raise NoSuchKey().with_detail(f"there is no stream {quote(key_of(name))}")
        return stream

    def string(self, name: bytes) -> StringMeta | None:
        """Return the string of a name, or None; raise WrongType for a key of another type."""
        string = self._strings.get(name)
        if type(string) is not StringMeta or string.expire_at:
            return self.catalog.string(self, name)
        return string

    def find_string(self, name: bytes) -> StringMeta | bytes | None:
        """Return the value of a plain string if its record is in memory; else as ``string``."""
        record = self._strings.get(name)
        return record[PLAIN_HEAD:] if isinstance(record, bytes) else self.string(name)

    def key(self, name: bytes) -> Key | None:
        """Return the key of a name, of any type, or None."""
        return self.catalog.key(self, name)

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

    def signal_added(self, name: bytes, stream: StreamMeta, last: StreamID) -> None:
        """Wake the clients blocked on a stream; ``last`` was its last ID before new entries."""
        if name in self.awaited:
            self.signals[name] = _ADDED
            self.unwritten.setdefault(stream.prefix, last)

    def signal_some(self, names: Iterable[bytes], reason: Wake) -> None:
        """Wake the clients blocked on any of the names; read none if no client is blocked."""
        if self.awaited:
            for name in names:
                self.signal(name, reason)

    @property
    def dirty(self) -> bool:
        """Return whether anything has been changed so far."""
        return bool(self._streams or self._members or self.batch)

    def abandon(self, changed: bool) -> None:
        """Undo the transaction in memory; ``changed``: an object may have changed unmarked."""
        if changed or self._streams or self._members or self.batch:
            self.catalog.forget()


if plain is not None:
    plain.bind(
        *(Txn, Batch, Limits, Thresholds, StreamMeta, Node, GroupMeta, ConsumerMeta),
        *(Activity, Readahead, Tree, SortedRows, SortedKeys, Run.encode),
    )
if plain_strings is not None:
    plain_strings.bind(Txn, Batch, Thresholds, StringMeta, Allocator, Databases, Unlinked, KeyIndex)
