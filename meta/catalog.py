"""The catalog: which keys exist, and the metadata objects of those in use.

Objects are loaded on first use, shared by all transactions, changed in place under the engine's
lock, and written by the transaction that changed them. Tree IDs and generations come from one
persisted allocator and are never used twice.

What is deleted of streams while long commands look at them bit by bit.

Entries are only ever appended, trimmed at the head, or deleted from the middle. Who looks at a
stream between the commits of others sees the first two in its record; the third is told here.

Consumers that are active: what a group's record tells of the last one (meta/records.py).

The numbers of generations and trees: from one persisted counter, and never given out twice.

::

    allocator row := "A" -> u64        the next number
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from weakref import WeakSet

from kvstream.errors import Corruption, WrongType
from kvstream.layout.keys import (
    ALLOCATOR_KEY,
    U16,
    U64,
    database_bounds,
    database_of,
    decode_number,
    key_count_row,
    stream_row,
    successor,
    tree_prefix,
)
from kvstream.meta import unfinished_loads
from kvstream.meta.filling import Limits, catch_up
from kvstream.meta.keyspace import Databases, KeyIndex
from kvstream.meta.lazyfree import Bounds, Doomed, Flushed, bury
from kvstream.meta.records import ConsumerMeta, GroupMeta, StreamMeta
from kvstream.meta.reply_cache import Hot
from kvstream.meta.runs import Run
from kvstream.meta.strings import Key, StringMeta, decode_key
from kvstream.meta.trees import DELETE_RANGE_ROWS, Tree, as_is
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family
from kvstream.types.ids import StreamID
from kvstream.types.options import StoreOptions


class ErasureWatch:
    """The entries that were deleted from one stream since somebody began to look at it."""

    def __init__(self, stream: StreamMeta) -> None:
        self.stream = stream
        self._before = stream.erased
        self._noted: list[Sequence[StreamID]] = []

    def note(self, ids: Sequence[StreamID]) -> None:
        self._noted.append(ids)

    def holds(self, stream: StreamMeta) -> bool:
        """Tell whether it is still that stream, and its last ID was not set back."""
        return stream is self.stream and stream.erased == self._before + len(self._noted)

    def erased(self) -> set[StreamID]:
        """Return what was deleted."""
        return set().union(*self._noted)


class Erasures:
    """Those who are told of deletions."""

    def __init__(self) -> None:
        self._watches: WeakSet[ErasureWatch] = WeakSet()

    def watch(self, stream: StreamMeta) -> ErasureWatch:
        """Have what is deleted of a stream told to who keeps what is returned."""
        watch = ErasureWatch(stream)
        self._watches.add(watch)
        return watch

    def note(self, stream: StreamMeta, ids: Sequence[StreamID]) -> None:
        """Count one deletion of entries of a stream, and tell of it."""
        stream.erased += 1
        if self._watches:
            for watch in self._watches:
                if watch.stream is stream:
                    watch.note(ids)


def note(txn: Txn, group: GroupMeta, consumer: ConsumerMeta) -> None:
    """Have a group's record tell that a consumer is active now; its own then need not."""
    told = group.activity
    if told.name != consumer.name:
        former = txn.catalog.consumer(txn, group, told.name) if told.is_known else None
        if former is not None:
            txn.member_changed(former)
        told.name = consumer.name
    told.number += 1
    told.at_ms = consumer.seen_ms = consumer.active_ms = txn.now_ms
    consumer.activity = told.number
    txn.catalog.seen.pop(consumer.row, None)
    txn.member_changed(group)


def recall(group: GroupMeta, consumer: ConsumerMeta) -> None:
    """Set the times of a consumer, as loaded from its record, to those that the group tells."""
    told = group.activity
    if told.name == consumer.name and told.is_known and consumer.activity < told.number:
        consumer.seen_ms = consumer.active_ms = told.at_ms
        consumer.activity = told.number


def forget(group: GroupMeta, consumer: ConsumerMeta) -> None:
    """Have a group's record tell nothing of a consumer that is no more."""
    if group.activity.name == consumer.name:
        group.activity.tell_nobody()


_METADATA = Family.METADATA


class Allocator:
    """Gives out numbers; what a transaction that failed was given is lost."""

    def __init__(self) -> None:
        self._next = 0
        """The next number to give out; 0: still to be read."""
        self._first_free = 1
        """Above every number that was given out since the store was opened, used or not."""

    def take(self, txn: Txn, count: int = 1) -> range:
        """Return so many numbers, one after the other."""
        if not self._next:
            value = txn.batch.get(_METADATA, ALLOCATOR_KEY)
            self._next = max(self._first_free, decode_number(ALLOCATOR_KEY, value, missing=1))
        first = self._next
        self._next = self._first_free = first + count
        txn.batch.put(_METADATA, ALLOCATOR_KEY, U64.pack(self._next))
        return range(first, first + count)

    def forget(self) -> None:
        """Have the row read again."""
        self._next = 0


STREAMS_MAX = 30_000
"""Streams kept in memory, of 2 KB each without groups; the least recently loaded leave first."""

_TREES, _MESSAGES = Family.TREES, Family.MESSAGES


class Catalog:
    """The metadata objects in memory, and the rows that they come from."""

    def __init__(self, options: StoreOptions) -> None:
        self.limits = Limits.of(options)
        self.seen: dict[bytes, ConsumerMeta] = {}
        """Consumers whose seen time has moved since their record was written."""
        self.expired = self.expired_unasked = 0
        """Keys deleted since the opening, and those of them that nobody had asked for."""
        self.streams: dict[bytes, StreamMeta] = {}
        """The streams in memory, by the names of callers."""
        self.crowded = False
        """More of them than STREAMS_MAX: some are to leave when nothing in memory is unwritten."""
        self.held: set[bytes] = set()
        """Prefixes above whose last entries rows may stand that do not count: see ``ingestion``."""
        self.hot = Hot()
        """Entries that clients were shown lately."""
        self.flushed, self.doomed = Flushed(), Doomed()
        self.databases, self.erasures = Databases(), Erasures()
        self.index = KeyIndex(self.flushed, self.doomed, self.databases)
        self.numbers = Allocator()

    # --- keys -----------------------------------------------------------------------------------

    def stream(self, txn: Txn, name: bytes) -> StreamMeta | None:
        """Return the stream of a name, or None where there is none or it has expired."""
        stream = self.streams.get(name)
        if stream is None or (stream.expire_at and stream.expire_at <= txn.expiry_ms):
            key = self.key(txn, name)
            if isinstance(key, StringMeta):
                raise WrongType
            return key
        return stream

    def key(self, txn: Txn, name: bytes) -> Key | None:
        """Return what a name stands for, of any kind; None where that is nothing or has expired."""
        key = self.streams.get(name) or self._load(txn, name)
        if key is not None and not 0 < key.expire_at <= txn.expiry_ms:
            return key
        txn.missing.add(name)
        if key is not None and not txn.keeps_expired:
            self.expired += 1
            self.drop(txn, key)
            txn.signal(name)
        return None

    def _load(self, txn: Txn, name: bytes) -> Key | None:
        key = self._stored_key(txn, name)
        if key is None or self.is_gone(txn, key):
            return None
        if isinstance(key, StreamMeta):
            if key.prefix not in self.held:
                catch_up(txn.batch, key)
            self._keep(name, key)
        return key

    def _stored_key(self, txn: Txn, name: bytes) -> Key | None:
        stored = self.databases.stored_name(txn, name)
        record = txn.batch.get(_METADATA, stream_row(stored))
        return None if record is None else decode_key(stored, record)

    def _keep(self, name: bytes, stream: StreamMeta) -> None:
        self.streams[name] = stream
        self.crowded = len(self.streams) > STREAMS_MAX

    def peek(self, txn: Txn, name: bytes) -> Key | None:
        """Return the same as ``key``, with nothing loaded or deleted; its counts may lag behind."""
        key = self.streams.get(name) or self._stored_key(txn, name)
        return None if key is None or (key.expire_at and key.expire_at <= txn.expiry_ms) else key

    def create_stream(self, txn: Txn, name: bytes) -> StreamMeta:
        """Make an empty stream under a name that is free."""
        stored = self.databases.stored_name(txn, name)
        stream = StreamMeta(stored, txn.allocate())
        stream.nodes_tree = txn.allocate()
        self.add_stream(txn, name, stream)
        return stream

    def add_stream(self, txn: Txn, name: bytes, stream: StreamMeta) -> None:
        """Take in a stream that was made, with its stored name, for a name that is free."""
        self.drop_gone(txn, stream.name)
        self._keep(name, stream)
        txn.reshaped(stream)
        self.index.add(txn, stream)

    def create_string(self, txn: Txn, name: bytes, value: bytes, expire_at: int = 0) -> StringMeta:
        """Make a string under a name that is free."""
        stored = self.databases.stored_name(txn, name)
        self.drop_gone(txn, stored)
        string = StringMeta(stored, stream_row(stored), txn.allocate(), b"", expire_at)
        string.put(txn, value)
        self.write(txn, string)
        self.index.add(txn, string)
        return string

    def write(self, txn: Txn, key: Key) -> None:
        """Have the whole record of a key written."""
        if isinstance(key, StreamMeta):
            txn.reshaped(key)
        else:
            txn.batch.put(_METADATA, key.row, key.encode())

    def drop(self, txn: Txn, key: Key) -> None:
        """Delete a key of any kind, in time that does not depend on what is in it."""
        if isinstance(key, StreamMeta):
            if not bury(txn, key):
                self.drop_stream(txn, key)
        else:
            txn.frees = True
            if not self._is_flushed(txn, key):  # else its pieces went with the flush
                key.drop_pieces(txn.batch)
            self.unlist(txn, key)

    def drop_stream(self, txn: Txn, stream: StreamMeta) -> None:
        """Delete a stream with all that belongs to it, in time that its entries do not touch."""
        txn.frees = True
        for group in list(self.groups(txn, stream)):
            self._drop_group_trees(txn, group)
        for tree in (stream.groups_tree, stream.idmp_tree):
            if tree:
                Tree(tree, as_is).drop(txn.batch)
        self.hot.forget(stream.prefix)
        self._drop_rows(txn, stream)
        self.unlist(txn, stream)

    def _drop_rows(self, txn: Txn, stream: StreamMeta) -> None:
        """Delete messages and nodes: row by row where they are few, else as ranges."""
        prefix, nodes = stream.prefix, tree_prefix(stream.nodes_tree)
        upper = successor(prefix)
        few = stream.length + stream.unswept < DELETE_RANGE_ROWS and prefix not in self.held
        if self._is_flushed(txn, stream):
            pass  # its messages went with the flush
        elif few:
            for key, _ in txn.batch.page(_MESSAGES, prefix, upper, DELETE_RANGE_ROWS):
                txn.batch.delete(_MESSAGES, key)
        else:
            txn.batch.delete_range(_MESSAGES, prefix, upper)
        if stream.unswept or stream.nodes > bool(stream.open_live):  # a node was closed
            txn.batch.delete_range(_TREES, nodes, successor(nodes))

    def unlist(self, txn: Txn, key: Key) -> None:
        """Let a key go from its name, and from the orders of SCAN and of expiry."""
        self.streams.pop(self.databases.shown_name(txn, key.name), None)
        if isinstance(key, StreamMeta):
            txn.forget_stream(key)
        txn.batch.delete(_METADATA, key.row)
        self.index.remove(txn, key, counted=not self.is_gone(txn, key))

    def rename(self, txn: Txn, key: Key, name: bytes) -> None:
        """Move a key to a name that is free: the other rows of a stream stay where they are."""
        stored = self.databases.stored_name(txn, name)
        self.drop_gone(txn, stored)
        self.unlist(txn, key)
        key.name, key.row = stored, stream_row(stored)
        if isinstance(key, StreamMeta):
            self._keep(name, key)
        self.index.add(txn, key)
        self.write(txn, key)

    def set_expiry(self, txn: Txn, key: Key, at_ms: int) -> None:
        """Let a key expire at a Unix time in milliseconds; 0: never."""
        self.index.set_expiry(txn, key, at_ms)
        self.write(txn, key)

    # --- whole databases ------------------------------------------------------------------------

    def flush(self, txn: Txn, db: int, uncounted: bool = True) -> int:
        """Have all keys of a database gone, for ``sweep``, ``uncounted`` ones too; count them."""
        count = self.index.count(txn, db)
        if not count and not (uncounted and next(self.index.names(txn, db), None)):
            return 0
        txn.frees = True
        self._let_go(txn, db)
        stored = self.databases.stored(txn, db)
        for load in unfinished_loads.all_of(txn):
            if database_of(load.stream.name) == stored:  # its entries go with this commit too
                unfinished_loads.discard(txn, load)
        swept = self.flushed.of(txn, stored).swept
        self.flushed.put(txn, stored, Bounds(txn.allocate(), swept))
        txn.batch.delete_range(_MESSAGES, *database_bounds(stored))
        txn.batch.delete(_METADATA, key_count_row(stored))
        return count

    def swap(self, txn: Txn, one: int, other: int) -> None:
        """Exchange the keys of two databases, however many they are."""
        for consumer in self.seen.values():
            txn.member_changed(consumer)
        self._let_go(txn, one)
        self._let_go(txn, other)
        self.databases.swap(txn, one, other)

    def _let_go(self, txn: Txn, db: int) -> None:
        """Have what is in memory of a database written and forgotten; its waiters look again."""
        txn.finish()
        self.hot.clear()
        self.index.break_watches()
        for name in [name for name in self.streams if database_of(name) == db]:
            del self.streams[name]
        txn.signal_all(U16.pack(db))

    def doom(self, txn: Txn, db: int, rows: Mapping[bytes, bytes], gone: set[int]) -> None:
        """Have keys of a database, by its number in rows, gone; ``rows`` are those of Doomed."""
        txn.frees = True
        txn.finish()
        for name in [name for name, key in self.streams.items() if key.generation in gone]:
            del self.streams[name]
        self.index.left(txn, db, len(gone))
        self.doomed.add(txn, rows, gone)
        txn.signal_all(U16.pack(self.databases.shown(txn, db)))

    def is_gone(self, txn: Txn, key: Key) -> bool:
        """Tell whether a key was deleted by what leaves its rows for later."""
        return key.generation in self.doomed.known(txn) or self._is_flushed(txn, key)

    def _is_flushed(self, txn: Txn, key: Key) -> bool:
        return self.is_before_flush(txn, database_of(key.name), key.generation)

    def is_before_flush(self, txn: Txn, stored_db: int, generation: int) -> bool:
        """Tell whether keys of a generation are gone from a database, by its number in rows."""
        return generation < self.flushed.of(txn, stored_db).bound

    def drop_gone(self, txn: Txn, name: bytes, swept: bool = False) -> None:
        """Delete what a key that is gone has left under a stored name; ``swept``: all of it now."""
        gone = self.doomed.known(txn) or self.flushed.of(txn, database_of(name)).bound
        record = txn.batch.get(_METADATA, stream_row(name)) if gone else None
        if record is None:
            return
        try:
            key = decode_key(name, record)
            if self.is_gone(txn, key):
                if isinstance(key, StreamMeta) and not self._is_flushed(txn, key):
                    catch_up(txn.batch, key)
                if isinstance(key, StreamMeta) and swept:
                    self.drop_stream(txn, key)
                else:
                    self.drop(txn, key)
        except Corruption:  # what was not found of it is nobody's, and told by check
            txn.batch.delete(_METADATA, stream_row(name))

    # --- groups and consumers -------------------------------------------------------------------

    def group(self, txn: Txn, stream: StreamMeta, name: bytes) -> GroupMeta | None:
        group = stream.groups.get(name)
        if group is None and stream.groups_tree:
            row = tree_prefix(stream.groups_tree) + name
            record = txn.batch.get(_TREES, row)
            if record is not None:
                group = stream.groups[name] = GroupMeta.decode(name, row, record)
        return group

    def groups(self, txn: Txn, stream: StreamMeta) -> Iterator[GroupMeta]:
        """Yield all groups of a stream, sorted by name."""
        for name in self._names(txn, stream.groups_tree, stream.groups, stream.groups_count):
            group = self.group(txn, stream, name)
            if group is not None:
                yield group

    def _names(self, txn: Txn, tree: int, known: Mapping[bytes, object], count: int) -> list[bytes]:
        if len(known) == count:  # all are in memory
            return sorted(known)
        prefix = tree_prefix(tree)
        rows = txn.batch.scan(_TREES, prefix, successor(prefix))
        return sorted({key[8:] for key, _ in rows} | known.keys())

    def create_group(self, txn: Txn, stream: StreamMeta, name: bytes) -> GroupMeta:
        if not stream.groups_tree:
            stream.groups_tree = txn.allocate()
        consumers, runs, times = (txn.allocate() for _ in range(3))
        row = tree_prefix(stream.groups_tree) + name
        group = GroupMeta(
            name, row, consumers, Tree(runs, Run.decode, new=True), Tree(times, as_is, new=True)
        )
        stream.groups[name] = group
        stream.groups_count += 1
        txn.reshaped(stream)
        txn.member_changed(group)
        return group

    def drop_group(self, txn: Txn, stream: StreamMeta, group: GroupMeta) -> None:
        self._drop_group_trees(txn, group)
        txn.batch.delete(_TREES, group.row)
        stream.groups.pop(group.name, None)
        stream.groups_count -= 1
        txn.reshaped(stream)

    def _drop_group_trees(self, txn: Txn, group: GroupMeta) -> None:
        for consumer in list(self.consumers(txn, group)) if group.indexed else ():
            consumer.runs.drop(txn.batch)
        txn.forget_members(tree_prefix(group.consumers_tree))
        Tree(group.consumers_tree, as_is).drop(txn.batch)
        for tree in (group.runs, group.times) if group.indexed else (group.runs,):  # else empty
            tree.drop(txn.batch)
        txn.forget_member(group)

    def consumer(self, txn: Txn, group: GroupMeta, name: bytes) -> ConsumerMeta | None:
        consumer = group.consumers.get(name)
        if consumer is None and group.consumers_count:
            row = tree_prefix(group.consumers_tree) + name
            record = txn.batch.get(_TREES, row)
            if record is not None:
                consumer = group.consumers[name] = ConsumerMeta.decode(name, row, record)
                recall(group, consumer)
        return consumer

    def owner(self, txn: Txn, group: GroupMeta, name: bytes) -> ConsumerMeta:
        """Return the consumer that a pending entry names."""
        consumer = self.consumer(txn, group, name)
        if consumer is None:
            raise Corruption(f"group {group.name!r} has pending entries of no consumer {name!r}")
        return consumer

    def consumers(self, txn: Txn, group: GroupMeta) -> Iterator[ConsumerMeta]:
        """Yield all consumers of a group, sorted by name."""
        for name in self._names(txn, group.consumers_tree, group.consumers, group.consumers_count):
            consumer = self.consumer(txn, group, name)
            if consumer is not None:
                yield consumer

    def create_consumer(self, txn: Txn, group: GroupMeta, name: bytes) -> ConsumerMeta:
        row = tree_prefix(group.consumers_tree) + name
        tree = Tree(txn.allocate(), as_is, new=True)
        consumer = group.consumers[name] = ConsumerMeta(name, row, tree, txn.now_ms)
        group.consumers_count += 1
        txn.member_changed(group)
        txn.member_changed(consumer)
        return consumer

    def drop_consumer(self, txn: Txn, group: GroupMeta, consumer: ConsumerMeta) -> None:
        """Delete a consumer that has no pending entry left."""
        consumer.runs.drop(txn.batch)
        txn.batch.delete(_TREES, consumer.row)
        txn.forget_member(consumer)
        forget(group, consumer)
        group.consumers.pop(consumer.name, None)
        group.consumers_count -= 1
        txn.member_changed(group)

    # --- upkeep ---------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop everything in memory, since a failed transaction may have changed it."""
        self.streams.clear()
        self.seen.clear()
        self.hot.clear()
        self.flushed.forget()
        self.doomed.forget()
        self.databases.forget()
        self.index.forget()
        self.numbers.forget()

    def evict(self) -> None:
        """Let a tenth go, so that nobody waits for long; nothing in memory may be unwritten."""
        for name in list(islice(self.streams, len(self.streams) - STREAMS_MAX * 9 // 10)):
            del self.streams[name]
        self.crowded = False
