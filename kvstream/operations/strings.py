"""Commands of plain strings: SET, GET, INCR, MGET, MSET and others, and DEBUG DIGEST.

Strings are for locks, cursors and results beside streams. Reading or changing a part of a large
string touches only the pieces that hold it.

MGET and MSET of very many keys run in steps (``operations/plans.py``). DEBUG DIGEST covers what a
client can read back: values, expiry, and the entries, IDs, groups and pending entries of streams.
It ignores delivery times and the layout on disk.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha1
from heapq import heappush
from itertools import repeat
from typing import TypeAlias, TypeVar

import xxhash

from kvstream.errors import InvalidArgument
from kvstream.layout.keys import key_of, qualified, scan_row, stream_row
from kvstream.layout.listpack import canonical_integer
from kvstream.meta.compiled import plain_strings
from kvstream.meta.events.keys import (
    APPEND,
    EXPIRE,
    EXPIRED,
    INCRBY,
    INCRBYFLOAT,
    NEW,
    OVERWRITTEN,
    SET,
    SETRANGE,
    Event,
)
from kvstream.meta.pel import runs_from
from kvstream.meta.records import StreamMeta
from kvstream.meta.strings import (
    PLAIN_HEAD,
    Key,
    StringMeta,
    changed_plain_record,
    decode_key,
    is_large,
    is_plain,
    new_plain_rows,
    read_records,
)
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.operations import keyspace
from kvstream.operations.plans import Plan
from kvstream.operations.reads.limits import short_bytes
from kvstream.operations.reads.pages import ITERATOR_BYTES
from kvstream.storage.batch import Family
from kvstream.types import long_double

I64_MIN, I64_MAX = -(1 << 63), (1 << 63) - 1
Number = TypeVar("Number", int, long_double.Number)


def get(txn: Txn, name: bytes) -> bytes | None:
    """Return a string's value, None if there is no key."""
    string = txn.find_string(name)
    if string is None or isinstance(string, bytes):
        return string
    return string.value if string.pieces is None else string.read(txn.batch)


def length(txn: Txn, name: bytes) -> int:
    """Return a string's length in bytes, 0 if there is no key."""
    string = txn.string(name)
    return 0 if string is None else string.length


def part(txn: Txn, name: bytes, first: int, last: int) -> bytes:
    """Return the bytes of a string between two indexes, both included; -1 is the last byte."""
    string = txn.string(name)
    if string is None or (first < 0 and last < 0 and first > last):
        return b""
    first, last = (max(at + string.length, 0) if at < 0 else at for at in (first, last))
    return string.read(txn.batch, first, last + 1)


def put(txn: Txn, name: bytes, value: bytes, expire_at: int | None = 0, event: Event = SET) -> None:
    """Set a key to a string, whatever its type is.

    ``expire_at`` is a Unix time in milliseconds, 0 for never, None to keep the key's expiry. If
    that time has passed, the key is deleted. ``event`` names the change to subscribers.
    """
    if not expire_at and plain_strings is not None and plain_strings.put_plain(txn, name, value):
        return
    if len(value) > txn.thresholds.string_bytes_max:
        refuse_longer(txn, len(value))
    known = txn.catalog.strings.get(name)
    if type(known) is not StringMeta or known.expire_at or expire_at or txn.wanted_events:
        _put_over(txn, name, txn.catalog.key(txn, name), value, expire_at, event)
    else:  # most often
        txn.catalog.rewrite(txn, known, value)


def _put_over(
    txn: Txn, name: bytes, key: Key | None, value: bytes, expire_at: int | None, event: Event = SET
) -> None:
    """Set the name of ``key``, None if it is free, to a string; see ``put`` for the rest."""
    if txn.wanted_events and event is SET:
        txn.notify_overwritten(name, key, StringMeta)
    if expire_at and expire_at <= txn.expiry_ms:
        _put_expired(txn, name, key, event)
        return
    if isinstance(key, StringMeta):
        if expire_at is not None and (expire_at or key.expire_at):
            key.put(txn, value)
            txn.catalog.set_expiry(txn, key, expire_at)
        else:
            txn.catalog.rewrite(txn, key, value)
    else:
        at_ms = expire_at or 0
        if key is not None:
            at_ms = key.expire_at if expire_at is None else expire_at
            keyspace.make_room(txn, name)
        txn.catalog.create_string(txn, name, value, at_ms, is_new=key is None)
        txn.signal(name, Wake.REPLACED)
    if txn.wanted_events:
        txn.notify(event, name)
        if expire_at:
            txn.notify(EXPIRE, name)


def _put_expired(txn: Txn, name: bytes, key: Key | None, event: Event) -> None:
    """Delete a key instead of setting it to a string that has already expired."""
    if key is None:
        txn.notify(NEW, name)
    for noted in (event, EXPIRE, EXPIRED):
        txn.notify(noted, name)
    keyspace.delete(txn, name, None)


def put_new(txn: Txn, name: bytes, value: bytes, expire_at: int = 0) -> bool:
    """Set a key to a string if it does not exist, as ``put`` does; return whether it was set."""
    if keyspace.exists(txn, name):
        return False
    put(txn, name, value, expire_at)
    return True


def digest(value: bytes) -> bytes:
    """Return the 64-bit XXH3 of a value, as DIGEST shows it."""
    return xxhash.xxh3_64_hexdigest(value).encode()


def take(txn: Txn, name: bytes) -> bytes | None:
    """Delete a string and return its value, None if there is no key."""
    value = get(txn, name)
    if value is not None:
        keyspace.delete(txn, name)
    return value


def add(txn: Txn, name: bytes, number: int) -> int:
    """Add to the integer of a string, 0 if there is no key, and return the sum."""
    if plain_strings is not None:
        found = plain_strings.add_plain(txn, name, number)
        if found is not None:
            return found
    string = txn.string(name)
    total = number
    if string is not None:
        total += _integer(string.value if string.pieces is None else string.read(txn.batch))
    if not I64_MIN <= total <= I64_MAX:
        raise InvalidArgument("increment or decrement would overflow")
    if string is None or txn.wanted_events:
        _put_over(txn, name, string, b"%d" % total, None, INCRBY)
    else:
        txn.catalog.rewrite(txn, string, b"%d" % total)
    return total


def _integer(value: bytes) -> int:
    number = canonical_integer(value)
    if number is None:
        raise InvalidArgument("value is not an integer or out of range")
    return number


def append(txn: Txn, name: bytes, more: bytes) -> int:
    """Append bytes to a string, created if missing, and return its length.

    Appending no bytes still signals the key to WATCH, as in Redis.
    """
    string = txn.string(name)
    if string is None:
        put(txn, name, more, event=APPEND)
        return len(more)
    length = _overwrite(txn, string, string.length, more)
    txn.notify(APPEND, name)
    return length


def overwrite(txn: Txn, name: bytes, offset: int, piece: bytes) -> int:
    """Overwrite a string from an offset on, after zeros if needed, and return its length."""
    if offset < 0:
        raise InvalidArgument("offset is out of range")
    string = txn.string(name)
    if not piece:
        return 0 if string is None else string.length
    refuse_longer(txn, offset + len(piece))
    if string is None:
        put(txn, name, bytes(offset) + piece, event=SETRANGE)
        string = txn.string(name)
        assert string is not None
        return _overwrite(txn, string, 0, b"")  # which marks it as written in parts
    length = _overwrite(txn, string, offset, piece)
    txn.notify(SETRANGE, name)
    return length


def _overwrite(txn: Txn, string: StringMeta, offset: int, piece: bytes) -> int:
    refuse_longer(txn, offset + len(piece))
    string.overwrite(txn, offset, piece)
    txn.catalog.rewrite(txn, string)
    return string.length


def refuse_longer(txn: Txn, length: int) -> None:
    """Raise InvalidArgument if a string would be too long."""
    if length > txn.thresholds.string_bytes_max:
        raise InvalidArgument("string exceeds maximum allowed size (proto-max-bulk-len)")


def add_decimal(txn: Txn, name: bytes, raw: bytes) -> bytes:
    """Add to the number of a string, 0 if there is no key, and return the sum."""
    value = get(txn, name)
    total = _sum(Fraction() if value is None else _number(value), _number(raw))
    if not isinstance(total, Fraction):
        raise InvalidArgument("increment would produce NaN or Infinity")
    text = long_double.text(total)
    put(txn, name, text, None, INCRBYFLOAT)
    return text


def _number(raw: bytes) -> long_double.Number:
    try:
        return long_double.parse(raw)
    except ValueError:
        raise InvalidArgument("value is not a valid float") from None


def _sum(a: long_double.Number, b: long_double.Number) -> long_double.Number:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return long_double.round_exact(a + b)
    return math.inf  # or no number, which is refused as well


@dataclass(frozen=True, slots=True)
class Added:
    """The result of a bounded addition."""

    value: int | Fraction
    """The value of the string after it."""
    by: int | Fraction
    is_done: bool
    """False if the sum was out of bounds and nothing changed."""


Bounds: TypeAlias = tuple[bytes | None, bytes | None]
"""The texts of the lower and the upper bound; None: there is none."""


def add_within(
    txn: Txn, name: bytes, raw: bytes | None, bounds: Bounds, saturate: bool, keeps: bool = True
) -> Added:
    """Add a number, 1 for None, to an integer if the sum is within bounds.

    With ``saturate`` as much is added as the bounds allow. Without ``keeps`` the key is deleted
    instead of being set, since its new expiry has passed.
    """
    number = _integer_operand(raw, 1, "Increment")
    least = _integer_operand(bounds[0], I64_MIN, "LBOUND")
    low, high = _bounds(least, _integer_operand(bounds[1], I64_MAX, "UBOUND"))
    value = get(txn, name)
    before = 0 if value is None else _integer(value)
    total = min(max(before + number, low), high)
    if total != before + number and not saturate:
        return Added(before, 0, is_done=False)
    if not I64_MIN <= total - before <= I64_MAX:
        raise InvalidArgument("applied increment would overflow")
    _put_sum(txn, name, b"%d" % total, INCRBY, keeps)
    return Added(total, total - before, is_done=True)


def add_decimal_within(
    txn: Txn, name: bytes, raw: bytes | None, bounds: Bounds, saturate: bool, keeps: bool = True
) -> Added:
    """Add to any number, as ``add_within`` does to integers."""
    number = _decimal_operand(raw, Fraction(1), "Increment")
    if not isinstance(number, Fraction):
        raise InvalidArgument("BYFLOAT increment cannot be Infinity")
    least = _decimal_operand(bounds[0], -long_double.MAX, "LBOUND")
    low, high = _bounds(least, _decimal_operand(bounds[1], long_double.MAX, "UBOUND"))
    value = get(txn, name)
    before = Fraction() if value is None else _number(value)
    if not isinstance(before, Fraction):
        raise InvalidArgument("value cannot be Infinity")
    exact = long_double.round_exact(before + number)
    total = min(max(exact, low), high)
    if total != exact and not saturate:
        return Added(before, Fraction(), is_done=False)
    applied = long_double.round_exact(total - before) if isinstance(total, Fraction) else total
    if not isinstance(total, Fraction) or not isinstance(applied, Fraction):
        raise InvalidArgument("applied increment would be Infinity")
    _put_sum(txn, name, long_double.text(total), INCRBYFLOAT, keeps)
    return Added(total, applied, is_done=True)


def _integer_operand(raw: bytes | None, default: int, what: str) -> int:
    number = default if raw is None else canonical_integer(raw)
    if number is None:
        raise InvalidArgument(f"{what} is not an integer or out of range")
    return number


def _decimal_operand(
    raw: bytes | None, default: long_double.Number, what: str
) -> long_double.Number:
    try:
        return default if raw is None else long_double.parse(raw)
    except ValueError:
        raise InvalidArgument(f"{what} is not a valid float") from None


def _put_sum(txn: Txn, name: bytes, value: bytes, event: Event, keeps: bool) -> None:
    if keeps:
        put(txn, name, value, None, event)
    else:
        keyspace.delete(txn, name)


def _bounds(low: Number, high: Number) -> tuple[Number, Number]:
    if high < low:
        raise InvalidArgument("LBOUND can't be greater than UBOUND")
    return low, high


T = TypeVar("T")


def get_several(
    txn: Txn, names: Sequence[bytes], later: Callable[[StringMeta], T] | None = None
) -> list[bytes | T | None]:
    """Return the values of strings of a database; None for a name that has no string.

    Once the reply is long, ``later``, if given, returns an item in place of each large string.
    Raise ReplyTooLarge if the values exceed what a reply may hold.
    """
    most = left = txn.catalog.limits.reply_left
    short = short_bytes(txn)
    find = txn.catalog.key
    values: list[bytes | T | None] = []
    for name in names:
        string, value = find(txn, name), None
        if isinstance(string, StringMeta):
            length = string.length
            short -= length
            if later is not None and short < 0 and string.pieces is not None:
                left -= ITERATOR_BYTES
                values.append(later(string))
                continue
            left -= length
            value = string.read(txn.batch) if left >= 0 or not most else None
        if most and left < 0:
            raise txn.catalog.limits.too_large()
        values.append(value)
    return values


def put_several(txn: Txn, values: Mapping[bytes, bytes]) -> None:
    """Set keys to strings, whatever their types are."""
    refuse_longer(txn, max(map(len, values.values()), default=0))
    for name, value in values.items():
        put(txn, name, value)


class _Values(keyspace.KeyLookup[list[bytes | None]]):
    """MGET."""

    def __init__(self, txn: Txn, db: int, keys: Sequence[bytes]) -> None:
        super().__init__(txn, db, keys)
        self._left = [self._prefix + key for key in dict.fromkeys(keys)]
        """Stored names to read."""
        self._values: dict[bytes, bytes | None] = {}
        self._absent: set[bytes] = set()
        """Names that have no key."""
        self._size = 0
        """Bytes of the values."""

    def _look_again(self, changed: Set[bytes]) -> None:
        self._left += changed & self._values.keys()

    def _finish(self, txn: Txn) -> list[bytes | None]:
        """Return the values in the order of the keys."""
        self._left += self._take_expired(txn)
        while self._look_on(txn):
            pass
        prefix, values = self._prefix, self._values
        known = txn.catalog.streams  # a stream that was just made has no record yet
        for name in map(txn.catalog.databases.shown_name, repeat(txn), self._absent):
            stream = known.get(name)
            if stream is None or keyspace.is_over(txn, stream):
                txn.missing.add(name)
        in_order = [values[prefix + key] for key in self._keys]
        _bound(txn, sum([len(value) for value in in_order if value is not None]))
        return in_order

    def _look_on(self, txn: Txn) -> bool:
        unlinked = txn.catalog.unlinked.generations(txn)
        until, size = self._looked + txn.thresholds.step_names, 0
        while self._left and self._looked < until and size < txn.thresholds.step_bytes:
            names = self._left[-txn.thresholds.records_together :]
            del self._left[-txn.thresholds.records_together :]
            self._looked += len(names)
            for name, record in zip(
                names, read_records(txn.batch, names, txn.thresholds.records_together), strict=True
            ):
                self._absent.discard(name)
                if record is None:
                    value = None
                    self._absent.add(name)
                elif is_plain(record, unlinked):
                    value = record[PLAIN_HEAD:]
                else:
                    value = self._other_value(txn, name, record)
                length = len(value or b"")
                self._size += length - len(self._values.get(name) or b"")
                self._values[name] = value
                size += length
            _bound(txn, self._size)
        return bool(self._left)

    def _other_value(self, txn: Txn, name: bytes, record: bytes) -> bytes | None:
        """Return the value of a record other than a plain string; None if it is no string."""
        key = decode_key(name, record)
        if keyspace.is_over(txn, key):
            self._absent.add(name)
            return None
        if key.expire_at:
            heappush(self._expiring, (key.expire_at, name))
        if not isinstance(key, StringMeta):
            return None
        _bound(txn, self._size + key.length)
        return key.read(txn.batch)


def _bound(txn: Txn, size: int) -> None:
    most = txn.catalog.limits.reply_left
    if most and size > most:
        raise txn.catalog.limits.too_large()


class _Replacement(keyspace.KeyLookup[bool]):
    """MSET and MSETNX."""

    def __init__(self, txn: Txn, db: int, values: Mapping[bytes, bytes], only_new: bool) -> None:
        refuse_longer(txn, max(map(len, values.values())))
        super().__init__(txn, db, [*values])
        self._values, self._only_new = values, only_new
        self._left = [self._prefix + key for key in values]
        """Stored names to look at."""
        self._rows: dict[bytes, bytes] = {}
        """Rows to write."""
        self._made: dict[bytes, int] = {}
        """Names of keys to make, and their numbers."""
        self._rewritten: set[bytes] = set()
        self._others: set[bytes] = set()
        """Names of keys that are set one by one."""

    def _look_again(self, changed: Set[bytes]) -> None:
        for name in changed:
            if name in self._made or name in self._rewritten or name in self._others:
                self._forget(name)

    def _finish(self, txn: Txn) -> bool:
        """Set the keys; return whether that was done."""
        if self._only_new and self._has_any(txn):
            return False
        self._put(txn)
        return True

    def _forget(self, name: bytes) -> None:
        """Discard the result for a name, to look it up again."""
        number = self._made.pop(name, None)
        if number is not None:
            del self._rows[scan_row(self._stored_db, number)]
        self._rows.pop(stream_row(name), None)
        self._rewritten.discard(name)
        self._others.discard(name)
        self._left.append(name)

    def _look_on(self, txn: Txn) -> bool:
        names = self._left[-txn.thresholds.step_names :]
        del self._left[-txn.thresholds.step_names :]
        self._looked += len(names)
        unlinked, new = txn.catalog.unlinked.generations(txn), []
        for name, record in zip(
            names, read_records(txn.batch, names, txn.thresholds.records_together), strict=True
        ):
            value = self._values[key_of(name)]
            if is_large(len(value)):
                self._others.add(name)
            elif record is None:
                new.append(name)
            elif is_plain(record, unlinked):
                self._rewritten.add(name)
                self._rows[stream_row(name)] = changed_plain_record(record, value)
            else:
                self._others.add(name)
        if new:
            numbers = txn.catalog.numbers.take(txn, len(new))
            self._made.update(zip(new, numbers, strict=True))
            values = {name: self._values[key_of(name)] for name in new}
            self._rows.update(new_plain_rows(self._stored_db, values, numbers))
        return bool(self._left)

    def _has_any(self, txn: Txn) -> bool:
        """Return whether any of the keys exists."""
        shown_name = txn.catalog.databases.shown_name
        return bool(self._rewritten) or any(
            keyspace.exists(txn, shown_name(txn, name)) for name in self._others
        )

    def _put(self, txn: Txn) -> None:
        catalog, shown = txn.catalog, txn.catalog.databases.shown_name
        txn.batch.puts[Family.METADATA].update(self._rows)
        catalog.index.report_rewrites(self._rewritten)
        for name in self._rewritten:
            catalog.strings.pop(shown(txn, name), None)
        if self._made:
            catalog.index.count_written(txn, self._stored_db, self._made)
            keys = (key for key in self._values if self._prefix + key in self._made)
            txn.signal_some((qualified(self._db, key) for key in keys), Wake.REPLACED)
        for name in self._others:
            put(txn, shown(txn, name), self._values[key_of(name)])
        txn.frees = False
        if txn.wanted_events:
            self._notify(txn)

    def _notify(self, txn: Txn) -> None:
        """Note the events of the keys that ``put`` did not set."""
        for key in self._values:
            name, stored = qualified(self._db, key), self._prefix + key
            if stored in self._made:
                txn.notify(NEW, name)
            elif stored in self._rewritten:
                txn.notify(OVERWRITTEN, name)
            else:
                continue
            txn.notify(SET, name)


def plan_get(db: int, keys: Sequence[bytes]) -> Plan[list[bytes | None]]:
    """Plan MGET of very many keys of a database."""
    return lambda txn: _Values(txn, db, keys).plan(txn)


def plan_put(db: int, values: Mapping[bytes, bytes], only_new: bool = False) -> Plan[bool]:
    """Plan MSET of very many keys; its result is whether they were set.

    ``only_new``: none of the keys may exist.
    """
    return lambda txn: _Replacement(txn, db, values, only_new).plan(txn)


EMPTY = bytes(sha1().digest_size)
"""The digest of a missing key."""


def of_key(txn: Txn, name: bytes) -> bytes:
    """Return the digest of a key's contents, EMPTY if there is no key. It reads the whole value."""
    key = txn.key(name)
    return EMPTY if key is None else _of(txn, key)


def of_databases(txn: Txn, databases: int) -> bytes:
    """Return the digest of all keys of all databases, in any order."""
    total = int.from_bytes(EMPTY, "big")
    for db in range(databases):
        for key in keyspace.counted(txn, db):
            whole = sha1(b"%d:%b" % (db, key_of(key.name)))
            whole.update(_of(txn, key))
            total ^= int.from_bytes(whole.digest(), "big")
    return total.to_bytes(len(EMPTY), "big")


def _of(txn: Txn, key: Key) -> bytes:
    digest = sha1(b"expires %d" % key.expire_at)
    parts = _stream_parts(txn, key) if isinstance(key, StreamMeta) else iter([key.read(txn.batch)])
    for part in parts:
        digest.update(b"%d:%b" % (len(part), part))
    return digest.digest()


def _stream_parts(txn: Txn, stream: StreamMeta) -> Iterator[bytes]:
    prefix = stream.prefix
    if stream.length:
        lower, upper = prefix + stream.first.packed, prefix + stream.last.packed + b"\0"
        for row, value in txn.batch.scan(Family.MESSAGES, lower, upper):
            yield row[len(prefix) :]
            yield value
    for number in (stream.last, stream.max_deleted):
        yield number.packed
    yield b"%d" % stream.entries_added
    for group in txn.catalog.groups(txn, stream):
        yield group.name
        yield group.last_delivered.packed
        yield b"%d" % group.entries_read
        for consumer in txn.catalog.consumers(txn, group):
            yield consumer.name
        for run in runs_from(txn, group, b""):
            for pending in run.ids:
                yield b"%b%b %d" % (pending, run.owner, run.deliveries)
