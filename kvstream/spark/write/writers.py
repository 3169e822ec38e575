"""The writers of ``format("kvstream")``, which Spark calls in tasks and for commits.

Tasks encode and stage rows; the commit on the driver adds them to each place in one step. If a
server holds a store in a directory, the write goes through that server.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from kvstream.bulkload.parts import BulkTicket
from kvstream.engine import server_address
from kvstream.errors import AccessDenied, InvalidArgument, RequestError, StoreError, StoreLocked
from kvstream.remote.connection import Connection
from kvstream.spark.gc_settings import freeze_modules, without_gc
from kvstream.spark.options import Options, Place, choice, flag, number, places, split_list
from kvstream.spark.read.servers import client_of
from kvstream.spark.write.commit import Commit, Committed, Gathering, Share, Upload
from kvstream.spark.write.encoding import encode_batch
from kvstream.spark.write.schema import Columns, IDKind, columns_of
from kvstream.spark.write.servers import begin_load, commit_through, discard_load
from kvstream.spark.write.spill import AT_LEAST_ONCE, DELIVERIES, discard, spill_of, staging_of
from kvstream.spark.write.stage import Transaction
from kvstream.spark.write.stores import commit_into, mark_of, ticket_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def commit_to(place: Place, wait_s: float, work: Commit) -> Committed:
    """Commit into one place, atomically."""
    if place.kind == "path":
        path, db = place.address, place.db or 0
        try:
            return commit_into(path, db, 0, work)
        except StoreLocked:
            server = None if work.parts else server_of(place)
            if server is None:
                return commit_into(path, db, wait_s, work)
            place = server
    with client_of(place) as client:
        return commit_through(client, work)


def mark_in(place: Place, transaction: Transaction) -> bytes | None:
    """Return a writer's mark in a place; None if there is none."""
    if place.kind == "path":
        try:
            return mark_of(place.address, place.db or 0, transaction)
        except StoreLocked:
            server = server_of(place)
            if server is None:
                raise
            place = server
    with client_of(place) as client:
        return cast("bytes | None", Connection(client).ask("GET", transaction.key))


def prepare(place: Place, key: bytes | None) -> tuple[Place, BulkTicket | Upload | None]:
    """Return the place to write to, and the ticket or upload for tasks; None if it takes no parts.

    ``key`` is the stream of all rows, if there is only one. If a server holds a store, the place is
    that server. If another process holds it, the place is the directory: it may be closed in time.
    """
    if place.kind == "path":
        try:
            return place, ticket_of(place.address, place.db or 0, key)
        except StoreLocked:
            server = server_of(place)
            if server is None:
                return place, None
            place = server
    with client_of(place) as client:
        return place, begin_load(client, () if key is None else (key,))


def discard_upload(place: Place, upload: Upload) -> None:
    """Remove the uploaded files of a write from a server."""
    with client_of(place) as client:
        discard_load(client, upload)


def server_of(place: Place) -> Place | None:
    """Return the server that holds the store in a directory; None if there is none or it is down.

    Raises AccessDenied if the server refuses the user and password of the options.
    """
    address = server_address.read(Path(place.address))
    if address is None:
        return None
    server = replace(place, kind="url", address=address.url, db=place.db or 0)
    try:
        with client_of(server) as client:
            info: bytes = Connection(client).ask("INFO", "server")
    except AccessDenied as error:
        raise AccessDenied(f"the store in {place.address} is held by its server: {error}") from None
    except (StoreError, RequestError):
        return None
    return server if f"run_id:{address.run_id}\r\n".encode() in info else None


WAIT_S = 30
"""The default of the option ``wait``: how long a commit waits for the store to be free."""
_WHOLE_IDS = (None, IDKind.PACKED, IDKind.NUMBERS)
_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """The message of a task to the commit."""

    partition: int
    writer: str
    shares: dict[int, Share]


@dataclass(frozen=True)
class Settings:
    """The options of a write; pickled to tasks."""

    places: tuple[Place, ...]
    columns: Columns
    wait_s: int
    skip_existing: bool
    delivery: str
    staging: str | None
    """The folder for staged files; None: beside each store."""
    transaction: Transaction | None
    """The transaction that a batch write names, so that it happens once."""
    tickets: tuple[BulkTicket | Upload | None, ...] = ()
    """For each place, its ticket or upload; None if it takes no parts."""


def settings_of(schema: "StructType", options: Options) -> Settings:
    """Parse the schema and the options. Raises InvalidArgument before anything runs."""
    given = dict(options)
    streams = split_list(options, "stream")
    if len(streams) > 1:
        raise InvalidArgument(
            "the option stream names several streams: a write without a column stream has one"
        )
    given.pop("stream", None)
    if streams:
        given["stream"] = streams[0]
    targets = tuple(places(options))
    if len({place.shown for place in targets}) < len(targets):
        raise InvalidArgument("two of the places are the same store")
    return Settings(
        targets,
        columns_of(schema, given),
        number(options, "wait", WAIT_S) or 0,
        flag(options, "skipexisting", False),
        choice(options, "delivery", DELIVERIES),
        options.get("stagingpath"),
        _own_transaction(options),
    )


def _own_transaction(options: Options) -> Transaction | None:
    writer, version = options.get("txnappid"), number(options, "txnversion", None)
    if (writer is None) != (version is None):
        raise InvalidArgument("the options txnAppId and txnVersion go together: set both or none")
    return None if writer is None or version is None else Transaction(writer, version)


def batch_writer(options: Options, schema: "StructType", overwrite: bool) -> "BatchWriter":
    """Return the writer of one batch write."""
    if overwrite:
        raise InvalidArgument("streams can only be appended to: use mode('append')")
    settings = settings_of(schema, options)
    prepared = [_prepare(settings, place) for place in settings.places]
    targets, tickets = zip(*prepared, strict=True)
    writer = BatchWriter(replace(settings, places=targets, tickets=tickets))
    writer.begin()
    return writer


def _prepare(settings: Settings, place: Place) -> tuple[Place, BulkTicket | Upload | None]:
    """Get a place's ticket or upload, if each row's ID is whole or fully allotted."""
    columns = settings.columns
    at_once = place.kind == "url" and settings.delivery == AT_LEAST_ONCE
    if columns.id_kind not in _WHOLE_IDS or settings.skip_existing or at_once:
        return place, None
    return prepare(place, columns.key)


def stream_writer(options: Options, schema: "StructType", overwrite: bool) -> "StreamWriter":
    """Return the writer of one micro-batch."""
    if overwrite:
        raise InvalidArgument("streams can only be appended to: use outputMode('append')")
    return StreamWriter(settings_of(schema, options))


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame atomically."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._transaction = settings.transaction or Transaction(uuid.uuid4().hex, 0)

    def begin(self) -> None:
        """Create the staging folders; on the driver, before any task."""
        for at, place in enumerate(self._settings.places):
            staging = staging_of(place, at, self._settings.staging, self._transaction)
            if staging is not None:
                staging.make()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stage the rows of a partition, in a task."""
        return _stage(self._settings, self._transaction, True, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit into every place, on the driver."""
        marked = self._settings.transaction is not None
        _commit(self._settings, self._transaction, marked, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the staged rows. Spark also calls this after a commit that failed midway."""
        discard(self._settings.places, self._settings.staging, self._transaction)
        _discard_uploads(self._settings)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch atomically, and once.

    Spark creates one instance for the tasks of a micro-batch, and another for its commit.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stage the rows of a partition, in a task."""
        return _stage(self._settings, _task_transaction(), False, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Commit into every place that does not have the micro-batch yet, on the driver."""
        writer = _writer_of(messages)
        if writer is not None:
            _commit(self._settings, Transaction(writer, batchId), True, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Remove the staged rows. Spark also calls this after a commit that failed midway."""
        writer = _writer_of(messages)
        if writer is not None:
            transaction = Transaction(writer, batchId)
            discard(self._settings.places, self._settings.staging, transaction)


def _task_transaction() -> Transaction:
    """Return the transaction of the running task: its query and micro-batch."""
    context = TaskContext.get()
    query = context.getLocalProperty(_QUERY) if context else None
    batch = context.getLocalProperty(_BATCH) if context else None
    if query is None or batch is None:
        raise InvalidArgument("a streaming write must run in a streaming query")
    return Transaction(query, int(batch))


def _stage(
    settings: Settings,
    transaction: Transaction,
    begun: bool,
    batches: Iterator[pa.RecordBatch],
) -> Written:
    freeze_modules()
    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    tickets = settings.tickets or (None,) * len(settings.places)
    where = settings.places, settings.staging, settings.delivery, tickets
    spill = partial(spill_of, *where, transaction, begun, partition)
    gathering = Gathering(len(settings.places), spill)
    try:
        with without_gc():
            for batch in batches:
                for rows in encode_batch(batch, settings.columns):
                    gathering.add(rows)
            return Written(partition, transaction.writer, gathering.finish(partition))
    except BaseException:
        gathering.abort()
        raise


def _writer_of(messages: Sequence[WriterCommitMessage | None]) -> str | None:
    return next((each.writer for each in messages if isinstance(each, Written)), None)


def _commit(
    settings: Settings,
    transaction: Transaction,
    marked: bool,
    messages: Sequence[WriterCommitMessage | None],
) -> None:
    written = sorted(
        (each for each in messages if isinstance(each, Written)), key=lambda each: each.partition
    )
    whole = Commit(transaction, marked, (), settings.skip_existing)
    for at, place in enumerate(settings.places):
        shares = [each.shares[at] for each in written if at in each.shares]
        if shares or marked:
            staging = staging_of(place, at, settings.staging, transaction)
            ticket = settings.tickets[at] if settings.tickets else None
            work = whole._replace(
                shares=shares,
                folder=str(staging.folder) if staging else "",
                ticket=ticket if isinstance(ticket, BulkTicket) else None,
                upload=ticket if isinstance(ticket, Upload) else None,
            )
            commit_to(place, settings.wait_s, work)
    discard(settings.places, settings.staging, transaction)
    _discard_uploads(settings)


def _discard_uploads(settings: Settings) -> None:
    """Remove uploaded files that no commit has ingested."""
    for place, ticket in zip(settings.places, settings.tickets, strict=False):
        if isinstance(ticket, Upload):
            discard_upload(place, ticket)
