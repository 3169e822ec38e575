"""What a group has read of its stream before anyone asked for it; nothing of it is stored."""

from collections import deque

from kvstream.ids import MIN_ID
from kvstream.records import Entry

ENTRIES_MAX = 64
BYTES_MAX = 1 << 16
"""What one group may hold in memory."""


class Ahead:
    """New entries of a group that were read before anyone asked for them; in memory only."""

    __slots__ = ("after", "entries", "pace", "shrinks")

    def __init__(self, shrinks: int, pace: int) -> None:
        self.shrinks = shrinks
        """The stream's count of deletions when they were read."""
        self.pace = pace
        """How many to read next time."""
        self.after = MIN_ID
        """The last entry taken: they follow this one."""
        self.entries: deque[Entry] = deque()

    def next_pace(self, found: list[Entry]) -> int:
        """Double the pace while entries are small, so that little memory is ever held."""
        size = sum(sum(map(len, (entry.fields or {}).values())) for entry in found)
        return 1 if size > BYTES_MAX else min(2 * self.pace, ENTRIES_MAX)
