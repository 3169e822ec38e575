"""Waiting in a thread until a blocked operation has something: the library's way of blocking."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from kvstream.engine import Engine
from kvstream.errors import RequestError
from kvstream.meta.txn import Txn
from kvstream.signals import Signal
from kvstream.waiters import Outcome

T = TypeVar("T")

RETRY_PAUSE_MS_MIN, RETRY_PAUSE_MS_GONE, RETRY_PAUSE_MS_MAX = 10, 50, 1000
"""How often a blocked CLAIM looks again: not so often as to keep a core busy."""


def wait_for(
    engine: Engine,
    names: list[bytes],
    attempt: Callable[[Txn], T | None],
    timeout_s: float | None,
    retry_at: Callable[[Txn], int | None] | None = None,
) -> T | None:
    """Run ``attempt`` until it replies, or return None after ``timeout_s``; None: for ever.

    ``retry_at`` tells the Unix time in milliseconds at which trying again may help although
    nothing was written.
    """
    arrived = Signal()
    outcomes: list[Outcome] = []

    def deliver(outcome: Outcome) -> None:
        outcomes.append(outcome)
        arrived.set()

    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    reply, waiter = engine.submit(names, attempt, deliver)
    if waiter is None:
        return reply
    try:
        while not arrived.wait(_pause(engine, deadline, retry_at)):
            if deadline is not None and time.monotonic() >= deadline:
                if engine.cancel(waiter):
                    return None
                arrived.wait(None)
                break
            elif retry_at is not None:
                engine.serve(waiter.names)  # whoever came earlier may go on by now as well
    except BaseException:  # KeyboardInterrupt among them
        engine.cancel(waiter)
        raise
    return outcomes[0].get()  # type: ignore[no-any-return]


def _pause(
    engine: Engine, deadline: float | None, retry_at: Callable[[Txn], int | None] | None
) -> float | None:
    """Return the seconds until the deadline or the next try, whichever is sooner."""
    rest = None
    if deadline is not None:
        rest = min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)
    if retry_at is None:
        return rest
    try:
        due = engine.run(retry_at)
    except RequestError:  # the key or group is gone: the waiter has been told, or will be
        due = None
    retry = retry_pause_s(due, engine.clock.now_ms())
    return retry if rest is None else min(rest, retry)


def retry_pause_s(due_ms: int | None, now_ms: int) -> float:
    """Return how long to wait before a blocked CLAIM tries again.

    ``due_ms`` is when trying may help, None where that is not known.
    """
    wait_ms = RETRY_PAUSE_MS_MAX if due_ms is None else due_ms - now_ms
    if wait_ms < 0:  # what is idle enough has just been passed over: its message is gone
        wait_ms = RETRY_PAUSE_MS_GONE
    return min(max(wait_ms, RETRY_PAUSE_MS_MIN), RETRY_PAUSE_MS_MAX) / 1000
