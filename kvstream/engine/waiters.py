"""Who waits for which stream, in the order of arrival, and how each is told.

A waiter tries its command again whenever a key that it waits for may have news. The attempt is run
by the thread that made the news, in the order in which the waiters came: so the first waiter of a
group takes what it may, and the others stay in the queue with their deadlines. A waiter knows
nothing of threads or event loops: ``deliver`` is called with the outcome, from whichever thread
served it, and may set an event or call into an asyncio loop. It is called once more where that
thread was interrupted.

Waking a thread that waits, with nothing left locked wherever either of both is interrupted.
"""

import threading
from collections.abc import Callable, Container
from contextlib import suppress
from typing import Any


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


class Outcome:
    """What a blocked command came to: a reply or an error."""

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

    __slots__ = ("attempt", "deliver", "done", "found", "group", "keeps", "names", "shares")

    def __init__(
        self,
        names: list[bytes],
        attempt: Callable[[Any], Any],
        deliver: Callable[[Outcome], None],
        shares: bytes | None = None,
        keeps: bool = False,
        group: bytes | None = None,
    ) -> None:
        self.names = names
        self.attempt = attempt
        """Runs the command in a transaction: its reply, or None while there is nothing."""
        self.deliver = deliver
        self.done = False
        """Served, timed out or cancelled; changed under the engine's lock alone."""
        self.found: tuple[int, Outcome] | None = None
        """What it is to be told, and the number of the write to wait for: it may be told again
        where whoever served it was interrupted."""
        self.shares = shares
        """What it takes from together with others, as readers of one group do: where one of them
        finds nothing new of a key, none behind it will."""
        self.group = group
        """The group that it reads for; None: not known, or none."""
        self.keeps = keeps
        """Who is told keeps it until it is durable; others are told only then."""


class Waiters:
    """The queue of waiters of every key."""

    def __init__(self) -> None:
        self._queues: dict[bytes, dict[Waiter, None]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._queues

    def __len__(self) -> int:
        return len({waiter for queue in self._queues.values() for waiter in queue})

    def add(self, waiter: Waiter) -> None:
        for name in waiter.names:
            self._queues.setdefault(name, {})[waiter] = None

    def remove(self, waiter: Waiter) -> None:
        for name in waiter.names:
            queue = self._queues.get(name)
            if queue is not None:
                queue.pop(waiter, None)
                if not queue:
                    del self._queues[name]
        waiter.done = True  # last: who was interrupted before does it once more

    def put_back(self, waiters: list[Waiter]) -> None:
        """Let waiters that were removed wait again, before all others."""
        for waiter in reversed(waiters):
            waiter.done = False
            for name in waiter.names:
                self._queues[name] = {waiter: None, **self._queues.get(name, {})}

    def of(self, name: bytes) -> list[Waiter]:
        """Return the waiters of a key, first come first."""
        return list(self._queues.get(name, ()))

    def end(self, error: Callable[[], Exception]) -> None:
        """Tell every waiter that its wait has ended so, each by an error of its own."""
        for name in list(self._queues):
            for waiter in self.of(name):
                waiter.deliver(Outcome(error=error()))
                self.remove(waiter)

    def serve(
        self,
        name: bytes,
        attempt: Callable[[Waiter], bool],
        groups: Container[bytes | None] | None = None,
    ) -> None:
        """Let the waiters of a key try, first come first; ``attempt`` tells whether it found any.

        ``groups``: those alone that read for one of them. However many readers of a group wait, an
        entry costs as many attempts as it serves, and one.
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
        """Return the keys that somebody waits for."""
        return list(self._queues)
