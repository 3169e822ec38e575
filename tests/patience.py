"""Waiting in tests: for a condition, never for a fixed time.

A test may share its cores with other work: correct results can be late, and long times can have
other causes. So a wait ends with its condition. Measured times are the processor time of a process
or a thread, or the best of several attempts.
"""

import time
from collections.abc import Callable, Iterator
from types import TracebackType

PATIENCE_S = 60.0
"""After this time a test fails; everything takes a fraction of it, even on a busy machine."""
LOOK_S = 0.005


def until(
    condition: Callable[[], object], what: str = "a condition", look_s: float = LOOK_S
) -> None:
    """Return once ``condition`` holds; not everything has an event to wait for.

    A check that delays what the test waits for must be rare: set ``look_s``.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(look_s)


def worked_s(pid: int) -> float:
    """Return the processor time of a process in seconds, independent of other work."""
    return time.clock_gettime(~pid << 3 | 2)  # what clock_getcpuclockid(3) returns on Linux


class Try:
    """One of several attempts; it succeeds if nothing is raised in it."""

    def __init__(self, last: bool) -> None:
        self._last = last
        self.holds = False

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self.holds = error is None
        return isinstance(error, AssertionError) and not self._last


def tries(most: int = 5) -> Iterator[Try]:
    """Yield attempts, ``for each in tries(): with each: ...``, until one succeeds; the last raises.

    For code that is slow when other work keeps the cores busy: that only adds time, so the best
    attempt measures the code.
    """
    for left in reversed(range(most)):
        one = Try(last=not left)
        yield one
        if one.holds:
            return


def retried(check: Callable[[], None]) -> None:
    """Call ``check`` until an attempt succeeds."""
    for each in tries():
        with each:
            check()
