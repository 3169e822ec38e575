"""The manifest of an append-only directory: which of its files make up the data, in which order.

::

    manifest := line*
    line     := "file" name "seq" number "type" ("b" | "i" | "h") (key value)* LF | "#" text LF

b is the base, of which there is at most one; i are the increments, whose numbers rise; h are files
that Redis is about to delete. Keys that are unknown are passed over, as Redis does.
"""

import os
from pathlib import Path

from kvstream.errors import BadPayload, ProtocolError
from kvstream.resp.inline import split_words

SUFFIX = ".manifest"
TEMPORARY_PREFIX = "temp-"
MANIFEST_BYTES_MAX = 1 << 20
"""A line is about 60 bytes, and Redis merges its increments at every rewrite."""

_WORDS_LEAST = 6


def files(manifest: Path) -> list[Path]:
    """Return the base, if there is one, and the increments; BadPayload where it is no manifest."""
    with manifest.open("rb") as file:
        text = file.read(MANIFEST_BYTES_MAX + 1)
    if len(text) > MANIFEST_BYTES_MAX:
        raise BadPayload(f"a manifest of more than {MANIFEST_BYTES_MAX} bytes")
    bases: list[bytes] = []
    increments: list[bytes] = []
    last = at = 0
    for line in text.splitlines(keepends=True):
        if not line.startswith(b"#"):
            name, seq, kind = _entry(line, at)
            if kind == b"b":
                bases.append(name)
            elif kind == b"i":
                if seq <= last:
                    raise BadPayload("the increments' numbers do not rise", at)
                increments.append(name)
                last = seq
        at += len(line)
    if len(bases) > 1:
        raise BadPayload("a manifest with two base files")
    if not bases and not increments:
        raise BadPayload("a manifest without files")
    return [manifest.parent / os.fsdecode(name) for name in bases + increments]


def _entry(line: bytes, at: int) -> tuple[bytes, int, bytes]:
    """Return name, number and type of a file."""
    try:
        words = split_words(line.rstrip(b"\r\n"))
    except ProtocolError:
        words = []
    told = dict(zip(words[::2], words[1::2], strict=False))
    name, seq, kind = told.get(b"file", b""), told.get(b"seq", b""), told.get(b"type", b"")
    if (
        len(words) < _WORDS_LEAST
        or len(words) % 2
        or not line.endswith(b"\n")
        or not seq.isdigit()
        or kind not in (b"b", b"i", b"h")
    ):
        raise BadPayload("no line of a manifest", at)
    if not name or b"/" in name or b"\0" in name or name in (b".", b".."):
        raise BadPayload("a manifest names a file elsewhere", at)
    return name, int(seq), kind
