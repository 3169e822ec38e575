"""The store: streams in a directory that one process has open, or on a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from os import PathLike
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from kvstream.bulkload import commit
from kvstream.bulkload.parts import BulkTicket, Part
from kvstream.bulkload.restore import Loader
from kvstream.engine.blocking_reads import group_read, missing_key, plain_read
from kvstream.engine.coerce import (
    Level,
    Name,
    Seconds,
    StoreSettings,
    budget_of,
    clock_of,
    expiry_ms,
    mark_of,
    name_bytes,
    path_of,
    store_options,
    unix_ms,
    whole,
)
from kvstream.engine.decoding import BYTES, Decoder, decoder_of
from kvstream.engine.engine import Engine
from kvstream.engine.interface import AnyEngine
from kvstream.errors import InvalidArgument, NoSuchKey, show
from kvstream.layout.keys import key_of, qualified
from kvstream.meta.txn import Txn
from kvstream.operations import append, checks, keyspace
from kvstream.operations.append import BulkResult
from kvstream.operations.images import copy, dump, load, staged_loads
from kvstream.operations.images.load import Loaded, StreamImage
from kvstream.storage.contexts import contextmanager
from kvstream.stream import Stream
from kvstream.surface import Public
from kvstream.types.clock import Clock
from kvstream.types.ids import U64_MAX, IDLike, StreamID
from kvstream.types.images import StreamSource
from kvstream.types.options import KEY_BYTES_MAX, Durability, StoreOptions
from kvstream.types.records import Entry, Fault, HistoryEntry, KeyInfo, S, UnfinishedLoad
from kvstream.types.urls import AnyPath

P = ParamSpec("P")
T = TypeVar("T")

Streams = Mapping[Any, IDLike]
"""The starts of a read by key, a Name: Any, since the key type of a Mapping is invariant."""


class Store(Public, Generic[S]):
    """An open store, and one of its numbered databases.

    Methods may be called from any thread. One process at a time has a directory open; after a fork
    the child opens a store of its own. Durations are in seconds. Calls raise StoreClosed after
    ``close``, StoreFull, StoreReadOnly or UnknownOutcome if a write fails, and Corruption for
    damaged rows.

    >>> with kvstream.open("data", decode=True) as store:
    ...     with store.transaction():  # one commit
    ...         _ = store.stream("orders").add({"sku": "a1", "qty": 2})
    ...         _ = store.stream("audit").add({"what": "order"})
    ...     print(sorted(store.keys()), len(store.stream("orders")))
    ['audit', 'orders'] 1
    """

    engine_type: type[Engine] = Engine
    _internal = frozenset(
        {
            *("brief_transaction", "discard_load", "engine", "engine_type", "every", "name_of"),
            *("has_transaction", "key_page"),
            *("now_ms", "own_engine", "rows", "run", "unfinished_loads", "url", "watches_reads"),
        }
    )

    @overload
    def __init__(self: Store[bytes], engine: AnyEngine, db: int = ...) -> None: ...
    @overload
    def __init__(self, engine: AnyEngine, db: int, decoder: Decoder[S]) -> None: ...
    def __init__(self, engine: AnyEngine, db: int = 0, decoder: Decoder[Any] = BYTES) -> None:
        if isinstance(engine, str | bytes | PathLike):
            raise TypeError("Store.open(path) opens a store: Store() wraps an engine that is open")
        self._engine = engine
        self._decoder: Decoder[S] = decoder
        self.db = _check_db(db, engine.options)
        self._prefix = qualified(self.db, b"")

    @property
    def engine(self) -> Engine:
        """The engine of a store that only this process has open; else raises InvalidArgument."""
        engine = self._engine
        if not isinstance(engine, Engine):
            raise InvalidArgument(
                "this call works on the files of a store: open its directory with Store.open, once "
                f"no server and no shared store has it open (this one is {engine.place})"
            )
        return engine

    @property
    def own_engine(self) -> Engine | None:
        """The engine if this process owns the store, else None: another process has it."""
        engine: Engine | None = self._engine.own_engine
        return engine

    @property
    def watches_reads(self) -> bool:
        """Whether ``transaction`` raises Conflict if others change what it has read."""
        return not isinstance(self._engine, Engine)

    @property
    def url(self) -> str:
        """Where redis-py finds the process that owns the store; "" if no other process does."""
        return self._engine.url

    def run(
        self,
        operation: Callable[Concatenate[Txn, bytes, P], T],
        key: Name,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation on a key as one commit, or as part of this thread's transaction."""
        return self._engine.run(operation, self.name_of(key), *args, **kwargs)

    def now_ms(self) -> int:
        """Return the Unix time in milliseconds by which IDs are made and keys expire."""
        return self._engine.clock.now_ms()

    def every(self, seconds: float, call: Callable[[], object]) -> Callable[[], None]:
        """Call a function every ``seconds`` in the background; return the function that ends it."""
        return self._engine.every(seconds, call)

    @overload
    @classmethod
    def open(
        cls, path: AnyPath, *, decode: Literal[False] = ..., **options: Unpack[StoreSettings]
    ) -> Store[bytes]: ...
    @overload
    @classmethod
    def open(
        cls,
        path: AnyPath,
        *,
        decode: Literal[True],
        errors: str = ...,
        **options: Unpack[StoreSettings],
    ) -> Store[str]: ...
    @overload
    @classmethod
    def open(
        cls, path: AnyPath, *, decode: bool, errors: str = ..., **options: Unpack[StoreSettings]
    ) -> Store[bytes] | Store[str]: ...
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
        decode: bool = False,
        errors: str = "strict",
        **options: Any,
    ) -> Store[Any]:
        """Open the store in the directory ``path``; create it if there is none.

        ``durability`` says what acknowledged writes survive: "always" (power loss), "everysec"
        (kill -9, and power loss except for the last second), "no" (kill -9) or "archive" (the loss
        of the machine). With ``archive``, a URL such as ``s3://bucket/orders``, an archive follows
        the store, from which any moment can be restored (``kvstream.restore``); ``archive_key``
        encrypts it; ``take_over`` goes on from its end where there is no store. With ``decode``,
        names and fields are returned as text; ``errors`` is that of ``bytes.decode``, and bytes
        that are no text raise NotText. Further ``options`` are the fields of StoreOptions.

        Raises InvalidArgument for an unknown option, NoSuchStore if there is no store and
        ``create`` is false or ``read_only`` true, StoreLocked while another opener has the
        directory, UnknownLayout for a store of another version, LostWrites if acknowledged writes
        are missing, ArchiveTaken if another store has continued the archive, and WrongArchiveKey if
        that is encrypted with another key. ::

            with Store.open("data", durability="always") as store:
                store.stream("orders").add({"sku": "a1"})
        """
        directory = path_of(path)
        settings = store_options(
            {"durability": durability, "read_only": read_only, "create": create, **options}
        )
        _check_db(db, settings)
        decoder = decoder_of(decode, errors)
        engine = cls.engine_type(directory, settings, clock_of(clock))
        try:
            return cls(engine, db, decoder)
        except BaseException:  # an interrupt: the caller has no store to close
            engine.close(discard=True)
            raise

    def __repr__(self) -> str:
        return f"<Store {self._engine.place!r}, db {self.db}>"

    def select(self, db: int) -> Self:
        """Return the same open store with another database selected."""
        return type(self)(self._engine, db, self._decoder)

    def close(self) -> None:
        """Make everything durable and unlock the directory; a second call does nothing.

        Raises StoreReadOnly if the directory was moved, removed or replaced and the last writes may
        be missing at its path; UnknownOutcome if they cannot be made durable. The store is closed
        all the same.
        """
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Close the store; after an error, remove a new directory without any write."""
        self._engine.close(discard=error is not None)

    def name_of(self, key: Name) -> bytes:
        """Return the qualified name of a key: its database and the key."""
        if type(key) is bytes and len(key) <= KEY_BYTES_MAX:
            return self._prefix + key
        return self._prefix + name_bytes(key, "the key")

    def _key(self, name: bytes) -> S:
        return self._decoder.name(key_of(name), "the key")

    # --- streams --------------------------------------------------------------------------------

    def stream(self, key: Name) -> Stream[S]:
        """Return a handle on the stream of a key; the first ``add`` creates the stream."""
        return Stream(self._engine, self.name_of(key), self._decoder)

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Run everything that this thread does in the ``with`` block as one atomic commit.

        An exception rolls it back. Other threads wait meanwhile, and blocking reads do not block.
        On a server it is MULTI and EXEC: the results of its writes can be used after the block, and
        Conflict is raised if another client has changed what it read.
        """
        with self._engine.transaction():
            yield self

    def brief_transaction(self) -> AbstractContextManager[Any]:
        """Run a short block of kvstream's own code as a transaction."""
        return self._engine.brief_transaction()

    def has_transaction(self) -> bool:
        """Return whether this thread has a transaction open."""
        return self._engine.is_open_here()

    def read(
        self,
        streams: Streams,
        count: int | None = None,
        block: Seconds | None = None,
        *,
        max_count: int | None = None,
        max_size: int | None = None,
    ) -> dict[S, list[Entry[S]]]:
        """Return the entries after an ID of several streams, by key, as XREAD does.

        ``streams`` maps keys to IDs, ``"$"`` (entries added from now on) or ``"+"`` (the last
        entry). ``count`` limits each stream; ``max_count`` and ``max_size`` (bytes of a RESP reply)
        limit all together. Waits at most ``block`` seconds: 0 is for ever, None not at all. Streams
        without entries are left out of the result. Raises WrongType for a string.
        """
        reply = plain_read(
            self._engine,
            self._starts_of(streams),
            count,
            block,
            lambda: budget_of(max_count, max_size),
        )
        return {self._key(name): self._decoder.entries(name, entries) for name, entries in reply}

    def read_group(
        self,
        group: Name,
        consumer: Name,
        streams: Streams,
        count: int | None = None,
        block: Seconds | None = None,
        *,
        noack: bool = False,
        claim_min_idle: Seconds | None = None,
        max_count: int | None = None,
        max_size: int | None = None,
    ) -> dict[S, list[HistoryEntry[S]]]:
        """Read several streams as a consumer of the group of that name in each, as XREADGROUP does.

        ``">"`` returns entries that were given back, then those not delivered before; an ID returns
        the consumer's own pending entries after it, deleted ones as DeletedEntry. The other
        arguments are those of ``read`` and ``Consumer.read``. Raises NoGroup if a key or its group
        does not exist.
        """
        reply = group_read(
            self._engine,
            name_bytes(group, "the group"),
            name_bytes(consumer, "the consumer"),
            self._starts_of(streams),
            count=count,
            block=block,
            noack=noack,
            claim_min_idle=claim_min_idle,
            budget=lambda: budget_of(max_count, max_size),
        )
        return {self._key(name): self._decoder.history(name, entries) for name, entries in reply}

    def _starts_of(self, streams: Streams) -> list[tuple[bytes, IDLike]]:
        if not isinstance(streams, Mapping):
            raise InvalidArgument(f'streams map keys to IDs, {{"a": "$"}}, not {show(streams)}')
        return [(self.name_of(key), after) for key, after in streams.items()]

    # --- keys -----------------------------------------------------------------------------------

    def keys(self, pattern: Name | None = None) -> list[S]:
        """Return the keys in order of creation, those that match a Redis ``pattern`` if given."""
        return list(self.scan_keys(pattern))

    def scan_keys(self, pattern: Name | None = None) -> Iterator[S]:
        """Yield the keys, read in pages; a key that exists throughout comes exactly once."""
        keys = self._engine.keys(self.db, None if pattern is None else name_bytes(pattern))
        return (self._decoder.name(key, "the key") for key in keys)

    def key_page(self, cursor: int, count: int) -> tuple[int, list[bytes]]:
        """Return the next cursor, 0 at the end, and up to ``count`` keys by the order of SCAN."""
        return self._engine.run(keyspace.scan, self.db, cursor, count)

    def key_infos(
        self, pattern: Name | None = None, *, usage: bool = False
    ) -> Iterator[KeyInfo[S]]:
        """Yield the keys as ``scan_keys`` does, with type, counters and expiry.

        With ``usage`` also lag and size, which take longer: the groups of each stream are read.
        """
        name = None if pattern is None else name_bytes(pattern)
        infos = self._engine.key_infos(self.db, name, usage)
        return (self._decoder.key_info(each) for each in infos)

    def size(self) -> int:
        """Return the number of keys in this database."""
        return self._engine.run(keyspace.size, self.db)

    def exists(self, key: Name) -> bool:
        """Tell whether a key exists, as EXISTS does; also ``key in store``."""
        return self._engine.run(keyspace.exists, self.name_of(key))

    def __contains__(self, key: Name) -> bool:
        return self.exists(key)

    def type(self, key: Name) -> str:
        """Return ``"stream"``, ``"string"``, or ``"none"`` if the key does not exist."""
        return self._engine.run(keyspace.kind, self.name_of(key))

    def delete(self, *keys: Name) -> int:
        """Delete keys in one commit; return how many existed. The cost does not depend on sizes."""
        names = [key_of(self.name_of(key)) for key in keys]
        return self._engine.run(keyspace.delete_all, self.db, names)

    def rename(self, source: Name, target: Name, *, replace: bool = True) -> bool:
        """Rename a key in one commit; return False if the target exists and ``replace`` is false.

        Raises NoSuchKey if the source does not exist.
        """
        names = self.name_of(source), self.name_of(target)
        try:
            return self._engine.run(keyspace.rename, *names, replace=replace)
        except NoSuchKey:
            raise self._missing(source) from None

    def _missing(self, key: Name) -> NoSuchKey:
        """Return the error of a key that does not exist, with the nearest name."""
        return NoSuchKey().with_detail(missing_key(self._engine, self.name_of(key)))

    def copy(self, source: Name, target: Name, *, replace: bool = False) -> bool:
        """Copy a key, with its groups, in one commit; return False if the target exists.

        With ``replace`` a target is overwritten. Memory and time grow with the number of entries.
        Raises NoSuchKey if the source does not exist.
        """
        done = self._engine.run(copy.copy, self.name_of(source), self.name_of(target), replace)
        if done is False and not self.exists(source):  # on a server it may be known later
            raise self._missing(source)
        return done

    def expire(self, key: Name, seconds: Seconds) -> bool:
        """Set a key to expire after ``seconds``; return False if it does not exist."""
        return self._expire(key, self._engine.clock.now_ms(), seconds)

    def expire_at(self, key: Name, unix_seconds: float) -> bool:
        """Set a key to expire at ``unix_seconds``; return False if it does not exist."""
        return self._expire(key, 0, unix_seconds)

    def _expire(self, key: Name, base_ms: int, seconds: Seconds) -> bool:
        at_ms = base_ms + expiry_ms(seconds)
        return self._engine.run(keyspace.expire_at, self.name_of(key), at_ms)

    def persist(self, key: Name) -> bool:
        """Remove the expiry of a key; return whether it had one."""
        return self._engine.run(keyspace.persist, self.name_of(key))

    def ttl(self, key: Name) -> float | None:
        """Return the seconds until a key expires; None if it does not expire or exist."""
        at_ms = self._engine.run(keyspace.expiry, self.name_of(key))
        return None if not at_ms else max(0, at_ms - self._engine.clock.now_ms()) / 1000

    def flush(self) -> int:
        """Delete every key of this database in one commit; return how many there were.

        The time does not depend on the number of keys. A thread deletes all rows but the entries
        later, also after the store was reopened.
        """
        return self._engine.run(keyspace.flush, self.db)

    def flush_all(self) -> int:
        """Delete every key of every database in one commit; return how many there were."""
        return self._engine.run(keyspace.flush_all, self._engine.options.databases)

    # --- whole streams --------------------------------------------------------------------------

    def image(self, key: Name, start: IDLike | None = None) -> StreamImage | None:
        """Return a snapshot of a stream, to be read node by node; None if there is no such key.

        Later writes do not change it, and reading it changes nothing, not even seen times. With
        ``start``, its nodes begin with the one that has that ID. The pending entries are copied at
        once, while other threads wait. Raises InvalidArgument in a transaction with changes.
        """
        first = None if start is None else StreamID.parse(start).packed
        return self.engine.run(
            load.image_of_now, self.name_of(key), self.engine.database.pages, first
        )

    def rows(self, key: Name, start: IDLike, end: IDLike, count: int) -> list[tuple[bytes, bytes]]:
        """Return the first ``count`` entries of a range as (packed ID, stored value) pairs."""
        first, last = StreamID.parse(start), StreamID.parse(end, U64_MAX)
        return self.engine.run(load.page, self.name_of(key), first, last, whole(count, "count"))

    def load(
        self, key: Name, source: StreamSource, *, replace: bool = False, expire_at_ms: int = 0
    ) -> Loaded:
        """Create a stream from a source, all or nothing; return its size and corrected counters.

        Raises KeyExists if the key exists and ``replace`` is false, and the source's own errors.
        ``expire_at_ms`` is a Unix time in milliseconds; 0 means no expiry.
        """
        with self.loader(key, replace=replace, expire_at_ms=expire_at_ms) as loader:
            for node in source.nodes():
                loader.node(node)
            return loader.finish(source.state())

    def dump(self, key: Name, target: str | None = None) -> bytes | None:
        """Return a key as the payload that RESTORE takes; None if there is no such key.

        ``target`` names the server that it is for, such as ``"redis:7.2"`` or ``"valkey"``: data
        that this server cannot hold is left out. The default is the store's ``dump_target``, and
        without one the oldest format that loses nothing.
        """
        return self._engine.run(dump.dump, self.name_of(key), target)

    def restore(
        self,
        key: Name,
        payload: bytes | bytearray | memoryview,
        *,
        replace: bool = False,
        expire_at_ms: int = 0,
    ) -> list[str]:
        """Create a key from a payload of DUMP, of kvstream or Redis; return its corrected counters.

        Raises BadPayload for an invalid payload, and KeyExists if the key exists and ``replace`` is
        false; nothing is changed then.
        """
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise InvalidArgument(f"a payload is the bytes of dump, not {show(payload)}")
        at_ms = unix_ms(expire_at_ms, "expire_at_ms")
        return self._engine.run(dump.restore, self.name_of(key), bytes(payload), replace, at_ms)

    def loader(
        self, key: Name, *, replace: bool = False, expire_at_ms: int = 0, label: bytes = b""
    ) -> Loader:
        """Return a loader that creates a stream piece by piece, for a ``with`` block.

        With a ``label``, unique to this load, an interrupted load is kept for a week, and the next
        loader with that label continues it.
        """
        at_ms = unix_ms(expire_at_ms, "expire_at_ms")
        return Loader(
            self.engine, self.name_of(key), replace=replace, expire_at_ms=at_ms, label=label
        )

    def unfinished_loads(self) -> list[UnfinishedLoad]:
        """Return the running and interrupted loads of all databases."""
        return self.engine.run(staged_loads.list_unfinished)

    def discard_load(self, label: bytes) -> bool:
        """Delete an interrupted load; return whether there was one."""
        return self.engine.run(staged_loads.discard, label)

    # --- bulk loads -----------------------------------------------------------------------------

    def bulk_ticket(self, keys: Iterable[Name]) -> BulkTicket:
        """Return the ticket that PartWriter needs to write parts for one bulk load, in any process.

        ``keys`` are the streams that the load will append to: for an existing stream that is not
        named, ``bulk_load`` writes the entries again. A ticket is for one load.
        """
        names = [name_bytes(key) for key in keys]
        return self.engine.run(commit.ticket, self.db, names)

    def bulk_load(
        self, ticket: BulkTicket, parts: Iterable[Part], *, mark: tuple[Name, int] | None = None
    ) -> BulkResult:
        """Append the entries of ``parts`` in one commit: all or nothing, and invisible before.

        ``ticket`` is that of ``bulk_ticket``. ``mark`` is the key of a plain string and the number
        of a batch. The same commit sets it; if it is set to that number or a higher one, nothing is
        done. Other threads wait if rows have to be written again. Raises IDTooSmall if IDs are not
        above a stream's last one.
        """
        return commit.load(self.engine, ticket, parts, mark_of(mark, self.db))

    def bulk_append(
        self,
        streams: Mapping[Name, tuple[list[bytes] | None, list[bytes]]],
        *,
        mark: tuple[Name, int] | None = None,
    ) -> BulkResult:
        """Append entries to streams in one commit: per key, packed IDs and stored values.

        None instead of the IDs lets the store allot them. ``mark`` is that of ``bulk_load``.
        """
        wanted = {self.name_of(key): entries for key, entries in streams.items()}
        return self.engine.run(append.append_many, wanted, mark_of(mark, self.db))

    # --- care -----------------------------------------------------------------------------------

    def sync(self) -> None:
        """Wait until every write so far is durable, at every durability level."""
        self.engine.sync()

    def checkpoint(self, path: AnyPath) -> None:
        """Write a consistent copy of the store into a new directory; it opens as a store."""
        self.engine.checkpoint(path_of(path))

    def check(self, *, repair: bool = False) -> list[Fault]:
        """Recount every stream, node, group and pending entry; return the faults found.

        ``repair`` corrects wrong counters. Raises Corruption if rows cannot be read at all.
        """
        return self.engine.run(checks.check, repair)

    def compact(self) -> None:
        """Compact everything, which frees the disk space of deleted rows; on a server, its AOF."""
        self._engine.compact()

    def stats(self) -> dict[str, Any]:
        """Return sizes and counters of RocksDB and queues; on a server, the sections of INFO."""
        return self._engine.statistics()


def _check_db(db: int, options: StoreOptions) -> int:
    number = whole(db, "db")
    if not 0 <= number < options.databases:
        raise InvalidArgument("DB index is out of range")
    return number
