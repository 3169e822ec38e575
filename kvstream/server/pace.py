"""How long a turn may go on: the loop has sockets to look after."""

from collections.abc import Callable
from typing import Final, Protocol

from kvstream.server.calls import Calls

TURN_S: Final = 0.010
"""A turn takes no new request after this time, so that the loop is never held for long."""
TURN_REQUESTS: Final = 2000
"""Nor after so many: their replies wait for the commit."""
LONG_REST_S: Final = 0.0075
"""A turn ends so much sooner after a long call: the reply is long, too, and kept until the end."""
LOOKS: Final = 32
"""After so many requests of one client, and after each long one, the time is looked at."""


class Clocked(Protocol):
    """Whose clock it is."""

    clock: Callable[[], float]


class Pace:
    """The time of one turn after the other."""

    def __init__(self, owner: Clocked, calls: Calls) -> None:
        self._owner = owner
        self._calls = calls
        self._until = 0.0

    def begin(self) -> float:
        """Begin a turn; return when its time is over, on the clock."""
        self._until = until = self._owner.clock() + TURN_S
        return until

    def is_late(self) -> bool:
        """Tell whether the turn is to end behind the last request."""
        rest = LONG_REST_S if self._calls.took_long else 0.0
        self._calls.took_long = False
        return self._owner.clock() >= self._until - rest
