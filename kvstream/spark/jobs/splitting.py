"""Migrate a long stream of a server by ranges of its IDs, with a task for each range.

The tasks write the entries as one bulk load, under a label that is reserved for migrations. The
driver commits that load, appends the entries added meanwhile, copies groups, counters and expiry,
and renames the label to the key. So readers see the stream whole or not at all.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstream.bulkload.parts import BulkTicket, Part, PartWriter, RowsFile, RowsWriter
from kvstream.errors import DataError, NoSuchKey, quote
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.migration import Selection, differences, parse_place, server_source, server_target
from kvstream.migration.places import Place as MigrationPlace
from kvstream.migration.places import PlaceKind
from kvstream.migration.server import Server
from kvstream.migration.server_source import PagedStream, ServerSource
from kvstream.migration.store_place import StoreSource
from kvstream.operations import keyspace
from kvstream.operations.images.load import restate
from kvstream.rdb import payload
from kvstream.rdb.versions import NEWEST
from kvstream.remote.connection import Connection
from kvstream.remote.failover import connect_present
from kvstream.remote.replies import unix_ms
from kvstream.spark.jobs.places import Say
from kvstream.spark.options import Place
from kvstream.spark.read.partitions import ReadSpec
from kvstream.spark.read.servers import ServerReader, client_of
from kvstream.spark.write.commit import Upload
from kvstream.spark.write.servers import (
    LOAD_COMMAND,
    begin_load,
    commit_load,
    discard_load,
    send_files,
    temporary_folder,
)
from kvstream.storage.files import DIRECTORY_MODE
from kvstream.store import Store
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.images import StreamState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SPLIT_ENTRIES = 1_000_000
"""Streams with at least as many entries are migrated by several tasks."""
LABEL_PREFIX = b"kvstream:migrate:split:"
_COUNTERS_SINCE = (7, 0)
"""The first version of Redis whose XINFO has the counters of groups."""


@dataclass(frozen=True, slots=True)
class LongStream:
    """A stream to be split, and its target."""

    source: str
    target: str
    db: int
    key: bytes

    @property
    def label(self) -> bytes:
        """The key at the target until the stream is whole."""
        return LABEL_PREFIX + self.key

    @property
    def to_server(self) -> bool:
        return parse_place(self.target, create=True).kind is PlaceKind.SERVER

    def source_connection(self) -> Connection:
        return Connection(connect_present(self.source, reply_s=300.0), self.db)

    def target_client(self) -> Any:
        return client_of(Place("url", self.target, self.db))


def _refuse_changed(stream: LongStream, state: StreamState, loaded: int) -> None:
    if not loaded or state.length != loaded:
        raise DataError(
            f"{quote(stream.key)} was changed while it was read: {loaded} entries were read, but "
            f"it has {state.length} now: run again"
        )


def _key_created(stream: LongStream) -> DataError:
    return DataError(f"{quote(stream.key)} was created at the target during the migration")


def _expire_at_ms(connection: Connection, key: bytes) -> int:
    """Return when a key expires; 0: never."""
    now_ms = unix_ms(connection.ask("TIME"))
    left_ms: int = connection.ask("PTTL", key)
    if left_ms == -2:
        raise NoSuchKey(f"{quote(key)} was deleted while it was read")
    return 0 if left_ms < 0 else now_ms + left_ms


# --- a store as the target ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LocalParts:
    """Writes parts beside the store."""

    ticket: BulkTicket
    folder: str

    def make(self, stream: LongStream, partition: int, pages: Iterator[Any]) -> list[Part]:
        writer = PartWriter(self.folder, self.ticket, partition=partition)
        for ids, values in pages:
            writer.extend(stream.label, ids, values)
        return writer.close()


class StoreTarget:
    """A store, opened once for the ticket and once for the commit."""

    def __init__(self, stream: LongStream) -> None:
        self._stream = stream
        self._folder: Path | None = None
        self._ticket: BulkTicket | None = None

    def begin(self) -> LocalParts | None:
        """Begin a bulk load; return None if the target has the stream already."""
        stream = self._stream
        with Store.open(stream.target, db=stream.db) as store:
            if store.type(stream.key) != "none":
                return None
            store.delete(stream.label)  # left by a run that was killed
            self._ticket = store.bulk_ticket([stream.label])
        self._folder = Path(f"{stream.target}.staging") / f"split-{self._ticket.shared:x}"
        self._folder.mkdir(DIRECTORY_MODE, parents=True)
        return LocalParts(self._ticket, str(self._folder))

    def complete(self, parts: Sequence[Part], last: StreamID | None) -> int:
        """Commit the parts, which end at ``last``, and all later entries; return their number."""
        stream = self._stream
        assert self._ticket is not None
        with Store.open(stream.target, db=stream.db) as store:
            try:
                loaded = store.bulk_load(self._ticket, parts).entries
                with closing(stream.source_connection()) as source:
                    rest = PagedStream(source, stream.key, after=last, counted=loaded)
                    for node in rest.nodes():
                        page = list(node.ids), list(node.values)
                        loaded += store.bulk_append({stream.label: page}).entries
                    state, expire_at_ms = rest.state(), _expire_at_ms(source, stream.key)
                _refuse_changed(stream, state, loaded)
                store.engine.run(_publish, stream, state, expire_at_ms)
            except BaseException:
                store.delete(stream.label)
                raise
        return loaded

    def close(self) -> None:
        """Remove temporary files."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            if not any(self._folder.parent.iterdir()):
                self._folder.parent.rmdir()


def _publish(txn: Txn, stream: LongStream, state: StreamState, expire_at_ms: int) -> None:
    label, name = (qualified(stream.db, key) for key in (stream.label, stream.key))
    restate(txn, label, state)
    if not keyspace.rename(txn, label, name, replace=False):
        raise _key_created(stream)
    if expire_at_ms:
        keyspace.expire_at(txn, name, expire_at_ms)


# --- a kvstream server as the target --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SentFiles:
    """Writes files of rows on the task's machine, and sends them."""

    upload: Upload

    def make(self, stream: LongStream, partition: int, pages: Iterator[Any]) -> list[RowsFile]:
        with temporary_folder() as folder, closing(stream.target_client()) as client:
            writer = RowsWriter(folder, self.upload.ticket, partition=partition)
            for ids, values in pages:
                writer.extend(stream.label, ids, values)
            return send_files(client, self.upload, writer.close())


PartMaker = LocalParts | SentFiles
"""Writes the entries of a range in a task, to which it is pickled."""


class ServerTarget:
    """A kvstream server, loaded by KVSTREAM.LOAD; its methods are those of StoreTarget."""

    def __init__(self, stream: LongStream) -> None:
        self._stream = stream
        self._client = stream.target_client()
        self._upload: Upload | None = None

    def begin(self) -> SentFiles | None:
        stream, target = self._stream, Connection(self._client)
        if target.ask("EXISTS", stream.key):
            return None
        target.do("DEL", stream.label)  # left by a run that was killed
        self._upload = begin_load(self._client, [stream.label])
        if self._upload is None:
            raise DataError("the server no longer accepts bulk loads from this user")
        return SentFiles(self._upload)

    def complete(self, parts: Sequence[RowsFile], last: StreamID | None) -> int:
        stream, loaded = self._stream, 0
        assert self._upload is not None
        target = Connection(self._client)
        try:
            if parts:
                _, loaded = commit_load(self._client, self._upload, parts, None)
            with closing(stream.source_connection()) as source:
                rest = PagedStream(source, stream.key, after=last, counted=loaded)
                for node in rest.nodes():
                    target.do_many(server_target.adds(stream.label, [node], MIN_ID.packed))
                    loaded += node.count
                state, expire_at_ms = rest.state(), _expire_at_ms(source, stream.key)
            _refuse_changed(stream, state, loaded)
            without_entries = replace(state, length=0, first=MIN_ID)
            dumped = b"".join(payload.dump(NEWEST, iter(()), without_entries, 0))
            target.do(LOAD_COMMAND, "STATE", stream.label, dumped)
            if expire_at_ms:
                target.do("PEXPIREAT", stream.label, expire_at_ms)
            if not target.do("RENAMENX", stream.label, stream.key):
                raise _key_created(stream)
        except BaseException:
            target.do("DEL", stream.label)
            raise
        return loaded

    def close(self) -> None:
        if self._upload is not None:
            discard_load(self._client, self._upload)
        self._client.close()


# --- the streams of a source ----------------------------------------------------------------------


def long_streams(
    source: str, target: str, match: tuple[str, ...], allowed: frozenset[str], least: int
) -> list[LongStream]:
    """Return a server's streams of at least ``least`` entries that may be split; 0 means none.

    A stream that loses something by commands, but nothing by DUMP, is not split, nor is a queue.
    """
    here, there = parse_place(source), parse_place(target, create=True)
    if not least or here.kind is not PlaceKind.SERVER or not _accepts_loads(there, target):
        return []
    chosen = None if here.database is None else frozenset([here.database])
    selection = Selection(tuple(name.encode() for name in match), chosen)
    streams: list[LongStream] = []
    into = target if there.kind is PlaceKind.SERVER else str(there.path)
    server = Server(here)
    with closing(ServerSource(server)):
        if server.about.version < _COUNTERS_SINCE:
            return []
        for db in filter(selection.has_database, server.databases()):
            reader = ServerReader(client_of(Place("url", source, db)))
            keys = [key for key in reader.streams(ReadSpec((), (b"*",))) if selection.has(db, key)]
            for key, ends in zip(keys, reader.ends(keys), strict=True):
                stream = LongStream(source, into, db, key)
                if ends is None or ends.length < least or not _is_text(key):
                    continue
                known = server_source.outline(server.connection(db), key, server.has_queues)
                if all(note.name in allowed for note in known.notes) and not known.state.queue:
                    streams.append(stream)
            reader.close()
    return streams


def _accepts_loads(there: MigrationPlace, target: str) -> bool:
    """Return whether a target is a store, or a kvstream server without a database in its URL."""
    if there.kind is not PlaceKind.SERVER:
        return there.kind is PlaceKind.STORE
    if there.database is not None:
        return False
    client = client_of(Place("url", target))
    try:
        upload = begin_load(client, [])
        if upload is not None:
            discard_load(client, upload)
        return upload is not None
    finally:
        client.close()


def _is_text(key: bytes) -> bool:
    """Return whether Spark can name a stream, to verify it."""
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Range:
    """The work of one task."""

    stream: LongStream
    first: StreamID
    last: StreamID
    partition: int
    maker: PartMaker


def migrate_stream(spark: "SparkSession", stream: LongStream, say: Say) -> int:
    """Migrate a stream; return its number of entries, or 0 if the target has it already."""
    target = ServerTarget(stream) if stream.to_server else StoreTarget(stream)
    try:
        maker = target.begin()
        if maker is None:
            return 0
        ranges = _ranges(stream, maker, spark.sparkContext.defaultParallelism)
        say(f"{stream.key.decode()}: {len(ranges):,} ranges of IDs")
        tasks = spark.sparkContext.parallelize(ranges, len(ranges) or 1)
        parts: list[Any] = tasks.flatMap(make_parts).collect()
        return target.complete(parts, ranges[-1].last if ranges else None)
    finally:
        target.close()


def _ranges(stream: LongStream, maker: PartMaker, parts: int) -> list[Range]:
    reader = ServerReader(client_of(Place("url", stream.source, stream.db)))
    try:
        pieces = reader.pieces([stream.key], ReadSpec((stream.key,), ()), parts)
    finally:
        reader.close()
    return [Range(stream, piece.start, piece.end, at, maker) for at, piece in enumerate(pieces)]


def make_parts(work: Range) -> Iterator[Part | RowsFile]:
    """Run in a task: write the entries of a range."""
    stream, bounds = work.stream, (work.first.packed, work.last.packed)
    with closing(stream.source_connection()) as connection:
        pages = server_source.read_range(connection, stream.key, *bounds)
        yield from work.maker.make(stream, work.partition, pages)


def state_differences(stream: LongStream) -> int:
    """Return the number of differences between source and target, apart from entries."""
    with (
        closing(ServerSource(Server(parse_place(stream.source)))) as source,
        closing(_target_source(stream)) as target,
    ):
        mine, theirs = (each.item(stream.db, stream.key) for each in (source, target))
        if mine is None or theirs is None or mine.outline is None or theirs.outline is None:
            return 1
        different = differences.states(mine.outline().state, theirs.outline().state)
        return sum(not each.may_move for each in different)


def _target_source(stream: LongStream) -> ServerSource | StoreSource:
    if stream.to_server:
        return ServerSource(Server(parse_place(stream.target)))
    return StoreSource(Store.open(stream.target, read_only=True))
