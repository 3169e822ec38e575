"""Commands of whole keys: DEL, RENAME, EXISTS, TYPE, the expiry family, DBSIZE, SCAN, FLUSHDB."""

from collections.abc import Iterator
from itertools import islice

from kvstream.errors import NoSuchKey
from kvstream.layout.keys import key_of
from kvstream.meta.txn import Txn

FLUSH_PAGE = 1000
"""Keys that one step of FLUSHDB deletes: a bounded batch."""


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


def flush(txn: Txn, db: int, limit: int = FLUSH_PAGE) -> int:
    """Delete up to ``limit`` keys of a database, and return how many."""
    names = [name for _, name in islice(txn.catalog.names(txn, db), limit)]
    for name in names:
        stream = txn.stream(name)
        if stream is not None:
            txn.catalog.drop_stream(txn, stream)
        txn.signal(name)
    return len(names)
