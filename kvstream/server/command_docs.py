"""What COMMAND and ACL derive from the records of commands, in Redis's words.

The arguments of COMMAND DOCS are parsed from a record's syntax: words in capitals are tokens, a
token names the argument after it, brackets are optional, bars part alternatives, and ``[x ...]``
after an x repeats it. Flags, ACL categories and key specifications follow.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from kvstream.commands.args import Argv, text
from kvstream.commands.command import (
    HIDDEN_FLAGS,
    Command,
    CountedKeys,
    CountedPairs,
    Flag,
    Keys,
    StreamsKeys,
)

_PART = re.compile(r"[\[\]|]|[^\s\[\]|]+")
_SIGNS = frozenset("=~*$-+>")
_REPEATED = "..."
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
    """One argument, or a block of several."""

    name: str
    kind: str
    """As Redis calls it: string, integer, key, pattern, unix-time, pure-token, oneof, block."""
    token: str = ""
    optional: bool = False
    multiple: bool = False
    parts: "tuple[Argument, ...]" = field(default=())


def arguments_of(syntax: str) -> tuple[Argument, ...]:
    """Parse the syntax of a command."""
    return tuple(_Reader(_PART.findall(syntax)).sequence())


def _is_token(word: str) -> bool:
    return word in _SIGNS or (word[:1].isalpha() and word.isupper())


def _single(word: str) -> Argument:
    if _is_token(word):
        return Argument(word.lower() if word[0].isalpha() else word, "pure-token", word)
    return Argument(word, _TYPES.get(word, "string"))


def _joined(kind: str, parts: list[Argument]) -> Argument:
    """Join several arguments; a single one stays."""
    if len(parts) == 1:
        return parts[0]
    name = parts[0].name if kind == "block" else _joined_name(parts)
    return Argument(name, kind, parts=tuple(parts))


def _joined_name(parts: list[Argument]) -> str:
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
        """Parse up to the end, a closing bracket, or a bar between whole sequences."""
        arguments: list[Argument] = []
        while self._next() not in ("", "]") and not self._parts_sequences():
            if self._next() == "[":
                self._option(arguments)
            else:
                _append(arguments, self._words())
        return arguments

    def _parts_sequences(self) -> bool:
        """Return whether a bar follows that parts sequences: the last part was an argument."""
        if self._next() != "|":
            return False
        return not _is_token(self._parts[self._at - 1])

    def _words(self) -> Argument:
        """Parse a word, or several with bars between them."""
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
        if len(ways) == 1 and ways[0] and ways[0][-1].name == _REPEATED:
            _repeat(found, ways[0][:-1])
            return
        way = _joined("oneof", [_joined("block", each) for each in ways])
        found.append(replace(way, optional=True))


def _append(found: list[Argument], argument: Argument) -> None:
    """Add an argument; a token before it becomes its name."""
    if found and argument.kind != "pure-token" and argument.name != _REPEATED:
        before = found[-1]
        if before.kind == "pure-token" and before.token not in _SIGNS and not before.optional:
            found[-1] = replace(argument, token=before.token)
            return
    found.append(argument)


def _repeat(found: list[Argument], again: list[Argument]) -> None:
    """Mark the last arguments as repeatable."""
    last = [replace(each, token="") if each.kind != "pure-token" else each for each in found]
    count = len(again)
    if last[-count:] != again:  # the repeated part was not written before
        found.append(replace(_joined("block", again), optional=True, multiple=True))
        return
    token = found[-count].token if found[-count].kind != "pure-token" else ""
    found[-count:] = [replace(_joined("block", again), token=token, multiple=True)]


CATEGORIES = (
    *("keyspace", "read", "write", "set", "sortedset", "list", "hash", "string", "bitmap"),
    *("hyperloglog", "geo", "stream", "pubsub", "admin", "fast", "slow", "blocking"),
    *("dangerous", "connection", "transaction", "scripting"),
)
"""Every category of Redis, in its order; those of other types have no commands."""
_OF_GROUP = {
    **{name: name for name in ("connection", "scripting", "stream", "string")},
    "generic": "keyspace",
    "server": "",
    "transactions": "transaction",
    "pubsub": "pubsub",
}
"""The category of a command, by its group in Redis's documentation."""
_OF_FLAG = (
    (Flag.WRITE, "write"),
    (Flag.READONLY, "read"),
    (Flag.ADMIN, "admin"),
    (Flag.ADMIN, "dangerous"),
    (Flag.BLOCKING, "blocking"),
)


def flags_of(command: Command) -> list[str]:
    """Return the flags that COMMAND shows, in Redis's order."""
    return [str(flag) for flag in Flag if flag in command.flags - HIDDEN_FLAGS]


def categories_of(command: Command) -> list[str]:
    """Return the ACL categories of a command, in Redis's order."""
    named = command.categories
    categories = set((_OF_GROUP[command.group] if named is None else named).split())
    categories |= {category for flag, category in _OF_FLAG if flag in command.flags}
    if command.group == "scripting":
        categories.discard("read")  # as in Redis
    categories.add("fast" if Flag.FAST in command.flags else "slow")
    return [category for category in CATEGORIES if category in categories]


_WRITES = {"update", "insert", "delete"}


@dataclass(frozen=True, slots=True)
class KeyUse:
    """A key of a request, and what the request does to its value."""

    key: bytes
    flags: tuple[str, ...]

    @property
    def reads(self) -> bool:
        return "access" in self.flags

    @property
    def writes(self) -> bool:
        return not _WRITES.isdisjoint(self.flags)


def _uses(command: Command, argv: Argv | None = None) -> list[tuple[str, ...]]:
    """Return what a command, or a request, does to its keys or to each of them."""
    plain = "RW update" if Flag.WRITE in command.flags else "RO access"
    uses = command.uses or plain
    if argv is not None and command.uses_of is not None:
        uses = command.uses_of(argv)
    return [tuple(use.split()) for use in uses.split(",")]


def key_uses(command: Command, argv: Argv) -> list[KeyUse]:
    """Return the keys of a request, with what it does to them."""
    uses = _uses(command, argv)
    keys = command.keys_of(argv)
    return [KeyUse(key, uses[min(at, len(uses) - 1)]) for at, key in enumerate(keys)]


def placed_like_keys(command: Command) -> Keys | None:
    """Return the places of keys, or of shard channels, which COMMAND shows as keys are shown."""
    channels = command.channels
    return channels.at if channels is not None and channels.shard else command.keys


def key_specs(command: Command) -> list[dict[str, object]]:
    """Return the key specifications of a command, one for each kind of use."""
    keys, uses = placed_like_keys(command), _uses(command)
    if keys is None:
        return []
    if command.keys is None:
        uses = [("not_key",)]
    specs: list[dict[str, object]] = []
    for at, use in enumerate(uses):
        begin, find = _search(keys, None if len(uses) == 1 else at)
        specs.append(
            {
                "flags": [*use],
                "begin_search": {"type": next(iter(begin)), "spec": begin},
                "find_keys": {"type": "keynum" if "keynumidx" in find else "range", "spec": find},
            }
        )
    return specs


def _search(keys: Keys, at: int | None) -> tuple[dict[str, object], dict[str, int]]:
    """Return where the search for keys begins, and how it finds them.

    ``at``: the place of one key, if each of them has a specification of its own.
    """
    if isinstance(keys, CountedPairs):
        return {"index": 1}, {"keynumidx": 0, "firstkey": 1, "keystep": 2}
    if isinstance(keys, CountedKeys):
        return {"index": 2}, {"keynumidx": 0, "firstkey": 1, "keystep": 1}
    if isinstance(keys, StreamsKeys):
        begin: dict[str, object] = {"keyword": "STREAMS", "startfrom": keys.search_from}
        return begin, {"lastkey": -1, "keystep": 1, "limit": 2}
    if at is not None:
        return {"index": keys.first + at}, {"lastkey": 0, "keystep": keys.step, "limit": 0}
    last = keys.last if keys.last < 0 else keys.last - keys.first
    return {"index": keys.first}, {"lastkey": last, "keystep": keys.step, "limit": 0}


def named(commands: Iterable[Command], category: str) -> list[Command]:
    """Return the commands of an ACL category."""
    return [command for command in commands if category in categories_of(command)]


def meant_by(word: bytes, commands: Iterable[Command]) -> set[str]:
    """Return the names of the commands that an ACL rule is for: one, a container, a category."""
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


# --- commands of Redis that kvstream does not have ----------------------------------------------

# Rules of ACL users may name them, so that an ACL file of Redis can be loaded.
_COMMANDS = (
    "asking bitcount bitfield bitfield_ro bitop bitpos blmove blmpop blpop brpop brpoplpush "
    "bzmpop bzpopmax bzpopmin cluster failover "
    "geoadd geodist geohash geopos georadius georadius_ro georadiusbymember "
    "georadiusbymember_ro geosearch geosearchstore getbit hdel hexists hexpire hexpireat "
    "hexpiretime hget hgetall hgetdel hgetex hincrby hincrbyfloat hkeys hlen hmget hmset "
    "hpersist hpexpire hpexpireat hpexpiretime hpttl hrandfield hscan hset hsetex "
    "hsetnx hstrlen httl hvals lcs lindex linsert llen lmove lmpop lpop lpos lpush "
    "lpushx lrange lrem lset ltrim migrate module pfadd pfcount pfdebug pfmerge pfselftest "
    "psync readonly readwrite replconf replicaof "
    "restore-asking rpop rpoplpush rpush rpushx sadd scard sdiff sdiffstore setbit sflush "
    "sinter sintercard sinterstore sismember slaveof smembers smismember smove sort sort_ro "
    "spop srandmember srem sscan sunion sunionstore "
    "sync trimslots zadd zcard zcount zdiff zdiffstore zincrby "
    "zinter zintercard zinterstore zlexcount zmpop zmscore zpopmax zpopmin zrandmember zrange "
    "zrangebylex zrangebyscore zrangestore zrank zrem zremrangebylex zremrangebyrank "
    "zremrangebyscore zrevrange zrevrangebylex zrevrangebyscore zrevrank zscan zscore zunion "
    "zunionstore"
)
ABSENT = frozenset(_COMMANDS.split())


def is_absent(name: str) -> bool:
    """Return whether Redis has a command or subcommand that kvstream does not have."""
    return name.partition("|")[0] in ABSENT
