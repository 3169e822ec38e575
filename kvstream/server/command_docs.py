"""What COMMAND and ACL tell of commands beyond the rows of the table, in Redis's words.

Flags that only clients want to know, ACL categories, and what is done to each key. Nothing here
knows a client or the store.

The arguments of commands for COMMAND DOCS, read from how the commands are written.

``key [COUNT count] MAXLEN|MINID threshold id [id ...]`` becomes what Redis answers: words in
capitals are tokens, a token names the argument behind it, brackets are options, bars part
alternatives, and ``[x ...]`` behind an x tells that there may be several. No command is known here.

How each command of the server is written: for docs/commands.md, and for COMMAND DOCS.

Commands of Redis that are not here, by name: rules of users may speak of them.

An ACL file that served Redis serves kvstream too; nothing follows from such a rule.

What COMMAND tells clients of a cluster beyond flags: Redis's command tips.

Clients that share keys out over several servers read from these where to send a request and how
to put the replies together; those that compare servers, which replies may differ.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from kvstream.commands import reference
from kvstream.commands.args import Argv, text
from kvstream.commands.command import Command, Container, CountedPairs, Flag, StreamsKeys

_TIPS = {
    "nondeterministic_output": "client|info client|list dump info lastsave latency|doctor "
    "latency|graph latency|histogram latency|history latency|latest memory|doctor "
    "memory|malloc-stats memory|stats object|encoding object|freq "
    "object|idletime object|refcount pttl randomkey scan slowlog|get slowlog|len time ttl xadd "
    "xautoclaim xclaim xinfo|consumers xpending xtrim",
    "nondeterministic_output_order": "command command|docs command|info command|list keys",
    "request_policy:all_nodes": "acl|deluser acl|save acl|setuser client|setinfo client|setname "
    "config|resetstat config|rewrite config|set latency|doctor latency|graph latency|histogram "
    "latency|history latency|latest latency|reset script|flush slowlog|get slowlog|len "
    "slowlog|reset",
    "request_policy:all_shards": "dbsize flushall flushdb function|flush info keys memory|doctor "
    "memory|malloc-stats memory|purge memory|stats ping randomkey wait waitaof",
    "request_policy:multi_shard": "del exists mget mset msetex touch unlink",
    "request_policy:special": "scan",
    "response_policy:agg_min": "wait waitaof",
    "response_policy:agg_sum": "dbsize del exists latency|reset slowlog|len touch unlink",
    "response_policy:all_succeeded": "acl|deluser acl|save acl|setuser client|setinfo "
    "client|setname config|resetstat config|rewrite config|set flushall flushdb function|flush "
    "memory|purge mset msetex ping script|flush slowlog|reset",
    "response_policy:special": "info latency|doctor latency|graph latency|histogram "
    "latency|history latency|latest memory|doctor memory|malloc-stats memory|stats randomkey scan",
}


def _by_command() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for tip, names in _TIPS.items():
        for name in names.split():
            found.setdefault(name, []).append(tip)
    return found


TIPS = _by_command()
"""The tips of a command, in Redis's order; most have none."""


_COMMANDS = (
    "asking bitcount bitfield bitfield_ro bitop bitpos blmove blmpop blpop brpop brpoplpush "
    "bzmpop bzpopmax bzpopmin cluster eval eval_ro evalsha evalsha_ro failover fcall fcall_ro "
    "geoadd geodist geohash geopos georadius georadius_ro georadiusbymember "
    "georadiusbymember_ro geosearch geosearchstore getbit hdel hexists hexpire hexpireat "
    "hexpiretime hget hgetall hgetdel hgetex hincrby hincrbyfloat hkeys hlen hmget hmset "
    "hotkeys hpersist hpexpire hpexpireat hpexpiretime hpttl hrandfield hscan hset hsetex "
    "hsetnx hstrlen httl hvals lcs lindex linsert llen lmove lmpop lpop lpos lpush "
    "lpushx lrange lrem lset ltrim migrate module pfadd pfcount pfdebug pfmerge pfselftest "
    "psubscribe psync publish pubsub punsubscribe readonly readwrite replconf replicaof "
    "restore-asking rpop rpoplpush rpush rpushx sadd scard sdiff sdiffstore setbit sflush "
    "sinter sintercard sinterstore sismember slaveof smembers smismember smove sort sort_ro "
    "spop spublish srandmember srem sscan ssubscribe subscribe sunion sunionstore "
    "sunsubscribe sync trimslots unsubscribe zadd zcard zcount zdiff zdiffstore zincrby "
    "zinter zintercard zinterstore zlexcount zmpop zmscore zpopmax zpopmin zrandmember zrange "
    "zrangebylex zrangebyscore zrangestore zrank zrem zremrangebylex zremrangebyrank "
    "zremrangebyscore zrevrange zrevrangebylex zrevrangebyscore zrevrank zscan zscore zunion "
    "zunionstore"
)
_SUBCOMMANDS = (
    "function|delete function|dump function|kill function|list function|load "
    "function|restore function|stats script|debug script|exists script|kill "
    "script|load"
)

ABSENT = frozenset(_COMMANDS.split())
ABSENT_SUBCOMMANDS = frozenset(_SUBCOMMANDS.split())
"""Of containers that are here."""


def is_absent(name: str) -> bool:
    """Tell whether Redis has a command, or a subcommand, that is not here."""
    return name.partition("|")[0] in ABSENT or name in ABSENT_SUBCOMMANDS


_CLIENT_TYPE = "NORMAL|MASTER|REPLICA|PUBSUB"

SYNTAX = {
    **reference.SYNTAX,
    "acl|cat": "[category]",
    "acl|deluser": "username [username ...]",
    "acl|dryrun": "username command [arg ...]",
    "acl|genpass": "[bits]",
    "acl|getuser": "username",
    "acl|log": "[count|RESET]",
    "acl|setuser": "username [rule ...]",
    "auth": "[username] password",
    "bgsave": "[SCHEDULE]",
    "client|caching": "yes|no",
    "client|kill": "ip:port|filter value [filter value ...]",
    "client|list": f"[TYPE {_CLIENT_TYPE}] [ID client-id [client-id ...]]",
    "client|no-evict": "on|off",
    "client|no-touch": "on|off",
    "client|pause": "timeout [WRITE|ALL]",
    "client|reply": "on|off|skip",
    "client|setinfo": "lib-name|lib-ver text",
    "client|setname": "name",
    "client|tracking": "on|off [REDIRECT client-id] [PREFIX prefix] [BCAST] [OPTIN] [OPTOUT] "
    "[NOLOOP]",
    "client|unblock": "client-id [TIMEOUT|ERROR]",
    "command|docs": "[command [command ...]]",
    "command|getkeys": "command [arg ...]",
    "command|getkeysandflags": "command [arg ...]",
    "command|info": "[command [command ...]]",
    "command|list": "[FILTERBY MODULE name|ACLCAT category|PATTERN pattern]",
    "config|get": "pattern [pattern ...]",
    "config|set": "setting value [setting value ...]",
    "debug": "subcommand [arg ...]",
    "function|flush": "[ASYNC|SYNC]",
    "hello": "[protover [AUTH username password] [SETNAME name]]",
    "info": "[section [section ...]]",
    "kvstream.load|commit": "load [MARK key number] PART name digest GIVEN|ALLOTTED [PART ...]",
    "kvstream.load|discard": "load",
    "kvstream.load|put": "load file offset data",
    "kvstream.load|state": "key serialized-value",
    "kvstream.load|ticket": "[key ...]",
    "latency|graph": "event",
    "latency|histogram": "[command [command ...]]",
    "latency|history": "event",
    "latency|reset": "[event [event ...]]",
    "lolwut": "[VERSION version]",
    "script|flush": "[ASYNC|SYNC]",
    "shutdown": "[NOSAVE|SAVE] [NOW] [FORCE] [ABORT]",
    "slowlog|get": "[count]",
    "wait": "numreplicas timeout",
    "waitaof": "numlocal numreplicas timeout",
    "watch": "key [key ...]",
}
"""By name, as Redis writes it; commands that are not here have no arguments."""


_PART = re.compile(r"[\[\]|]|[^\s\[\]|]+")
_SIGNS = frozenset("=~*$-+>")
_MORE = "..."
_INTEGERS = (
    *("bits", "bytes", "client-id", "count", "cursor", "db", "decrement", "entries"),
    *("entries-added", "entries-read", "increment", "index", "milliseconds", "min-idle-time"),
    *("numids", "numkeys", "numlocal", "numreplicas", "offset", "protover", "seconds", "timeout"),
)
_TYPES = {
    **dict.fromkeys(_INTEGERS, "integer"),
    **dict.fromkeys(("key", "newkey"), "key"),
    "pattern": "pattern",
    "unix-time-seconds": "unix-time",
    "unix-time-milliseconds": "unix-time",
}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument, or several that belong together."""

    name: str
    kind: str
    """As Redis calls it: string, integer, key, pattern, unix-time, pure-token, oneof, block."""
    token: str = ""
    optional: bool = False
    multiple: bool = False
    parts: "tuple[Argument, ...]" = field(default=())


def arguments_of(syntax: str) -> tuple[Argument, ...]:
    """Return the arguments of a command from how it is written."""
    return tuple(_Reader(_PART.findall(syntax)).sequence())


def _is_token(word: str) -> bool:
    return word in _SIGNS or (word[:1].isalpha() and word.isupper())


def _single(word: str) -> Argument:
    if _is_token(word):
        return Argument(word.lower() if word[0].isalpha() else word, "pure-token", word)
    return Argument(word, _TYPES.get(word, "string"))


def _joined(kind: str, parts: list[Argument]) -> Argument:
    """Return several arguments as one; a single one as it is."""
    if len(parts) == 1:
        return parts[0]
    return Argument(parts[0].name if kind == "block" else _named(parts), kind, parts=tuple(parts))


def _named(parts: list[Argument]) -> str:
    return "-or-".join(dict.fromkeys(part.name for part in parts))[:40].rstrip("-")


class _Reader:
    def __init__(self, parts: list[str]) -> None:
        self._parts = parts
        self._at = 0

    def _next(self) -> str:
        return self._parts[self._at] if self._at < len(self._parts) else ""

    def _take(self) -> str:
        self._at += 1
        return self._parts[self._at - 1]

    def sequence(self) -> list[Argument]:
        """Read up to the end or a closing bracket, or to a bar that parts whole sequences."""
        found: list[Argument] = []
        while self._next() not in ("", "]") and not self._parts_sequences():
            if self._next() == "[":
                self._option(found)
            else:
                _append(found, self._words())
        return found

    def _parts_sequences(self) -> bool:
        """Tell whether a bar stands between an argument and a token: both sides are whole."""
        if self._next() != "|":
            return False
        return not _is_token(self._parts[self._at - 1])

    def _words(self) -> Argument:
        """Read a word, or several with bars between them."""
        words = [_single(self._take())]
        while self._next() == "|" and not self._ends_alternative(words[-1]):
            self._take()
            words.append(_single(self._take()))
        return _joined("oneof", words)

    def _ends_alternative(self, last: Argument) -> bool:
        following = self._parts[self._at + 1]
        return last.kind != "pure-token" and _is_token(following) and following not in _SIGNS

    def _option(self, found: list[Argument]) -> None:
        self._take()
        ways = [self.sequence()]
        while self._next() == "|":
            self._take()
            ways.append(self.sequence())
        self._take()
        if len(ways) == 1 and ways[0] and ways[0][-1].name == _MORE:
            _repeat(found, ways[0][:-1])
            return
        way = _joined("oneof", [_joined("block", each) for each in ways])
        found.append(replace(way, optional=True))


def _append(found: list[Argument], argument: Argument) -> None:
    """Add an argument, to the token that stands before it where that names it."""
    if found and argument.kind != "pure-token" and argument.name != _MORE:
        before = found[-1]
        if before.kind == "pure-token" and before.token not in _SIGNS and not before.optional:
            found[-1] = replace(argument, token=before.token)
            return
    found.append(argument)


def _repeat(found: list[Argument], again: list[Argument]) -> None:
    """Note that the last arguments may come several times."""
    last = [replace(each, token="") if each.kind != "pure-token" else each for each in found]
    count = len(again)
    if last[-count:] != again:  # what is repeated was not written before
        found.append(replace(_joined("block", again), optional=True, multiple=True))
        return
    token = found[-count].token if found[-count].kind != "pure-token" else ""
    found[-count:] = [replace(_joined("block", again), token=token, multiple=True)]


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
