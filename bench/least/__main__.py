"""``python -m bench.least PORT FOLDER``: run the least server."""

import os
import select
import socket
import sys
from pathlib import Path

from hiredis import Reader

from bench.least.rows import NIL, Handler, Rows, Words, array, bulk, integer
from bench.least.streams import Streams

RECEIVED = 65536
"""Bytes that are read from a connection at once."""
SEND_S_MAX = 60.0
"""How long the loop waits for a client that does not read its replies."""
BACKLOG = 4096
OK = b"+OK\r\n"


class LeastServer:
    """The handlers: those of strings, and those of streams."""

    def __init__(self, folder: Path) -> None:
        self._rows = Rows(folder)
        self._streams = Streams(self._rows)
        self.commit = self._rows.commit
        self._handlers: dict[bytes, Handler] = {
            b"PING": lambda words: b"+PONG\r\n",
            b"ECHO": lambda words: bulk(words[1]),
            b"CLIENT": lambda words: OK,
            b"CONFIG": lambda words: array(bulk(words[2]), bulk(b"")),
            b"INFO": lambda words: bulk(b"process_id:%d\r\n" % os.getpid()),
            b"FLUSHALL": self._flushall,
            b"GET": self._get,
            b"SET": self._set,
            b"INCR": self._incr,
            **self._streams.handlers,
        }

    def reply(self, words: Words) -> bytes:
        """Run one request; return its encoded reply."""
        handler = self._handlers.get(words[0].upper())
        if handler is None:
            return b"-ERR unknown command '%b'\r\n" % words[0]
        return handler(words)

    def close(self) -> None:
        self._rows.close()

    def _flushall(self, words: Words) -> bytes:
        self._streams.clear()
        self._rows.clear()
        return OK

    def _get(self, words: Words) -> bytes:
        value = self._rows.get(words[1])
        return NIL if value is None else bulk(value)

    def _set(self, words: Words) -> bytes:
        self._rows.changed[words[1]] = words[2]
        return OK

    def _incr(self, words: Words) -> bytes:
        value = int(self._rows.get(words[1]) or 0) + 1
        self._rows.changed[words[1]] = b"%d" % value
        return integer(value)


class Loop:
    """The connections, and what they have sent."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
        self._connections: dict[int, tuple[socket.socket, Reader]] = {}
        self._poll = select.epoll()
        self._poll.register(self._listener.fileno(), select.EPOLLIN)

    def turn(self, server: LeastServer) -> None:
        """Read every ready connection, commit, and send all replies."""
        answered: list[tuple[socket.socket, list[bytes]]] = []
        for descriptor, _ in self._poll.poll():
            if descriptor not in self._connections:
                self._accept()
                continue
            connection, reader = self._connections[descriptor]
            data = _receive(connection)
            if not data:
                self._close(descriptor)
                continue
            reader.feed(data)
            replies: list[bytes] = []
            while (words := reader.gets()) is not False:
                replies.append(server.reply(words))
            answered.append((connection, replies))
        server.commit()
        for connection, replies in answered:
            _send(connection, b"".join(replies))

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[connection.fileno()] = connection, Reader()
        self._poll.register(connection.fileno(), select.EPOLLIN)

    def _close(self, descriptor: int) -> None:
        connection, _ = self._connections.pop(descriptor)
        self._poll.unregister(descriptor)
        connection.close()


def _receive(connection: socket.socket) -> bytes:
    """Return what has arrived, or nothing if the client has gone."""
    try:
        return connection.recv(RECEIVED)
    except OSError:
        return b""


def _send(connection: socket.socket, data: bytes) -> None:
    """Send replies; wait for a client whose buffer is full."""
    try:
        sent = connection.send(data)
        if sent < len(data):
            connection.settimeout(SEND_S_MAX)
            connection.sendall(data[sent:])
            connection.setblocking(False)
    except OSError:
        return  # the next read finds that the client has gone


def serve(port: int, folder: Path) -> None:
    """Serve until the process is killed."""
    loop, server = Loop(port), LeastServer(folder)
    while True:
        loop.turn(server)


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
