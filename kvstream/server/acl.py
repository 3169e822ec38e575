"""Who may do what: users, their passwords as SHA-256, and what their rules come to.

A rule is a word of ACL SETUSER. A user's rules are applied to a copy, which takes the user's place
when all of them were understood. This module knows no client.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from kvstream.commands.args import Argv, text
from kvstream.commands.command import Command
from kvstream.errors import InvalidArgument, RequestError
from kvstream.server.rights import BadRule, Refusal, Rights, Table
from kvstream.storage import durable_files

DEFAULT = b"default"
_HASH = re.compile(rb"[0-9a-f]{64}")


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


@dataclass(slots=True, eq=False)
class User:
    """One user."""

    name: bytes
    on: bool = False
    nopass: bool = False
    passwords: dict[bytes, None] = field(default_factory=dict)
    """SHA-256 in hexadecimal digits, in the order in which they were given."""
    root: Rights = field(default_factory=Rights)
    selectors: list[Rights] = field(default_factory=list)
    """More sets of rules, in parentheses: one set alone must allow the whole of a request."""
    free: bool = False
    """Every command and every key: nothing need be looked up."""

    def describe(self) -> bytes:
        """Return the rules that make this user, as ACL LIST shows them."""
        words = [b"on" if self.on else b"off"]
        words += [b"nopass"] if self.nopass else []
        words += [b"#" + digest for digest in self.passwords]
        words += [self.root.text, *(b"(%b)" % rights.text for rights in self.selectors)]
        return b"user %b %b" % (self.name, b" ".join(words))

    def admits(self, password: bytes) -> bool:
        """Tell whether a password lets one in; every one that is known is looked at."""
        if not self.on:
            return False
        digest = sha256(password)
        known = [hmac.compare_digest(digest, each) for each in self.passwords]
        return self.nopass or any(known)

    def check(self, command: Command, argv: Argv) -> None:
        """Raise NoPermission where a request is not allowed."""
        if self.free or command.name in _ANYBODY:
            return
        worst: Refusal | None = None
        for rights in (self.root, *self.selectors):
            refusal = rights.refusal(command, argv)
            if refusal is None:
                return
            worst = refusal if worst is None else max(worst, refusal)
        assert worst is not None
        message = "No permissions to access a key"
        if worst.kind == "cmd":
            message = (
                f"User {text(self.name)} has no permissions to run the '{command.name}' command"
            )
        raise NoPermission(message, worst.kind, worst.object)

    def check_writes(self, keys: Iterable[bytes]) -> None:
        """Raise NoPermission unless one set of rules lets every key be written."""
        asked = list(keys)
        refused = [
            next((key for key in asked if not rights.may(key, reads=False, writes=True)), None)
            for rights in (self.root, *self.selectors)
        ]
        if not self.free and None not in refused:
            raise NoPermission("No permissions to access a key", "key", refused[0] or b"")

    def settle(self, table: Table) -> None:
        """Work out what the rules come to."""
        for rights in (self.root, *self.selectors):
            rights.settle(table)
        self.free = self.root.free


_ANYBODY = frozenset({"auth", "hello", "quit", "reset"})
"""Commands that no rule keeps anybody from, as in Redis."""


def sha256(password: bytes) -> bytes:
    return hashlib.sha256(password).hexdigest().encode()


class Acl:
    """All users by name; there is always ``default``."""

    def __init__(
        self,
        table: Table,
        password: str = "",
        file: Path | None = None,
    ) -> None:
        """Let the users of a file be, where there is one: their passwords are the file's."""
        self._table = table
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
        for rule in _joined(rules):
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
        seen = set()
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            words = line.split()
            if words and (words[0] != b"user" or len(words) < 2):
                raise InvalidArgument(f"{path}:{number}: should start with user keyword followed")
            if not words:
                continue
            if words[1] in seen:
                raise InvalidArgument(f"{path}:{number}: Duplicate user '{text(words[1])}' found")
            seen.add(words[1])
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
        if not rule:
            return
        plain = _PLAIN.get(rule.lower())
        marked = _MARKED.get(rule[:1])
        if plain is not None:
            plain(user)
        elif rule[:1] == b"(" and rule[-1:] == b")":
            selector = Rights()
            for word in rule[1:-1].split():
                selector.apply(word, self._table)
            user.selectors.append(selector)
        elif marked is not None:
            marked(user, rule[1:])
        else:
            user.root.apply(rule, self._table)


def _joined(rules: Iterable[bytes]) -> list[bytes]:
    """Return rules, those in parentheses as one: a request and a file may have them apart."""
    joined: list[bytes] = []
    begun = b""
    for rule in rules:
        if begun:
            begun += b" " + rule
        elif rule[:1] == b"(" and rule[-1:] != b")":
            begun = rule
            continue
        else:
            joined.append(rule)
        if begun and rule[-1:] == b")":
            joined.append(begun)
            begun = b""
    if begun:
        raise InvalidArgument(
            f"Unmatched parenthesis in acl selector starting at '{text(begun.split()[0])}'."
        )
    return joined


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


_PLAIN: dict[bytes, Callable[[User], None]] = {
    b"on": _switch(True),
    b"off": _switch(False),
    b"nopass": _no_password_needed,
    b"resetpass": _no_passwords,
    b"reset": _reset,
    b"clearselectors": lambda user: user.selectors.clear(),
    b"sanitize-payload": lambda user: None,
    b"skip-sanitize-payload": lambda user: None,
}
_MARKED: dict[bytes, Callable[[User, bytes], None]] = {
    b">": lambda user, password: _add_hash(user, sha256(password)),
    b"<": lambda user, password: _remove_hash(user, sha256(password)),
    b"#": _add_hash,
    b"!": _remove_hash,
}
