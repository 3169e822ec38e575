"""Plain strings: SET, GET and their kind."""

from collections.abc import Callable

from tests.model.arguments import NOT_INT, Args, fail, integer, options
from tests.model.database import Redis
from tests.model.listpack import INT64
from tests.model.replies import Reply

TIMES = {b"EX": (1000, True), b"PX": (1, True), b"EXAT": (1000, False), b"PXAT": (1, False)}
SET_OPTIONS = {b"NX": 0, b"XX": 0, b"GET": 0, b"KEEPTTL": 0, **dict.fromkeys(TIMES, 1)}
GETEX_OPTIONS = {b"PERSIST": 0, **dict.fromkeys(TIMES, 1)}


def parse_options(argv: Args, i: int, known: dict[bytes, int]) -> dict[bytes, bytes]:
    """Return the options of SET or GETEX; of those that exclude each other only one may stand."""
    found: dict[bytes, bytes] = {}
    for word, values in options(argv, i, known):
        for group in ({b"NX", b"XX"}, {*TIMES, b"KEEPTTL", b"PERSIST"}):
            if word in group and group & found.keys() - {word}:
                raise fail("syntax error")
        found[word] = values[0] if values else b""
    return found


def moment(db: Redis, unit: bytes, raw: bytes, command: str) -> int:
    ms, from_now = TIMES[unit]
    number = integer(raw)
    at = number * ms + (db.now() if from_now else 0)
    if number <= 0 or at not in INT64:
        raise fail(f"invalid expire time in '{command}' command")
    return at


def expiry(db: Redis, found: dict[bytes, bytes], command: str) -> int | None:
    """Return the time that the options ask for, None where they name none."""
    unit = next((unit for unit in TIMES if unit in found), None)
    return None if unit is None else moment(db, unit, found[unit], command)


def put(db: Redis, key: bytes, value: bytes, at: int | None) -> None:
    db.drop(key)
    db.keys[key] = value
    if at is not None:
        db.expiries[key] = at


def string(db: Redis, key: bytes) -> bytes | None:
    found = db.keys.get(key)
    if found is not None and not isinstance(found, bytes):
        raise fail("Operation against a key holding the wrong kind of value", "WRONGTYPE")
    return found


def set_string(db: Redis, argv: Args) -> Reply:
    key = argv[1]
    found = parse_options(argv, 3, SET_OPTIONS)
    at = expiry(db, found, "set")
    old = string(db, key) if b"GET" in found else None
    allowed = (b"NX" not in found or key not in db.keys) and (b"XX" not in found or key in db.keys)
    if allowed:
        put(db, key, argv[2], db.expiries.get(key) if b"KEEPTTL" in found else at)
    if b"GET" in found:
        return old
    return b"OK" if allowed else None


def setnx(db: Redis, argv: Args) -> Reply:
    if argv[1] in db.keys:
        return 0
    put(db, argv[1], argv[2], None)
    return 1


def setex(db: Redis, argv: Args) -> Reply:
    put(db, argv[1], argv[3], moment(db, b"EX", argv[2], "setex"))
    return b"OK"


def psetex(db: Redis, argv: Args) -> Reply:
    put(db, argv[1], argv[3], moment(db, b"PX", argv[2], "psetex"))
    return b"OK"


def getset(db: Redis, argv: Args) -> Reply:
    old = string(db, argv[1])
    put(db, argv[1], argv[2], None)
    return old


def get(db: Redis, argv: Args) -> Reply:
    return string(db, argv[1])


def getdel(db: Redis, argv: Args) -> Reply:
    old = string(db, argv[1])
    db.drop(argv[1])
    return old


def getex(db: Redis, argv: Args) -> Reply:
    found = parse_options(argv, 2, GETEX_OPTIONS)
    value = string(db, argv[1])
    if value is None:
        return None
    at = expiry(db, found, "getex")
    if at is not None:
        db.expiries[argv[1]] = at
    elif b"PERSIST" in found:
        db.expiries.pop(argv[1], None)
    return value


def mget(db: Redis, argv: Args) -> Reply:
    values = [db.keys.get(key) for key in argv[1:]]
    return [value if isinstance(value, bytes) else None for value in values]


def strlen(db: Redis, argv: Args) -> Reply:
    return len(string(db, argv[1]) or b"")


class Appended(bytes):
    """A string that was appended to: Redis shows its encoding as raw."""


def append(db: Redis, argv: Args) -> Reply:
    before = string(db, argv[1])
    value = argv[2] if before is None else Appended(before + argv[2])
    db.keys[argv[1]] = value
    return len(value)


def counted(sign: int, by: bool) -> Callable[[Redis, Args], Reply]:
    """Return the handler of INCR, DECR, INCRBY or DECRBY."""

    def count(db: Redis, argv: Args) -> Reply:
        number = integer(argv[2]) if by else 1
        if sign < 0 and number == INT64[0]:
            raise fail("decrement would overflow")
        held = string(db, argv[1])
        total = integer(b"0" if held is None else held, NOT_INT) + sign * number
        if total not in INT64:
            raise fail("increment or decrement would overflow")
        db.keys[argv[1]] = b"%d" % total
        return total

    return count
