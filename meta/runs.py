"""A run of pending entries, and its bytes.

A run is a piece of a group's pending entries list that one consumer got at one moment: IDs in
ascending order that share owner, delivery time and delivery count.

::

    run   := time_ms(u64) deliveries(u64) rank(u64) owner_length(u32) owner id*
    times := time_ms(u64) rank(u64) anchor(id)                the run's suffix in the times tree
"""

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from kvstream.errors import Corruption
from kvstream.layout.keys import ID_BYTES

PackedID = bytes
"""The 16 bytes of a StreamID, which sort as it does."""

_HEAD = Struct(">QQQI")
_TIME = Struct(">QQ")
TIME_BYTES = _TIME.size
HEAD_BYTES = _HEAD.size


class Run(NamedTuple):
    """IDs that share owner, delivery time and count."""

    anchor: PackedID
    """The first ID that the run ever had: its key."""
    ids: Sequence[PackedID]
    owner: bytes
    time_ms: int
    deliveries: int
    rank: int = 0
    """0, or the place in the queue of those that were given back and belong to nobody."""

    @property
    def owned(self) -> bool:
        return self.rank == 0

    def encode(self) -> bytes:
        _, ids, owner, time_ms, deliveries, rank = self
        return _HEAD.pack(time_ms, deliveries, rank, len(owner)) + owner + b"".join(ids)

    @classmethod
    def decode(cls, anchor: PackedID, value: bytes) -> "Run":
        try:
            time_ms, deliveries, rank, length = _HEAD.unpack_from(value)
        except StructError as error:
            raise _damaged(anchor) from error
        start = _HEAD.size + length
        size = len(value) - start
        if size <= 0 or size % ID_BYTES:
            raise _damaged(anchor)
        ids = [value[at : at + ID_BYTES] for at in range(start, len(value), ID_BYTES)]
        return cls(anchor, ids, value[_HEAD.size : start], time_ms, deliveries, rank)

    @property
    def times_suffix(self) -> bytes:
        """The key of the run in the times tree."""
        return _TIME.pack(self[3], self[5]) + self[0]


def _damaged(anchor: PackedID) -> Corruption:
    return Corruption(f"the run of pending entries at {anchor.hex()} is damaged")


OWNED_FIRST = _TIME.pack(1, 0)
"""Sorts behind the suffixes of runs that were given back, and before those of all others."""


def time_of(times_suffix: bytes) -> int:
    """Return the delivery time that a key of the times tree begins with."""
    return int(_TIME.unpack_from(times_suffix)[0])
