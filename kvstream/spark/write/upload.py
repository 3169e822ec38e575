"""Bulk loads through a kvstream server: tasks send it their tables, and one command takes them in.

The server's side is ``KVSTREAM.LOAD`` (kvstream/server/runtime/uploads.py). A Redis has no such
command, and not every user may use it: ``begin`` tells. It knows RESP through
redis-py, nothing of Spark.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from kvstream.bulkload.parts import BulkTicket, Part, PartWriter, name_of, unpack_ticket, words_of
from kvstream.errors import KVStreamError, RequestError, WrongType
from kvstream.remote.connection import Connection
from kvstream.remote.replies import members
from kvstream.spark.write.stage import StagedRows, extend
from kvstream.types.options import MEGABYTE

COMMAND = "KVSTREAM.LOAD"
CHUNK = 1 * MEGABYTE
"""Bytes of one request: a turn of the server's loop takes them in a millisecond."""
COMMIT_S = 3600.0
"""How long a commit may take: entries that must be written once more are written then."""


class Upload(NamedTuple):
    """A load that a server has begun; to be pickled."""

    load: bytes
    ticket: BulkTicket


def begin(client: Any, keys: Iterable[bytes]) -> Upload | None:
    """Begin a load into streams; None where the server has no such thing, or not for this user."""
    try:
        told = members(Connection(client).do(COMMAND, "TICKET", *keys))
    except WrongType:
        raise
    except RequestError:  # an unknown command, or NOPERM
        return None
    return Upload(told["load"], unpack_ticket(told["ticket"]))


def discard(client: Any, upload: Upload) -> None:
    """Give a load up, unless it has ended; a server that has gone removes it after a day."""
    with suppress(KVStreamError):
        Connection(client).do(COMMAND, "DISCARD", upload.load)


def send(client: Any, upload: Upload, parts: Iterable[Part]) -> list[Part]:
    """Send the files of parts, and return the parts as the server has them."""
    connection, sent = Connection(client), []
    for part in parts:
        name = name_of(part)
        files = f"{name}.sst", f"{name}.pieces"
        for file, path in zip(files, (part.table, part.pieces), strict=True):
            _send(connection, upload.load, file, path)
        sent.append(part._replace(table=files[0], pieces=files[1]))
    return sent


def _send(connection: Connection, load: bytes, name: str, path: str) -> None:
    offset = 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            connection.do(COMMAND, "PUT", load, name, offset, chunk)
            offset += len(chunk)


def send_rows(
    client: Any, upload: Upload, rows: Sequence[tuple[int, list[StagedRows]]]
) -> list[Part]:
    """Make parts of plain rows, by partition, and send them."""
    sent = []
    with Workshop() as folder:
        for partition, streams in rows:
            writer = PartWriter(folder, upload.ticket, partition=partition)
            extend(writer, streams)
            sent += send(client, upload, writer.close())
    return sent


class Workshop(TemporaryDirectory[str]):
    """A folder of this machine's own in which parts are made."""

    def __init__(self) -> None:
        super().__init__(prefix="kvstream-parts-")

    @property
    def path(self) -> Path:
        return Path(self.name)


def commit(
    client: Any, upload: Upload, parts: Sequence[Part], mark: tuple[bytes, int] | None
) -> tuple[bool, int]:
    """Have the server take parts in; return whether it did, and how many entries that were."""
    client.connection_pool.connection_kwargs["socket_timeout"] = COMMIT_S
    client.connection_pool.disconnect()  # the next connection is as patient
    words: list[bytes | int] = [] if mark is None else [b"MARK", *mark]
    for part in parts:
        words += [b"PART", *words_of(part)]
    told = members(Connection(client).do(COMMAND, "COMMIT", upload.load, *words))
    return bool(told["applied"]), told["entries"]
