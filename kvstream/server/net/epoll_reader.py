"""The epoll reader: all plain sockets of a server are read together by compiled code.

A transport calls its protocol for each socket. The epoll reader reads all readable sockets by one
call, runs a turn, and reads again. Transports still write what a socket does not take at once, and
close. They also read if the connection has TLS, or without epoll or the compiled modules.

Without this module and the compiled channel ``XADD, -P 1`` takes 1.3 times the processor time.
"""

import asyncio
import select
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, Self

from kvstream.resp import twins
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.executor import Executor


class Turns(Protocol):
    """The listener, which imports this module."""

    scheduled: bool

    def schedule(self) -> None:
        """Schedule a turn if there are requests."""
        ...

    def soon(self, function: Callable[[], None]) -> object:
        """Call a function in the next iteration of the loop."""
        ...


class PythonChannel:
    """The part of a connection that every request uses."""

    def __init__(self, executor: Executor, turns: Turns) -> None:
        self.client: Client | None = None
        """None: not accepted yet, or gone."""
        self.transport: asyncio.Transport | None = None
        self.socket = -1
        """The descriptor of a plain socket: the compiled channel writes to it while the transport
        has nothing to write. uvloop counts written bytes only after the reads of an iteration, so
        until then everything goes to the transport. -1: the transport writes everything."""
        self._executor = executor
        self._statistics, self._limits = executor.statistics, executor.limits
        self._turns = turns

    def data_received(self, data: bytes) -> None:
        if self.client is not None:
            self._executor.received(self.client, data)
            if not self._turns.scheduled:
                self._turns.schedule()

    def send(self, data: bytes) -> None:
        """Write to the socket; disconnect a client that reads too slowly."""
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
        """Close at once and discard unsent bytes."""
        if self.transport is not None:
            self.transport.abort()


Channel = PythonChannel
if not TYPE_CHECKING and twins is not None:
    Channel = twins.Channel


class EpollReader:
    """The plain sockets of one server."""

    def __init__(self, ready: Callable[[], None]) -> None:
        """The loop calls ``ready`` if a socket is readable."""
        self._epoll = select.epoll()
        self._poller = twins.Poller(self._epoll.fileno())
        self.receive: Callable[[], int] = self._poller.receive
        """Read all readable sockets; return their number."""
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), ready)

    @classmethod
    def if_possible(cls, ready: Callable[[], None]) -> Self | None:
        """Return None if transports must read."""
        return None if twins is None or not hasattr(select, "epoll") else cls(ready)

    def add(self, descriptor: int, channel: Channel) -> None:
        """Read a socket; its transport must not."""
        self._epoll.register(descriptor, select.EPOLLIN)
        self._poller.add(descriptor, channel)

    def discard(self, descriptor: int) -> None:
        """Read a socket no more; call it before the socket is closed and its number used again."""
        if self._poller.discard(descriptor):
            self._epoll.unregister(descriptor)
