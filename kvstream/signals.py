"""Waking a thread that waits, with nothing left locked wherever either of both is interrupted."""

import threading
from contextlib import suppress


class Signal:
    """Wakes one thread that waits for it; once set it is kept until then.

    A bare lock, for an interrupt in the wrong moment leaves that of a threading.Event locked.
    """

    def __init__(self) -> None:
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        if self._unset.locked():
            with suppress(RuntimeError):  # another thread was quicker
                self._unset.release()

    def wait(self, seconds: float | None) -> bool:
        """Wait until it is set, for so long; None: for ever. Tell whether it was."""
        if seconds is None:
            return self._unset.acquire()
        return self._unset.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))
