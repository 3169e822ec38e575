"""The clocks: wall clocks for IDs and expiry, and one that measures waits.

Programs test their own code under a clock that stands still or jumps (freezegun, time-machine).
IDs, expiry and delays follow it. Deadlines and pauses must not: a wait for 0.3 s would last for
ever. Those tools replace ``time.monotonic`` and ``time.perf_counter`` wherever a module has them,
so no module of kvstream uses these two. They leave ``clock_gettime`` alone.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle

NANOSECONDS_PER_MS = 1_000_000

monotonic = partial(time.clock_gettime, time.CLOCK_MONOTONIC)
"""Returns the seconds of a clock that always runs: for deadlines and pauses."""
perf_counter = monotonic
"""Returns the same, for durations that are reported."""


def is_frozen() -> bool:
    """Return whether a test has put another clock in the place of ``time.monotonic``."""
    return type(time.monotonic) is not BuiltinFunctionType


def call_later(
    loop: "AbstractEventLoop", seconds: float, call: Callable[..., object], *args: object
) -> "TimerHandle | threading.Timer":
    """Call a function in a loop after some seconds, also if a test has stopped the loop's clock."""
    if not is_frozen():
        return loop.call_later(seconds, call, *args)

    def fire() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(call, *args)

    timer = threading.Timer(seconds, fire)
    timer.daemon = True
    timer.start()
    return timer


_FRAMES = 8
"""freezegun gives the real time to calls from the first five frames of a thread, so threads of one
store would disagree; it looks at fewer frames than this."""


class Clock(Protocol):
    """A wall clock."""

    def now_ms(self) -> int:
        """Return the Unix time in milliseconds; it may jump forwards and backwards."""
        ...


class SystemClock:
    """The machine's wall clock, or what a test has put in its place."""

    def now_ms(self) -> int:
        """Return the Unix time of the system in milliseconds."""
        real = type(time.time_ns) is BuiltinFunctionType
        return (time.time_ns() if real else _read_deep(_FRAMES)) // NANOSECONDS_PER_MS


def _read_deep(frames: int) -> int:
    """Return ``time.time_ns()``, called below some frames."""
    return _read_deep(frames - 1) if frames else time.time_ns()


now_ms = SystemClock().now_ms
"""Returns the Unix time in milliseconds, where no store has a clock of its own."""


class ManualClock:
    """A clock that is set by hand."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        """Start at a Unix time in milliseconds."""
        self.ms = now_ms

    def now_ms(self) -> int:
        """Return the time that was set, in Unix milliseconds."""
        return self.ms

    def advance(self, ms: int) -> None:
        """Move by ``ms`` milliseconds, backwards when negative."""
        self.ms += ms
