"""What COMMAND and ACL tell of commands beyond the rows of the table, in Redis's words.

Flags that only clients want to know, ACL categories, and what is done to each key. Nothing here
knows a client or the store.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kvstream.commands.args import Argv, text
from kvstream.commands.command import Command, Container, CountedPairs, Flag, StreamsKeys

CATEGORIES = (
    *("keyspace", "read", "write", "set", "sortedset", "list", "hash", "string", "bitmap"),
    *("hyperloglog", "geo", "stream", "pubsub", "admin", "fast", "slow", "blocking"),
    *("dangerous", "connection", "transaction", "scripting"),
)
"""Every category of Redis, in its order; those of types that are not here have no commands."""

_OPERATION = "noscript loading stale"
_HELP = "loading stale"
_OWN_FLAGS = (Flag.LOCAL, Flag.IMMEDIATE)
_FLAG_ORDER = (
    *("write", "readonly", "denyoom", "admin", "noscript", "blocking", "loading", "stale"),
    *("skip_slowlog", "fast", "no_auth", "movablekeys", "no_async_loading", "no_multi"),
    "allow_busy",
)

MORE_FLAGS = {
    "bgrewriteaof": "noscript no_async_loading",
    "bgsave": "noscript no_async_loading",
    "command": _HELP,
    "command|count": _HELP,
    "command|docs": _HELP,
    "command|getkeys": _HELP,
    "command|getkeysandflags": _HELP,
    "command|info": _HELP,
    "command|list": _HELP,
    "discard": "noscript loading stale allow_busy",
    "echo": _HELP,
    "exec": "noscript loading stale skip_slowlog",
    "function|flush": "noscript",
    "function|kill": "noscript allow_busy",
    "function|list": "noscript",
    "function|stats": "noscript allow_busy",
    "hello": "noscript loading stale allow_busy",
    "info": _HELP,
    "lastsave": _HELP,
    "multi": "noscript loading stale allow_busy",
    "quit": "noscript loading stale allow_busy",
    "reset": "noscript loading stale allow_busy",
    "save": "noscript no_async_loading",
    "script|exists": "noscript",
    "script|flush": "noscript",
    "script|kill": "noscript allow_busy",
    "select": _HELP,
    "shutdown": "noscript loading stale allow_busy",
    "slowlog|get": _HELP,
    "slowlog|len": _HELP,
    "slowlog|reset": _HELP,
    "time": _HELP,
    "unwatch": "noscript loading stale allow_busy",
    "auth": "noscript loading stale allow_busy",
    "watch": "noscript loading stale allow_busy",
    **dict.fromkeys(
        (
            *("config|get", "config|resetstat", "config|rewrite", "config|set"),
            *("debug", "monitor", "role"),
        ),
        _OPERATION,
    ),
}
"""Flags that the table has no use for. What of CLIENT, ACL and LATENCY is not here has those of
most commands of operation, every HELP those of looking something up."""
_OPERATED = ("acl", "client", "latency")

_DANGEROUS = "flushall flushdb info keys restore swapdb"
_ADMINISTRATIVE = "lastsave role"
"""Commands of the categories admin and dangerous that do not have the flag admin."""
_SERVER_KEYSPACE = "dbsize flushall flushdb swapdb"
_CONNECTION = "auth client command echo hello ping quit reset select wait waitaof"
_TRANSACTION = "discard exec multi unwatch watch"
_SCRIPTING = "function script"
_STRING = (
    "append decr decrby delex digest get getdel getex getrange getset incr incrby incrbyfloat "
    "increx mget mset msetex msetnx psetex set setex setnx setrange strlen substr"
)
_GENERIC = (
    "copy del dump exists expire expireat expiretime keys move object persist pexpire pexpireat "
    "pexpiretime pttl randomkey rename renamenx restore scan touch ttl type unlink"
)
_SERVER = (
    "acl bgrewriteaof bgsave config dbsize debug flushall flushdb info kvstream.load lastsave "
    "latency lolwut memory monitor role save shutdown slowlog swapdb time"
)


def _groups() -> dict[str, str]:
    rows = (
        ("connection", _CONNECTION),
        ("transactions", _TRANSACTION),
        ("scripting", _SCRIPTING),
        ("string", _STRING),
        ("generic", _GENERIC + " wait waitaof"),
        ("server", _SERVER + " command"),
    )
    return {name: group for group, names in rows for name in names.split()}


GROUPS = _groups()
"""The group of each command in Redis's documentation; all others are of streams."""

_CATEGORIES_OF = {
    "connection": _CONNECTION,
    "dangerous": f"{_DANGEROUS} {_ADMINISTRATIVE}",
    "admin": _ADMINISTRATIVE,
    "keyspace": f"{_GENERIC} {_SERVER_KEYSPACE}",
    "scripting": _SCRIPTING,
    "string": _STRING,
    "transaction": _TRANSACTION,
}
_MEMBERS = {category: frozenset(names.split()) for category, names in _CATEGORIES_OF.items()}

KEY_USE = {
    "append": ("RW insert",),
    "copy": ("RO access", "OW update"),
    "decr": ("RW access update",),
    "decrby": ("RW access update",),
    "del": ("RM delete",),
    "delex": ("RW delete variable_flags",),
    "exists": ("RO",),
    "getdel": ("RW access delete",),
    "getex": ("RW access update",),
    "getset": ("RW access update",),
    "incr": ("RW access update",),
    "incrby": ("RW access update",),
    "incrbyfloat": ("RW access update",),
    "increx": ("RW access update",),
    "kvstream.load|ticket": ("RW insert",),
    "memory|usage": ("RO",),
    "move": ("RW access update",),
    "mset": ("OW update",),
    "msetex": ("OW update",),
    "msetnx": ("OW insert",),
    "object|encoding": ("RO",),
    "object|freq": ("RO",),
    "object|idletime": ("RO",),
    "object|refcount": ("RO",),
    "psetex": ("OW update",),
    "rename": ("RW access delete", "OW update"),
    "renamenx": ("RW access delete", "OW insert"),
    "restore": ("OW update",),
    "set": ("RW access update variable_flags",),
    "setex": ("OW update",),
    "setnx": ("OW insert",),
    "setrange": ("RW update",),
    "strlen": ("RO",),
    "touch": ("RO",),
    "type": ("RO",),
    "unlink": ("RM delete",),
    "watch": ("RO",),
    "xackdel": ("RW update delete",),
    "xautoclaim": ("RW delete",),
    "xdel": ("RW delete",),
    "xdelex": ("RW delete",),
    "xgroup|create": ("RW insert",),
    "xgroup|createconsumer": ("RW insert",),
    "xgroup|delconsumer": ("RW delete",),
    "xgroup|destroy": ("RW delete",),
    "xlen": ("RO",),
    "xreadgroup": ("RO access",),
    "xtrim": ("RW delete",),
}
"""What a command does to its keys, or to each of them, where that is not plain reading or
changing: RO, RW, OW (overwrite), RM (remove), and to what of them."""

_WRITES = {"update", "insert", "delete"}


@dataclass(frozen=True, slots=True)
class KeyUse:
    """A key that a request names, and what it does to the key's value."""

    key: bytes
    flags: tuple[str, ...]

    @property
    def reads(self) -> bool:
        return "access" in self.flags

    @property
    def writes(self) -> bool:
        return not _WRITES.isdisjoint(self.flags)


def _uses(command: Command) -> tuple[str, ...]:
    plain = "RW update" if Flag.WRITE in command.flags else "RO access"
    return KEY_USE.get(command.name, (plain,))


def key_uses(command: Command, argv: Argv) -> list[KeyUse]:
    """Return the keys that a request names, with what it does to them."""
    given = _uses(command)
    if command.name == "set":
        given = ("RW access update",) if b"GET" in _options(argv) else ("OW update",)
    if command.name == "delex":
        given = ("RM delete",) if len(argv) == 2 else ("RW delete",)
    uses = [tuple(use.split()) for use in given]
    keys = command.keys_of(argv)
    return [KeyUse(key, uses[min(at, len(uses) - 1)]) for at, key in enumerate(keys)]


def _options(argv: Argv) -> set[bytes]:
    return {word.upper() for word in argv[3:]}


def flags_of(command: Command) -> list[str]:
    """Return the flags that COMMAND tells, in Redis's order."""
    container, _, word = command.name.partition("|")
    plain = _HELP if word == "help" else _OPERATION if container in _OPERATED and word else ""
    flags = {str(flag) for flag in command.flags if flag not in _OWN_FLAGS}
    if word:
        flags.discard(Flag.FAST)  # no subcommand of Redis is called fast
    flags |= set(MORE_FLAGS.get(command.name, plain).split())
    return [flag for flag in _FLAG_ORDER if flag in flags]


def categories_of(command: Command) -> list[str]:
    """Return the ACL categories of a command, in Redis's order."""
    container = command.name.partition("|")[0]
    flags = set(flags_of(command))
    found = {name for name, members in _MEMBERS.items() if container in members}
    if container not in GROUPS:
        found.add("stream")
    found |= {name for flag, name in _BY_FLAG if flag in flags}
    if "admin" in flags:
        found.add("dangerous")
    found.add("fast" if "fast" in flags else "slow")
    return [name for name in CATEGORIES if name in found]


_BY_FLAG = (
    ("write", "write"),
    ("readonly", "read"),
    ("admin", "admin"),
    ("blocking", "blocking"),
)


def key_specs(command: Command) -> list[dict[str, object]]:
    """Return where the keys of a command are, one part for each kind of use."""
    keys = command.keys
    if keys is None:
        return []
    uses = _uses(command)
    specs: list[dict[str, object]] = []
    for at, use in enumerate(uses):
        begin: dict[str, object]
        kind = "range"
        if isinstance(keys, CountedPairs):
            kind, begin = "keynum", {"index": 1}
            find = {"keynumidx": 0, "firstkey": 1, "keystep": 2}
        elif isinstance(keys, StreamsKeys):
            begin = {"keyword": "STREAMS", "startfrom": 4 if command.name == "xreadgroup" else 1}
            find = {"lastkey": -1, "keystep": 1, "limit": 2}
        else:
            begin = {"index": keys.first + at}
            last = keys.last if keys.last < 0 or len(uses) > 1 else keys.last - keys.first
            find = {"lastkey": 0 if len(uses) > 1 else last, "keystep": keys.step, "limit": 0}
        specs.append(
            {
                "flags": use.split(),
                "begin_search": {"type": next(iter(begin)), "spec": begin},
                "find_keys": {"type": kind, "spec": find},
            }
        )
    return specs


def every(commands: Mapping[bytes, Command | Container]) -> Iterator[Command]:
    """Yield every command of a table, subcommands in the place of their container."""
    for row in commands.values():
        if isinstance(row, Container):
            yield from (row.alone,) if row.alone is not None else ()
            yield from row.subcommands.values()
        else:
            yield row


def named(commands: Iterable[Command], category: str) -> list[Command]:
    """Return the commands of an ACL category."""
    return [command for command in commands if category in categories_of(command)]


def meant_by(word: bytes, commands: Iterable[Command]) -> set[str]:
    """Return the names that a command, a container or a category of a rule stands for."""
    name = text(word)
    if name == "@all":
        return {command.name for command in commands}
    if name.startswith("@"):
        return {command.name for command in named(commands, name[1:])}
    return {
        command.name
        for command in commands
        if command.name == name or command.name.startswith(name + "|")
    }
