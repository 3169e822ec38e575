"""DUMP, RESTORE, OBJECT and MEMORY USAGE: a key as it is stored."""

from dataclasses import dataclass

from kvstream.commands.args import (
    I64_MAX,
    Args,
    Argv,
    Option,
    at_least,
    switch,
    syntax_error,
)
from kvstream.commands.command import (
    FIRST,
    GROW,
    READ,
    SECOND,
    Answer,
    Family,
    Session,
    flags,
)
from kvstream.commands.incremental import run_before, run_in_steps
from kvstream.commands.replies import OK, Bulk, Reply
from kvstream.commands.reply_pages import page
from kvstream.errors import InvalidArgument
from kvstream.layout.keys import key_of
from kvstream.layout.listpack import canonical_integer
from kvstream.meta.strings import Key, StringMeta
from kvstream.meta.txn import Txn
from kvstream.operations import info, keyspace
from kvstream.operations.images import dump
from kvstream.operations.images.load import refuse_existing

COMMANDS = Family("generic")
COMMANDS.add_help("object", since="6.2.0")
COMMANDS.add_help("memory", since="4.0.0", group="server")
_FREQ_MAX = 255
_INSPECT = READ | flags("no_touch")


@COMMANDS.command(
    *("dump", "key", READ, FIRST),
    since="2.6.0",
    tips="nondeterministic_output",
)
def dump_(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Return a key as a payload for RESTORE, here or in Redis; null if it does not exist.

    The payload has the oldest format that loses nothing of the key: that of Redis 7.0, of 7.2 and
    Valkey, of 8.6, or of 8.8. `CONFIG SET dump-target redis:7.2` (or `valkey`, ...) makes all
    payloads for such a server, without what it cannot store. Deleted entries are left out; Redis
    keeps them, marked. Delayed messages, schedules, unique IDs and policies are left out as well.
    """
    name = session.prefix + argv[1]
    if session.steps and dump.is_long(txn, name):
        plan = dump.plan_dump(name)
        return run_in_steps(plan, lambda parts: page(Bulk(*parts)) if parts[1] else None)
    return dump.dump(txn, name)


@dataclass(slots=True)
class _Options:
    replace: bool = False
    absolute: bool = False
    idle_s: int = -1
    """-1: not given."""
    has_freq: bool = False


@COMMANDS.command(
    "restore",
    "key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]",
    *(GROW | flags("no_touch"), FIRST),
    since="2.6.0",
    categories="keyspace dangerous",
    uses="OW update",
)
def restore(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Create a key from a payload of DUMP, of kvstream or of Redis.

    REPLACE: Overwrite the key if it exists.
    ABSTTL: The time to live is a Unix time in milliseconds.
    IDLETIME: Seconds since the key was last used.
    FREQ: Checked and ignored: accesses are not counted.

    RESTORE accepts streams and strings of Redis 5.0 to 8.10 and of Valkey. It refuses other types,
    and a time to live that ends beyond 63 bits: Redis returns OK and the key is gone. Wrong
    counters in a payload, such as a stream's length, are corrected. The checksum is always
    verified; newer Redis accepts a checksum of 0.
    """
    options = _Options()
    Args(argv, 4).take_options(_OPTIONS, options)
    name = session.prefix + argv[1]
    refuse_existing(txn, name, options.replace)
    ttl = at_least(0, argv[2], "Invalid TTL value, must be >= 0")
    expire_at = ttl + txn.now_ms if ttl and not options.absolute else ttl
    if expire_at > I64_MAX:
        raise InvalidArgument("invalid expire time in 'restore' command")

    def record_use(txn: Txn, session: Session) -> Reply:
        txn.catalog.index.usage.record_use([name], txn.now_ms, max(options.idle_s, 0))
        return OK

    arguments = name, argv[3], options.replace, expire_at
    if session.steps and len(argv[3]) > txn.thresholds.long_payload:
        return run_before(dump.plan_restore(*arguments), record_use)
    dump.restore(txn, *arguments)
    return record_use(txn, session)


def _idletime(args: Args, options: _Options) -> None:
    if options.has_freq:
        raise syntax_error()
    options.idle_s = args.at_least(0, "Invalid IDLETIME value, must be >= 0")


def _freq(args: Args, options: _Options) -> None:
    if options.idle_s >= 0:
        raise syntax_error()
    if not 0 <= args.integer() <= _FREQ_MAX:
        raise InvalidArgument("Invalid FREQ value, must be >= 0 and <= 255")
    options.has_freq = True


_OPTIONS: dict[bytes, Option[_Options]] = {
    b"REPLACE": switch("replace"),
    b"ABSTTL": switch("absolute"),
    b"IDLETIME": (1, _idletime),
    b"FREQ": (1, _freq),
}


EMBEDDED_BYTES_MAX = 41
"""Redis stores a key and its string in one allocation, ``embstr``, up to so many bytes of both."""


@COMMANDS.command(
    *("object|encoding", "key", _INSPECT, SECOND),
    since="2.2.3",
    uses="RO",
    tips="nondeterministic_output",
)
def encoding(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return how Redis would encode a value: `stream`, or `int`, `embstr` or `raw` for a string.

    An integer is `int` also if INCRBYFLOAT made it.
    """
    name = encoding_of(txn, txn.key(session.prefix + argv[2]))
    return None if name is None else name.encode()


def encoding_of(txn: Txn, key: Key | None) -> str | None:
    """Return how Redis would encode the value of a key."""
    if not isinstance(key, StringMeta):
        return None if key is None else "stream"
    if key.in_parts or key.length > EMBEDDED_BYTES_MAX:
        return "raw"
    if canonical_integer(key.read(txn.batch)) is not None:
        return "int"
    return "raw" if len(key_of(key.name)) + key.length > EMBEDDED_BYTES_MAX else "embstr"


@COMMANDS.command(
    *("object|freq", "key", _INSPECT, SECOND),
    since="4.0.0",
    uses="RO",
    tips="nondeterministic_output",
)
def freq(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return an error, as Redis without an LFU policy; null if the key does not exist."""
    if not keyspace.exists(txn, session.prefix + argv[2]):
        return None
    raise InvalidArgument(
        "An LFU maxmemory policy is not selected, access frequency not tracked. Please note that "
        "when switching between policies at runtime LRU and LFU data will take some time to adjust."
    )


@COMMANDS.command(
    *("object|idletime", "key", _INSPECT, SECOND),
    since="2.2.3",
    uses="RO",
    tips="nondeterministic_output",
)
def idletime(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the seconds since a key was last used; null if it does not exist.

    The time counts from the start of the server and is kept for the 20,000 keys that were used
    last; for other keys the result is a lower bound.
    """
    return keyspace.idle_s(txn, session.prefix + argv[2])


@COMMANDS.command(
    *("object|refcount", "key", _INSPECT, SECOND),
    since="2.2.3",
    uses="RO",
    tips="nondeterministic_output",
)
def refcount(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return 1: values are never shared, small numbers included; null if the key does not exist."""
    return 1 if keyspace.exists(txn, session.prefix + argv[2]) else None


@COMMANDS.command(
    *("memory|usage", "key [SAMPLES count]", _INSPECT, SECOND),
    since="4.0.0",
    group="server",
    uses="RO",
    counted_keys=0,
)
def memory_usage(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the bytes of a key's rows, estimated from samples; null if it does not exist.

    SAMPLES: Rows of each kind to look at; 5 by default, 0 for all.

    The bytes are those on disk before compression; a key takes next to no memory.
    """
    samples: int | None = info.SAMPLES
    args = Args(argv, 3)
    while args:
        if args.option() != b"SAMPLES" or not args:
            raise syntax_error()
        samples = at_least(0, args.next(), "syntax error") or None
    return info.usage(txn, session.prefix + argv[2], samples)
