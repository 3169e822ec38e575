"""A proxy before an S3 server that loses answers, and notes what is asked."""

import select
import socket
import threading
from contextlib import suppress
from typing import Self


class Proxy:
    """Passes connections on; closes each ``lost_each``-th PUT in place of its answer.

    A request whose answer is lost was carried out.
    """

    def __init__(self, port: int, lost_each: int = 1 << 62) -> None:
        self._to, self._lost_each = port, lost_each
        self._puts = 0
        self.lost = 0
        """Answers that were lost."""
        self.gets: list[tuple[str, bytes]] = []
        """The path and the line of the range of each GET."""
        """The paths of all GET requests."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _start(self, run: object, *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                self._start(self._serve, self._listener.accept()[0])

    def _serve(self, client: socket.socket) -> None:
        self._open.add(client)
        address = "127.0.0.1", self._to
        with client, suppress(OSError), socket.create_connection(address) as server:
            self._pass(client, server)
        self._open.discard(client)

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        loses = False
        while True:
            for source in select.select([client, server], [], [])[0]:
                data = source.recv(1 << 16)
                if not data:
                    return
                if source is client:
                    loses = loses or self._is_unlucky(data)
                    server.sendall(data)
                elif loses and not data.startswith(b"HTTP/1.1 100"):
                    self.lost += 1
                    return
                else:
                    client.sendall(data)

    def _is_unlucky(self, data: bytes) -> bool:
        """Return whether a request begins whose answer is to be lost; note a GET."""
        if data.startswith(b"GET "):
            head = data.partition(b"\r\n\r\n")[0].split(b"\r\n")
            asked = [line for line in head if line.lower().startswith(b"range:")]
            self.gets.append((head[0].split(b" ")[1].decode(), b"".join(asked)))
        if not data.startswith(b"PUT "):
            return False
        self._puts += 1
        return self._puts % self._lost_each == 0
