"""The shell: sockets and timers of asyncio around the executor. It moves bytes, no more."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import cast

from kvstream.resp.requests import RequestReader
from kvstream.server.client import Client
from kvstream.server.executor import Executor

READ_AHEAD = 1 << 20
"""Bytes of requests that a client may have waiting before its socket is read no further."""


class Connection(asyncio.Protocol):
    """One socket."""

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._client: Client | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of no such class
        self._client = self._listener.welcome(self, self._transport)

    def data_received(self, data: bytes) -> None:
        if self._client is not None:
            self._listener.received(self._client, data)

    def eof_received(self) -> bool:
        return False  # closed at once: nobody reads what a blocked command would answer

    def connection_lost(self, error: Exception | None) -> None:
        if self._client is not None:
            self._listener.executor.gone(self._client)
        self._transport = None

    def send(self, data: bytes) -> None:
        """Write to the socket; a client that reads too slowly is cut off."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(data)
        if transport.get_write_buffer_size() > self._listener.output_max:
            transport.abort()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Listener:
    """All connections of one server in one event loop."""

    def __init__(self, executor: Executor, output_max: int) -> None:
        self.executor = executor
        self.output_max = output_max
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._next_id = 1
        executor.clock = self._loop.time
        executor.post = self.post

    def welcome(self, connection: Connection, transport: asyncio.Transport) -> Client:
        """Make a client of a new connection."""
        reader = RequestReader()
        client = Client(
            self.executor,
            self._next_id,
            reader,
            connection.send,
            connection.close,
            self._loop.time(),
        )
        self._next_id += 1
        client.address = _address(transport.get_extra_info("peername"))
        client.local_address = _address(transport.get_extra_info("sockname"))
        self.executor.add(client)
        return client

    def received(self, client: Client, data: bytes) -> None:
        self.executor.received(client, data)
        self._schedule()

    def post(self, function: Callable[[], None]) -> None:
        """Call a function in the loop's thread: now where this is it."""
        if threading.get_ident() == self._thread:
            function()
        else:
            self._loop.call_soon_threadsafe(self._posted, function)

    def _posted(self, function: Callable[[], None]) -> None:
        function()
        self._schedule()

    def _schedule(self) -> None:
        """Have a turn run behind all reads of this round of the loop."""
        if self.executor.ready and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run_turn)

    def _run_turn(self) -> None:
        self._scheduled = False
        self.executor.run()
        self._schedule()
        self._set_timer()

    def _set_timer(self) -> None:
        due = self.executor.due()
        if self._timer is not None:
            if due is not None and self._timer.when() <= due:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = self._loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.executor.expire()
        self._schedule()
        self._set_timer()


def _address(name: object) -> str:
    """Return an address as CLIENT LIST shows it."""
    if isinstance(name, tuple):
        return f"{name[0]}:{name[1]}"
    return f"{name or ''}:0"


async def listen(listener: Listener, host: str, port: int) -> asyncio.Server:
    """Accept connections on a port."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(partial(Connection, listener), host, port)
