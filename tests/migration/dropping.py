"""A way to a server that breaks: a proxy on a port of its own."""

import socket
import threading
from contextlib import suppress
from random import Random


class Proxy:
    """Passes bytes on both ways, and cuts each connection after a random number of bytes."""

    def __init__(self, port: int, random: Random, most: int) -> None:
        """``most`` is the greatest number of bytes that pass before a cut."""
        self._to = port
        self._random = random
        self._most = most
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        self.is_steady = False
        """From now on nothing is cut."""
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
