"""The disk of an open store, looked at by the expiry thread before each cycle.

Two things happen without a write: the store's path leads elsewhere, or the disk is not full any
more. RocksDB recovers from most full disks by itself. If it could not make a file, as with no free
inode, it refuses writes for as long as it is open; so it is opened again.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from kvstream.engine.waiters import Waiters
from kvstream.errors import KVStreamError
from kvstream.meta.wakeups import Wake
from kvstream.storage.database import Database
from kvstream.types.clock import monotonic

TRY_PAUSE_S = 0.5
"""Pause between two tries to write to a disk that was full."""


class DiskWatch:
    """Ends blocked reads of a store whose path leads elsewhere, and the state of a full disk."""

    def __init__(
        self,
        database: Database,
        waiters: Waiters,
        hold: Callable[[], AbstractContextManager[object]],
        reopen: Callable[[bool], None],
        recovery_s: float,
    ) -> None:
        """``hold`` keeps writers out; ``reopen`` opens RocksDB again, with True from the log.

        RocksDB is opened again if it does not recover from a full disk within ``recovery_s``.
        """
        self._database = database
        self._waiters = waiters
        self._hold = hold
        self._reopen = reopen
        self._recovery_s = recovery_s
        self._try_at = 0.0
        self._reopen_at: float | None = None
        """When RocksDB is opened again; None while the disk is full, or sound."""

    def look(self) -> None:
        """Look at the path, and at a disk that was full."""
        guard = self._database.write_guard
        if self._database.is_displaced():
            with self._hold():
                self._waiters.end(guard.error, Wake.FAILED)
        elif not guard.recovers or not self._database.has_room():
            self._reopen_at = None
        elif monotonic() >= self._try_at:
            self._try_at = monotonic() + TRY_PAUSE_S
            self._try()

    def _try(self) -> None:
        """Write an empty batch to see if RocksDB has recovered; open it again if it does not."""
        if self._reopen_at is None:
            self._reopen_at = monotonic() + self._recovery_s
        with suppress(KVStreamError):  # the disk is full again, or the store is closed
            with self._hold():
                recovered = self._database.has_recovered()
            if recovered or monotonic() < self._reopen_at:
                return
            self._reopen_at = None
            self._reopen(True)
