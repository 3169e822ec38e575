"""A network that can be cut: a proxy that holds bytes back, in both directions or in one.

Held bytes are delivered when the network heals, as TCP does. New connections are accepted and hang.
"""

import selectors
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Flag

_READ = 1 << 16


class Cut(Flag):
    """The directions in which nothing passes."""

    NONE = 0
    TO_SERVER = 1
    FROM_SERVER = 2
    BOTH = 3


@dataclass(eq=False)
class _End:
    """One end of a connection, and what goes to the other one."""

    socket: socket.socket
    cut: Cut
    """The direction of what it sends."""
    held: bytearray = field(default_factory=bytearray)
    """What it has sent and the other end has not got."""
    is_over: bool = False
    other: "_End | None" = None


class CuttingProxy:
    """Forwards the connections to a port of this machine; one thread does it all."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._cut = Cut.NONE
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._ends: set[_End] = set()
        self._wakes, self._woken = socket.socketpair()
        self._is_closed = False
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self, directions: Cut) -> None:
        """Let nothing pass in some directions; ``Cut.NONE`` heals the network."""
        self._cut = directions
        self._wakes.send(b"x")

    def close(self) -> None:
        self._is_closed = True
        self._wakes.send(b"x")
        self._thread.join()

    def _run(self) -> None:
        while not self._is_closed:
            for key, _ in self._selector.select(0.01 if self._has_more() else None):
                if key.fileobj is self._listening:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._woken.recv(_READ)
                elif key.data in self._ends:
                    self._read(key.data)
            for end in list(self._ends):
                self._forward(end)
        for end in list(self._ends):
            self._drop(end)
        for each in (self._listening, self._wakes, self._woken, self._selector):
            each.close()

    def _has_more(self) -> bool:
        """Return whether an end has not taken all that may pass."""
        return any(end.held and not end.cut & self._cut for end in self._ends)

    def _accept(self) -> None:
        client, _ = self._listening.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self._server_port))
        except OSError:
            client.close()
            return
        ends = _End(client, Cut.TO_SERVER), _End(server, Cut.FROM_SERVER)
        for end, other in (ends, reversed(ends)):
            end.other = other
            end.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.socket.setblocking(False)
            self._ends.add(end)
            self._selector.register(end.socket, selectors.EVENT_READ, end)

    def _read(self, end: _End) -> None:
        try:
            data = end.socket.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        end.held += data
        if not data:
            end.is_over = True
            self._selector.unregister(end.socket)

    def _forward(self, end: _End) -> None:
        """Pass on what an end has sent, as far as it may pass and the other one takes it."""
        if end not in self._ends or end.cut & self._cut:
            return
        assert end.other is not None
        with suppress(BlockingIOError):
            try:
                while end.held:
                    del end.held[: end.other.socket.send(end.held)]
            except BlockingIOError:
                raise
            except OSError:
                end.is_over = True
                end.held.clear()
        if end.is_over and not end.held:
            self._drop(end)

    def _drop(self, end: _End) -> None:
        for each in (end, end.other):
            assert each is not None
            self._ends.discard(each)
            with suppress(KeyError, ValueError):
                self._selector.unregister(each.socket)
            each.socket.close()
