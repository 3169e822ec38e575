"""Commands of plain strings: SET, GET, MGET, INCR, DELEX and others.

SET NX takes a lock and DELEX IFEQ releases it: no script has to compare and delete.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial

from kvstream.commands.args import (
    I32_MAX,
    I64_MAX,
    I64_MIN,
    Args,
    Argv,
    Option,
    integer,
    switch,
    syntax_error,
    text,
    wrong_arity,
)
from kvstream.commands.command import (
    EVERY,
    FAST_GROW,
    FAST_READ,
    FAST_WRITE,
    FIRST,
    GROW,
    PAIRS,
    READ,
    Answer,
    CountedPairs,
    Family,
    LongReply,
    Session,
    flags,
)
from kvstream.commands.incremental import run_in_steps
from kvstream.commands.replies import OK, Bulk, Double, Reply
from kvstream.commands.reply_pages import page, page_if_long
from kvstream.errors import InvalidArgument
from kvstream.meta.strings import StringMeta
from kvstream.meta.txn import Txn
from kvstream.operations import keyspace, strings
from kvstream.operations.plans import Plan
from kvstream.operations.reads.limits import short_bytes

COMMANDS = Family("string")
_SHOWS_CHANGE = flags("shows_change")
_TIMES_SYNTAX = "EX seconds|PX milliseconds|EXAT unix-time-seconds|PXAT unix-time-milliseconds"
_COMPARED_SYNTAX = "IFEQ value|IFNE value|IFDEQ digest|IFDNE digest"
COMPARING = (b"IFEQ", b"IFNE", b"IFDEQ", b"IFDNE")
"""Conditions that compare a value, or its digest, with the word that follows."""
_NEGATIVE = (b"IFNE", b"IFDNE")
_BY_DIGEST = (b"IFDEQ", b"IFDNE")
_DIGEST_DIGITS = 16


def is_met(txn: Txn, name: bytes, condition: bytes, wanted: bytes = b"") -> bool:
    """Return whether a condition of SET is met; WrongType if it compares another type."""
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


@COMMANDS.command("digest", "key", FAST_READ, FIRST, since="8.4.0")
def digest(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the XXH3 hash of a string in 16 hexadecimal digits; null if the key does not exist."""
    value = strings.get(txn, session.prefix + argv[1])
    return None if value is None else strings.digest(value)


def _delex_uses(argv: Argv) -> str:
    compares = len(argv) > 3 and argv[2].upper() in COMPARING
    return "RW delete" if compares else "RM delete"


@COMMANDS.command(
    *("delex", f"key [{_COMPARED_SYNTAX}]", FAST_WRITE | _SHOWS_CHANGE, FIRST),
    since="8.4.0",
    uses="RW delete variable_flags",
    uses_of=_delex_uses,
    counted_keys=1,
)
def delex(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Delete a key, or a string that meets a condition; return 1 if it was deleted."""
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
    """Return the keys and values of an MSETEX, and the options after them."""
    number = integer(argv[1], "invalid numkeys value")
    if not 0 < number <= I32_MAX:
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
    """The operand of a condition, or the increment of BYINT and BYFLOAT."""
    bounds: dict[bytes, bytes] = field(default_factory=dict)
    flags: set[bytes] = field(default_factory=set)
    get: bool = False
    keepttl: bool = False
    persist: bool = False
    unit: bytes = b""
    time: bytes = b""

    def expire_at(self, txn: Txn, command: str) -> int | None:
        """Return the expiry in Unix milliseconds; None if none is given."""
        return _expiry_time(txn, self.unit, self.time, command) if self.unit else None


def _expiry_time(txn: Txn, unit: bytes, raw: bytes, command: str) -> int:
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


def _take_untimed(attribute: str, args: Args, options: _Options) -> None:
    """Take an option that excludes a time."""
    if options.unit:
        raise syntax_error()
    setattr(options, attribute, True)


def _take_time(unit: bytes, args: Args, options: _Options) -> None:
    if options.unit not in (b"", unit) or options.keepttl or options.persist:
        raise syntax_error()
    options.unit, options.time = unit, args.next()


def _take_bound(word: bytes, args: Args, options: _Options) -> None:
    options.bounds[word] = args.next()


def _take_flag(word: bytes, args: Args, options: _Options) -> None:
    options.flags.add(word)


_TIMES: dict[bytes, Option[_Options]] = {unit: (1, partial(_take_time, unit)) for unit in _UNITS}
_MSETEX_OPTIONS: dict[bytes, Option[_Options]] = {
    **_TIMES,
    b"NX": (0, partial(_take_condition, b"NX")),
    b"XX": (0, partial(_take_condition, b"XX")),
    b"KEEPTTL": (0, partial(_take_untimed, "keepttl")),
}
_SET_OPTIONS: dict[bytes, Option[_Options]] = {
    **_MSETEX_OPTIONS,
    **{word: (1, partial(_take_comparison, word)) for word in COMPARING},
    b"GET": switch("get"),
}
_GETEX_OPTIONS: dict[bytes, Option[_Options]] = {
    **_TIMES,
    b"PERSIST": (0, partial(_take_untimed, "persist")),
}


_INCREX_OPTIONS: dict[bytes, Option[_Options]] = {
    **_GETEX_OPTIONS,
    **{word: (1, partial(_take_comparison, word)) for word in (b"BYINT", b"BYFLOAT")},
    **{word: (1, partial(_take_bound, word)) for word in (b"LBOUND", b"UBOUND")},
    **{word: (0, partial(_take_flag, word)) for word in (b"SATURATE", b"ENX")},
}


def _parse(words: Argv, table: dict[bytes, Option[_Options]], once: bool = False) -> _Options:
    options = _Options()
    Args(words, 0).take_options(table, options, once)
    return options


# --- setting ------------------------------------------------------------------------------------


def _set_uses(argv: Argv) -> str:
    gets = any(word.upper() == b"GET" for word in argv[3:])
    return "RW access update" if gets else "OW update"


@COMMANDS.command(
    *("set", f"key value [{_COMPARED_SYNTAX}|NX|XX] [GET] [{_TIMES_SYNTAX}|KEEPTTL]", GROW, FIRST),
    since="1.0.0",
    uses="RW access update variable_flags",
    uses_of=_set_uses,
)
def set_(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set a key to a string and replace its old value; null if the condition is not met.

    NX: Only if the key does not exist.
    XX: Only if the key exists.
    GET: Return the old string, whether or not the new one was set; an error for another type.

    EXAT or PXAT in the past deletes the key at once; Redis counts it until it is accessed. NX and
    XX are refused together with IFEQ, IFNE, IFDEQ and IFDNE, in any order.
    """
    if len(argv) == 3:
        strings.put(txn, session.prefix + argv[1], argv[2])
        return OK
    options = _parse(argv[3:], _SET_OPTIONS)
    expire_at = options.expire_at(txn, "set") or (None if options.keepttl else 0)
    name = session.prefix + argv[1]
    old = strings.get(txn, name) if options.get else None
    done = is_met(txn, name, options.condition, options.wanted)
    if done:
        strings.put(txn, name, argv[2], expire_at)
    if options.get:
        return old
    return OK if done else None


@COMMANDS.command(
    *("setnx", "key value", FAST_GROW | _SHOWS_CHANGE, FIRST), since="1.0.0", uses="OW insert"
)
def setnx(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set a key to a string if it does not exist; return 1 if it was set."""
    return int(strings.put_new(txn, session.prefix + argv[1], argv[2]))


@COMMANDS.command("setex", "key seconds value", GROW, FIRST, since="2.0.0", uses="OW update")
def setex(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set a key to a string that expires in so many seconds."""
    expire_at = _expiry_time(txn, b"EX", argv[2], "setex")
    strings.put(txn, session.prefix + argv[1], argv[3], expire_at)
    return OK


@COMMANDS.command("psetex", "key milliseconds value", GROW, FIRST, since="2.6.0", uses="OW update")
def psetex(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set a key to a string that expires in so many milliseconds."""
    expire_at = _expiry_time(txn, b"PX", argv[2], "psetex")
    strings.put(txn, session.prefix + argv[1], argv[3], expire_at)
    return OK


@COMMANDS.command(
    *("getset", "key value", FAST_GROW, FIRST),
    since="1.0.0",
    uses="RW access update",
    counted_keys=1,
)
def getset(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set a key to a string without an expiry; return the old string, or null."""
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


def _plan_put(session: Session, argv: Argv, only_new: bool = False) -> Plan[bool]:
    _refuse_half(argv)
    values = dict(zip(argv[1::2], argv[2::2], strict=True))
    return strings.plan_put(session.db, values, only_new)


@COMMANDS.command(
    *("mset", "key value [key value ...]", GROW, PAIRS),
    since="1.0.1",
    uses="OW update",
    tips="request_policy:multi_shard response_policy:all_succeeded",
)
def mset(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Set several keys to strings and replace their old values."""
    if session.steps and len(argv) > 2 * txn.thresholds.long_names:
        return run_in_steps(_plan_put(session, argv), lambda done: OK)
    strings.put_several(txn, dict(_pairs(session, argv)))
    return OK


@COMMANDS.command(
    *("msetnx", "key value [key value ...]", GROW | _SHOWS_CHANGE, PAIRS),
    since="1.0.1",
    uses="OW insert",
)
def msetnx(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Set several keys to strings if none of them exists; return 1 if they were set."""
    if session.steps and len(argv) > 2 * txn.thresholds.long_names:
        return run_in_steps(_plan_put(session, argv, only_new=True), int)
    pairs = _pairs(session, argv)
    if any(keyspace.exists(txn, name) for name, _ in pairs):
        return 0
    strings.put_several(txn, dict(pairs))
    return 1


@COMMANDS.command(
    "msetex",
    f"numkeys key value [key value ...] [NX|XX] [{_TIMES_SYNTAX}|KEEPTTL]",
    *(flags("write denyoom movablekeys shows_change"), CountedPairs(0, 0)),
    since="8.4.0",
    uses="OW update",
    tips="request_policy:multi_shard response_policy:all_succeeded",
)
def msetex(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set several keys to strings with an expiry; return 1 if they were set.

    NX: Only if none of the keys exists.
    XX: Only if all of the keys exist.
    """
    pairs, rest = pairs_of(argv)
    options = _parse(rest, _MSETEX_OPTIONS)
    expire_at = options.expire_at(txn, "msetex") or (None if options.keepttl else 0)
    named = [(session.prefix + key, value) for key, value in pairs]
    if not all(is_met(txn, name, options.condition) for name, _ in named):
        return 0
    for name, value in named:
        strings.put(txn, name, value, expire_at)
    return 1


@COMMANDS.command("setrange", "key offset value", GROW, FIRST, since="2.2.0", uses="RW update")
def setrange(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Overwrite a string from an offset, padded with zeros if needed; return its length."""
    return strings.overwrite(txn, session.prefix + argv[1], integer(argv[2]), argv[3])


@COMMANDS.command("append", "key value", FAST_GROW, FIRST, since="2.0.0", uses="RW insert")
def append(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Append bytes to a string, created if needed; return its length."""
    return strings.append(txn, session.prefix + argv[1], argv[2])


# --- getting ------------------------------------------------------------------------------------


def _large_string(txn: Txn, string: StringMeta) -> Bulk:
    """Return a string as it is now, read piece by piece."""
    return Bulk(string.length, string.steps(txn.batch))


@COMMANDS.command("get", "key", FAST_READ, FIRST, since="1.0.0")
def get(txn: Txn, session: Session, argv: Argv) -> "Answer | LongReply":
    """Return a string; null if the key does not exist."""
    string = txn.find_string(session.prefix + argv[1])
    if string is None or isinstance(string, bytes):
        return string
    if string.pieces is None:  # it is short
        return string.value
    if not session.pages or string.length <= short_bytes(txn):
        return string.read(txn.batch)
    return LongReply(partial(_large_string, txn, string))


@COMMANDS.command(
    *("getdel", "key", FAST_WRITE | _SHOWS_CHANGE, FIRST),
    since="6.2.0",
    uses="RW access delete",
    counted_keys=1,
)
def getdel(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return a string and delete it; null if the key does not exist."""
    return strings.take(txn, session.prefix + argv[1])


@COMMANDS.command(
    *("getex", f"key [{_TIMES_SYNTAX}|PERSIST]", FAST_WRITE, FIRST),
    since="6.2.0",
    uses="RW access update",
    counted_keys=1,
)
def getex(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return a string and change its expiry; null if the key does not exist."""
    options = _parse(argv[2:], _GETEX_OPTIONS)
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


@COMMANDS.command(
    *("mget", "key [key ...]", FAST_READ, EVERY),
    since="1.0.0",
    tips="request_policy:multi_shard",
)
def mget(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Return several strings; null for a key that does not exist or has another type."""
    keys = argv[1:]
    if session.steps and len(keys) > txn.thresholds.long_names:
        plan = strings.plan_get(session.db, keys)
        return run_in_steps(plan, lambda values: page_if_long(txn, session, values, len(values)))
    names = [session.prefix + key for key in keys]
    if not session.pages:
        return strings.get_several(txn, names)
    values = strings.get_several(txn, names, lambda large: _large_string(txn, large))
    return page(values) if any(type(value) is Bulk for value in values) else values


@COMMANDS.command("getrange", "key start end", READ, FIRST, since="2.4.0")
@COMMANDS.command("substr", "key start end", READ, FIRST, since="1.0.0")
def getrange(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the bytes of a string between two indexes, both included; -1 is the last byte."""
    first, last = integer(argv[2]), integer(argv[3])
    return strings.part(txn, session.prefix + argv[1], first, last)


@COMMANDS.command("strlen", "key", FAST_READ, FIRST, since="2.2.0", uses="RO")
def strlen(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the length of a string in bytes; 0 if the key does not exist."""
    return strings.length(txn, session.prefix + argv[1])


# --- counting -----------------------------------------------------------------------------------


@COMMANDS.command("incr", "key", FAST_GROW, FIRST, since="1.0.0", uses="RW access update")
def incr(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Add one to an integer, 0 if the key does not exist; return the sum."""
    return strings.add(txn, session.prefix + argv[1], 1)


@COMMANDS.command(
    "incrby", "key increment", FAST_GROW, FIRST, since="1.0.0", uses="RW access update"
)
def incrby(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Add to an integer, 0 if the key does not exist; return the sum."""
    return strings.add(txn, session.prefix + argv[1], integer(argv[2]))


@COMMANDS.command(
    *("incrbyfloat", "key increment", FAST_GROW, FIRST),
    since="2.6.0",
    uses="RW access update",
)
def incrbyfloat(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Add to a number, 0 if the key does not exist; return the sum.

    Numbers have 64 significant bits, as in Redis on x86-64.
    """
    return strings.add_decimal(txn, session.prefix + argv[1], argv[2])


@COMMANDS.command(
    "increx",
    "key [BYFLOAT increment|BYINT increment] [LBOUND lowerbound] [UBOUND upperbound] [SATURATE] "
    f"[{_TIMES_SYNTAX}|PERSIST] [ENX]",
    *(FAST_GROW, FIRST),
    since="8.8.0",
    uses="RW access update",
)
def increx(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Add to a number within bounds; return the sum and what was added.

    BYFLOAT: Add a number that may have a fraction.
    BYINT: Add an integer; 1 by default.
    LBOUND: A sum below this bound is not stored.
    UBOUND: A sum above this bound is not stored.
    SATURATE: Store the bound instead, and return what was added.
    ENX: Set the expiry only if the key has none.
    """
    options = _parse(argv[2:], _INCREX_OPTIONS, once=True)
    only_new = b"ENX" in options.flags
    if only_new and options.persist:
        raise syntax_error()
    if only_new and not options.unit:
        raise InvalidArgument("ENX flag requires an expiration")
    expire_at = options.expire_at(txn, "increx")
    name = session.prefix + argv[1]
    if only_new and keyspace.expiry(txn, name):
        expire_at = None
    add = strings.add_decimal_within if options.condition == b"BYFLOAT" else strings.add_within
    wanted = options.wanted if options.condition else None
    bounds = options.bounds.get(b"LBOUND"), options.bounds.get(b"UBOUND")
    keeps = expire_at is None or expire_at > txn.expiry_ms
    added = add(txn, name, wanted, bounds, b"SATURATE" in options.flags, keeps)
    if added.is_done and expire_at is not None and keeps:
        keyspace.expire_at(txn, name, expire_at)
    elif added.is_done and options.persist:
        keyspace.persist(txn, name)
    return [_number(added.value), _number(added.by)]


def _number(value: int | Fraction) -> Reply:
    if isinstance(value, int):
        return value
    try:
        return Double(float(value))
    except OverflowError:
        return Double(-math.inf if value < 0 else math.inf)


@COMMANDS.command("decr", "key", FAST_GROW, FIRST, since="1.0.0", uses="RW access update")
def decr(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Subtract one from an integer, 0 if the key does not exist; return the result."""
    return strings.add(txn, session.prefix + argv[1], -1)


@COMMANDS.command(
    "decrby", "key decrement", FAST_GROW, FIRST, since="1.0.0", uses="RW access update"
)
def decrby(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Subtract from an integer, 0 if the key does not exist; return the result."""
    number = integer(argv[2])
    if number == I64_MIN:
        raise InvalidArgument("decrement would overflow")
    return strings.add(txn, session.prefix + argv[1], -number)
