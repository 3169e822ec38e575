"""Commands of whole keys: DEL, RENAME, EXISTS, TYPE, the expiry family, DBSIZE, SCAN, FLUSHDB.

DEL and EXISTS of very many keys, in steps between which others go on.

Steps look which of the keys there are. What others make, delete, rename or let expire meanwhile is
looked at once more. The last step of DEL writes down the generations of what there is
(meta/lazyfree.py) and counts it off: with that commit all is gone at once; the rows leave later.

WATCH: telling whether keys are still as they were.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from heapq import heappop, heappush
from itertools import islice
from random import randint
from typing import Generic, TypeVar

from kvstream.errors import NoSuchKey
from kvstream.layout.keys import U16, key_of, qualified, stream_row
from kvstream.meta import lazyfree
from kvstream.meta.keyspace import KeyWatch
from kvstream.meta.lazyfree import ROW_KEYS, encode_doomed
from kvstream.meta.records import StreamMeta
from kvstream.meta.strings import Key, StringMeta, decode_key
from kvstream.meta.txn import Txn
from kvstream.operations.delete import TRIES
from kvstream.storage.batch import Family

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
    return lazyfree.sweep(txn, limit)


T = TypeVar("T")

LONG_KEYS = 500
"""Keys from which on a command is done in steps."""
STEP_KEYS, STEP_BYTES = 200, 1 << 20
"""Keys that one step looks at, and how much their records may hold: some milliseconds of work."""
_TOGETHER = 20
"""Records that are read at once: each may be a long string."""


class LongKeys(Generic[T]):
    """A command about very many keys of one database, in steps. It happens in its last step.

    Steps look at the keys. A watch tells which of them other commands change meanwhile; these are
    looked at again.
    """

    def __init__(self, db: int, keys: Sequence[bytes]) -> None:
        self._db, self._keys = db, keys
        self._watch: KeyWatch | None = None
        self._tries = 0

    def step(self, txn: Txn) -> T | None:
        """Look at more keys; return the result in the last step, None before."""
        if self._watch is None or self._watch.broken:
            self._start(txn)
            self._watch = txn.catalog.index.watch()
        self._look_again(self._watch.changed)
        self._watch.changed.clear()
        while self._look_on(txn):
            if self._tries <= TRIES and self._looked <= 2 * len(self._keys):
                return None
        self._watch = None
        return self._finish(txn)

    def at_once(self, txn: Txn) -> T:
        """Do it in one step."""
        self._start(txn)
        while self._look_on(txn):
            pass
        return self._finish(txn)

    def _start(self, txn: Txn) -> None:
        self._tries += 1
        self._looked = 0
        """How many keys were looked at."""
        self._begin(txn)

    # --- what each command does -----------------------------------------------------------------

    def _begin(self, txn: Txn) -> None:
        """Forget what was found."""
        raise NotImplementedError

    def _look_again(self, changed: Set[bytes]) -> None:
        """Note that stored names were changed."""
        raise NotImplementedError

    def _look_on(self, txn: Txn) -> bool:
        """Look at the next keys; return whether there are more."""
        raise NotImplementedError

    def _finish(self, txn: Txn) -> T:
        """Look at keys that may have expired meanwhile, and do what the command does."""
        raise NotImplementedError


class LongCount(LongKeys[int]):
    """EXISTS."""

    def _begin(self, txn: Txn) -> None:
        txn.finish()  # so that every key has its record
        self._stored_db = txn.catalog.databases.stored(txn, self._db)
        self._next = 0
        """The first key that has not been looked at."""
        self._pages: dict[bytes, dict[bytes, int]] = {}
        """Names that were looked at, and the generations of the keys of the same page."""
        self._made: list[dict[bytes, int]] = []
        """These pages."""
        self._expiring: list[tuple[int, bytes]] = []
        """A heap of the times at which keys expire."""
        self._anew: set[bytes] = set()
        """Names to look at again."""
        self._repeated: list[bytes] = []
        """Names that were given again."""

    def _look_again(self, changed: Set[bytes]) -> None:
        self._anew |= changed & self._pages.keys()

    def _look_on(self, txn: Txn) -> bool:
        if self._anew:
            some = [self._anew.pop() for _ in range(min(STEP_KEYS, len(self._anew)))]
            self._look(txn, some)
            if self._anew:
                return True
        return self._look_at_next(txn)

    def _look_at_next(self, txn: Txn) -> bool:
        """Look at the keys that come next; return whether there are more."""
        prefix, size, left = U16.pack(self._stored_db), 0, STEP_KEYS
        while self._next < len(self._keys) and left > 0 and size < STEP_BYTES:
            some = [prefix + key for key in self._keys[self._next : self._next + ROW_KEYS]]
            fresh = [name for name in dict.fromkeys(some) if name not in self._pages]
            if len(fresh) < len(some):
                self._repeated += list((Counter(some) - Counter(fresh)).elements())
            page: dict[bytes, int] = {}
            self._pages.update(dict.fromkeys(fresh, page))
            self._made.append(page)
            self._next += ROW_KEYS
            left -= ROW_KEYS
            size += self._look(txn, fresh)
        return self._next < len(self._keys)

    def _look(self, txn: Txn, names: Sequence[bytes]) -> int:
        """Note which stored names are keys; return the bytes of their records."""
        self._looked += len(names)
        size = 0
        for at in range(0, len(names), _TOGETHER):
            some = names[at : at + _TOGETHER]
            records = txn.batch.get_many(Family.METADATA, [stream_row(name) for name in some])
            for name, record in zip(some, records, strict=True):
                self._note(txn, name, record)
                size += len(record or b"")
        return size

    def _note(self, txn: Txn, name: bytes, record: bytes | None) -> None:
        page = self._pages[name]
        page.pop(name, None)
        if record is None:
            return
        key = decode_key(name, record)
        if txn.catalog.is_gone(txn, key) or 0 < key.expire_at <= txn.expiry_ms:
            return
        page[name] = key.generation
        if key.expire_at:
            heappush(self._expiring, (key.expire_at, name))

    def _finish(self, txn: Txn) -> int:
        self._look(txn, list(self._due(txn.expiry_ms)))
        return self._done(txn)

    def _done(self, txn: Txn) -> int:
        again = sum([name in self._pages[name] for name in self._repeated])
        return sum(map(len, self._made)) + again

    def _due(self, now_ms: int) -> Iterable[bytes]:
        """Yield the names whose time may have come since they were looked at."""
        while self._expiring and self._expiring[0][0] <= now_ms:
            yield heappop(self._expiring)[1]


class LongDelete(LongCount):
    """DEL."""

    def _done(self, txn: Txn) -> int:
        pages = [page.values() for page in self._made if page]
        found: set[int] = set().union(*pages)
        count = len(found)
        if found:
            rows = dict([encode_doomed(self._stored_db, page) for page in pages])
            txn.catalog.doom(txn, self._stored_db, rows, found)
        return count


def delete_all(txn: Txn, db: int, keys: Sequence[bytes]) -> int:
    """Delete keys of a database at once, and return how many there were."""
    if len(keys) > LONG_KEYS:
        return LongDelete(db, keys).at_once(txn)
    return sum([delete(txn, qualified(db, key)) for key in keys])


def count_all(txn: Txn, db: int, keys: Sequence[bytes]) -> int:
    """Return how many keys of a database exist; one named twice counts twice."""
    if len(keys) > LONG_KEYS:
        return LongCount(db, keys).at_once(txn)
    return sum([exists(txn, qualified(db, key)) for key in keys])


class Watched:
    """Keys under WATCH: what they were, and what has been done to them since."""

    __slots__ = ("_only", "_prints", "_unchanged", "_watch")

    def __init__(self) -> None:
        self._prints: dict[bytes, object] = {}
        self._only: set[bytes] = set()
        self._watch: KeyWatch | None = None
        self._unchanged = False

    def __len__(self) -> int:
        return len(self._prints)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._prints)

    def add(self, txn: Txn, name: bytes) -> None:
        """Watch one more key; a name that is watched already is watched from where it was."""
        if name in self._prints:
            return
        if self._watch is None:
            self._watch = txn.catalog.index.watch(self._only)
        self._prints[name] = _fingerprint(txn, name)  # which deletes what has expired, unwatched
        self._only.add(txn.catalog.databases.stored_name(txn, name))

    def is_changed(self, txn: Txn) -> bool:
        """Tell whether any of the keys was changed, also where it has become what it was again.

        Who asks again, behind a turn that was undone, has done itself what was told of since.
        """
        if self._watch is None:
            return False
        told = bool(self._watch.changed) and not self._unchanged
        found = (_fingerprint(txn, name) != before for name, before in self._prints.items())
        self._unchanged = not (told or any(found))
        return not self._unchanged


def _fingerprint(txn: Txn, name: bytes) -> object:
    """Return what is another value once a key has been changed; None: there is no key.

    What is done with a stream's groups changes nothing, as in Redis.
    """
    stream = txn.key(name)
    if isinstance(stream, StringMeta):
        return (stream.generation, stream.value, stream.pieces, stream.expire_at)
    if stream is None:
        return None
    return (
        stream.generation,
        stream.entries_added,
        stream.length,
        stream.last,
        stream.max_deleted,
        stream.expire_at,
        stream.iids_added,
    )
