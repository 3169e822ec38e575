"""MGET and MSET: many strings of one database at once.

MGET of very many is done in steps between which others go on, and happens in its last one: what
they have changed meanwhile is looked at once more.
"""

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import repeat
from typing import TypeVar

from kvstream.layout.keys import U16, database_of
from kvstream.meta import many_strings
from kvstream.meta.index import KeyWatch
from kvstream.meta.many_strings import HEAD, Plain
from kvstream.meta.pieces import is_large
from kvstream.meta.strings import Key, StringMeta, decode_key
from kvstream.meta.txn import Txn
from kvstream.operations import pages, strings
from kvstream.operations.witness import TRIES

T = TypeVar("T")

LONG_NAMES = 500
"""Strings from which on they are read in steps."""
STEP_NAMES, STEP_BYTES = 500, 1 << 20
"""Strings that one step reads, and how much they may hold: two milliseconds of work or so."""


def get_several(
    txn: Txn, names: Sequence[bytes], later: Callable[[StringMeta], T] | None = None
) -> list[bytes | T | None]:
    """Return the value of each string of a database; None where a name has no string.

    Large strings beyond what is short are what ``later`` makes of them, where it is given.
    ReplyTooLarge where they are more than one reply may have.
    """
    most = left = txn.catalog.limits.reply_left
    short = pages.short_bytes(txn)
    plain = Plain(txn, _stored_db(txn, names))
    values: list[bytes | T | None] = []
    known = txn.catalog.streams  # one that was just made has no record yet
    stored = _stored(txn, names)
    found = many_strings.records(txn, stored)
    for name, own, record in zip(names, stored, found, strict=True):
        value: bytes | T | None = None
        if record is None:
            if name not in known:
                txn.missing.add(name)
        elif many_strings.is_of_stream(record):
            if _is_over(txn, known.get(name) or decode_key(own, record)):
                txn.missing.add(name)
        elif plain.has(record):
            value = record[HEAD:]
            left -= len(value)
            short -= len(value)
        else:
            key = txn.key(name)
            if isinstance(key, StringMeta):
                short -= key.length
                if later is not None and short < 0 and key.pieces is not None:
                    left -= pages.ITERATOR_BYTES
                    values.append(later(key))
                    continue
                left -= key.length
                value = key.read(txn.batch) if left >= 0 or not most else None
        if most and left < 0:
            raise txn.catalog.limits.too_large()
        values.append(value)
    return values


def _is_over(txn: Txn, key: Key) -> bool:
    """Tell whether a key whose record is there has expired, or gone with many others."""
    return 0 < key.expire_at <= txn.expiry_ms or txn.catalog.is_gone(txn, key)


def put_several(txn: Txn, values: Mapping[bytes, bytes]) -> None:
    """Set keys of a database to strings, whatever they held before."""
    for value in values.values():
        strings.refuse_longer(len(value))
    stored, stored_db = _stored(txn, list(values)), _stored_db(txn, list(values))
    plain, catalog = Plain(txn, stored_db), txn.catalog
    watched, known = catalog.index.is_watched, catalog.streams
    made: dict[bytes, bytes] = {}
    odd: list[bytes] = []
    found = many_strings.records(txn, stored)
    for (name, value), own, record in zip(values.items(), stored, found, strict=True):
        if is_large(len(value)) or watched:
            odd.append(name)
        elif record is None and name not in known:
            made[own] = value
            txn.signal(name)
        elif record is not None and plain.has(record):
            many_strings.rewrite(txn, own, record, value)
        else:
            odd.append(name)
    if made:
        many_strings.create(txn, stored_db, made)
    for name in odd:  # last: what is dropped for them may be kept under a name that is free
        strings.put(txn, name, values[name])


def _stored_db(txn: Txn, names: Sequence[bytes]) -> int:
    return txn.catalog.databases.stored(txn, database_of(names[0]))


def _stored(txn: Txn, names: Sequence[bytes]) -> list[bytes]:
    stored_name = txn.catalog.databases.stored_name
    return [stored_name(txn, name) for name in names]


class LongGet:
    """MGET of very many keys of one database."""

    def __init__(self, db: int, keys: Sequence[bytes]) -> None:
        self._db, self._keys = db, keys
        self._watch: KeyWatch | None = None
        self._tries = 0

    def step(self, txn: Txn) -> list[bytes | None] | None:
        """Read on; return the values once all are known, None before."""
        if self._watch is None or self._watch.broken:
            self._begin(txn)
        assert self._watch is not None
        self._left += self._watch.changed & self._values.keys()
        self._watch.changed.clear()
        enough = self._tries > TRIES or self._read > 2 * len(self._keys)
        while self._read_on(txn):
            if not enough:
                return None
        while self._expiring and self._expiring[0][0] <= txn.expiry_ms:
            self._left.append(heappop(self._expiring)[1])
        while self._read_on(txn):
            pass
        self._watch = None
        prefix, values = self._prefix, self._values
        known = txn.catalog.streams  # one that was just made has no record yet
        for name in map(txn.catalog.databases.shown_name, repeat(txn), self._absent):
            stream = known.get(name)
            if stream is None or _is_over(txn, stream):
                txn.missing.add(name)
        found = [values[prefix + key] for key in self._keys]
        _bound(txn, sum([len(value) for value in found if value is not None]))
        return found

    def _begin(self, txn: Txn) -> None:
        self._watch = txn.catalog.index.watch()
        self._tries += 1
        self._prefix = U16.pack(txn.catalog.databases.stored(txn, self._db))
        self._left = [self._prefix + key for key in dict.fromkeys(self._keys)]
        """Stored names whose values are to be read."""
        self._values: dict[bytes, bytes | None] = {}
        self._absent: set[bytes] = set()
        """Those of them that are no keys."""
        self._expiring: list[tuple[int, bytes]] = []
        """A heap of when some of the keys expire."""
        self._read = self._held = 0
        """How many were read, and how many bytes the values have."""

    def _read_on(self, txn: Txn) -> bool:
        """Read some of what is left; tell whether more is."""
        plain = Plain(txn, U16.unpack(self._prefix)[0])
        until, size = self._read + STEP_NAMES, 0
        while self._left and self._read < until and size < STEP_BYTES:
            some = self._left[-many_strings.TOGETHER :]
            del self._left[-many_strings.TOGETHER :]
            self._read += len(some)
            for name, record in zip(some, many_strings.records(txn, some), strict=True):
                self._absent.discard(name)
                if record is None:
                    value = None
                    self._absent.add(name)
                elif plain.has(record):
                    value = record[HEAD:]
                else:
                    value = self._odd(txn, name, record)
                length = len(value or b"")
                self._held += length - len(self._values.get(name) or b"")
                self._values[name] = value
                size += length
            _bound(txn, self._held)
        return bool(self._left)

    def _odd(self, txn: Txn, name: bytes, record: bytes) -> bytes | None:
        """Return the value of what is no plain string; None for a stream, or what is gone."""
        key = decode_key(name, record)
        if _is_over(txn, key):
            self._absent.add(name)
            return None
        if key.expire_at:
            heappush(self._expiring, (key.expire_at, name))
        if not isinstance(key, StringMeta):
            return None
        _bound(txn, self._held + key.length)
        return key.read(txn.batch)


def _bound(txn: Txn, size: int) -> None:
    most = txn.catalog.limits.reply_left
    if most and size > most:
        raise txn.catalog.limits.too_large()
