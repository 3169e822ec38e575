"""MONITOR: every command, shown to those who asked, as it begins."""

import time
from collections.abc import Iterable

from kvstream.server.client import Argv, Client

_US = 1_000_000
_SIGNS = {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t", 7: "\\a", 8: "\\b"}
_SIGNS |= {ord('"'): '\\"', ord("\\"): "\\\\"}
_SECRET = {b"ACL", b"AUTH", b"HELLO"}
"""Commands whose arguments may be passwords."""


def tell(monitors: Iterable[Client], client: Client, argv: Argv) -> None:
    """Show a client's request to the monitors."""
    seconds, microseconds = divmod(time.time_ns() // 1000, _US)
    shown = " ".join(quoted(word) for word in told(argv))
    line = f"+{seconds}.{microseconds:06} [{client.db} {client.address}] {shown}\r\n"
    data = line.encode("ascii")
    for monitor in monitors:
        monitor.send(data)


def told(argv: Argv) -> Argv:
    """Return a request without what may be passwords."""
    return argv[:1] + [b"(redacted)"] * (len(argv) - 1) if argv[0].upper() in _SECRET else argv


def quoted(word: bytes) -> str:
    """Return a word in quotes, what cannot be printed as Redis writes it."""
    return '"' + "".join(_sign(byte) for byte in word) + '"'


def _sign(byte: int) -> str:
    return _SIGNS.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}")
