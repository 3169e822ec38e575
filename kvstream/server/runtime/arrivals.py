"""Arrivals: received bytes become requests of their client, which run in the next turn.

Most bytes are whole requests of a client on the short path: they are parsed at once. If they are
plain XADDs to one key, compiled code makes an XADD batch of them. All else, such as a request in
pieces, goes through the client's reader.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kvstream.commands.append import plain_trim
from kvstream.server.compiled import twins
from kvstream.server.runtime.client import PIECE, Client
from kvstream.server.runtime.limits import Limits
from kvstream.server.runtime.xadd_batching import XaddBatch
from kvstream.server.stats import Statistics
from kvstream.types.options import ENTRY_BYTES_MAX

BATCH_BYTES_MAX = 1 << 20
"""A batch runs as a whole, and no turn may be long. Its entries are below the smallest value of
stream-entry-max-bytes, which is the same."""


class ReceivingServer(Protocol):
    """The executor as arrivals see it."""

    statistics: Statistics
    limits: Limits
    clock: Callable[[], float]
    ready: dict[Client, None]
    xadd_batches: list[XaddBatch]

    def receive_unusual(self, client: Client, data: bytes) -> None: ...


class PythonArrivals:
    """Takes the received bytes of one server's clients."""

    def __init__(self, server: ReceivingServer) -> None:
        self._server = server

    def __call__(self, client: Client, data: bytes) -> None:
        """Take bytes from a client; whole requests run in the next turn."""
        server = self._server
        server.statistics.bytes_in += len(data)
        client.bytes_in += len(data)
        if client.bytes_in > client.look_at:
            server.limits.pause_if_ahead(client)
        if client.on_short_path and not client.requests and len(data) <= PIECE:
            requests = client.reader.whole(data)
            if requests:
                client.last_used = server.clock()
                client.requests += requests
                server.ready[client] = None
                return
        server.receive_unusual(client, data)


Arrivals: Callable[[ReceivingServer], Callable[[Client, bytes], None]] = PythonArrivals
if not TYPE_CHECKING and twins is not None:
    Arrivals = partial(twins.Arrivals, PIECE, BATCH_BYTES_MAX, ENTRY_BYTES_MAX, plain_trim)
