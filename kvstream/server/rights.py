"""What one set of rules allows: commands, keys and channels. A user has one set, or several.

A rule is a word of ACL SETUSER. This module knows neither users nor clients.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kvstream.commands.args import Argv, text
from kvstream.commands.command import Command, Container
from kvstream.errors import InvalidArgument
from kvstream.glob import matcher
from kvstream.server.absent import is_absent
from kvstream.server.descriptions import CATEGORIES, every, key_uses, meant_by

_BLANK = re.compile(rb"[\s\0]")
_KEYS = re.compile(rb"%(R|W|RW|WR)(?:~(.*))?", re.IGNORECASE | re.DOTALL)
Table = Mapping[bytes, Command | Container]


class BadRule(InvalidArgument):
    """A word of ACL SETUSER that is no rule; the text says why."""


class Refusal(NamedTuple):
    """What a set of rules does not allow; of several, the greatest is told."""

    kind: str
    """``cmd`` or ``key``."""
    at: int
    """Which of the request's keys it is."""
    object: bytes


@dataclass(frozen=True, slots=True)
class KeyRule:
    """Keys that a user may read, write, or both."""

    pattern: bytes
    reads: bool = True
    writes: bool = True

    @property
    def text(self) -> bytes:
        if self.reads and self.writes:
            return b"~" + self.pattern
        return (b"%R~" if self.reads else b"%W~") + self.pattern


_EVERY_KEY = KeyRule(b"*")


@dataclass(slots=True, eq=False)
class Rights:
    """One set of rules, and what they come to."""

    rules: list[bytes] = field(default_factory=lambda: [b"-@all"])
    """Those of commands, in order; the first one is +@all or -@all."""
    keys: list[KeyRule] = field(default_factory=list)
    channels: list[bytes] = field(default_factory=list)
    allowed: frozenset[str] = frozenset()
    """Names of the commands that the rules come to."""
    free: bool = False
    """Every command and every key: nothing need be looked up."""
    _first: dict[str, set[bytes]] = field(default_factory=dict)
    """Words that may follow commands which are not allowed otherwise."""
    _all_keys: bool = False
    _tests: list[tuple[KeyRule, Callable[[bytes], bool]]] = field(default_factory=list)

    @property
    def text(self) -> bytes:
        """The rules, as ACL LIST shows them."""
        words = [self.keys_text, b"" if self.channels == [b"*"] else b"resetchannels"]
        words += [self.channels_text, self.commands_text]
        return b" ".join(word for word in words if word)

    @property
    def commands_text(self) -> bytes:
        return b" ".join(self.rules)

    @property
    def keys_text(self) -> bytes:
        return b" ".join(rule.text for rule in self.keys)

    @property
    def channels_text(self) -> bytes:
        return b" ".join(b"&" + pattern for pattern in self.channels)

    def refusal(self, command: Command, argv: Argv) -> Refusal | None:
        """Return what of a request is not allowed; None where all of it is."""
        name = command.name
        if name not in self.allowed and not self._allows_first(name, argv):
            return Refusal("cmd", 0, name.encode())
        if self._all_keys:
            return None
        for at, use in enumerate(key_uses(command, argv)):
            if not self.may(use.key, use.reads, use.writes):
                return Refusal("key", at, use.key)
        return None

    def _allows_first(self, name: str, argv: Argv) -> bool:
        return len(argv) > 1 and argv[1].lower() in self._first.get(name, ())

    def may(self, key: bytes, reads: bool, writes: bool) -> bool:
        """Tell whether one rule allows to read or write a key, as asked."""
        return any(
            test(key)
            for rule, test in self._tests
            if (rule.reads or not reads) and (rule.writes or not writes)
        )

    def settle(self, table: Table) -> None:
        """Work out what the rules come to."""
        commands = list(every(table))
        allowed: set[str] = set()
        self._first = {}
        for rule in self.rules:
            names = meant_by(rule[1:], commands)
            allowed = allowed | names if rule[:1] == b"+" else allowed - names
            for name in names & self._first.keys():
                del self._first[name]
            command, _, word = rule[1:].partition(b"|")
            if rule[:1] == b"+" and word and not names:
                self._first.setdefault(text(command), set()).add(word)
        self.allowed = frozenset(allowed)
        self._tests = [(rule, matcher(rule.pattern)) for rule in self.keys]
        self._all_keys = _EVERY_KEY in self.keys
        self.free = self._all_keys and len(allowed) == len(commands)

    def apply(self, rule: bytes, table: Table) -> None:
        """Add a rule, or raise BadRule."""
        plain = _PLAIN.get(rule.lower())
        if plain is not None:
            plain(self)
        elif rule[:1] in (b"+", b"-"):
            self._add_commands(rule.lower(), table)
        elif _BLANK.search(rule):
            raise BadRule("Syntax error")  # users in a file are words parted by blanks
        elif rule[:1] == b"~":
            self._add_keys(KeyRule(rule[1:]))
        elif rule[:1] == b"&":
            self._add_channels(rule[1:])
        elif (keys := _KEYS.fullmatch(rule)) is not None:
            kinds = keys[1].upper()
            self._add_keys(KeyRule(keys[2] or b"", b"R" in kinds, b"W" in kinds))
        else:
            raise BadRule("Syntax error")

    def _add_commands(self, rule: bytes, table: Table) -> None:
        word = rule[1:]
        if word == b"@all":
            self.rules = [rule]
            return
        if not _is_known(word, table):
            _check_first(rule, table)
        within = word + b"|"  # what the rule says of a command goes for its subcommands too
        kept = [each for each in self.rules if each[1:] != word and not each.startswith(within, 1)]
        self.rules = [*kept, rule]

    def _add_keys(self, rule: KeyRule) -> None:
        if _EVERY_KEY in self.keys and rule != _EVERY_KEY:
            raise _without_effect("allkeys", "resetkeys", "patterns")
        for each in self.keys:
            if each.pattern == rule.pattern:
                reads, writes = each.reads or rule.reads, each.writes or rule.writes
                rule = KeyRule(rule.pattern, reads, writes)
                self.keys[self.keys.index(each)] = rule
                break
        else:
            self.keys.append(rule)
        if rule == _EVERY_KEY:
            self.keys = [rule]

    def _add_channels(self, pattern: bytes) -> None:
        if pattern == b"*":
            self.channels = [pattern]
        elif self.channels == [b"*"]:
            raise _without_effect("allchannels", "resetchannels", "channels")
        elif pattern not in self.channels:
            self.channels.append(pattern)


def _is_known(word: bytes, table: Table) -> bool:
    """Tell whether a rule may speak of this: a category, or a command of Redis's."""
    if word[:1] == b"@":
        return text(word[1:]) in CATEGORIES
    return bool(meant_by(word, every(table))) or is_absent(text(word))


def _check_first(rule: bytes, table: Table) -> None:
    """Raise BadRule unless the rule allows a command with one first word, as ``+select|0``."""
    name, _, word = rule[1:].rpartition(b"|")
    if rule[:1] == b"+" and b"|" in name and _is_known(name, table):
        raise BadRule("Allowing first-arg of a subcommand is not supported")
    if rule[:1] == b"-" or not word or not isinstance(table.get(name), Command):
        raise BadRule("Unknown command or category name in ACL")


def _without_effect(flag: str, reset: str, what: str) -> BadRule:
    return BadRule(
        f"Adding a pattern after the * pattern (or the '{flag}' flag) is not valid and does "
        f"not have any effect. Try '{reset}' to start with an empty list of {what}"
    )


def _all_keys(rights: Rights) -> None:
    rights.keys = [_EVERY_KEY]


def _all_channels(rights: Rights) -> None:
    rights.channels = [b"*"]


def _commands(rule: bytes) -> Callable[[Rights], None]:
    def apply(rights: Rights) -> None:
        rights.rules = [rule]

    return apply


_PLAIN: dict[bytes, Callable[[Rights], None]] = {
    b"allkeys": _all_keys,
    b"resetkeys": lambda rights: rights.keys.clear(),
    b"allchannels": _all_channels,
    b"resetchannels": lambda rights: rights.channels.clear(),
    b"allcommands": _commands(b"+@all"),
    b"nocommands": _commands(b"-@all"),
}
