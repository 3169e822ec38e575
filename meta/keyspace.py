"""Keep the rows that keys have besides their records: the order of SCAN, expiry, timers and counts.

SWAPDB exchanges the stored numbers of two databases and moves no row. FLUSHDB gives a database
another stored number, from 32768 on, and leaves its keys under the former one::

    numbers row := "D" -> (db(u16) stored(u16))*

The row lists, in order, the databases whose stored number is not their own; without any there is no
row. A *name*, as callers use it, begins with the number that clients SELECT. A *stored name*, as
rows and metadata objects have it, begins with the stored number. A key object has its stored name;
arguments and results are names unless they say so.

When keys were last used (OBJECT IDLETIME) is kept in memory alone, for the last 20,000 to 40,000.
"""

from collections import deque
from collections.abc import Callable, Collection, Container, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from struct import Struct
from struct import error as StructError
from weakref import getweakrefs, ref

from kvstream.errors import Corruption, StoreError
from kvstream.layout.keys import (
    EXPIRY_TAG,
    NUMBERS_KEY,
    TIMER_TAG,
    U16,
    U64,
    database_of,
    decode_number,
    expiry_row,
    generation_of_row,
    key_count_row,
    key_of,
    name_of_row,
    qualified,
    scan_bounds,
    scan_row,
    successor,
    time_of_row,
    timer_row,
)
from kvstream.meta.changeset import Changeset
from kvstream.meta.deleted_keys import Unlinked
from kvstream.meta.records import StreamMeta
from kvstream.meta.strings import Key
from kvstream.meta.wakeups import Wake
from kvstream.storage.batch import Family, Row
from kvstream.types.options import DATABASES_MAX


class Usage:
    """When keys were last used, in milliseconds of Unix time.

    Two generations: a key in neither has not been used since the older one began.
    """

    __slots__ = ("_before", "_most", "_recent_since", "_since", "recent")

    def __init__(self, most: int) -> None:
        """``most`` is the number of keys of one generation."""
        self._most = most
        self.recent: dict[bytes, int] = {}
        """The younger generation; a caller that fills it beyond its limit calls ``age``."""
        self._before: dict[bytes, int] = {}
        self._since = self._recent_since = -1

    def begin(self, now_ms: int) -> None:
        """Count all keys as used now, unless that was done before."""
        if self._since < 0:
            self._since = self._recent_since = now_ms

    def record_use(self, names: list[bytes], now_ms: int, idle_s: int = 0) -> None:
        """Record that keys were used ``idle_s`` seconds ago."""
        recent, used = self.recent, now_ms - 1000 * idle_s
        for name in names:
            recent[name] = used
        if len(recent) > self._most:
            self.age(now_ms)

    def age(self, now_ms: int) -> None:
        """Begin a new generation."""
        self._before, self.recent = self.recent, {}
        self._since, self._recent_since = self._recent_since, now_ms

    def idle_s(self, name: bytes, now_ms: int) -> int:
        """Return for how many seconds a key has not been used, at most."""
        self.begin(now_ms)
        used = self.recent.get(name)
        if used is None:
            used = self._before.get(name, self._since)
        return max(0, now_ms // 1000 - used // 1000)

    def swap(self, one: int, other: int) -> None:
        """Exchange the times of the keys of two databases."""
        numbers = {one: other, other: one}
        self.recent = _renumber(self.recent, numbers)
        self._before = _renumber(self._before, numbers)


def _renumber(used: dict[bytes, int], numbers: dict[int, int]) -> dict[bytes, int]:
    return {
        qualified(numbers.get(db := database_of(name), db), key_of(name)): at
        for name, at in used.items()
    }


_PAIR = Struct(">HH")
_METADATA = Family.METADATA
_NUMBERS = 1 << 16
"""Stored numbers; those from DATABASES_MAX on are no database's own."""


def decode_numbers(value: bytes | None) -> dict[int, int]:
    """Return the stored number of each database whose stored number is not its own."""
    try:
        pairs = list(_PAIR.iter_unpack(value or b""))
    except StructError:
        pairs = [(0, 0)]
    numbers: dict[int, int] = dict(pairs)
    ordered = [db for db, _ in pairs] == sorted(numbers) and value != b""
    unique = len(set(numbers.values())) == len(pairs)
    given_up = all(stored in numbers for stored in numbers.values() if stored < DATABASES_MAX)
    differ = all(db < DATABASES_MAX and db != stored for db, stored in pairs)
    if not (ordered and unique and given_up and differ):
        raise Corruption("the row of the numbers of databases is damaged")
    return numbers


def encode_numbers(numbers: dict[int, int]) -> bytes:
    return b"".join(_PAIR.pack(*pair) for pair in sorted(numbers.items()))


def free_number(after: int, taken: Container[int]) -> int:
    """Return the next stored number that is not ``taken``.

    A number is used again as late as possible: a bulk load may still write rows under it.
    """
    start = max(after + 1, DATABASES_MAX)
    for number in chain(range(start, _NUMBERS), range(DATABASES_MAX, start)):
        if number not in taken:
            return number
    raise StoreError("too many flushed databases wait for their deletion: try again later")


class Databases:
    """Map the numbers that clients select to stored numbers, and back."""

    __slots__ = ("_shown", "_shown_heads", "_stored", "_stored_heads")

    def __init__(self) -> None:
        self._stored: dict[int, int] | None = None
        """The numbers that differ; None if they are still to be read."""
        self._shown: dict[int, int] = {}
        """The reverse map."""
        self._stored_heads: dict[bytes, bytes] = {}
        """The first bytes of stored names, by those of names."""
        self._shown_heads: dict[bytes, bytes] = {}

    def _numbers(self, txn: Changeset) -> dict[int, int]:
        """Return the stored numbers that differ; read them if that was not done yet."""
        numbers = self._stored
        if numbers is None:
            numbers = decode_numbers(txn.batch.get(_METADATA, NUMBERS_KEY))
            self._note(numbers)
        return numbers

    def _note(self, numbers: dict[int, int]) -> None:
        self._stored = numbers
        self._shown = {stored: db for db, stored in numbers.items()}
        heads = [(U16.pack(db), U16.pack(stored)) for db, stored in numbers.items()]
        self._stored_heads = dict(heads)
        self._shown_heads = {stored: db for db, stored in heads}

    def stored_number(self, txn: Changeset, db: int) -> int:
        """Return the stored number of a database."""
        return self._numbers(txn).get(db, db)

    def shown_number(self, txn: Changeset, stored: int) -> int:
        """Return the database of a stored number."""
        if self._stored is None:
            self._numbers(txn)
        return self._shown.get(stored, stored)

    def has(self, txn: Changeset, stored: int) -> bool:
        """Return whether a stored number is that of a database."""
        numbers = self._numbers(txn)
        return stored in self._shown or (stored < DATABASES_MAX and stored not in numbers)

    def stored_name(self, txn: Changeset, name: bytes) -> bytes:
        """Return the stored form of a name."""
        if self._stored is None:
            self._numbers(txn)
        head = self._stored_heads.get(name[:2])
        return name if head is None else head + name[2:]

    def shown_name(self, txn: Changeset, name: bytes) -> bytes:
        """Return the name of a stored name."""
        if self._stored is None:
            self._numbers(txn)
        head = self._shown_heads.get(name[:2])
        return name if head is None else head + name[2:]

    def swap(self, txn: Changeset, one: int, other: int) -> None:
        """Exchange the stored numbers of two databases."""
        numbers = self._numbers(txn)
        mine, others = numbers.get(one, one), numbers.get(other, other)
        self._put(txn, numbers | {one: others, other: mine})

    def renumber(self, txn: Changeset, db: int, taken: Collection[int]) -> None:
        """Give a database a stored number that no database has and that is not ``taken``."""
        numbers = self._numbers(txn)
        number = free_number(numbers.get(db, db), {*taken, *numbers.values()})
        self._put(txn, numbers | {db: number})

    def _put(self, txn: Changeset, numbers: dict[int, int]) -> None:
        numbers = {db: stored for db, stored in numbers.items() if db != stored}
        self._note(numbers)
        if numbers:
            txn.batch.put(_METADATA, NUMBERS_KEY, encode_numbers(numbers))
        else:
            txn.batch.delete(_METADATA, NUMBERS_KEY)

    def forget(self) -> None:
        """Read the row again at the next call."""
        self._stored = None


DUE_MAX = 100
"""A page of keys reads up to this many expiry rows, in 40 us, to leave out expired keys; if more
keys have expired, it looks up each of its own."""
NEVER = 1 << 64
"""Later than every expiry."""


class KeyWatch:
    """The keys that change while a command reads many of them, or waits to change some."""

    def __init__(self, only: set[bytes] | None) -> None:
        self.only = only
        """The stored names that count; None means all. ``KeyIndex.follow`` adds to them."""
        self.changed: set[bytes] = set()
        """Stored names of keys that were created, deleted, rewritten as strings or got another
        expiry.

        Whoever reads it empties it.
        """
        self.broken = False
        """More keys may have changed than ``changed`` holds."""


@dataclass(slots=True)
class Expiries:
    """The keys of a database that expire."""

    keys: int = 0
    times: int = 0
    """The sum of their times, in Unix milliseconds."""


class KeyIndex:
    """The keys of all databases, in the order of their creation and of their expiry."""

    __slots__ = (
        "_by_name",
        "_call_sooner",
        "_counted_to",
        "_counts",
        "_databases",
        "_ended_watches",
        "_expiries",
        "_expiries_from",
        "_firsts",
        "_general",
        "_next_expiry",
        "_timers_from",
        "_unlinked",
        "_wakes",
        "next_timer",
        "next_wake",
        "usage",
        "watches",
    )

    def __init__(self, unlinked: Unlinked, databases: Databases, usage: Usage) -> None:
        self._unlinked = unlinked
        self._databases = databases
        self._next_expiry = 0
        """No key expires before this time; 0 if it is still to be looked up."""
        self._expiries_from = EXPIRY_TAG
        """No expiry row lies below it: a scan has to step over each row deleted there."""
        self.next_timer = 0
        """No timer of a stream is due before this time; 0 if it is still to be looked up."""
        self._timers_from = TIMER_TAG
        """No row of a stream's timers lies below it, as with ``_expiries_from``."""
        self._call_sooner: Callable[[], None] = lambda: None
        """Called when ``next_timer`` or ``next_wake`` becomes earlier."""
        self.next_wake = NEVER
        """When to wake clients that are blocked, though nothing may have changed."""
        self._wakes: dict[bytes, tuple[int, Wake]] = {}
        """The same by the names that they are blocked on."""
        self._firsts: dict[int, int] = {}
        """No key of a database, given by its stored number, has a lower generation."""
        self._counts: dict[int, int] = {}
        """The keys of each database that has changed, by its stored number."""
        self._expiries: dict[int, Expiries] = {}
        """By the stored number of each database, of the expiry rows below ``_counted_to``."""
        self._counted_to = EXPIRY_TAG
        self.watches: set[ref[KeyWatch]] = set()
        """A set, since the truth of a WeakSet takes 0.2 us and is asked at each change; callers
        look before they report a change."""
        self._general: set[ref[KeyWatch]] = set()
        """The watches of all keys."""
        self._by_name: dict[bytes, set[ref[KeyWatch]]] = {}
        """The watches of some keys, by stored name."""
        self._ended_watches: deque[tuple[set[bytes], ref[KeyWatch]]] = deque()
        """Watches that are still in ``_by_name``, though nobody keeps them, and their names.

        The garbage collector may call at any moment, so it only appends.
        """
        self.usage = usage

    def next_due(self) -> int:
        """Return when the first timer of the store, or wake-up of a blocked reader, is due."""
        return min(self.next_timer, self.next_wake)

    def call_sooner(self, function: Callable[[], None]) -> None:
        """Call a function whenever the first timer, or wake-up, of the store becomes earlier."""
        self._call_sooner = function

    def add(self, txn: Changeset, key: Key) -> None:
        """List and count a key; the commit may not use the reserve of free space any more."""
        txn.frees = False
        if self.watches:
            self.report_change(key)
        db = database_of(key.name)
        if key.generation < self._firsts.get(db, 0):
            self._firsts[db] = key.generation
        txn.batch.puts[_METADATA][scan_row(db, key.generation)] = key_of(key.name)
        if key.expire_at:
            self._note_expiry(txn, key.expire_at, key.name)
        if isinstance(key, StreamMeta) and key.due_at:
            self._put_timer(txn, key.due_at, key.name)
        self._count(txn, db, 1)

    def count_written(self, txn: Changeset, stored_db: int, names: Collection[bytes]) -> None:
        """Count keys whose rows are written already, by their stored names."""
        self._firsts.pop(stored_db, None)
        self.report_rewrites(names)
        self._count(txn, stored_db, len(names))

    def report_rewrites(self, names: Collection[bytes]) -> None:
        """Report strings that get another value to the watches, by their stored names."""
        if self.watches:
            for name in names:
                self._report(name)

    def remove(self, txn: Changeset, key: Key, counted: bool = True) -> None:
        """Undo ``add``; ``counted`` is False if the key is off the count and reported already."""
        db = database_of(key.name)
        txn.batch.delete(_METADATA, scan_row(db, key.generation))
        if key.expire_at:
            self._drop_expiry(txn, key)
        if isinstance(key, StreamMeta) and key.due_at:
            txn.batch.delete(_METADATA, timer_row(key.due_at, key.name))
        if counted:
            self.report_change(key)
            self._count(txn, db, -1)

    def set_expiry(self, txn: Changeset, key: Key, at_ms: int) -> None:
        """Set a key's expiry in Unix ms, 0 for never; the caller writes the key's record."""
        self.report_change(key)
        if key.expire_at:
            self._drop_expiry(txn, key)
        if at_ms:
            self._note_expiry(txn, at_ms, key.name)
        key.expire_at = at_ms

    def set_due(self, txn: Changeset, stream: StreamMeta, at_ms: int) -> None:
        """Set when a stream's first timer is due, 0 for never; the caller writes its record."""
        if stream.due_at:
            txn.batch.delete(_METADATA, timer_row(stream.due_at, stream.name))
        if at_ms:
            self._put_timer(txn, at_ms, stream.name)
        stream.due_at = at_ms

    def _put_timer(self, txn: Changeset, at_ms: int, name: bytes) -> None:
        row = timer_row(at_ms, name)
        txn.batch.put(_METADATA, row, b"")
        self._timers_from = min(self._timers_from, row)
        if at_ms < self.next_timer:
            self.next_timer = at_ms
            self._call_sooner()

    def timers_due(self, txn: Changeset, limit: int) -> list[tuple[int, bytes]]:
        """Return (time, name) of up to ``limit`` streams whose first timer is due.

        The caller compares the time with the stream's, and calls ``drop_timer`` if it differs. If
        none is due, ``next_timer`` becomes the time of the first one.
        """
        if txn.now_ms < self.next_timer:
            return []
        end = successor(TIMER_TAG)
        rows = txn.batch.page(_METADATA, self._timers_from, end, limit)
        self._timers_from = rows[0][0] if rows else end
        listed = [(time_of_row(key), name_of_row(key)) for key, _ in rows]
        due = [(at_ms, name) for at_ms, name in listed if at_ms <= txn.now_ms]
        if not due:
            self.next_timer = listed[0][0] if listed else NEVER
        found = []
        for at_ms, stored in due:
            name = self._live_name(txn, stored)
            if name is None:
                txn.batch.delete(_METADATA, timer_row(at_ms, stored))
            else:
                found.append((at_ms, name))
        return found

    def _live_name(self, txn: Changeset, stored: bytes) -> bytes | None:
        """Return the name of a stored name; None if its database was flushed."""
        if not self._databases.has(txn, database_of(stored)):
            return None
        return self._databases.shown_name(txn, stored)

    def drop_timer(self, txn: Changeset, at_ms: int, name: bytes) -> None:
        """Delete a row of ``timers_due`` whose time is not that of the stream."""
        stored = self._databases.stored_name(txn, name)
        txn.batch.delete(_METADATA, timer_row(at_ms, stored))

    def wake_at(self, name: bytes, at_ms: int, reason: Wake) -> None:
        """Wake the clients blocked on a name at a time: their next attempt may succeed then.

        This is kept in memory: an attempt that fails says when the next one may succeed.
        """
        known = self._wakes.get(name)
        if known is None or at_ms < known[0]:
            self._wakes[name] = at_ms, reason
            if at_ms < self.next_wake:
                self.next_wake = at_ms
                self._call_sooner()

    def take_wakes(self, now_ms: int, limit: int) -> dict[bytes, Wake]:
        """Return up to ``limit`` names whose clients are to be woken now; forget these times."""
        if now_ms < self.next_wake:
            return {}
        waiting = self._wakes.items()
        due = ((name, reason) for name, (at_ms, reason) in waiting if at_ms <= now_ms)
        taken = dict(islice(due, limit))
        for name in taken:
            del self._wakes[name]
        self.next_wake = min([at_ms for at_ms, _ in self._wakes.values()], default=NEVER)
        return taken

    def _note_expiry(self, txn: Changeset, at_ms: int, name: bytes) -> None:
        row = expiry_row(at_ms, name)
        txn.batch.put(_METADATA, row, b"")
        self._count_expiry(row, at_ms, 1)
        self._next_expiry = min(self._next_expiry, at_ms)
        self._expiries_from = min(self._expiries_from, row)

    def _drop_expiry(self, txn: Changeset, key: Key) -> None:
        """Delete the expiry row of a key; ``expired`` may have deleted that of a due one."""
        row = expiry_row(key.expire_at, key.name)
        if key.expire_at > txn.expiry_ms or txn.batch.get(_METADATA, row) is not None:
            txn.batch.delete(_METADATA, row)
            self._count_expiry(row, key.expire_at, -1)

    def _count_expiry(self, row: bytes, at_ms: int, change: int) -> None:
        """Count a key that got or lost an expiry, unless its row is still to be counted."""
        if row < self._counted_to:
            of_database = self._expiries.setdefault(database_of(name_of_row(row)), Expiries())
            of_database.keys += change
            of_database.times += change * at_ms

    def take_expired(self, txn: Changeset, limit: int, skip: int = 0) -> list[bytes | None]:
        """Return the names of up to ``limit`` expired keys after the first ``skip``.

        None stands for a key that a flush has deleted. The index is read only if something in it is
        due.
        """
        if txn.expiry_ms < self._next_expiry:
            return []
        end = successor(EXPIRY_TAG)
        rows = txn.batch.page(_METADATA, self._expiries_from, end, skip + limit + 1)[skip:]
        times = [time_of_row(key) for key, _ in rows]
        due = sum(at_ms <= txn.expiry_ms for at_ms in times[:limit])
        if not skip:  # the skipped ones stay due
            self._next_expiry = times[due] if due < len(times) else NEVER
            self._expiries_from = rows[due][0] if due < len(times) else end
        for (key, _), at_ms in zip(rows[:due], times, strict=False):
            txn.batch.delete(_METADATA, key)  # even without a key: it would be due for ever
            self._count_expiry(key, at_ms, -1)
        return [self._live_name(txn, name_of_row(key)) for key, _ in rows[:due]]

    def expiries(self, txn: Changeset, limit: int) -> Callable[[int], Expiries]:
        """Return a function that returns the expiries of a database, including due ones.

        They are counted once, up to ``limit`` more at each call; later changes update the counts.
        """
        end = successor(EXPIRY_TAG)
        if self._counted_to < end:
            rows = txn.batch.page(_METADATA, self._counted_to, end, limit)
            self._counted_to = rows[-1][0] + b"\0" if len(rows) == limit else end
            for row, _ in rows:
                self._count_expiry(row, time_of_row(row), 1)
        stored, none = self._databases.stored_number, Expiries()
        return lambda db: self._expiries.get(stored(txn, db), none)

    def has_true_expiries(self, txn: Changeset) -> bool:
        """Return whether the expiries counted so far are those that the rows show."""
        recounted = KeyIndex(self._unlinked, self._databases, self.usage)
        recounted._counted_to = self._counted_to
        for row, _ in txn.batch.scan(_METADATA, EXPIRY_TAG, self._counted_to):
            recounted._count_expiry(row, time_of_row(row), 1)
        counts = {db: counted for db, counted in self._expiries.items() if counted != Expiries()}
        return counts == recounted._expiries

    def names(self, txn: Changeset, db: int, cursor: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield (generation, name) of a database's keys from generation ``cursor`` on."""
        unlinked = self._unlinked.generations(txn)
        for key, value in txn.batch.scan(_METADATA, *self._rows(txn, db, cursor)):
            generation = generation_of_row(key)
            if generation not in unlinked:
                yield generation, qualified(db, value)

    def page(self, txn: Changeset, db: int, cursor: int, limit: int) -> tuple[list[bytes], int]:
        """Return up to ``limit`` keys from a cursor on, and the next cursor, 0 at the end.

        The expiry rows show which keys have expired. If many have, the keys are looked up instead.
        """
        if not self.count(txn, db):  # there may be the rows of many deleted keys
            return [], 0
        rows = txn.batch.page(_METADATA, *self._rows(txn, db, cursor), limit + 1)
        following = generation_of_row(rows[limit][0]) if len(rows) > limit else 0
        keys = _keys_of(rows[:limit], self._unlinked.generations(txn))
        stored = self._databases.stored_number(txn, db)
        if rows and not cursor:
            self._firsts[stored] = generation_of_row(rows[0][0])
        gone = self._find_expired(txn, stored, DUE_MAX)
        if gone is None:
            peek = txn.catalog.peek
            return [key for key in keys if peek(txn, qualified(db, key)) is not None], following
        return [key for key in keys if key not in gone] if gone else keys, following

    def pages(self, txn: Changeset, db: int) -> Iterator[list[bytes]]:
        """Return pages of all keys as of this call."""
        pages = txn.batch.snapshot(_METADATA, *self._rows(txn, db))
        gone = self._find_expired(txn, self._databases.stored_number(txn, db)) or ()
        unlinked = frozenset(self._unlinked.generations(txn))
        return ([key for key in _keys_of(page, unlinked) if key not in gone] for page in pages)

    def _find_expired(
        self, txn: Changeset, stored_db: int, most: int | None = None
    ) -> set[bytes] | None:
        """Return the expired keys of a database whose rows still exist.

        Return None if more than ``most`` keys of all databases have expired.
        """
        if txn.expiry_ms < self._next_expiry:
            return set()
        upper = EXPIRY_TAG + U64.pack(txn.expiry_ms + 1)
        if most is None:
            rows = txn.batch.scan(_METADATA, self._expiries_from, upper)
        else:
            rows = iter(txn.batch.page(_METADATA, self._expiries_from, upper, most + 1))
        due = [name_of_row(key) for key, _ in rows]
        if most is not None and len(due) > most:
            return None
        return {key_of(name) for name in due if database_of(name) == stored_db}

    def bounds(self, txn: Changeset, db: int) -> tuple[int, int] | None:
        """Return the least and greatest generation of a database's keys, or None if it has none."""
        if not self.count(txn, db):
            return None
        rows = self._rows(txn, db)
        ends = [txn.batch.page(_METADATA, *rows, limit=1, reverse=back) for back in (False, True)]
        if not all(ends):
            return None
        first, last = (generation_of_row(page[0][0]) for page in ends)
        return first, last

    def _rows(self, txn: Changeset, db: int, cursor: int = 0) -> tuple[bytes, bytes]:
        stored = self._databases.stored_number(txn, db)
        return scan_bounds(stored, max(cursor, self._firsts.get(stored, 0)))

    def count(self, txn: Changeset, db: int) -> int:
        """Return the number of keys of a database, including expired ones not deleted yet."""
        row = key_count_row(self._databases.stored_number(txn, db))
        return decode_number(row, txn.batch.get(_METADATA, row))

    def _count(self, txn: Changeset, stored_db: int, change: int) -> None:
        row, count = key_count_row(stored_db), self._counts.get(stored_db)
        if count is None:
            count = decode_number(row, txn.batch.get(_METADATA, row))
        count += change
        if count < 0:
            raise Corruption(f"the row {row!r} counts fewer keys than there are")
        self._counts[stored_db] = count
        txn.batch.puts[_METADATA][row] = U64.pack(count)

    def uncount(self, txn: Changeset, stored_db: int) -> None:
        """Forget the count of a database whose keys are deleted together."""
        self._counts.pop(stored_db, None)
        txn.batch.delete(_METADATA, key_count_row(stored_db))

    def uncount_some(self, txn: Changeset, stored_db: int, count: int) -> None:
        """Take keys off a database's count whose rows stay for now."""
        self._count(txn, stored_db, -count)
        self.break_watches()

    def watch(self, only: set[bytes] | None = None) -> KeyWatch:
        """Record every change of keys for as long as the caller keeps the watch.

        ``only``: the first change of each of the names that ``follow`` adds to this set.
        """
        self._forget_ended()
        watch = KeyWatch(only)
        reference = ref(watch, partial(self._end_watch, only))
        self.watches.add(reference)
        if only is None:
            self._general.add(reference)
        return watch

    def follow(self, watch: KeyWatch, name: bytes) -> None:
        """Record the next change of one more key, by its stored name, in a watch of some keys."""
        assert watch.only is not None
        watch.only.add(name)
        reference = next(each for each in getweakrefs(watch) if each in self.watches)
        self._by_name.setdefault(name, set()).add(reference)

    def _end_watch(self, only: set[bytes] | None, reference: "ref[KeyWatch]") -> None:
        self.watches.discard(reference)
        self._general.discard(reference)
        if only:
            self._ended_watches.append((only, reference))

    def _forget_ended(self) -> None:
        while self._ended_watches:
            names, reference = self._ended_watches.popleft()
            for name in names:
                followers = self._by_name.get(name, set())
                followers.discard(reference)
                if not followers:
                    self._by_name.pop(name, None)

    def _live_watches(self) -> list[KeyWatch]:
        """Return the watches that their callers still keep."""
        return [watch for reference in list(self.watches) if (watch := reference()) is not None]

    def report_change(self, key: Key) -> None:
        """Report a change of a key to the watches."""
        self._report(key.name)

    def _report(self, name: bytes) -> None:
        followers = self._by_name.pop(name, None)  # one change of a key is enough for them
        for reference in [*self._general, *followers] if followers else list(self._general):
            watch = reference()
            if watch is not None:
                watch.changed.add(name)

    def report_swap(self, dbs: Collection[int], is_there: Callable[[bytes], bool]) -> None:
        """Report the watched keys of swapped databases that exist.

        ``dbs`` are stored numbers; ``is_there`` tells whether either database has a key.
        """
        for watch in self._live_watches():
            for name in watch.only or ():
                if database_of(name) in dbs and is_there(key_of(name)):
                    watch.changed.add(name)

    def break_watches(self) -> None:
        """Report that any key may have changed."""
        for watch in self._live_watches():
            watch.broken = True

    def forget(self) -> None:
        """Forget what was looked up or counted: later calls read the rows again."""
        self._next_expiry = self.next_timer = 0
        self._expiries_from, self._timers_from = EXPIRY_TAG, TIMER_TAG
        self._expiries, self._counted_to = {}, EXPIRY_TAG
        self._counts.clear()
        self._firsts.clear()
        self.break_watches()


def _keys_of(rows: list[Row], unlinked: AbstractSet[int]) -> list[bytes]:
    """Return the keys named by SCAN rows, without deleted ones."""
    if not unlinked:
        return [key for _, key in rows]
    return [key for row, key in rows if generation_of_row(row) not in unlinked]
