"""Commands of whole keys: DEL, RENAME, EXISTS, TYPE, the expiry family, DBSIZE, SCAN, FLUSHDB."""

from collections.abc import Iterator
from itertools import islice

from kvstream.errors import NoSuchKey
from kvstream.layout.keys import key_of
from kvstream.meta.txn import Txn

SWEEP_KEYS = 100
"""Keys whose rows a flush deletes at once; more than these leave the disk later."""


def exists(txn: Txn, name: bytes) -> bool:
    return txn.stream(name) is not None


def kind(txn: Txn, name: bytes) -> str:
    """Return what TYPE answers: ``stream`` or ``none``."""
    return "none" if txn.stream(name) is None else "stream"


def delete(txn: Txn, name: bytes) -> bool:
    """Delete a key; tell whether it existed. The time does not depend on its entries."""
    stream = txn.stream(name)
    if stream is None:
        return False
    txn.catalog.drop_stream(txn, stream)
    txn.signal(name)
    return True


def rename(txn: Txn, source: bytes, target: bytes, replace: bool = True) -> bool:
    """Rename a key, over an existing one unless ``replace`` is false; tell whether it was done."""
    stream = txn.stream(source)
    if stream is None:
        raise NoSuchKey
    existing = txn.stream(target)
    if existing is not None and not replace:
        return False
    if source == target:
        return True
    if existing is not None:
        txn.catalog.drop_stream(txn, existing)
        txn.frees = False
    txn.catalog.rename_stream(txn, stream, target)
    txn.signal(source)
    txn.signal(target)
    return True


def expire_at(txn: Txn, name: bytes, at_ms: int) -> bool:
    """Let a key expire at a Unix time in milliseconds, at once if it has passed."""
    stream = txn.stream(name)
    if stream is None:
        return False
    if at_ms <= txn.now_ms:
        return delete(txn, name)
    txn.catalog.set_expiry(txn, stream, at_ms)
    return True


def expiry(txn: Txn, name: bytes) -> int | None:
    """Return when a key expires, 0 for never, None where there is no key."""
    stream = txn.stream(name)
    return None if stream is None else stream.expire_at


def persist(txn: Txn, name: bytes) -> bool:
    """Take a key's expiry away; tell whether it had one."""
    stream = txn.stream(name)
    if stream is None or not stream.expire_at:
        return False
    txn.catalog.set_expiry(txn, stream, 0)
    return True


def delete_expired(txn: Txn, limit: int) -> int:
    """Delete up to ``limit`` keys whose time has come."""
    names = txn.catalog.expired(txn, limit)
    for name in names:
        txn.stream(name)  # loading an expired stream deletes it
    return len(names)


def size(txn: Txn, db: int) -> int:
    """Return DBSIZE of a database."""
    return txn.catalog.key_count(txn, db)


def scan(txn: Txn, db: int, cursor: int, count: int) -> tuple[int, list[bytes]]:
    """Return SCAN's next cursor, 0 at the end, and up to ``count`` keys.

    Keys come in the order in which they were made, so that every key that stays throughout is seen
    exactly once, however many others come and go.
    """
    found: list[bytes] = []
    for generation, name in islice(_live(txn, db, cursor), count + 1):
        if len(found) == count:
            return generation, found
        found.append(key_of(name))
    return 0, found


def _live(txn: Txn, db: int, cursor: int) -> Iterator[tuple[int, bytes]]:
    for generation, name in txn.catalog.names(txn, db, cursor):
        if not txn.catalog.is_expired(txn, name):
            yield generation, name


def flush(txn: Txn, db: int) -> int:
    """Have every key of a database gone, and return how many there were.

    The commit takes as long for a million keys as for a hundred. Their entries leave the disk with
    it; what else they have left is for ``sweep``.
    """
    count = txn.catalog.flush(txn, db)
    sweep(txn, SWEEP_KEYS)
    return count


def flush_all(txn: Txn, databases: int) -> int:
    """Do the same for every database, as one commit."""
    return sum(flush(txn, db) for db in range(databases))


def sweep(txn: Txn, limit: int) -> int:
    """Delete the rows that up to ``limit`` flushed keys have left, and return how many had some."""
    return txn.catalog.sweep(txn, limit)
