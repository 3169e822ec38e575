"""The thread that deletes what has expired or was flushed, a few keys at a time.

Reads pass such keys over, and delete what they meet: nothing is wrong where this thread is late.
It also looks after what readers in other processes ask of the store.
"""

import threading
from collections.abc import Callable
from functools import partial
from time import monotonic

from kvstream.engine.waiters import Signal
from kvstream.errors import Corruption, KVStreamError
from kvstream.meta.txn import Txn
from kvstream.operations import keyspace

EXPIRE_KEYS = 100
"""Keys deleted by one step of the expiry cycle, so that it never holds the lock for long."""
EXPIRE_PAUSE_S = 0.1
"""Pause between looks at the expiry index: Redis's ``hz`` 10."""
EXPIRE_STEP_PAUSE_S = 0.001
"""Pause between steps: the lock is not fair, and goes to those who wait for it only in a pause."""

FAILED_PAUSE_S = 1.0
"""Pause before what has failed, on a full disk or for damage, is tried again: each try makes the
store forget what it has in memory."""

_Step = Callable[[Txn, int], int]


class Expiry(threading.Thread):
    """Runs from ``start`` until ``stop``."""

    def __init__(
        self, commit: Callable[[_Step, int], int], look: Callable[[], None] = lambda: None
    ) -> None:
        """``commit`` runs a step as one commit; ``look`` is called each time before."""
        super().__init__(name="kvstream-expiry", daemon=True)
        self.active = True
        """Expired keys are deleted also where nobody asks for them."""
        self.paused = False
        """No key is deleted for now."""
        self._commit = commit
        self._look = look
        self._closing = False
        self._closes = Signal()
        self._damaged = 0
        """The keys that are due first, and cannot be deleted."""
        self._try_at = 0.0
        """When these are tried again."""
        self._rests_until = 0.0
        """When anything is."""

    def run(self) -> None:
        """Delete until told to stop."""
        while not self._closes_within(EXPIRE_PAUSE_S):
            self._look()
            if monotonic() >= self._rests_until:
                self._try(self._delete_expired)
                self._try(partial(self._repeat, keyspace.sweep))

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except KVStreamError:  # closed, full or damaged
            self._rests_until = monotonic() + FAILED_PAUSE_S

    def _delete_expired(self) -> None:
        """Delete what has expired, past keys that are damaged: these are tried now and then."""
        if self.paused or not self.active:
            return
        if self._damaged and monotonic() >= self._try_at:
            self._damaged = 0
        try:
            self._repeat(partial(keyspace.delete_expired, skip=self._damaged))
        except Corruption:
            self._find_damage()
            self._try_at = monotonic() + FAILED_PAUSE_S

    def _repeat(self, step: _Step) -> None:
        while self._commit(step, EXPIRE_KEYS) == EXPIRE_KEYS:
            if self._closes_within(EXPIRE_STEP_PAUSE_S):
                return

    def _find_damage(self) -> None:
        """Delete key by key, and count those at the head that cannot be deleted.

        They stay, are told of by ``check``, and hold up no other.
        """
        self._damaged = 0
        for _ in range(EXPIRE_KEYS):
            try:
                if not self._commit(partial(keyspace.delete_expired, skip=self._damaged), 1):
                    return
            except Corruption:
                self._damaged += 1

    def _closes_within(self, seconds: float) -> bool:
        return self._closing or self._closes.wait(seconds)

    def stop(self) -> None:
        """End the thread; one that was not started is none."""
        self._closing = True
        self._closes.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join()
