"""The HTTP server of metrics and health: threads of its own, so that it answers for a loop that
hangs. It knows paths and answers, and not what they tell.
"""

import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, NamedTuple

REQUESTS_MAX = 8
"""Requests at a time; one more is turned away. A scraper makes one."""
REQUEST_S = 10
"""A client that takes longer to ask and to read the answer is cut off."""
STOP_S = 0.05
"""How often the thread looks whether it is to end."""


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
    server: "Endpoint"
    server_version, sys_version = "kvstream", ""

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path.partition("?")[0])
        if page is None:
            answer = plain(HTTPStatus.NOT_FOUND, "there are: " + " ".join(self.server.pages))
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


def _cut_off(request: socket.socket) -> None:
    with suppress(OSError):  # it has gone just now
        request.shutdown(socket.SHUT_RDWR)


class Endpoint(ThreadingMixIn, TCPServer):
    """Answers GET on some paths, each request in a thread."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 16

    def __init__(self, host: str, port: int, pages: Mapping[str, Page]) -> None:
        """Begin to answer; ``port`` 0: any that is free. Raises OSError."""
        self.pages = pages
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self._free = threading.BoundedSemaphore(REQUESTS_MAX)
        super().__init__((host, port), _Handler)
        self._thread = threading.Thread(
            target=self.serve_forever, args=(STOP_S,), name="kvstream-metrics", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it is."""
        host, port = self.place
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def place(self) -> tuple[str, int]:
        """The address and the port."""
        return str(self.server_address[0]), int(self.server_address[1])

    def stop(self) -> None:
        """Answer no more."""
        self.shutdown()
        self._thread.join()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        limit = threading.Timer(REQUEST_S, _cut_off, [request])
        limit.daemon = True
        limit.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Let a client that has gone be; what else went wrong is told as for any thread."""
        told = sys.exc_info()
        if not isinstance(told[1], OSError):
            report = threading.ExceptHookArgs((*told, threading.current_thread()))
            threading.excepthook(report)
