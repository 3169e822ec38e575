"""Long streams of a server, brought into a store by ranges of their IDs: a task for each.

The entries are a bulk load under a name that migrations keep for themselves: tasks make tables, the
driver has the store take them in. Then come what was added meanwhile, groups, counters and expiry,
and the name, in one commit: so a stream is seen whole or not at all. It knows one stream at a time.
"""

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvstream.errors import DataError, NoSuchKey
from kvstream.ids import StreamID
from kvstream.images import StreamState
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.migration import Selection, differences, paging, parse_place
from kvstream.migration.paging import PagedStream
from kvstream.migration.places import PlaceKind
from kvstream.migration.server import Server
from kvstream.migration.server_source import ServerSource
from kvstream.migration.store_place import StoreSource
from kvstream.operations import keyspace
from kvstream.operations.loading import restate
from kvstream.parts import BulkTicket, Part, PartWriter
from kvstream.remote.connection import Connection, connect
from kvstream.spark.jobs.places import Say
from kvstream.spark.options import Place
from kvstream.spark.reading.pieces import Wanted
from kvstream.spark.reading.servers import ServerReading, client_of
from kvstream.storage.private_files import DIRECTORY_MODE
from kvstream.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPLIT_ENTRIES = 1_000_000
"""A stream with more entries than these is brought by several tasks."""
_TELLS_COUNTERS = (7, 0)
"""The first version of Redis that tells how much groups have read."""
UNDER = b"kvstream:migrate:split:"
"""Opens the name of a stream that is not whole yet."""


@dataclass(frozen=True, slots=True)
class Long:
    """A long stream, and where it is to go."""

    source: str
    target: str
    db: int
    key: bytes

    @property
    def under(self) -> bytes:
        """The name that it has until it is whole."""
        return UNDER + self.key

    def connection(self) -> Connection:
        return Connection(connect(self.source, reply_s=300.0), self.db)


@dataclass(frozen=True, slots=True)
class Range:
    """What one task brings."""

    stream: Long
    first: StreamID
    last: StreamID
    partition: int
    ticket: BulkTicket
    folder: str


def long_streams(
    source: str, target: str, match: tuple[str, ...], allowed: frozenset[str], least: int
) -> list[Long]:
    """Return the streams of a server that are worth more than one task, and lose nothing by it.

    Commands tell less than DUMP does of the newest servers: such a stream is brought in one piece.
    """
    here, there = parse_place(source), parse_place(target, create=True)
    if not least or here.kind is not PlaceKind.SERVER or there.kind is not PlaceKind.STORE:
        return []
    chosen = None if here.database is None else frozenset([here.database])
    selection = Selection(tuple(name.encode() for name in match), chosen)
    found: list[Long] = []
    server = Server(here)
    with closing(ServerSource(server)):
        if server.about.version < _TELLS_COUNTERS:
            return []
        for db in filter(selection.has_database, server.databases()):
            reading = ServerReading(client_of(Place("url", source, db)))
            keys = [key for key in reading.streams(Wanted((), (b"*",))) if selection.has(db, key)]
            for key, ends in zip(keys, reading.ends(keys), strict=True):
                stream = Long(source, str(there.path), db, key)
                if ends is None or ends.length < least or not _is_text(key):
                    continue
                notes = paging.outline(server.connection(db), key).notes
                if all(note.name in allowed for note in notes):
                    found.append(stream)
            reading.close()
    return found


def _is_text(key: bytes) -> bool:
    """Tell whether Spark can name a stream, to compare it."""
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def bring(spark: "SparkSession", stream: Long, say: Say) -> int:
    """Bring a stream that is not at the target yet; return its entries, 0 where it is there."""
    with Store.open(stream.target, db=stream.db) as store:
        if store.type(stream.key) != "none":
            return 0
        store.delete(stream.under)  # what a run that was killed has left
        ticket = store.bulk_ticket([stream.under])
    folder = Path(f"{stream.target}.staging") / f"split-{ticket.shared:x}"
    folder.mkdir(DIRECTORY_MODE, parents=True)
    try:
        ranges = _ranges(stream, ticket, str(folder), spark.sparkContext.defaultParallelism)
        say(f"{stream.key.decode()}: {len(ranges):,} ranges of IDs")
        parts = spark.sparkContext.parallelize(ranges, len(ranges) or 1).flatMap(parts_of).collect()
        with Store.open(stream.target, db=stream.db) as store:
            try:
                loaded = store.bulk_load(ticket, parts).entries
                return _complete(store, stream, ranges[-1].last if ranges else None, loaded)
            except BaseException:
                store.delete(stream.under)
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if not any(folder.parent.iterdir()):
            folder.parent.rmdir()


def _ranges(stream: Long, ticket: BulkTicket, folder: str, parts: int) -> list[Range]:
    reading = ServerReading(client_of(Place("url", stream.source, stream.db)))
    try:
        pieces = reading.pieces([stream.key], Wanted((stream.key,), ()), parts)
    finally:
        reading.close()
    return [
        Range(stream, piece.start, piece.end, at, ticket, folder) for at, piece in enumerate(pieces)
    ]


def parts_of(wanted: Range) -> Iterator[Part]:
    """Run in a task: make the entries of a range into parts."""
    stream = wanted.stream
    writer = PartWriter(wanted.folder, wanted.ticket, partition=wanted.partition)
    bounds = wanted.first.packed, wanted.last.packed
    with closing(stream.connection()) as connection:
        for ids, values in paging.between(connection, stream.key, *bounds):
            writer.extend(stream.under, ids, values)
    yield from writer.close()


def _complete(store: Store, stream: Long, last: StreamID | None, loaded: int) -> int:
    """Add what has come behind the last range, and all but entries; then give it its name."""
    with closing(stream.connection()) as connection:
        rest = PagedStream(connection, stream.key, after=last, counted=loaded)
        for node in rest.nodes():
            loaded += store.bulk_append({stream.under: (list(node.ids), list(node.values))}).entries
        state = rest.state()
        expire_at_ms = _expiry(connection, stream.key)
    if not loaded or state.length != loaded:
        raise DataError(
            f"{stream.key!r} was changed while it was read: {loaded} entries came, {state.length} "
            "were there at the end: run again"
        )
    store.engine.run(_publish, stream, state, expire_at_ms)
    return loaded


def _publish(txn: Txn, stream: Long, state: StreamState, expire_at_ms: int) -> None:
    under, name = (qualified(stream.db, key) for key in (stream.under, stream.key))
    restate(txn, under, state)
    if not keyspace.rename(txn, under, name, replace=False):
        raise DataError(f"{stream.key!r} has come to the target while it was brought there")
    if expire_at_ms:
        keyspace.expire_at(txn, name, expire_at_ms)


def _expiry(connection: Connection, key: bytes) -> int:
    """Return when a key expires, 0: never."""
    seconds, micros = connection.ask("TIME")
    left_ms: int = connection.ask("PTTL", key)
    if left_ms == -2:
        raise NoSuchKey(f"{key!r} has gone while it was read")
    return 0 if left_ms < 0 else int(seconds) * 1000 + int(micros) // 1000 + left_ms


def differing(stream: Long) -> int:
    """Return how many differences there are in what a stream has besides entries."""
    with (
        closing(ServerSource(Server(parse_place(stream.source)))) as source,
        closing(StoreSource(Store.open(stream.target, read_only=True))) as target,
    ):
        mine, theirs = (each.item(stream.db, stream.key) for each in (source, target))
        if mine is None or theirs is None or mine.outline is None or theirs.outline is None:
            return 1
        told = differences.states(mine.outline().state, theirs.outline().state)
        return sum(not each.may_move for each in told)
