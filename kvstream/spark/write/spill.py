"""Where the rows of a task go that are too many to be kept until it ends.

Into parts or files beside the store, if tasks and commit share a file system. For a server: into
files of rows that are sent there; if it takes none, into the task's message, up to a limit; or,
with ``delivery`` "atleastonce", there at once.
"""

import os
from collections.abc import Sequence

from kvstream.bulkload.parts import BulkTicket, PartWriter, RowsWriter
from kvstream.errors import InvalidArgument
from kvstream.spark.options import Place
from kvstream.spark.read.servers import client_of
from kvstream.spark.write.gather import Spill, Spilled
from kvstream.spark.write.servers import append_now
from kvstream.spark.write.stage import PageFile, StagedRows, Staging, Transaction, extend, pack_page
from kvstream.spark.write.upload import Upload, send, temporary_folder
from kvstream.types.options import MEGABYTE

MESSAGE_MAX = 64 * MEGABYTE
"""Bytes of rows that a task sends to the commit: the driver holds those of all tasks at once."""
EXACTLY, AT_LEAST_ONCE = DELIVERIES = ("exactlyonce", "atleastonce")


class FileSpill:
    """Rows go into a file beside the store."""

    def __init__(self, file: PageFile) -> None:
        self._file = file

    def write(self, streams: list[StagedRows]) -> None:
        self._file.write(pack_page(streams))

    def close(self) -> Spilled:
        return Spilled(files=(self._file.close(),))

    def abort(self) -> None:
        self._file.abort()


class PartSpill:
    """Rows go into parts beside the store, which the commit ingests."""

    def __init__(self, staging: Staging, ticket: BulkTicket, partition: int) -> None:
        self._writer = PartWriter(staging.folder, ticket, partition=partition)

    def write(self, streams: list[StagedRows]) -> None:
        extend(self._writer, streams)

    def close(self) -> Spilled:
        return Spilled(parts=tuple(self._writer.close()))

    def abort(self) -> None:
        self._writer.abort()


class UploadSpill:
    """Rows go into files on this machine, and these to the server."""

    def __init__(self, place: Place, upload: Upload, partition: int) -> None:
        self._place = place
        self._upload = upload
        self._folder = temporary_folder()
        self._writer = RowsWriter(self._folder.name, upload.ticket, partition=partition)

    def write(self, streams: list[StagedRows]) -> None:
        extend(self._writer, streams)

    def close(self) -> Spilled:
        with self._folder, client_of(self._place) as client:
            return Spilled(sent=tuple(send(client, self._upload, self._writer.close())))

    def abort(self) -> None:
        self._folder.cleanup()


class MessageSpill:
    """Rows go to the commit after all."""

    def __init__(self) -> None:
        self._pages: list[bytes] = []
        self._size = 0

    def write(self, streams: list[StagedRows]) -> None:
        page = pack_page(streams)
        self._size += len(page)
        if self._size > MESSAGE_MAX:
            raise InvalidArgument(
                f"a task has more than {MESSAGE_MAX // MEGABYTE} MB for a server: make more "
                "partitions, name a folder that tasks and driver share (option stagingPath), or "
                "let tasks write by themselves (option delivery, 'atLeastOnce')"
            )
        self._pages.append(page)

    def close(self) -> Spilled:
        return Spilled(pages=tuple(self._pages))

    def abort(self) -> None:
        self._pages.clear()


class ServerSpill:
    """Rows go to the server at once: they are there whatever becomes of the write."""

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
    """Return where the rows for the place at ``at`` are spilled.

    ``begun``: the driver has made the folder, and its absence tells a task that the write is over.
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
    """Return the folder of a transaction for one place; None where there is none."""
    if folder is not None:
        return Staging(os.path.join(folder, f"store-{at}"), transaction)
    return Staging(place.address, transaction) if place.kind == "path" else None


def discard(places: Sequence[Place], folder: str | None, transaction: Transaction) -> None:
    """Remove what was staged for a transaction, and what is dead."""
    for at, place in enumerate(places):
        staging = staging_of(place, at, folder, transaction)
        if staging is not None:
            staging.remove()
