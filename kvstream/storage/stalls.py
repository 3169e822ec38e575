"""Write stalls: writers are slowed down before RocksDB stops them, and a stop is waited out.

RocksDB stops writes when flushes or compaction fall too far behind. A write that it holds back
keeps Python's interpreter lock, so every write is made with ``no_slowdown`` and fails instead; with
that option RocksDB's own slowdown is a stop as well, so ``options`` leaves it out. In its place
this module looks at the backlog every 64 KB and tells writers how long to pause, a little at first.
"""

from collections.abc import Sequence
from time import sleep
from typing import Any

from kvstream.errors import WriteStalled
from kvstream.storage.directory import Directory
from kvstream.storage.options import LEVEL0_STOP, WRITE_BUFFERS
from kvstream.types.clock import monotonic
from kvstream.types.options import MEGABYTE

LOOK_BYTES = MEGABYTE // 16
"""Bytes written from one look at the backlog to the next; a look takes two microseconds."""
LEVEL0_FREE = 16
"""Tables at level 0 up to which no writer pauses: bulk loads on a disk that keeps up have fewer."""
LEVEL0_SLOWEST = 3 * LEVEL0_STOP // 4
"""Tables at level 0 at which writers are slowed down most; the rest is left for late looks."""
MEMORY_FREE = 0.7
"""Share of the write buffers up to which no writer pauses: one that fills, one that is flushed."""
PAUSE_S_PER_BYTE = 1 / MEGABYTE
"""The longest pause for a byte written. The pause grows with the square of the backlog, so it meets
a disk that takes 10 MB/s at a third of the way, and one that takes 1 MB/s at the end."""
PAUSE_MAX_S = 0.05
"""No write pauses for longer: the loop of a server pauses with it."""
PAUSE_MIN_S = 0.001
"""Shorter pauses add up first: the system would make them longer."""
STOP_LOOK_S = 0.005
"""How often a stopped writer asks whether the stop is over."""
PROGRESS_LOOK_S = 0.1
"""How often it looks at the files for progress, and tries the write again."""


class Stalls:
    """The backlog of flushes and compaction, as writers feel it."""

    def __init__(self, families: Sequence[Any], buffers: Sequence[int], place: Directory) -> None:
        """``buffers`` are the sizes of the families' write buffers."""
        self.unseen = 0
        """Bytes written since the last look; the writer adds to it."""
        self._families = families
        self._memory = [size * WRITE_BUFFERS for size in buffers]
        self._place = place
        self._owed_s = 0.0

    def look(self) -> float:
        """Look at the backlog; return the seconds to pause for what was written since the last."""
        backlog = max(map(_backlog, self._families, self._memory))
        written, self.unseen = self.unseen, 0
        if backlog <= 0:
            self._owed_s = 0.0
            return 0.0
        self._owed_s += written * PAUSE_S_PER_BYTE * min(backlog, 1.0) ** 2
        if self._owed_s < PAUSE_MIN_S:
            return 0.0
        owed, self._owed_s = self._owed_s, 0.0
        return min(owed, PAUSE_MAX_S)

    def is_stopped(self) -> bool:
        """Return whether RocksDB has stopped all writes."""
        return bool(self._families[0].property_int_value("rocksdb.is-write-stopped"))

    def progress(self) -> tuple[int, ...]:
        """Return a value that changes whenever a flush or a compaction makes progress."""
        versions = (
            family.property_int_value("rocksdb.current-super-version-number")
            for family in self._families
        )
        return (self._place.size(".sst"), self._place.size(".blob"), *versions)


class Stop:
    """One write's wait for the end of a stop."""

    def __init__(self, stalls: Stalls, seconds_max: float) -> None:
        self._stalls = stalls
        self._seconds_max = seconds_max
        self._progress: tuple[int, ...] | None = None
        self._deadline = self._look_at = 0.0

    def wait(self) -> None:
        """Wait until a write is to be tried; raise WriteStalled after too long without progress.

        A flush that fails, as on a full disk, does not end the stop. Only a try shows its error.
        """
        while True:
            sleep(STOP_LOOK_S)
            if (now := monotonic()) >= self._look_at:
                self._look(now)
                return
            if not self._stalls.is_stopped():
                return

    def _look(self, now: float) -> None:
        self._look_at = now + PROGRESS_LOOK_S
        progress = self._stalls.progress()
        if progress != self._progress:
            self._progress, self._deadline = progress, now + self._seconds_max
        elif now >= self._deadline:
            raise WriteStalled(
                f"flushes and compaction have made no progress for {self._seconds_max:g} s, and "
                "nothing can be written until they do: look at the disk, then try again"
            ) from None


def _backlog(family: Any, memory: int) -> float:
    """Return the backlog of a family: 0 or less is none, 1 is the most that is allowed."""
    tables = family.property_int_value("rocksdb.num-files-at-level0") or 0
    memtables = family.property_int_value("rocksdb.cur-size-all-mem-tables") or 0
    return max(
        (tables - LEVEL0_FREE) / (LEVEL0_SLOWEST - LEVEL0_FREE),
        (memtables / memory - MEMORY_FREE) / (1 - MEMORY_FREE),
    )
