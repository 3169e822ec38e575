"""The commit through a server: kvstream or Redis.

Many rows are a bulk load, if the server supports it. Else rows and mark are one MULTI/EXEC. EXEC
does not undo commands when a later one fails, so possible errors are checked under WATCH before it:
the type of each key, and the last ID of each stream that gets rows with IDs.

In a bulk load tasks send files of rows, and one command commits them. The server's side is
``KVSTREAM.LOAD`` (kvstream/server/runtime/uploads.py). A Redis has no such command, and not every
user may use it: ``begin_load`` returns None then.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvstream.bulkload.parts import RowsFile, RowsWriter, unpack_ticket
from kvstream.errors import IDTooSmall, KVStreamError, RequestError, WrongType, quote
from kvstream.layout.values import decode_fields
from kvstream.remote.connection import Connection
from kvstream.remote.replies import members
from kvstream.remote.server_errors import error_of, translate_errors
from kvstream.spark.options import is_stream
from kvstream.spark.write.commit import SKIP_HINT, Commit, Committed, Upload, rising
from kvstream.spark.write.stage import StagedRows, extend, show_id
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.options import MEGABYTE
from kvstream.types.records import flat_of

LOAD_COMMAND = "KVSTREAM.LOAD"
LOAD_CHUNK = 1 * MEGABYTE
"""Bytes of one request: a turn of the server's loop takes them in a millisecond."""
LOAD_COMMIT_S = 3600.0
"""How long a commit may take: the server writes all entries then."""


def begin_load(client: Any, keys: Iterable[bytes]) -> Upload | None:
    """Begin a load into streams; return None if the server cannot, or not for this user."""
    try:
        reply = members(Connection(client).do(LOAD_COMMAND, "TICKET", *keys))
    except WrongType:
        raise
    except RequestError:  # an unknown command, or NOPERM
        return None
    return Upload(reply["load"], unpack_ticket(reply["ticket"]))


def discard_load(client: Any, upload: Upload) -> None:
    """Give a load up, unless it has ended; a server that has gone removes it after a day."""
    with suppress(KVStreamError):
        Connection(client).do(LOAD_COMMAND, "DISCARD", upload.load)


def send_files(client: Any, upload: Upload, files: Iterable[RowsFile]) -> list[RowsFile]:
    """Send files of rows; return them under the names that the server knows them by."""
    connection, sent = Connection(client), []
    for each in files:
        name, offset = Path(each.path).stem, 0
        with open(each.path, "rb") as file:
            while chunk := file.read(LOAD_CHUNK):
                connection.do(LOAD_COMMAND, "PUT", upload.load, name, offset, chunk)
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
            sent += send_files(client, upload, writer.close())
    return sent


def temporary_folder() -> TemporaryDirectory[str]:
    """Create a folder of this machine for files that are to be sent."""
    return TemporaryDirectory(prefix="kvstream-rows-")


def commit_load(
    client: Any, upload: Upload, sent: Sequence[RowsFile], mark: tuple[bytes, int] | None
) -> tuple[bool, int]:
    """Commit the files that were sent; return whether this was the first time, and the entries."""
    client.connection_pool.connection_kwargs["socket_timeout"] = LOAD_COMMIT_S
    client.connection_pool.disconnect()  # the next connection is as patient
    words: list[bytes | str | int] = [] if mark is None else ["MARK", *mark]
    for each in sent:
        words += ["PART", each.path, each.digest, "GIVEN" if each.given else "ALLOTTED"]
    reply = members(Connection(client).do(LOAD_COMMAND, "COMMIT", upload.load, *words))
    return bool(reply["applied"]), reply["entries"]


BATCH_ROWS = 20_000
"""More rows are a bulk load: a large transaction would block all other clients."""
PIPELINE_ROWS = 1000
"""The number of XADDs in a pipeline."""


def commit_through(client: Any, work: Commit) -> Committed:
    """Commit through a client without decoding. WrongType, IDTooSmall: nothing was written."""
    import redis

    if work.sent or (work.rows > BATCH_ROWS and not work.skip_existing):
        state = _load(client, work)
        if state is not None:
            return state
    streams = work.streams()
    while True:
        with translate_errors(writing=True), client.pipeline(transaction=True) as pipe:
            pipe.response_callbacks = {}  # raw replies
            try:
                return _attempt(pipe, work, streams)
            except redis.WatchError:
                continue


def _load(client: Any, work: Commit) -> Committed | None:
    """Commit as a bulk load; None if the rows or the server do not allow it."""
    loose = work.loose()
    if loose is None:
        return None
    keys = {staged.key for _, streams in loose for staged in streams}
    upload = work.upload or begin_load(client, keys)
    if upload is None:
        return None
    try:
        sent = work.sent + send_rows(client, upload, loose)
        return Committed(*commit_load(client, upload, sent, work.mark))
    except IDTooSmall as error:
        raise IDTooSmall(f"{error}: {SKIP_HINT}") from None
    finally:
        discard_load(client, upload)


def append_now(client: Any, streams: list[StagedRows]) -> None:
    """Add rows in pipelines without a transaction: after an error, rows added before stay."""
    for staged in streams:
        for start in range(0, len(staged.rows), PIPELINE_ROWS):
            with translate_errors(writing=True), client.pipeline(transaction=False) as pipe:
                for at in range(start, min(start + PIPELINE_ROWS, len(staged.rows))):
                    pipe.execute_command("XADD", *_words(staged, at))
                replies = pipe.execute(raise_on_error=False)
            for at, reply in enumerate(replies, start):
                if isinstance(reply, Exception):
                    raise _refusal(staged, at, reply)


def _refusal(staged: StagedRows, at: int, error: Any) -> KVStreamError:
    """Return the error of an XADD, with the stream and the ID."""
    refused = error_of(error)
    eid = show_id(staged.ids[at]) if staged.ids else "*"
    return type(refused)(f"stream {quote(staged.key)}: {eid}: {refused}")


def _attempt(pipe: Any, work: Commit, streams: list[StagedRows]) -> Committed:
    mark = work.transaction.key
    pipe.watch(mark)
    if work.marked and work.transaction.is_done(pipe.get(mark)):
        return Committed(False, 0)
    with_ids = [staged for staged in streams if staged.ids]
    if with_ids:
        pipe.watch(*(staged.key for staged in with_ids))
    kinds = [pipe.type(staged.key) for staged in streams]
    for staged, kind in zip(streams, kinds, strict=True):
        is_stream(staged.key, kind.decode())
    skipped = 0
    chosen: list[tuple[StagedRows, list[int]]] = []
    for staged in streams:
        kept = list(range(len(staged.rows)))
        if staged.ids:
            kept = rising(staged, _last_id(pipe, staged.key), work.skip_existing)
        skipped += len(staged.rows) - len(kept)
        chosen.append((staged, kept))
    pipe.multi()
    for staged, kept in chosen:
        for at in kept:
            pipe.execute_command("XADD", *_words(staged, at))
    if work.marked:
        pipe.set(mark, work.transaction.value)
    pipe.execute()
    return Committed(True, sum(len(kept) for _, kept in chosen), skipped)


def _last_id(pipe: Any, key: bytes) -> StreamID:
    if not pipe.exists(key):
        return MIN_ID
    return StreamID.parse(members(pipe.xinfo_stream(key))["last-generated-id"])


def _words(staged: StagedRows, at: int) -> Iterable[bytes | str]:
    eid = show_id(staged.ids[at]) if staged.ids else "*"
    return [staged.key, eid, *flat_of(decode_fields(staged.rows[at][0]))]
