"""The socket below ``protocol``: bytes go out and come in, acknowledgements among them.

The connection is made, secured and let in by redis-py, as all others are; from then on the bytes
are ours. Whatever breaks it is a SourceNotReady: who follows connects again.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kvstream.errors import SourceNotReady
from kvstream.migration.replication.protocol import NOWHERE, Event, Position, Replica

if TYPE_CHECKING:
    import redis


RECEIVE_BYTES = 1 << 20
"""Read at once: what has come by then is one commit."""
ACK_S = 1.0
"""How often the source hears of us, as from its own replicas; after 60 s of silence it hangs up."""


class Link:
    """A connection to a source that sends us its history from a position on."""

    def __init__(self, client: "redis.Redis", position: Position = NOWHERE) -> None:
        """Connect and ask; raises what redis-py raises where that fails."""
        pool = client.connection_pool
        self._connection: Any = pool.connection_class(**(pool.connection_kwargs | {"protocol": 2}))
        self._connection.connect()
        # redis-py has no public name for it; nothing that it knows is read or sent from here on.
        self._socket: socket.socket = self._connection._sock
        self._sending = threading.Lock()
        self._replica = Replica(position)
        self.received = 0
        """Bytes that have come."""
        self._send(self._replica.outgoing())

    @property
    def position(self) -> Position:
        """Behind the last command that was received."""
        return self._replica.position

    def receive(self, timeout_s: float) -> list[Event]:
        """Return what has come, [] where nothing does in time; SourceNotReady once it is lost."""
        try:
            self._socket.settimeout(timeout_s)
            data = self._socket.recv(RECEIVE_BYTES)
        except TimeoutError:
            return []
        except OSError as error:
            raise _lost(error) from None
        if not data:
            raise SourceNotReady("the source has closed the link")
        self.received += len(data)
        events = self._replica.feed(data)
        self._send(self._replica.outgoing())
        return events

    def acknowledge(self, offset: int) -> None:
        """Tell the source that we have everything up to an offset, safely."""
        self._send(Replica.ack(offset))

    def _send(self, data: bytes) -> None:
        if not data:
            return
        with self._sending:
            try:
                self._socket.settimeout(None)
                self._socket.sendall(data)
            except OSError as error:
                raise _lost(error) from None

    @contextmanager
    def kept_alive(self, offset: int) -> Iterator[None]:
        """Acknowledge an offset each second by a thread, while nothing else is done with us."""
        over = threading.Event()
        thread = threading.Thread(target=self._repeat, args=(offset, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _repeat(self, offset: int, over: threading.Event) -> None:
        try:
            while not over.wait(ACK_S):
                self.acknowledge(offset)
        except SourceNotReady:
            pass  # whoever receives next meets it too

    def close(self) -> None:
        self._connection.disconnect()


def _lost(error: OSError) -> SourceNotReady:
    return SourceNotReady(f"the link to the source was lost: {error.strerror or error}")
