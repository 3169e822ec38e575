"""The commit into a store in a directory: opened, written, made durable, closed.

Rows and mark are one commit of the store, so a reader, or whoever comes after a crash, sees all of
them or none. It knows the library's operations, nothing of Spark.
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
from kvstream.operations import append, strings
from kvstream.spark.write.commit import Commit, Committed
from kvstream.spark.write.stage import StagedRows, Transaction, add_id, extend, is_plain
from kvstream.storage.files import DIRECTORY_MODE
from kvstream.store import Store
from kvstream.types.ids import AddID, StreamID

T = TypeVar("T")

BATCH_ROWS = 20_000
"""More rows than these come in as tables: a write batch holds up whoever else uses the store."""
TICKET_KEYS = 10_000
"""Streams that a ticket names where the write does not: it goes to every task."""
PAUSE_S = 0.02
"""Between two tries to get a store from another process."""


def commit_into(path: str, db: int, wait_s: float, work: Commit) -> Committed:
    """Commit into the store in a directory, made where there is none.

    Waits ``wait_s`` seconds for another process that has the store open; then StoreLocked. What is
    written is on disk when this returns. IDTooSmall, WrongType and the like: nothing was written.
    """
    with patiently(lambda: Store.open(path, db=db), wait_s) as store:
        if work.parts or (work.rows > BATCH_ROWS and not work.skip_existing):
            found = _load(store, work)
            if found is not None:
                return found
        return store.engine.run(_apply, store.db, work)


def _load(store: Store, work: Commit) -> Committed | None:
    """Commit as a bulk load: parts of the tasks, and of what they have not made parts of.

    None where rows ask for the milliseconds of their IDs alone: those only a plain commit can give.
    """
    loose = work.loose()
    if not all(is_plain(staged) for _, streams in loose for staged in streams):
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
    result = store.bulk_load(ticket, parts, mark=work.mark)
    return Committed(result.applied, result.entries if result.applied else 0)


def ticket_of(path: str, db: int, key: bytes | None) -> BulkTicket:
    """Return a ticket for tasks that make parts; StoreLocked where another process has the store.

    Where no stream is named, for all that there are: rows of others are written once more.
    """
    with Store.open(path, db=db) as store:
        return store.bulk_ticket(_streams(store) if key is None else [key])


def _streams(store: Store) -> list[bytes]:
    keys = islice(store.scan_keys(), TICKET_KEYS)
    return [key for key in keys if store.type(key) == "stream"]


def mark_of(path: str, db: int, transaction: Transaction) -> bytes | None:
    """Return the mark that a writer has left in a store; None where it, or the store, is not."""
    try:
        with Store.open(path, db=db, create=False) as store:
            return store.engine.run(strings.get, qualified(store.db, transaction.key))
    except NoSuchStore:
        return None


def patiently(attempt: Callable[[], T], wait_s: float) -> T:
    """Run what opens a store, again while another process has it."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return attempt()
        except StoreLocked as error:
            if time.monotonic() >= deadline:
                raise StoreLocked(
                    f"{error}; a server that has it takes the rows where the option url names it"
                ) from None
        time.sleep(PAUSE_S)


def _apply(txn: Txn, db: int, work: Commit) -> Committed:
    mark = qualified(db, work.transaction.key)
    if work.marked and work.transaction.is_done(strings.get(txn, mark)):
        return Committed(False, 0)
    rows = skipped = 0
    for staged in work.streams():
        name = qualified(db, staged.key)
        if work.skip_existing:
            skipped += _skip(txn, name, staged)
        _append(txn, name, staged)
        rows += len(staged.rows)
    if work.marked:
        strings.put(txn, mark, work.transaction.value)
    return Committed(True, rows, skipped)


def _append(txn: Txn, name: bytes, staged: StagedRows) -> None:
    if not staged.ids:
        append.add_many(txn, name, staged.rows)
        return
    ids: list[AddID] = list(map(add_id, staged.ids))
    try:
        append.add_under(txn, name, ids, staged.rows)
    except IDTooSmall as error:
        raise IDTooSmall(f"stream {staged.key!r}: {error}") from None


def _skip(txn: Txn, name: bytes, staged: StagedRows) -> int:
    """Drop the rows whose IDs are not above the stream's last one; return how many."""
    stream = txn.stream(name)
    if stream is None or not staged.ids:
        return 0
    last = stream.last
    kept = [at for at, eid in enumerate(staged.ids) if not _is_below(add_id(eid), last)]
    skipped = len(staged.ids) - len(kept)
    staged.ids = [staged.ids[at] for at in kept]
    staged.rows = [staged.rows[at] for at in kept]
    return skipped


def _is_below(eid: AddID, last: StreamID) -> bool:
    if eid is None:
        return False
    return eid <= last if isinstance(eid, StreamID) else eid < last.ms
