"""Who may do what: users, their passwords as SHA-256, their commands and keys.

A rule is a word of ACL SETUSER. A user's rules are applied to a copy, which takes the user's place
when all of them were understood. This module knows no client.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from kvstream.commands.args import Argv, text
from kvstream.commands.command import Command, Container
from kvstream.errors import InvalidArgument, RequestError
from kvstream.glob import matcher
from kvstream.server.absent import is_absent
from kvstream.server.descriptions import CATEGORIES, every, key_uses, meant_by
from kvstream.storage import durable_files

DEFAULT = b"default"
_HASH = re.compile(rb"[0-9a-f]{64}")
_KEYS = re.compile(rb"%(R|W|RW|WR)~(.*)", re.IGNORECASE | re.DOTALL)


class NoPermission(RequestError):
    """The user's rules do not allow it."""

    code = "NOPERM"

    def __init__(self, message: str, kind: str, what: bytes) -> None:
        super().__init__(message)
        self.kind = kind
        """``cmd`` or ``key``: what the rules do not allow."""
        self.object = what


class WrongPassword(RequestError):
    """AUTH with a name and password that do not let anybody in."""

    code = "WRONGPASS"

    def __init__(self) -> None:
        super().__init__("invalid username-password pair or user is disabled.")


class BadRule(InvalidArgument):
    """A word of ACL SETUSER that is no rule; the text says why."""


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


@dataclass(slots=True, eq=False)
class User:
    """One user."""

    name: bytes
    on: bool = False
    nopass: bool = False
    passwords: dict[bytes, None] = field(default_factory=dict)
    """SHA-256 in hexadecimal digits, in the order in which they were given."""
    rules: list[bytes] = field(default_factory=lambda: [b"-@all"])
    """Those of commands, in order; the first one is +@all or -@all."""
    keys: list[KeyRule] = field(default_factory=list)
    channels: list[bytes] = field(default_factory=list)
    allowed: frozenset[str] = frozenset()
    """Names of the commands that the rules come to."""
    free: bool = False
    """Every command and every key: nothing need be looked up."""
    _all_keys: bool = False
    _tests: list[tuple[KeyRule, Callable[[bytes], bool]]] = field(default_factory=list)

    def describe(self) -> bytes:
        """Return the rules that make this user, as ACL LIST shows them."""
        words = [b"on" if self.on else b"off"]
        words += [b"nopass"] if self.nopass else []
        words += [b"#" + digest for digest in self.passwords]
        words += [self.keys_text, b"" if self.channels == [b"*"] else b"resetchannels"]
        words += [self.channels_text, b" ".join(self.rules)]
        return b"user %b %b" % (self.name, b" ".join(word for word in words if word))

    @property
    def keys_text(self) -> bytes:
        return b" ".join(rule.text for rule in self.keys)

    @property
    def channels_text(self) -> bytes:
        return b" ".join(b"&" + pattern for pattern in self.channels)

    def admits(self, password: bytes) -> bool:
        """Tell whether a password lets one in; every one that is known is looked at."""
        if not self.on:
            return False
        digest = sha256(password)
        known = [hmac.compare_digest(digest, each) for each in self.passwords]
        return self.nopass or any(known)

    def check(self, command: Command, argv: Argv) -> None:
        """Raise NoPermission where a request is not allowed."""
        if self.free:
            return
        if command.name not in self.allowed and command.name not in _ANYBODY:
            who, name = text(self.name), command.name
            message = f"User {who} has no permissions to run the '{name}' command"
            raise NoPermission(message, "cmd", name.encode())
        if self._all_keys:
            return
        for use in key_uses(command, argv):
            if not self.may(use.key, use.reads, use.writes):
                raise NoPermission("No permissions to access a key", "key", use.key)

    def may(self, key: bytes, reads: bool, writes: bool) -> bool:
        """Tell whether one rule allows to read or write a key, as asked."""
        return any(
            test(key)
            for rule, test in self._tests
            if (rule.reads or not reads) and (rule.writes or not writes)
        )

    def settle(self, table: Mapping[bytes, Command | Container]) -> None:
        """Work out what the rules come to."""
        commands = list(every(table))
        allowed: set[str] = set()
        for rule in self.rules:
            names = meant_by(rule[1:], commands)
            allowed = allowed | names if rule[:1] == b"+" else allowed - names
        self.allowed = frozenset(allowed)
        self._tests = [(rule, matcher(rule.pattern)) for rule in self.keys]
        self._all_keys = KeyRule(b"*") in self.keys
        self.free = self._all_keys and len(allowed) == len(commands)


_ANYBODY = frozenset({"auth", "hello", "quit", "reset"})
"""Commands that no rule keeps anybody from, as in Redis."""


def sha256(password: bytes) -> bytes:
    return hashlib.sha256(password).hexdigest().encode()


class Acl:
    """All users by name; there is always ``default``."""

    def __init__(
        self,
        table: Mapping[bytes, Command | Container],
        password: str = "",
        file: Path | None = None,
    ) -> None:
        """Let the users of a file be, where there is one: their passwords are the file's."""
        self._table = table
        self._commands = list(every(table))
        self.users: dict[bytes, User] = {}
        self.default = self.set_user(DEFAULT, [b"on", b"nopass", b"~*", b"&*", b"+@all"])
        if password:
            self.require(password.encode("utf-8", "surrogateescape"))
        if file is not None and file.exists():
            self.load(file)

    @property
    def is_open(self) -> bool:
        """Tell whether the default user needs no password."""
        return self.default.on and self.default.nopass

    def require(self, password: bytes) -> None:
        """Have the default user need this password alone, or none where it is empty."""
        self.set_user(DEFAULT, [b"resetpass", b">" + password if password else b"nopass"])

    def authenticate(self, name: bytes, password: bytes) -> User:
        """Return the user whom a password lets in, or raise WrongPassword."""
        user = self.users.get(name)
        if user is None:
            hmac.compare_digest(sha256(password), sha256(b""))  # as long as for one that exists
            raise WrongPassword
        if not user.admits(password):
            raise WrongPassword
        return user

    def set_user(self, name: bytes, rules: Iterable[bytes]) -> User:
        """Make or change a user by rules: by all of them or, with a BadRule, by none."""
        existing = self.users.get(name)
        user = User(name) if existing is None else deepcopy(existing)
        for rule in rules:
            self._apply(user, rule)
        user.settle(self._table)
        if existing is None:
            self.users[name] = user
            return user
        return _become(existing, user)

    def delete_user(self, name: bytes) -> User | None:
        """Forget a user and return it; None where there was none."""
        if name == DEFAULT:
            raise InvalidArgument("The 'default' user cannot be removed")
        return self.users.pop(name, None)

    def save(self, path: Path) -> None:
        """Write all users into a file, which has them all or is as it was."""
        lines = [user.describe() + b"\n" for _, user in sorted(self.users.items())]
        durable_files.write(path, b"".join(lines))

    def load(self, path: Path) -> list[User]:
        """Have the users of a file and no others; return those who are gone."""
        fresh = Acl(self._table)
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            words = line.split()
            if words and (words[0] != b"user" or len(words) < 2):
                raise InvalidArgument(f"{path}:{number}: should start with user keyword followed")
            if words:
                fresh.set_user(words[1], [b"reset", *words[2:]])
        gone = [user for name, user in self.users.items() if name not in fresh.users]
        for name, user in fresh.users.items():
            self.users[name] = _become(self.users.get(name, user), user)
        for user in gone:
            del self.users[user.name]
        return gone

    def _apply(self, user: User, rule: bytes) -> None:
        try:
            self._apply_rule(user, rule)
        except BadRule as reason:
            raise InvalidArgument(
                f"Error in ACL SETUSER modifier '{text(rule)}': {reason}"
            ) from None

    def _apply_rule(self, user: User, rule: bytes) -> None:
        plain = _PLAIN.get(rule.lower())
        marked = _MARKED.get(rule[:1])
        if plain is not None:
            plain(user)
        elif rule[:1] in (b"+", b"-"):
            self._command_rule(user, rule.lower())
        elif marked is not None:
            marked(user, rule[1:])
        elif (keys := _KEYS.fullmatch(rule)) is not None:
            kinds = keys[1].upper()
            _add_keys(user, KeyRule(keys[2], b"R" in kinds, b"W" in kinds))
        else:
            raise BadRule("Syntax error")

    def _command_rule(self, user: User, rule: bytes) -> None:
        word = rule[1:]
        if word == b"@all":
            user.rules = [rule]
            return
        if self._is_known(word):
            user.rules = [each for each in user.rules if each[1:] != word]
            user.rules.append(rule)
            return
        raise BadRule("Unknown command or category name in ACL")

    def _is_known(self, word: bytes) -> bool:
        """Tell whether a rule may speak of this: a category, or a command of Redis's."""
        if word[:1] == b"@":
            return text(word[1:]) in CATEGORIES
        return bool(meant_by(word, self._commands)) or is_absent(text(word))


# --- rules --------------------------------------------------------------------------------------


def _become(user: User, other: User) -> User:
    """Have a user be as another: clients that are this user stay so."""
    for attribute in User.__slots__:
        setattr(user, attribute, getattr(other, attribute))
    return user


def _reset(user: User) -> None:
    _become(user, User(user.name))


def _switch(on: bool) -> Callable[[User], None]:
    def switch(user: User) -> None:
        user.on = on

    return switch


def _all_keys(user: User) -> None:
    user.keys = [KeyRule(b"*")]


def _all_channels(user: User) -> None:
    user.channels = [b"*"]


def _all_commands(rule: bytes) -> Callable[[User], None]:
    def apply(user: User) -> None:
        user.rules = [rule]

    return apply


def _no_password_needed(user: User) -> None:
    user.nopass = True
    user.passwords = {}


def _no_passwords(user: User) -> None:
    user.nopass = False
    user.passwords = {}


def _check_hash(digest: bytes) -> None:
    if _HASH.fullmatch(digest) is None:
        raise BadRule(
            "The password hash must be exactly 64 characters and contain only lowercase "
            "hexadecimal characters"
        )


def _add_hash(user: User, digest: bytes) -> None:
    _check_hash(digest)
    user.nopass = False
    user.passwords[digest] = None


def _remove_hash(user: User, digest: bytes) -> None:
    _check_hash(digest)
    if digest not in user.passwords:
        raise BadRule("The password you are trying to remove from the user does not exist")
    del user.passwords[digest]


def _add_keys(user: User, rule: KeyRule) -> None:
    if KeyRule(b"*") in user.keys:
        raise BadRule(
            "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does "
            "not have any effect. Try 'resetkeys' to start with an empty list of patterns"
        )
    if rule not in user.keys:
        user.keys.append(rule)


def _add_keys_of_both_kinds(user: User, pattern: bytes) -> None:
    if pattern == b"*":
        _all_keys(user)
    else:
        _add_keys(user, KeyRule(pattern))


def _add_channel(user: User, pattern: bytes) -> None:
    if pattern == b"*":
        _all_channels(user)
    elif pattern not in user.channels:
        user.channels.append(pattern)


def _no_selector(user: User, rule: bytes) -> None:
    raise BadRule("selectors are not supported: make a user for each set of rules")


_PLAIN: dict[bytes, Callable[[User], None]] = {
    b"on": _switch(True),
    b"off": _switch(False),
    b"nopass": _no_password_needed,
    b"resetpass": _no_passwords,
    b"reset": _reset,
    b"allkeys": _all_keys,
    b"resetkeys": lambda user: user.keys.clear(),
    b"allchannels": _all_channels,
    b"resetchannels": lambda user: user.channels.clear(),
    b"allcommands": _all_commands(b"+@all"),
    b"nocommands": _all_commands(b"-@all"),
    b"clearselectors": lambda user: None,
    b"sanitize-payload": lambda user: None,
    b"skip-sanitize-payload": lambda user: None,
}
_MARKED: dict[bytes, Callable[[User, bytes], None]] = {
    b"~": _add_keys_of_both_kinds,
    b"&": _add_channel,
    b"(": _no_selector,
    b">": lambda user, password: _add_hash(user, sha256(password)),
    b"<": lambda user, password: _remove_hash(user, sha256(password)),
    b"#": _add_hash,
    b"!": _remove_hash,
}
