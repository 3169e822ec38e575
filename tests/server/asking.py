"""A connection that sends words and returns the replies unchanged, in RESP2 or RESP3."""

import socket
from typing import Any

from tests.patience import PATIENCE_S


class Failure(str):
    """The line of an error reply."""


class Asker:
    """One connection."""

    def __init__(self, port: int, protocol: int = 2) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._file = self._socket.makefile("rb")
        if protocol == 3:
            self.ask("HELLO", "3")

    def __enter__(self) -> "Asker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def send(self, *words: str | bytes) -> None:
        given = [word.encode() if isinstance(word, str) else word for word in words]
        head = b"*%d\r\n" % len(given)
        self.send_bytes(head + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in given))

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def ask(self, *words: str | bytes) -> Any:
        """Send a request and return its reply; ``ask("GET k")`` is split at its blanks."""
        if len(words) == 1 and isinstance(words[0], str):
            words = tuple(words[0].split())
        self.send(*words)
        return self.read()

    def read(self) -> Any:
        """Return the next reply; EOFError if the server has closed the connection."""
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError
        mark, rest = line[:1], line[1:-2]
        if mark in b"+,(":
            return rest
        if mark == b"-":
            return Failure(rest.decode("utf-8", "surrogateescape"))
        if mark in b":#":
            return int(rest) if mark == b":" else rest == b"t"
        if mark in b"$=":
            return None if rest == b"-1" else self._bulk(int(rest), mark == b"=")
        if mark == b"_":
            return None
        return self._whole(mark, int(rest))

    def _bulk(self, length: int, verbatim: bool) -> bytes:
        data = self._file.read(length + 2)[:-2]
        return data[4:] if verbatim else data

    def _whole(self, mark: bytes, count: int) -> Any:
        if count < 0:
            return None
        if mark == b"%":
            return {_hashable(self.read()): self.read() for _ in range(count)}
        return [self.read() for _ in range(count)]

    def is_closed(self) -> bool:
        """Return whether the server has closed the connection."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
