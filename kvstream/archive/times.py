"""The times of commits: noted while a store is written, until a piece takes them.

A note says by when a commit was the last one. Notes are what a restore to a moment goes by.
"""

import threading
from bisect import bisect_right

TIMES_MAX = 40_000
"""Notes that are kept for the next piece: an hour. Then every second one is dropped."""
CLOCK_BACK_MAX_MS = 3_600_000
"""The time of an archive stands still if the clock goes back by less; by more, it was wrong."""

Note = tuple[int, int]
"""Unix ms, and the sequence number of a commit."""


def time_after(latest_ms: int, now_ms: int) -> int:
    """Return the time to be noted after another one, in Unix ms.

    It is not before that one, although the clock went back or that of a new owner is behind: else a
    moment would come twice, and a restore to it would have commits that came after the first.
    """
    return latest_ms if now_ms < latest_ms <= now_ms + CLOCK_BACK_MAX_MS else now_ms


class Times:
    """The notes that no piece has yet; for any thread."""

    def __init__(self, latest_ms: int = 0) -> None:
        """``latest_ms`` is the last time that the archive has."""
        self._latest_ms = latest_ms
        self._notes: list[Note] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._notes)

    @property
    def last(self) -> int:
        """The commit of the last note; -1 if there is none."""
        notes = self._notes
        return notes[-1][1] if notes else -1

    def after(self, now_ms: int) -> int:
        """Return a time for the archive: the present one, unless the clock went back."""
        with self._lock:
            return self._advance(now_ms)

    def note(self, now_ms: int, sequence: int) -> None:
        """Note that a commit is the last one now."""
        with self._lock:
            self._notes.append((self._advance(now_ms), sequence))
            if len(self._notes) > TIMES_MAX:
                del self._notes[:-1:2]

    def until(self, now_ms: int, sequence: int) -> list[Note]:
        """Return the notes of the commits up to ``sequence``.

        It gets one of its own if it is the newest: it was not looked at since.
        """
        with self._lock:
            notes = self._notes[: self._count(sequence)]
            if len(notes) == len(self._notes) and (not notes or notes[-1][1] < sequence):
                notes.append((self._advance(now_ms), sequence))
            return notes

    def drop(self, sequence: int) -> None:
        """Drop the notes of the commits up to ``sequence``: a piece has them."""
        with self._lock:
            del self._notes[: self._count(sequence)]

    def _advance(self, now_ms: int) -> int:
        self._latest_ms = time_after(self._latest_ms, now_ms)
        return self._latest_ms

    def _count(self, sequence: int) -> int:
        """Return how many notes are of commits up to ``sequence``."""
        return bisect_right(self._notes, sequence, key=lambda note: note[1])


__all__ = ["CLOCK_BACK_MAX_MS", "TIMES_MAX", "Note", "Times", "time_after"]
