"""Commands about a key as it is stored: OBJECT and MEMORY.

DUMP and RESTORE: whole keys as the payloads that Redis makes and takes.
"""

from dataclasses import dataclass

from kvstream.commands.args import (
    I64_MAX,
    Args,
    Argv,
    Option,
    at_least,
    syntax_error,
)
from kvstream.commands.command import LATER, Answer, Session
from kvstream.commands.replies import OK, Bulk, Paged, Reply, Simple
from kvstream.commands.reply_pages import behind_steps, in_steps
from kvstream.errors import InvalidArgument
from kvstream.layout.keys import key_of
from kvstream.meta.strings import Key, StringMeta
from kvstream.meta.txn import Txn
from kvstream.operations import dump as dumping
from kvstream.operations import dump as payloads
from kvstream.operations import info, keyspace, strings
from kvstream.operations.load import refuse_existing

_FREQ_MAX = 255


def dump(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Answer a key as a payload that RESTORE takes, here and in Redis; a null for a missing one."""
    name = session.prefix + argv[1]
    if not (session.steps and dumping.is_long(txn, name)):
        return payloads.dump(txn, name)
    if txn.dirty:
        return LATER
    made = dumping.LongDump(txn, name)
    return in_steps(made.step, lambda told: Paged(Bulk(*told)) if told[1] else None)


@dataclass(slots=True)
class _Options:
    replace: bool = False
    absolute: bool = False
    idle_s: int = -1
    """Negative: none is given."""
    has_freq: bool = False


def restore(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Make a key of a payload that DUMP answered, here or in Redis."""
    options = _options(Args(argv, 4))
    name = session.prefix + argv[1]
    refuse_existing(txn, name, options.replace)
    ttl = at_least(0, argv[2], "Invalid TTL value, must be >= 0")
    expire_at = ttl + txn.now_ms if ttl and not options.absolute else ttl
    if expire_at > I64_MAX:
        raise InvalidArgument("invalid expire time in 'restore' command")

    def done(txn: Txn, session: Session) -> Reply:
        txn.catalog.index.usage.note([name], txn.now_ms, max(options.idle_s, 0))
        return OK

    arguments = name, argv[3], options.replace, expire_at
    if session.steps and len(argv[3]) > dumping.LONG_BYTES:
        work = dumping.LongRestore(*arguments)
        return behind_steps(work.step, done, work.undo)
    payloads.restore(txn, *arguments)
    return done(txn, session)


def _options(args: Args) -> _Options:
    options = _Options()
    while args:
        if not args.take_option(_OPTIONS, options):
            raise syntax_error()
    return options


def _replace(args: Args, options: _Options) -> None:
    options.replace = True


def _absttl(args: Args, options: _Options) -> None:
    options.absolute = True


def _idletime(args: Args, options: _Options) -> None:
    """Take for how many seconds nobody has used the key."""
    if options.has_freq:
        raise syntax_error()
    options.idle_s = args.at_least(0, "Invalid IDLETIME value, must be >= 0")


def _freq(args: Args, options: _Options) -> None:
    """Take how often it was used, which is not noted here."""
    if options.idle_s >= 0:
        raise syntax_error()
    if not 0 <= args.integer() <= _FREQ_MAX:
        raise InvalidArgument("Invalid FREQ value, must be >= 0 and <= 255")
    options.has_freq = True


_OPTIONS: dict[bytes, Option[_Options]] = {
    b"REPLACE": (0, _replace),
    b"ABSTTL": (0, _absttl),
    b"IDLETIME": (1, _idletime),
    b"FREQ": (1, _freq),
}


EMBEDDED_BYTES_MAX = 41
"""Redis keeps a string in one piece with its key and headers, ``embstr``, where it has, with the
key, no more bytes."""


def encoding(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer how Redis would hold a value: `stream`, or `int`, `embstr` or `raw` of a string."""
    found = encoding_of(txn, txn.key(session.prefix + argv[2]))
    return None if found is None else found.encode()


def encoding_of(txn: Txn, key: Key | None) -> str | None:
    """Return how Redis would hold what a key stands for."""
    if not isinstance(key, StringMeta):
        return None if key is None else "stream"
    if key.in_parts or key.length > EMBEDDED_BYTES_MAX:
        return "raw"
    if strings.is_integer(key.read(txn.batch)):
        return "int"
    return "raw" if len(key_of(key.name)) + key.length > EMBEDDED_BYTES_MAX else "embstr"


def freq(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer an error, as Redis does while it does not count accesses; a null for a missing key."""
    if not keyspace.exists(txn, session.prefix + argv[2]):
        return None
    raise InvalidArgument(
        "An LFU maxmemory policy is not selected, access frequency not tracked. Please note that "
        "when switching between policies at runtime LRU and LFU data will take some time to adjust."
    )


def idletime(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer for how many seconds nobody has used a key; a null for a missing one."""
    return keyspace.idle_s(txn, session.prefix + argv[2])


def refcount(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer 1, for no value is shared; a null for a missing key."""
    return 1 if keyspace.exists(txn, session.prefix + argv[2]) else None


def memory_usage(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer the bytes of a key's rows, estimated from samples; a null for a missing key."""
    samples: int | None = info.SAMPLES
    args = Args(argv, 3)
    while args:
        if args.option() != b"SAMPLES" or not args:
            raise syntax_error()
        samples = at_least(0, args.next(), "syntax error") or None
    return info.usage(txn, session.prefix + argv[2], samples)


_OBJECT_HELP = [
    Simple(line)
    for line in (
        "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "ENCODING <key>",
        "    Show how Redis would hold the value of a key.",
        "FREQ <key>",
        "    Not available: accesses are not counted.",
        "IDLETIME <key>",
        "    Show for how many seconds nobody has used a key, as far as is known.",
        "REFCOUNT <key>",
        "    Show 1: no value is shared.",
        "HELP",
        "    Show these lines.",
    )
]
_MEMORY_HELP = [
    Simple(line)
    for line in (
        "MEMORY <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "USAGE <key> [SAMPLES <count>]",
        "    Show the bytes of a key's rows, estimated from so many of each kind; 0: from all.",
        "HELP",
        "    Show these lines.",
    )
]


def object_help(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Show the subcommands."""
    return _OBJECT_HELP


def memory_help(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Show the subcommands."""
    return _MEMORY_HELP
