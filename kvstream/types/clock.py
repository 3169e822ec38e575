"""The clock of a store; tests pass one of their own."""

import time
from typing import Protocol

NANOSECONDS_PER_MS = 1_000_000


class Clock(Protocol):
    """A wall clock."""

    def now_ms(self) -> int:
        """Return the Unix time in milliseconds; it may jump forwards and backwards."""
        ...


class SystemClock:
    """The machine's wall clock."""

    def now_ms(self) -> int:
        return time.time_ns() // NANOSECONDS_PER_MS


now_ms = SystemClock().now_ms
"""Returns the Unix time in milliseconds, where no store has a clock of its own."""


class ManualClock:
    """A clock that is set by hand."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def advance(self, ms: int) -> None:
        """Move by ``ms`` milliseconds, backwards when negative."""
        self.ms += ms
