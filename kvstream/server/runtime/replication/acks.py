"""What all replicas have acknowledged: with ``replica-acks`` replies to writes wait for it.

Replies wait in the reply queue, in order. They are sent once the replicas have the last commit of
their turn. If that takes too long they become errors: the writes stay, and a failover may lose
them.
"""

from collections import deque
from collections.abc import Callable

from kvstream.errors import KVStreamError, StoreError
from kvstream.types.clock import monotonic


class NoAcks(StoreError):
    """A write was committed, and replicas did not confirm it in time: a failover may lose it."""

    code = "NOREPLICAS"

    def __init__(self) -> None:
        super().__init__(
            "The write was done here, and replicas did not confirm it in time: it may be lost."
        )


class ReplicaAcks:
    """What all replicas have acknowledged: with ``replica-acks`` replies wait for it."""

    def __init__(self) -> None:
        self.wanted = 0
        """How many replicas must have a write before it is acknowledged; 0: none."""
        self.reached = 0
        """The sequence number up to which all have the writes."""
        self._given_up = 0
        """Writes up to it were answered with NoAcks; reads of them do not wait."""
        self._release: Callable[[KVStreamError | None], None] = lambda error: None
        self._fail: Callable[[KVStreamError], None] = lambda error: None
        self._unconfirmed: deque[tuple[int, float]] = deque()
        """The last sequence number of each turn that waits, and when it was committed."""

    def release_by(
        self,
        release: Callable[[KVStreamError | None], None],
        fail: Callable[[KVStreamError], None],
    ) -> None:
        """Call ``release`` when replies wait no more, with an error if that took too long.

        ``fail`` ends all waits, whatever they are for.
        """
        self._release, self._fail = release, fail

    def delays(self, sequence: int) -> bool:
        """Return whether replies to a commit wait for replicas."""
        return self.wanted > 0 and sequence > self.reached and sequence > self._given_up

    def note(self, sequence: int) -> bool:
        """Note the last commit of a turn; return whether replicas are to be asked for it."""
        last = self._unconfirmed[-1][0] if self._unconfirmed else self._given_up
        if sequence <= max(self.reached, last):
            return False
        self._unconfirmed.append((sequence, monotonic()))
        return True

    def reach(self, sequence: int) -> None:
        """Send the replies to the commits that the replicas have now."""
        if sequence > self.reached:
            self.reached = sequence
            while self._unconfirmed and self._unconfirmed[0][0] <= sequence:
                self._unconfirmed.popleft()
            self._release(None)

    def give_up(self, timeout_s: float) -> None:
        """Answer all writes that wait with NOREPLICAS, if one of them has waited for so long."""
        if self._unconfirmed and monotonic() - self._unconfirmed[0][1] >= timeout_s:
            self._given_up = self._unconfirmed[-1][0]
            self._unconfirmed.clear()
            self._release(NoAcks())

    @property
    def is_waiting(self) -> bool:
        """Whether a commit is not confirmed yet."""
        return bool(self._unconfirmed)

    def want(self, count: int) -> None:
        """Wait for so many replicas from now on."""
        if count != self.wanted:
            self.wanted = count
            self._unconfirmed.clear()
            self._release(None)

    def restart(self, is_safe: bool) -> None:
        """Count anew: the role has changed, and sequence numbers with it.

        Writes that wait, also for the disk or the archive, are acknowledged only if it ``is_safe``:
        the new primary is known to have them.
        """
        self.reached = self._given_up = 0
        self._unconfirmed.clear()
        if is_safe:
            self._release(None)
        else:
            self._fail(NoAcks())
