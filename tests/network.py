"""A bad network: a proxy between a client and a server that harms one request, at a chosen point.

A *burst* is what the client sends at once: a command, or the pipeline of a transaction. Requests
and replies pass unharmed until the proxy is armed; then it counts bursts from 0.
"""

import os
import select
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from tests.patience import PATIENCE_S, until

Address = tuple[str, int] | str
"""A host and port, or the path of a Unix socket."""

_READ = 1 << 20
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Harm(StrEnum):
    """What happens to a burst, and whether the server gets it."""

    GONE_BEFORE = "reset before the request, and no more connections"
    RESET_BEFORE = "reset before the request"
    CUT_REQUEST = "reset in the middle of the request"
    LATE_REQUEST = "a request that arrives when nobody waits for its reply"
    LATE_REPLY = "a reply that comes when nobody waits for it"
    RESET_AFTER = "reset before the reply"
    GONE_AFTER = "reset before the reply, and no more connections"
    CUT_REPLY = "an end in the middle of the reply"
    REPLY_IN_PARTS = "a reply byte by byte"
    DOUBLED_REPLY = "a reply that comes twice"


WAITED_FOR = (Harm.LATE_REQUEST, Harm.LATE_REPLY, Harm.GONE_BEFORE, Harm.GONE_AFTER)
"""Harms after which a client may wait until it gives up."""


def _connect(address: Address) -> socket.socket:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    end = socket.socket(family)
    end.connect(address)
    return end


def _reset(end: socket.socket) -> None:
    """Close a connection as a process that is killed does."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


class Proxy:
    """Forwards connections to a server."""

    def __init__(self, server: Address, path: Path | None = None) -> None:
        """Listen at ``path``, or on a free port."""
        self._server, self._path = server, path
        self.harm: Harm | None = None
        self._left = 0
        """Bursts before the one that is harmed."""
        self.bursts: list[bytes] = []
        """What clients have sent since the proxy was armed."""
        self.harmed = threading.Event()
        self._goes_on = threading.Event()
        self._busy = 0
        """Bursts whose reply has not come from the server."""
        self._lock = threading.Lock()
        self._ends: set[socket.socket] = set()
        self._listening = self._listen(0)
        self.port = 0 if path else int(self._listening.getsockname()[1])

    def _listen(self, port: int) -> socket.socket:
        if self._path is None:
            listening = socket.create_server(("127.0.0.1", port))
        else:
            self._path.unlink(missing_ok=True)
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(str(self._path))
            self._path.chmod(0o600)
            listening.listen()
        threading.Thread(target=self._accept, args=(listening,), daemon=True).start()
        return listening

    def arm(self, harm: Harm | None, at: int = 0) -> None:
        """Harm the burst number ``at`` from now on; later ones pass."""
        self.harmed.clear()
        self._goes_on.clear()
        self.bursts.clear()
        self._left, self.harm = at, harm

    def heal(self) -> None:
        """Let pass what was held back, wait until the server has done all, and admit clients."""
        self.harm = None
        self._goes_on.set()
        until(lambda: not self._busy, "the server")
        if self._listening.fileno() < 0:
            self._listening = self._listen(self.port)

    def drop(self) -> None:
        """End all connections and admit none until ``heal``, as a server that ends does."""
        self._refuse()
        with self._lock:
            ends = list(self._ends)
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        until(lambda: not self._ends, "the connections")

    def close(self) -> None:
        self.harm = None
        self._goes_on.set()
        self.drop()

    def _refuse(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        try:
            server = _connect(self._server)
        except OSError:
            _reset(client)
            return
        both = {client, server}
        with self._lock:
            self._ends |= both
        try:
            self._exchange(client, server)
        except OSError:
            pass
        finally:
            for end in both:
                with suppress(OSError):
                    end.close()
            with self._lock:
                self._ends -= both

    def _exchange(self, client: socket.socket, server: socket.socket) -> None:
        while client.fileno() >= 0:
            for end in select.select([client, server], [], [])[0]:
                data = end.recv(_READ) if end.fileno() >= 0 else b""
                if not data:
                    return
                if end is server:
                    client.sendall(data)
                elif self._is_harmed(data):
                    self._harm(client, server, data)
                else:
                    server.sendall(data)

    def _is_harmed(self, data: bytes) -> bool:
        with self._lock:
            if self.harm is None:
                return False
            self.bursts.append(data)
            self._left -= 1
            return self._left == -1

    def _harm(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        harm = self.harm
        assert harm is not None
        self._busy += 1
        self.harmed.set()
        try:
            self._harms[harm](self, client, server, data)
        finally:
            self._busy -= 1

    # --- harms ----------------------------------------------------------------------------------

    def _reset_before(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        _reset(client)

    def _gone_before(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        self._refuse()
        _reset(client)

    def _cut_request(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        server.sendall(data[: len(data) // 2])
        _reset(client)

    def _late_request(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        self._goes_on.wait(PATIENCE_S)
        self._ask(server, data)
        _reset(client)

    def _late_reply(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        reply = self._ask(server, data)
        self._goes_on.wait(PATIENCE_S)
        with suppress(OSError):
            client.sendall(reply)

    def _reset_after(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        self._ask(server, data)
        _reset(client)

    def _gone_after(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        self._ask(server, data)
        self._refuse()
        _reset(client)

    def _cut_reply(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        reply = self._ask(server, data)
        client.sendall(reply[: len(reply) // 2])
        client.close()

    def _in_parts(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        for byte in self._ask(server, data):
            client.sendall(bytes([byte]))

    def _doubled_reply(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        client.sendall(2 * self._ask(server, data))

    @staticmethod
    def _ask(server: socket.socket, data: bytes) -> bytes:
        """Forward a burst, and return what the server replies at once: it has done all by then."""
        server.sendall(data)
        return server.recv(_READ)

    _harms: ClassVar[dict[Harm, Callable[["Proxy", socket.socket, socket.socket, bytes], None]]] = {
        Harm.GONE_BEFORE: _gone_before,
        Harm.RESET_BEFORE: _reset_before,
        Harm.CUT_REQUEST: _cut_request,
        Harm.LATE_REQUEST: _late_request,
        Harm.RESET_AFTER: _reset_after,
        Harm.GONE_AFTER: _gone_after,
        Harm.CUT_REPLY: _cut_reply,
        Harm.LATE_REPLY: _late_reply,
        Harm.REPLY_IN_PARTS: _in_parts,
        Harm.DOUBLED_REPLY: _doubled_reply,
    }


def between(served: Path, aside: Path) -> Proxy:
    """Put a proxy in place of a Unix socket that is served, which moves ``aside``."""
    os.rename(served, aside)
    return Proxy(str(aside), served)
