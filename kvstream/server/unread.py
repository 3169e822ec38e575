"""What a client has sent and nobody has looked at yet: it is taken in small pieces.

So no client can hold up the others by what it sends, nor by how much of it is nothing; and what
comes behind a command that waits costs no more than its bytes. Sans-IO.
"""

from collections import deque
from typing import Final

PIECE: Final = 16 << 10
"""Bytes that are looked at together: as many as Redis reads at once."""


class Unread:
    """Bytes in the order in which they came."""

    __slots__ = ("_at", "_chunks", "size")

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._at = 0
        self.size = 0

    def __bool__(self) -> bool:
        return self.size > 0

    def add(self, data: bytes) -> None:
        self._chunks.append(data)
        self.size += len(data)

    def piece(self) -> bytes:
        """Take the next bytes, PIECE of them at the most."""
        first, at = self._chunks[0], self._at
        end = at + PIECE
        if end >= len(first):
            self._chunks.popleft()
            self._at = 0
        else:
            self._at = end
        found = first[at:end]
        self.size -= len(found)
        return found

    def clear(self) -> None:
        self._chunks.clear()
        self._at = self.size = 0
