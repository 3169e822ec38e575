"""Commands on whole keys: DEL, RENAME, EXISTS, TYPE, EXPIRE, DBSIZE, SCAN, FLUSHDB.

DEL and EXISTS of very many keys look up the keys in steps (``operations/plans.py``). The last step
of DEL records the generations of the keys (``meta/lazyfree.py``): its commit deletes all of them,
and their rows are deleted later.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from heapq import heappop, heappush
from itertools import islice
from random import randint
from typing import Generic, NamedTuple, TypeVar

from kvstream.errors import NoSuchKey, quote
from kvstream.layout.keys import U16, key_of, qualified, stream_row
from kvstream.meta import lazyfree
from kvstream.meta.events.keys import DEL, EXPIRE, PERSIST, RENAME_FROM, RENAME_TO, Event
from kvstream.meta.keyspace import Expiries
from kvstream.meta.records import StreamMeta
from kvstream.meta.strings import Key, decode_key
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.operations.plans import Plan, Planning, Progress, run_at_once
from kvstream.storage.batch import Family
from kvstream.types.ids import StreamID


def is_over(txn: Txn, key: Key) -> bool:
    """Return whether a key whose record is still stored has expired or was unlinked."""
    return 0 < key.expire_at <= txn.expiry_ms or txn.catalog.is_gone(txn, key)


def exists(txn: Txn, name: bytes) -> bool:
    return txn.key(name) is not None


def kind(txn: Txn, name: bytes) -> str:
    """Return the reply of TYPE: ``stream``, ``string`` or ``none``."""
    return kind_of(txn.key(name))


def kind_of(key: Key | None) -> str:
    if key is None:
        return "none"
    return "stream" if isinstance(key, StreamMeta) else "string"


def delete(txn: Txn, name: bytes, event: Event | None = DEL) -> bool:
    """Delete a key; return whether it existed. The time does not depend on its size."""
    key = txn.key(name)
    if key is None:
        return False
    txn.catalog.drop(txn, key)
    if event is not None:
        txn.notify(event, name)
    txn.signal(name, Wake.DELETED)
    return True


def make_room(txn: Txn, name: bytes) -> Key | None:
    """Delete the key that another one replaces, and return it; None if there is none.

    This does not count as freeing space.
    """
    key = txn.key(name)
    if key is not None:
        frees = txn.frees
        txn.catalog.drop(txn, key)
        txn.frees = frees
    return key


def rename(txn: Txn, source: bytes, target: bytes, replace: bool = True) -> bool:
    """Rename a key, over an existing one unless ``replace`` is false; return whether it did."""
    key = txn.key(source)
    if key is None:
        raise NoSuchKey().with_detail(f"there is no key {quote(key_of(source))}")
    if not replace and exists(txn, target):
        return False
    if source == target:
        return True
    replaced = make_room(txn, target)
    txn.catalog.rename(txn, key, target)
    txn.notify(RENAME_FROM, source)
    txn.notify(RENAME_TO, target)
    txn.notify_overwritten(target, replaced, type(key))
    txn.signal(source, Wake.DELETED)
    txn.signal(target, Wake.REPLACED)
    return True


def expire_at(txn: Txn, name: bytes, at_ms: int) -> bool:
    """Set the expiry of a key to a Unix time in milliseconds; delete it if that has passed."""
    key = txn.key(name)
    if key is None:
        return False
    if at_ms <= txn.expiry_ms:
        return delete(txn, name)
    txn.catalog.set_expiry(txn, key, at_ms)
    txn.notify(EXPIRE, name)
    return True


def expiry(txn: Txn, name: bytes) -> int | None:
    """Return when a key expires, 0 for never, None if there is no key."""
    key = txn.key(name)
    return None if key is None else key.expire_at


def persist(txn: Txn, name: bytes) -> bool:
    """Remove a key's expiry; return whether it had one."""
    key = txn.key(name)
    if key is None or not key.expire_at:
        return False
    txn.catalog.set_expiry(txn, key, 0)
    txn.notify(PERSIST, name)
    return True


def delete_expired(txn: Txn, limit: int, skip: int = 0) -> int:
    """Delete up to ``limit`` expired keys, after the first ``skip``; return how many were found."""
    catalog = txn.catalog
    names, before = catalog.index.take_expired(txn, limit, skip), catalog.expired
    for name in names:
        if name is not None:
            txn.key(name)  # loading an expired key deletes it
    catalog.expired_unasked += catalog.expired - before
    return len(names)


def size(txn: Txn, db: int) -> int:
    """Return DBSIZE of a database."""
    return txn.catalog.index.count(txn, db)


def scan(
    txn: Txn, db: int, cursor: int, count: int, kind: str | None = None
) -> tuple[int, list[bytes]]:
    """Return SCAN's next cursor, 0 at the end, and the next ``count`` keys, or those of ``kind``.

    Keys come in the order of their creation, so a key that stays is returned exactly once, however
    many others come and go.
    """
    names, following = txn.catalog.index.page(txn, db, cursor, count)
    if kind is None:
        return following, names
    keys = ((key, txn.catalog.peek(txn, qualified(db, key))) for key in names)
    return following, [key for key, meta in keys if meta is not None and kind_of(meta) == kind]


class KeySummary(NamedTuple):
    """A key in a list of keys; the counts and the ID of a string are None."""

    key: bytes
    kind: str
    length: int | None
    groups: int | None
    last_id: StreamID | None
    expire_at: int
    """When it expires, in milliseconds of Unix time; 0: never."""


def summaries(txn: Txn, db: int, cursor: int, count: int) -> tuple[int, list[KeySummary]]:
    """Return SCAN's next cursor, 0 at the end, and summaries of the next ``count`` keys.

    Streams that are not in memory are not loaded, so that those in use stay there.
    """
    names, following = txn.catalog.index.page(txn, db, cursor, count)
    keys = txn.catalog.peek_all(txn, [qualified(db, key) for key in names])
    return following, [key_summary(key) for key in keys]


def key_summary(key: Key) -> KeySummary:
    """Return the summary of a key."""
    name, kind = key_of(key.name), kind_of(key)
    if not isinstance(key, StreamMeta):
        return KeySummary(name, kind, None, None, None, key.expire_at)
    return KeySummary(name, kind, key.length, key.groups_count, key.last, key.expire_at)


def pages(txn: Txn, db: int) -> Iterator[list[bytes]]:
    """Yield the keys of a database as they are now."""
    return txn.catalog.index.pages(txn, db)


def expiries(txn: Txn, limit: int) -> Callable[[int], Expiries]:
    """Return a function of a database that returns its expiries, by at most ``limit`` rows."""
    return txn.catalog.index.expiries(txn, limit)


_COUNTED_TOGETHER = 100


def counted(txn: Txn, db: int) -> Iterator[Key]:
    """Yield the keys of a database in the order of SCAN, with their counts."""
    names = (name for _, name in txn.catalog.index.names(txn, db, 0))
    while some := [*islice(names, _COUNTED_TOGETHER)]:
        yield from txn.catalog.peek_all(txn, some)


def random_key(txn: Txn, db: int) -> bytes | None:
    """Return a random key of a database, None if there is none.

    It is the first key after a random place in the order of SCAN, so a key after many deleted ones
    is more likely. Past many expired keys the search goes on among newer ones, which expire later.
    """
    bounds = txn.catalog.index.bounds(txn, db)
    if bounds is None:
        return None
    first, last = bounds
    place, name = randint(first, last), None
    while name is None and place <= last:
        name = _first_live(txn, db, place)
        place += (last - place) // 2 + 1
    return name or _first_live(txn, db, first)


def _first_live(txn: Txn, db: int, place: int) -> bytes | None:
    """Return the first existing key among the LOOKED_AT keys from a place on, if there is one."""
    names = (name for _, name in txn.catalog.index.names(txn, db, place))
    for name in islice(names, LOOKED_AT):
        if txn.catalog.peek(txn, name) is not None:
            return key_of(name)
    return None


LOOKED_AT = 200
"""The most expired keys that RANDOMKEY passes at one place, in 2 ms."""


def flush(txn: Txn, db: int) -> int:
    """Delete every key of a database, and return how many there were.

    The time of the commit does not depend on the number of keys. The commit deletes their entries;
    if there are many keys, ``sweep`` deletes the other rows.
    """
    return lazyfree.flush(txn, db, txn.thresholds.flush_keys)


def flush_all(txn: Txn, databases: int) -> int:
    """Delete every key of every database in one commit, and return how many there were."""
    count = 0
    for db in range(databases):
        count += lazyfree.flush(txn, db, max(txn.thresholds.flush_keys - count, 0))
    return count


def idle_s(txn: Txn, name: bytes) -> int | None:
    """Return for how many seconds a key is known to be idle; None if it does not exist."""
    return txn.catalog.index.usage.idle_s(name, txn.now_ms) if exists(txn, name) else None


def swap(txn: Txn, one: int, other: int) -> None:
    """Swap two databases, in time that does not depend on their keys."""
    if one == other:
        return

    def is_there(key: bytes) -> bool:
        return any(exists(txn, qualified(db, key)) for db in (one, other))

    catalog = txn.catalog
    catalog.index.report_swap(
        [catalog.databases.stored_number(txn, db) for db in (one, other)], is_there
    )
    catalog.swap(txn, one, other)
    catalog.index.usage.swap(one, other)


def sweep(txn: Txn, limit: int) -> int:
    """Delete the rows of up to ``limit`` deleted keys; return of how many keys there were rows."""
    return lazyfree.sweep(txn, limit)


T = TypeVar("T")


class KeyLookup(ABC, Generic[T]):
    """A plan of a command on very many keys of a database, which steps look up."""

    def __init__(self, txn: Txn, db: int, keys: Sequence[bytes]) -> None:
        self._db, self._keys = db, keys
        self._stored_db = txn.catalog.databases.stored_number(txn, db)
        self._prefix = U16.pack(self._stored_db)
        self._looked = 0
        """How many keys were looked at."""
        self._expiring: list[tuple[int, bytes]] = []
        """A heap of expiry times and stored names."""

    def plan(self, txn: Txn) -> Planning[T]:
        """Look up all keys, and again those that other commands change.

        After twice as many look-ups as keys, the rest is done in one step.
        """
        watch = txn.catalog.index.watch()
        progress = Progress(lambda txn: not watch.broken)
        while self._look_on(txn):
            if self._looked <= 2 * len(self._keys):
                txn = yield progress
                self._look_again(watch.changed)
                watch.changed.clear()
        return self._finish(txn)

    def _take_expired(self, txn: Txn) -> Iterator[bytes]:
        """Take the names that may have expired since they were looked up."""
        while self._expiring and self._expiring[0][0] <= txn.expiry_ms:
            yield heappop(self._expiring)[1]

    @abstractmethod
    def _look_again(self, changed: Set[bytes]) -> None:
        """Look up again those of the changed stored names that the command needs."""

    @abstractmethod
    def _look_on(self, txn: Txn) -> bool:
        """Look up the next keys; return whether there are more."""

    @abstractmethod
    def _finish(self, txn: Txn) -> T:
        """Do the last step of the command; return its result."""


class _Existing(KeyLookup[int]):
    """EXISTS."""

    def __init__(self, txn: Txn, db: int, keys: Sequence[bytes]) -> None:
        txn.finish()  # so that every key has its record
        super().__init__(txn, db, keys)
        self._next = 0
        """The position of the first key that was not looked up."""
        self._pages: dict[bytes, dict[bytes, int]] = {}
        """The page of each stored name: generations of the existing keys looked up with it."""
        self._made: list[dict[bytes, int]] = []
        """All pages."""
        self._again: set[bytes] = set()
        """Names to look at again."""
        self._repeated: list[bytes] = []
        """Repeated names."""

    def _look_again(self, changed: Set[bytes]) -> None:
        self._again |= changed & self._pages.keys()

    def _look_on(self, txn: Txn) -> bool:
        if self._again:
            count = min(txn.thresholds.step_keys, len(self._again))
            names = [self._again.pop() for _ in range(count)]
            self._look_up(txn, names)
            if self._again:
                return True
        return self._look_at_next(txn)

    def _look_at_next(self, txn: Txn) -> bool:
        """Look up the next keys; return whether there are more."""
        prefix, size, left = self._prefix, 0, txn.thresholds.step_keys
        while self._next < len(self._keys) and left > 0 and size < txn.thresholds.step_bytes:
            end = self._next + txn.thresholds.unlinked_keys
            names = [prefix + key for key in self._keys[self._next : end]]
            fresh = [name for name in dict.fromkeys(names) if name not in self._pages]
            if len(fresh) < len(names):
                self._repeated += list((Counter(names) - Counter(fresh)).elements())
            page: dict[bytes, int] = {}
            self._pages.update(dict.fromkeys(fresh, page))
            self._made.append(page)
            self._next = end
            left -= txn.thresholds.unlinked_keys
            size += self._look_up(txn, fresh)
        return self._next < len(self._keys)

    def _look_up(self, txn: Txn, names: Sequence[bytes]) -> int:
        """Look up stored names; return the bytes of their records."""
        self._looked += len(names)
        size = 0
        for at in range(0, len(names), txn.thresholds.keys_together):
            part = names[at : at + txn.thresholds.keys_together]
            records = txn.batch.get_many(Family.METADATA, [stream_row(name) for name in part])
            for name, record in zip(part, records, strict=True):
                self._note(txn, name, record)
                size += len(record or b"")
        return size

    def _note(self, txn: Txn, name: bytes, record: bytes | None) -> None:
        page = self._pages[name]
        page.pop(name, None)
        if record is None:
            return
        key = decode_key(name, record)
        if is_over(txn, key):
            return
        page[name] = key.generation
        if key.expire_at:
            heappush(self._expiring, (key.expire_at, name))

    def _finish(self, txn: Txn) -> int:
        """Return how many of the keys exist; a repeated key counts each time."""
        self._look_up(txn, [*self._take_expired(txn)])
        again = sum([name in self._pages[name] for name in self._repeated])
        return sum(map(len, self._made)) + again


class _Deletion(_Existing):
    """DEL."""

    def _finish(self, txn: Txn) -> int:
        """Delete the keys; return how many there were."""
        self._look_up(txn, [*self._take_expired(txn)])
        pages = [page for page in self._made if page]
        if pages:
            lazyfree.unlink(txn, self._stored_db, pages)
            self._notify(txn)
        return sum(map(len, pages))

    def _notify(self, txn: Txn) -> None:
        if txn.wanted_events & DEL.bit:
            for key in dict.fromkeys(self._keys):
                name = self._prefix + key
                if name in self._pages[name]:
                    txn.notify(DEL, qualified(self._db, key))


def plan_count(db: int, keys: Sequence[bytes]) -> Plan[int]:
    """Plan EXISTS of very many keys of a database."""
    return lambda txn: _Existing(txn, db, keys).plan(txn)


def plan_delete(db: int, keys: Sequence[bytes]) -> Plan[int]:
    """Plan DEL of very many keys of a database."""
    return lambda txn: _Deletion(txn, db, keys).plan(txn)


def delete_all(txn: Txn, db: int, keys: Sequence[bytes]) -> int:
    """Delete keys of a database, and return how many there were."""
    if len(keys) > txn.thresholds.long_keys:
        return run_at_once(txn, plan_delete(db, keys))
    return sum([delete(txn, qualified(db, key)) for key in keys])


def count_all(txn: Txn, db: int, keys: Sequence[bytes]) -> int:
    """Return how many keys of a database exist; a repeated key counts each time."""
    if len(keys) > txn.thresholds.long_keys:
        return run_at_once(txn, plan_count(db, keys))
    return sum([exists(txn, qualified(db, key)) for key in keys])
