"""Plain strings, the second kind of value: one metadata row each.

::

    string := kind(u8=2) version(u8=1) expire_at(u64) generation(u64) value

Numbers are big-endian; an expiry of 0 stands for never; the generation is that of the row for SCAN.
The value is whatever follows. A string is read from its row and written into it, never kept in
memory. This module knows the row, and which record is of which kind; commands it does not know.
"""

from dataclasses import dataclass
from struct import Struct
from typing import TypeAlias

from kvstream.errors import Corruption
from kvstream.layout.keys import COUNTED_MAX, stream_row
from kvstream.meta.records import STREAM_KIND, StreamMeta

STRING_KIND = 2
STRING_VERSION = 1
_HEAD = Struct(">BB QQ")


@dataclass(slots=True)
class StringMeta:
    """A plain string, and what makes it a key."""

    name: bytes
    row: bytes
    generation: int
    value: bytes
    expire_at: int = 0

    def encode(self) -> bytes:
        head = _HEAD.pack(STRING_KIND, STRING_VERSION, self.expire_at, self.generation)
        return head + self.value

    @classmethod
    def decode(cls, name: bytes, record: bytes) -> "StringMeta":
        """Return the string of a record; Corruption where it is none."""
        if len(record) < _HEAD.size:
            raise _damaged(name, "it is too short")
        kind, version, expire_at, generation = _HEAD.unpack_from(record)
        if kind != STRING_KIND:
            raise _damaged(name, f"unknown kind {kind}")
        if version != STRING_VERSION:
            raise _damaged(name, f"unknown version {version}")
        if not 0 < generation < COUNTED_MAX:
            raise _damaged(name, f"impossible number {generation}")
        return cls(name, stream_row(name), generation, record[_HEAD.size :], expire_at)


def _damaged(name: bytes, why: str) -> Corruption:
    return Corruption(f"the record of key {name[2:]!r} is damaged: {why}")


Key: TypeAlias = StreamMeta | StringMeta
"""What a name may stand for."""


def decode_key(name: bytes, record: bytes) -> Key:
    """Return what a record holds; Corruption where it is of no known kind."""
    if record[:1] == bytes([STREAM_KIND]):
        return StreamMeta.decode(name, record)
    return StringMeta.decode(name, record)
