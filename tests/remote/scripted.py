"""A server that answers as a test says: nothing, one reply to all requests, or words at once."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from kvstream.resp.requests import RequestReader

Answer = Callable[[list[bytes]], bytes]
"""Makes the reply to a request."""


class Scripted:
    """A server at an address of this machine."""

    def __init__(
        self,
        answer: Answer | None = None,
        greeting: bytes = b"",
        host: str = "127.0.0.1",
    ) -> None:
        """``answer`` None: it is silent. After a ``greeting`` it closes the connection."""
        self._answer, self._greeting = answer, greeting
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, 0), family=family)
        self.port = int(self._listening.getsockname()[1])
        self.asked: list[bytes] = []
        """The names of the commands that came."""
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                end, _ = self._listening.accept()
                self._ends.append(end)
                threading.Thread(target=self._serve, args=(end,), daemon=True).start()

    def _serve(self, end: socket.socket) -> None:
        reader = RequestReader()
        with suppress(OSError), end:
            if self._greeting:
                end.sendall(self._greeting)
                end.shutdown(socket.SHUT_WR)
            while data := end.recv(1 << 16):
                if self._answer is None:
                    continue
                reader.feed(data)
                for request in reader.take():
                    self.asked.append(request[0])
                    end.sendall(self._answer(request))

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for end in self._ends:
            end.close()
