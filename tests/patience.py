"""Waiting in tests: for what must come, never for as long as it should take.

A test may share its cores with anything: what is right comes late then, and what takes long may
have been held up by others. So waits end with what is waited for, and times that are measured are
those that a process or a thread has worked, or the best of several.
"""

import time
from collections.abc import Callable, Iterator
from types import TracebackType

PATIENCE_S = 60.0
"""After this long a test fails; nothing takes a fraction of it, however busy the machine is."""
LOOK_S = 0.005


def until(
    condition: Callable[[], object], what: str = "what must come", look_s: float = LOOK_S
) -> None:
    """Return once ``condition`` holds; there is no event for everything.

    A look that is in the way of what is waited for must be seldom: ``look_s``.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(look_s)


def worked_s(pid: int) -> float:
    """Return the seconds that the threads of a process have worked, whatever the machine did."""
    return time.clock_gettime(~pid << 3 | 2)  # what clock_getcpuclockid(3) returns on Linux


class Try:
    """One of several tries; it holds if nothing is raised in it."""

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
    """Yield tries until one holds: ``for each in tries(): with each: ...``; the last one raises.

    For what is slow once others keep the cores busy: they only ever add time, so the best try is
    what tells of the code.
    """
    for left in reversed(range(most)):
        one = Try(last=not left)
        yield one
        if one.holds:
            return


def retried(check: Callable[[], None]) -> None:
    """Call ``check`` until a try holds."""
    for each in tries():
        with each:
            check()
