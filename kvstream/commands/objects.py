"""Commands about a key as it is stored: OBJECT and MEMORY."""

from kvstream.commands.args import Args, Argv, at_least, syntax_error
from kvstream.commands.command import Session
from kvstream.commands.replies import Reply, Simple
from kvstream.errors import InvalidArgument
from kvstream.layout.keys import key_of
from kvstream.meta.strings import Key, StringMeta
from kvstream.meta.txn import Txn
from kvstream.operations import keyspace, sizes, strings

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
    samples: int | None = sizes.SAMPLES
    args = Args(argv, 3)
    while args:
        if args.option() != b"SAMPLES" or not args:
            raise syntax_error()
        samples = at_least(0, args.next(), "syntax error") or None
    return sizes.usage(txn, session.prefix + argv[2], samples)


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
