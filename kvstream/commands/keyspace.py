"""Commands of any key: DEL, EXISTS, RENAME, SCAN, expiry; whole databases; PING and ECHO."""

from kvstream.commands.args import (
    I64_MAX,
    I64_MIN,
    Args,
    Argv,
    c_int,
    database,
    integer,
    loose_u64,
    syntax_error,
    text,
    wrong_arity,
)
from kvstream.commands.command import (
    EVERY,
    FAST_READ,
    FAST_WRITE,
    FIRST,
    FIRST_TWO,
    READ,
    WRITE,
    Answer,
    Family,
    LongReply,
    Session,
    flags,
)
from kvstream.commands.incremental import run_in_steps
from kvstream.commands.replies import OK, Reply, Simple
from kvstream.commands.reply_pages import is_long
from kvstream.errors import InvalidArgument
from kvstream.meta.txn import Txn
from kvstream.operations import keyspace
from kvstream.operations.reads.pages import filter_pages
from kvstream.types.glob import matcher

COMMANDS = Family("generic")
CONNECTION = Family("connection")
PONG = Simple("PONG")
SCAN_COUNT = 10
"""Redis's default COUNT of SCAN."""
SCAN_MAX, SCAN_TYPED_MAX = 1000, 250
"""Keys, and keys with TYPE, in one SCAN of a server: a few milliseconds of work."""
_SHOWS_CHANGE = flags("shows_change")
_LOOK = FAST_READ | flags("no_touch")
_EXPIRE = FAST_WRITE | _SHOWS_CHANGE
_IF = "[NX|XX|GT|LT]"
_ALL = 1 << 62


@COMMANDS.command(
    *("del", "key [key ...]", WRITE | _SHOWS_CHANGE, EVERY),
    since="1.0.0",
    uses="RM delete",
    tips="request_policy:multi_shard response_policy:agg_sum",
)
@COMMANDS.command(
    *("unlink", "key [key ...]", FAST_WRITE | _SHOWS_CHANGE, EVERY),
    since="4.0.0",
    uses="RM delete",
    tips="request_policy:multi_shard response_policy:agg_sum",
)
def delete(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Delete keys; return how many existed."""
    if session.steps and len(argv) > txn.thresholds.long_keys:
        return run_in_steps(keyspace.plan_delete(session.db, argv[1:]), int)
    return keyspace.delete_all(txn, session.db, argv[1:])


@COMMANDS.command(
    *("exists", "key [key ...]", _LOOK, EVERY),
    since="1.0.0",
    uses="RO",
    tips="request_policy:multi_shard response_policy:agg_sum",
)
@COMMANDS.command(
    *("touch", "key [key ...]", FAST_READ, EVERY),
    since="3.2.1",
    uses="RO",
    tips="request_policy:multi_shard response_policy:agg_sum",
)
def exists(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Return how many of the keys exist; a key given twice counts twice."""
    if session.steps and len(argv) > txn.thresholds.long_keys:
        return run_in_steps(keyspace.plan_count(session.db, argv[1:]), int)
    return keyspace.count_all(txn, session.db, argv[1:])


@COMMANDS.command("type", "key", _LOOK, FIRST, since="1.0.0", uses="RO")
def kind(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return `stream` or `string`; `none` if the key does not exist."""
    return Simple(keyspace.kind(txn, session.prefix + argv[1]))


@COMMANDS.command(
    *("rename", "key newkey", WRITE, FIRST_TWO),
    since="1.0.0",
    uses="RW access delete, OW update",
)
def rename(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Rename a key; the new key is overwritten if it exists."""
    keyspace.rename(txn, session.prefix + argv[1], session.prefix + argv[2])
    return OK


@COMMANDS.command(
    *("renamenx", "key newkey", FAST_WRITE | _SHOWS_CHANGE, FIRST_TWO),
    since="1.0.0",
    uses="RW access delete, OW insert",
)
def renamenx(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Rename a key if the new key does not exist; return 1 if it was renamed."""
    source, target = session.prefix + argv[1], session.prefix + argv[2]
    return int(keyspace.rename(txn, source, target, replace=False))


@COMMANDS.command(
    *("randomkey", "", READ),
    since="1.0.0",
    tips="nondeterministic_output request_policy:all_shards response_policy:special",
)
def randomkey(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return any key; null if there is none.

    Of very many expired keys that are still there it looks at some, and may find none that lives.
    """
    return keyspace.random_key(txn, session.db)


@COMMANDS.command(
    *("dbsize", "", FAST_READ),
    since="1.0.0",
    group="server",
    categories="keyspace",
    tips="request_policy:all_shards response_policy:agg_sum",
)
def dbsize(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the number of keys."""
    return keyspace.size(txn, session.db)


# --- listing ------------------------------------------------------------------------------------


@COMMANDS.command(
    *("scan", "cursor [MATCH pattern] [COUNT count] [TYPE type]", READ),
    since="2.8.0",
    tips="nondeterministic_output request_policy:special response_policy:special",
)
def scan(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return some keys and the cursor of the next call, which is 0 at the end.

    MATCH: Only keys that match a pattern.
    COUNT: Keys to look at; 10 by default.
    TYPE: Only keys of a type.

    SCAN returns the keys in the order in which they were created. A key that stays is returned
    exactly once, and a cursor stays valid after a restart. One call to a server looks at 1,000 keys
    at most, with TYPE at 250. A negative cursor is refused, as since Redis 8.0.
    """
    cursor = loose_u64(argv[1])
    if cursor is None:
        raise InvalidArgument("invalid cursor")
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
    if session.pages:  # COUNT is only a hint
        count = min(count, SCAN_TYPED_MAX if kind else SCAN_MAX)
    following, keys = keyspace.scan(txn, session.db, cursor, min(count, _ALL), kind)
    matches = matcher(wanted)
    return [b"%d" % following, [key for key in keys if matches(key)]]


@COMMANDS.command(
    *("keys", "pattern", READ),
    since="1.0.0",
    categories="keyspace dangerous",
    tips="nondeterministic_output_order request_policy:all_shards",
)
def keys(txn: Txn, session: Session, argv: Argv) -> "Answer | LongReply":
    """Return all keys that match a pattern."""
    matches = None if argv[1] == b"*" else matcher(argv[1])
    if is_long(txn, session, keyspace.size(txn, session.db)):
        step = txn.thresholds.step_items
        return LongReply(lambda: filter_pages(step, keyspace.pages(txn, session.db), matches))
    _, names = keyspace.scan(txn, session.db, 0, _ALL)
    return names if matches is None else [key for key in names if matches(key)]


# --- expiry -------------------------------------------------------------------------------------


@COMMANDS.command("expire", f"key seconds {_IF}", _EXPIRE, FIRST, since="1.0.0")
def expire(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set a key to expire in so many seconds; return 1 if it was set."""
    return _expire(txn, session, argv, "expire", 1000, txn.now_ms)


@COMMANDS.command("pexpire", f"key milliseconds {_IF}", _EXPIRE, FIRST, since="2.6.0")
def pexpire(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set a key to expire in so many milliseconds; return 1 if it was set."""
    return _expire(txn, session, argv, "pexpire", 1, txn.now_ms)


@COMMANDS.command("expireat", f"key unix-time-seconds {_IF}", _EXPIRE, FIRST, since="1.2.0")
def expireat(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set a key to expire at a Unix time in seconds; return 1 if it was set."""
    return _expire(txn, session, argv, "expireat", 1000, 0)


@COMMANDS.command("pexpireat", f"key unix-time-milliseconds {_IF}", _EXPIRE, FIRST, since="2.6.0")
def pexpireat(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set a key to expire at a Unix time in milliseconds; return 1 if it was set."""
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
    if current is None or not _may_replace(conditions, current, at_ms):
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


def _may_replace(conditions: set[bytes], current_ms: int, at_ms: int) -> bool:
    """Return whether the conditions allow a new expiry; ``current_ms`` 0: there is none."""
    if (b"NX" in conditions and current_ms) or (b"XX" in conditions and not current_ms):
        return False
    if b"GT" in conditions and (not current_ms or at_ms <= current_ms):
        return False
    return not (b"LT" in conditions and current_ms and at_ms >= current_ms)


def _expiry(txn: Txn, session: Session, argv: Argv, unit_ms: int, base_ms: int) -> int:
    """Return a key's expiry counted from ``base_ms``; -1: none, -2: no key."""
    at_ms = keyspace.expiry(txn, session.prefix + argv[1])
    if at_ms is None:
        return -2
    if not at_ms:
        return -1
    return (max(0, at_ms - base_ms) + unit_ms // 2) // unit_ms


@COMMANDS.command("ttl", "key", _LOOK, FIRST, since="1.0.0", tips="nondeterministic_output")
def ttl(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the seconds until a key expires; -1 if it does not, -2 if it does not exist."""
    return _expiry(txn, session, argv, 1000, txn.now_ms)


@COMMANDS.command("pttl", "key", _LOOK, FIRST, since="2.6.0", tips="nondeterministic_output")
def pttl(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the milliseconds until a key expires; -1 if it does not, -2 if there is none."""
    return _expiry(txn, session, argv, 1, txn.now_ms)


@COMMANDS.command("expiretime", "key", _LOOK, FIRST, since="7.0.0")
def expiretime(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the Unix time in seconds at which a key expires, or -1 or -2 as TTL does."""
    return _expiry(txn, session, argv, 1000, 0)


@COMMANDS.command("pexpiretime", "key", _LOOK, FIRST, since="7.0.0")
def pexpiretime(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the Unix time in milliseconds at which a key expires, or -1 or -2 as PTTL does."""
    return _expiry(txn, session, argv, 1, 0)


@COMMANDS.command("persist", "key", FAST_WRITE | _SHOWS_CHANGE, FIRST, since="2.2.0")
def persist(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Remove the expiry of a key; return 1 if it had one."""
    return int(keyspace.persist(txn, session.prefix + argv[1]))


# --- whole databases ----------------------------------------------------------------------------


def _check_flush(argv: Argv) -> None:
    if len(argv) > 2 or (len(argv) == 2 and argv[1].upper() not in (b"ASYNC", b"SYNC")):
        raise syntax_error()


@COMMANDS.command(
    *("flushdb", "[ASYNC|SYNC]", WRITE | flags("invalidates")),
    since="1.0.0",
    group="server",
    categories="keyspace dangerous",
    tips="request_policy:all_shards response_policy:all_succeeded",
)
def flushdb(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Delete all keys of the database."""
    _check_flush(argv)
    keyspace.flush(txn, session.db)
    return OK


@COMMANDS.command(
    *("flushall", "[ASYNC|SYNC]", WRITE | flags("invalidates")),
    since="1.0.0",
    group="server",
    categories="keyspace dangerous",
    tips="request_policy:all_shards response_policy:all_succeeded",
)
def flushall(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Delete all keys of all databases."""
    _check_flush(argv)
    keyspace.flush_all(txn, session.databases)
    return OK


@COMMANDS.command(
    *("swapdb", "index index", FAST_WRITE),
    since="4.0.0",
    group="server",
    categories="keyspace dangerous",
)
def swapdb(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Swap two databases: a client that uses one of them gets the keys of the other."""
    one = c_int(argv[1], "invalid first DB index")
    other = c_int(argv[2], "invalid second DB index")
    if not (0 <= one < session.databases and 0 <= other < session.databases):
        raise InvalidArgument("DB index is out of range")
    keyspace.swap(txn, one, other)
    return OK


# --- connections ----------------------------------------------------------------------------------


@CONNECTION.command("echo", "message", flags("loading stale fast"), since="1.0.0")
def echo(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the message."""
    return argv[1]


@CONNECTION.command(
    *("ping", "[message]", flags("fast subscribed")),
    since="1.0.0",
    tips="request_policy:all_shards response_policy:all_succeeded",
)
def ping(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return PONG, or the message."""
    if len(argv) > 2:
        raise wrong_arity("ping")
    return argv[1] if len(argv) == 2 else PONG


@CONNECTION.command("select", "index", flags("loading stale fast"), since="1.0.0")
def select(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Select one of the numbered databases for the commands that follow."""
    session.select(database(argv[1], session.databases))
    return OK
