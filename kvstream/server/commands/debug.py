"""DEBUG: what test suites ask of a server, and what helps to see that it is well.

Only what does no harm to what is stored is here; crashes on demand are left out.
"""

import time
from collections.abc import Callable, Mapping
from itertools import islice

from kvstream.commands import dump
from kvstream.commands.args import Argv, at_least, integer, syntax_error, text
from kvstream.commands.command import Answer
from kvstream.commands.replies import (
    OK,
    Attributed,
    BigNumber,
    Boolean,
    Double,
    ErrorReply,
    Map,
    Push,
    Reply,
    SetReply,
    Simple,
    Verbatim,
)
from kvstream.commands.reply_pages import behind_steps
from kvstream.errors import NoSuchKey, RequestError
from kvstream.meta.txn import Txn
from kvstream.operations import info, keyspace, strings
from kvstream.server.commands.admin import help_of, not_so, server_of
from kvstream.server.runtime.client import Client
from kvstream.types.glob import matcher


def debug(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Show or do what tests of a server need: see DEBUG HELP."""
    allowed = server_of(client).options.enable_debug_command
    if allowed == "no" or (allowed == "local" and not client.is_local):
        raise RequestError(
            'DEBUG command not allowed. If the enable_debug_command option is set to "local", '
            "you can run it from a local connection, otherwise you need to set this option in the "
            "configuration of the server, and then restart it."
        )
    least, most, run = _SUBCOMMANDS.get(argv[1].upper(), _NONE)
    if run is None or not least <= len(argv) <= most:
        raise not_so("DEBUG", argv)
    return run(txn, client, argv)


# --- the store ----------------------------------------------------------------------------------

_RELOAD_WORDS = {b"MERGE", b"NOFLUSH", b"NOSAVE"}


def _reload(txn: Txn, client: Client, argv: Argv) -> Answer:
    server = server_of(client)
    if not {word.upper() for word in argv[2:]} <= _RELOAD_WORDS:
        raise RequestError("DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options.")
    return server.saving.start_reload(False, server.statistics.changes).wait()


def _loadaof(txn: Txn, client: Client, argv: Argv) -> Answer:
    return server_of(client).saving.start_reload(True, 0).wait()


def _digest(txn: Txn, client: Client, argv: Argv) -> Reply:
    return Simple(strings.of_databases(txn, client.databases).hex())


def _digest_value(txn: Txn, client: Client, argv: Argv) -> Reply:
    return [Simple(strings.of_key(txn, client.prefix + key).hex()) for key in argv[2:]]


_LRU_CLOCK_MAX = (1 << 24) - 1
"""Redis has 24 bits for the second in which a key was used."""


def _object(txn: Txn, client: Client, argv: Argv) -> Reply:
    name = client.prefix + argv[2]
    size, encoding = info.usage(txn, name), dump.encoding_of(txn, txn.key(name))
    idle_s = keyspace.idle_s(txn, name)
    if encoding is None or idle_s is None:
        raise NoSuchKey
    used = txn.now_ms // 1000 - idle_s & _LRU_CLOCK_MAX
    return Simple(
        f"Value at:0x{0:x} refcount:1 encoding:{encoding} serializedlength:{size} lru:{used} "
        f"lru_seconds_idle:{idle_s}"
    )


POPULATED_TOGETHER = 500
"""Keys that POPULATE makes between what others ask."""


def _populate(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Make strings under numbered keys, but for those that are there."""
    words = argv[2], (argv[4] if len(argv) > 4 else b"0")
    count, size = (at_least(0, raw, "value is out of range, must be positive") for raw in words)
    txn.keeps_expired = txn.read_only  # though it is none of those that a pause holds
    head, prefix, numbers = argv[3] if len(argv) > 3 else b"key", client.prefix, iter(range(count))

    def step(txn: Txn) -> bool:
        some = list(islice(numbers, POPULATED_TOGETHER))
        for number in some:
            name, value = prefix + b"%b:%d" % (head, number), b"value:%d" % number
            if not keyspace.exists(txn, name):
                strings.put(txn, name, value[:size].ljust(size, b"\0") if size else value)
        return not some

    if client.steps:
        return behind_steps(step, lambda txn, session: OK)
    while not step(txn):
        pass
    return OK


def _set_active_expire(txn: Txn, client: Client, argv: Argv) -> Reply:
    server_of(client).engine.expiry.active = bool(_number(argv[2]))
    return OK


# --- the server ---------------------------------------------------------------------------------


def _sleep(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Hold the whole server."""
    try:
        seconds = max(float(argv[2]), 0.0)
    except ValueError:
        seconds = 0.0  # as C's strtod has it
    time.sleep(seconds)
    return OK


def _nothing(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Taken, for it concerns what is not here."""
    return OK


def _error(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer an error of the caller's words, of which the first one is the code."""
    code, _, message = text(argv[2]).partition(" ")
    return ErrorReply(code, message)


def _stringmatch_len(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer whether a pattern matches so many bytes ``a``: a test of how long that takes."""
    return int(matcher(argv[2])(b"a" * _number(argv[3])))


def _number(raw: bytes) -> int:
    try:
        return integer(raw)
    except RequestError:
        return 0  # as C's atoi has it


_THREE: list[Reply] = [0, 1, 2]
_SHAPES: Mapping[bytes, Reply] = {
    b"string": b"Hello World",
    b"integer": 12345,
    b"double": Double(3.141),
    b"null": None,
    b"array": _THREE,
    b"set": SetReply(_THREE),
    b"map": Map([(number, Boolean(number == 1)) for number in range(3)]),
    b"push": Push([b"server-cpu-usage", 42]),
    b"verbatim": Verbatim("This is a verbatim\nstring"),
    b"attrib": Attributed(
        Map([(b"key-popularity", [b"key:123", 90])]), b"Some real reply following the attribute"
    ),
    b"bignum": BigNumber("1234567999999999999999999999999999999"),
    b"true": Boolean(True),
    b"false": Boolean(False),
}
"""What tests of clients expect of each."""


def _protocol(txn: Txn, client: Client, argv: Argv) -> Reply:
    name = argv[2].lower()
    if name not in _SHAPES:
        raise syntax_error()
    return _SHAPES[name]


_help = help_of(
    "DEBUG",
    ("DIGEST", "Show a checksum of all keys."),
    ("DIGEST-VALUE <key> [<key> ...]", "Show a checksum of what each key holds."),
    ("ERROR <text>", "Answer an error."),
    ("LOADAOF", "Close the store and open it anew, recovering it from its log."),
    ("LOG <text>", "Taken and ignored: there is no log file."),
    ("OBJECT <key>", "Show how a value is held."),
    ("POPULATE <count> [<prefix>] [<size>]", "Make so many strings PREFIX:NUMBER."),
    ("PROTOCOL <type>", "Answer a string, integer, double, null, array, set, map, push, ..."),
    ("RELOAD [MERGE|NOFLUSH|NOSAVE]", "Close the store and open it anew."),
    ("SET-ACTIVE-EXPIRE <0|1>", "Delete expired keys in the background, or not."),
    ("SLEEP <seconds>", "Hold the whole server."),
    ("STRINGMATCH-LEN <pattern> <length>", "Match a pattern with so many letters."),
)

_ANY = 1 << 31
_NONE = (0, 0, None)
_SUBCOMMANDS: dict[bytes, tuple[int, int, Callable[[Txn, Client, Argv], Answer] | None]] = {
    b"CHANGE-REPL-ID": (2, 2, _nothing),
    b"DICT-RESIZING": (3, 3, _nothing),
    b"DIGEST": (2, 2, _digest),
    b"DIGEST-VALUE": (2, _ANY, _digest_value),
    b"ERROR": (3, 3, _error),
    b"HELP": (2, 2, _help),
    b"LOADAOF": (2, 2, _loadaof),
    b"LOG": (3, 3, _nothing),
    b"OBJECT": (3, 4, _object),
    b"PAUSE-CRON": (3, 3, _nothing),
    b"POPULATE": (3, 5, _populate),
    b"PROTOCOL": (3, 3, _protocol),
    b"QUICKLIST-PACKED-THRESHOLD": (3, 3, _nothing),
    b"RELOAD": (2, 5, _reload),
    b"REPLY-COPY-AVOIDANCE": (3, 3, _nothing),
    b"REPLYBUFFER": (3, 4, _nothing),
    b"SET-ACTIVE-EXPIRE": (3, 3, _set_active_expire),
    b"SLEEP": (3, 3, _sleep),
    b"STRINGMATCH-LEN": (4, 4, _stringmatch_len),
}
"""By name: least and most words of a request, and what answers it."""
