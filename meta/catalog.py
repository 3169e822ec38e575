"""Keep the metadata objects of keys in memory, and load and delete their rows.

Objects are loaded on first use, shared by all transactions, changed in place under the engine's
lock, and written by the transaction that changed them. Tree IDs and generations come from one
persisted counter and are never used twice::

    allocator row := "A" -> u64        the next number

Entries are only appended, trimmed at the head, or deleted from the middle. A command that reads a
stream in steps sees the first two in the stream's record; ``Deletions`` reports the third.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from weakref import ref

from kvstream.errors import Corruption, WrongType, quote
from kvstream.layout.keys import (
    ALLOCATOR_KEY,
    U16,
    U64,
    database_of,
    decode_number,
    key_of,
    qualified,
    scan_row,
    stream_row,
    successor,
    tree_prefix,
)
from kvstream.meta.changeset import Changeset
from kvstream.meta.deleted_keys import Flushed, Unlinked, encode_unlinked
from kvstream.meta.events.keys import EXPIRED, NEW
from kvstream.meta.events.queues import QueueEvents
from kvstream.meta.filling import catch_up
from kvstream.meta.keyed import Keyed
from kvstream.meta.keyspace import Databases, KeyIndex, Usage
from kvstream.meta.records import ConsumerMeta, GroupMeta, StreamMeta
from kvstream.meta.reply_cache import ReplyCache
from kvstream.meta.runs import run_tree
from kvstream.meta.strings import Key, StringMeta, decode_key
from kvstream.meta.trees import key_tree
from kvstream.meta.wakeups import Wake, Wakeups
from kvstream.storage.batch import Family
from kvstream.storage.reads import Snapshot
from kvstream.types.ids import StreamID
from kvstream.types.options import Limits, StoreOptions
from kvstream.types.thresholds import DEFAULT, Thresholds


class DeletionWatch:
    """Record the entries deleted from one stream after the watch began."""

    def __init__(self, stream: StreamMeta) -> None:
        self.stream = stream
        self._before = stream.deletions
        self._noted: list[Sequence[StreamID]] = []

    def record(self, ids: Sequence[StreamID]) -> None:
        self._noted.append(ids)

    def holds(self, stream: StreamMeta | None) -> bool:
        """Return whether this is still the same stream and every deletion was recorded."""
        return stream is self.stream and stream.deletions == self._before + len(self._noted)

    def deleted_ids(self) -> set[StreamID]:
        """Return the IDs that were deleted."""
        return set().union(*self._noted)


class Deletions:
    """Report deleted entries to the watches of their streams."""

    def __init__(self) -> None:
        self.watches: set[ref[DeletionWatch]] = set()

    def watch(self, stream: StreamMeta) -> DeletionWatch:
        """Record deletions from a stream for as long as the caller keeps the watch."""
        watch = DeletionWatch(stream)
        self.watches.add(ref(watch, self.watches.discard))
        return watch

    def report(self, stream: StreamMeta, ids: Sequence[StreamID]) -> None:
        """Count one deletion of entries and report it to the stream's watches."""
        stream.deletions += 1
        for reference in list(self.watches):
            if (watch := reference()) is not None and watch.stream is stream:
                watch.record(ids)


def recall_activity(group: GroupMeta, consumer: ConsumerMeta) -> None:
    """Take a consumer's times from the group's record if these are newer than its own."""
    activity = group.activity
    if activity.name == consumer.name and activity.is_known and consumer.activity < activity.number:
        consumer.seen_ms = consumer.active_ms = activity.at_ms
        consumer.activity = activity.number


def forget_activity(group: GroupMeta, consumer: ConsumerMeta) -> None:
    """Remove a deleted consumer from the group's record of the last active one."""
    if group.activity.name == consumer.name:
        group.activity.clear()


_METADATA = Family.METADATA


class Allocator:
    """Allocate numbers; those of a failed transaction are not used again."""

    __slots__ = ("_first_free", "_next")

    def __init__(self) -> None:
        self._next = 0
        """The next number; 0 if the row is still to be read."""
        self._first_free = 1
        """Above every number allocated since the store was opened, used or not."""

    def take(self, txn: Changeset, count: int) -> range:
        """Return ``count`` consecutive numbers."""
        first = self.reserve(txn, count)
        return range(first, first + count)

    def reserve(self, txn: Changeset, count: int = 1) -> int:
        """Return the first of ``count`` consecutive numbers."""
        first = self._next
        if not first:
            value = txn.batch.get(_METADATA, ALLOCATOR_KEY)
            first = max(self._first_free, decode_number(ALLOCATOR_KEY, value, missing=1))
        self._next = self._first_free = first + count
        txn.batch.puts[_METADATA][ALLOCATOR_KEY] = U64.pack(first + count)
        return first

    def forget(self) -> None:
        """Read the row again at the next call."""
        self._next = 0


_TREES, _MESSAGES = Family.TREES, Family.MESSAGES
_HIDDEN_NAME = b"kvstream:gone:"
"""The name of a renamed stream, before its generation.

If a client has such a key, all groups are deleted at once.
"""


class Catalog:
    """The metadata objects in memory and the rows behind them."""

    def __init__(self, options: StoreOptions, thresholds: Thresholds = DEFAULT) -> None:
        self.limits = Limits.of(options)
        self.thresholds = thresholds
        self.seen: dict[bytes, ConsumerMeta] = {}
        """Consumers whose seen time changed after their record was written."""
        self.expired = self.expired_unasked = 0
        """Keys that expired since the store was opened; those of them that no command named."""
        self.wanted_events = 0
        """The classes of keyspace events that transactions note, as bits."""
        self.streams: dict[bytes, StreamMeta] = {}
        """The streams in memory, by the names that callers use."""
        self.strings: dict[bytes, StringMeta | bytes] = {}
        """The strings in memory, by the same names; each change writes the row. Of a plain one that
        only SET, INCR and GET have used, the record alone."""
        self.over_key_limit = False
        """More keys are in memory than may be: evict some once no change is unwritten."""
        self.repeats_write = False
        """The transaction reports a write of before as done: it waits until that is durable."""
        self.disk_full = False
        """Writes wait for disk space: trims delete their rows at once."""
        self.uncounted: set[bytes] = set()
        """Prefixes that may have uncounted rows above their last entry (``unfinished_loads``)."""
        self.queue_events = QueueEvents()
        self.wakeups = Wakeups()
        self.retained: dict[bytes, None] = {}
        """Names of streams in memory that may have rules of retention, in the order of checks."""
        self.with_turns: set[bytes] = set()
        """Names of streams that may have a group whose keys take turns; appends sort for them."""
        self.reply_cache = ReplyCache()
        """Encoded replies of entries that were read lately."""
        self.libraries: Mapping[bytes, bytes] | None = None
        """The texts of the function libraries by name (``functions``); None: not read."""
        self.timers_taken: dict[int, bytes] = {}
        """By queue tree: where reads of timers begin, if some of the first millisecond fired."""
        self.flushed, self.unlinked = Flushed(), Unlinked()
        self.databases, self.deletions = Databases(), Deletions()
        self.index = KeyIndex(self.unlinked, self.databases, Usage(thresholds.used_keys))
        self.numbers = Allocator()

    def cache_replies(self, cache: ReplyCache) -> None:
        """Keep encoded replies in ``cache`` from now on."""
        self.reply_cache = cache

    def allocate(self, txn: Changeset) -> int:
        """Allocate a number for a tree or a generation."""
        return self.numbers.reserve(txn)

    def shown_name(self, txn: Changeset, name: bytes) -> bytes:
        """Return the name that callers use for a stored name."""
        return self.databases.shown_name(txn, name)

    def set_due(self, txn: Changeset, stream: StreamMeta, at_ms: int) -> None:
        """Set when the first timer of a stream is due; 0 means never."""
        self.index.set_due(txn, stream, at_ms)

    # --- keys -----------------------------------------------------------------------------------

    def stream(self, txn: Changeset, name: bytes) -> StreamMeta | None:
        """Return the stream of a name, or None if there is none or it has expired."""
        stream = self.streams.get(name)
        if stream is None or 0 < stream.expire_at <= txn.expiry_ms:
            key = self.key(txn, name)
            if isinstance(key, StringMeta):
                raise WrongType().with_detail(f"{quote(key_of(name))} is a string, not a stream")
            return key
        return stream

    def string(self, txn: Changeset, name: bytes) -> StringMeta | None:
        """Return the string of a name, or None if there is none or it has expired."""
        key = self.key(txn, name)
        if isinstance(key, StreamMeta):
            raise WrongType().with_detail(f"{quote(key_of(name))} is a stream, not a string")
        return key

    def key(self, txn: Changeset, name: bytes) -> Key | None:
        """Return the key of a name, of any type, or None if there is none or it has expired."""
        key = self.streams.get(name) or self.strings.get(name) or self._load(txn, name)
        if isinstance(key, bytes):
            key = self._unpack(txn, name, key)
        if key is not None and not 0 < key.expire_at <= txn.expiry_ms:
            return key
        txn.missing.add(name)
        if key is not None and not txn.keeps_expired:
            self.expired += 1
            self.drop(txn, key)
            txn.notify(EXPIRED, name)
            txn.signal(name, Wake.EXPIRED)
        return None

    def _unpack(self, txn: Changeset, name: bytes, record: bytes) -> StringMeta:
        """Return the string of a record that is in memory, and keep it in the record's place."""
        string = StringMeta.decode(self.databases.stored_name(txn, name), record)
        self.strings[name] = string
        return string

    def _load(self, txn: Changeset, name: bytes) -> Key | None:
        key = self._stored_key(txn, name)
        if key is None or self.is_gone(txn, key):
            return None
        if isinstance(key, StreamMeta) and key.prefix not in self.uncounted:
            catch_up(txn.batch, key)
        self._keep(name, key)
        return key

    def _stored_key(self, txn: Changeset, name: bytes) -> Key | None:
        stored = self.databases.stored_name(txn, name)
        record = txn.batch.get(_METADATA, stream_row(stored))
        return None if record is None else decode_key(stored, record)

    def _keep(self, name: bytes, key: Key) -> None:
        sizes = self.thresholds
        if isinstance(key, StreamMeta):
            self.streams[name] = key
            if key.queue_tree:
                self.retained[name] = None
            if len(self.streams) > sizes.streams_cached:
                self.over_key_limit = True
        elif len(key.value) <= sizes.string_bytes_cached:
            if len(self.strings) < 2 * sizes.strings_cached:
                self.strings[name] = key
            if len(self.strings) > sizes.strings_cached:
                self.over_key_limit = True  # one commit may add many before it evicts some

    def peek(self, txn: Changeset, name: bytes) -> Key | None:
        """Return what ``key`` does, but load and delete nothing; its counts may lag behind."""
        key = self._known(txn, name) or self._stored_key(txn, name)
        return None if key is None or 0 < key.expire_at <= txn.expiry_ms else key

    def _known(self, txn: Changeset, name: bytes) -> Key | None:
        """Return a key that is in memory, and leave it as it is there."""
        key = self.streams.get(name) or self.strings.get(name)
        if isinstance(key, bytes):
            return StringMeta.decode(self.databases.stored_name(txn, name), key)
        return key

    def peek_all(self, txn: Changeset, names: Sequence[bytes]) -> Iterator[Key]:
        """Yield the keys of many names, with their counts; load and delete nothing."""
        stored = [self.databases.stored_name(txn, name) for name in names]
        records = txn.batch.get_many(_METADATA, [stream_row(name) for name in stored])
        snapshot = txn.batch.copy_onto(partial(Snapshot, families=(_MESSAGES,)))  # by one iterator
        for name, row, record in zip(names, stored, records, strict=True):
            key = self._known(txn, name)
            if key is None and record is not None:
                key = decode_key(row, record)
                if isinstance(key, StreamMeta) and key.prefix not in self.uncounted:
                    catch_up(snapshot, key)
            if key is not None and not 0 < key.expire_at <= txn.expiry_ms:
                yield key

    def create_stream(self, txn: Changeset, name: bytes, expire_at: int = 0) -> StreamMeta:
        """Create an empty stream under a name that is free; ``expire_at`` 0: it never expires."""
        stored = self.databases.stored_name(txn, name)
        number = self.numbers.reserve(txn, 2)
        stream = StreamMeta(stored, number)
        stream.nodes_tree, stream.expire_at = number + 1, expire_at
        self.add_stream(txn, name, stream)
        return stream

    def add_stream(self, txn: Changeset, name: bytes, stream: StreamMeta) -> None:
        """Add a new stream, with its stored name, under a name that is free."""
        self.drop_gone(txn, stream.name)
        self._keep(name, stream)
        txn.record_changed(stream)
        self.index.add(txn, stream)
        if txn.wanted_events:
            txn.notify(NEW, name)

    def create_string(
        self, txn: Changeset, name: bytes, value: bytes, expire_at: int = 0, is_new: bool = True
    ) -> StringMeta:
        """Create a string under a name that is free; ``is_new``: it was free before the command."""
        stored = self.databases.stored_name(txn, name)
        self.drop_gone(txn, stored)
        generation = self.numbers.reserve(txn)
        string = StringMeta(stored, stream_row(stored), generation, b"", expire_at)
        txn.batch.puts[_METADATA][string.row] = string.put(txn, value)
        self.index.add(txn, string)
        self._keep(name, string)
        if is_new and txn.wanted_events:
            txn.notify(NEW, name)
        return string

    def write(self, txn: Changeset, key: Key) -> None:
        """Write the whole record of a key."""
        if isinstance(key, StreamMeta):
            txn.record_changed(key)
        else:
            txn.batch.puts[_METADATA][key.row] = key.encode()

    def rewrite(self, txn: Changeset, string: StringMeta, value: bytes | None = None) -> None:
        """Write a string whose value has changed, or with a new one; keep no long one in memory."""
        if self.index.watches:
            self.index.report_change(string)
        record = string.encode() if value is None else string.put(txn, value)
        txn.batch.puts[_METADATA][string.row] = record
        if len(string.value) > self.thresholds.string_bytes_cached:
            self.strings.pop(self.databases.shown_name(txn, string.name), None)

    def drop(self, txn: Changeset, key: Key) -> None:
        """Delete a key of any type, in time that does not depend on its size."""
        if isinstance(key, StreamMeta):
            if not self._unlink_stream(txn, key):
                self.drop_stream(txn, key)
        else:
            txn.frees = True
            key.drop_pieces(txn.batch)
            self.unlist(txn, key)

    def _unlink_stream(self, txn: Changeset, stream: StreamMeta) -> bool:
        """Rename a stream with many groups, for the sweep to delete; return False if it has few."""
        dropped = txn.groups_dropped + stream.groups_count
        sizes = self.thresholds
        if stream.groups_count <= sizes.groups_together and dropped <= sizes.groups_of_commit:
            txn.groups_dropped = dropped
            return False
        db, generation = database_of(stream.name), stream.generation
        hidden = qualified(db, _HIDDEN_NAME + U64.pack(generation))
        txn.frees = True
        txn.finish()  # no later commit may write a record of its groups
        if txn.batch.get(_METADATA, stream_row(hidden)) is not None:
            return False
        self.reply_cache.forget(stream.prefix)
        self.unlist(txn, stream)
        stream.name, stream.row, stream.expire_at = hidden, stream_row(hidden), 0
        self.index.report_change(stream)  # a command may be about to create a key of that name
        txn.record_changed(stream)
        txn.finish()
        txn.batch.put(_METADATA, scan_row(db, generation), key_of(hidden))
        if not self.is_gone(txn, stream):  # otherwise it is due to be swept already
            self.unlinked.add(txn, dict([encode_unlinked(db, [generation])]), {generation})
        return True

    def drop_stream(self, txn: Changeset, stream: StreamMeta) -> None:
        """Delete a stream with all its rows, in time that does not depend on its entries."""
        txn.frees = True
        self._drop_trees(txn, stream)
        self.reply_cache.forget(stream.prefix)
        self._drop_messages(txn, stream)
        self.unlist(txn, stream)

    def _drop_trees(self, txn: Changeset, stream: StreamMeta) -> None:
        for group in list(self.groups(txn, stream)):
            self._drop_group_trees(txn, group)
        for tree in (stream.groups_tree, stream.idmp_tree, stream.queue_tree):
            if tree:
                key_tree(tree, self.thresholds).drop(txn.batch)
        if stream.has_closed_nodes:
            nodes = tree_prefix(stream.nodes_tree)
            txn.batch.delete_range(_TREES, nodes, successor(nodes))

    def _drop_messages(self, txn: Changeset, stream: StreamMeta) -> None:
        """Delete messages: row by row if there are few, otherwise as a range."""
        prefix, upper = stream.prefix, successor(stream.prefix)
        most = self.thresholds.range_rows
        if stream.length + stream.unswept < most and prefix not in self.uncounted:
            for key, _ in txn.batch.page(_MESSAGES, prefix, upper, most):
                txn.batch.delete(_MESSAGES, key)
        else:
            txn.batch.delete_range(_MESSAGES, prefix, upper)

    def drop_flushed(self, txn: Changeset, key: Key) -> None:
        """Delete all rows of a flushed key except its messages."""
        if isinstance(key, StreamMeta):
            with suppress(Corruption):  # ``check`` reports the rows that are left
                self._drop_trees(txn, key)
            txn.forget_stream(key)
        txn.batch.delete(_METADATA, key.row)
        self.index.remove(txn, key, counted=False)

    def unlist(self, txn: Changeset, key: Key) -> None:
        """Free the name of a key; remove the key from the orders of SCAN and of expiry."""
        name = self.databases.shown_name(txn, key.name)
        if isinstance(key, StreamMeta):
            self.streams.pop(name, None)
            txn.forget_stream(key)
        else:
            self.strings.pop(name, None)
        txn.batch.delete(_METADATA, key.row)
        self.index.remove(txn, key, counted=not self.is_gone(txn, key))

    def rename(self, txn: Changeset, key: Key, name: bytes) -> None:
        """Move a key to a name that is free; the other rows of a stream stay where they are."""
        stored = self.databases.stored_name(txn, name)
        self.drop_gone(txn, stored)
        self.unlist(txn, key)
        key.name, key.row = stored, stream_row(stored)
        self._keep(name, key)
        self.index.add(txn, key)
        self.write(txn, key)
        txn.notify(NEW, name)

    def set_expiry(self, txn: Changeset, key: Key, at_ms: int) -> None:
        """Set when a key expires, in milliseconds of Unix time; 0 means never."""
        self.index.set_expiry(txn, key, at_ms)
        self.write(txn, key)

    # --- whole databases ------------------------------------------------------------------------

    def swap(self, txn: Changeset, one: int, other: int) -> None:
        """Exchange all keys of two databases, in time that does not depend on their number."""
        txn.write_seen()
        self.evict_database(txn, one, Wake.REPLACED)
        self.evict_database(txn, other, Wake.REPLACED)
        self.databases.swap(txn, one, other)

    def evict_database(self, txn: Changeset, db: int, reason: Wake) -> None:
        """Write and evict a database's objects in memory; wake the clients blocked on its keys."""
        txn.finish()
        self.reply_cache.clear()
        self.index.break_watches()
        prefix = U16.pack(db)
        for known in (self.streams, self.strings):
            for name in [name for name in known if name[:2] == prefix]:
                del known[name]
        txn.signal_all(prefix, reason)

    def is_gone(self, txn: Changeset, key: Key) -> bool:
        """Return whether a key was deleted by a command that leaves its rows for later."""
        return key.generation in self.unlinked.generations(txn)

    def drop_gone(self, txn: Changeset, name: bytes) -> None:
        """Delete the rows that a deleted key left under a stored name."""
        if self.unlinked.generations(txn):
            key = self.find_deleted(txn, name, txn.batch.get(_METADATA, stream_row(name)))
            if key is not None:
                self.drop_rows_of(txn, key)

    def find_deleted(self, txn: Changeset, name: bytes, record: bytes | None) -> Key | None:
        """Return the deleted key whose record is still under a stored name; None if there is none.

        A record that cannot be decoded is deleted; ``check`` reports the other rows of that key.
        """
        if record is None:
            return None
        try:
            key = decode_key(name, record)
        except Corruption:
            txn.batch.delete(_METADATA, stream_row(name))
            return None
        return key if self.is_gone(txn, key) else None

    def drop_rows_of(self, txn: Changeset, key: Key, swept: bool = False) -> None:
        """Delete the rows of a deleted key; ``swept``: all of them, however many groups it has."""
        try:
            if isinstance(key, StreamMeta):
                catch_up(txn.batch, key)
            if isinstance(key, StreamMeta) and swept:
                self.drop_stream(txn, key)
            else:
                self.drop(txn, key)
        except Corruption:  # ``check`` reports the rows that are left
            txn.batch.delete(_METADATA, key.row)

    # --- groups and consumers -------------------------------------------------------------------

    def group(self, txn: Changeset, stream: StreamMeta, name: bytes) -> GroupMeta | None:
        group = stream.groups.get(name)
        if group is None and stream.groups_tree:
            row = tree_prefix(stream.groups_tree) + name
            record = txn.batch.get(_TREES, row)
            if record is not None:
                group = stream.groups[name] = GroupMeta.decode(name, row, record, self.thresholds)
                if group.policy is not None and group.policy.keyed_tree:
                    group.keyed = Keyed(stream, group.policy.keyed_tree, self.thresholds)
        return group

    def groups(self, txn: Changeset, stream: StreamMeta, first: bytes = b"") -> Iterator[GroupMeta]:
        """Yield the groups of a stream from the name ``first`` on, sorted by name."""
        known = stream.groups
        names = self._names(txn, stream.groups_tree, known, stream.groups_count)
        for name in names[bisect_left(names, first) :]:
            group = known.get(name) or self.group(txn, stream, name)
            if group is not None:
                yield group

    def _names(
        self, txn: Changeset, tree: int, known: Mapping[bytes, object], count: int
    ) -> list[bytes]:
        if len(known) == count:  # all are in memory
            return sorted(known)
        prefix = tree_prefix(tree)
        rows = txn.batch.scan(_TREES, prefix, successor(prefix))
        return sorted({key[U64.size :] for key, _ in rows} | known.keys())

    def create_group(self, txn: Changeset, stream: StreamMeta, name: bytes) -> GroupMeta:
        if not stream.groups_tree:
            stream.groups_tree = txn.allocate()
        consumers, runs, times = (txn.allocate() for _ in range(3))
        row = tree_prefix(stream.groups_tree) + name
        group = GroupMeta(
            name,
            row,
            consumers,
            run_tree(runs, self.thresholds, new=True),
            key_tree(times, self.thresholds, new=True),
        )
        stream.groups[name] = group
        stream.groups_count += 1
        txn.record_changed(stream)
        txn.member_changed(group)
        return group

    def drop_group(self, txn: Changeset, stream: StreamMeta, group: GroupMeta) -> None:
        self._drop_group_trees(txn, group)
        txn.batch.delete(_TREES, group.row)
        stream.groups.pop(group.name, None)
        stream.groups_count -= 1
        txn.record_changed(stream)

    def _drop_group_trees(self, txn: Changeset, group: GroupMeta) -> None:
        for consumer in list(self.consumers(txn, group)) if group.indexed else ():
            consumer.runs.drop(txn.batch)
        txn.forget_members(tree_prefix(group.consumers_tree))
        key_tree(group.consumers_tree, self.thresholds).drop(txn.batch)
        for tree in (group.runs, group.times) if group.indexed else (group.runs,):  # else empty
            tree.drop(txn.batch)
        if group.policy is not None and group.policy.keyed_tree:
            key_tree(group.policy.keyed_tree, self.thresholds).drop(txn.batch)
        txn.forget_member(group)

    def consumer(self, txn: Changeset, group: GroupMeta, name: bytes) -> ConsumerMeta | None:
        consumer = group.consumers.get(name)
        if consumer is None and group.consumers_count:
            row = tree_prefix(group.consumers_tree) + name
            record = txn.batch.get(_TREES, row)
            if record is not None:
                consumer = ConsumerMeta.decode(name, row, record, self.thresholds)
                group.consumers[name] = consumer
                recall_activity(group, consumer)
        return consumer

    def owner(self, txn: Changeset, group: GroupMeta, name: bytes) -> ConsumerMeta:
        """Return the consumer that a pending entry names."""
        consumer = self.consumer(txn, group, name)
        if consumer is None:
            raise Corruption(f"group {group.name!r} has pending entries of no consumer {name!r}")
        return consumer

    def consumers(self, txn: Changeset, group: GroupMeta) -> Iterator[ConsumerMeta]:
        """Yield all consumers of a group, sorted by name."""
        for name in self._names(txn, group.consumers_tree, group.consumers, group.consumers_count):
            consumer = self.consumer(txn, group, name)
            if consumer is not None:
                yield consumer

    def create_consumer(self, txn: Changeset, group: GroupMeta, name: bytes) -> ConsumerMeta:
        row = tree_prefix(group.consumers_tree) + name
        tree = key_tree(txn.allocate(), self.thresholds, new=True)
        consumer = group.consumers[name] = ConsumerMeta(name, row, tree, txn.now_ms)
        group.consumers_count += 1
        txn.member_changed(group)
        txn.member_changed(consumer)
        return consumer

    def drop_consumer(self, txn: Changeset, group: GroupMeta, consumer: ConsumerMeta) -> None:
        """Delete a consumer that has no pending entry left."""
        consumer.runs.drop(txn.batch)
        txn.batch.delete(_TREES, consumer.row)
        txn.forget_member(consumer)
        forget_activity(group, consumer)
        group.consumers.pop(consumer.name, None)
        group.consumers_count -= 1
        txn.member_changed(group)

    def note_activity(self, txn: Changeset, group: GroupMeta, consumer: ConsumerMeta) -> None:
        """Mark a consumer as active now in the group's record; its own is not written."""
        activity = group.activity
        if activity.name != consumer.name:
            former = self.consumer(txn, group, activity.name) if activity.is_known else None
            if former is not None:
                txn.member_changed(former)
            activity.name = consumer.name
        activity.number += 1
        activity.at_ms = consumer.seen_ms = consumer.active_ms = txn.now_ms
        consumer.activity = activity.number
        self.seen.pop(consumer.row, None)
        txn.member_changed(group)

    # --- upkeep ---------------------------------------------------------------------------------

    def forget(self) -> None:
        """Evict everything: a failed transaction may have changed it."""
        self.streams.clear()
        self.strings.clear()
        self.seen.clear()
        self.reply_cache.clear()
        self.libraries = None
        self.timers_taken.clear()
        self.flushed.forget()
        self.unlinked.forget()
        self.databases.forget()
        self.index.forget()
        self.numbers.forget()

    def evict(self) -> None:
        """Evict a tenth of the keys, so that no call takes long; no change may be unwritten."""
        sizes = self.thresholds
        limits = (self.streams, sizes.streams_cached), (self.strings, sizes.strings_cached)
        for known, most in limits:
            if len(known) > most:
                for name in list(islice(known, len(known) - most * 9 // 10)):
                    del known[name]
        self.over_key_limit = False
