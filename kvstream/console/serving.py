"""Serve a console on an address of this machine: alone, or in a thread of another program."""

from __future__ import annotations

import signal
import socket
import webbrowser
from collections.abc import Callable, Mapping
from threading import Thread
from typing import Any, TypeAlias

import uvicorn

from kvstream.console.access import Role, User
from kvstream.console.asgi import Console
from kvstream.console.logins.passwords import PasswordLogin
from kvstream.console.logins.proxy import ProxyLogin
from kvstream.console.logins.sessions import TokenLogin
from kvstream.errors import RequestError
from kvstream.types.urls import netloc_of

HOST = "127.0.0.1"
HTTP = 80
"""The port that browsers leave out."""
GRACE_S = 2
"""How long open connections may take to end."""
ENDING_S = 2 * GRACE_S
"""How long a program that stops waits for its console."""


Login: TypeAlias = str | ProxyLogin


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


class Served:
    """A console on an address, and how one logs in there.

    ``login`` is "token": a URL with a token, which works once, logs one browser in; or "acl": a
    user of the server gives name and password; or a ProxyLogin. The last two may be on an address
    of a network.
    """

    def __init__(
        self, host: str, port: int, announce: Callable[[str], object], login: Login = "token"
    ) -> None:
        """Listen; RequestError if the port is taken. ``announce`` is called with each URL."""
        self.listening = _listen(host, port)
        self._host, self._port = host, self.listening.getsockname()[1]
        self._announce, self._login = announce, login

    def make(
        self, place: Any, read_only: bool, options: Mapping[str, Any], **settings: Any
    ) -> tuple[ConsoleServer, str]:
        """Return the server of a place, and the first URL to open."""
        root = f"http://{netloc_of(self._host, self._port)}/"
        cookie = f"kvstream-console-{self._port}"
        if isinstance(self._login, ProxyLogin):
            hosts = self._login.hosts
            console = Console(place, self._login, read_only=read_only, hosts=hosts, **options)
            self._announce(root)
            return ConsoleServer(console, **settings), root
        if self._login == "acl":
            by_password = PasswordLogin(place, cookie, db=options.get("db"))
            # Another name that leads here gets no further than the form: proxies have names.
            console = Console(place, by_password, read_only=read_only, **options)
            self._announce(root)
            return ConsoleServer(console, **settings), root
        user = User("local", Role.VIEWER if read_only else Role.ADMIN)
        by_token = TokenLogin(user, cookie, lambda path: self._announce(root + path))
        hosts = hosts_of(self._host, self._port)
        console = Console(place, by_token, read_only=read_only, hosts=hosts, **options)
        return ConsoleServer(console, **settings), root + by_token.offer()


def serve(
    place: Any,
    *,
    host: str,
    port: int,
    read_only: bool,
    options: Mapping[str, Any],
    announce: Callable[[str], object],
    opens: bool = False,
    login: Login = "token",
) -> None:
    """Serve a place until SIGTERM or Ctrl-C; ``announce`` is called with each login URL."""
    served = Served(host, port, announce, login)
    with served.listening as listening:
        server, url = served.make(place, read_only, options)
        if opens:
            webbrowser.open(url)
        # When uvicorn has stopped it raises the signal again, which would be the exit code.
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        server.run(sockets=[listening])


class ConsoleThread:
    """A console beside other work of a process: a thread with an event loop of its own.

    It listens at once, so that a port that is taken is known before the other work begins. ::

        console = ConsoleThread(print, 9122)
        console.start("redis://127.0.0.1:6379")
        console.stop()
    """

    def __init__(
        self, announce: Callable[[str], object], port: int, host: str = HOST, login: str = "token"
    ) -> None:
        self._served = Served(host, port, announce, login)
        self._server: ConsoleServer | None = None
        self._thread: Thread | None = None

    def start(self, place: Any, **options: Any) -> None:
        """Show a place from now on; ``options`` are those of ``kvstream.console.app``."""
        # its log is that of the program
        self._server, _ = self._served.make(place, False, options, log_config=None)
        # a daemon, since a program that ends at once does not wait for browsers
        self._thread = Thread(target=self._run, name="kvstream-console", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if self._server is not None:
            self._server.run(sockets=[self._served.listening])

    def stop(self) -> None:
        """End the connections of browsers, and listen no more; it may be called twice."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(ENDING_S)
        self._served.listening.close()


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
            f"cannot listen on {netloc_of(host, port)} for the console: {error.strerror}; give "
            "another port"
        ) from None
    return listening
