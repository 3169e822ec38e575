"""Very many plain connections to one server, opened and read as fast as a test can."""

import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tests.patience import PATIENCE_S
from tests.server.talking import request
from tests.serving import ServerProcess

LOOK_S = 0.005
AT_ONCE = 250
"""The number of connections opened before one of them is answered."""
SPARE = 600
"""Descriptors of the server and of the tests besides those of clients."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: on, with no time: closing a socket resets its connection."""


@contextmanager
def room_for(clients: int) -> Iterator[int]:
    """Raise the limit of open files to the maximum; yield how many clients it allows."""
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = clients + SPARE
    granted = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(least, granted), most))
    try:
        yield min(clients, granted - SPARE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, most))


class Crowd:
    """Connections that send requests one after the other."""

    def __init__(self, port: int, count: int) -> None:
        self.sockets: list[socket.socket] = []
        for number in range(1, count + 1):
            connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
            self.sockets.append(connection)
            if number % AT_ONCE == 0:  # the backlog of the listener is limited
                connection.sendall(request("PING"))
                _read(connection, len(b"+PONG\r\n"))

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, words: Callable[[int], Sequence[str]]) -> None:
        """Send a request on each; ``words`` makes it from the connection's number."""
        for number, connection in enumerate(self.sockets):
            connection.sendall(request(*words(number)))

    def read(self, length: int) -> list[bytes]:
        """Return the next bytes of each, of that length."""
        return [_read(connection, length) for connection in self.sockets]

    def close(self) -> None:
        for connection in self.sockets:
            connection.close()

    def reset(self) -> None:
        """Reset each connection, as a crashed client does."""
        for connection in self.sockets:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.close()


def _read(connection: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length:
        data = connection.recv(length - len(received))
        if not data:
            raise EOFError
        received += data
    return received


def await_field(server: ServerProcess, section: str, field: str, value: int) -> None:
    """Wait until a field of INFO has a value; the asking client counts too."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := int(server.information(section)[field])) != value:
        assert time.monotonic() < deadline, f"{field} is {found}, not {value}"
        time.sleep(LOOK_S)
