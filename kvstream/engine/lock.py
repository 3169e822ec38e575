"""The lock of an engine: threads take it when they run, and do not wait in it."""

import threading
from _thread import RLock
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from kvstream.storage.contexts import contextmanager
from kvstream.types.clock import monotonic

HANDOVER_S = 0.005
"""A thread that has waited longer gets the lock next: Python's switch interval."""
RETRY_S = 0.05
"""How often a parked thread looks at the lock itself, in case an interrupt lost its wake-up."""


ENDS_ELSEWHERE = (
    "a transaction ends in the thread that began it, and this is another one: nothing was written; "
    "a generator that yields inside the block may be resumed in any thread"
)


class CallLock(RLock):  # type: ignore[misc]  # it is final in stubs alone
    """An RLock of a call; the call itself refuses a thread that has the lock already."""

    __slots__ = ()

    def is_held_here(self) -> bool:
        """Return whether this thread has the lock."""
        return self._is_owned()  # type: ignore[attr-defined,no-any-return]


class EngineLock(CallLock):  # type: ignore[misc]
    """An RLock that threads take when they run, and that they do not wait in.

    A thread that waits in an RLock may get it while another thread has the interpreter, and keeps
    the others out until it runs: each call then costs two switches of threads (a lock convoy). So a
    thread parks while the lock is ``busy``; the thread that leaves the lock wakes it, goes on, and
    may take the lock again. A thread that has waited for HANDOVER_S is handed the lock: it stays
    busy until that thread has had it.

    ``busy`` and ``parked`` are hints: without them all is right, and a hint that an interrupt has
    lost costs RETRY_S.
    """

    __slots__ = ("_waking", "busy", "handover_s", "parked", "retry_s")

    def __init__(self) -> None:
        self.busy = False
        """A thread has the lock, or was handed it."""
        self.parked: deque[tuple[threading.Lock, bool]] = deque()
        """The wake-up of each waiting thread, and whether it is to be handed the lock."""
        self.handover_s, self.retry_s = HANDOVER_S, RETRY_S
        self._waking = False
        """A thread was woken and has not run yet: it suffices, since all need the interpreter."""

    def is_free(self) -> bool:
        """Return whether this thread can take the lock, or has it."""
        if free := self.acquire(blocking=False):
            self.release()
        return free

    def park(self) -> bool:
        """Wait until the lock may be free; return at once, and true, if this thread has it."""
        if self.is_held_here():
            return True
        impatient_at = monotonic() + self.handover_s
        while self.busy:
            wake_up = threading.Lock()  # a new one: the last may be released yet, after retry_s
            wake_up.acquire()
            handed = monotonic() >= impatient_at
            mine = wake_up, handed
            try:
                self.parked.appendleft(mine) if handed else self.parked.append(mine)
                woken = self.busy and wake_up.acquire(timeout=self.retry_s)
            finally:
                with suppress(ValueError):
                    self.parked.remove(mine)
            self._waking = False
            if handed if woken else self.is_free():
                break
        return False

    def leave(self, nested: bool = False) -> None:
        """Wake a parked thread; the caller, who has the lock, releases it at once after this."""
        if nested or self._waking or not self.parked:
            self.busy = nested
        else:
            self._waking = True
            wake_up, handed = self.parked.popleft()
            wake_up.release()
            self.busy = handed

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock, for longer than a call. The block ends in the thread that began it."""
        nested = self.busy and self.park()
        with self:  # C code: no interrupt comes between taking the lock and the block
            self.busy = True
            try:
                yield
            finally:
                self.leave(nested)
