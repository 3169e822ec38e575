"""The commit into a store in a directory: it opens the store, writes once, and closes it.

Rows and mark are one commit of the store, so readers see all of them or none, also after a crash.
"""

import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TypeVar

from kvstream.bulkload.parts import BulkTicket, PartWriter
from kvstream.errors import IDTooSmall, NoSuchStore, StoreLocked
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.operations import append, keyspace, strings
from kvstream.spark.options import is_stream
from kvstream.spark.write.commit import SKIP_HINT, Commit, Committed, rising
from kvstream.spark.write.stage import StagedRows, Transaction, add_id, extend
from kvstream.storage.files import DIRECTORY_MODE
from kvstream.store import Store
from kvstream.types.clock import monotonic
from kvstream.types.ids import MIN_ID, AddID, StreamID

T = TypeVar("T")

BATCH_ROWS = 20_000
"""More rows are a bulk load: a large write batch would block other users of the store."""
TICKET_KEYS = 10_000
"""Streams in a ticket at most, if the write names none: every task gets the ticket."""
PAUSE_S = 0.02
"""The pause between two attempts to open a store that another process holds."""


def commit_into(path: str, db: int, wait_s: float, work: Commit) -> Committed:
    """Commit into the store in a directory, created if there is none; durable on return.

    Raises StoreLocked if another process holds the store for ``wait_s`` seconds. After an error
    such as IDTooSmall or WrongType, nothing was written.
    """
    with retry_while_locked(lambda: Store.open(path, db=db), wait_s) as store:
        if work.parts or (work.rows > BATCH_ROWS and not work.skip_existing):
            state = _load(store, work)
            if state is not None:
                return state
        return store.engine.run(_apply, store.db, work)


def _load(store: Store, work: Commit) -> Committed | None:
    """Commit as a bulk load of the tasks' parts, and of parts made here from the other rows.

    Return None if the rows do not allow it.
    """
    loose = work.loose()
    if loose is None:
        return None
    keys = {staged.key for _, streams in loose for staged in streams}
    ticket = work.ticket if work.parts else store.bulk_ticket(keys)
    assert ticket is not None
    parts = work.parts
    Path(work.folder).mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    for partition, streams in loose:
        writer = PartWriter(work.folder, ticket, partition=partition)
        extend(writer, streams)
        parts += writer.close()
    try:
        result = store.bulk_load(ticket, parts, mark=work.mark)
    except IDTooSmall as error:
        raise IDTooSmall(f"{error}: {SKIP_HINT}") from None
    return Committed(result.applied, result.entries if result.applied else 0)


def ticket_of(path: str, db: int, key: bytes | None) -> BulkTicket:
    """Return a ticket for tasks that make parts, by default for all streams of the store.

    Rows of streams that it does not name are written again by the commit. Raises StoreLocked if
    another process holds the store.
    """
    with Store.open(path, db=db) as store:
        return store.bulk_ticket(_streams(store) if key is None else [key])


def _streams(store: Store) -> list[bytes]:
    keys = islice(store.scan_keys(), TICKET_KEYS)
    return [key for key in keys if store.type(key) == "stream"]


def mark_of(path: str, db: int, transaction: Transaction) -> bytes | None:
    """Return a writer's mark in a store; None without a mark or a store."""
    try:
        with Store.open(path, db=db, create=False) as store:
            return store.engine.run(strings.get, qualified(store.db, transaction.key))
    except NoSuchStore:
        return None


def retry_while_locked(attempt: Callable[[], T], wait_s: float) -> T:
    """Call a function that opens a store, again while another process holds the store."""
    deadline = monotonic() + wait_s
    while True:
        try:
            return attempt()
        except StoreLocked as error:
            if monotonic() >= deadline:
                raise StoreLocked(
                    f"{error}; if a server holds it, give the server's URL as the option url"
                ) from None
        time.sleep(PAUSE_S)


def _apply(txn: Txn, db: int, work: Commit) -> Committed:
    mark = qualified(db, work.transaction.key)
    if work.marked and work.transaction.is_done(strings.get(txn, mark)):
        return Committed(False, 0)
    rows = skipped = 0
    for staged in work.streams():
        name = qualified(db, staged.key)
        is_stream(staged.key, keyspace.kind(txn, name))
        last = _last_id(txn, name)
        if work.skip_existing and staged.ids:
            skipped += _skip(staged, last)
        _append(txn, name, staged, last)
        rows += len(staged.rows)
    if work.marked:
        strings.put(txn, mark, work.transaction.value)
    return Committed(True, rows, skipped)


def _last_id(txn: Txn, name: bytes) -> StreamID:
    stream = txn.stream(name)
    return MIN_ID if stream is None else stream.last


def _skip(staged: StagedRows, last: StreamID) -> int:
    """Drop the rows whose IDs are not above the stream's last ID; return their number."""
    kept = rising(staged, last, skip_existing=True)
    skipped = len(staged.ids) - len(kept)
    staged.ids = [staged.ids[at] for at in kept]
    staged.rows = [staged.rows[at] for at in kept]
    return skipped


def _append(txn: Txn, name: bytes, staged: StagedRows, last: StreamID) -> None:
    if not staged.rows:
        return
    if not staged.ids:
        append.add_many(txn, name, staged.rows)
        return
    ids: list[AddID] = list(map(add_id, staged.ids))
    try:
        append.add_under(txn, name, ids, staged.rows)
    except IDTooSmall:
        rising(staged, last, skip_existing=False)  # names the ID
        raise
