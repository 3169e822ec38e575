"""Serve a console alone, for the browser of this machine."""

from __future__ import annotations

import signal
import socket
import webbrowser
from collections.abc import Callable, Mapping
from typing import Any

import uvicorn

from kvstream.console.access import Role, Sessions, User
from kvstream.console.asgi import Console
from kvstream.errors import RequestError
from kvstream.types.urls import netloc_of

HTTP = 80
"""The port that browsers leave out."""
GRACE_S = 2
"""How long open connections may take to end."""


class ConsoleServer(uvicorn.Server):
    """A server that ends the connections of live pages when it stops."""

    def __init__(self, console: Console, **options: Any) -> None:
        self._console = console
        config = uvicorn.Config(
            console,
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
            lifespan="on",
            # a header of the browser must not say who is written into the audit
            proxy_headers=False,
            **options,
        )
        super().__init__(config)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._console.hub.close()
        await super().shutdown(sockets)


def serve(
    place: Any,
    *,
    host: str,
    port: int,
    read_only: bool,
    options: Mapping[str, Any],
    announce: Callable[[str], object],
    opens: bool = False,
) -> None:
    """Serve a place until SIGTERM or Ctrl-C; ``announce`` is called with each login URL."""
    listening = _listen(host, port)
    port = listening.getsockname()[1]
    root = f"http://{netloc_of(host, port)}/"
    user = User("local", Role.VIEWER if read_only else Role.ADMIN)
    sessions = Sessions(user, f"kvstream-console-{port}", lambda path: announce(root + path))
    console = Console(
        place,
        sessions,
        read_only=read_only,
        hosts=hosts_of(host, port),
        **options,
    )
    path = sessions.offer()
    if opens:
        webbrowser.open(root + path)
    server = ConsoleServer(console)
    # When uvicorn has stopped it raises the signal again, which would be the exit code.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    with listening:
        server.run(sockets=[listening])


def hosts_of(host: str, port: int) -> set[str]:
    """Return the values of the header Host by which browsers of this machine ask."""
    names = {host, "127.0.0.1", "localhost", "[::1]"} - {"::1"}
    return {f"{name}:{port}" for name in names} | (names if port == HTTP else set())


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; RequestError if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()  # a browser that is opened now waits for the server
    except OSError as error:
        listening.close()
        raise RequestError(
            f"cannot listen on {netloc_of(host, port)}: {error.strerror}; give another --port"
        ) from None
    return listening
