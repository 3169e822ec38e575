"""How a call is shown: in MONITOR, SLOWLOG and the log, without passwords."""

import re
import time
from collections.abc import Sequence

from kvstream.commands.command import Command
from kvstream.server.runtime.client import Argv, Client
from kvstream.server.stats import cut

_US = 1_000_000
_SIGNS = {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t", 7: "\\a", 8: "\\b"}
_SIGNS |= {ord('"'): '\\"', ord("\\"): "\\\\"}
_SHOWN_WORDS = {b"ACL": 2, b"AUTH": 1}
"""How many words of a command are shown; the others may be passwords."""
_SECRET = re.compile(rb".*pas.*|.*auth|(?:master|primary)user", re.IGNORECASE | re.DOTALL)
"""Settings of Redis and Valkey that hold passwords or user names; misspelt names match too."""
_REDACTED = b"(redacted)"


def monitor_line(client: Client, argv: Argv, in_script: bool) -> bytes:
    """Return the line of MONITOR for a client's request, or for a call of its script."""
    seconds, microseconds = divmod(time.time_ns() // 1000, _US)
    shown = " ".join(quote(word) for word in redact(argv))
    source = f"unix:{client.address.removesuffix(':0')}" if client.is_unix else client.address
    source = "lua" if in_script else source
    line = f"+{seconds}.{microseconds:06} [{client.db} {source}] {shown}\r\n"
    return line.encode("utf-8", "surrogateescape")


def redact(argv: Argv) -> Argv:
    """Return a request with its passwords replaced."""
    word = argv[0].upper()
    shown = _SHOWN_WORDS.get(word)
    if shown is not None:
        return argv[:shown] + [_REDACTED] * (len(argv) - shown)
    if word == b"CONFIG" and any(map(_SECRET.fullmatch, argv[2::2])):
        return [_of_config(argv, at) for at in range(len(argv))]
    return _of_hello(argv) if word == b"HELLO" else argv


def _of_config(argv: Argv, at: int) -> bytes:
    """Return a word of CONFIG SET, or ``(redacted)`` for a password."""
    is_value = at > 2 and at % 2 == 1
    return _REDACTED if is_value and _SECRET.fullmatch(argv[at - 1]) else argv[at]


def _of_hello(argv: Argv) -> Argv:
    """Return HELLO with the user name and password of AUTH replaced."""
    words = [word.upper() for word in argv]
    if b"AUTH" not in words[2:]:
        return argv
    at = words.index(b"AUTH", 2) + 1
    hidden = argv[at : at + 2]
    return argv[:at] + [_REDACTED] * len(hidden) + argv[at + 2 :]


def quote(word: bytes) -> str:
    """Return a word in quotes, escaped as Redis does."""
    return '"' + word.decode("latin-1").translate(_QUOTED) + '"'


def _sign(byte: int) -> str:
    return _SIGNS.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}")


_QUOTED = {byte: _sign(byte) for byte in range(256)}


class Request:
    """A request for a log line: its name, keys and size, but no value."""

    def __init__(self, command: Command, argv: Argv) -> None:
        self._command = command
        self._argv = argv

    def __str__(self) -> str:
        keys = cut([b"", *self._command.keys_of(self._argv)])[1:]
        words = [self._command.name.upper().replace("|", " "), *map(quote, keys)]
        size = sum(map(len, self._argv))
        return f"{' '.join(words)} (arguments: {len(self._argv) - 1}, bytes: {size})"


class Shown:
    """Truncated words for a log line, formatted only if the line is written."""

    def __init__(self, argv: Sequence[bytes]) -> None:
        self._argv = argv

    def __str__(self) -> str:
        return " ".join(map(quote, cut(self._argv)))
