"""The thread that fires the timers of streams: delayed messages, schedules, retries, retention.

It sleeps until the first timer of the store is due, so a store without timers pays nothing. Steps
are short commits with a pause between them, so that other threads get the lock.
"""

import logging
import threading
from collections.abc import Callable
from time import monotonic

from kvstream.engine.waiters import Signal
from kvstream.errors import KVStreamError
from kvstream.logs import Throttle
from kvstream.meta.txn import Txn
from kvstream.operations.queues.due import run_due

_log, _failures = logging.getLogger(__name__), Throttle()

STEP_TIMERS = 500
"""Timers of one commit: 500 messages are added in some milliseconds."""
STEP_PAUSE_S = 0.001
"""Pause between commits: the lock is not fair, and other threads get it only in a pause."""
CLOCK_PAUSE_S = 0.1
"""Longest sleep before the clock is read again: it may be set forward."""
FAILED_PAUSE_S = 1.0
"""Pause after a failure, such as a full disk or damage."""


class TimerThread(threading.Thread):
    """Runs from ``start`` until ``stop``."""

    def __init__(
        self,
        commit: Callable[[Callable[[Txn, int], int], int], int],
        now_ms: Callable[[], int],
        next_ms: Callable[[], int],
    ) -> None:
        """``commit`` runs a step as one commit; ``next_ms`` returns when a timer may be due."""
        super().__init__(name="kvstream-timers", daemon=True)
        self.paused = False
        """Fire nothing for now (CLIENT PAUSE)."""
        self._commit = commit
        self._now_ms = now_ms
        self._next_ms = next_ms
        self._wakes = Signal()
        self._closing = False
        self._rests_until = 0.0

    def wake(self) -> None:
        """Look again when the first timer is due: it has become earlier."""
        self._wakes.set()

    def run(self) -> None:
        """Fire timers until ``stop`` is called."""
        while not self._closing:
            pause = self._pause_s()
            if pause is None or pause > 0:
                self._wakes.wait(pause)
                continue
            try:
                self._commit(run_due, STEP_TIMERS)
            except KVStreamError:  # closed, full or damaged
                self._rests_until = monotonic() + FAILED_PAUSE_S
            except Exception as error:  # the thread goes on: nothing else would fire timers
                _failures.log(_log, logging.ERROR, "timers have failed inside", error=error)
                self._rests_until = monotonic() + FAILED_PAUSE_S
            else:
                self._wakes.wait(STEP_PAUSE_S)

    def _pause_s(self) -> float | None:
        """Return for how long to sleep; None: until something wakes it."""
        rest = self._rests_until - monotonic()
        if rest > 0:
            return rest
        if self.paused:
            return CLOCK_PAUSE_S
        next_ms = self._next_ms()
        left = next_ms - self._now_ms()
        if left <= 0:
            return 0.0
        return None if next_ms >= _NEVER else min(left / 1000, CLOCK_PAUSE_S)

    def stop(self) -> None:
        """End the thread, if it was started."""
        self._closing = True
        self._wakes.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join()


_NEVER = 1 << 63
"""No timer has a time so late."""
