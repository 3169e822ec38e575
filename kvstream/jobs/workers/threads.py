"""The threads in which a worker runs sync jobs."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue


class Threads:
    """A pool of threads, which grows to the number of calls that run at a time.

    One idle thread is woken at a time; it wakes the next one before it begins its call. So a few
    threads run many short calls, without a switch of threads for each.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._wake_ups: SimpleQueue[bool] = SimpleQueue()
        """False ends a thread."""
        self._idle = 0
        self._waking = False
        """Whether a thread was woken or started that has not run yet."""
        self._lock = threading.Lock()

    def start(self, calls: Iterable[Callable[[], None]]) -> None:
        """Run functions in threads, in new ones if none are idle."""
        self._calls.extend(calls)
        self._wake()

    def _wake(self) -> None:
        if self._waking or not self._calls:  # most calls end here, and need no lock
            return
        with self._lock:
            if self._waking or not self._calls:
                return
            self._waking = True
            new = self._idle == 0
            if not new:
                self._idle -= 1
        if not new:
            self._wake_ups.put(True)
            return
        try:
            threading.Thread(target=self._run, name="kvstream-job", daemon=True).start()
        except RuntimeError:  # the system has no thread left
            self._waking = False
            raise

    def _run(self) -> None:
        is_on = True
        while is_on:
            self._waking = False
            while (call := self._next()) is not None:
                try:  # noqa: SIM105 - a context takes a microsecond
                    self._wake()
                except RuntimeError:  # this thread runs the other calls later
                    pass
                call()
            is_on = self._wake_ups.get()

    def _next(self) -> Callable[[], None] | None:
        """Return the next call; None, and the thread counts as idle, if there is none."""
        with self._lock:
            if self._calls:
                return self._calls.popleft()
            self._idle += 1
            return None

    def close(self) -> None:
        """End the idle threads; others end with what they run."""
        with self._lock:
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._wake_ups.put(False)
