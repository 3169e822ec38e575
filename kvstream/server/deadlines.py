"""When blocked clients are due: a heap, the soonest first.

What has ended stays in the heap until it is met, or until most of the heap has ended; so beginning,
ending and looking cost the same however many clients wait. This module ends no wait.
"""

from collections.abc import Sized
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TypeAlias

from kvstream.server.client import Block, Client

Entry: TypeAlias = tuple[float, int, Client, Block]

TIMES = 2
"""Times that one wait can have in the heap: its end, and its next try."""
SPARE = 64
"""Ended waits that a small heap may keep: putting it in order would cost more than they do."""


class Deadlines:
    """The times of all waits, on the loop's clock."""

    def __init__(self, blocked: Sized) -> None:
        """``blocked`` are the clients that wait; how many they are tells how much has ended."""
        self._blocked = blocked
        self._heap: list[Entry] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, client: Client, block: Block, when: float | None) -> None:
        """Have a wait be due at a time; None: never."""
        if when is None:
            return
        heappush(self._heap, (when, next(self._numbers), client, block))
        if len(self._heap) > 2 * TIMES * len(self._blocked) + SPARE:
            self._heap = [entry for entry in self._heap if _holds(entry)]
            heapify(self._heap)

    def next(self) -> float | None:
        """Return the soonest time; None where nothing is due ever."""
        heap = self._heap
        while heap and not _holds(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else None

    def take(self, now: float) -> tuple[Client, Block] | None:
        """Take out the soonest wait that is due by now; None where there is no such."""
        soonest = self.next()
        if soonest is None or soonest > now:
            return None
        return heappop(self._heap)[2:]


def _holds(entry: Entry) -> bool:
    """Tell whether the wait has not ended, and this time of it has not been put off."""
    when, _, client, block = entry
    return client.block is block and when in (block.until, block.retry)
