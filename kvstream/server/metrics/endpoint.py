"""The HTTP endpoint for /metrics and /healthz, on a port of its own.

It runs in threads of its own, so it answers even if the event loop of the server hangs. Each
connection has a thread, for one request, and is closed at its deadline, whatever it sends or reads.
"""

import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BufferedIOBase
from socketserver import ThreadingTCPServer
from typing import TYPE_CHECKING, Any, NamedTuple

from kvstream.errors import InvalidArgument, install_command
from kvstream.server.metrics.metric import ServerHistograms, View
from kvstream.server.metrics.sample import LIMITS, Limits, Sampler
from kvstream.server.net.asyncio_server import Listener, listening
from kvstream.types.clock import monotonic

if TYPE_CHECKING:
    from kvstream.server.runtime.executor import Executor


REQUESTS_MAX = 8
"""Pages that are made at once; another request gets 503. A scraper asks for one at a time."""
CONNECTIONS_MAX = 64
"""Maximum number of connections; a new one replaces an old one."""
REQUEST_BYTES_MAX = 16 << 10
"""Bytes of a request that are read; the rest is ignored."""
BACKLOG = 128
POLL_S = 0.5
"""Pause between two looks for connections that have reached their deadline."""
NO_DESCRIPTORS_PAUSE_S = 0.1
"""Pause after no connection could be accepted."""
_DRAIN_BYTES = 1 << 16


class Response(NamedTuple):
    """An HTTP response."""

    status: HTTPStatus
    headers: dict[str, str]
    body: bytes


Headers = Mapping[str, str]
Page = Callable[[Headers], Response]


def plain(status: HTTPStatus, text: str) -> Response:
    """Return a response of one line of text."""
    return Response(status, {"Content-Type": "text/plain; charset=utf-8"}, f"{text}\n".encode())


@dataclass(slots=True)
class _Connection:
    """A connection, for one request."""

    deadline: float
    """The time at which it is closed."""
    is_requested: bool = False
    """Whether the request is complete and the response is not."""


class _Beginning:
    """The first bytes of a request, as a file that ends after them."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._left = REQUEST_BYTES_MAX
        self._file = file
        self.close = file.close

    def readline(self, limit: int) -> bytes:
        line = self._file.readline(min(limit, self._left))
        self._left -= len(line)
        return line


class _Handler(BaseHTTPRequestHandler):
    """Reads one request and writes its response."""

    server: "Endpoint"
    server_version, sys_version = "kvstream", ""

    def setup(self) -> None:
        super().setup()
        self.rfile = _Beginning(self.rfile)  # type: ignore[assignment]

    def do_GET(self) -> None:
        response = self.server.respond(self.request, self.path.partition("?")[0], self.headers)  # type: ignore[arg-type]
        self.send_response(response.status)
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    do_HEAD = do_GET

    def finish(self) -> None:
        """Wait for the last byte of the client: closing before would reset the connection.

        A reset could lose the response.
        """
        super().finish()
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.server.note_responded(self.request)
            while self.connection.recv(_DRAIN_BYTES):
                pass

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests: scrapers send one every few seconds."""


class Endpoint(ThreadingTCPServer):
    """An HTTP server that answers GET on some paths."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = BACKLOG

    def __init__(
        self,
        host: str,
        port: int,
        pages: Mapping[str, Page],
        quick: Collection[str] = (),
        request_s: float = LIMITS.request_s,
    ) -> None:
        """Start to serve; ``port`` 0: any free port. Raises OSError.

        Pages in ``quick`` do not wait for anything, so any number of them is made at once.
        """
        self._pages, self._quick, self._request_s = pages, quick, request_s
        self._page_slots = threading.BoundedSemaphore(REQUESTS_MAX)
        self._connections: dict[socket.socket, _Connection] = {}
        """In the order of their deadlines."""
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = addresses[0][0]
        super().__init__((host, port), _Handler)
        self._thread = threading.Thread(
            target=self.serve_forever, args=(POLL_S,), name="kvstream-metrics", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def address(self) -> tuple[str, int]:
        return str(self.server_address[0]), int(self.server_address[1])

    def stop(self) -> None:
        """Stop to serve, and close all connections."""
        self.shutdown()
        self._thread.join()
        for accepted in list(self._connections):
            self._drop(accepted)
        self.server_close()

    def respond(self, accepted: socket.socket, path: str, headers: Headers) -> Response:
        """Return the response to a complete request."""
        connection = self._connections.get(accepted)
        if connection is None:  # it was closed before the end of the request
            raise ConnectionAbortedError
        connection.is_requested = True
        page = self._pages.get(path)
        if page is None:
            return plain(HTTPStatus.NOT_FOUND, "known paths: " + " ".join(self._pages))
        if path in self._quick:
            return page(headers)
        if not self._page_slots.acquire(blocking=False):
            text = "too many requests at once: try again later"
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, text)
        try:
            return page(headers)
        finally:
            self._page_slots.release()

    def note_responded(self, accepted: socket.socket) -> None:
        """Note that the whole response is sent."""
        if (connection := self._connections.get(accepted)) is not None:
            connection.is_requested = False

    # --- what ThreadingTCPServer calls ----------------------------------------------------------

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; make room for it first if there are too many."""
        try:
            accepted, address = super().get_request()
        except OSError:  # no free descriptors
            self._make_room()
            time.sleep(NO_DESCRIPTORS_PAUSE_S)
            raise
        if len(self._connections) >= CONNECTIONS_MAX:
            self._make_room()
        self._connections[accepted] = _Connection(monotonic() + self._request_s)
        return accepted, address

    def service_actions(self) -> None:
        """Close the connections that have reached their deadline."""
        now = monotonic()
        for accepted, connection in list(self._connections.items()):
            if connection.deadline <= now:
                self._drop(accepted)

    def close_request(self, request: Any) -> None:
        """Close a connection whose thread has ended, or could not be started."""
        self._connections.pop(request, None)
        super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report the exception of a page; a lost connection is none."""
        if not isinstance(sys.exc_info()[1], OSError):
            report = threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
            threading.excepthook(report)

    def _make_room(self) -> None:
        """Close the oldest connection of the larger group: those that send, or those that read.

        So neither group can keep the other out, and a new connection has time to send its request.
        """
        connections = list(self._connections.items())
        sending = [accepted for accepted, each in connections if not each.is_requested]
        reading = [accepted for accepted, each in connections if each.is_requested]
        if connections:
            self._drop(max(sending, reading, key=len)[0])

    def _drop(self, accepted: socket.socket) -> None:
        """End a connection, and with it the thread that reads or writes."""
        self._connections.pop(accepted, None)
        with suppress(OSError):  # the client, or the thread, has closed it
            accepted.shutdown(socket.SHUT_RDWR)


_NOT_INSTALLED = f"metrics need prometheus-client: {install_command('server')}"


@contextmanager
def serve_metrics(listener: Listener, limits: Limits = LIMITS) -> Iterator[str | None]:
    """Serve metrics and health inside the block; yield the URL, None if metrics are off.

    Call it in the thread of the loop. Raises InvalidArgument without prometheus-client, OSError if
    the port cannot be used.
    """
    options = listener.executor.options
    if options.metrics_port is None:
        yield None
        return
    service = Service(listener, limits)
    try:
        yield service.start(options.metrics_host, options.metrics_port)
    finally:
        service.stop()


class Service:
    """The pages /metrics and /healthz of a server."""

    def __init__(self, listener: Listener, limits: Limits = LIMITS) -> None:
        try:
            from kvstream.server.metrics.exposition import Exposition
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith("prometheus_client"):
                raise
            raise InvalidArgument(_NOT_INSTALLED) from None
        self._listener, self._limits = listener, limits
        self._executor: Executor = listener.executor
        self._histograms = ServerHistograms()
        self._sampler: Sampler | None = None
        self._exposition = Exposition(self._view)
        self._endpoint: Endpoint | None = None

    def start(self, host: str, port: int) -> str:
        """Start to serve; return the URL of the metrics."""
        pages = {"/metrics": self._metrics, "/healthz": self._health}
        with listening(f"{host}:{port}"):
            self._endpoint = Endpoint(host, port, pages, {"/healthz"}, self._limits.request_s)
        most = self._executor.options.metrics_streams
        self._sampler = Sampler(self._executor.engine, most, self._limits)
        self._histograms.start(self._listener)
        self._executor.options.metrics_port = self._endpoint.address[1]
        return f"{self._endpoint.url}/metrics"

    def stop(self) -> None:
        if self._endpoint is not None:
            self._endpoint.stop()
        if self._sampler is not None:
            self._sampler.stop()
        self._histograms.stop()

    def _view(self) -> View:
        assert self._sampler is not None
        sample = self._sampler.latest()
        return View(self._executor, self._histograms, sample, self._sampler.failures)

    def _metrics(self, headers: Headers) -> Response:
        accept, encodings = headers.get("Accept", ""), headers.get("Accept-Encoding", "")
        return Response(HTTPStatus.OK, *self._exposition.render(accept, encodings))

    def _health(self, headers: Headers) -> Response:
        """Report whether the server takes writes now, without waiting."""
        if self._listener.stopping:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, "the server is stopping")
        silence = self._histograms.silence()
        if silence > self._limits.hung_s:
            text = f"the event loop has not run for {silence:.0f} seconds"
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, text)
        refusal = self._executor.engine.database.refusal()
        if refusal is not None:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, str(refusal))
        return plain(HTTPStatus.OK, "ok")
