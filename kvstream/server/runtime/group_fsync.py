"""One fsync for all who wait: when the replies of an ``always`` server ask for theirs.

Clients that have been answered send their next requests within moments. An fsync that began before
they came would keep them waiting for it and for the next one, so that each client would get one
answer for two fsyncs. So replies that wait ask for an fsync once there are as many as were answered
last, or after half the time that fsyncs take of late.

Where the disk is quick the loop waits for it: a thread would have to be woken, and would have to
wake the loop, which takes as long. Replies to those who only read wait for it either way. What one
fsync takes says little of the next, so it is their mean of late that counts: where that is slow a
thread waits. And where the disk is quick, a turn of appends alone is not even run before those have
come who are expected: one write and one fsync do for all.
"""

from collections.abc import Callable
from time import monotonic

from kvstream.server.runtime.executor import Executor
from kvstream.types.options import Durability

LINGER_S = 0.001
"""The most that is waited for others: less than a slow disk takes by far."""
QUICK_S = 0.002
"""A disk whose fsyncs take longer is slow."""
SHARE = 8
"""The mean of late moves towards the last fsync by this part of the way: one of 10 ms among dozens
of quick ones changes nothing."""
SLOWEST_S = 0.05
"""The most that a single slow one counts for: ten to twenty quick ones make up for it."""
VAIN_MAX = 6
"""After n times in vain each 2^n-th turn is held back for others, and no fewer than with this."""


class Gathering:
    """What one server's replies wait for."""

    def __init__(
        self,
        owner: Executor,
        soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """``soon`` has a function called behind the reads of the next round of the loop.

        The loop's own clock counts milliseconds alone, and an fsync may take a tenth of one.
        """
        self._owner = owner
        self._soon = soon
        self._clock = clock
        self._takes_s = self._linger_s = 0.0
        """What an fsync takes of late; 0: nothing is known of the disk yet."""
        self._until = self._asked_at = 0.0
        self._asked_for = self._expected = 0
        self._under_way = self._asked = False
        self._is_quick = self._is_gathered = False
        self._answered: set[int] = set()
        """The clients of the last turn that was held back, or might have been."""
        self._vain = self._skipped = 0

    def gather(self, look: Callable[[int], bool]) -> None:
        """Hold a turn of appends back until those have come whom the last fsync has answered.

        Only as long as those who are here lose less by it than the others would by an fsync of
        their own. ``look`` reads what comes within so many microseconds; False: nothing has.
        """
        owner, bursts = self._owner, self._owner.bursts
        self._is_gathered = (
            self._is_quick
            and not self._under_way
            and bool(bursts)
            and not owner.ready
            and owner.engine.durability is Durability.ALWAYS
        )
        if not self._is_gathered:
            return
        here = {burst.client.id for burst in bursts}
        if self._await(len(bursts), len(self._answered - here), look):
            here = {burst.client.id for burst in bursts}
        self._answered = here

    def _await(self, came: int, missing: int, look: Callable[[int], bool]) -> bool:
        """Have those read who are missing, where that has been worth it; tell whether any were."""
        if not missing:
            return False
        if self._skipped + 1 < 1 << self._vain:
            self._skipped += 1
            return False
        self._skipped = 0
        owner, everyone = self._owner, came + missing
        begun = self._clock()
        while came < everyone and not owner.ready:
            worth_s = self._takes_s * min((everyone - came) / came, 1.0)
            left_us = int((worth_s - self._clock() + begun) * 1_000_000)
            if left_us <= 0 or not look(left_us):
                break
            came = len(owner.bursts)
        found = (everyone - came) * 2 <= missing
        self._vain = 0 if found else min(self._vain + 1, VAIN_MAX)
        return came + missing > everyone

    def begin(self) -> None:
        """Wait for those who are expected, unless an fsync is under way: it comes first."""
        if self._under_way:
            return
        self._under_way = True
        if self._is_gathered:
            self._until = 0.0
            self._look()
        else:
            self._until = self._clock() + self._linger_s
            self._soon(self._look)

    def done(self) -> None:
        """Begin anew for those who came meanwhile; they and those answered make up the next."""
        if not self._asked:
            return
        self._asked = self._under_way = False
        self._learn(self._clock() - self._asked_at)
        waiting = self._owner.outbox.waiting
        self._expected = self._asked_for + waiting
        if waiting:
            self.begin()

    def _learn(self, took: float) -> None:
        took = min(took, SLOWEST_S)
        before = self._takes_s or took
        self._takes_s = takes = before + (took - before) / SHARE
        self._linger_s = min(takes / 2, LINGER_S)
        self._is_quick = takes <= QUICK_S

    def _look(self) -> None:
        outbox, now = self._owner.outbox, self._clock()
        self._is_gathered = False
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
