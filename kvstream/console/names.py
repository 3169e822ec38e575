"""Names of streams, groups and fields as parts of a URL.

A name is any bytes, and servers and proxies decode ``%2F`` before they route. So every byte that
has a meaning in a URL is written ``~XX`` instead: ``a/b`` is ``a~2Fb``.
"""

import re

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._:@")
_ESCAPE = re.compile(rb"~([0-9A-F]{2})")


def segment_of(name: bytes) -> str:
    """Return a name as one segment of a path; "." and ".." are escaped, too."""
    if not name.strip(b"."):
        return "".join(f"~{byte:02X}" for byte in name) or "~"
    return "".join(chr(byte) if byte in _PLAIN else f"~{byte:02X}" for byte in name)


def name_of(segment: str) -> bytes:
    """Return the name that a segment stands for."""
    raw = segment.encode("utf-8", "surrogateescape")
    return b"" if raw == b"~" else _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), raw)
