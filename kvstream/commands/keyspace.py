"""Commands of whole keys and of the connection: DEL, RENAME, SCAN, SELECT, PING and their kind."""

import re

from kvstream.commands.args import (
    I64_MAX,
    I64_MIN,
    Args,
    Argv,
    integer,
    syntax_error,
    text,
    wrong_arity,
)
from kvstream.commands.command import LATER, Answer, Session
from kvstream.commands.replies import OK, Gradual, Paged, Reply, Simple
from kvstream.commands.reply_pages import in_steps, is_long, is_put_off
from kvstream.errors import InvalidArgument
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.operations import copy as copying
from kvstream.operations import keyspace
from kvstream.operations.copy import LongCopy, LongMove
from kvstream.operations.keyspace import LongCount, LongDelete
from kvstream.operations.pages import kept
from kvstream.types.glob import matcher
from kvstream.types.ids import U64_MAX

SCAN_COUNT = 10
"""Redis's default COUNT of SCAN."""
SCAN_MAX, SCAN_TYPED_MAX = 1000, 250
"""Keys that a server looks at in one SCAN at the most, and records: a few milliseconds of work."""
_ALL = 1 << 62
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
_NEGATIVE = re.compile(rb"-[1-9][0-9]{0,18}")
_CURSOR = re.compile(rb"[ \t\n\v\f\r]*([+-]?)([0-9]+)")


def delete(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Delete keys and answer how many there were."""
    if session.steps and len(argv) > keyspace.LONG_KEYS:
        return in_steps(LongDelete(session.db, argv[1:]).step, int)
    return keyspace.delete_all(txn, session.db, argv[1:])


def exists(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Answer how many of the keys exist; one named twice counts twice."""
    if session.steps and len(argv) > keyspace.LONG_KEYS:
        return in_steps(LongCount(session.db, argv[1:]).step, int)
    return keyspace.count_all(txn, session.db, argv[1:])


def kind(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer `stream` or `string`, or `none` for a missing key."""
    return Simple(keyspace.kind(txn, session.prefix + argv[1]))


def rename(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Rename a key, over whatever has the new name."""
    keyspace.rename(txn, session.prefix + argv[1], session.prefix + argv[2])
    return OK


def renamenx(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Rename a key where the new name is free; 1 if it was done."""
    source, target = session.prefix + argv[1], session.prefix + argv[2]
    return int(keyspace.rename(txn, source, target, replace=False))


def copy(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Copy a key with all that belongs to it, as one commit; 1 if it was done."""
    db, replace = session.db, False
    args = Args(argv, 3)
    while args:
        word = args.option()
        if word == b"REPLACE":
            replace = True
        elif word == b"DB" and args:
            db = _database(session, args.next())
        else:
            raise syntax_error()
    source, target = session.prefix + argv[1], qualified(db, argv[2])
    if session.steps and source != target and copying.is_long(txn, source):
        if not replace and keyspace.exists(txn, target):
            return 0
        work = LongCopy(source, target, replace)
        return in_steps(work.step, int, work.undo)
    return int(copying.copy(txn, source, target, replace))


def move(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Move a key to another database, where its name is free there; 1 if it was done."""
    db = _database(session, argv[2])
    source, target = session.prefix + argv[1], qualified(db, argv[1])
    if session.steps and source != target and copying.is_long(txn, source):
        if keyspace.exists(txn, target):
            return 0
        work = LongMove(source, target)
        return in_steps(work.step, int, work.undo)
    return int(copying.move(txn, source, target))


def randomkey(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer any key; a null where there is none."""
    return keyspace.random_key(txn, session.db)


def dbsize(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer the number of keys."""
    return keyspace.size(txn, session.db)


# --- listing ------------------------------------------------------------------------------------


def scan(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer some keys and the cursor that the next call goes on from; 0 at the end."""
    cursor = _cursor(argv[1])
    count, wanted, kind = SCAN_COUNT, b"*", None
    args = Args(argv, 2)
    while args:
        word = args.option()
        if word == b"COUNT" and args:
            count = args.at_least(1, "syntax error")
        elif word == b"MATCH" and args:
            wanted = args.next()
        elif word == b"TYPE" and args:
            kind = text(args.next()).lower()
        else:
            raise syntax_error()
    if session.pages:  # fewer are no fault: COUNT is a hint
        count = min(count, SCAN_TYPED_MAX if kind else SCAN_MAX)
    following, keys = keyspace.scan(txn, session.db, cursor, min(count, _ALL), kind)
    matches = matcher(wanted)
    return [b"%d" % following, [key for key in keys if matches(key)]]


def _cursor(raw: bytes) -> int:
    match = _CURSOR.fullmatch(raw)
    if match is None or int(match[2]) > U64_MAX or _NEGATIVE.fullmatch(raw):
        raise InvalidArgument("invalid cursor")
    return int(match[2]) if match[1] != b"-" else -int(match[2]) & U64_MAX


def keys(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Answer all keys that match a pattern."""
    matches = None if argv[1] == b"*" else matcher(argv[1])
    if is_long(session, keyspace.size(txn, session.db)):
        if is_put_off(txn, session):
            return LATER
        steps = kept(keyspace.pages(txn, session.db), matches)
        return Paged(Gradual(steps))
    _, found = keyspace.scan(txn, session.db, 0, _ALL)
    return found if matches is None else [key for key in found if matches(key)]


# --- expiry -------------------------------------------------------------------------------------


def expire(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Let a key expire in so many seconds; 1 if it was set."""
    return _expire(txn, session, argv, "expire", 1000, txn.now_ms)


def pexpire(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Let a key expire in so many milliseconds; 1 if it was set."""
    return _expire(txn, session, argv, "pexpire", 1, txn.now_ms)


def expireat(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Let a key expire at a Unix time in seconds; 1 if it was set."""
    return _expire(txn, session, argv, "expireat", 1000, 0)


def pexpireat(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Let a key expire at a Unix time in milliseconds; 1 if it was set."""
    return _expire(txn, session, argv, "pexpireat", 1, 0)


def _expire(
    txn: Txn, session: Session, argv: Argv, command: str, unit_ms: int, base_ms: int
) -> Reply:
    conditions = _conditions(argv[3:])
    span_ms = integer(argv[2]) * unit_ms
    at_ms = span_ms + base_ms
    if not I64_MIN <= span_ms <= I64_MAX or at_ms > I64_MAX:
        raise InvalidArgument(f"invalid expire time in '{command}' command")
    name = session.prefix + argv[1]
    current = keyspace.expiry(txn, name)
    if current is None or not _allowed(conditions, current, at_ms):
        return 0
    return int(keyspace.expire_at(txn, name, at_ms))


def _conditions(words: Argv) -> set[bytes]:
    conditions = set()
    for raw in words:
        word = raw.upper()
        if word not in (b"NX", b"XX", b"GT", b"LT"):
            raise InvalidArgument(f"Unsupported option {text(raw)}")
        conditions.add(word)
    if b"NX" in conditions and len(conditions) > 1:
        raise InvalidArgument("NX and XX, GT or LT options at the same time are not compatible")
    if {b"GT", b"LT"} <= conditions:
        raise InvalidArgument("GT and LT options at the same time are not compatible")
    return conditions


def _allowed(conditions: set[bytes], current_ms: int, at_ms: int) -> bool:
    """Tell whether the conditions let an expiry (0: never) be replaced."""
    if (b"NX" in conditions and current_ms) or (b"XX" in conditions and not current_ms):
        return False
    if b"GT" in conditions and (not current_ms or at_ms <= current_ms):
        return False
    return not (b"LT" in conditions and current_ms and at_ms >= current_ms)


def _expiry(txn: Txn, session: Session, argv: Argv, unit_ms: int, base_ms: int) -> int:
    """Return a key's expiry counted from ``base_ms``; -1: never, -2: no key."""
    at_ms = keyspace.expiry(txn, session.prefix + argv[1])
    if at_ms is None:
        return -2
    if not at_ms:
        return -1
    return (max(0, at_ms - base_ms) + unit_ms // 2) // unit_ms


def ttl(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer the seconds until a key expires; -1 never, -2 no key."""
    return _expiry(txn, session, argv, 1000, txn.now_ms)


def pttl(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer the milliseconds until a key expires; -1 never, -2 no key."""
    return _expiry(txn, session, argv, 1, txn.now_ms)


def expiretime(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer the Unix time in seconds at which a key expires; -1 never, -2 no key."""
    return _expiry(txn, session, argv, 1000, 0)


def pexpiretime(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer the Unix time in milliseconds at which a key expires; -1 never, -2 no key."""
    return _expiry(txn, session, argv, 1, 0)


def persist(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Take a key's expiry away; 1 if it had one."""
    return int(keyspace.persist(txn, session.prefix + argv[1]))


# --- whole databases, and the connection --------------------------------------------------------


def _check_flush(argv: Argv) -> None:
    if len(argv) > 2 or (len(argv) == 2 and argv[1].upper() not in (b"ASYNC", b"SYNC")):
        raise syntax_error()


def flushdb(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Delete every key of the database."""
    _check_flush(argv)
    keyspace.flush(txn, session.db)
    return OK


def flushall(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Delete every key of every database."""
    _check_flush(argv)
    keyspace.flush_all(txn, session.databases)
    return OK


def select(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Use another of the numbered databases from here on."""
    session.select(_database(session, argv[1]))
    return OK


def _database(session: Session, raw: bytes) -> int:
    """Return the number of a database that there is."""
    db = integer(raw)
    if not _INT_MIN <= db <= _INT_MAX:
        raise InvalidArgument(
            f"value is out of range, value must between {_INT_MIN} and {_INT_MAX}"
        )
    if not 0 <= db < session.databases:
        raise InvalidArgument("DB index is out of range")
    return db


def swapdb(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Exchange two databases: whoever uses one of them has the keys of the other from here on."""
    one = _integer_of_c(argv[1], "invalid first DB index")
    other = _integer_of_c(argv[2], "invalid second DB index")
    if not (0 <= one < session.databases and 0 <= other < session.databases):
        raise InvalidArgument("DB index is out of range")
    keyspace.swap(txn, one, other)
    return OK


def _integer_of_c(raw: bytes, message: str) -> int:
    """Return a signed 32-bit integer; InvalidArgument with ``message`` for anything else."""
    number = integer(raw, message)
    if not _INT_MIN <= number <= _INT_MAX:
        raise InvalidArgument(message)
    return number


def ping(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer PONG, or the message."""
    if len(argv) > 2:
        raise wrong_arity("ping")
    return argv[1] if len(argv) == 2 else Simple("PONG")


def echo(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer the message."""
    return argv[1]
