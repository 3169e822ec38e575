"""Fire the timers of streams: delayed messages, schedules, retries, retention.

``run_due`` is one step: one commit that takes timers and does what they are for, so neither a crash
nor a second caller fires a timer twice. The thread sleeps until the first timer of the store is
due, so a store without timers pays nothing. It pauses between steps, so that other threads get the
lock. A stream whose timers are damaged is left out for a minute, so that the others go on.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from itertools import groupby
from operator import attrgetter

from kvstream.engine.waiters import Signal
from kvstream.errors import Corruption, KVStreamError, quote
from kvstream.layout.keys import key_of
from kvstream.logs import Throttle
from kvstream.meta import timers
from kvstream.meta.keyspace import NEVER
from kvstream.meta.records import StreamMeta
from kvstream.meta.timers import Kind, Timer
from kvstream.meta.txn import Txn
from kvstream.operations import delayed, unique
from kvstream.operations.delivery import backoff, failures
from kvstream.operations.queues import consumers, redrive, retention, schedules
from kvstream.types.clock import monotonic
from kvstream.types.thresholds import Thresholds

_log, _failures = logging.getLogger(__name__), Throttle()

STEP_TIMERS = 500
"""Timers of one commit: 500 messages are added in some milliseconds."""
CLOCK_PAUSE_S = 0.1
"""Longest sleep before the clock is read again: it may be set forward."""

Fire = Callable[[Txn, bytes, StreamMeta, list[Timer]], None]
"""Fires timers of one kind of a stream, given by its name; their rows are deleted already."""

KINDS: Mapping[int, Fire] = {
    Kind.DELAYED: delayed.fire,
    Kind.RETRY: backoff.fire,
    Kind.CRON: schedules.fire,
    Kind.RETENTION: retention.fire,
    Kind.REAP: consumers.fire,
    Kind.REDRIVE: redrive.fire,
    Kind.EXPIRED: delayed.fire_ttl,
    Kind.UNIQUE: unique.fire,
    Kind.FAILURE: failures.fire,
}
"""By the kind of the timer."""

_STREAMS = 16
"""Streams of one commit."""


class DamagedTimers(Corruption):
    """The timers of a stream cannot be fired, and nothing was changed."""

    name = b""
    """The stream."""


def run_due(
    txn: Txn, limit: int, damaged: Collection[bytes] = (), kinds: Mapping[int, Fire] = KINDS
) -> int:
    """Fire up to about ``limit`` timers that are due; return how many, 0 if no more are due.

    Streams of the names ``damaged`` are left out. ``kinds`` has what fires each kind of timer.
    Blocked readers whose time has come are woken, too: a lease has ended, or a rate allows more.
    """
    wakes = txn.catalog.index.take_wakes(txn.now_ms, txn.thresholds.woken_streams)
    for name, reason in wakes.items():
        txn.signal(name, reason)
    fired = 0
    listed = txn.catalog.index.timers_due(txn, _STREAMS + len(damaged))
    share = max(1, limit // max(1, len(listed)))  # one stream's backlog does not hold up another
    for at_ms, name in listed:
        if name in damaged:
            continue
        try:
            fired += _fire_some(txn, at_ms, name, min(share, limit - fired), kinds)
        except Corruption as error:
            key = quote(key_of(name))
            found = DamagedTimers(f"the timers of stream {key} cannot be fired: {error}")
            found.name = name
            raise found from error
        if fired >= limit:
            break
    return fired


def _fire_some(txn: Txn, at_ms: int, name: bytes, limit: int, kinds: Mapping[int, Fire]) -> int:
    """Fire timers of one stream that is listed for a time; return how many, at least 1."""
    stream = txn.stream(name)
    if stream is None or stream.due_at != at_ms:  # a flush or an expiry left the row
        txn.catalog.index.drop_timer(txn, at_ms, name)
        return 1
    due = timers.take_due(txn, stream, limit)
    for kind, same in groupby(due, attrgetter("kind")):
        fire = kinds.get(kind)
        if fire is None:
            raise Corruption(f"the stream {key_of(name)!r} has timers of an unknown kind {kind}")
        fire(txn, name, stream, list(same))
    return max(1, len(due))


class TimerThread(threading.Thread):
    """Runs from ``start`` until ``stop``."""

    def __init__(
        self,
        commit: Callable[[Callable[..., int], int, set[bytes], Mapping[int, Fire]], int],
        now_ms: Callable[[], int],
        next_ms: Callable[[], int],
        sizes: Thresholds,
    ) -> None:
        """``commit`` runs a step as one commit; ``next_ms`` returns when a timer may be due."""
        super().__init__(name="kvstream-timers", daemon=True)
        self.paused = False
        """Fire nothing for now (CLIENT PAUSE)."""
        self.follows = False
        """Fire nothing: the store is a replica."""
        self.kinds = KINDS
        self._sizes = sizes
        self._commit = commit
        self._now_ms = now_ms
        self._next_ms = next_ms
        self._wakes = Signal()
        self._closing = False
        self._rests_until = 0.0
        self._damaged: set[bytes] = set()
        """Streams whose timers are damaged."""
        self._retry_at = 0.0
        """When they are tried again."""

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
            if monotonic() >= self._retry_at:
                self._damaged.clear()
            try:
                fired = self._commit(run_due, STEP_TIMERS, self._damaged, self.kinds)
            except DamagedTimers as error:
                _failures.log(_log, logging.ERROR, "%s", error)
                self._damaged.add(error.name)
                self._retry_at = monotonic() + self._sizes.damaged_pause_s
            except KVStreamError:  # closed, full or damaged
                self._rests_until = monotonic() + self._sizes.failed_pause_s
            except Exception as error:  # the thread goes on: nothing else would fire timers
                _failures.log(_log, logging.ERROR, "timers have failed inside", error=error)
                self._rests_until = monotonic() + self._sizes.failed_pause_s
            else:  # damaged timers stay due
                pause = CLOCK_PAUSE_S if self._damaged and not fired else self._sizes.step_pause_s
                self._wakes.wait(pause)

    def _pause_s(self) -> float | None:
        """Return for how long to sleep; None: until something wakes it."""
        rest = self._rests_until - monotonic()
        if rest > 0:
            return rest
        if self.paused or self.follows:
            return CLOCK_PAUSE_S
        next_ms = self._next_ms()
        left = next_ms - self._now_ms()
        if left <= 0:
            return 0.0
        return None if next_ms >= NEVER else min(left / 1000, CLOCK_PAUSE_S)

    def stop(self) -> None:
        """End the thread, if it was started."""
        self._closing = True
        self._wakes.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join()
