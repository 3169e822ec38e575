"""All plain sockets of a server, read together.

A transport calls its protocol for each socket that it has read. Here one call of compiled code asks
which sockets have something, and reads them all; then the turn runs, and sockets are asked again at
once. Transports go on writing what a socket does not take, and closing. Where the compiled modules
or epoll are missing, and with TLS, transports read.

Who is answered asks again soon, and to be woken takes longer than most answers do. So more is
looked for behind a turn for some microseconds, as long as that finds something often enough.
"""

import asyncio
import os
import select
from collections.abc import Callable
from typing import Self

from kvstream.resp.compiled import twins
from kvstream.server.link import Link

PATIENCE_US = 50
"""How long more is looked for: about as long as it takes to be woken."""
LOOKS_MAX = 6
"""After n looks in vain each 2^n-th turn looks, and no fewer than with this one."""


class Sockets:
    """Those of one server."""

    def __init__(self, ready: Callable[[], None]) -> None:
        """``ready`` is called in the loop when there is something."""
        self._epoll = select.epoll()
        self.descriptor = self._epoll.fileno()
        self.links = twins.Sockets(self.descriptor)
        self.patience_us = PATIENCE_US if _processors() > 1 else 0
        """How long more is looked for behind a turn."""
        self._vain = self._skipped = 0
        asyncio.get_running_loop().add_reader(self.descriptor, ready)

    @classmethod
    def where_possible(cls, ready: Callable[[], None]) -> Self | None:
        """Return None where transports must read."""
        if twins is None or not hasattr(select, "epoll"):
            return None
        return cls(ready)

    def add(self, descriptor: int, link: Link) -> None:
        """Read a socket for its link; its transport must not."""
        self._epoll.register(descriptor, select.EPOLLIN)
        self.links.add(descriptor, link)

    def discard(self, descriptor: int) -> None:
        """Read a socket no more; it must be open still, so that nobody else has its number."""
        if self.links.discard(descriptor):
            self._epoll.unregister(descriptor)

    def receive(self) -> bool:
        """Have the link of each socket take what has come; tell whether there was anything."""
        return self.links.receive() > 0

    def receive_within(self, patience_us: int) -> bool:
        """Do so, and where nothing has come yet look for it for so many microseconds.

        Not with one processor: who is to send could not run meanwhile.
        """
        return self.links.receive(patience_us if self.patience_us else 0) > 0

    def receive_more(self) -> bool:
        """Do so behind a turn, and look for more a little longer where that has been worth it."""
        if self._skipped + 1 < 1 << self._vain:
            self._skipped += 1
            return self.links.receive() > 0
        self._skipped = 0
        found = self.links.receive(self.patience_us) > 0
        self._vain = 0 if found else min(self._vain + 1, LOOKS_MAX)
        return found


def _processors() -> int:
    """Return how many there are for this process: with one nobody else can send meanwhile."""
    return len(os.sched_getaffinity(0))
