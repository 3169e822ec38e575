"""Commands of plain strings: SET, GET, INCR and their kind.

Strings are for locks, cursors and results beside streams. What reads or changes a part of a large
one touches the pieces that have it.
"""

import re
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import TypeVar

import xxhash

from kvstream.errors import InvalidArgument, WrongType
from kvstream.meta.strings import StringMeta
from kvstream.meta.txn import Txn
from kvstream.operations import keyspace
from kvstream.options import ENTRY_BYTES_MAX

STRING_BYTES_MAX = ENTRY_BYTES_MAX
"""Largest string: Redis's ``proto-max-bulk-len``, as for an entry."""
I64_MIN, I64_MAX = -(1 << 63), (1 << 63) - 1
_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_NUMBER = re.compile(
    rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?|[+-]?inf", re.IGNORECASE
)
_DECIMALS = Context(prec=40, traps=[])
_DECIMAL_EXPONENT_MAX = 4932
"""That of the largest long double."""
_DECIMAL_MAX = Decimal("1.189731495357231765e4932")
T = TypeVar("T", int, Decimal)


def find(txn: Txn, name: bytes) -> StringMeta | None:
    """Return the string of a name, or None; WrongType for another kind of value."""
    key = txn.key(name)
    if key is None or isinstance(key, StringMeta):
        return key
    raise WrongType


def get(txn: Txn, name: bytes) -> bytes | None:
    """Return a string's value, None where there is no such key."""
    string = find(txn, name)
    return None if string is None else string.read(txn.batch)


def length(txn: Txn, name: bytes) -> int:
    """Return how many bytes a string has, 0 where there is no such key."""
    string = find(txn, name)
    return 0 if string is None else string.length


def part(txn: Txn, name: bytes, first: int, last: int) -> bytes:
    """Return a string's bytes from an index to another, both included; -1 is the last byte."""
    string = find(txn, name)
    if string is None or (first < 0 and last < 0 and first > last):
        return b""
    first, last = (max(at + string.length, 0) if at < 0 else at for at in (first, last))
    return string.read(txn.batch, first, last + 1)


def put(txn: Txn, name: bytes, value: bytes, expire_at: int | None = 0) -> None:
    """Set a key, of whatever kind it was, to a string.

    ``expire_at`` is a Unix time in milliseconds, 0 for never, None to keep the expiry that the key
    has. The key does not exist afterwards where that time has passed.
    """
    refuse_longer(len(value))
    key = txn.key(name)
    if expire_at is None:
        expire_at = 0 if key is None else key.expire_at
    if expire_at and expire_at <= txn.expiry_ms:
        keyspace.delete(txn, name)
    elif isinstance(key, StringMeta):
        key.put(txn, value)
        txn.catalog.set_expiry(txn, key, expire_at)
    else:
        keyspace.make_room(txn, name)
        txn.catalog.create_string(txn, name, value, expire_at)
        txn.signal(name)


def digest(value: bytes) -> bytes:
    """Return the XXH3 of 64 bits of a value, as DIGEST shows it."""
    return xxhash.xxh3_64_hexdigest(value).encode()


def take(txn: Txn, name: bytes) -> bytes | None:
    """Delete a string and return its value, None where there is no such key."""
    value = get(txn, name)
    if value is not None:
        keyspace.delete(txn, name)
    return value


def add(txn: Txn, name: bytes, number: int) -> int:
    """Add to the integer that a string holds, 0 where there is none, and return the sum."""
    held = get(txn, name)
    total = (0 if held is None else _integer(held)) + number
    if not I64_MIN <= total <= I64_MAX:
        raise InvalidArgument("increment or decrement would overflow")
    put(txn, name, b"%d" % total, expire_at=None)
    return total


def _integer(value: bytes) -> int:
    number = int(value) if is_integer(value) else I64_MAX + 1
    if number > I64_MAX:
        raise InvalidArgument("value is not an integer or out of range")
    return number


def is_integer(value: bytes) -> bool:
    """Tell whether a value is a signed 64-bit integer in its one form."""
    return _INTEGER.fullmatch(value) is not None and I64_MIN <= int(value) <= I64_MAX


def append(txn: Txn, name: bytes, more: bytes) -> int:
    """Put bytes behind a string, made where there is none, and return its length.

    Those who watch the key are told of no bytes too, as by Redis.
    """
    string = find(txn, name)
    if string is None:
        put(txn, name, more)
        return len(more)
    return _overwrite(txn, string, string.length, more)


def overwrite(txn: Txn, name: bytes, offset: int, piece: bytes) -> int:
    """Put bytes over a string from an offset on, zeros between, and return its length."""
    string = find(txn, name)
    if not piece:
        return 0 if string is None else string.length
    refuse_longer(offset + len(piece))
    if string is None:
        put(txn, name, bytes(offset) + piece)
        string, offset, piece = find(txn, name), 0, b""
        assert string is not None
    return _overwrite(txn, string, offset, piece)


def _overwrite(txn: Txn, string: StringMeta, offset: int, piece: bytes) -> int:
    refuse_longer(offset + len(piece))
    string.overwrite(txn, offset, piece)
    txn.catalog.index.note(string)
    txn.catalog.write(txn, string)
    return string.length


def refuse_longer(length: int) -> None:
    """Raise InvalidArgument where a string may not have so many bytes."""
    if length > STRING_BYTES_MAX:
        raise InvalidArgument("string exceeds maximum allowed size (proto-max-bulk-len)")


def add_decimal(txn: Txn, name: bytes, raw: bytes) -> bytes:
    """Add to the number that a string holds, 0 where there is none, and return the sum.

    As decimals, of 17 digits behind the point as Redis shows them: what it adds as long doubles.
    """
    held = get(txn, name)
    total = _DECIMALS.add(Decimal(0) if held is None else _decimal(held), _decimal(raw))
    if not total.is_finite() or total.adjusted() > _DECIMAL_EXPONENT_MAX:
        raise InvalidArgument("increment would produce NaN or Infinity")
    value = _written(total)
    put(txn, name, value, expire_at=None)
    return value


def _written(number: Decimal) -> bytes:
    value = f"{number:.17f}".rstrip("0").rstrip(".").encode()
    return b"0" if value == b"-0" else value


def _decimal(raw: bytes) -> Decimal:
    if _NUMBER.fullmatch(raw) is None:
        raise InvalidArgument("value is not a valid float")
    number = _DECIMALS.create_decimal(raw.decode())
    if number.adjusted() > _DECIMAL_EXPONENT_MAX:
        raise InvalidArgument("value is not a valid float")
    return number


@dataclass(frozen=True, slots=True)
class Added:
    """What became of a bounded addition."""

    value: int | Decimal
    """What the string holds now."""
    by: int | Decimal
    is_done: bool
    """False: the sum was out of bounds, and nothing was changed."""


def add_within(
    txn: Txn, name: bytes, raw: bytes, bounds: tuple[bytes | None, bytes | None], saturate: bool
) -> Added:
    """Add to an integer where the sum is within bounds; to ``saturate``: as much as they allow."""
    number = _given(raw)
    low, high = _bounds(_given(bounds[0], I64_MIN), _given(bounds[1], I64_MAX))
    value = get(txn, name)
    held = 0 if value is None else _integer(value)
    total = min(max(held + number, low), high)
    if total != held + number and not saturate:
        return Added(held, 0, is_done=False)
    if not I64_MIN <= total - held <= I64_MAX:
        raise InvalidArgument("increment or decrement would overflow")
    put(txn, name, b"%d" % total, expire_at=None)
    return Added(total, total - held, is_done=True)


def _given(raw: bytes | None, default: int = 0) -> int:
    return default if raw is None else _integer(raw)


def add_decimal_within(
    txn: Txn, name: bytes, raw: bytes, bounds: tuple[bytes | None, bytes | None], saturate: bool
) -> Added:
    """Add to any number, as ``add_within`` does to integers."""
    number = _decimal(raw)
    least = -_DECIMAL_MAX if bounds[0] is None else _decimal(bounds[0])
    most = _DECIMAL_MAX if bounds[1] is None else _decimal(bounds[1])
    low, high = _bounds(least, most)
    value = get(txn, name)
    held = Decimal(0) if value is None else _decimal(value)
    if not (held.is_finite() and number.is_finite()):
        raise InvalidArgument("value or increment would produce Infinity")
    exact = _DECIMALS.add(held, number)
    total = min(max(exact, low), high)
    if total != exact and not saturate:
        return Added(held, Decimal(0), is_done=False)
    put(txn, name, _written(total), expire_at=None)
    return Added(total, _DECIMALS.subtract(total, held), is_done=True)


def _bounds(low: T, high: T) -> tuple[T, T]:
    if high < low:
        raise InvalidArgument("LBOUND can't be greater than UBOUND")
    return low, high
