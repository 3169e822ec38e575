"""Commands of plain strings: SET, GET, MGET, INCR and their kind.

What SET, DELEX and MSETEX do only under a condition, and DIGEST, by which some of these compare.

A lock is taken by SET NX and given up by DELEX IFEQ: no script is needed to compare and delete.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial

from kvstream.commands import reply_pages
from kvstream.commands.args import (
    I64_MAX,
    I64_MIN,
    Args,
    Argv,
    Option,
    integer,
    syntax_error,
    text,
    wrong_arity,
)
from kvstream.commands.command import Answer, Session
from kvstream.commands.replies import OK, Bulk, Double, Paged, Reply
from kvstream.errors import InvalidArgument
from kvstream.meta.strings import StringMeta
from kvstream.meta.txn import Txn
from kvstream.operations import keyspace, strings
from kvstream.operations.strings import LongPut

COMPARING = (b"IFEQ", b"IFNE", b"IFDEQ", b"IFDNE")
"""Conditions that compare a value, or its digest, with the word that follows."""
_NEGATIVE = (b"IFNE", b"IFDNE")
_BY_DIGEST = (b"IFDEQ", b"IFDNE")
_DIGEST_DIGITS = 16
_KEYS_MAX = (1 << 31) - 1


def is_met(txn: Txn, name: bytes, condition: bytes, wanted: bytes = b"") -> bool:
    """Tell whether the condition of a SET holds; WrongType where it compares what is no string."""
    if not condition:
        return True
    if condition in (b"NX", b"XX"):
        return keyspace.exists(txn, name) is (condition == b"XX")
    value = strings.get(txn, name)
    if value is None:
        return condition in _NEGATIVE
    return _is_equal(value, condition, wanted) is not (condition in _NEGATIVE)


def _is_equal(value: bytes, condition: bytes, wanted: bytes) -> bool:
    if condition not in _BY_DIGEST:
        return value == wanted
    if len(wanted) != _DIGEST_DIGITS:
        raise InvalidArgument("must be exactly 16 hexadecimal characters")
    return strings.digest(value) == wanted.lower()


def digest(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer the XXH3 of a string in 16 hexadecimal digits; a null for a missing key."""
    value = strings.get(txn, session.prefix + argv[1])
    return None if value is None else strings.digest(value)


def delex(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Delete a key, where given only a string that is or is not equal to something; 1 if it was."""
    name = session.prefix + argv[1]
    if len(argv) == 2:
        return int(keyspace.delete(txn, name))
    if len(argv) != 4:
        raise wrong_arity("delex")
    key = txn.key(name)
    if key is None:
        return 0
    if not isinstance(key, StringMeta):
        raise InvalidArgument("Key should be of string type if conditions are specified")
    condition = argv[2].upper()
    if condition not in COMPARING:
        raise InvalidArgument("Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE")
    return int(is_met(txn, name, condition, argv[3]) and keyspace.delete(txn, name))


def pairs_of(argv: Argv) -> tuple[list[tuple[bytes, bytes]], Argv]:
    """Return the keys and values of an MSETEX, and the words behind them."""
    number = integer(argv[1], "invalid numkeys value")
    if not 0 < number <= _KEYS_MAX:
        raise InvalidArgument("invalid numkeys value")
    end = 2 + 2 * number
    if len(argv) < end:
        raise InvalidArgument("wrong number of key-value pairs")
    return list(zip(argv[2:end:2], argv[3:end:2], strict=True)), argv[end:]


_UNITS = {b"EX": (1000, True), b"PX": (1, True), b"EXAT": (1000, False), b"PXAT": (1, False)}
"""Milliseconds in a unit, and whether it counts from now."""


@dataclass(slots=True)
class _Options:
    """The options of SET, GETEX and INCREX."""

    condition: bytes = b""
    wanted: bytes = b""
    """What a condition compares with, or BYINT and BYFLOAT add."""
    bounds: dict[bytes, bytes] = field(default_factory=dict)
    flags: set[bytes] = field(default_factory=set)
    get: bool = False
    keepttl: bool = False
    persist: bool = False
    unit: bytes = b""
    time: bytes = b""

    def expire_at(self, txn: Txn, command: str) -> int | None:
        """Return the Unix time in milliseconds that is asked for, None where none is."""
        return _moment(txn, self.unit, self.time, command) if self.unit else None


def _moment(txn: Txn, unit: bytes, raw: bytes, command: str) -> int:
    unit_ms, counts_from_now = _UNITS[unit]
    number = integer(raw)
    at_ms = number * unit_ms + (txn.now_ms if counts_from_now else 0)
    if number <= 0 or at_ms > I64_MAX:
        raise InvalidArgument(f"invalid expire time in '{command}' command")
    return at_ms


# --- arguments ----------------------------------------------------------------------------------


def _take_condition(word: bytes, args: Args, options: _Options) -> None:
    if options.condition not in (b"", word):
        raise syntax_error()
    options.condition = word


def _take_comparison(word: bytes, args: Args, options: _Options) -> None:
    _take_condition(word, args, options)
    options.wanted = args.next()


def _take_get(args: Args, options: _Options) -> None:
    options.get = True


def _take_keepttl(args: Args, options: _Options) -> None:
    if options.unit:
        raise syntax_error()
    options.keepttl = True


def _take_persist(args: Args, options: _Options) -> None:
    if options.unit:
        raise syntax_error()
    options.persist = True


def _take_time(unit: bytes, args: Args, options: _Options) -> None:
    if options.unit not in (b"", unit) or options.keepttl or options.persist:
        raise syntax_error()
    options.unit, options.time = unit, args.next()


def _take_number(word: bytes, args: Args, options: _Options) -> None:
    if options.condition not in (b"", word):
        raise syntax_error()
    options.condition, options.wanted = word, args.next()


def _take_bound(word: bytes, args: Args, options: _Options) -> None:
    options.bounds[word] = args.next()


def _take_flag(word: bytes, args: Args, options: _Options) -> None:
    options.flags.add(word)


_TIMES: dict[bytes, Option[_Options]] = {unit: (1, partial(_take_time, unit)) for unit in _UNITS}
_MSETEX_OPTIONS: dict[bytes, Option[_Options]] = {
    **_TIMES,
    b"NX": (0, partial(_take_condition, b"NX")),
    b"XX": (0, partial(_take_condition, b"XX")),
    b"KEEPTTL": (0, _take_keepttl),
}
_SET_OPTIONS: dict[bytes, Option[_Options]] = {
    **_MSETEX_OPTIONS,
    **{word: (1, partial(_take_comparison, word)) for word in COMPARING},
    b"GET": (0, _take_get),
}
_GETEX_OPTIONS: dict[bytes, Option[_Options]] = {**_TIMES, b"PERSIST": (0, _take_persist)}


_INCREX_OPTIONS: dict[bytes, Option[_Options]] = {
    **_GETEX_OPTIONS,
    **{word: (1, partial(_take_number, word)) for word in (b"BYINT", b"BYFLOAT")},
    **{word: (1, partial(_take_bound, word)) for word in (b"LBOUND", b"UBOUND")},
    **{word: (0, partial(_take_flag, word)) for word in (b"SATURATE", b"ENX")},
}


def _parse(argv: Argv, at: int, table: Mapping[bytes, Option[_Options]]) -> _Options:
    options = _Options()
    args = Args(argv, at)
    while args:
        if not args.take_option(table, options):
            raise syntax_error()
    return options


# --- setting ------------------------------------------------------------------------------------


def set_(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set a key to a string, whatever it held before; a null where a condition does not hold."""
    if len(argv) == 3:
        strings.put(txn, session.prefix + argv[1], argv[2])
        return OK
    options = _parse(argv, 3, _SET_OPTIONS)
    expire_at = options.expire_at(txn, "set") or (None if options.keepttl else 0)
    name = session.prefix + argv[1]
    old = strings.get(txn, name) if options.get else None
    done = is_met(txn, name, options.condition, options.wanted)
    if done:
        strings.put(txn, name, argv[2], expire_at)
    if options.get:
        return old
    return OK if done else None


def setnx(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set a key to a string where there is none; 1 if it was set."""
    name = session.prefix + argv[1]
    if keyspace.exists(txn, name):
        return 0
    strings.put(txn, name, argv[2])
    return 1


def setex(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set a key to a string that expires in so many seconds."""
    expire_at = _moment(txn, b"EX", argv[2], "setex")
    strings.put(txn, session.prefix + argv[1], argv[3], expire_at)
    return OK


def psetex(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set a key to a string that expires in so many milliseconds."""
    expire_at = _moment(txn, b"PX", argv[2], "psetex")
    strings.put(txn, session.prefix + argv[1], argv[3], expire_at)
    return OK


def getset(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set a key to a string without expiry, and answer the one that it was; a null for none."""
    name = session.prefix + argv[1]
    old = strings.get(txn, name)
    strings.put(txn, name, argv[2])
    return old


def _refuse_half(argv: Argv) -> None:
    """Refuse a key without a value."""
    if len(argv) % 2 == 0:
        raise wrong_arity(text(argv[0].lower()))


def _pairs(session: Session, argv: Argv) -> list[tuple[bytes, bytes]]:
    _refuse_half(argv)
    return [
        (session.prefix + key, value) for key, value in zip(argv[1::2], argv[2::2], strict=True)
    ]


def _long_put(session: Session, argv: Argv, only_new: bool = False) -> LongPut:
    _refuse_half(argv)
    values = dict(zip(argv[1::2], argv[2::2], strict=True))
    return LongPut(session.db, values, only_new)


def mset(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Set several keys to strings, whatever they held before."""
    if session.steps and len(argv) > 2 * strings.LONG_NAMES:
        return reply_pages.in_steps(_long_put(session, argv).step, lambda done: OK)
    strings.put_several(txn, dict(_pairs(session, argv)))
    return OK


def msetnx(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Set several keys to strings where there is none of them; 1 if they were set."""
    if session.steps and len(argv) > 2 * strings.LONG_NAMES:
        return reply_pages.in_steps(_long_put(session, argv, only_new=True).step, int)
    pairs = _pairs(session, argv)
    if any(keyspace.exists(txn, name) for name, _ in pairs):
        return 0
    strings.put_several(txn, dict(pairs))
    return 1


def msetex(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set several keys to strings that expire, where NX or XX hold for all; 1 if they were set."""
    pairs, rest = pairs_of(argv)
    options = _parse(rest, 0, _MSETEX_OPTIONS)
    expire_at = options.expire_at(txn, "msetex") or (None if options.keepttl else 0)
    named = [(session.prefix + key, value) for key, value in pairs]
    if not all(is_met(txn, name, options.condition) for name, _ in named):
        return 0
    for name, value in named:
        strings.put(txn, name, value, expire_at)
    return 1


def setrange(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Put bytes over a string from an offset on, after zeros if need be; answer its length."""
    return strings.overwrite(txn, session.prefix + argv[1], integer(argv[2]), argv[3])


def append(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Put bytes behind a string, made where there is none, and answer its length."""
    return strings.append(txn, session.prefix + argv[1], argv[2])


# --- getting ------------------------------------------------------------------------------------


def get(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Answer a string; a null for a missing key."""
    name = session.prefix + argv[1]
    return reply_pages.of_string(txn, session, name) if session.pages else strings.get(txn, name)


def getdel(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer a string and delete it; a null for a missing key."""
    return strings.take(txn, session.prefix + argv[1])


def getex(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer a string and change when it expires; a null for a missing key."""
    options = _parse(argv, 2, _GETEX_OPTIONS)
    name = session.prefix + argv[1]
    value = strings.get(txn, name)
    if value is None:
        return None
    expire_at = options.expire_at(txn, "getex")
    if expire_at is not None:
        keyspace.expire_at(txn, name, expire_at)
    elif options.persist:
        keyspace.persist(txn, name)
    return value


def mget(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Answer several strings; a null for each key that is missing or of another type."""
    keys = argv[1:]
    if session.steps and len(keys) > strings.LONG_NAMES:
        work = strings.LongGet(session.db, keys)
        return reply_pages.in_steps(
            work.step, lambda found: reply_pages.paged(session, found, len(found))
        )
    names = [session.prefix + key for key in keys]
    if not session.pages:
        return strings.get_several(txn, names)
    found = strings.get_several(txn, names, lambda large: reply_pages.of_large(txn, large))
    return Paged(found) if any(type(value) is Bulk for value in found) else found


def getrange(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer a string's bytes from an index to another, both included; -1 is the last byte."""
    first, last = integer(argv[2]), integer(argv[3])
    return strings.part(txn, session.prefix + argv[1], first, last)


def strlen(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer the length of a string in bytes; 0 for a missing key."""
    return strings.length(txn, session.prefix + argv[1])


# --- counting -----------------------------------------------------------------------------------


def incr(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Add one to the integer that a string holds, 0 for a missing key, and answer the sum."""
    return strings.add(txn, session.prefix + argv[1], 1)


def incrby(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Add to the integer that a string holds, 0 for a missing key, and answer the sum."""
    return strings.add(txn, session.prefix + argv[1], integer(argv[2]))


def incrbyfloat(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Add to the number that a string holds, 0 for a missing key, and answer the sum."""
    return strings.add_decimal(txn, session.prefix + argv[1], argv[2])


def increx(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Add to the number that a string holds, within bounds; answer the sum and what was added."""
    options = _parse(argv, 2, _INCREX_OPTIONS)
    only_new = b"ENX" in options.flags
    if only_new and options.persist:
        raise syntax_error()
    if only_new and not options.unit:
        raise InvalidArgument("ENX flag requires an expiration option")
    expire_at = options.expire_at(txn, "increx")
    name = session.prefix + argv[1]
    add = strings.add_decimal_within if options.condition == b"BYFLOAT" else strings.add_within
    bounds = options.bounds.get(b"LBOUND"), options.bounds.get(b"UBOUND")
    added = add(txn, name, options.wanted or b"1", bounds, b"SATURATE" in options.flags)
    if added.is_done and expire_at is not None:
        if not (only_new and keyspace.expiry(txn, name)):
            keyspace.expire_at(txn, name, expire_at)
    elif added.is_done and options.persist:
        keyspace.persist(txn, name)
    return [_number(added.value), _number(added.by)]


def _number(value: int | Decimal) -> Reply:
    return Double(float(value)) if isinstance(value, Decimal) else value


def decr(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Take one from the integer that a string holds, 0 for a missing key, and answer the rest."""
    return strings.add(txn, session.prefix + argv[1], -1)


def decrby(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Take from the integer that a string holds, 0 for a missing key, and answer the rest."""
    number = integer(argv[2])
    if number == I64_MIN:
        raise InvalidArgument("decrement would overflow")
    return strings.add(txn, session.prefix + argv[1], -number)
