"""A node of a stream, and its row's bytes.

::

    node := last(id) appended(u32) live(u32) bytes(u32) names(msgpack array)

An ``id`` is 16 bytes. Numbers are big-endian.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from struct import error as StructError

import msgpack

from kvstream.errors import Corruption
from kvstream.ids import StreamID

_NODE = Struct(">QQ III")
_LIVE = Struct(">20x I")
_pack_names = msgpack.Packer(use_bin_type=False).pack
_KEPT_MAX = 4096
_names_before: tuple[tuple[bytes, ...] | None, bytes] = None, b""


@contextmanager
def damage_told(kind: str, name: object) -> Iterator[None]:
    """Make what decoding a damaged record raises a Corruption that names it."""
    try:
        yield
    except (StructError, ValueError) as error:
        raise damaged(kind, name, error) from error


def damaged(kind: str, name: object, error: Exception) -> Corruption:
    """Return the error for a record that cannot be decoded."""
    return Corruption(f"the record of {kind} {name!r} is damaged: {error!r}")


@lru_cache(maxsize=64)  # most nodes of a stream have those of the one before
def decode_names(packed: bytes) -> tuple[bytes, ...]:
    """Return field names as a record holds them; ValueError where they are none."""
    names = msgpack.unpackb(packed, raw=True, use_list=False)
    if type(names) is not tuple or not all(type(name) is bytes for name in names):
        raise ValueError("the field names are none")
    return names


@dataclass(slots=True)
class Node:
    """One node of a stream: ``first`` is its key; the open one stands in the stream's record.

    ``first`` and ``last`` are the first and last ID ever appended; ``appended`` counts them all,
    ``live`` those not deleted.
    """

    first: StreamID
    last: StreamID
    appended: int
    live: int
    size: int
    names: tuple[bytes, ...]
    is_open: bool

    @classmethod
    def decode(cls, first: StreamID, value: bytes) -> "Node":
        try:  # a trim decodes thousands: no context manager
            ms, seq, appended, live, size = _NODE.unpack_from(value)
            names = decode_names(value[_NODE.size :])
        except (StructError, ValueError) as error:
            raise damaged("node", first, error) from error
        return cls(first, StreamID(ms, seq), appended, live, size, names, is_open=False)

    def encode(self) -> bytes:
        return encode_node(self.last, self.appended, self.live, self.size, self.names)


def encode_node(
    last: StreamID, appended: int, live: int, size: int, names: tuple[bytes, ...]
) -> bytes:
    """Return the bytes of a node's row.

    Most nodes have the names of the one before, in the very same object.
    """
    global _names_before
    before, tail = _names_before
    if before is not names:
        tail = _pack_names(names)
        if len(tail) <= _KEPT_MAX:
            _names_before = names, tail
    return _NODE.pack(*last, appended, live, size) + tail


def live_in(value: bytes) -> int:
    """Return the live entries that a node's row tells, without the rest of it."""
    return lives_in([value])[0]


def lives_in(values: list[bytes]) -> list[int]:
    """Do so for many rows."""
    try:
        return [live for (live,) in map(_LIVE.unpack_from, values)]
    except StructError as error:
        raise Corruption(f"the record of a node is damaged: {error!r}") from error
