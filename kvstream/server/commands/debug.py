"""DEBUG: the subcommands that test suites of Redis use.

Subcommands that crash the server or damage its data are left out.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from kvstream.commands import dump
from kvstream.commands.args import Argv, at_least, bad_subcommand, integer, syntax_error, text
from kvstream.commands.command import Answer, Family, flags
from kvstream.commands.incremental import run_plan
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
from kvstream.errors import NoSuchKey, RequestError
from kvstream.meta.txn import Txn
from kvstream.operations import info, keyspace, strings
from kvstream.operations.plans import ALWAYS_HOLDS, Planning
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.executor import server_of
from kvstream.types.glob import matcher

COMMANDS = Family("server")


@COMMANDS.command(
    *("debug", "subcommand [arg ...]", flags("admin noscript loading stale")),
    since="1.0.0",
)
def debug(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Run a subcommand for tests: see DEBUG HELP.

    DEBUG is allowed to clients on the same machine unless `enable_debug_command` says otherwise;
    Redis allows it to nobody. RELOAD and LOADAOF close the store and open it again while clients
    wait: RELOAD after all rows are in tables, LOADAOF from the write-ahead log. Options of RELOAD
    are accepted and ignored, since nothing is unsaved. DIGEST is a checksum of kvstream's own that
    covers groups too. Subcommands that crash the server are left out.
    """
    allowed = server_of(client).options.enable_debug_command
    if allowed == "no" or (allowed == "local" and not client.is_local):
        raise RequestError(
            'DEBUG command not allowed. If the enable_debug_command option is set to "local", '
            "you can run it from a local connection, otherwise you need to set this option in the "
            "configuration of the server, and then restart it."
        )
    subcommand = _SUBCOMMANDS.get(argv[1].upper())
    if subcommand is None or not subcommand.least <= len(argv) <= subcommand.most:
        raise bad_subcommand(argv)
    return subcommand.run(txn, client, argv)


# --- the store ----------------------------------------------------------------------------------

_RELOAD_WORDS = {b"MERGE", b"NOFLUSH", b"NOSAVE"}


def _reload(txn: Txn, client: Client, argv: Argv) -> Answer:
    server = server_of(client)
    if not {word.upper() for word in argv[2:]} <= _RELOAD_WORDS:
        raise RequestError("DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options.")
    return server.checkpoints.start_reload(False, server.statistics.changes).wait()


def _loadaof(txn: Txn, client: Client, argv: Argv) -> Answer:
    return server_of(client).checkpoints.start_reload(True, 0).wait()


def _digest(txn: Txn, client: Client, argv: Argv) -> Reply:
    return Simple(strings.of_databases(txn, client.databases).hex())


def _digest_value(txn: Txn, client: Client, argv: Argv) -> Reply:
    return [Simple(strings.of_key(txn, client.prefix + key).hex()) for key in argv[2:]]


_LRU_CLOCK_MAX = (1 << 24) - 1
"""Redis stores the second of the last use in 24 bits."""


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
"""Keys that one step of POPULATE makes."""


def _populate(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Create strings under numbered keys that do not exist."""
    words = argv[2], (argv[4] if len(argv) > 4 else b"0")
    count, size = (at_least(0, raw, "value is out of range, must be positive") for raw in words)
    txn.keeps_expired = txn.read_only  # although a pause does not hold it
    head, prefix = argv[3] if len(argv) > 3 else b"key", client.prefix

    def plan(txn: Txn) -> Planning[Reply]:
        for number in range(count):
            if number and not number % POPULATED_TOGETHER:
                txn = yield ALWAYS_HOLDS
            name, value = prefix + b"%b:%d" % (head, number), b"value:%d" % number
            if not keyspace.exists(txn, name):
                strings.put(txn, name, value[:size].ljust(size, b"\0") if size else value)
        return OK

    return run_plan(txn, client, plan, lambda done: done)


def _set_active_expire(txn: Txn, client: Client, argv: Argv) -> Reply:
    server_of(client).engine.expiry.active = bool(_number(argv[2]))
    return OK


# --- the server ---------------------------------------------------------------------------------


def _sleep(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Stop the whole server."""
    with suppress(ValueError, OverflowError):  # no time, as C's strtod
        time.sleep(max(float(argv[2]), 0.0))
    return OK


def _nothing(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Accept a subcommand about something that kvstream does not have."""
    return OK


def _error(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return an error of the given words; the first one is its code."""
    code, _, message = text(argv[2]).partition(" ")
    return ErrorReply(code, message)


def _stringmatch_len(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Match a pattern with so many bytes ``a``, to test how long it takes."""
    return int(matcher(argv[2])(b"a" * _number(argv[3])))


def _number(raw: bytes) -> int:
    try:
        return integer(raw)
    except RequestError:
        return 0  # as C's atoi


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
"""Redis's examples of each type of reply."""


def _protocol(txn: Txn, client: Client, argv: Argv) -> Reply:
    name = argv[2].lower()
    if name not in _SHAPES:
        raise syntax_error()
    return _SHAPES[name]


def _help(txn: Txn, client: Client, argv: Argv) -> Reply:
    shown = [
        line
        for name, each in _SUBCOMMANDS.items()
        for line in (f"{text(name)} {each.usage}".rstrip(), f"    {each.meaning}")
        if each.meaning
    ]
    return [
        *map(Simple, ["DEBUG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:", *shown])
    ]


class _Subcommand(NamedTuple):
    least: int
    """Words of a request, at least and at most."""
    most: int
    run: Callable[[Txn, Client, Argv], Answer]
    usage: str = ""
    meaning: str = ""
    """What HELP shows; a subcommand without it is accepted and ignored."""


_ANY = 1 << 31
_PROTOCOL_USAGE = "string|integer|double|null|array|set|map|push|verbatim|attrib|bignum|true|false"
_SUBCOMMANDS: dict[bytes, _Subcommand] = {
    b"CHANGE-REPL-ID": _Subcommand(2, 2, _nothing),
    b"DICT-RESIZING": _Subcommand(3, 3, _nothing),
    b"DIGEST": _Subcommand(2, 2, _digest, "", "Return a checksum of all keys."),
    b"DIGEST-VALUE": _Subcommand(
        *(2, _ANY, _digest_value, "key [key ...]"), "Return a checksum of the value of each key."
    ),
    b"ERROR": _Subcommand(3, 3, _error, "text", "Return an error."),
    b"HELP": _Subcommand(2, 2, _help, "", "Show the subcommands."),
    b"LOADAOF": _Subcommand(
        *(2, 2, _loadaof, ""), "Close the store and recover it from its write-ahead log."
    ),
    b"LOG": _Subcommand(3, 3, _nothing),
    b"OBJECT": _Subcommand(3, 4, _object, "key", "Show how the value of a key is stored."),
    b"PAUSE-CRON": _Subcommand(3, 3, _nothing),
    b"POPULATE": _Subcommand(
        *(3, 5, _populate, "count [prefix] [size]"), "Create so many strings PREFIX:NUMBER."
    ),
    b"PROTOCOL": _Subcommand(3, 3, _protocol, _PROTOCOL_USAGE, "Return a reply of this type."),
    b"QUICKLIST-PACKED-THRESHOLD": _Subcommand(3, 3, _nothing),
    b"RELOAD": _Subcommand(
        *(2, 5, _reload, "[MERGE] [NOFLUSH] [NOSAVE]"), "Close the store and open it again."
    ),
    b"REPLY-COPY-AVOIDANCE": _Subcommand(3, 3, _nothing),
    b"REPLYBUFFER": _Subcommand(3, 4, _nothing),
    b"SET-ACTIVE-EXPIRE": _Subcommand(
        *(3, 3, _set_active_expire, "0|1"), "Delete expired keys in the background, or do not."
    ),
    b"SLEEP": _Subcommand(3, 3, _sleep, "seconds", "Stop the whole server for a time."),
    b"STRINGMATCH-LEN": _Subcommand(
        *(4, 4, _stringmatch_len, "pattern length"), "Match a pattern with so many letters."
    ),
}
