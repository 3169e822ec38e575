"""The arguments of commands for COMMAND DOCS, read from how the commands are written.

``key [COUNT count] MAXLEN|MINID threshold id [id ...]`` becomes what Redis answers: words in
capitals are tokens, a token names the argument behind it, brackets are options, bars part
alternatives, and ``[x ...]`` behind an x tells that there may be several. No command is known here.
"""

import re
from dataclasses import dataclass, field, replace

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
