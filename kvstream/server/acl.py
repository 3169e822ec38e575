"""Access control lists: users, the sets of rules that allow commands and keys, and ACL LOG.

A rule is a word of ACL SETUSER. Rules are applied to a copy of the user, which replaces the user if
all of them are valid. A user has one set of rules, and more in selectors. This module knows no
client.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count, islice
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from kvstream.commands.absent import is_absent
from kvstream.commands.args import Argv, text
from kvstream.commands.command import Command, Flag, Table, every
from kvstream.errors import InvalidArgument, RequestError
from kvstream.server.command_docs import CATEGORIES, key_uses, resolve_rule
from kvstream.storage import files
from kvstream.types.glob import matcher

WRONG_LINES_SHOWN = 5
"""The most lines of a wrong file of users that an error names."""
TOGETHER_MS = 60_000
"""A refusal that is repeated within this time counts in the same entry, as in Redis."""
COMPARED = 10
"""How many of the newest entries a refusal may repeat, as in Redis."""


@dataclass(slots=True)
class Denial:
    """One entry of ACL LOG."""

    number: int
    reason: str
    """``auth``, ``command``, ``key`` or ``channel``."""
    context: str
    """``toplevel``, ``multi`` or ``lua``."""
    object: bytes
    """The command, the key or the channel."""
    user: bytes
    client: str
    """The CLIENT LIST line of the client that was refused last."""
    created_ms: int
    updated_ms: int
    count: int = 1

    def repeats(self, other: "Denial") -> bool:
        """Return whether this new refusal is a repetition of another one."""
        mine = (self.reason, self.context, self.object, self.user)
        same = mine == (other.reason, other.context, other.object, other.user)
        return same and self.created_ms - other.updated_ms <= TOGETHER_MS


class Denials:
    """The refusals of a server, newest first."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._entries: list[Denial] = []
        self._numbers = count()

    def add(
        self, reason: str, context: str, what: bytes, user: bytes, client: str, now_ms: int
    ) -> None:
        fresh = Denial(-1, reason, context, what, user, client, now_ms, now_ms)
        known = next(filter(fresh.repeats, islice(self._entries, COMPARED)), None)
        if known is not None:
            self._entries.remove(known)
            known.count += 1
            known.client, known.updated_ms = client, now_ms
            fresh = known
        else:
            fresh.number = next(self._numbers)
        self._entries.insert(0, fresh)
        del self._entries[self._length :]

    def newest(self, most: int) -> list[Denial]:
        return list(islice(self._entries, max(most, 0)))

    def resize(self, length: int) -> None:
        """Set the most entries that are kept, from the next one on."""
        self._length = length

    def clear(self) -> None:
        self._entries.clear()


_BLANK = re.compile(rb"[\s\0]")
_KEYS = re.compile(rb"%(R|W|RW|WR)(?:~(.*))?", re.IGNORECASE | re.DOTALL)


class BadRule(InvalidArgument):
    """An invalid rule; the text is the reason."""


_KINDS = ("cmd", "key", "channel")
"""The kinds of refusals; by rank, as in Redis."""


class Refusal(NamedTuple):
    """What a set of rules does not allow."""

    kind: str
    """``cmd``, ``key`` or ``channel``."""
    at: int
    """The position of the refused key or channel among the request's."""
    object: bytes

    @property
    def rank(self) -> tuple[int, int]:
        """The rank of this refusal: among several, the one with the highest rank is reported."""
        return _KINDS.index(self.kind), self.at


@dataclass(frozen=True, slots=True)
class KeyRule:
    """A pattern of keys that a user may read, write, or both."""

    pattern: bytes
    reads: bool = True
    writes: bool = True

    @property
    def text(self) -> bytes:
        if self == _EVERY_KEY:
            return b"%RW~*"  # Redis writes ~*, to which a file of users may add no pattern
        if self.reads and self.writes:
            return b"~" + self.pattern
        return (b"%R~" if self.reads else b"%W~") + self.pattern


_EVERY_KEY = KeyRule(b"*")


@dataclass(slots=True, eq=False)
class Rights:
    """One set of rules, and the commands and keys that it allows."""

    rules: list[bytes] = field(default_factory=lambda: [b"-@all"])
    """The rules of commands, in order; the first one is +@all or -@all."""
    all_keys: bool = False
    """The rule ``~*`` or ``allkeys``, to which no pattern may be added. ``%RW~*`` is a pattern."""
    keys: list[KeyRule] = field(default_factory=list)
    channels: list[bytes] = field(default_factory=list)
    allowed: frozenset[str] = frozenset()
    """Names of the allowed commands."""
    free: bool = False
    """Every command and every key is allowed; channels are checked apart from that."""
    _first: dict[str, set[bytes]] = field(default_factory=dict)
    """Commands of which only some first arguments are allowed, as in ``+select|0``."""
    _every_key: bool = False
    _tests: list[tuple[KeyRule, Callable[[bytes], bool]]] = field(default_factory=list)
    _channel_tests: list[Callable[[bytes], bool]] = field(default_factory=list)

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
        return b"~*" if self.all_keys else b" ".join(rule.text for rule in self.keys)

    @property
    def channels_text(self) -> bytes:
        return b" ".join(b"&" + pattern for pattern in self.channels)

    def refusal(self, command: Command, argv: Argv) -> Refusal | None:
        """Return what the rules refuse of a request; None if they allow it."""
        name = command.name
        if name not in self.allowed and not self._allows_first(name, argv):
            return Refusal("cmd", 0, name.encode())
        return self._key_refusal(command, argv) or self._channel_refusal(command, argv)

    def _key_refusal(self, command: Command, argv: Argv) -> Refusal | None:
        if self._every_key:
            return None
        if command.any_key is not None and command.any_key(argv):
            return Refusal("key", 0, command.keys_of(argv)[0])
        for at, use in enumerate(key_uses(command, argv)):
            if not self.may(use.key, use.reads, use.writes):
                return Refusal("key", at, use.key)
        return None

    def _channel_refusal(self, command: Command, argv: Argv) -> Refusal | None:
        if command.channels is None or command.channels.free:
            return None
        for at, name in enumerate(command.channels.at.of(argv)):
            if not self.allows_channel(name, command.channels.patterns):
                return Refusal("channel", at, name)
        return None

    def allows_channel(self, name: bytes, is_pattern: bool) -> bool:
        """Return whether a channel is allowed; a pattern is if all are, or an equal one."""
        if self.channels == [b"*"]:
            return True
        return name in self.channels if is_pattern else any(t(name) for t in self._channel_tests)

    def _allows_first(self, name: str, argv: Argv) -> bool:
        return len(argv) > 1 and argv[1].lower() in self._first.get(name, ())

    def may(self, key: bytes, reads: bool, writes: bool) -> bool:
        """Return whether one rule allows to read or write a key, or both."""
        return any(
            test(key)
            for rule, test in self._tests
            if (rule.reads or not reads) and (rule.writes or not writes)
        )

    def compute_permissions(self, table: Table) -> None:
        """Compute the allowed commands and keys from the rules."""
        commands = list(every(table))
        allowed: set[str] = set()
        self._first = {}
        for rule in self.rules:
            names = resolve_rule(rule[1:], commands)
            allowed = allowed | names if rule[:1] == b"+" else allowed - names
            for name in names & self._first.keys():
                del self._first[name]
            command, _, word = rule[1:].partition(b"|")
            if rule[:1] == b"+" and word and not names:
                self._first.setdefault(text(command), set()).add(word)
        self.allowed = frozenset(allowed)
        rules = [_EVERY_KEY] if self.all_keys else self.keys
        self._tests = [(rule, matcher(rule.pattern)) for rule in rules]
        self._channel_tests = [matcher(pattern) for pattern in self.channels]
        self._every_key = _EVERY_KEY in rules
        self.free = self._every_key and len(allowed) == len(commands)

    def apply(self, rule: bytes, table: Table) -> None:
        """Add a rule; BadRule if it is invalid."""
        plain = _PLAIN_RULES.get(rule.lower())
        if plain is not None:
            plain(self)
        elif rule[:1] in (b"+", b"-"):
            self._add_commands(rule.lower(), table)
        elif rule[:1] in (b"~", b"%"):
            self._add_keys(rule)
        elif rule[:1] == b"&":
            self._add_channels(rule[1:])
        else:
            raise BadRule("Syntax error")

    def _add_commands(self, rule: bytes, table: Table) -> None:
        word = rule[1:]
        if word == b"@all":
            self.rules = [rule]
            return
        if not _is_known(word, table):
            _check_first(rule, table)
        within = word + b"|"  # the rule holds for subcommands too
        kept = [each for each in self.rules if each[1:] != word and not each.startswith(within, 1)]
        self.rules = [*kept, rule]

    def _add_keys(self, word: bytes) -> None:
        if word == b"~*":
            return _keys(True)(self)
        if self.all_keys:
            raise _without_effect("allkeys", "resetkeys", "patterns")
        rule = _key_rule(word)
        for each in self.keys:
            if each.pattern == rule.pattern:
                reads, writes = each.reads or rule.reads, each.writes or rule.writes
                rule = KeyRule(rule.pattern, reads, writes)
                self.keys[self.keys.index(each)] = rule
                break
        else:
            self.keys.append(rule)

    def _add_channels(self, pattern: bytes) -> None:
        if pattern == b"*":
            self.channels = [pattern]
        elif self.channels == [b"*"]:
            raise _without_effect("allchannels", "resetchannels", "channels")
        elif _BLANK.search(pattern):
            raise BadRule("Syntax error")
        elif pattern not in self.channels:
            self.channels.append(pattern)


def _key_rule(word: bytes) -> KeyRule:
    """Return the rule of ``~pattern`` or ``%R~pattern``; BadRule if it is none."""
    keys = _KEYS.fullmatch(b"%RW" + word if word[:1] == b"~" else word)
    if keys is None or _BLANK.search(word):  # a file separates rules by blanks
        raise BadRule("Syntax error")
    kinds = keys[1].upper()
    return KeyRule(keys[2] or b"", b"R" in kinds, b"W" in kinds)


def _is_known(word: bytes, table: Table) -> bool:
    """Return whether a word is a category, or a command of kvstream or Redis."""
    if word[:1] == b"@":
        return text(word[1:]) in CATEGORIES
    return bool(resolve_rule(word, every(table))) or is_absent(text(word))


def _check_first(rule: bytes, table: Table) -> None:
    """Raise BadRule unless the rule allows a command with one first argument: ``+select|0``."""
    name, _, word = rule[1:].rpartition(b"|")
    if rule[:1] == b"+" and b"|" in name and _is_known(name, table):
        raise BadRule("Allowing first-arg of a subcommand is not supported")
    if rule[:1] == b"+" and not word and _is_known(name, table):
        raise BadRule("Syntax error")
    if rule[:1] == b"-" or not word or not isinstance(table.get(name), Command):
        raise BadRule("Unknown command or category name in ACL")


def _without_effect(flag: str, reset: str, what: str) -> BadRule:
    return BadRule(
        f"Adding a pattern after the * pattern (or the '{flag}' flag) is not valid and does "
        f"not have any effect. Try '{reset}' to start with an empty list of {what}"
    )


def _keys(every: bool) -> Callable[[Rights], None]:
    def apply(rights: Rights) -> None:
        rights.all_keys, rights.keys = every, []

    return apply


def _all_channels(rights: Rights) -> None:
    rights.channels = [b"*"]


def _commands(rule: bytes) -> Callable[[Rights], None]:
    def apply(rights: Rights) -> None:
        rights.rules = [rule]

    return apply


_PLAIN_RULES: dict[bytes, Callable[[Rights], None]] = {
    b"allkeys": _keys(True),
    b"resetkeys": _keys(False),
    b"allchannels": _all_channels,
    b"resetchannels": lambda rights: rights.channels.clear(),
    b"allcommands": _commands(b"+@all"),
    b"nocommands": _commands(b"-@all"),
}


DEFAULT = b"default"
_HASH = re.compile(rb"[0-9a-f]{64}")


class NoPermission(RequestError):
    """The user's rules do not allow a request."""

    code = "NOPERM"

    def __init__(self, message: str, kind: str, what: bytes) -> None:
        super().__init__(message)
        self.kind = kind
        """``cmd``, ``key`` or ``channel``."""
        self.object = what


class WrongPassword(RequestError):
    """AUTH with a wrong name or password."""

    code = "WRONGPASS"

    def __init__(self) -> None:
        super().__init__("invalid username-password pair or user is disabled.")


@dataclass(slots=True, eq=False)
class User:
    """One user."""

    name: bytes
    on: bool = False
    nopass: bool = False
    passwords: dict[bytes, None] = field(default_factory=dict)
    """SHA-256 hashes in hexadecimal digits, in the order in which they were given."""
    root: Rights = field(default_factory=Rights)
    selectors: list[Rights] = field(default_factory=list)
    """More sets of rules: one set must allow the whole request."""
    free: bool = False
    """Every command and every key is allowed; channels are checked apart from that."""
    all_channels: bool = False
    """Every channel is allowed, too."""
    skips_sanitizing: bool = False
    """The user has the flag skip-sanitize-payload. It is without effect: payloads are verified."""

    @property
    def flags(self) -> list[bytes]:
        """The flags that ACL LIST and GETUSER show, in Redis's order."""
        words = [b"on" if self.on else b"off"]
        words += [b"nopass"] if self.nopass else []
        return [*words, b"skip-sanitize-payload" if self.skips_sanitizing else b"sanitize-payload"]

    def describe(self) -> bytes:
        """Return the rules of this user, as ACL LIST shows them."""
        words = self.flags
        words += [b"#" + digest for digest in self.passwords]
        words += [self.root.text, *(b"(%b)" % rights.text for rights in self.selectors)]
        return b"user %b %b" % (self.name, b" ".join(words))

    def admits(self, password: bytes) -> bool:
        """Return whether a password is valid, in the same time whichever one matches."""
        if not self.on:
            return False
        digest = sha256(password)
        known = [hmac.compare_digest(digest, each) for each in self.passwords]
        return self.nopass or any(known)

    def check(self, command: Command, argv: Argv) -> None:
        """Raise NoPermission if the rules do not allow a request."""
        if (self.free and command.channels is None) or Flag.NO_AUTH in command.flags:
            return
        refusals: list[Refusal] = []
        for rights in (self.root, *self.selectors):
            refusal = rights.refusal(command, argv)
            if refusal is None:
                return
            refusals.append(refusal)
        worst = max(refusals, key=attrgetter("rank"))
        message = f"No permissions to access a {worst.kind}"
        if worst.kind == "cmd":
            message = (
                f"User {text(self.name)} has no permissions to run the '{command.name}' command"
            )
        raise NoPermission(message, worst.kind, worst.object)

    @property
    def channels(self) -> set[bytes]:
        """The patterns of channels of all sets of rules."""
        return {pattern for rights in (self.root, *self.selectors) for pattern in rights.channels}

    def allows_channel(self, name: bytes, is_pattern: bool) -> bool:
        """Return whether one set of rules allows a channel, or a pattern of channels."""
        sets = (self.root, *self.selectors)
        return any(rights.allows_channel(name, is_pattern) for rights in sets)

    def may_read(self, key: bytes) -> bool:
        """Return whether one set of rules allows to read a key."""
        sets = (self.root, *self.selectors)
        return self.free or any(rights.may(key, reads=True, writes=False) for rights in sets)

    def check_writes(self, keys: Iterable[bytes]) -> None:
        """Raise NoPermission unless one set of rules allows to write every key."""
        asked = list(keys)
        refused = [
            next((key for key in asked if not rights.may(key, reads=False, writes=True)), None)
            for rights in (self.root, *self.selectors)
        ]
        if not self.free and None not in refused:
            raise NoPermission("No permissions to access a key", "key", refused[0] or b"")

    def compute_permissions(self, table: Table) -> None:
        """Compute the allowed commands and keys from the rules."""
        for rights in (self.root, *self.selectors):
            rights.compute_permissions(table)
        self.free = self.root.free
        self.all_channels = self.free and self.root.channels == [b"*"]


def sha256(password: bytes) -> bytes:
    return hashlib.sha256(password).hexdigest().encode()


class Acl:
    """All users by name, ``default`` always among them."""

    def __init__(
        self,
        table: Table,
        password: str = "",
        file: Path | None = None,
        all_channels: bool = False,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Load the users of the file, which overrides ``password``.

        ``changed`` is called after each change of rules.
        """
        self._table, self._changed = table, changed
        self.all_channels = all_channels
        """A new set of rules allows every channel."""
        self.users: dict[bytes, User] = {}
        self.default = self.set_user(DEFAULT, [b"on", b"nopass", b"~*", b"&*", b"+@all"])
        if password:
            self.require(password.encode("utf-8", "surrogateescape"))
        if file is not None:
            self.load(file)

    @property
    def is_open(self) -> bool:
        """Return whether the default user needs no password."""
        return self.default.on and self.default.nopass

    def require(self, password: bytes) -> None:
        """Make this the only password of the default user; empty: it needs none."""
        self.set_user(DEFAULT, [b"resetpass", b">" + password if password else b"nopass"])

    def authenticate(self, name: bytes, password: bytes) -> User:
        """Return the user of a name and password, or raise WrongPassword."""
        user = self.users.get(name)
        if user is None:
            hmac.compare_digest(sha256(password), sha256(b""))  # takes as long as for a known name
            raise WrongPassword
        if not user.admits(password):
            raise WrongPassword
        return user

    def set_user(self, name: bytes, rules: Iterable[bytes]) -> User:
        """Create or change a user by rules, by all of them or none."""
        existing = self.users.get(name)
        user = User(name, root=self._rights()) if existing is None else deepcopy(existing)
        for rule in _join(rules):
            self._apply(user, rule)
        user.compute_permissions(self._table)
        if existing is None:
            self.users[name] = user
        else:
            user = _assign(existing, user)
        self._changed()
        return user

    def delete_users(self, names: Argv) -> list[User]:
        """Delete users, all but the default one, and return those that existed."""
        if DEFAULT in names:
            raise InvalidArgument("The 'default' user cannot be removed")
        users = [self.users.pop(name, None) for name in names]
        return [user for user in users if user is not None]

    def save(self, path: Path) -> None:
        """Write all users to a file, atomically; RequestError if that fails."""
        lines = [user.describe() + b"\n" for _, user in sorted(self.users.items())]
        try:
            files.write(path, b"".join(lines))
        except OSError as error:
            reason = f"writing file '{path}': {error.strerror}"
            raise RequestError(f"There was an error trying to save the ACLs, {reason}") from None

    def load(self, path: Path) -> list[User]:
        """Replace all users by those of a file; return the users that it does not have.

        Raises InvalidArgument, and keeps all users, if the file cannot be read or a line is wrong.
        """
        fresh = self._read(path)
        gone = [user for name, user in self.users.items() if name not in fresh.users]
        for name, user in fresh.users.items():
            self.users[name] = _assign(self.users.get(name, user), user)
        for user in gone:
            del self.users[user.name]
        self._changed()
        return gone

    def _read(self, path: Path) -> "Acl":
        """Return the users of a file; InvalidArgument names the file and its wrong lines."""
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            reason = f"Error loading ACLs, opening file '{path}': {error.strerror}"
            raise InvalidArgument(reason) from error
        fresh = Acl(self._table, all_channels=self.all_channels)
        seen: set[bytes] = set()
        wrong: list[str] = []
        for number, line in enumerate(lines, 1):
            try:
                fresh._add_line(line.split(), seen)
            except InvalidArgument as error:  # its cause does not show the rule: a password
                wrong.append(f"{path}:{number}: {error.__cause__ or error}")
        if wrong:
            more = len(wrong) - WRONG_LINES_SHOWN
            wrong[WRONG_LINES_SHOWN:] = [f"{more} more lines are wrong"] if more > 0 else []
            raise InvalidArgument(". ".join(text.rstrip(".") for text in wrong))
        return fresh

    def _add_line(self, words: list[bytes], seen: set[bytes]) -> None:
        """Add the user of a line of the file; ``seen`` has the names of the lines before."""
        if not words:
            return
        if words[0] != b"user" or len(words) < 2:
            raise InvalidArgument("should start with user keyword followed by the username")
        if words[1] in seen:
            raise InvalidArgument(f"Duplicate user '{text(words[1])}' found")
        seen.add(words[1])
        self.set_user(words[1], [b"reset", *words[2:]])

    def _rights(self) -> Rights:
        """Return a new set of rules."""
        return Rights(channels=[b"*"] if self.all_channels else [])

    def _apply(self, user: User, rule: bytes) -> None:
        try:
            self._apply_rule(user, rule)
        except BadRule as reason:
            raise InvalidArgument(
                f"Error in ACL SETUSER modifier '{text(rule)}': {reason}"
            ) from reason

    def _apply_rule(self, user: User, rule: bytes) -> None:
        if not rule:
            return
        plain = _PLAIN.get(rule.lower())
        marked = _MARKED.get(rule[:1])
        if plain is not None:
            plain(user)
            if plain is _reset:
                user.root = self._rights()
        elif rule[:1] == b"(" and rule[-1:] == b")":
            selector = self._rights()
            for word in rule[1:-1].split():
                selector.apply(word, self._table)
            user.selectors.append(selector)
        elif marked is not None:
            marked(user, rule[1:])
        else:
            user.root.apply(rule, self._table)


def _join(rules: Iterable[bytes]) -> list[bytes]:
    """Join the rules of a selector, which a request or a file may have as separate words."""
    joined: list[bytes] = []
    opened = begun = b""
    for rule in rules:
        if begun:
            begun += b" " + rule
        elif rule[:1] == b"(" and rule[-1:] != b")":
            opened = begun = rule
            continue
        else:
            joined.append(rule)
        if begun and rule[-1:] == b")":
            joined.append(begun)
            begun = b""
    if begun:
        raise InvalidArgument(
            f"Unmatched parenthesis in acl selector starting at '{text(opened)}'."
        )
    return joined


# --- rules --------------------------------------------------------------------------------------


def _assign(user: User, other: User) -> User:
    """Make a user equal to another in place, so that its clients keep it."""
    for attribute in User.__slots__:
        setattr(user, attribute, getattr(other, attribute))
    return user


def _reset(user: User) -> None:
    _assign(user, User(user.name))


def _flag(attribute: str, is_set: bool) -> Callable[[User], None]:
    return lambda user: setattr(user, attribute, is_set)


def _without_passwords(nopass: bool) -> Callable[[User], None]:
    def apply(user: User) -> None:
        user.nopass, user.passwords = nopass, {}

    return apply


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


_PLAIN: dict[bytes, Callable[[User], None]] = {
    b"on": _flag("on", True),
    b"off": _flag("on", False),
    b"nopass": _without_passwords(True),
    b"resetpass": _without_passwords(False),
    b"reset": _reset,
    b"clearselectors": lambda user: user.selectors.clear(),
    b"sanitize-payload": _flag("skips_sanitizing", False),
    b"skip-sanitize-payload": _flag("skips_sanitizing", True),
}
_MARKED: dict[bytes, Callable[[User, bytes], None]] = {
    b">": lambda user, password: _add_hash(user, sha256(password)),
    b"<": lambda user, password: _remove_hash(user, sha256(password)),
    b"#": _add_hash,
    b"!": _remove_hash,
}
