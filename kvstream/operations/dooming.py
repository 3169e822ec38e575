"""DEL and EXISTS of very many keys, in steps between which others go on.

Steps look which of the keys there are. What others make, delete, rename or let expire meanwhile is
looked at once more. The last step of DEL writes down the generations of what there is
(meta/doomed.py) and counts it off: with that commit all is gone at once; the rows leave later.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from kvstream.layout.keys import U16, qualified, stream_row
from kvstream.meta.doomed import ROW_KEYS, encode_doomed
from kvstream.meta.index import KeyWatch
from kvstream.meta.strings import decode_key
from kvstream.meta.txn import Txn
from kvstream.operations.keyspace import delete, exists
from kvstream.operations.witness import TRIES
from kvstream.storage.batch import Family

LONG_KEYS = 500
"""Keys from which on they are looked at so."""
STEP_KEYS, STEP_BYTES = 200, 1 << 20
"""Keys that one step looks at, and how much their records may hold: some milliseconds of work."""
_TOGETHER = 20
"""Records that are read at once: each may be a long string."""


class LongCount:
    """EXISTS of very many keys of one database. It happens in its last step."""

    def __init__(self, db: int, keys: Sequence[bytes]) -> None:
        self._db, self._keys = db, keys
        self._watch: KeyWatch | None = None
        self._tries = 0

    def step(self, txn: Txn) -> int | None:
        """Look on; return how many keys there are once that is known, None before."""
        if self._watch is None or self._watch.broken:
            self._begin(txn)
        assert self._watch is not None
        self._anew |= self._watch.changed & self._pages.keys()
        self._watch.changed.clear()
        if self._tries <= TRIES and (self._look_anew(txn) or self._look_on(txn)):
            return None
        return self._finish(txn)

    def at_once(self, txn: Txn) -> int:
        """Do the same in one go."""
        self._begin(txn)
        return self._finish(txn)

    def _begin(self, txn: Txn) -> None:
        txn.finish()  # records that are yet to be written are looked at, too
        self._watch = txn.catalog.index.watch()
        self._tries += 1
        self._stored_db = txn.catalog.databases.stored(txn, self._db)
        self._next = 0
        """The first key that has not been looked at."""
        self._pages: dict[bytes, dict[bytes, int]] = {}
        """The names that were looked at, and the generations of those of the same page."""
        self._made: list[dict[bytes, int]] = []
        """These pages."""
        self._expiring: list[tuple[int, bytes]] = []
        """A heap of when some of the keys expire."""
        self._anew: set[bytes] = set()
        """Names to be looked at once more."""
        self._repeated: list[bytes] = []
        """Names that were given again."""

    def _look_on(self, txn: Txn) -> bool:
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

    def _look_anew(self, txn: Txn) -> bool:
        """Look at keys that others have changed; return whether there are more."""
        self._look(txn, [self._anew.pop() for _ in range(min(STEP_KEYS, len(self._anew)))])
        return bool(self._anew)

    def _look(self, txn: Txn, names: Sequence[bytes]) -> int:
        """Note which of some stored names are keys; return the bytes of their records."""
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
        """Look at what is left to be looked at, and do what is to be done."""
        while self._look_on(txn):
            pass
        self._look(txn, [*self._anew, *self._due(txn.expiry_ms)])
        self._watch = None
        return self._done(txn)

    def _done(self, txn: Txn) -> int:
        again = sum([name in self._pages[name] for name in self._repeated])
        return sum(map(len, self._made)) + again

    def _due(self, now_ms: int) -> Iterable[bytes]:
        """Yield the names whose time may have come since they were looked at."""
        while self._expiring and self._expiring[0][0] <= now_ms:
            yield heappop(self._expiring)[1]


class LongDelete(LongCount):
    """DEL of very many keys of one database, in the same way."""

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
