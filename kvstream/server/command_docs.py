"""What COMMAND and ACL derive from the records of commands, in Redis's words.

The arguments of COMMAND DOCS are parsed from a record's syntax: words in capitals are tokens, a
token names the argument after it, brackets are optional, bars part alternatives, parentheses keep
them together, and ``[x ...]`` after an x, or three dots alone, repeats it. Flags, ACL categories
and key specifications follow.
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

_PART = re.compile(r"[\[\]()|]|[^\s\[\]()|]+")
_SIGNS = frozenset("=~*$-+>")
_REPEATED = "..."
_INTEGERS = (
    *("bits", "bytes", "client-id", "cluster-bus-port", "config-epoch", "count", "cursor", "db"),
    *("decrement", "end-slot", "entries", "entries-added", "entries-read", "frequency"),
    *("increment", "index", "limit", "maxage", "milliseconds", "min-idle-time", "numids"),
    *("numkeys", "numlocal", "numreplicas", "offset", "port", "protover", "seconds", "slot"),
    *("start-slot", "timeout", "ttl", "version"),
)
_TAKES = {"GROUP": 2, "IDS": 2, "STREAMS": 2}
"""Tokens that name several arguments without brackets, and how many: Redis shows them as one block.
"""
_TYPES = {
    **dict.fromkeys(_INTEGERS, "integer"),
    **dict.fromkeys(("key", "newkey"), "key"),
    "pattern": "pattern",
    "unix-time-seconds": "unix-time",
    "unix-time-milliseconds": "unix-time",
}


_TYPES_OF = {
    "cluster|keyslot": {"key": "string"},
    "getrange": {"start": "integer", "end": "integer"},
    "incrbyfloat": {"increment": "double"},
    "substr": {"start": "integer", "end": "integer"},
    "xautoclaim": {"min-idle-time": "string"},
    "xclaim": {"min-idle-time": "string"},
}
"""Types of arguments that have another type in one command than elsewhere."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument, or a block of several."""

    name: str
    kind: str
    """As Redis calls it: string, integer, key, pattern, unix-time, pure-token, oneof, block."""
    token: str = ""
    optional: bool = False
    multiple: bool = False
    multiple_token: bool = False
    """The token is repeated with the argument."""
    parts: "tuple[Argument, ...]" = field(default=())


def arguments_of(syntax: str, command: str = "") -> tuple[Argument, ...]:
    """Parse the syntax of a command."""
    ways = _Reader(_PART.findall(syntax)).ways()
    arguments = ways[0] if len(ways) == 1 else [_one_of(ways)]
    types = _TYPES_OF.get(command, {})
    return tuple(replace(each, kind=types.get(each.name, each.kind)) for each in arguments)


def _is_token(word: str) -> bool:
    return word in _SIGNS or (word[:1].isalpha() and word.isupper())


def _single(word: str) -> Argument:
    if _is_token(word):
        return Argument(word.lower() if word[0].isalpha() else word, "pure-token", word)
    return Argument(word, _TYPES.get(word, "string"))


def _join(kind: str, parts: list[Argument]) -> Argument:
    """Join several arguments; a single one stays."""
    if kind == "oneof":  # alternatives within alternatives are some more of them
        parts = [each for part in parts for each in (part.parts if _is_plain(part) else [part])]
    if len(parts) == 1:
        return parts[0]
    if kind == "oneof":
        return Argument(_join_names(parts), kind, parts=tuple(parts))
    first, token = parts[0], ""
    if first.kind != "pure-token" and not first.optional:  # its token is that of the block
        first, token = replace(first, token=""), first.token
    return Argument(first.name, kind, token, parts=(first, *parts[1:]))


def _is_plain(part: Argument) -> bool:
    return part == Argument(part.name, "oneof", parts=part.parts)


def _one_of(ways: list[list[Argument]]) -> Argument:
    return _join("oneof", [_join("block", each) for each in ways])


def _join_names(parts: list[Argument]) -> str:
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

    def ways(self) -> list[list[Argument]]:
        """Parse sequences with bars between them."""
        ways = [self._sequence()]
        while self._next() == "|":
            self._take()
            ways.append(self._sequence())
        return ways

    def _sequence(self) -> list[Argument]:
        """Parse up to the end, a closing bracket, or a bar between whole sequences."""
        arguments: list[Argument] = []
        while self._next() not in ("", "]", ")") and not self._parts_sequences():
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
        words = [self._word()]
        while self._next() == "|" and not self._ends_alternative(words[-1]):
            self._take()
            words.append(self._word())
        return _join("oneof", words)

    def _word(self) -> Argument:
        """Parse a word, or what stands in parentheses."""
        word = self._take()
        if word != "(":
            return _single(word)
        group = _one_of(self.ways())
        self._take()
        if self._next() == _REPEATED:
            self._take()
            group = replace(group, multiple=True)
        return group

    def _ends_alternative(self, last: Argument) -> bool:
        following = self._parts[self._at + 1]
        return last.kind != "pure-token" and _is_token(following) and following not in _SIGNS

    def _option(self, found: list[Argument]) -> None:
        self._take()
        ways = self.ways()
        self._take()
        if len(ways) == 1 and ways[0] and ways[0][-1].name == _REPEATED:
            _repeat(found, ways[0][:-1])
            return
        found.append(replace(_one_of(ways), optional=True))


def _append(found: list[Argument], argument: Argument) -> None:
    """Add an argument; a token before it becomes its name."""
    if found and argument.kind != "pure-token" and argument.name != _REPEATED:
        before = found[-1]
        if before.kind == "pure-token" and before.token not in _SIGNS and not before.optional:
            found[-1] = replace(argument, token=before.token)
            return
        if _TAKES.get(before.token, 0) > max(len(before.parts), 1) and not before.optional:
            parts = before.parts or (replace(before, token=""),)
            found[-1] = Argument(parts[0].name, "block", before.token, parts=(*parts, argument))
            return
    found.append(argument)


def _repeat(found: list[Argument], again: list[Argument]) -> None:
    """Mark the last arguments as repeatable."""
    if found and found[-1].kind == "block" and found[-1].token in _TAKES:
        parts = list(found[-1].parts)
        _repeat(parts, again)
        found[-1] = replace(found[-1], parts=tuple(parts))
        return
    if found == again and again[0].token and again[0].kind != "pure-token":
        found[:] = [replace(_join("block", again), multiple=True, multiple_token=True)]
        return
    last = [replace(each, token="") if each.kind != "pure-token" else each for each in found]
    count = len(again)
    if last[-count:] != again:  # the repeated part was not written before
        found.append(replace(_join("block", again), optional=True, multiple=True))
        return
    token = found[-count].token if found[-count].kind != "pure-token" else ""
    found[-count:] = [replace(_join("block", again), token=token, multiple=True)]


CATEGORIES = (
    *("keyspace", "read", "write", "set", "sortedset", "list", "hash", "string", "bitmap"),
    *("hyperloglog", "geo", "stream", "pubsub", "admin", "fast", "slow", "blocking"),
    *("dangerous", "connection", "transaction", "scripting"),
)
"""Every category of Redis, in its order; those of other types have no commands."""
_OF_GROUP = {
    **{name: name for name in ("connection", "scripting", "stream", "string")},
    "cluster": "",
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
    own = command.categories
    categories = set((_OF_GROUP[command.group] if own is None else own).split())
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


def find_key_places(command: Command) -> Keys | None:
    """Return the places of keys, or of shard channels, which COMMAND shows as keys are shown."""
    channels = command.channels
    return channels.at if channels is not None and channels.shard else command.keys


def key_specs(command: Command) -> list[dict[str, object]]:
    """Return the key specifications of a command, one for each kind of use."""
    keys, uses = find_key_places(command), _uses(command)
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


def list_category(commands: Iterable[Command], category: str) -> list[Command]:
    """Return the commands of an ACL category."""
    return [command for command in commands if category in categories_of(command)]


def resolve_rule(word: bytes, commands: Iterable[Command]) -> set[str]:
    """Return the names of the commands that an ACL rule is for: one, a container, a category."""
    name = text(word)
    if name == "@all":
        return {command.name for command in commands}
    if name.startswith("@"):
        return {command.name for command in list_category(commands, name[1:])}
    return {
        command.name
        for command in commands
        if command.name == name or command.name.startswith(name + "|")
    }
