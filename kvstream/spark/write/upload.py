"""Bulk loads through a kvstream server: tasks send files of rows, and one command commits them.

The server's side is ``KVSTREAM.LOAD`` (kvstream/server/runtime/uploads.py). A Redis has no such
command, and not every user may use it: ``begin`` returns None then. It knows RESP through redis-py,
nothing of Spark.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from kvstream.bulkload.parts import BulkTicket, RowsFile, RowsWriter, unpack_ticket
from kvstream.errors import KVStreamError, RequestError, WrongType
from kvstream.remote.connection import Connection
from kvstream.remote.replies import members
from kvstream.spark.write.stage import StagedRows, extend
from kvstream.types.options import MEGABYTE

COMMAND = "KVSTREAM.LOAD"
CHUNK = 1 * MEGABYTE
"""Bytes of one request: a turn of the server's loop takes them in a millisecond."""
COMMIT_S = 3600.0
"""How long a commit may take: the server writes all entries then."""


class Upload(NamedTuple):
    """A load that a server has begun; to be pickled."""

    load: bytes
    ticket: BulkTicket


def begin(client: Any, keys: Iterable[bytes]) -> Upload | None:
    """Begin a load into streams; return None if the server cannot, or not for this user."""
    try:
        reply = members(Connection(client).do(COMMAND, "TICKET", *keys))
    except WrongType:
        raise
    except RequestError:  # an unknown command, or NOPERM
        return None
    return Upload(reply["load"], unpack_ticket(reply["ticket"]))


def discard(client: Any, upload: Upload) -> None:
    """Give a load up, unless it has ended; a server that has gone removes it after a day."""
    with suppress(KVStreamError):
        Connection(client).do(COMMAND, "DISCARD", upload.load)


def send(client: Any, upload: Upload, files: Iterable[RowsFile]) -> list[RowsFile]:
    """Send files of rows; return them under the names that the server knows them by."""
    connection, sent = Connection(client), []
    for each in files:
        name, offset = Path(each.path).stem, 0
        with open(each.path, "rb") as file:
            while chunk := file.read(CHUNK):
                connection.do(COMMAND, "PUT", upload.load, name, offset, chunk)
                offset += len(chunk)
        sent.append(each._replace(path=name))
    return sent


def send_rows(
    client: Any, upload: Upload, rows: Sequence[tuple[int, list[StagedRows]]]
) -> list[RowsFile]:
    """Send plain rows, by partition."""
    sent = []
    with temporary_folder() as folder:
        for partition, streams in rows:
            writer = RowsWriter(folder, upload.ticket, partition=partition)
            extend(writer, streams)
            sent += send(client, upload, writer.close())
    return sent


def temporary_folder() -> TemporaryDirectory[str]:
    """Create a folder of this machine for files that are to be sent."""
    return TemporaryDirectory(prefix="kvstream-rows-")


def commit(
    client: Any, upload: Upload, sent: Sequence[RowsFile], mark: tuple[bytes, int] | None
) -> tuple[bool, int]:
    """Commit the files that were sent; return whether this was the first time, and the entries."""
    client.connection_pool.connection_kwargs["socket_timeout"] = COMMIT_S
    client.connection_pool.disconnect()  # the next connection is as patient
    words: list[bytes | str | int] = [] if mark is None else ["MARK", *mark]
    for each in sent:
        words += ["PART", each.path, each.digest, "GIVEN" if each.given else "ALLOTTED"]
    reply = members(Connection(client).do(COMMAND, "COMMIT", upload.load, *words))
    return bool(reply["applied"]), reply["entries"]
