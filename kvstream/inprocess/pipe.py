"""A pipe: the object that redis-py uses as a socket. Writing runs requests; reading gives replies.

It belongs to one thread at a time, as a connection of redis-py does. Other threads may close it.
"""

import errno
from collections import deque

from kvstream.engine.waiters import Signal
from kvstream.inprocess.host import Host
from kvstream.server.runtime.client import Client

Buffer = bytearray | memoryview


class Pipe:
    """The host's endpoint of a connection, with the methods of a socket."""

    def __init__(self, host: Host, timeout: float | None = None) -> None:
        """Connect to the host; ConnectionResetError if it has ended."""
        self._host = host
        self._timeout = timeout
        self._chunks: deque[bytes] = deque()
        self._at = 0
        """Bytes of the first chunk that were read."""
        self._sent = self._read = 0
        self._arrived = Signal()
        self._open = True
        self._broken = ""
        self._client: Client | None = None
        self._client = host.connect(self)

    # --- what redis-py calls --------------------------------------------------------------------

    def sendall(self, data: bytes) -> None:
        """Send requests, and run them in this thread."""
        self._refuse_broken()
        if self._client is not None:
            self._host.receive(self._client, data)

    def recv_into(self, buffer: Buffer) -> int:
        """Read replies into a buffer. Return 0 at the end; raise the errors of a socket on a
        timeout."""
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def recv(self, size: int) -> bytes:
        """Read at most ``size`` bytes of replies; empty at the end."""
        if not self._chunks and not self.wait(self._timeout):
            if self._timeout == 0:
                raise BlockingIOError(errno.EAGAIN, "nothing has come")
            raise TimeoutError("timed out")
        if not self._chunks:
            self._refuse_broken()
            return b""
        data = self._chunks[0]
        if self._at or len(data) > size:
            data = data[self._at : self._at + size]
        self._at += len(data)
        if self._at == len(self._chunks[0]):
            self._chunks.popleft()
            self._at = 0
        self._read += len(data)
        return data

    def settimeout(self, seconds: float | None) -> None:
        """Set the seconds to wait for replies; None: without end, 0: do not wait."""
        self._timeout = seconds

    def shutdown(self, how: int) -> None:
        """Do nothing: ``close`` ends the connection."""

    def close(self) -> None:
        """Disconnect from the host. The host calls this, too."""
        if not self._open:
            return
        self._open = False
        if not self._host.ended:  # a forked child may not even touch the event
            self._arrived.set()
            if self._client is not None:
                self._host.disconnect(self._client)

    # --- called by the host ---------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        if self._open:
            self._chunks.append(data)
            self._sent += len(data)
            self._arrived.set()

    def fail(self, reason: str) -> None:
        self._broken = reason
        self._open = False
        self._arrived.set()

    def pending(self) -> int:
        return self._sent - self._read

    # --- waiting --------------------------------------------------------------------------------

    def wait(self, seconds: float | None) -> bool:
        """Wait until there are bytes or the end; return False on a timeout."""
        while not self._chunks and self._open:
            if not self._arrived.wait(seconds):
                return False
        return True

    def is_over(self) -> bool:
        """Return whether the connection has ended and everything was read."""
        return not self._open and not self._chunks

    def _refuse_broken(self) -> None:
        if self._broken:
            raise ConnectionResetError(errno.ECONNRESET, self._broken)
