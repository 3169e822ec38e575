"""The port of the metrics: hostile HTTP clients, and its requirements."""

import gzip
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from kvstream.errors import InvalidArgument
from kvstream.server.metrics import endpoint
from kvstream.server.metrics.endpoint import (
    CONNECTIONS_MAX,
    REQUEST_BYTES_MAX,
    REQUESTS_MAX,
    Endpoint,
    Headers,
    Page,
    Response,
    Service,
    plain,
)
from kvstream.server.metrics.sample import LIMITS
from tests.patience import PATIENCE_S, until
from tests.server.conftest import Serve, Served
from tests.server.metrics.scraping import Scrape, ask


@pytest.fixture
def measured(serve: Serve) -> Served:
    return serve(metrics_port=0)


def test_other_paths_and_methods_are_refused(measured: Served) -> None:
    response, body = ask(measured, "/nosuch")
    assert (response.status, body) == (404, b"known paths: /metrics /healthz\n")
    assert ask(measured, "/metrics", "POST")[0].status == 501
    assert ask(measured, "/metrics?name[]=up")[0].status == 200
    assert ask(measured, "//metrics")[0].status == 200


def test_head_is_get_without_a_body(measured: Served) -> None:
    response, body = ask(measured, "/healthz", "HEAD")
    assert (response.status, body) == (200, b"")
    assert response.headers["Content-Length"] == "3"


def test_the_scraper_selects_format_and_compression(measured: Served) -> None:
    response, body = ask(measured, **{"Accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    response, body = ask(measured, **{"Accept-Encoding": "gzip"})
    assert response.headers["Content-Encoding"] == "gzip"
    assert "kvstream_clients" in Scrape(gzip.decompress(body).decode()).names


def test_the_program_and_its_version_are_not_shown(measured: Served) -> None:
    assert ask(measured, "/healthz")[0].headers["Server"].strip() == "kvstream"


def test_a_port_in_use_is_an_error(measured: Served) -> None:
    assert measured.metrics_url is not None
    port = int(measured.metrics_url.split(":")[2].partition("/")[0])
    with pytest.raises(OSError, match="in use"):
        Endpoint("127.0.0.1", port, {})


def test_without_prometheus_client_the_error_names_the_package_to_install(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "kvstream.server.metrics.exposition", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(InvalidArgument, match=r"pip install 'kvstream-db\[server\]'"):
        Service(served.listener)


HALF = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"


def test_incomplete_requests_do_not_block_the_health_page(measured: Served) -> None:
    host, port = _place(measured)
    with ExitStack() as stack:
        for _ in range(400):
            half = stack.enter_context(socket.create_connection((host, port)))
            with suppress(ConnectionError):  # older ones than the last CONNECTIONS_MAX are closed
                half.sendall(HALF)
        for path in ("/healthz", "/metrics"):
            assert ask(measured, path)[0].status == 200


def test_a_client_that_does_not_read_does_not_block_others() -> None:
    long = plain(HTTPStatus.OK, "x" * (1 << 23))
    pages = {
        "/long": lambda headers: long,
        "/health": lambda headers: plain(HTTPStatus.OK, "well"),
    }
    with _endpoint(pages, quick={"/health"}) as server, ExitStack() as stack:
        for _ in range(CONNECTIONS_MAX + 10):
            reader = stack.enter_context(socket.create_connection(server.address))
            reader.sendall(b"GET /long HTTP/1.0\r\n\r\n")
            assert _get(server, "/health").endswith(b"well\n")
        half = [stack.enter_context(socket.create_connection(server.address)) for _ in range(40)]
        half[-1].sendall(b"GET /health HTTP/1.0\r\n\r\n")  # its timeout has not expired yet
        assert half[-1].makefile("rb").read().endswith(b"well\n")


def test_hanging_pages_do_not_block_the_health_page() -> None:
    hangs = threading.Event()

    def hang(headers: Headers) -> Response:
        hangs.wait(PATIENCE_S)
        return plain(HTTPStatus.OK, "late")

    pages = {"/slow": hang, "/health": lambda headers: plain(HTTPStatus.OK, "well")}
    with _endpoint(pages, quick={"/health"}) as server, ExitStack() as stack:
        asking = []
        for _ in range(REQUESTS_MAX):
            asking.append(stack.enter_context(socket.create_connection(server.address)))
            asking[-1].sendall(b"GET /slow HTTP/1.0\r\n\r\n")
        until(lambda: b" 503 " in _get(server, "/slow").splitlines()[0])
        assert _get(server, "/health").endswith(b"well\n")
        asking.pop(0).close()  # its page is made in vain
        hangs.set()
        for each in asking:
            assert each.makefile("rb").read().endswith(b"late\n")
        until(lambda: b" 200 " in _get(server, "/slow").splitlines()[0])


def test_silent_connections_are_closed() -> None:
    with _endpoint({}, request_s=0.5) as server, ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(server.address)) for _ in range(9)]
        for each in silent:
            each.settimeout(PATIENCE_S)
            assert each.recv(10) == b""


def test_the_oldest_of_too_many_is_closed() -> None:
    with _endpoint({}) as server, ExitStack() as stack:
        crowd = [
            stack.enter_context(socket.create_connection(server.address))
            for _ in range(CONNECTIONS_MAX + 1)
        ]
        crowd[0].settimeout(PATIENCE_S)
        assert crowd[0].recv(10) == b""
        crowd[1].sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert crowd[1].makefile("rb").readline() == b"HTTP/1.0 404 Not Found\r\n"


@pytest.mark.parametrize("part", [b"x: y\r\n", b"x"], ids=["lines", "one line"])
def test_a_request_without_end_is_answered_after_its_limit(part: bytes) -> None:
    with _endpoint({}) as server, socket.create_connection(server.address) as asking:
        asking.settimeout(PATIENCE_S)
        asking.sendall(b"GET / HTTP/1.0\r\n" + part * (REQUEST_BYTES_MAX // len(part)))
        assert asking.recv(10) == b"HTTP/1.0 4"
        asking.sendall(part)


def test_the_body_of_a_request_does_not_change_the_response() -> None:
    with _endpoint({}) as server, socket.create_connection(server.address) as asking:
        asking.settimeout(PATIENCE_S)
        asking.sendall(b"POST / HTTP/1.0\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000)
        found = asking.makefile("rb").read()
        assert found.startswith(b"HTTP/1.0 501 ")
        assert found.endswith(b"</html>\n")


@contextmanager
def _endpoint(
    pages: Mapping[str, Page], quick: Collection[str] = (), request_s: float = LIMITS.request_s
) -> Iterator[Endpoint]:
    server = Endpoint("127.0.0.1", 0, pages, quick, request_s)
    try:
        yield server
    finally:
        server.stop()


def _get(server: Endpoint, path: str) -> bytes:
    """Return the complete response."""
    with socket.create_connection(server.address, timeout=PATIENCE_S) as asking:
        asking.sendall(b"GET %b HTTP/1.0\r\n\r\n" % path.encode())
        return asking.makefile("rb").read()


def _place(measured: Served) -> tuple[str, int]:
    assert measured.metrics_url is not None
    found = urlsplit(measured.metrics_url)
    assert found.hostname is not None
    assert found.port is not None
    return found.hostname, found.port


def test_a_client_that_sends_slowly_is_closed() -> None:
    server = Endpoint("127.0.0.1", 0, {}, request_s=0.5)
    try:
        with socket.create_connection(server.address, timeout=0.1) as slow:
            slow.sendall(b"GET / HTTP/1.0\r\n")
            deadline = time.monotonic() + PATIENCE_S
            reply = None
            while reply is None:
                assert time.monotonic() < deadline
                try:
                    slow.sendall(b"x")
                    reply = slow.recv(10)
                except TimeoutError:
                    pass
                except (BrokenPipeError, ConnectionResetError):  # it was closed with bytes unread
                    reply = b""
            assert reply == b""
    finally:
        server.stop()


def test_a_page_that_fails_is_reported_and_the_next_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: list[type[BaseException]] = []
    seen = threading.Event()

    def report(found: threading.ExceptHookArgs) -> None:
        reported.append(found.exc_type)
        seen.set()

    def fails(headers: Headers) -> Response:
        raise ZeroDivisionError

    own = SimpleNamespace(**{**vars(threading), "excepthook": report})
    monkeypatch.setattr(endpoint, "threading", own)  # other threads may fail, too
    server = Endpoint("::1" if socket.has_ipv6 else "127.0.0.1", 0, {"/": fails})
    try:
        for _ in range(REQUESTS_MAX + 1):
            seen.clear()
            with socket.create_connection(server.address, timeout=PATIENCE_S) as asking:
                asking.sendall(b"GET / HTTP/1.0\r\n\r\n")
                assert asking.recv(10) == b""
            assert seen.wait(PATIENCE_S)
    finally:
        server.stop()
    assert reported == [ZeroDivisionError] * (REQUESTS_MAX + 1)
