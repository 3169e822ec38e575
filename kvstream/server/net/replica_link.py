"""The sockets of replicas: frames are written to them directly, and files by sendfile.

Nothing else writes to such a connection: its requests get no replies.
"""

import os
import socket

from kvstream.replicas.feeds import Outgoing
from kvstream.server.runtime.client import Client

UNSENT_MAX = 1 << 20
"""Bytes that a connection with TLS may have unsent before it gets more."""
_HAS_MORE = getattr(socket, "MSG_MORE", 0)


class SocketLink:
    """A plain socket. One frame is sent at a time, as far as the socket has room."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._socket.setblocking(False)
        self._head = b""
        self._file, self._offset, self._left = -1, 0, 0

    def send(self, frame: Outgoing) -> None:
        """Begin to send a frame; the one before must be sent. Raises OSError if the link is lost.

        The file must stay open until ``flush`` returns true.
        """
        assert self._left == 0, "a frame is being sent"
        self._head, self._file, self._offset, self._left = frame
        self.flush()

    def flush(self) -> bool:
        """Send what is left; return whether that is all. Raises OSError if the link is lost."""
        try:
            while self._head:
                sent = self._socket.send(self._head, _HAS_MORE if self._left else 0)
                self._head = self._head[sent:]
            while self._left:
                sent = os.sendfile(self._socket.fileno(), self._file, self._offset, self._left)
                if not sent:
                    raise OSError("a file has become shorter")
                self._offset += sent
                self._left -= sent
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Close this end; the connection is closed by its owner."""
        self._socket.close()


class SecuredLink:
    """A connection with TLS: files are read, since they must be encrypted."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def send(self, frame: Outgoing) -> None:
        """Send a frame."""
        self._client.send(frame.head)
        if frame.size:
            self._client.send(os.pread(frame.descriptor, frame.size, frame.offset))

    def flush(self) -> bool:
        """Return whether there is room for another frame."""
        return self._client.pending_output() < UNSENT_MAX

    def close(self) -> None:
        """Do nothing: the connection is closed by its owner."""
