"""What the expiry thread does for an open store beside the deletion of keys.

It looks at the disk, serves the snapshot requests of readers in other processes, applies the
retention of changed streams, and frees the space of deleted entries.
"""

from collections.abc import Callable
from contextlib import suppress
from time import sleep
from typing import Any

from kvstream.engine.disk_watch import DiskWatch
from kvstream.engine.lock import CallLock
from kvstream.engine.reader_snapshots import SnapshotRequests
from kvstream.engine.timer_thread import TimerThread
from kvstream.errors import KVStreamError
from kvstream.logs import emit_deferred
from kvstream.meta.catalog import Catalog
from kvstream.operations import trim, turns
from kvstream.operations.queues import retention
from kvstream.storage.database import Database
from kvstream.types.clock import monotonic

RETAIN_PAUSE_S = 1.0
"""Pause between two looks at the streams with rules of retention."""
SORT_S = 0.2
"""Seconds for which one cycle sorts: keys expire and snapshots are made between two of them."""
SORTED_STREAMS = 100
"""Streams whose keys take turns that one commit looks at."""


class Upkeep:
    """The upkeep of one store; it does not keep the engine alive."""

    def __init__(
        self,
        weak: Callable[[str], Callable[..., Any]],
        database: Database,
        catalog: Catalog,
        disk: DiskWatch,
        timers: TimerThread,
        compacting: CallLock,
    ) -> None:
        """``weak`` returns a function that calls a method of the engine while there is one.

        ``compacting`` is held while RocksDB compacts.
        """
        self._run, copy = weak("run"), weak("checkpoint")
        self._check_alive = weak("is_open_here")
        """Raises StoreClosed once the engine is gone."""
        self._requests = SnapshotRequests(database.own_path, lambda target: copy(target, 0))
        self._database, self._catalog, self._disk = database, catalog, disk
        self._timers, self._compacting = timers, compacting
        self._pause_s = catalog.thresholds.step_pause_s
        self._retain_at = 0.0
        self._unsorted: list[bytes] = []
        """Streams that may have entries to sort."""
        self._closing = False

    def stop(self) -> None:
        """Do nothing more that takes long: the store is to be closed."""
        self._closing = True

    def needs_space(self) -> bool:
        """Return whether writes wait for disk space, and note it for the catalog."""
        self._catalog.disk_full = self._database.needs_space
        return self._catalog.disk_full

    def before_cycle(self) -> None:
        """Serve requests for snapshots; once a second, see to retention and to keys in turns.

        Raises StoreClosed once the engine is gone.
        """
        self._check_alive()
        self._disk.look()
        emit_deferred()
        self._requests.serve()
        if monotonic() >= self._retain_at and not self._rests():
            self._retain_at = monotonic() + RETAIN_PAUSE_S
            names = [*self._unsorted, *self._catalog.with_turns]
            self._unsorted = list(dict.fromkeys(names))
            with suppress(KVStreamError):  # closed, full or damaged
                self._retain()
        with suppress(KVStreamError):
            self._sort()

    def _rests(self) -> bool:
        """Return whether nothing may be changed now."""
        return self._closing or self._timers.paused or self._timers.follows

    def _retain(self) -> None:
        """Apply the retention of changed streams."""
        unseen = len(self._catalog.retained)
        while unseen > 0 and not self._closing:
            unseen -= self._run(retention.check_changed_streams)[1] or unseen
            sleep(self._pause_s)

    def _sort(self) -> None:
        """Sort the entries of keys that take turns; leave the rest to the next cycle."""
        until = monotonic() + SORT_S
        while self._unsorted and monotonic() < until and not self._rests():
            some, rest = self._unsorted[:SORTED_STREAMS], self._unsorted[SORTED_STREAMS:]
            self._unsorted = rest  # also after an error
            self._unsorted = rest + self._run(turns.sort_streams, some)
            sleep(self._pause_s)

    def reclaim(self) -> None:
        """Free the space of large deleted ranges, until the store is to be closed.

        If writes wait for space, small ranges count too.
        """
        with self._compacting:
            if not self._closing:
                self._database.flush_deletes()
        if self._database.needs_space and not self._timers.follows:
            self._run(trim.sweep_streams)
        for lower, upper in self._database.large_deleted():
            with self._compacting:
                if self._closing:
                    return
                self._database.compact_messages(lower, upper)
