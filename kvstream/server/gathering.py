"""One fsync for all who wait: when the replies of an ``always`` server ask for theirs.

Clients that have been answered send their next requests within moments. An fsync that began before
they came would keep them waiting for it and for the next one, so that each client would get one
answer for two fsyncs. So replies that wait ask for an fsync once there are as many as were answered
last, or after half the time that the last one took.

Where the disk is quick the loop waits for it: a thread would have to be woken, and would have to
wake the loop, which takes as long. Once the disk was slow a thread waits, for some seconds at
least, so that those who only read are not held up.
"""

from collections.abc import Callable

from kvstream.server.arrivals import Arrivals

LINGER_S = 0.001
"""The most that is waited for others: less than a slow disk takes by far."""
QUICK_S = 0.002
"""An fsync that takes longer is slow."""
CAUTION_S = 5.0
"""How long a thread does all fsyncs behind a slow one; and then until one was quick."""


class Gathering:
    """What one server's replies wait for."""

    def __init__(self, owner: Arrivals, soon: Callable[[Callable[[], None]], object]) -> None:
        """``soon`` has a function called behind the reads of the next round of the loop."""
        self._owner = owner
        self._soon = soon
        self._linger_s = 0.0
        self._until = self._asked_at = 0.0
        self._asked_for = self._expected = 0
        self._under_way = self._asked = False
        self._is_quick = False
        self._careful_until = 0.0

    def begin(self) -> None:
        """Wait for those who are expected, unless an fsync is under way: it comes first."""
        if not self._under_way:
            self._under_way = True
            self._until = self._owner.clock() + self._linger_s
            self._soon(self._look)

    def done(self) -> None:
        """Begin anew for those who came meanwhile; they and those answered make up the next."""
        if not self._asked:
            return
        self._asked = self._under_way = False
        now = self._owner.clock()
        self._learn(now, now - self._asked_at)
        waiting = self._owner.outbox.waiting
        self._expected = self._asked_for + waiting
        if waiting:
            self.begin()

    def _learn(self, now: float, took: float) -> None:
        self._linger_s = min(took / 2, LINGER_S)
        if took > QUICK_S:
            self._is_quick, self._careful_until = False, now + CAUTION_S
        elif now >= self._careful_until:
            self._is_quick = True

    def _look(self) -> None:
        outbox, now = self._owner.outbox, self._owner.clock()
        waiting = outbox.waiting
        if waiting < self._expected and now < self._until:
            self._soon(self._look)
        elif waiting:
            self._asked, self._asked_for, self._asked_at = True, waiting, now
            if self._is_quick:
                outbox.wait()
            else:
                outbox.ask()
        else:  # the level was changed meanwhile, and they have been answered
            self._under_way = False
