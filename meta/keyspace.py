"""What stands for every key besides its record: the order of SCAN, the expiry, the number of keys.

Rows alone are kept here, of keys of any kind; what else a key has, the catalog knows. A key's own
name is the stored one; names and numbers that are asked for or returned are those of callers.

Which number the rows of each database bear: SWAPDB exchanges two numbers, and moves no row.

::

    swapped row := "D" -> (db(u16) stored(u16))*

The row names the databases that bear another number than their own, in order, and goes when there
is none. A *name*, as callers have it, opens with the number that clients select; a *stored* name,
that of rows and metadata objects, with the number that the database bears.

When keys were last used: of as many as there is room for, in memory alone.
"""

from collections.abc import Callable, Collection, Iterator
from collections.abc import Set as AbstractSet
from struct import Struct
from struct import error as StructError
from weakref import WeakSet

from kvstream.errors import Corruption
from kvstream.layout.keys import (
    EXPIRY_TAG,
    SCAN_TAG,
    SWAPPED_KEY,
    U64,
    database_of,
    decode_number,
    expiry_row,
    key_count_row,
    key_of,
    qualified,
    scan_row,
    successor,
)
from kvstream.meta.lazyfree import Doomed, Flushed
from kvstream.meta.strings import Key
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family, Row

USED_MAX = 20_000
"""Keys that are noted one by one, at least of the last that were used, at most twice as many."""


class Usage:
    """The last use of keys, in milliseconds of Unix time, by the names of callers.

    Two generations: a key that is in neither has not been used since the older one began.
    """

    __slots__ = ("_before", "_recent_since", "_since", "recent")

    def __init__(self) -> None:
        self.recent: dict[bytes, int] = {}
        """The younger one; whoever puts a key into it calls ``age`` where it gets too large."""
        self._before: dict[bytes, int] = {}
        self._since = self._recent_since = -1

    def begin(self, now_ms: int) -> None:
        """Have all keys count as used now, unless that was done before."""
        if self._since < 0:
            self._since = self._recent_since = now_ms

    def note(self, names: list[bytes], now_ms: int, idle_s: int = 0) -> None:
        """Note that keys are used now, or were so long ago."""
        recent, used = self.recent, now_ms - 1000 * idle_s
        for name in names:
            recent[name] = used
        if len(recent) > USED_MAX:
            self.age(now_ms)

    def age(self, now_ms: int) -> None:
        """Begin a generation."""
        self._before, self.recent = self.recent, {}
        self._since, self._recent_since = self._recent_since, now_ms

    def idle_s(self, name: bytes, now_ms: int) -> int:
        """Return for how many seconds a key has not been used; it may be more."""
        self.begin(now_ms)
        used = self.recent.get(name)
        if used is None:
            used = self._before.get(name, self._since)
        return max(0, now_ms // 1000 - used // 1000)

    def swap(self, one: int, other: int) -> None:
        """Have the keys of a database count as those of another, and the other way round."""
        numbers = {one: other, other: one}
        self.recent = _renumbered(self.recent, numbers)
        self._before = _renumbered(self._before, numbers)


def _renumbered(used: dict[bytes, int], numbers: dict[int, int]) -> dict[bytes, int]:
    return {
        qualified(numbers.get(db := database_of(name), db), key_of(name)): at
        for name, at in used.items()
    }


_PAIR = Struct(">HH")
_METADATA = Family.METADATA


def decode_swapped(value: bytes | None) -> dict[int, int]:
    """Return the stored number of each database that bears another than its own."""
    try:
        pairs = list(_PAIR.iter_unpack(value or b""))
    except StructError:
        pairs = [(0, 0)]
    numbers: dict[int, int] = dict(pairs)
    ordered = [db for db, _ in pairs] == sorted(numbers)
    if not ordered or value == b"" or sorted(numbers.values()) != sorted(numbers):
        raise Corruption("the row of swapped databases is damaged")
    if any(db == stored for db, stored in pairs):
        raise Corruption("the row of swapped databases names one that is not swapped")
    return numbers


def encode_swapped(numbers: dict[int, int]) -> bytes:
    return b"".join(_PAIR.pack(*pair) for pair in sorted(numbers.items()))


class Databases:
    """The numbers that databases bear."""

    def __init__(self) -> None:
        self._stored: dict[int, int] | None = None
        """Of those that bear another than their own; None: to be read."""
        self._shown: dict[int, int] = {}
        """The reverse of it."""

    def _load(self, txn: Txn) -> dict[int, int]:
        self._note(decode_swapped(txn.batch.get(_METADATA, SWAPPED_KEY)))
        return self._stored or {}

    def _note(self, numbers: dict[int, int]) -> None:
        self._stored = numbers
        self._shown = {stored: db for db, stored in numbers.items()}

    def stored(self, txn: Txn, db: int) -> int:
        """Return the number that a database bears."""
        numbers = self._load(txn) if self._stored is None else self._stored
        return numbers.get(db, db)

    def shown(self, txn: Txn, stored: int) -> int:
        """Return the database that bears a number."""
        if self._stored is None:
            self._load(txn)
        return self._shown.get(stored, stored)

    def stored_name(self, txn: Txn, name: bytes) -> bytes:
        """Return the stored form of a name."""
        numbers = self._load(txn) if self._stored is None else self._stored
        return qualified(self.stored(txn, database_of(name)), key_of(name)) if numbers else name

    def shown_name(self, txn: Txn, name: bytes) -> bytes:
        """Return what callers call a stored name."""
        numbers = self._load(txn) if self._stored is None else self._stored
        return qualified(self.shown(txn, database_of(name)), key_of(name)) if numbers else name

    def swap(self, txn: Txn, one: int, other: int) -> None:
        """Let two databases bear each other's numbers."""
        numbers = dict(self._load(txn) if self._stored is None else self._stored)
        numbers[one], numbers[other] = numbers.get(other, other), numbers.get(one, one)
        numbers = {db: stored for db, stored in numbers.items() if db != stored}
        self._note(numbers)
        if numbers:
            txn.batch.put(_METADATA, SWAPPED_KEY, encode_swapped(numbers))
        else:
            txn.batch.delete(_METADATA, SWAPPED_KEY)

    def forget(self) -> None:
        """Have the row read again."""
        self._stored, self._shown = None, {}


_EXPIRY_NAME = 1 + U64.size
"""Where the name begins in the key of a row for expiry."""
NEVER = 1 << 64
"""Later than every expiry."""


class KeyWatch:
    """What becomes of keys while somebody looks at very many of them, or waits to change some."""

    def __init__(self, only: set[bytes] | None = None) -> None:
        self.only = only
        """The stored names that count, None: all."""
        self.changed: set[bytes] = set()
        """Stored names that were made, deleted, given another expiry, or as strings written, since
        it was emptied."""
        self.broken = False
        """More has changed than that."""

    def note(self, name: bytes) -> None:
        """Be told of a stored name."""
        if self.only is None or name in self.only:
            self.changed.add(name)


class KeyIndex:
    """The keys of all databases, by the order of their making and by the time of their expiry."""

    def __init__(self, flushed: Flushed, doomed: Doomed, databases: Databases) -> None:
        self._flushed = flushed
        self._doomed = doomed
        self._databases = databases
        self._next_expiry = 0
        """No key expires before; 0: to be looked up."""
        self._watches: WeakSet[KeyWatch] = WeakSet()
        self.usage = Usage()

    def add(self, txn: Txn, key: Key) -> None:
        """List a key, and count it; what was deleted for it makes no commit that frees space."""
        txn.frees = False
        self.note(key)
        db = database_of(key.name)
        txn.batch.put(_METADATA, scan_row(db, key.generation), key_of(key.name))
        if key.expire_at:
            self._note_expiry(txn, key.expire_at, key.name)
        self._count(txn, db, 1)

    @property
    def is_watched(self) -> bool:
        """Tell whether anybody is told of changes."""
        return bool(self._watches)

    def made(self, txn: Txn, stored_db: int, names: Collection[bytes]) -> None:
        """Count keys that have been listed, by their stored names."""
        self.rewritten(names)
        self._count(txn, stored_db, len(names))

    def rewritten(self, names: Collection[bytes]) -> None:
        """Tell those who watch of strings that get another value, by their stored names."""
        for watch in self._watches:
            for name in names:
                watch.note(name)

    def remove(self, txn: Txn, key: Key, counted: bool = True) -> None:
        """Undo ``add``; ``counted``: nothing has counted it off already, and told of it."""
        db = database_of(key.name)
        txn.batch.delete(_METADATA, scan_row(db, key.generation))
        if key.expire_at:
            txn.batch.delete(_METADATA, expiry_row(key.expire_at, key.name))
        if counted:
            self.note(key)
            self._count(txn, db, -1)

    def set_expiry(self, txn: Txn, key: Key, at_ms: int) -> None:
        """Have a key expire at a Unix time in milliseconds, 0 for never, but for its record."""
        self.note(key)
        if key.expire_at:
            txn.batch.delete(_METADATA, expiry_row(key.expire_at, key.name))
        if at_ms:
            self._note_expiry(txn, at_ms, key.name)
        key.expire_at = at_ms

    def _note_expiry(self, txn: Txn, at_ms: int, name: bytes) -> None:
        txn.batch.put(_METADATA, expiry_row(at_ms, name), b"")
        self._next_expiry = min(self._next_expiry, at_ms)

    def expired(self, txn: Txn, limit: int, skip: int = 0) -> list[bytes]:
        """Return the names of up to ``limit`` keys whose time has come, behind the first ``skip``.

        The index is read only when something in it is due: its deleted rows are stepped over.
        """
        if txn.expiry_ms < self._next_expiry:
            return []
        rows = txn.batch.page(_METADATA, EXPIRY_TAG, successor(EXPIRY_TAG), skip + limit + 1)[skip:]
        times = [int(U64.unpack_from(key, 1)[0]) for key, _ in rows]
        due = sum(at_ms <= txn.expiry_ms for at_ms in times[:limit])
        if not skip:  # what is skipped stays due
            self._next_expiry = times[due] if due < len(times) else NEVER
        for key, _ in rows[:due]:  # also where it stands for no key: it would be due for ever
            txn.batch.delete(_METADATA, key)
        return [self._databases.shown_name(txn, key[_EXPIRY_NAME:]) for key, _ in rows[:due]]

    def expiries(self, txn: Txn, limit: int) -> list[tuple[int, bytes]]:
        """Return time and name of the first ``limit`` keys to expire, those that are due too."""
        rows = txn.batch.page(_METADATA, EXPIRY_TAG, successor(EXPIRY_TAG), limit)
        shown = self._databases.shown_name
        return [(U64.unpack_from(key, 1)[0], shown(txn, key[_EXPIRY_NAME:])) for key, _ in rows]

    def names(self, txn: Txn, db: int, cursor: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield (generation, name) of a database's keys from generation ``cursor`` on."""
        doomed = self._doomed.known(txn)
        for key, value in txn.batch.scan(_METADATA, *self._rows(txn, db, cursor)):
            generation = U64.unpack_from(key, 3)[0]
            if generation not in doomed:
                yield generation, qualified(db, value)

    def has_names(self, txn: Txn) -> bool:
        """Tell whether any database has a key, or a flushed one has left its row."""
        return bool(txn.batch.page(_METADATA, SCAN_TAG, successor(SCAN_TAG), 1))

    def page(self, txn: Txn, db: int, cursor: int, limit: int) -> tuple[list[bytes], int]:
        """Return up to ``limit`` keys from a place on, and the place behind them, 0 at the end.

        No record is read: what has expired unnoticed is known by the rows for expiry.
        """
        rows = txn.batch.page(_METADATA, *self._rows(txn, db, cursor), limit + 1)
        following = U64.unpack_from(rows[limit][0], 3)[0] if len(rows) > limit else 0
        keys = _keys_of(rows[:limit], self._doomed.known(txn))
        gone = self._gone(txn, self._databases.stored(txn, db))
        return [key for key in keys if key not in gone] if gone else keys, following

    def pages(self, txn: Txn, db: int) -> Iterator[list[bytes]]:
        """Yield all keys as they are now, page by page, whatever is changed meanwhile."""
        found = txn.batch.snapshot(_METADATA, *self._rows(txn, db))
        gone = self._gone(txn, self._databases.stored(txn, db))
        doomed = frozenset(self._doomed.known(txn))
        return ([key for key in _keys_of(page, doomed) if key not in gone] for page in found)

    def _gone(self, txn: Txn, stored_db: int) -> set[bytes]:
        """Return the keys of a database that have expired and are still there."""
        if txn.expiry_ms < self._next_expiry:
            return set()
        upper = EXPIRY_TAG + U64.pack(txn.expiry_ms + 1)
        due = (key[_EXPIRY_NAME:] for key, _ in txn.batch.scan(_METADATA, EXPIRY_TAG, upper))
        return {key_of(name) for name in due if database_of(name) == stored_db}

    def bounds(self, txn: Txn, db: int) -> tuple[int, int] | None:
        """Return the least and the greatest generation of a database's keys, None without any."""
        rows = self._rows(txn, db)
        ends = [txn.batch.page(_METADATA, *rows, limit=1, reverse=back) for back in (False, True)]
        if not all(ends):
            return None
        first, last = (U64.unpack_from(page[0][0], 3)[0] for page in ends)
        return first, last

    def _rows(self, txn: Txn, db: int, cursor: int = 0) -> tuple[bytes, bytes]:
        stored = self._databases.stored(txn, db)
        start = max(cursor, self._flushed.of(txn, stored).bound)
        return scan_row(stored, start), successor(scan_row(stored, (1 << 64) - 1))

    def count(self, txn: Txn, db: int) -> int:
        """Return how many keys a database has, those that expired unnoticed included."""
        row = key_count_row(self._databases.stored(txn, db))
        return decode_number(row, txn.batch.get(_METADATA, row))

    def _count(self, txn: Txn, stored_db: int, change: int) -> None:
        row = key_count_row(stored_db)
        count = decode_number(row, txn.batch.get(_METADATA, row)) + change
        if count < 0:
            raise Corruption(f"the row {row!r} counts fewer keys than there are")
        txn.batch.put(_METADATA, row, U64.pack(count))

    def left(self, txn: Txn, stored_db: int, count: int) -> None:
        """Count keys of a database as gone whose rows stay for now."""
        self._count(txn, stored_db, -count)
        self.break_watches()

    def watch(self, only: set[bytes] | None = None) -> KeyWatch:
        """Return what is told of each change from here on, for as long as somebody has it."""
        watch = KeyWatch(only)
        self._watches.add(watch)
        return watch

    def note(self, key: Key) -> None:
        """Tell those who watch that a key is changed."""
        if self._watches:  # to go through a WeakSet takes two microseconds, also through none
            for watch in self._watches:
                watch.note(key.name)

    def note_swapped(self, dbs: Collection[int], is_there: Callable[[bytes], bool]) -> None:
        """Tell those who watch some keys of databases that change places of keys that are there.

        ``dbs`` are their numbers in rows; ``is_there`` tells whether one of them has a key.
        """
        for watch in self._watches:
            for name in watch.only or ():
                if database_of(name) in dbs and is_there(key_of(name)):
                    watch.note(name)

    def break_watches(self) -> None:
        """Tell that any number of keys may have changed."""
        for watch in self._watches:
            watch.broken = True

    def forget(self) -> None:
        """Have the time of the next expiry looked up again."""
        self._next_expiry = 0
        self.break_watches()


def _keys_of(rows: list[Row], doomed: AbstractSet[int]) -> list[bytes]:
    """Return the keys that rows for SCAN name, without those that are gone."""
    if not doomed:
        return [key for _, key in rows]
    return [key for row, key in rows if U64.unpack_from(row, 3)[0] not in doomed]
