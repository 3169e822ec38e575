"""A call that several threads want at a time: one makes it, and all have its result."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedCall(Generic[T]):
    """Runs a call once for all who ask while it runs; they get its result, or its error.

    No lock is held while the store is asked: when it is away, each viewer waits for one attempt,
    and not for those of all before.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: Future[T] | None = None
        self.waiting = 0
        """Callers who wait for the call that runs."""

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def run(self, call: Callable[[], T]) -> T:
        """Return the result of ``call``, or of the call that runs already."""
        with self._lock:
            running = self._running
            if running is None:
                own: Future[T] = Future()
                self._running, self.waiting = own, 0
            else:
                self.waiting += 1
        if running is not None:
            return running.result()
        try:
            result = call()
        except BaseException as error:
            self._running = None
            own.set_exception(error)
            raise
        self._running = None
        own.set_result(result)
        return result
