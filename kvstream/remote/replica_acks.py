"""Writes that replicas must have before their calls return: ``durability="replica"``.

WAIT follows each write in the same pipeline, or its EXEC. It works on kvstream and on Redis.
"""

from typing import Any, TypeVar

from kvstream.errors import UnknownOutcome

T = TypeVar("T")

ACKS_S = 2.0
"""The longest that WAIT waits: as long as a server with ``replica-acks`` does by default."""


class NotConfirmed(UnknownOutcome):
    """A write was done, and replicas did not confirm it in time: a failover may lose it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return UnknownOutcome, self.args


class ReplicaAcks:
    """How many replicas must have a write, and the command that waits for them."""

    def __init__(self, wanted: int, longest_s: float) -> None:
        """``longest_s``: how long a reply of the server may take."""
        self._wanted, self._wait_s = wanted, min(ACKS_S, longest_s)
        self.words = ("WAIT", wanted, max(1, round(self._wait_s * 1000)))

    def checked(self, replies: T, count: Any, place: str) -> T:
        """Return the replies of a write; raise an error among them, or NotConfirmed.

        ``count`` is the reply of WAIT.
        """
        if isinstance(replies, Exception):
            raise replies
        if isinstance(count, Exception):
            raise NotConfirmed(f"the write was done at {place}, and not confirmed: {count}")
        if count < self._wanted:
            raise NotConfirmed(
                f"the write was done at {place}, and {count} of {self._wanted} replicas have "
                f"confirmed it within {self._wait_s:g} s: a failover may lose it"
            )
        return replies
