"""All plain sockets of a server, read together.

A transport calls its protocol for each socket that it has read. Here one call of compiled code asks
which sockets have something, and reads them all; then the turn runs, and sockets are asked again at
once. Transports go on writing what a socket does not take, and closing. Where the compiled modules
or epoll are missing, and with TLS, transports read.

Who is answered asks again soon, and to be woken takes longer than most answers do. So more is
looked for behind a turn for some microseconds, as long as that finds something often enough.

The two ends of every request at its socket: bytes that come in, and replies that go out.
"""

import asyncio
import os
import select
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, Self

from kvstream.resp.compiled import twins
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.executor import Executor


class Turns(Protocol):
    """Who has turns run."""

    scheduled: bool

    def schedule(self) -> None:
        """Have one run soon, if there is something for it."""
        ...

    def soon(self, function: Callable[[], None]) -> object:
        """Have a function called in the next round of the loop, behind what this one writes."""
        ...


class PythonLink:
    """What a connection does for each request."""

    def __init__(self, arrivals: Executor, turns: Turns) -> None:
        self.client: Client | None = None
        """None: not let in yet, or gone."""
        self.transport: asyncio.Transport | None = None
        self.socket = -1
        """Where the transport writes just what it is given, and has nothing left to be written, the
        compiled twin writes to it itself; -1: unknown. uvloop's counts what it was given only once
        it has tried to write it, behind the reads of a round: until then it is given the rest, too.
        """
        self._arrivals = arrivals
        self._statistics, self._limits = arrivals.statistics, arrivals.limits
        self._turns = turns

    def data_received(self, data: bytes) -> None:
        """Take what has come in."""
        if self.client is not None:
            self._arrivals.received(self.client, data)
            if not self._turns.scheduled:
                self._turns.schedule()

    def send(self, data: bytes) -> None:
        """Write to the socket; a client that reads too slowly is cut off."""
        transport, client = self.transport, self.client
        if transport is None or client is None or transport.is_closing():
            return
        transport.write(data)
        size = len(data)
        client.bytes_out += size
        self._statistics.bytes_out += size
        is_near = transport.get_write_buffer_size() > self._limits.near or client.output_over_since
        if is_near and not self._limits.admits(client):
            self.abort()

    def abort(self) -> None:
        """Close, and let go of what was to be sent."""
        if self.transport is not None:
            self.transport.abort()


Link = PythonLink
if not TYPE_CHECKING and twins is not None:
    Link = twins.Link


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
