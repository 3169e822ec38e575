"""The HTTP endpoint for /metrics and /healthz, on a port of its own.

It runs in threads of its own, so it answers even if the event loop of the server hangs. One thread
reads all requests and writes all responses, so a connection that sends or reads nothing does not
delay others. Pages that take time are made by further threads, a few at once.
"""

import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

from kvstream.errors import InvalidArgument
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
BACKLOG = 128
NO_DESCRIPTORS_PAUSE_S = 0.1
"""Pause after no connection could be accepted."""
_REQUEST_ENDS = (b"\r\n\r\n", b"\n\n")


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


class _Handler(BaseHTTPRequestHandler):
    """Turns the bytes of a request into the bytes of its response, without a socket."""

    server_version, sys_version = "kvstream", ""

    def __init__(self, request: bytes, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        super().__init__(request, ("", 0), None)  # type: ignore[arg-type]

    def setup(self) -> None:
        self.rfile, self.wfile = BytesIO(self.request), BytesIO()

    def finish(self) -> None:
        pass

    @property
    def response(self) -> bytes:
        assert isinstance(self.wfile, BytesIO)
        return self.wfile.getvalue()

    def do_GET(self) -> None:
        page = self._pages.get(self.path.partition("?")[0])
        if page is None:
            response = plain(HTTPStatus.NOT_FOUND, "known paths: " + " ".join(self._pages))
        else:
            response = page(self.headers)  # type: ignore[arg-type]
        self.send_response(response.status)
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests: scrapers send one every few seconds."""


def _busy(headers: Headers) -> Response:
    return plain(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once: try again later")


def _path_of(request: bytes) -> str:
    words = request.partition(b"\n")[0].decode("latin-1").split()
    return "/" + words[1].partition("?")[0].lstrip("/") if len(words) > 1 else ""


@dataclass(slots=True, eq=False)
class _Connection:
    """A connection, for one request."""

    socket: socket.socket
    deadline: float
    """The time at which it is closed, whatever it sends or reads."""
    request: bytearray = field(default_factory=bytearray)
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    """The rest of the response."""
    is_requested: bool = False
    """Whether the request is complete and the response is not."""


class Endpoint:
    """An HTTP server that answers GET on some paths."""

    def __init__(
        self,
        host: str,
        port: int,
        pages: Mapping[str, Page],
        quick: Collection[str] = (),
        request_s: float = LIMITS.request_s,
    ) -> None:
        """Start to serve; ``port`` 0: any free port. Raises OSError.

        Pages in ``quick`` do not wait for anything, so they are made by the serving thread itself.
        """
        self._pages, self._request_s = pages, request_s
        self._immediate_pages = {
            path: page if path in quick else _busy for path, page in pages.items()
        }
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self._listener = socket.socket(addresses[0][0], socket.SOCK_STREAM)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((host, port))
            self._listener.listen(BACKLOG)
        except BaseException:
            self._listener.close()
            raise
        self._listener.setblocking(False)
        self._socket_address = self._listener.getsockname()
        self._connections: dict[_Connection, None] = {}
        """In the order of their deadlines."""
        self._page_threads = 0
        self._finished: deque[tuple[_Connection, bytes]] = deque()
        self._stopping = False
        self._wake_sender, self._wake_receiver = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._wake_receiver.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, self._send_finished)
        self._thread = threading.Thread(target=self._serve, name="kvstream-metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def address(self) -> tuple[str, int]:
        return str(self._socket_address[0]), int(self._socket_address[1])

    def stop(self) -> None:
        """Stop to serve, and close all connections."""
        self._stopping = True
        self._wake()
        self._thread.join()
        for connection in list(self._connections):
            self._drop(connection)
        self._selector.close()
        for each in (self._listener, self._wake_sender, self._wake_receiver):
            each.close()

    def _wake(self) -> None:
        with suppress(OSError):  # the buffer is full, or the thread has ended
            self._wake_sender.send(b"!")

    # --- the serving thread ---------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select(self._timeout_s()):
                key.data()
            while self._timeout_s() == 0:
                self._drop(next(iter(self._connections)))

    def _timeout_s(self) -> float | None:
        """Return the time until the first deadline; None if there is no connection."""
        oldest = next(iter(self._connections), None)
        return None if oldest is None else max(oldest.deadline - monotonic(), 0)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # no free descriptors
            self._make_room()
            time.sleep(NO_DESCRIPTORS_PAUSE_S)
            return
        if len(self._connections) >= CONNECTIONS_MAX:
            self._make_room()
        accepted.setblocking(False)
        connection = _Connection(accepted, monotonic() + self._request_s)
        self._connections[connection] = None
        read = partial(self._safely, self._read, connection)
        self._selector.register(accepted, selectors.EVENT_READ, read)

    def _make_room(self) -> None:
        """Close the oldest connection of the larger group: those that send, or those that read.

        So neither group can keep the other out, and a new connection has time to send its request.
        """
        sending = [each for each in self._connections if not each.is_requested]
        reading = [each for each in self._connections if each.is_requested]
        if self._connections:
            self._drop(max(sending, reading, key=len)[0])

    def _drop(self, connection: _Connection) -> None:
        del self._connections[connection]
        with suppress(KeyError):  # not registered while its page is made
            self._selector.unregister(connection.socket)
        connection.socket.close()

    def _safely(self, step: Callable[[_Connection], None], connection: _Connection) -> None:
        """Run a step for a connection, unless it was closed meanwhile."""
        if connection in self._connections:
            try:
                step(connection)
            except BlockingIOError:
                pass
            except OSError:
                self._drop(connection)

    def _read(self, connection: _Connection) -> None:
        data = connection.socket.recv(REQUEST_BYTES_MAX)
        connection.request += data
        if not data or len(connection.request) > REQUEST_BYTES_MAX:
            self._drop(connection)
        elif any(end in connection.request for end in _REQUEST_ENDS):
            connection.is_requested = True
            self._selector.unregister(connection.socket)
            self._respond(connection, bytes(connection.request))

    def _respond(self, connection: _Connection, request: bytes) -> None:
        """Answer a request, at once or in a thread."""
        takes_time = self._immediate_pages.get(_path_of(request)) is _busy
        if not (takes_time and self._start_page(connection, request)):
            self._send(connection, self._response_to(request, self._immediate_pages))

    def _start_page(self, connection: _Connection, request: bytes) -> bool:
        """Make a page in a thread; return False if there are too many threads."""
        if self._page_threads >= REQUESTS_MAX:
            return False
        arguments = (connection, request)
        thread = threading.Thread(target=self._make_page, args=arguments, name="kvstream-page")
        thread.daemon = True
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads
            return False
        self._page_threads += 1
        return True

    def _make_page(self, connection: _Connection, request: bytes) -> None:
        self._finished.append((connection, self._response_to(request, self._pages)))
        self._wake()

    def _response_to(self, request: bytes, pages: Mapping[str, Page]) -> bytes:
        """Return a response; if its page fails, report the exception and return nothing."""
        try:
            return _Handler(request, pages).response
        except Exception:
            report = threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
            threading.excepthook(report)
            return b""

    def _send_finished(self) -> None:
        """Send the pages that threads have made."""
        with suppress(BlockingIOError):
            self._wake_receiver.recv(1024)
        while self._finished:
            connection, response = self._finished.popleft()
            self._page_threads -= 1
            if connection in self._connections:
                self._send(connection, response)

    def _send(self, connection: _Connection, response: bytes) -> None:
        connection.unsent = memoryview(response)
        write = partial(self._safely, self._write, connection)
        self._selector.register(connection.socket, selectors.EVENT_WRITE, write)
        write()

    def _write(self, connection: _Connection) -> None:
        while connection.unsent:
            connection.unsent = connection.unsent[connection.socket.send(connection.unsent) :]
        connection.socket.shutdown(socket.SHUT_WR)
        connection.is_requested = False
        drain = partial(self._safely, self._drain, connection)
        self._selector.modify(connection.socket, selectors.EVENT_READ, drain)

    def _drain(self, connection: _Connection) -> None:
        """Close after the last byte of the client; earlier, a reset could lose the response."""
        if not connection.socket.recv(REQUEST_BYTES_MAX):
            self._drop(connection)


_NOT_INSTALLED = "metrics need prometheus-client: pip install 'kvstream[server]'"


@contextmanager
def metered(listener: Listener, limits: Limits = LIMITS) -> Iterator[str | None]:
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
