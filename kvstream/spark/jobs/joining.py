"""Where the parts of a long stream go: a store that nobody has open, or a kvstream server.

Both take the entries first, under a name that migrations keep for themselves; then, in one commit
each, what was added meanwhile, the state, and the name at the very end.

Long streams of a server, brought by ranges of their IDs: a task for each.

The entries are a bulk load (``joining``): tasks make tables, and one commit takes them in. Then
come what was added meanwhile, groups, counters and expiry, and the name: so a stream is seen whole
or not at all. It knows one stream at a time.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kvstream.bulkload.parts import BulkTicket, Part, PartWriter
from kvstream.errors import DataError, NoSuchKey
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.migration import Selection, differences, parse_place, server_source, server_target
from kvstream.migration.places import Place as MigrationPlace
from kvstream.migration.places import PlaceKind
from kvstream.migration.server import Server
from kvstream.migration.server_source import PagedStream, ServerSource
from kvstream.migration.store_place import StoreSource
from kvstream.operations import keyspace
from kvstream.operations.load import restate
from kvstream.rdb import payload
from kvstream.rdb.versions import NEWEST
from kvstream.remote.connection import Connection, connect
from kvstream.spark.jobs.places import Say
from kvstream.spark.options import Place
from kvstream.spark.read.partitions import Wanted
from kvstream.spark.read.servers import ServerReading, client_of
from kvstream.spark.write import upload as uploading
from kvstream.spark.write.upload import Upload, Workshop
from kvstream.storage.files import DIRECTORY_MODE
from kvstream.store import Store
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.images import StreamState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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

    @property
    def is_served(self) -> bool:
        return parse_place(self.target, create=True).kind is PlaceKind.SERVER

    def connection(self) -> Connection:
        return Connection(connect(self.source, reply_s=300.0), self.db)

    def target_client(self) -> Any:
        """Return a client of the server that it is to go to."""
        return client_of(Place("url", self.target, self.db))


class Making(Protocol):
    """How tasks make parts; to be pickled."""

    def make(self, stream: Long, partition: int, pages: Iterator[Any]) -> list[Part]: ...


class Joining(Protocol):
    """One stream on its way to its target; ``end`` removes what is left of it."""

    def begin(self) -> Making | None:
        """Return how tasks make parts; None where the stream is at the target already."""
        ...

    def complete(self, parts: Sequence[Part], last: StreamID | None) -> int:
        """Make the stream of parts, up to ``last``, and of what came since; return its entries."""
        ...

    def end(self) -> None: ...


def joining(stream: Long) -> Joining:
    return ServerJoining(stream) if stream.is_served else StoreJoining(stream)


def _fill(writer: PartWriter, stream: Long, pages: Iterator[Any]) -> list[Part]:
    for ids, values in pages:
        writer.extend(stream.under, ids, values)
    return writer.close()


def _rest(stream: Long, source: Connection, last: StreamID | None, loaded: int) -> PagedStream:
    return PagedStream(source, stream.key, after=last, counted=loaded)


def _refuse_changed(stream: Long, state: StreamState, loaded: int) -> None:
    if not loaded or state.length != loaded:
        raise DataError(
            f"{stream.key!r} was changed while it was read: {loaded} entries came, {state.length} "
            "were there at the end: run again"
        )


def _taken(stream: Long) -> DataError:
    return DataError(f"{stream.key!r} has come to the target while it was brought there")


def _expiry(connection: Connection, key: bytes) -> int:
    """Return when a key expires, 0: never."""
    seconds, micros = connection.ask("TIME")
    left_ms: int = connection.ask("PTTL", key)
    if left_ms == -2:
        raise NoSuchKey(f"{key!r} has gone while it was read")
    return 0 if left_ms < 0 else int(seconds) * 1000 + int(micros) // 1000 + left_ms


# --- a store --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InFolder:
    """Parts that are made where the store is."""

    ticket: BulkTicket
    folder: str

    def make(self, stream: Long, partition: int, pages: Iterator[Any]) -> list[Part]:
        return _fill(PartWriter(self.folder, self.ticket, partition=partition), stream, pages)


class StoreJoining:
    """A store that is opened twice: for the ticket, and for the commit."""

    def __init__(self, stream: Long) -> None:
        self._stream = stream
        self._folder: Path | None = None
        self._ticket: BulkTicket | None = None

    def begin(self) -> InFolder | None:
        stream = self._stream
        with Store.open(stream.target, db=stream.db) as store:
            if store.type(stream.key) != "none":
                return None
            store.delete(stream.under)  # what a run that was killed has left
            self._ticket = store.bulk_ticket([stream.under])
        self._folder = Path(f"{stream.target}.staging") / f"split-{self._ticket.shared:x}"
        self._folder.mkdir(DIRECTORY_MODE, parents=True)
        return InFolder(self._ticket, str(self._folder))

    def complete(self, parts: Sequence[Part], last: StreamID | None) -> int:
        stream = self._stream
        assert self._ticket is not None
        with Store.open(stream.target, db=stream.db) as store:
            try:
                loaded = store.bulk_load(self._ticket, parts).entries
                with closing(stream.connection()) as source:
                    rest = _rest(stream, source, last, loaded)
                    for node in rest.nodes():
                        page = list(node.ids), list(node.values)
                        loaded += store.bulk_append({stream.under: page}).entries
                    state, expire_at_ms = rest.state(), _expiry(source, stream.key)
                _refuse_changed(stream, state, loaded)
                store.engine.run(_publish, stream, state, expire_at_ms)
            except BaseException:
                store.delete(stream.under)
                raise
        return loaded

    def end(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            if not any(self._folder.parent.iterdir()):
                self._folder.parent.rmdir()


def _publish(txn: Txn, stream: Long, state: StreamState, expire_at_ms: int) -> None:
    under, name = (qualified(stream.db, key) for key in (stream.under, stream.key))
    restate(txn, under, state)
    if not keyspace.rename(txn, under, name, replace=False):
        raise _taken(stream)
    if expire_at_ms:
        keyspace.expire_at(txn, name, expire_at_ms)


# --- a server -------------------------------------------------------------------------------------


def takes_tables(target: str) -> bool:
    """Tell whether a server takes bulk loads, from this user."""
    client = client_of(Place("url", target))
    try:
        upload = uploading.begin(client, [])
        if upload is not None:
            uploading.discard(client, upload)
        return upload is not None
    finally:
        client.close()


@dataclass(frozen=True, slots=True)
class BySending:
    """Parts that are made anywhere, and sent."""

    upload: Upload

    def make(self, stream: Long, partition: int, pages: Iterator[Any]) -> list[Part]:
        with Workshop() as folder, closing(stream.target_client()) as client:
            writer = PartWriter(folder, self.upload.ticket, partition=partition)
            return uploading.send(client, self.upload, _fill(writer, stream, pages))


class ServerJoining:
    """A kvstream server, by KVSTREAM.LOAD."""

    def __init__(self, stream: Long) -> None:
        self._stream = stream
        self._client = stream.target_client()
        self._upload: Upload | None = None

    def begin(self) -> BySending | None:
        stream, target = self._stream, Connection(self._client)
        if target.ask("EXISTS", stream.key):
            return None
        target.do("DEL", stream.under)  # what a run that was killed has left
        self._upload = uploading.begin(self._client, [stream.under])
        if self._upload is None:
            raise DataError("the server takes no bulk loads from this user any more")
        return BySending(self._upload)

    def complete(self, parts: Sequence[Part], last: StreamID | None) -> int:
        stream, loaded = self._stream, 0
        assert self._upload is not None
        target = Connection(self._client)
        try:
            if parts:
                _, loaded = uploading.commit(self._client, self._upload, parts, None)
            with closing(stream.connection()) as source:
                rest = _rest(stream, source, last, loaded)
                for node in rest.nodes():
                    target.do_many(server_target.adds(stream.under, [node], MIN_ID.packed))
                    loaded += node.count
                state, expire_at_ms = rest.state(), _expiry(source, stream.key)
            _refuse_changed(stream, state, loaded)
            bare = replace(state, length=0, first=MIN_ID)
            told = b"".join(payload.dump(NEWEST, iter(()), bare, 0))
            target.do(uploading.COMMAND, "STATE", stream.under, told)
            if expire_at_ms:
                target.do("PEXPIREAT", stream.under, expire_at_ms)
            if not target.do("RENAMENX", stream.under, stream.key):
                raise _taken(stream)
        except BaseException:
            target.do("DEL", stream.under)
            raise
        return loaded

    def end(self) -> None:
        if self._upload is not None:
            uploading.discard(self._client, self._upload)
        self._client.close()


SPLIT_ENTRIES = 1_000_000
"""A stream with more entries than these is brought by several tasks."""
_TELLS_COUNTERS = (7, 0)
"""The first version of Redis that tells how much groups have read."""


@dataclass(frozen=True, slots=True)
class Range:
    """What one task brings."""

    stream: Long
    first: StreamID
    last: StreamID
    partition: int
    making: Making


def long_streams(
    source: str, target: str, match: tuple[str, ...], allowed: frozenset[str], least: int
) -> list[Long]:
    """Return the streams of a server that are worth more than one task, and lose nothing by it.

    Commands tell less than DUMP does of the newest servers: such a stream is brought in one piece.
    """
    here, there = parse_place(source), parse_place(target, create=True)
    if not least or here.kind is not PlaceKind.SERVER or not _takes_parts(there, target):
        return []
    chosen = None if here.database is None else frozenset([here.database])
    selection = Selection(tuple(name.encode() for name in match), chosen)
    found: list[Long] = []
    into = target if there.kind is PlaceKind.SERVER else str(there.path)
    server = Server(here)
    with closing(ServerSource(server)):
        if server.about.version < _TELLS_COUNTERS:
            return []
        for db in filter(selection.has_database, server.databases()):
            reading = ServerReading(client_of(Place("url", source, db)))
            keys = [key for key in reading.streams(Wanted((), (b"*",))) if selection.has(db, key)]
            for key, ends in zip(keys, reading.ends(keys), strict=True):
                stream = Long(source, into, db, key)
                if ends is None or ends.length < least or not _is_text(key):
                    continue
                notes = server_source.outline(server.connection(db), key).notes
                if all(note.name in allowed for note in notes):
                    found.append(stream)
            reading.close()
    return found


def _takes_parts(there: MigrationPlace, target: str) -> bool:
    """Tell whether a target takes tables: a store, or a kvstream server without a database."""
    if there.kind is PlaceKind.SERVER:
        return there.database is None and takes_tables(target)
    return there.kind is PlaceKind.STORE


def _is_text(key: bytes) -> bool:
    """Tell whether Spark can name a stream, to compare it."""
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def bring(spark: "SparkSession", stream: Long, say: Say) -> int:
    """Bring a stream that is not at the target yet; return its entries, 0 where it is there."""
    into = joining(stream)
    try:
        making = into.begin()
        if making is None:
            return 0
        ranges = _ranges(stream, making, spark.sparkContext.defaultParallelism)
        say(f"{stream.key.decode()}: {len(ranges):,} ranges of IDs")
        parts = spark.sparkContext.parallelize(ranges, len(ranges) or 1).flatMap(parts_of).collect()
        return into.complete(parts, ranges[-1].last if ranges else None)
    finally:
        into.end()


def _ranges(stream: Long, making: Making, parts: int) -> list[Range]:
    reading = ServerReading(client_of(Place("url", stream.source, stream.db)))
    try:
        pieces = reading.pieces([stream.key], Wanted((stream.key,), ()), parts)
    finally:
        reading.close()
    return [Range(stream, piece.start, piece.end, at, making) for at, piece in enumerate(pieces)]


def parts_of(wanted: Range) -> Iterator[Part]:
    """Run in a task: make the entries of a range into parts."""
    stream, bounds = wanted.stream, (wanted.first.packed, wanted.last.packed)
    with closing(stream.connection()) as connection:
        pages = server_source.between(connection, stream.key, *bounds)
        yield from wanted.making.make(stream, wanted.partition, pages)


def differing(stream: Long) -> int:
    """Return how many differences there are in what a stream has besides entries."""
    with (
        closing(ServerSource(Server(parse_place(stream.source)))) as source,
        closing(_target_of(stream)) as target,
    ):
        mine, theirs = (each.item(stream.db, stream.key) for each in (source, target))
        if mine is None or theirs is None or mine.outline is None or theirs.outline is None:
            return 1
        told = differences.states(mine.outline().state, theirs.outline().state)
        return sum(not each.may_move for each in told)


def _target_of(stream: Long) -> ServerSource | StoreSource:
    if stream.is_served:
        return ServerSource(Server(parse_place(stream.target)))
    return StoreSource(Store.open(stream.target, read_only=True))
