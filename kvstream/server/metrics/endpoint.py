"""The HTTP server of metrics and health: threads of its own, so that it answers for a loop that
hangs. It knows paths and answers, and not what they tell.

One thread reads all requests and writes all answers, so no number of connections that say nothing,
half of a request, or read nothing, keeps another one waiting. Pages that take time are made by
threads beside it, a few at once.

Metrics and health of one server on a port of their own, where the options ask for it.
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
from kvstream.server.metrics.metric import Meter, View
from kvstream.server.metrics.sample import Sampler
from kvstream.server.net.asyncio_server import Listener, listening

if TYPE_CHECKING:
    from kvstream.server.runtime.executor import Executor


REQUESTS_MAX = 8
"""Pages that are made at once; one more is refused with 503. A scraper asks for one."""
CONNECTIONS_MAX = 64
"""Connections at a time; for one more an old one is closed."""
REQUEST_S = 10.0
"""A client that takes longer, from its connection to the end of the answer, is cut off."""
HEAD_MAX = 16 << 10
"""Bytes of a request."""
BACKLOG = 128
"""Connections that the system keeps while none is taken."""
NO_DESCRIPTORS_PAUSE_S = 0.1
"""How long nobody is accepted where that fails."""
_ENDS = (b"\r\n\r\n", b"\n\n")
"""What a request ends with."""


class Answer(NamedTuple):
    """What a path answers."""

    status: HTTPStatus
    headers: dict[str, str]
    body: bytes


Headers = Mapping[str, str]
Page = Callable[[Headers], Answer]


def plain(status: HTTPStatus, text: str) -> Answer:
    """Return an answer of one line."""
    return Answer(status, {"Content-Type": "text/plain; charset=utf-8"}, f"{text}\n".encode())


class _Handler(BaseHTTPRequestHandler):
    """Turns the bytes of one request into those of its answer: no socket."""

    server_version, sys_version = "kvstream", ""

    def __init__(self, request: bytes, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        super().__init__(request, ("", 0), None)  # type: ignore[arg-type]

    def setup(self) -> None:
        self.rfile, self.wfile = BytesIO(self.request), BytesIO()

    def finish(self) -> None:
        pass

    @property
    def answer(self) -> bytes:
        assert isinstance(self.wfile, BytesIO)
        return self.wfile.getvalue()

    def do_GET(self) -> None:
        page = self._pages.get(self.path.partition("?")[0])
        if page is None:
            answer = plain(HTTPStatus.NOT_FOUND, "there are: " + " ".join(self._pages))
        else:
            answer = page(self.headers)  # type: ignore[arg-type]
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: a request every few seconds is no news."""


def _busy(headers: Headers) -> Answer:
    return plain(HTTPStatus.SERVICE_UNAVAILABLE, "too many ask at once: ask again later")


def _path_of(request: bytes) -> str:
    words = request.partition(b"\n")[0].decode("latin-1").split()
    return "/" + words[1].partition("?")[0].lstrip("/") if len(words) > 1 else ""


@dataclass(slots=True, eq=False)
class _Connection:
    """One client, who asks once."""

    socket: socket.socket
    until: float
    """When it is cut off; nothing that it sends or reads moves that."""
    request: bytearray = field(default_factory=bytearray)
    answer: memoryview = field(default_factory=lambda: memoryview(b""))
    """What has yet to be written."""
    asked: bool = False
    """The request is whole, and not answered yet."""


class Endpoint:
    """Answers GET on some paths."""

    def __init__(
        self, host: str, port: int, pages: Mapping[str, Page], quick: Collection[str] = ()
    ) -> None:
        """Begin to answer; ``port`` 0: any that is free. Raises OSError.

        The pages of ``quick`` wait for nothing: they are answered however many others are made.
        """
        self._pages = pages
        self._at_once = {path: page if path in quick else _busy for path, page in pages.items()}
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self._door = socket.socket(found[0][0], socket.SOCK_STREAM)
        try:
            self._door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._door.bind((host, port))
            self._door.listen(BACKLOG)
        except BaseException:
            self._door.close()
            raise
        self._door.setblocking(False)
        self._address = self._door.getsockname()
        self._connections: dict[_Connection, None] = {}
        """First come first, so the first is the first to be cut off."""
        self._making = 0
        self._made: deque[tuple[_Connection, bytes]] = deque()
        self._stopping = False
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._door, selectors.EVENT_READ, self._accept)
        self._selector.register(self._ear, selectors.EVENT_READ, self._take_made)
        self._thread = threading.Thread(target=self._serve, name="kvstream-metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it is."""
        host, port = self.place
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def place(self) -> tuple[str, int]:
        """The address and the port."""
        return str(self._address[0]), int(self._address[1])

    def stop(self) -> None:
        """Answer no more."""
        self._stopping = True
        self._ring()
        self._thread.join()
        for connection in list(self._connections):
            self._drop(connection)
        self._selector.close()
        for each in (self._door, self._bell, self._ear):
            each.close()

    def _ring(self) -> None:
        with suppress(OSError):  # it has been rung often enough, or nobody is there any more
            self._bell.send(b"!")

    # --- the thread -----------------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select(self._patience_s()):
                key.data()
            while self._patience_s() == 0:
                self._drop(next(iter(self._connections)))

    def _patience_s(self) -> float | None:
        """Return the time until the oldest connection is cut off; None where there is none."""
        oldest = next(iter(self._connections), None)
        return None if oldest is None else max(oldest.until - time.monotonic(), 0)

    def _accept(self) -> None:
        try:
            accepted, _ = self._door.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # no descriptors are left
            self._make_room()
            time.sleep(NO_DESCRIPTORS_PAUSE_S)
            return
        if len(self._connections) >= CONNECTIONS_MAX:
            self._make_room()
        accepted.setblocking(False)
        connection = _Connection(accepted, time.monotonic() + REQUEST_S)
        self._connections[connection] = None
        read = partial(self._safely, self._read, connection)
        self._selector.register(accepted, selectors.EVENT_READ, read)

    def _make_room(self) -> None:
        """Close the oldest connection of those who ask, or of those who read if they are more.

        So neither can keep the other out, and a new one has time to ask.
        """
        asking = [each for each in self._connections if not each.asked]
        reading = [each for each in self._connections if each.asked]
        if self._connections:
            self._drop(max(asking, reading, key=len)[0])

    def _drop(self, connection: _Connection) -> None:
        del self._connections[connection]
        with suppress(KeyError):  # its page is being made
            self._selector.unregister(connection.socket)
        connection.socket.close()

    def _safely(self, step: Callable[[_Connection], None], connection: _Connection) -> None:
        """Take a step for a connection that may have gone, in this round too."""
        if connection in self._connections:
            try:
                step(connection)
            except BlockingIOError:
                pass
            except OSError:
                self._drop(connection)

    def _read(self, connection: _Connection) -> None:
        data = connection.socket.recv(HEAD_MAX)
        connection.request += data
        if not data or len(connection.request) > HEAD_MAX:
            self._drop(connection)
        elif any(end in connection.request for end in _ENDS):
            connection.asked = True
            self._selector.unregister(connection.socket)
            self._answer(connection, bytes(connection.request))

    def _answer(self, connection: _Connection, request: bytes) -> None:
        """Have a request answered, now or by a thread."""
        takes_time = self._at_once.get(_path_of(request)) is _busy
        if not (takes_time and self._begin_to_make(connection, request)):
            self._begin_to_write(connection, self._answer_to(request, self._at_once))

    def _begin_to_make(self, connection: _Connection, request: bytes) -> bool:
        """Have a thread make a page; False where there are too many threads."""
        if self._making >= REQUESTS_MAX:
            return False
        arguments = (connection, request)
        thread = threading.Thread(target=self._make, args=arguments, name="kvstream-page")
        thread.daemon = True
        try:
            thread.start()
        except RuntimeError:  # the system has no more
            return False
        self._making += 1
        return True

    def _make(self, connection: _Connection, request: bytes) -> None:
        self._made.append((connection, self._answer_to(request, self._pages)))
        self._ring()

    def _answer_to(self, request: bytes, pages: Mapping[str, Page]) -> bytes:
        """Return an answer, none where its page has failed: that is told as for any thread."""
        try:
            return _Handler(request, pages).answer
        except Exception:
            report = threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
            threading.excepthook(report)
            return b""

    def _take_made(self) -> None:
        """Begin to write the pages that threads have made."""
        with suppress(BlockingIOError):
            self._ear.recv(1024)
        while self._made:
            connection, answer = self._made.popleft()
            self._making -= 1
            if connection in self._connections:
                self._begin_to_write(connection, answer)

    def _begin_to_write(self, connection: _Connection, answer: bytes) -> None:
        connection.answer = memoryview(answer)
        write = partial(self._safely, self._write, connection)
        self._selector.register(connection.socket, selectors.EVENT_WRITE, write)
        write()

    def _write(self, connection: _Connection) -> None:
        while connection.answer:
            connection.answer = connection.answer[connection.socket.send(connection.answer) :]
        connection.socket.shutdown(socket.SHUT_WR)
        connection.asked = False
        until_end = partial(self._safely, self._read_to_the_end, connection)
        self._selector.modify(connection.socket, selectors.EVENT_READ, until_end)

    def _read_to_the_end(self, connection: _Connection) -> None:
        """Close behind what the client still sends: earlier, the answer could be lost to it."""
        if not connection.socket.recv(HEAD_MAX):
            self._drop(connection)


HUNG_S = 10.0
"""A loop that was not seen for so long takes no writes, whatever the store would do."""
_NOT_INSTALLED = "metrics need prometheus-client: pip install 'kvstream[server]'"


@contextmanager
def metered(listener: Listener) -> Iterator[str | None]:
    """Measure a server and serve what is measured; yield the URL, None where that is off.

    For the loop's thread. Raises InvalidArgument without prometheus-client, OSError where the port
    is taken.
    """
    options = listener.executor.options
    if options.metrics_port is None:
        yield None
        return
    service = Service(listener)
    try:
        yield service.start(options.metrics_host, options.metrics_port)
    finally:
        service.stop()


class Service:
    """What answers /metrics and /healthz."""

    def __init__(self, listener: Listener) -> None:
        try:
            from kvstream.server.metrics.exposition import Exposition
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith("prometheus_client"):
                raise
            raise InvalidArgument(_NOT_INSTALLED) from None
        self._listener = listener
        self._executor: Executor = listener.executor
        self._meter = Meter()
        self._sampler: Sampler | None = None
        self._exposition = Exposition(self._view)
        self._endpoint: Endpoint | None = None

    def start(self, host: str, port: int) -> str:
        """Begin; return the URL of the metrics."""
        pages = {"/metrics": self._metrics, "/healthz": self._health}
        with listening(host, port):
            self._endpoint = Endpoint(host, port, pages, quick={"/healthz"})
        self._sampler = Sampler(self._executor.engine, self._executor.options.metrics_streams)
        self._meter.start(self._listener)
        self._executor.options.metrics_port = self._endpoint.place[1]
        return f"{self._endpoint.url}/metrics"

    def stop(self) -> None:
        if self._endpoint is not None:
            self._endpoint.stop()
        if self._sampler is not None:
            self._sampler.stop()
        self._meter.stop()

    def _view(self) -> View:
        assert self._sampler is not None
        sample = self._sampler.latest()
        return View(self._executor, self._meter, sample, self._sampler.failures)

    def _metrics(self, headers: Headers) -> Answer:
        accept, encodings = headers.get("Accept", ""), headers.get("Accept-Encoding", "")
        return Answer(HTTPStatus.OK, *self._exposition.answer(accept, encodings))

    def _health(self, headers: Headers) -> Answer:
        """Tell whether the server takes writes now; nothing here waits for anything."""
        if self._listener.stopping:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, "the server is stopping")
        silence = self._meter.silence()
        if silence > HUNG_S:
            text = f"the loop was last seen {silence:.0f} seconds ago"
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, text)
        refusal = self._executor.engine.database.refusal()
        if refusal is not None:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, str(refusal))
        return plain(HTTPStatus.OK, "ok")
