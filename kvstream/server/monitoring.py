"""MONITOR: every command, shown to those who asked, as it begins."""

import time
from collections.abc import Iterable

from kvstream.server.client import Argv, Client

_US = 1_000_000
_SIGNS = {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t", 7: "\\a", 8: "\\b"}
_SIGNS |= {ord('"'): '\\"', ord("\\"): "\\\\"}
_SECRET = {b"ACL", b"AUTH", b"HELLO"}
"""Commands whose arguments may be passwords."""
_REDACTED = b"(redacted)"


def tell(monitors: Iterable[Client], client: Client, argv: Argv) -> None:
    """Show a client's request to the monitors."""
    seconds, microseconds = divmod(time.time_ns() // 1000, _US)
    shown = " ".join(quoted(word) for word in told(argv))
    line = f"+{seconds}.{microseconds:06} [{client.db} {client.address}] {shown}\r\n"
    data = line.encode("ascii")
    for monitor in list(monitors):  # one that reads too slowly goes meanwhile
        monitor.send(data)


def told(argv: Argv) -> Argv:
    """Return a request without what may be passwords."""
    word = argv[0].upper()
    if word in _SECRET:
        return argv[:1] + [_REDACTED] * (len(argv) - 1)
    if word == b"CONFIG" and any(name.lower() == b"requirepass" for name in argv[2::2]):
        return [_shown(argv, at) for at in range(len(argv))]
    return argv


def _shown(argv: Argv, at: int) -> bytes:
    """Return a word of CONFIG SET, but for the value of the setting that is a password."""
    is_value = at > 2 and at % 2 == 1
    return _REDACTED if is_value and argv[at - 1].lower() == b"requirepass" else argv[at]


def quoted(word: bytes) -> str:
    """Return a word in quotes, what cannot be printed as Redis writes it."""
    return '"' + "".join(_sign(byte) for byte in word) + '"'


def _sign(byte: int) -> str:
    return _SIGNS.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}")
