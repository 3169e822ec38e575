"""The steps of a load that is too long for one commit, each of them a commit of its own.

Nothing of the stream is to be seen before the last step, which makes the key. What was begun and
came to no end is swept when the store is opened: at once where nobody said that they would go on,
else a week after it last came any further.
"""

from collections.abc import Iterable

from kvstream.errors import InvalidArgument, StoreError
from kvstream.layout.keys import database_of, key_of
from kvstream.meta import staged
from kvstream.meta.staged import StagedLoad
from kvstream.meta.txn import Txn
from kvstream.operations import loading
from kvstream.records import UnfinishedLoad
from kvstream.storage.batch import Batch, Family

KEPT_MS = 7 * 24 * 3600 * 1000
"""How long a load that may be gone on with waits for that."""


def find(txn: Txn, label: bytes) -> StagedLoad | None:
    """Return the load of a label."""
    return next((load for load in staged.all_of(txn) if load.label == label), None)


def begin(txn: Txn, name: bytes, replace: bool, label: bytes = b"") -> StagedLoad:
    """Note a load before its first row is written; the note must be durable before that is."""
    loading.refuse_existing(txn, name, replace)
    load = StagedLoad(loading.new_stream(txn, name), txn.now_ms, label)
    staged.put(txn, load)
    return load


def resume(txn: Txn, name: bytes, label: bytes) -> StagedLoad | None:
    """Return the load of a label, as far as it is noted and no further; None: there is none."""
    load = find(txn, label)
    if load is None:
        return None
    if load.stream.name != txn.catalog.databases.stored_name(txn, name):
        raise InvalidArgument(f"the load {label!r} is of another key")
    staged.cut(txn, load)
    staged.drop_trees(txn, load)
    staged.put(txn, load)
    return load


def step(txn: Txn, load: StagedLoad, made: Batch) -> None:
    """Note how far a load has come, together with rows that were made for it."""
    refuse_gone(txn, load)
    loading.merge(txn, made)
    staged.put(txn, load)


def reserve(txn: Txn, load: StagedLoad, count: int) -> Iterable[int]:
    """Return numbers for the trees that stand beside the nodes."""
    refuse_gone(txn, load)
    load.trees = txn.catalog.numbers.take(txn, count)
    staged.put(txn, load)
    return load.trees


def publish(
    txn: Txn, name: bytes, load: StagedLoad, made: Batch, replace: bool, expire_at: int
) -> None:
    """Make the key, all rows of which are there but those that are ``made`` last.

    KeyExists where the name has been taken, StoreError where the database is not what it was.
    """
    refuse_gone(txn, load)
    if load.stream.name != txn.catalog.databases.stored_name(txn, name):
        raise StoreError("the database was exchanged for another while the stream was loaded")
    loading.publish(txn, name, load.stream, replace, expire_at)
    loading.merge(txn, made)
    staged.remove(txn, load)


def refuse_gone(txn: Txn, load: StagedLoad) -> None:
    """Raise StoreError where the note is no longer there."""
    if txn.batch.get(Family.METADATA, load.row) is None:
        raise StoreError("the load was discarded, or its database flushed, in the meantime")


def discard(txn: Txn, label: bytes) -> bool:
    """Delete what a load has brought; tell whether there was one of that label."""
    load = find(txn, label)
    if load is not None:
        staged.discard(txn, load)
    return load is not None


def unfinished(txn: Txn) -> list[UnfinishedLoad]:
    """Return the loads that may be gone on with."""
    shown = txn.catalog.databases.shown_name
    found = []
    for load in staged.all_of(txn):
        name = shown(txn, load.stream.name)
        found.append(
            UnfinishedLoad(
                load.label,
                database_of(name),
                key_of(name),
                load.stream.last,
                load.stream.length,
                load.begun_ms,
            )
        )
    return found


def sweep(txn: Txn) -> None:
    """Delete what nobody will go on with: where the store has just been opened."""
    for load in list(staged.all_of(txn)):
        if not load.label or load.moved_ms + KEPT_MS < txn.now_ms:
            staged.discard(txn, load)
