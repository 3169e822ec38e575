"""A pipe: what redis-py takes for a socket. What goes in is run, what comes out are the replies.

It belongs to one thread at a time, as a connection of redis-py does; others may close it.
"""

import errno
from collections import deque

from kvstream.engine.waiters import Signal
from kvstream.inprocess.host import Host
from kvstream.server.runtime.client import Client

Buffer = bytearray | memoryview


class Pipe:
    """A client's end of its connection to a host, by the methods of a socket."""

    def __init__(self, host: Host, timeout: float | None = None) -> None:
        """Enter; ConnectionResetError where the host has ended."""
        self._host = host
        self._timeout = timeout
        self._chunks: deque[bytes] = deque()
        self._at = 0
        """Bytes of the first chunk that have been read."""
        self._sent = self._read = 0
        self._arrived = Signal()
        self._open = True
        self._broken = ""
        self._client: Client | None = None
        self._client = host.welcome(self)

    # --- what redis-py calls --------------------------------------------------------------------

    def sendall(self, data: bytes) -> None:
        """Send requests, and run them in this thread."""
        self._refuse_broken()
        if self._client is not None:
            self._host.talk(self._client, data)

    def recv_into(self, buffer: Buffer) -> int:
        """Read replies into a buffer; 0 at the end, an error as a socket's where none comes."""
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def recv(self, size: int) -> bytes:
        """Read replies: ``size`` bytes at most, none at the end."""
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
        """Wait so long for replies; None: for ever, 0: not at all."""
        self._timeout = seconds

    def shutdown(self, how: int) -> None:
        """Do nothing: ``close`` is all."""

    def close(self) -> None:
        """Leave the host, or take no more: also what the host calls."""
        if not self._open:
            return
        self._open = False
        if not self._host.ended:  # in a forked child not even the event may be touched
            self._arrived.set()
            if self._client is not None:
                self._host.leave(self._client)

    # --- what the host calls --------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        if self._open:
            self._chunks.append(data)
            self._sent += len(data)
            self._arrived.set()

    def break_off(self, reason: str) -> None:
        self._broken = reason
        self._open = False
        self._arrived.set()

    def pending(self) -> int:
        return self._sent - self._read

    # --- waiting --------------------------------------------------------------------------------

    def wait(self, seconds: float | None) -> bool:
        """Wait until there is something to be read, the end too; tell whether there is."""
        while not self._chunks and self._open:
            if not self._arrived.wait(seconds):
                return False
        return True

    def is_over(self) -> bool:
        """Tell whether all is read and nothing more will come."""
        return not self._open and not self._chunks

    def _refuse_broken(self) -> None:
        if self._broken:
            raise ConnectionResetError(errno.ECONNRESET, self._broken)
