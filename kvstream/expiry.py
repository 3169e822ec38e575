"""The thread that deletes what has expired or was flushed, a few keys at a time.

Reads pass such keys over, and delete what they meet: nothing is wrong where this thread is late.
"""

import threading
from collections.abc import Callable
from contextlib import suppress

from kvstream.errors import KVStreamError
from kvstream.meta.txn import Txn
from kvstream.operations import keyspace

EXPIRE_KEYS = 100
"""Keys deleted by one step of the expiry cycle, so that it never holds the lock for long."""
EXPIRE_PAUSE_S = 0.1
"""Pause between looks at the expiry index: Redis's ``hz`` 10."""
EXPIRE_STEP_PAUSE_S = 0.001
"""Pause between steps: the lock is not fair, and goes to those who wait for it only in a pause."""

_Step = Callable[[Txn, int], int]


class Expiry(threading.Thread):
    """Runs from ``start`` until ``stop``."""

    def __init__(self, commit: Callable[[_Step, int], int]) -> None:
        """``commit`` runs a step as one commit."""
        super().__init__(name="kvstream-expiry", daemon=True)
        self.active = True
        """Expired keys are deleted also where nobody asks for them."""
        self._commit = commit
        self._closing = threading.Event()

    def run(self) -> None:
        """Delete until told to stop."""
        while not self._closing.wait(EXPIRE_PAUSE_S):
            for step in (keyspace.delete_expired, keyspace.sweep):
                if self.active or step is keyspace.sweep:
                    self._repeat(step)

    def _repeat(self, step: _Step) -> None:
        with suppress(KVStreamError):  # closed, full or damaged
            while self._commit(step, EXPIRE_KEYS) == EXPIRE_KEYS:
                if self._closing.wait(EXPIRE_STEP_PAUSE_S):
                    return

    def stop(self) -> None:
        """End the thread; one that was not started is none."""
        self._closing.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join()
