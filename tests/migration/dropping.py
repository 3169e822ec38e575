"""Proxies that break connections to a server, on ports of their own."""

import select
import socket
import threading
from contextlib import suppress
from random import Random


class Proxy:
    """Forwards bytes both ways, and cuts each connection after a random number of bytes."""

    def __init__(self, port: int, random: Random, most: int) -> None:
        """``most`` is the greatest number of bytes before a cut."""
        self._to = port
        self._random = random
        self._most = most
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        self.is_steady = False
        """Cut no more connections."""
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, *work: object) -> None:
        target, *arguments = work
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    client.close()
                    continue
                self._start(self._pass_on, client, server, 1 << 60)
                self._start(self._pass_on, server, client, self._random.randint(1, self._most))

    def _pass_on(self, source: socket.socket, target: socket.socket, left: int) -> None:
        with suppress(OSError):
            while data := source.recv(min(left, 1 << 16)):
                target.sendall(data)
                left -= 0 if self.is_steady else len(data)
                if left <= 0:
                    self.cuts += 1
                    break
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class LateProxy:
    """Forwards bytes both ways, and can deliver one request after its connection was lost."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.holds = False
        """Hold the next request back, and close its connection."""
        self._held: list[tuple[socket.socket, bytes]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with client:
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(1 << 20)
                    if source is client and data and self.holds:
                        self.holds = False
                        self._held.append((server, data))
                        return
                    if not data:
                        server.close()
                        return
                    (server if source is client else client).sendall(data)

    def deliver(self) -> None:
        """Send the held request to the server, and wait until the server has run it."""
        server, data = self._held.pop()
        with server:
            server.sendall(data + b"PING\r\n")
            replies = b""
            while not replies.endswith(b"+PONG\r\n"):
                replies += server.recv(1 << 20)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
