"""TLS: the handshake of a connection, after which it is a connection like any other.

A connection counts among the clients from its first byte, so that strangers cannot have more of
them than clients may; and has few seconds to say who it is.
"""

import asyncio
from functools import partial
from typing import cast

from kvstream.server.net import Connection, Listener, open_port

SHUTDOWN_S = 5.0
"""Time in which the other side must agree to the end of a connection."""


class Handshake(asyncio.Protocol):
    """A connection whose two sides do not know each other yet."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._early: list[bytes] = []
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raw = cast(asyncio.Transport, transport)
        raw.pause_reading()  # what comes belongs to TLS
        limits = self._listener.executor.limits
        if not limits.has_room():
            limits.refuse()
            raw.abort()  # it would not understand us
            return
        limits.entering += 1
        self._listener.begin(self._shake(raw))

    def data_received(self, data: bytes) -> None:
        self._early.append(data)  # requests that have come along with the end of the handshake

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True

    async def _shake(self, raw: asyncio.Transport) -> None:
        executor, context = self._listener.executor, self._listener.tls
        assert context is not None
        secured: asyncio.Transport | None = None
        try:
            secured = await asyncio.get_running_loop().start_tls(
                raw,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=executor.options.tls_handshake_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError:  # no TLS, no certificate, too slow, gone: TLS has told why, where it can
            pass
        finally:
            executor.limits.entering -= 1
            if secured is None:
                raw.abort()
        if secured is not None and not self._lost:
            self._go_on(secured, raw)

    def _go_on(self, secured: asyncio.Transport, raw: asyncio.Transport) -> None:
        connection = Connection(self._listener, raw)
        secured.set_protocol(connection)
        connection.connection_made(secured)
        for data in self._early:
            connection.data_received(data)


async def listen_secured(listener: Listener, host: str, port: int) -> asyncio.Server:
    """Accept secured connections on a port."""
    return await open_port(partial(Handshake, listener), host, port)
