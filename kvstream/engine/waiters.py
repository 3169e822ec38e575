"""Blocked readers: the queue of each key, and how each reader gets its outcome.

A waiter tries its command again whenever one of its keys has changed. The thread that committed the
change runs the attempts, in order of arrival. So the first waiter of a group takes what it may, and
the others stay in the queue with their deadlines. Waiters know nothing of threads or event loops:
``deliver`` is called with the outcome by the thread that served the waiter, and may set an event or
call into an asyncio loop. It is called twice if that thread was interrupted in between.

``Signal`` wakes a waiting thread, and leaves nothing locked if one of the two is interrupted.
"""

import threading
from collections.abc import Callable, Container
from contextlib import suppress
from typing import Any


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
        """Wait at most so many seconds, or for ever if None; return whether it was set."""
        if seconds is None:
            return self._unset.acquire()
        return self._unset.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))


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
        "shares",
    )

    def __init__(
        self,
        names: list[bytes],
        attempt: Callable[[Any], Any],
        deliver: Callable[[Outcome], None],
        shares: bytes | None = None,
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
        self.shares = shares
        """Waiters with the same value, such as the readers of a group, take from the same entries:
        if one finds nothing new, those behind it are not tried."""
        self.group = group
        """The group that it reads for, or None."""
        self.before_fsync = before_fsync
        """Deliver before the fsync: the receiver holds the outcome back until it is durable."""


class Waiters:
    """The waiters of every key, in order of arrival."""

    def __init__(self) -> None:
        self.queues: dict[bytes, dict[Waiter, None]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self.queues

    def __len__(self) -> int:
        return len({waiter for queue in self.queues.values() for waiter in queue})

    def add(self, waiter: Waiter) -> None:
        for name in waiter.names:
            self.queues.setdefault(name, {})[waiter] = None

    def remove(self, waiter: Waiter) -> None:
        for name in waiter.names:
            queue = self.queues.get(name)
            if queue is not None:
                queue.pop(waiter, None)
                if not queue:
                    del self.queues[name]
        waiter.done = True  # last: after an interrupt it is removed once more

    def put_back(self, waiters: list[Waiter]) -> None:
        """Queue removed waiters again, before all others."""
        for waiter in reversed(waiters):
            waiter.done = False
            for name in waiter.names:
                self.queues[name] = {waiter: None, **self.queues.get(name, {})}

    def of(self, name: bytes) -> list[Waiter]:
        """Return the waiters of a key, in order of arrival."""
        return list(self.queues.get(name, ()))

    def end(self, error: Callable[[], Exception]) -> None:
        """End all waits; each waiter gets an error of its own."""
        for name in list(self.queues):
            for waiter in self.of(name):
                waiter.deliver(Outcome(error=error()))
                self.remove(waiter)

    def serve(
        self,
        name: bytes,
        attempt: Callable[[Waiter], bool],
        groups: Container[bytes | None] | None = None,
    ) -> None:
        """Call ``attempt``, which returns whether it served the waiter, for the waiters of a key.

        With ``groups``, only for those that read for one of these groups. The number of attempts
        is that of the served waiters and one for each group, however many readers wait.
        """
        exhausted: set[bytes] = set()
        for waiter in self.of(name):
            if waiter.shares in exhausted or waiter.done:
                continue
            if groups is not None and waiter.group not in groups:
                continue
            if not attempt(waiter) and waiter.shares is not None:
                exhausted.add(waiter.shares)

    def names(self) -> list[bytes]:
        """Return the keys that have waiters."""
        return list(self.queues)
