"""Files and pipes as lines of bytes, and how far into them an import has come.

A ``Source`` never reads ahead of the lines that it has given out, so that a position in it is
exact; and it can tell that a pipe has nothing more for now. It knows no format and no store.
"""

import os
import select
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import xxhash

from kvstream.errors import RequestError

CHUNK = 256 * 1024
LINE_BYTES_MAX = 1 << 30
"""Longest line: an entry of the greatest size, with room for its escapes."""


class Source:
    """A file or a pipe, line by line."""

    def __init__(self, stream: BinaryIO, label: str, identity: bytes | None = None) -> None:
        self.label = label
        """What messages call it."""
        self.identity = identity
        """What a later run knows it by; None: it cannot be known again."""
        self.size: int | None = None
        """Its bytes, where they can be known."""
        self._read = _reader(stream)
        self._descriptor = _pollable(stream)
        self._buffer = b""
        self._at = 0
        if self._descriptor is None:
            self.size = _size(stream)

    def readline(self) -> bytes:
        """Return the next line with its newline; the last may lack it; empty at the end."""
        parts: list[bytes] = []
        length = 0
        while (end := self._buffer.find(b"\n", self._at) + 1) == 0:
            parts.append(self._buffer[self._at :])
            length += len(parts[-1])
            if length > LINE_BYTES_MAX:
                raise RequestError(f"{self.label}: a line of more than {LINE_BYTES_MAX:,} bytes")
            self._buffer, self._at = self._read(CHUNK), 0
            if not self._buffer:
                return b"".join(parts)
        parts.append(self._buffer[self._at : end])
        self._at = end
        return b"".join(parts)

    def read(self, length: int) -> bytes:
        """Return the next bytes, ``length`` of them at most; empty at the end."""
        if self._at == len(self._buffer):
            self._buffer, self._at = self._read(CHUNK), 0
        part = self._buffer[self._at : self._at + length]
        self._at += len(part)
        return part

    def pauses(self) -> bool:
        """Tell whether the next line is yet to come through the pipe."""
        if self._descriptor is None or self._buffer.find(b"\n", self._at) >= 0:
            return False
        readable, _, _ = select.select([self._descriptor], [], [], 0)
        return not readable


def _reader(stream: BinaryIO) -> Callable[[int], bytes]:
    """Return what reads from ``stream`` without waiting for more than there is."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return stream.read
    return lambda length: os.read(descriptor, length)


def _pollable(stream: BinaryIO) -> int | None:
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None
    return None if stat.S_ISREG(os.fstat(descriptor).st_mode) else descriptor


def _size(stream: BinaryIO) -> int | None:
    try:
        return os.fstat(stream.fileno()).st_size
    except (OSError, ValueError, AttributeError):
        return None


def identity_of(path: Path | None, name: bytes | None) -> bytes | None:
    """Return what a source is known by: the name given, or else the path of a regular file."""
    if name is not None:
        return b"name:" + name
    if path is None or not path.is_file():
        return None
    return b"file:" + os.fsencode(path.resolve())


class Position:
    """How far a source has been worked off, and the digest of all bytes up to there."""

    def __init__(self) -> None:
        self.offset = 0
        self.line = 0
        """Lines worked off."""
        self._hash = xxhash.xxh3_128()

    def copy(self) -> "Position":
        """Return the same position, to go on from while this one stays."""
        other = Position()
        other.offset, other.line, other._hash = self.offset, self.line, self._hash.copy()
        return other

    def advance(self, raw: bytes, lines: int) -> None:
        """Count ``raw`` as worked off."""
        self._hash.update(raw)
        self.offset += len(raw)
        self.line += lines

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    def skip(self, source: Source, offset: int, line: int) -> None:
        """Read on to where an earlier run has come to; less where the source ends before."""
        while self.offset < offset and (part := source.read(min(CHUNK, offset - self.offset))):
            self.advance(part, 0)
        self.line = line
