"""The thread that deletes expired and flushed keys, a few at a time.

Reads skip such keys, and delete those that they meet, so this thread may be late. It also serves
the snapshot requests of readers in other processes, and frees the space of deleted entries.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from time import thread_time

from kvstream.engine.upkeep import Upkeep
from kvstream.engine.waiters import Signal
from kvstream.errors import Corruption, KVStreamError, StoreClosed
from kvstream.meta.txn import Txn
from kvstream.operations import keyspace
from kvstream.types.clock import monotonic
from kvstream.types.thresholds import DEFAULT, Thresholds

EXPIRE_REST, SWEEP_REST = 1, 3
"""How many times the processor time of a commit belongs to others, before it or after it. Deleted
keys are gone for clients, so their rows take a quarter of a core at most, as Redis's active expiry
does. Expired keys take half of one."""
_Step = Callable[[Txn, int], int]


class Expiry(threading.Thread):
    """Runs from ``start`` until ``stop``."""

    def __init__(
        self,
        commit: Callable[[_Step, int], int],
        upkeep: Upkeep | None = None,
        sizes: Thresholds = DEFAULT,
    ) -> None:
        """``commit`` runs a step as one commit; ``upkeep`` is the other work of the thread."""
        super().__init__(name="kvstream-expiry", daemon=True)
        self.active = True
        """Delete expired keys (DEBUG SET-ACTIVE-EXPIRE)."""
        self.paused = False
        """Delete no expired key for now (CLIENT PAUSE)."""
        self.follows = False
        """Delete nothing at all: the store is a replica."""
        self._sizes = sizes
        self._commit = commit
        self._upkeep = upkeep
        self._reclaim_at = monotonic() + self._sizes.reclaim_pause_s
        self._closing = False
        self._closes = Signal()
        self._damaged = 0
        """How many keys at the head of the expiry index cannot be deleted."""
        self._try_at = 0.0
        """When these keys are tried again."""
        self._rests_until = 0.0
        """When any work is tried again."""

    def run(self) -> None:
        """Run cycles until ``stop`` is called, or nothing refers to the engine any more."""
        with suppress(StoreClosed):
            while not self._closes_within(self._sizes.cycle_pause_s):
                self._cycle()

    def _cycle(self) -> None:
        if self._upkeep is not None:
            self._upkeep.before_cycle()
        if monotonic() >= self._rests_until and not self.follows:
            self._try(self._delete_expired)
            self._try(partial(self._repeat, keyspace.sweep, SWEEP_REST))
        if self._upkeep is None:
            return
        urgent = self._upkeep.needs_space() and monotonic() >= self._rests_until
        if urgent or monotonic() >= self._reclaim_at:
            self._try(self._upkeep.reclaim)
            self._reclaim_at = monotonic() + self._sizes.reclaim_pause_s

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except KVStreamError:  # closed, full or damaged
            self._rests_until = monotonic() + self._sizes.failed_pause_s

    def _delete_expired(self) -> None:
        """Delete expired keys; skip damaged ones, which are tried once a second."""
        if self.paused or not self.active:
            return
        if self._damaged and monotonic() >= self._try_at:
            self._damaged = 0
        try:
            self._repeat(
                partial(keyspace.delete_expired, skip=self._damaged),
                EXPIRE_REST,
                self._sizes.hurry_s,
            )
        except Corruption:
            self._find_damage()
            self._try_at = monotonic() + self._sizes.failed_pause_s

    def _repeat(self, step: _Step, rest: int, hurry_s: float = inf) -> None:
        """Run steps until one has less to do.

        Others have the lock for ``rest`` times the processor time of each, while the thread waits
        for it or in a pause after the commit. After ``hurry_s`` steps are larger, without a rest.
        """
        keys, hurries_at = self._sizes.expire_keys, monotonic() + hurry_s
        while True:
            began, worked = monotonic(), thread_time()
            if self._commit(step, keys) < keys:
                return
            worked = thread_time() - worked
            waited = monotonic() - began - worked
            if monotonic() >= hurries_at:
                keys, rest = self._sizes.hurried_keys, 0
            if self._closes_within(max(self._sizes.step_pause_s, rest * worked - waited)):
                return

    def _find_damage(self) -> None:
        """Delete key by key, and count the damaged keys at the head of the index.

        They stay, ``check`` reports them, and later keys still expire.
        """
        self._damaged = 0
        for _ in range(self._sizes.expire_keys):
            try:
                if not self._commit(partial(keyspace.delete_expired, skip=self._damaged), 1):
                    return
            except Corruption:
                self._damaged += 1

    def _closes_within(self, seconds: float) -> bool:
        return self._closing or self._closes.wait(seconds)

    def stop(self) -> None:
        """End the thread, if it was started."""
        self._closing = True
        if self._upkeep is not None:
            self._upkeep.stop()
        self._closes.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join()
