"""Commands of whole keys: DEL, RENAME, EXISTS, TYPE, the expiry family, DBSIZE, SCAN, FLUSHDB."""

from collections.abc import Iterator
from itertools import islice
from random import randint

from kvstream.errors import NoSuchKey
from kvstream.layout.keys import key_of, qualified
from kvstream.meta import leftovers
from kvstream.meta.records import StreamMeta
from kvstream.meta.strings import Key
from kvstream.meta.txn import Txn

SWEEP_KEYS = 100
"""Keys whose rows a flush deletes at once; more than these leave the disk later."""


def exists(txn: Txn, name: bytes) -> bool:
    return txn.key(name) is not None


def kind(txn: Txn, name: bytes) -> str:
    """Return what TYPE answers: ``stream``, ``string`` or ``none``."""
    return kind_of(txn.key(name))


def kind_of(key: Key | None) -> str:
    if key is None:
        return "none"
    return "stream" if isinstance(key, StreamMeta) else "string"


def delete(txn: Txn, name: bytes) -> bool:
    """Delete a key; tell whether it existed. The time does not depend on what is in it."""
    key = txn.key(name)
    if key is None:
        return False
    txn.catalog.drop(txn, key)
    txn.signal(name)
    return True


def make_room(txn: Txn, name: bytes) -> None:
    """Delete what has a name that something else is to have: no commit that only frees space."""
    key = txn.key(name)
    if key is not None:
        frees = txn.frees
        txn.catalog.drop(txn, key)
        txn.frees = frees


def rename(txn: Txn, source: bytes, target: bytes, replace: bool = True) -> bool:
    """Rename a key, over an existing one unless ``replace`` is false; tell whether it was done."""
    key = txn.key(source)
    if key is None:
        raise NoSuchKey
    if not replace and exists(txn, target):
        return False
    if source == target:
        return True
    make_room(txn, target)
    txn.catalog.rename(txn, key, target)
    txn.signal(source)
    txn.signal(target)
    return True


def expire_at(txn: Txn, name: bytes, at_ms: int) -> bool:
    """Let a key expire at a Unix time in milliseconds, at once if it has passed."""
    key = txn.key(name)
    if key is None:
        return False
    if at_ms <= txn.expiry_ms:
        return delete(txn, name)
    txn.catalog.set_expiry(txn, key, at_ms)
    return True


def expiry(txn: Txn, name: bytes) -> int | None:
    """Return when a key expires, 0 for never, None where there is no key."""
    key = txn.key(name)
    return None if key is None else key.expire_at


def persist(txn: Txn, name: bytes) -> bool:
    """Take a key's expiry away; tell whether it had one."""
    key = txn.key(name)
    if key is None or not key.expire_at:
        return False
    txn.catalog.set_expiry(txn, key, 0)
    return True


def delete_expired(txn: Txn, limit: int, skip: int = 0) -> int:
    """Delete up to ``limit`` keys whose time has come, but for the first ``skip`` of them."""
    catalog = txn.catalog
    names, before = catalog.index.expired(txn, limit, skip), catalog.expired
    for name in names:
        txn.key(name)  # loading an expired key deletes it
    catalog.expired_unasked += catalog.expired - before
    return len(names)


def size(txn: Txn, db: int) -> int:
    """Return DBSIZE of a database."""
    return txn.catalog.index.count(txn, db)


def scan(
    txn: Txn, db: int, cursor: int, count: int, kind: str | None = None
) -> tuple[int, list[bytes]]:
    """Return SCAN's next cursor, 0 at the end, and of the next ``count`` keys those of a kind.

    Keys come in the order in which they were made, so that every key that stays throughout is seen
    exactly once, however many others come and go.
    """
    if kind is None:
        found, following = txn.catalog.index.page(txn, db, cursor, count)
        return following, found
    found = []
    for place, (generation, key) in enumerate(islice(live(txn, db, cursor), count + 1)):
        if place == count:
            return generation, found
        if kind_of(key) == kind:
            found.append(key_of(key.name))
    return 0, found


def pages(txn: Txn, db: int) -> Iterator[list[bytes]]:
    """Yield the keys of a database as they are now."""
    return txn.catalog.index.pages(txn, db)


def first_expiries(txn: Txn, limit: int) -> list[tuple[int, bytes]]:
    """Return time and name of the first ``limit`` keys to expire, in any database."""
    return txn.catalog.index.expiries(txn, limit)


def live(txn: Txn, db: int, cursor: int) -> Iterator[tuple[int, Key]]:
    """Yield the keys of a database from a place in the order of SCAN on, with their places."""
    for generation, name in txn.catalog.index.names(txn, db, cursor):
        key = txn.catalog.peek(txn, name)
        if key is not None:
            yield generation, key


def random_key(txn: Txn, db: int) -> bytes | None:
    """Return any key of a database, None where there is none.

    A place in the order of SCAN is drawn, and the first key from there on taken: a key that follows
    many deleted ones comes more often.
    """
    bounds = txn.catalog.index.bounds(txn, db)
    if bounds is None:
        return None
    for start in (randint(*bounds), bounds[0]):
        for _, key in live(txn, db, start):
            return key_of(key.name)
    return None


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
    left = txn.catalog.index.has_names(txn)
    count = sum(txn.catalog.flush(txn, db, left) for db in range(databases))
    sweep(txn, SWEEP_KEYS)
    return count


def idle_s(txn: Txn, name: bytes) -> int | None:
    """Return for how many seconds nobody is known to have used a key, None where there is none."""
    return txn.catalog.index.usage.idle_s(name, txn.now_ms) if exists(txn, name) else None


def swap(txn: Txn, one: int, other: int) -> None:
    """Exchange two databases as a whole, in time that does not depend on their keys."""
    if one == other:
        return

    def is_there(key: bytes) -> bool:
        return any(exists(txn, qualified(db, key)) for db in (one, other))

    catalog = txn.catalog
    catalog.index.note_swapped([catalog.databases.stored(txn, db) for db in (one, other)], is_there)
    catalog.swap(txn, one, other)
    catalog.index.usage.swap(one, other)


def sweep(txn: Txn, limit: int) -> int:
    """Delete the rows that up to ``limit`` keys have left, and return how many had some."""
    return leftovers.sweep(txn, limit)
