"""Plain strings, the second kind of value: one metadata row each, and pieces of what is large.

::

    string := kind(u8=2) version(u8=1|3) expire_at(u64) generation(u64) value
            | kind(u8=2) version(u8=2) expire_at(u64) generation(u64)
              length(u64) size(u32) written(u64) prefix

Numbers are big-endian; an expiry of 0 stands for never; the generation is that of the row for SCAN.
The value is whatever follows, in version 3 one that was written in parts, or, in version 2, stands
in the pieces that the rest tells of (``meta/pieces.py``). A string is read from its rows and
written into them, never kept in memory. This module knows the row, and which record is of which
kind; commands it does not know.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Protocol, TypeAlias

from kvstream.errors import Corruption
from kvstream.layout.keys import (
    COUNTED_MAX,
    database_of,
    generation_in,
    message_prefix,
    stream_row,
)
from kvstream.meta import pieces
from kvstream.meta.pieces import Pieces
from kvstream.meta.records import STREAM_KIND, StreamMeta
from kvstream.storage.batch import Batch

STRING_KIND = 2
WHOLE_VERSION, PIECES_VERSION, PARTS_VERSION = 1, 2, 3
_HEAD = Struct(">BB QQ")
_PIECES = Struct(">QIQ")


class Writing(Protocol):
    """What a string needs of the transaction that changes it."""

    batch: Batch

    def allocate(self) -> int: ...


@dataclass(slots=True)
class StringMeta:
    """A plain string, and what makes it a key."""

    name: bytes
    row: bytes
    generation: int
    value: bytes
    """The value; empty where it stands in pieces."""
    expire_at: int = 0
    pieces: Pieces | None = None
    in_parts: bool = False
    """It was written over, or something put behind it: Redis holds it so that this costs little."""

    @property
    def length(self) -> int:
        """How many bytes the value has."""
        return len(self.value) if self.pieces is None else self.pieces.length

    @property
    def prefix(self) -> bytes | None:
        """What the keys of its pieces begin with; None without any."""
        return None if self.pieces is None else self.pieces.prefix

    def read(self, batch: Batch, start: int = 0, end: int | None = None) -> bytes:
        """Return the value, or its bytes from ``start`` to ``end``."""
        if self.pieces is None:
            return self.value[start:end]
        return pieces.read(batch, self.pieces, start, end)

    def steps(self, batch: Batch) -> Iterator[bytes]:
        """Return the value as it is now, to be read by and by."""
        return iter((self.value,)) if self.pieces is None else pieces.steps(batch, self.pieces)

    def put(self, txn: Writing, value: bytes) -> None:
        """Have the string hold a value; whoever does so has the record written."""
        self.in_parts = False
        if not pieces.is_large(len(value)):
            self.drop_pieces(txn.batch)
            self.value = value
            return
        old, number = self.pieces, txn.allocate()
        prefix = old.prefix if old else message_prefix(self.name, self.generation)
        self.value, self.pieces = b"", pieces.write(txn.batch, prefix, value, number, old)

    def overwrite(self, txn: Writing, offset: int, part: bytes) -> None:
        """Put bytes over the value from an offset on, zeros between, in the same way."""
        if self.pieces is None:
            value = self.value
            tail = value[offset + len(part) :]
            self.put(txn, value[:offset].ljust(offset, b"\0") + part + tail)
            self.in_parts = True
        elif part:
            number = txn.allocate()
            self.pieces = pieces.overwrite(txn.batch, self.pieces, offset, part, number)

    def drop_pieces(self, batch: Batch) -> None:
        """Delete what stands outside of the record."""
        if self.pieces is not None:
            pieces.drop(batch, self.pieces)
            self.pieces = None

    def encode(self) -> bytes:
        at = self.pieces
        whole = PARTS_VERSION if self.in_parts else WHOLE_VERSION
        version = whole if at is None else PIECES_VERSION
        head = _HEAD.pack(STRING_KIND, version, self.expire_at, self.generation)
        if at is None:
            return head + self.value
        return head + _PIECES.pack(at.length, at.size, at.written) + at.prefix

    @classmethod
    def decode(cls, name: bytes, record: bytes) -> "StringMeta":
        """Return the string of a record; Corruption where it is none."""
        if len(record) < _HEAD.size:
            raise _damaged(name, "it is too short")
        kind, version, expire_at, generation = _HEAD.unpack_from(record)
        if kind != STRING_KIND:
            raise _damaged(name, f"unknown kind {kind}")
        if version not in (WHOLE_VERSION, PIECES_VERSION, PARTS_VERSION):
            raise _damaged(name, f"unknown version {version}")
        if not 0 < generation < COUNTED_MAX:
            raise _damaged(name, f"impossible number {generation}")
        string = cls(name, stream_row(name), generation, record[_HEAD.size :], expire_at)
        string.in_parts = version == PARTS_VERSION
        if version == PIECES_VERSION:
            string.value, string.pieces = b"", _pieces_of(string)
        return string


def _pieces_of(string: StringMeta) -> Pieces:
    """Return what the rest of a record tells of its pieces."""
    try:
        length, size, written = _PIECES.unpack_from(string.value)
    except StructError:
        raise _damaged(string.name, "it is too short") from None
    found = Pieces(string.value[_PIECES.size :], length, size, written)
    own = generation_in(found.prefix, database_of(string.name)) == string.generation
    if not own or not found.is_possible:
        raise _damaged(string.name, "its pieces cannot be its own")
    return found


def _damaged(name: bytes, why: str) -> Corruption:
    return Corruption(f"the record of key {name[2:]!r} is damaged: {why}")


Key: TypeAlias = StreamMeta | StringMeta
"""What a name may stand for."""


_STREAM = bytes([STREAM_KIND])


def decode_key(name: bytes, record: bytes) -> Key:
    """Return what a record holds; Corruption where it is of no known kind."""
    if record.startswith(_STREAM):
        return StreamMeta.decode(name, record)
    return StringMeta.decode(name, record)
