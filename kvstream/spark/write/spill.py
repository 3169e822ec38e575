"""The destinations of a task's rows that do not fit into memory.

For a store: SST files beside it, or files of pages if the rows' IDs are not known yet. For a
server: files of rows that are uploaded; if it takes none, the task's message, up to a limit; with
the delivery "atLeastOnce" the rows are added immediately.
"""

import os
from collections.abc import Sequence

from kvstream.bulkload.parts import BulkTicket, PartWriter, RowsWriter
from kvstream.errors import InvalidArgument
from kvstream.spark.options import Place
from kvstream.spark.read.servers import client_of
from kvstream.spark.write.commit import Spill, Spilled, Upload
from kvstream.spark.write.servers import append_now, send_files, temporary_folder
from kvstream.spark.write.stage import PageFile, StagedRows, Staging, Transaction, extend, pack_page
from kvstream.types.options import MEGABYTE

MESSAGE_MAX = 64 * MEGABYTE
"""Bytes of rows in a task's message: the driver holds those of all tasks at once."""
EXACTLY, AT_LEAST_ONCE = DELIVERIES = ("exactlyOnce", "atLeastOnce")


class FileSpill:
    """Writes rows into a file of pages beside the store."""

    def __init__(self, file: PageFile) -> None:
        self._file = file

    def write(self, streams: list[StagedRows]) -> None:
        self._file.write(pack_page(streams))

    def close(self) -> Spilled:
        return Spilled(files=(self._file.close(),))

    def abort(self) -> None:
        self._file.abort()


class PartSpill:
    """Writes rows into SST files beside the store, which the commit ingests."""

    def __init__(self, staging: Staging, ticket: BulkTicket, partition: int) -> None:
        self._writer = PartWriter(staging.folder, ticket, partition=partition)

    def write(self, streams: list[StagedRows]) -> None:
        extend(self._writer, streams)

    def close(self) -> Spilled:
        return Spilled(parts=tuple(self._writer.close()))

    def abort(self) -> None:
        self._writer.abort()


class UploadSpill:
    """Writes rows into files on this machine, and sends these to the server."""

    def __init__(self, place: Place, upload: Upload, partition: int) -> None:
        self._place = place
        self._upload = upload
        self._folder = temporary_folder()
        self._writer = RowsWriter(self._folder.name, upload.ticket, partition=partition)

    def write(self, streams: list[StagedRows]) -> None:
        extend(self._writer, streams)

    def close(self) -> Spilled:
        with self._folder, client_of(self._place) as client:
            return Spilled(sent=tuple(send_files(client, self._upload, self._writer.close())))

    def abort(self) -> None:
        self._folder.cleanup()


class MessageSpill:
    """Keeps rows for the task's message, up to a limit."""

    def __init__(self) -> None:
        self._pages: list[bytes] = []
        self._size = 0

    def write(self, streams: list[StagedRows]) -> None:
        page = pack_page(streams)
        self._size += len(page)
        if self._size > MESSAGE_MAX:
            raise InvalidArgument(
                f"a task has more than {MESSAGE_MAX // MEGABYTE} MB for a server: use more "
                "partitions, a folder that tasks and driver share (option stagingPath), or "
                "the option delivery 'atLeastOnce'"
            )
        self._pages.append(page)

    def close(self) -> Spilled:
        return Spilled(pages=tuple(self._pages))

    def abort(self) -> None:
        self._pages.clear()


class ServerSpill:
    """Adds rows to the server immediately: they stay even if the write fails."""

    def __init__(self, place: Place) -> None:
        self._client = client_of(place)

    def write(self, streams: list[StagedRows]) -> None:
        append_now(self._client, streams)

    def close(self) -> Spilled:
        self._client.close()
        return Spilled()

    def abort(self) -> None:
        self._client.close()


def spill_of(
    places: Sequence[Place],
    folder: str | None,
    delivery: str,
    tickets: Sequence[BulkTicket | Upload | None],
    transaction: Transaction,
    begun: bool,
    partition: int,
    at: int,
) -> Spill:
    """Return the spill of the place at the position ``at``.

    ``begun``: the driver has made the folder; if it is gone, the write has ended without this task.
    """
    place = places[at]
    if delivery == AT_LEAST_ONCE and place.kind == "url":
        return ServerSpill(place)
    ticket = tickets[at]
    if isinstance(ticket, Upload):
        return UploadSpill(place, ticket, partition)
    staging = staging_of(place, at, folder, transaction)
    if staging is None:
        return MessageSpill()
    if not begun:
        staging.make()
    elif not staging.folder.is_dir():
        raise InvalidArgument(f"the write has ended: its folder {staging.folder} is gone")
    if ticket is not None:
        return PartSpill(staging, ticket, partition)
    return FileSpill(staging.file(partition))


def staging_of(
    place: Place, at: int, folder: str | None, transaction: Transaction
) -> Staging | None:
    """Return the staging folder of a transaction for one place; None for a server without one."""
    if folder is not None:
        return Staging(os.path.join(folder, f"store-{at}"), transaction)
    return Staging(place.address, transaction) if place.kind == "path" else None


def discard(places: Sequence[Place], folder: str | None, transaction: Transaction) -> None:
    """Remove the staged files of a transaction, and those of dead ones."""
    for at, place in enumerate(places):
        staging = staging_of(place, at, folder, transaction)
        if staging is not None:
            staging.remove()
