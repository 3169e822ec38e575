"""MAXCOUNT and MAXSIZE: how much one reply over several streams may hold (Redis 8.10)."""

from collections.abc import Sequence

from kvstream.errors import InvalidArgument
from kvstream.records import Entry

_CRLF = 2
_HEAD = 1 + _CRLF


def _bulk_size(length: int) -> int:
    return _HEAD + len(str(length)) + length + _CRLF


def entry_reply_size(entry: Entry) -> int:
    """Return the bytes of an entry in a RESP reply."""
    flat = entry.flat
    size = _HEAD + 1 + _bulk_size(len(bytes(entry.id))) + _HEAD + len(str(len(flat)))
    return size + sum(_bulk_size(len(part)) for part in flat)


class Budget:
    """What is left of MAXCOUNT and MAXSIZE while streams are served in the caller's order.

    MAXSIZE is soft: the first entry always passes, and each further one only if the entries before
    it have left room.
    """

    __slots__ = ("_count", "_size", "_taken")

    def __init__(self, maxcount: int | None = None, maxsize: int | None = None) -> None:
        if maxcount is not None and maxcount <= 0:
            raise InvalidArgument("MAXCOUNT must be a positive integer")
        if maxsize is not None and maxsize <= 0:
            raise InvalidArgument("MAXSIZE must be a positive integer")
        self._count = maxcount
        self._size = maxsize
        self._taken = 0

    @property
    def limited(self) -> bool:
        return self._count is not None or self._size is not None

    @property
    def exhausted(self) -> bool:
        """Tell whether no further entry may be delivered."""
        if self._count is not None and self._count <= 0:
            return True
        return self._size is not None and self._size <= 0 and self._taken > 0

    def most(self, count: int | None) -> int | None:
        """Return how many entries a stream may give, where ``count`` bounds each stream."""
        if self._count is None or (count is not None and count < self._count):
            return count
        return self._count

    def take(self, entries: Sequence[Entry]) -> int:
        """Return how many of ``entries``, from the first, may be delivered; and count them."""
        if self._size is None:
            taken = len(entries) if self._count is None else min(len(entries), self._count)
        else:
            taken = self._take_by_size(entries)
        self._taken += taken
        if self._count is not None:
            self._count -= taken
        return taken

    def _take_by_size(self, entries: Sequence[Entry]) -> int:
        assert self._size is not None
        for at, entry in enumerate(entries):
            if (self._count is not None and at >= self._count) or (
                self._size <= 0 and self._taken + at > 0
            ):
                return at
            self._size -= entry_reply_size(entry)
        return len(entries)
