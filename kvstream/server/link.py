"""The two ends of every request at its socket: bytes that come in, and replies that go out."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kvstream.resp.compiled import twins
from kvstream.server.arrivals import Arrivals
from kvstream.server.client import Client


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

    def __init__(self, arrivals: Arrivals, turns: Turns) -> None:
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
