"""The socket of a replica: sends requests and acknowledgements, receives events.

redis-py connects, encrypts and authenticates; after that the bytes are ours. A lost connection
raises SourceNotReady, and the follower connects again.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvstream.errors import SourceNotReady
from kvstream.migration.replication.protocol import NOWHERE, Event, Position, Replica
from kvstream.remote.connection import socket_connection

if TYPE_CHECKING:
    import redis


RECEIVE_BYTES = 1 << 20
"""Most bytes of one read, which become one commit."""
ACK_S = 1.0
"""Pause between acknowledgements, as of Redis's replicas; after 60 s the source disconnects."""


class Link:
    """A connection to a source that sends its history from a position on."""

    def __init__(self, client: "redis.Redis", position: Position = NOWHERE) -> None:
        """Connect and send the handshake; raises redis-py's errors."""
        self._connection = socket_connection(client)
        self._connection.connect()
        # Private in redis-py, which no longer reads or writes this connection.
        self._socket: socket.socket = self._connection._sock
        self._sending = threading.Lock()
        self._replica = Replica(position)
        self.received = 0
        """Bytes received."""
        self._send(self._replica.outgoing())

    @property
    def position(self) -> Position:
        """The position after the last command received."""
        return self._replica.position

    def receive(self, timeout_s: float) -> list[Event]:
        """Return the events received within the timeout; raise SourceNotReady for a lost link."""
        try:
            self._socket.settimeout(timeout_s)
            data = self._socket.recv(RECEIVE_BYTES)
        except TimeoutError:
            return []
        except OSError as error:
            raise _lost(error) from None
        if not data:
            raise SourceNotReady("the source has closed the connection")
        self.received += len(data)
        events = self._replica.feed(data)
        self._send(self._replica.outgoing())
        return events

    def acknowledge(self, offset: int) -> None:
        """Acknowledge that everything up to an offset is durable."""
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
        """Acknowledge an offset each second from a thread; nothing else may use the link."""
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
            pass  # the next receive raises it too

    def close(self) -> None:
        self._connection.disconnect()


def _lost(error: OSError) -> SourceNotReady:
    return SourceNotReady(f"the connection to the source was lost: {error.strerror or error}")
