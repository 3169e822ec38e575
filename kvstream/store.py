"""The store: a directory of streams, opened by one process."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from kvstream.bulkload import commit
from kvstream.bulkload.parts import BulkTicket, Part
from kvstream.bulkload.restore import Loader
from kvstream.engine.blocking_reads import group_read, plain_read
from kvstream.engine.coerce import (
    AnyPath,
    Level,
    Name,
    Seconds,
    budget_of,
    expiry_ms,
    mark_of,
    name_bytes,
    path_of,
    store_options,
    whole,
)
from kvstream.engine.engine import Engine
from kvstream.errors import InvalidArgument
from kvstream.layout.keys import key_of, qualified
from kvstream.operations import append, checks, dump, keyspace, load, unfinished_loads
from kvstream.operations.append import BulkResult
from kvstream.operations.load import Loaded, StreamImage
from kvstream.stream import Stream
from kvstream.types.clock import Clock
from kvstream.types.glob import matcher
from kvstream.types.ids import U64_MAX, IDLike, StreamID
from kvstream.types.images import StreamSource
from kvstream.types.options import Durability, StoreOptions
from kvstream.types.records import Entry, Fault, HistoryEntry, UnfinishedLoad

_KEYS_PAGE = 1000


class Store:
    """An open store, seen through one of its numbered databases.

    Safe to use from any thread. Exactly one process may have a directory open; after a fork the
    child must open its own.
    """

    def __init__(self, engine: Engine, db: int = 0) -> None:
        """Wrap an open engine; ``Store.open`` is the usual way."""
        if not isinstance(engine, Engine):
            raise TypeError("Store.open(path) opens a store: Store() wraps an engine that is open")
        self.engine = engine
        self.db = _checked_db(db, engine.options)

    @classmethod
    def open(
        cls,
        path: AnyPath,
        *,
        durability: Level = Durability.EVERYSEC,
        db: int = 0,
        read_only: bool = False,
        create: bool = True,
        clock: Clock | None = None,
        **options: Any,
    ) -> Self:
        """Open the store in directory ``path``, which is created if it is missing.

        ``durability`` is what an acknowledged write survives: "always" power loss, "everysec" kill
        -9, and power loss except for the last second, "no" kill -9. Other ``options`` are the
        fields of StoreOptions. Raises InvalidArgument for a wrong option, NoSuchStore if there is
        none and ``create`` is false, StoreLocked if another process has it open, UnknownLayout for
        a store of another version, LostWrites if acknowledged writes are missing.
        """
        directory = path_of(path)
        settings = store_options(
            {"durability": durability, "read_only": read_only, "create": create, **options}
        )
        _checked_db(db, settings)
        engine = Engine(directory, settings, clock)
        try:
            return cls(engine, db)
        except BaseException:  # an interrupt: nobody else could close it
            engine.close(discard=True)
            raise

    def __repr__(self) -> str:
        return f"<Store {str(self.engine.database.directory)!r}, db {self.db}>"

    def select(self, db: int) -> Self:
        """Return the same open store seen through another database."""
        return type(self)(self.engine, db)

    def close(self) -> None:
        """Make everything durable and release the directory; a second call does nothing."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the store; after an error, remove its directory if it is new and empty."""
        self.engine.close(discard=error is not None)

    def _name(self, key: Name) -> bytes:
        return qualified(self.db, name_bytes(key))

    # --- streams --------------------------------------------------------------------------------

    def stream(self, key: Name) -> Stream:
        """Return the stream of a key; nothing is created until something is added."""
        return Stream(self.engine, self._name(key))

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Run what this thread does inside as one atomic commit.

        An exception rolls it back. Other threads wait meanwhile, and blocking reads do not block.
        """
        with self.engine.transaction():
            yield self

    def read(
        self,
        streams: Mapping[Name, IDLike],
        count: int | None = None,
        block: Seconds | None = None,
        *,
        max_count: int | None = None,
        max_size: int | None = None,
    ) -> dict[bytes, list[Entry]]:
        """Read the entries after an ID in several streams, as XREAD does.

        ``streams`` maps keys to IDs, ``"$"`` (only new entries) or ``"+"`` (the last entry).
        ``count`` limits each stream, ``max_count`` and ``max_size`` (bytes of a RESP reply) all of
        them. Waits up to ``block`` seconds; 0: for ever; None: not at all. Streams without new
        entries are left out; {} if there are none.
        """
        wanted = [(self._name(key), after) for key, after in streams.items()]
        reply = plain_read(
            self.engine, wanted, count, block, lambda: budget_of(max_count, max_size)
        )
        return {key_of(name): entries for name, entries in reply}

    def read_group(
        self,
        group: Name,
        consumer: Name,
        streams: Mapping[Name, IDLike],
        count: int | None = None,
        block: Seconds | None = None,
        *,
        noack: bool = False,
        claim_min_idle: Seconds | None = None,
        max_count: int | None = None,
        max_size: int | None = None,
    ) -> dict[bytes, list[HistoryEntry]]:
        """Read several streams as a consumer of the group of that name in each, as XREADGROUP does.

        ``">"`` asks for new entries, an ID for the consumer's pending ones after it; a pending
        entry whose message was deleted is a DeletedEntry.
        """
        wanted = [(self._name(key), after) for key, after in streams.items()]
        reply = group_read(
            self.engine,
            name_bytes(group),
            name_bytes(consumer),
            wanted,
            count=count,
            block=block,
            noack=noack,
            claim_min_idle=claim_min_idle,
            budget=lambda: budget_of(max_count, max_size),
        )
        return {key_of(name): entries for name, entries in reply}

    # --- keys -----------------------------------------------------------------------------------

    def keys(self, pattern: Name | None = None) -> list[bytes]:
        """Return the keys, or those that match a Redis ``pattern``, in order of creation."""
        return list(self.scan_keys(pattern))

    def scan_keys(self, pattern: Name | None = None) -> Iterator[bytes]:
        """Yield the keys page by page; a key that stays throughout comes exactly once."""
        wanted = None if pattern is None else matcher(name_bytes(pattern))
        cursor = 0
        while True:
            cursor, page = self.engine.run(keyspace.scan, self.db, cursor, _KEYS_PAGE)
            for key in page:
                if wanted is None or wanted(key):
                    yield key
            if cursor == 0:
                return

    def size(self) -> int:
        """Return the number of keys in this database."""
        return self.engine.run(keyspace.size, self.db)

    def exists(self, key: Name) -> bool:
        return self.engine.run(keyspace.exists, self._name(key))

    def __contains__(self, key: Name) -> bool:
        return self.exists(key)

    def type(self, key: Name) -> str:
        """Return ``"stream"``, ``"string"``, or ``"none"`` where there is no such key."""
        return self.engine.run(keyspace.kind, self._name(key))

    def delete(self, *keys: Name) -> int:
        """Delete keys in one commit, whatever their size, and return how many there were."""
        names = [key_of(self._name(key)) for key in keys]
        return self.engine.run(keyspace.delete_all, self.db, names)

    def rename(self, source: Name, target: Name, *, replace: bool = True) -> bool:
        """Rename a key; NoSuchKey if it is missing, False if the target exists and must stay."""
        return self.engine.run(
            keyspace.rename, self._name(source), self._name(target), replace=replace
        )

    def expire(self, key: Name, seconds: Seconds) -> bool:
        """Set a key to expire after ``seconds``; False if there is no such key."""
        return self._expire(key, self.engine.clock.now_ms(), seconds)

    def expire_at(self, key: Name, unix_seconds: float) -> bool:
        """Set a key to expire at a Unix time; False if there is no such key."""
        return self._expire(key, 0, unix_seconds)

    def _expire(self, key: Name, base_ms: int, seconds: Seconds) -> bool:
        at_ms = base_ms + expiry_ms(seconds)
        return self.engine.run(keyspace.expire_at, self._name(key), at_ms)

    def persist(self, key: Name) -> bool:
        """Remove a key's expiry; return whether it had one."""
        return self.engine.run(keyspace.persist, self._name(key))

    def ttl(self, key: Name) -> float | None:
        """Return the seconds until a key expires; None if it does not, or does not exist."""
        at_ms = self.engine.run(keyspace.expiry, self._name(key))
        return None if not at_ms else max(0, at_ms - self.engine.clock.now_ms()) / 1000

    def flush(self) -> int:
        """Delete every key of this database in one commit, and return how many there were.

        The time does not depend on the number of keys. Disk space of entries is freed at once, the
        rest in the background, even after the store was reopened.
        """
        return self.engine.run(keyspace.flush, self.db)

    def flush_all(self) -> int:
        """Delete every key of every database in one commit, and return how many there were."""
        return self.engine.run(keyspace.flush_all, self.engine.options.databases)

    # --- whole streams --------------------------------------------------------------------------

    def image(self, key: Name, start: IDLike | None = None) -> StreamImage | None:
        """Return a stream as it is now, to be read node by node; None if there is no such key.

        Later writes do not change the image; reading it changes nothing, not even seen times. With
        ``start``, its nodes begin with the one that holds that ID. Pending entries are copied at
        once, and other threads wait meanwhile. InvalidArgument in a transaction that has changed
        something.
        """
        first = None if start is None else StreamID.parse(start).packed
        return self.engine.run(
            load.image_of_now, self._name(key), self.engine.database.pages, first
        )

    def rows(self, key: Name, start: IDLike, end: IDLike, count: int) -> list[tuple[bytes, bytes]]:
        """Return the first ``count`` entries of a range as packed IDs and stored values."""
        first, last = StreamID.parse(start), StreamID.parse(end, U64_MAX)
        return self.engine.run(load.page, self._name(key), first, last, whole(count, "count"))

    def load(
        self, key: Name, source: StreamSource, *, replace: bool = False, expire_at_ms: int = 0
    ) -> Loaded:
        """Make a stream of a source, all or nothing; return what was loaded and corrected.

        Raises KeyExists if the key exists and ``replace`` is false, and whatever the source raises.
        ``expire_at_ms`` is a Unix time; 0: the key does not expire.
        """
        loader = Loader(self.engine, self._name(key), replace=replace, expire_at_ms=expire_at_ms)
        with loader:
            for node in source.nodes():
                loader.node(node)
            return loader.finish(source.state())

    def dump(self, key: Name, target: str | None = None) -> bytes | None:
        """Return a key as the payload that RESTORE reads, None if there is no such key.

        ``target`` names the server that it is for, such as ``"redis:7.2"`` or ``"valkey"``; what
        that cannot hold is left out. Without it, and without a ``dump_target`` of the store, the
        payload has the oldest form that loses nothing.
        """
        return self.engine.run(dump.dump, self._name(key), target)

    def restore(
        self, key: Name, payload: bytes, *, replace: bool = False, expire_at_ms: int = 0
    ) -> list[str]:
        """Make a key of a payload of DUMP, from here or Redis; return what was wrong and corrected.

        Raises BadPayload if the payload cannot be read, KeyExists if the key exists and ``replace``
        is false; nothing changes then.
        """
        return self.engine.run(dump.restore, self._name(key), payload, replace, expire_at_ms)

    def loader(
        self, key: Name, *, replace: bool = False, expire_at_ms: int = 0, label: bytes = b""
    ) -> Loader:
        """Return a load of a stream in pieces, for a ``with`` block.

        With a ``label``, which must be unique, an interrupted load is kept for a week, and the next
        loader of that label continues it.
        """
        return Loader(
            self.engine, self._name(key), replace=replace, expire_at_ms=expire_at_ms, label=label
        )

    def unfinished_loads(self) -> list[UnfinishedLoad]:
        """Return the loads of all databases that are under way or can be continued."""
        return self.engine.run(unfinished_loads.unfinished)

    def discard_load(self, label: bytes) -> bool:
        """Delete an unfinished load; return whether there was one."""
        return self.engine.run(unfinished_loads.discard, label)

    # --- bulk loads -----------------------------------------------------------------------------

    def bulk_ticket(self, keys: Iterable[Name]) -> BulkTicket:
        """Return what PartWriter needs to make parts for one bulk load, in any process.

        Name the streams that the load appends to: ``bulk_load`` must write entries of other
        existing streams a second time. A ticket is for one load.
        """
        names = [name_bytes(key) for key in keys]
        return self.engine.run(commit.ticket, self.db, names)

    def bulk_load(
        self, ticket: BulkTicket, parts: Iterable[Part], *, mark: tuple[Name, int] | None = None
    ) -> BulkResult:
        """Append the entries of parts in one commit: all or nothing.

        ``mark`` is a key, of a plain string, and the number of a batch. The commit sets it; if it
        already has that number or a higher one, nothing is done. Other threads wait while rows are
        written a second time. IDTooSmall if IDs are not above a stream's last one.
        """
        return commit.load(self.engine, ticket, parts, mark_of(mark, self.db))

    def bulk_append(
        self,
        streams: Mapping[Name, tuple[list[bytes] | None, list[bytes]]],
        *,
        mark: tuple[Name, int] | None = None,
    ) -> BulkResult:
        """Append stored values to streams under packed IDs, or automatic ones for None.

        For batches that fit into one commit. ``mark`` is that of ``bulk_load``.
        """
        wanted = {self._name(key): entries for key, entries in streams.items()}
        return self.engine.run(append.append_many, wanted, mark_of(mark, self.db))

    # --- care -----------------------------------------------------------------------------------

    def sync(self) -> None:
        """Wait until every write so far is on disk, at any durability level."""
        self.engine.sync()

    def checkpoint(self, path: AnyPath) -> None:
        """Write a consistent copy of the store to a new directory, which can be opened as it is."""
        self.engine.checkpoint(path_of(path))

    def check(self, *, repair: bool = False) -> list[Fault]:
        """Recount every stream, node, group and pending entry; return the faults.

        ``repair`` corrects wrong counters. Raises Corruption if rows cannot be read at all.
        """
        return self.engine.run(checks.check, repair)

    def compact(self) -> None:
        """Compact the whole store, which frees the disk space of deleted rows."""
        self.engine.compact()

    def stats(self) -> dict[str, Any]:
        """Return sizes and counters of RocksDB."""
        return self.engine.database.statistics()


def _checked_db(db: int, options: StoreOptions) -> int:
    number = whole(db, "db")
    if not 0 <= number < options.databases:
        raise InvalidArgument("DB index is out of range")
    return number
