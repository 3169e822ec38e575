"""The commit through a server: kvstream or Redis.

Many rows are a bulk load, if the server supports it. Else rows and mark are one MULTI/EXEC. EXEC
does not undo commands when a later one fails, so possible errors are checked under WATCH before it:
the type of each key, and the last ID of each stream that gets rows with IDs.
"""

from collections.abc import Iterable
from typing import Any

from kvstream.errors import IDTooSmall, WrongType, quoted
from kvstream.layout.values import decode_fields
from kvstream.operations.append import next_id
from kvstream.spark.write import upload as uploading
from kvstream.spark.write.commit import Commit, Committed
from kvstream.spark.write.stage import StagedRows, add_id, is_plain, shown_id
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.records import RepeatedFields

BATCH_ROWS = 20_000
"""More rows are a bulk load: a large transaction would block all other clients."""
PIPELINE_ROWS = 1000
"""The number of XADDs in a pipeline."""


def commit_through(client: Any, work: Commit) -> Committed:
    """Commit through a client without decoding. WrongType, IDTooSmall: nothing was written."""
    import redis

    if work.sent or (work.rows > BATCH_ROWS and not work.skip_existing):
        found = _load(client, work)
        if found is not None:
            return found
    streams = work.streams()
    while True:
        with client.pipeline(transaction=True) as pipe:
            pipe.response_callbacks = {}  # raw replies
            try:
                return _attempt(pipe, work, streams)
            except redis.WatchError:
                continue


def _load(client: Any, work: Commit) -> Committed | None:
    """Commit as a bulk load; None if the rows or the server do not allow it."""
    loose = work.loose()
    if not all(is_plain(staged) for _, streams in loose for staged in streams):
        return None
    keys = {staged.key for _, streams in loose for staged in streams}
    upload = work.upload or uploading.begin(client, keys)
    if upload is None:
        return None
    try:
        sent = work.sent + uploading.send_rows(client, upload, loose)
        return Committed(*uploading.commit(client, upload, sent, work.mark))
    finally:
        uploading.discard(client, upload)


def append_now(client: Any, streams: list[StagedRows]) -> None:
    """Add rows in pipelines without a transaction: after an error, rows added before stay."""
    for staged in streams:
        for start in range(0, len(staged.rows), PIPELINE_ROWS):
            with client.pipeline(transaction=False) as pipe:
                for at in range(start, min(start + PIPELINE_ROWS, len(staged.rows))):
                    pipe.execute_command("XADD", *_words(staged, at))
                pipe.execute()


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
        if kind not in (b"stream", b"none"):
            raise WrongType(f"{quoted(staged.key)} is a {kind.decode()}, not a stream")
    skipped = 0
    chosen: list[tuple[StagedRows, list[int]]] = []
    for staged in streams:
        kept = list(range(len(staged.rows)))
        if staged.ids:
            kept = _checked(pipe, staged, work.skip_existing)
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


def _checked(pipe: Any, staged: StagedRows, skip_existing: bool) -> list[int]:
    """Return the positions of the rows to add. Raises IDTooSmall if their IDs do not rise."""
    last = _last_id(pipe, staged.key)
    kept = []
    for at, eid in enumerate(staged.ids):
        try:
            last = next_id(last, add_id(eid), last.ms)
        except IDTooSmall as error:
            if skip_existing:
                continue
            raise IDTooSmall(f"stream {quoted(staged.key)}: {shown_id(eid)}: {error}") from None
        kept.append(at)
    return kept


def _last_id(pipe: Any, key: bytes) -> StreamID:
    if not pipe.exists(key):
        return MIN_ID
    info = pipe.xinfo_stream(key)
    return StreamID.parse(info[info.index(b"last-generated-id") + 1])


def _words(staged: StagedRows, at: int) -> Iterable[bytes | str]:
    eid = shown_id(staged.ids[at]) if staged.ids else "*"
    return [staged.key, eid, *flat_of(staged.rows[at][0])]


def flat_of(value: bytes) -> list[bytes]:
    """Decode a stored value into a list of field, value, field, value ..."""
    fields = decode_fields(value)
    if isinstance(fields, RepeatedFields):
        return list(fields.flat)
    return [part for pair in fields.items() for part in pair]
