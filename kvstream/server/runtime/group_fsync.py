"""Group fsync: one fsync for the replies of many clients of a server with durability ``always``.

Answered clients send their next requests within moments. An fsync that begins before those arrive
does not cover them, so they wait for it and for the next one. Therefore replies ask for an fsync
once as many wait as were answered last, or after half the mean time of an fsync. The event loop
itself does the fsync of a quick disk: waking a thread, and the loop again, takes as long.

``always: XADD, -P 16`` needs 1.7 times as many fsyncs if each turn asks for its own, ``-P 1`` 1.4
times as many: a disk with slow fsyncs serves so many clients less.
"""

from collections.abc import Callable
from time import monotonic

LINGER_S = 0.001
"""The longest wait for others."""
QUICK_S = 0.002
"""The longest mean time of an fsync of a quick disk."""
SLOWEST_S = 0.05
"""A longer fsync moves the mean as this one: ten to twenty quick ones make up for it."""
SHARE = 8
"""The mean moves by this part of the way towards the time of the last fsync."""


class GroupFsync:
    """Decides when the waiting replies of one server ask for their fsync."""

    def __init__(
        self,
        waiting: Callable[[], int],
        ask: Callable[[], None],
        wait: Callable[[], None],
        soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """``waiting`` counts waiting replies, ``ask`` asks for an fsync that covers them.

        ``wait`` does that fsync in this thread and calls ``done``.
        ``soon`` calls a function after the reads of the next iteration of the event loop. The
        loop's own clock counts milliseconds, too coarse for an fsync.
        """
        self._waiting, self._ask, self._wait = waiting, ask, wait
        self._soon, self._clock = soon, clock
        self._mean_s = 0.0
        """The mean time of an fsync; 0: unknown."""
        self._until = self._asked_at = 0.0
        self._asked_for = self._expected = 0
        self._under_way = self._asked = False

    def begin(self) -> None:
        """Note that replies wait; while an fsync is under way nothing is asked for."""
        if not self._under_way:
            self._under_way = True
            self._until = self._clock() + min(self._mean_s / 2, LINGER_S)
            self._soon(self._look)

    def done(self) -> None:
        """Note the end of an fsync; the replies that it has answered are expected again."""
        if not self._asked:
            return
        self._asked = self._under_way = False
        took = min(self._clock() - self._asked_at, SLOWEST_S)
        mean = self._mean_s or took
        self._mean_s = mean + (took - mean) / SHARE
        waiting = self._waiting()
        self._expected = self._asked_for + waiting
        if waiting:
            self.begin()

    def _look(self) -> None:
        waiting, now = self._waiting(), self._clock()
        if waiting < self._expected and now < self._until:
            self._soon(self._look)
        elif waiting:
            self._asked, self._asked_for, self._asked_at = True, waiting, now
            if 0 < self._mean_s <= QUICK_S:
                self._wait()
            else:
                self._ask()
        else:  # they were answered otherwise: the durability was changed
            self._under_way = False
