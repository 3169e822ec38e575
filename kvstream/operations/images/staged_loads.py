"""Loads of streams that are too long for one commit, and recovery from unfinished loads.

Each step of a load is a commit. Nothing is visible before the last one, which creates the key. A
load that did not finish is deleted when the store is opened: at once if it has no label, otherwise
a week after its last step.

``recover`` runs when the store is opened. It first deletes entries of tables that no commit has
counted, or ignores them if nothing can be written: the disk is full or the store is read-only.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress

from kvstream.errors import Corruption, InvalidArgument, StoreError
from kvstream.layout.keys import database_of, key_of
from kvstream.meta import unfinished_loads
from kvstream.meta.txn import Txn
from kvstream.meta.unfinished_loads import StagedLoad
from kvstream.operations.images import load as loading
from kvstream.operations.plans import Progress
from kvstream.storage.batch import Batch, Family
from kvstream.types.records import UnfinishedLoad

KEPT_MS = 7 * 24 * 3600 * 1000
"""How long a load with a label waits to be resumed."""


def find(txn: Txn, label: bytes) -> StagedLoad | None:
    """Return the load of a label, None if there is none."""
    return next((load for load in unfinished_loads.all_of(txn) if load.label == label), None)


def begin(txn: Txn, name: bytes, replace: bool, label: bytes = b"") -> StagedLoad:
    """Record a load before its first row; the record must be durable before that row is."""
    loading.refuse_existing(txn, name, replace)
    load = StagedLoad(loading.new_stream(txn, name), txn.now_ms, label)
    unfinished_loads.put(txn, load)
    return load


def resume(txn: Txn, name: bytes, label: bytes) -> StagedLoad | None:
    """Return the load of a label as of its last step, None if there is none."""
    load = find(txn, label)
    if load is None:
        return None
    if load.stream.name != txn.catalog.databases.stored_name(txn, name):
        raise InvalidArgument(f"the load {label!r} is of another key")
    unfinished_loads.cut(txn, load)
    unfinished_loads.drop_trees(txn, load)
    unfinished_loads.put(txn, load)
    return load


def step(txn: Txn, load: StagedLoad, rows: Batch) -> None:
    """Record the progress of a load, with the rows of one step."""
    refuse_gone(txn, load)
    loading.merge(txn, rows)
    unfinished_loads.put(txn, load)


def reserve(txn: Txn, load: StagedLoad, count: int) -> Iterable[int]:
    """Reserve IDs for the trees of a load other than that of its nodes."""
    refuse_gone(txn, load)
    load.trees = txn.catalog.numbers.take(txn, count)
    unfinished_loads.put(txn, load)
    return load.trees


def publish(
    txn: Txn, name: bytes, load: StagedLoad, rows: Batch, replace: bool, expire_at: int
) -> None:
    """Create the key, with the last ``rows``.

    Raise KeyExists if the name is taken, StoreError if the database was flushed or swapped.
    """
    refuse_gone(txn, load)
    if load.stream.name != txn.catalog.databases.stored_name(txn, name):
        raise StoreError("the database was exchanged for another while the stream was loaded")
    loading.publish(txn, name, load.stream, replace, expire_at)
    loading.merge(txn, rows)
    unfinished_loads.remove(txn, load)


def progress_of(
    load: StagedLoad, name: bytes, holds: Callable[[Txn], bool] = lambda txn: True
) -> Progress:
    """Return the progress of a plan that loads a stream and makes it the key of a name at the end.

    It holds until the database is flushed or swapped, or ``holds`` returns false.
    """

    def is_kept(txn: Txn) -> bool:
        stored = txn.catalog.databases.stored_name(txn, name)
        return load.stream.name == stored and is_there(txn, load) and holds(txn)

    def undo(txn: Txn) -> None:
        if is_there(txn, load):
            unfinished_loads.discard(txn, load)

    return Progress(is_kept, undo)


def is_there(txn: Txn, load: StagedLoad) -> bool:
    """Return whether a load was neither discarded nor flushed with its database."""
    return txn.batch.get(Family.METADATA, load.row) is not None


def refuse_gone(txn: Txn, load: StagedLoad) -> None:
    """Raise StoreError if the row of a load is no longer there."""
    if not is_there(txn, load):
        raise StoreError("the load was discarded, or its database flushed, in the meantime")


def discard(txn: Txn, label: bytes) -> bool:
    """Delete the load of a label; return whether there was one."""
    load = find(txn, label)
    if load is not None:
        unfinished_loads.discard(txn, load)
    return load is not None


def list_unfinished(txn: Txn) -> list[UnfinishedLoad]:
    """Return the loads that are under way or can be resumed."""
    shown = txn.catalog.databases.shown_name
    loads = []
    for load in unfinished_loads.all_of(txn):
        name = shown(txn, load.stream.name)
        loads.append(
            UnfinishedLoad(
                load.label,
                database_of(name),
                key_of(name),
                load.stream.last,
                load.stream.length,
                load.begun_ms,
            )
        )
    return loads


def sweep(txn: Txn) -> None:
    """Delete loads that cannot be resumed; called when the store is opened."""
    for load in list(unfinished_loads.all_of(txn)):
        if not load.label or load.moved_ms + KEPT_MS < txn.now_ms:
            unfinished_loads.discard(txn, load)


def recover(commit: Callable[[Callable[[Txn], None]], None], read_only: bool) -> None:
    """Delete what a crash has left of loads; ``commit`` runs a function in one commit."""
    commit(ignore_uncounted)
    if not read_only:
        with suppress(StoreError, Corruption):  # a full disk can wait; check reports damage
            undo_uncounted(commit)
            commit(sweep)


def ignore_uncounted(txn: Txn) -> None:
    """Ignore entries of tables that no commit has counted."""
    txn.catalog.uncounted = set()
    with suppress(Corruption):
        txn.catalog.uncounted = {stream.prefix for stream in unfinished_loads.read_ingested(txn)}


def undo_uncounted(commit: Callable[[Callable[[Txn], None]], None]) -> None:
    """Delete entries of tables that no commit has counted."""
    commit(unfinished_loads.undo_ingested)
    commit(ignore_uncounted)
