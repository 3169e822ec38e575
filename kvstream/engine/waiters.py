"""Blocked readers: the queue of each key, and how each reader gets its outcome.

A waiter tries its command again whenever one of its keys has changed. The thread that committed the
change runs the attempts, in order of arrival. So the first waiter of a group takes what it may, and
the others stay in the queue with their deadlines. Waiters know nothing of threads or event loops:
``deliver`` is called with the outcome by the thread that served the waiter, and may set an event or
call into an asyncio loop. It is called twice if that thread was interrupted in between.

``Signal`` and ``Flag`` wake waiting threads. They leave nothing locked if a thread is interrupted,
and a signal handler may set them.
"""

import threading
from collections.abc import Callable, Container, Hashable
from contextlib import suppress
from typing import Any, Self

from kvstream.errors import UnknownOutcome
from kvstream.meta.wakeups import Wake, Wakeups

RETRY_PAUSE_MS_MIN, RETRY_PAUSE_MS_GONE, RETRY_PAUSE_MS_MAX = 10, 50, 1000
"""Pauses between the tries of a blocked CLAIM; the least keeps it from using a whole core."""


class Signal:
    """An event for one waiting thread; it stays set until that thread has waited.

    It is a bare lock: an interrupt at the wrong moment leaves the lock of a threading.Event locked.
    """

    def __init__(self) -> None:
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        if self._unset.locked():
            with suppress(RuntimeError):  # another thread was quicker
                self._unset.release()

    def wait(self, seconds: float | None) -> bool:
        """Wait for ``seconds`` at most, or for ever if None; return whether it was set."""
        if seconds is None:
            return self._unset.acquire()
        return self._unset.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))


class Flag:
    """An event that stays set, for any number of threads; a bare lock, as in ``Signal``."""

    def __init__(self) -> None:
        self._is_set = False
        self._gate = threading.Lock()
        """Locked until the flag is set, and for a moment by each thread that has waited."""
        self._gate.acquire()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        with suppress(RuntimeError):  # it was set before
            self._gate.release()

    def wait(self, seconds: float) -> bool:
        """Wait for ``seconds`` at most; return whether it is set."""
        if not self._is_set and self._gate.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            with suppress(RuntimeError):  # it was set once more
                self._gate.release()
        return self._is_set


class Interrupt(Flag):
    """Ends the blocked reads of one thread from another one."""

    def __init__(self) -> None:
        super().__init__()
        self._end: Callable[[], object] = lambda: None

    def set(self) -> None:
        """End the read that waits, and those that begin later; may be called again and again."""
        super().set()
        self._end()

    def on_set(self, end: Callable[[], object]) -> None:
        """Call ``end`` in each call of ``set``, and at once if it is set already."""
        self._end = end
        if self.is_set():
            end()


class Outcome:
    """The reply or the error of a blocked command."""

    __slots__ = ("error", "reply")

    def __init__(self, reply: Any = None, error: Exception | None = None) -> None:
        self.reply = reply
        self.error = error

    def get(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.reply


class Waiter:
    """One blocked command."""

    __slots__ = (
        "attempt",
        "before_fsync",
        "deliver",
        "done",
        "found",
        "group",
        "names",
        "share_key",
    )

    def __init__(
        self,
        names: list[bytes],
        attempt: Callable[[Any], Any],
        deliver: Callable[[Outcome], None],
        share_key: Hashable | None = None,
        before_fsync: bool = False,
        group: bytes | None = None,
    ) -> None:
        self.names = names
        self.attempt = attempt
        """Runs the command in a transaction; returns its reply, or None to go on waiting."""
        self.deliver = deliver
        self.done = False
        """Served, timed out or cancelled; changed under the engine's lock only."""
        self.found: tuple[int, Outcome] | None = None
        """The sequence number to wait for, and the outcome. It is kept so that the outcome can be
        delivered again if the thread that served the waiter was interrupted."""
        self.share_key = share_key
        """If an attempt finds nothing, the waiters behind it with the same key are not tried.

        Waiters without a group change nothing, so they also share the outcome of an attempt."""
        self.group = group
        """The group that it reads for, or None."""
        self.before_fsync = before_fsync
        """Deliver before the fsync: the receiver holds the outcome back until it is durable."""

    @classmethod
    def of(
        cls, names: list[bytes], attempt: Callable[[Any], Any], deliver: Callable[[Outcome], None]
    ) -> Self:
        """Return the waiter of a library read; not every attempt has a share key and a group."""
        share_key, group = getattr(attempt, "share_key", None), getattr(attempt, "group", None)
        return cls(names, attempt, deliver, share_key, group=group)

    def fail(self, error: UnknownOutcome) -> None:
        """Deliver the error of a write that is not as durable as it should be."""
        self.deliver(Outcome(error=error))


class WaiterQueue(dict[Waiter, None]):
    """The waiters of one key, in order of arrival."""

    __slots__ = ("sharing",)

    def __init__(self) -> None:
        super().__init__()
        self.sharing: dict[Hashable, int] = {}
        """The number of waiters by share key; None: those that are always tried.

        After an interrupt it may be too high, which costs time only.
        """

    def add(self, waiter: Waiter) -> None:
        if waiter not in self:
            share_key = waiter.share_key if waiter.group is not None else None
            self.sharing[share_key] = self.sharing.get(share_key, 0) + 1  # first: see ``sharing``
            self[waiter] = None

    def discard(self, waiter: Waiter) -> None:
        if waiter in self:
            share_key = waiter.share_key if waiter.group is not None else None
            del self[waiter]
            self.sharing[share_key] -= 1
            if not self.sharing[share_key]:
                del self.sharing[share_key]


class Waiters:
    """The waiters of every key."""

    def __init__(self, wakeups: Wakeups) -> None:
        self.queues: dict[bytes, WaiterQueue] = {}
        self._wakeups = wakeups

    def __contains__(self, name: object) -> bool:
        return name in self.queues

    def __len__(self) -> int:
        return len({waiter for queue in self.queues.values() for waiter in queue})

    def add(self, waiter: Waiter) -> None:
        for name in waiter.names:
            queue = self.queues.get(name)
            if queue is None:
                queue = self.queues[name] = WaiterQueue()
            queue.add(waiter)

    def remove(self, waiter: Waiter) -> None:
        for name in waiter.names:
            queue = self.queues.get(name)
            if queue is not None:
                queue.discard(waiter)
                if not queue:
                    del self.queues[name]
        waiter.done = True  # last: after an interrupt it is removed once more

    def put_back(self, waiters: list[Waiter]) -> None:
        """Queue removed waiters again, before all others."""
        for waiter in reversed(waiters):
            waiter.done = False
            for name in waiter.names:
                behind = self.queues.pop(name, ())
                queue = self.queues[name] = WaiterQueue()
                for returned in (waiter, *behind):
                    queue.add(returned)

    def of(self, name: bytes) -> list[Waiter]:
        """Return the waiters of a key, in order of arrival."""
        return list(self.queues.get(name, ()))

    def cancel(self, waiter: Waiter, reason: Wake) -> bool:
        """End a wait without an outcome; return False if the waiter was served already."""
        if waiter.done or waiter.found is not None:
            return False
        for name in waiter.names[:1]:
            self._wakeups.record(name, waiter.group, reason)
        self.remove(waiter)
        return True

    def end(self, error: Callable[[], Exception], reason: Wake) -> None:
        """End all waits; each waiter gets an error of its own."""
        for name in list(self.queues):
            for waiter in self.of(name):
                waiter.deliver(Outcome(error=error()))
                self._wakeups.record(name, waiter.group, reason)
                self.remove(waiter)

    def serve(
        self,
        name: bytes,
        reason: Wake,
        attempt: Callable[[Waiter], Outcome | None],
        take: Callable[[Waiter, Outcome], None],
        groups: Container[bytes | None] | None = None,
    ) -> None:
        """Run the attempts of the waiters of a key; call ``take`` for each that gets an outcome.

        With ``groups``, only for those that read for one of these groups. Each group costs one
        attempt more than it has served readers; the readers without a group cost one attempt for
        each position.
        """
        queue = self.queues.get(name)
        if queue is None:
            return
        untried = set(queue.sharing)
        outcomes: dict[Hashable, Outcome | None] = {}
        for waiter in list(queue):
            if waiter.done or (groups is not None and waiter.group not in groups):
                continue
            share_key = waiter.share_key
            if share_key in outcomes:
                outcome = outcomes[share_key]
            else:
                outcome = attempt(waiter)
                if share_key is not None and (outcome is None or waiter.group is None):
                    outcomes[share_key] = outcome
                if outcome is None and share_key is not None:
                    untried.discard(share_key)
                    if not untried:
                        return
            if outcome is not None:
                self._wakeups.record(name, waiter.group, reason)
                take(waiter, outcome)

    def names(self) -> list[bytes]:
        """Return the keys that have waiters."""
        return list(self.queues)


def retry_pause_s(due_ms: int | None, now_ms: int) -> float:
    """Return the seconds until a blocked CLAIM tries again.

    ``due_ms`` is the Unix time at which a try may help, or None if that is unknown.
    """
    wait_ms = RETRY_PAUSE_MS_MAX if due_ms is None else due_ms - now_ms
    if wait_ms < 0:  # an entry was idle long enough, but its message is deleted
        wait_ms = RETRY_PAUSE_MS_GONE
    return min(max(wait_ms, RETRY_PAUSE_MS_MIN), RETRY_PAUSE_MS_MAX) / 1000
