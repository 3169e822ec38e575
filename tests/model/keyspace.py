"""Commands of whole keys."""

from collections.abc import Callable
from copy import deepcopy
from fnmatch import fnmatchcase

from tests.model.arguments import Args, fail, integer, options, text
from tests.model.database import Redis
from tests.model.listpack import CANONICAL, INT64
from tests.model.replies import Reply
from tests.model.strings import Appended

CONDITIONS = (b"NX", b"XX", b"GT", b"LT")


def delete(db: Redis, argv: Args) -> Reply:
    return sum(db.drop(key) for key in argv[1:])


def exists(db: Redis, argv: Args) -> Reply:
    return sum(key in db.keys for key in argv[1:])


def type_of(db: Redis, argv: Args) -> Reply:
    found = db.keys.get(argv[1])
    return b"none" if found is None else b"string" if isinstance(found, bytes) else b"stream"


def encoding(db: Redis, argv: Args) -> Reply:
    found = db.keys.get(argv[2])
    if not isinstance(found, bytes):
        return None if found is None else b"stream"
    if isinstance(found, Appended):
        return b"raw"
    if len(found) <= 20 and CANONICAL.fullmatch(found) and int(found) in INT64:
        return b"int"
    return b"embstr" if len(found) <= 44 else b"raw"


def move(db: Redis, source: bytes, target: bytes) -> None:
    value, at = db.keys[source], db.expiries.get(source)
    db.drop(source)
    db.drop(target)
    db.keys[target] = value
    if at is not None:
        db.expiries[target] = at


def rename(db: Redis, argv: Args) -> Reply:
    if argv[1] not in db.keys:
        raise fail("no such key")
    move(db, argv[1], argv[2])
    return b"OK"


def renamenx(db: Redis, argv: Args) -> Reply:
    if argv[1] not in db.keys:
        raise fail("no such key")
    if argv[2] in db.keys:
        return 0
    move(db, argv[1], argv[2])
    return 1


def copy(db: Redis, argv: Args) -> Reply:
    found = dict(options(argv, 3, {b"REPLACE": 0}))
    source, target = argv[1], argv[2]
    if source == target:
        raise fail("source and destination objects are the same")
    if source not in db.keys or (target in db.keys and b"REPLACE" not in found):
        return 0
    db.drop(target)
    db.keys[target] = deepcopy(db.keys[source])
    if source in db.expiries:
        db.expiries[target] = db.expiries[source]
    return 1


def expire(unit: int, from_now: bool) -> Callable[[Redis, Args], Reply]:
    """Return the handler of EXPIRE or one of its kind, which counts in so many milliseconds."""

    def handler(db: Redis, argv: Args) -> Reply:
        conditions = expiry_conditions(argv[3:])
        span = integer(argv[2]) * unit
        at = span + (db.now() if from_now else 0)
        if span not in INT64 or at not in INT64:
            raise fail(f"invalid expire time in '{text(argv[0]).lower()}' command")
        if argv[1] not in db.keys or not is_allowed(conditions, db.expiries.get(argv[1]), at):
            return 0
        db.expiries[argv[1]] = at
        return 1

    return handler


def expiry_conditions(words: Args) -> set[bytes]:
    found = set()
    for word in words:
        if word.upper() not in CONDITIONS:
            raise fail(f"Unsupported option {text(word)}")
        found.add(word.upper())
    if b"NX" in found and len(found) > 1:
        raise fail("NX and XX, GT or LT options at the same time are not compatible")
    if {b"GT", b"LT"} <= found:
        raise fail("GT and LT options at the same time are not compatible")
    return found


def is_allowed(conditions: set[bytes], now_at: int | None, at: int) -> bool:
    """Tell whether the conditions hold; no expiry is later than any."""
    if b"NX" in conditions:
        return now_at is None
    if b"XX" in conditions and now_at is None:
        return False
    if b"GT" in conditions:
        return now_at is not None and at > now_at
    return not (b"LT" in conditions and now_at is not None and at >= now_at)


def time_left(unit: int, from_now: bool) -> Callable[[Redis, Args], Reply]:
    """Return the handler of TTL or a similar command."""

    def handler(db: Redis, argv: Args) -> Reply:
        if argv[1] not in db.keys:
            return -2
        at = db.expiries.get(argv[1])
        return -1 if at is None else (at - from_now * db.now() + unit // 2) // unit

    return handler


def persist(db: Redis, argv: Args) -> Reply:
    return int(db.expiries.pop(argv[1], None) is not None)


def keys(db: Redis, argv: Args) -> Reply:
    return [key for key in db.keys if fnmatchcase(text(key), text(argv[1]))]


def dbsize(db: Redis, argv: Args) -> Reply:
    return len(db.keys)


def flushdb(db: Redis, argv: Args) -> Reply:
    db.keys.clear()
    db.expiries.clear()
    return b"OK"
