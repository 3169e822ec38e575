"""MONITOR: every command, shown to those who asked, as it begins."""

import time
from collections.abc import Iterable

from kvstream.server.client import Argv, Client

_US = 1_000_000
_SIGNS = {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t", 7: "\\a", 8: "\\b"}
_SIGNS |= {ord('"'): '\\"', ord("\\"): "\\\\"}
_SHOWN_WORDS = {b"ACL": 2, b"AUTH": 1}
"""Words of commands whose others may be passwords."""
_SECRETS = {
    *(b"masterauth", b"masteruser", b"requirepass", b"tls-key-file-pass"),
    b"tls-client-key-file-pass",
}
"""Settings that are passwords."""
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
    shown = _SHOWN_WORDS.get(word)
    if shown is not None:
        return argv[:shown] + [_REDACTED] * (len(argv) - shown)
    if word == b"CONFIG" and any(name.lower() in _SECRETS for name in argv[2::2]):
        return [_of_config(argv, at) for at in range(len(argv))]
    return _of_hello(argv) if word == b"HELLO" else argv


def _of_config(argv: Argv, at: int) -> bytes:
    """Return a word of CONFIG SET, but for the value of a setting that is a password."""
    is_value = at > 2 and at % 2 == 1
    return _REDACTED if is_value and argv[at - 1].lower() in _SECRETS else argv[at]


def _of_hello(argv: Argv) -> Argv:
    """Return HELLO without the name and the password behind AUTH."""
    words = [word.upper() for word in argv]
    if b"AUTH" not in words[2:]:
        return argv
    at = words.index(b"AUTH", 2) + 1
    hidden = argv[at : at + 2]
    return argv[:at] + [_REDACTED] * len(hidden) + argv[at + 2 :]


def quoted(word: bytes) -> str:
    """Return a word in quotes, what cannot be printed as Redis writes it."""
    return '"' + "".join(_sign(byte) for byte in word) + '"'


def _sign(byte: int) -> str:
    return _SIGNS.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}")
