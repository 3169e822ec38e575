"""The port of the metrics: what HTTP clients may do to it, and what it needs."""

import gzip
import socket
import sys
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from types import SimpleNamespace

import pytest

from kvstream.errors import InvalidArgument
from kvstream.server.metrics import endpoint
from kvstream.server.metrics.endpoint import REQUESTS_MAX, Answer, Endpoint, Headers, plain
from kvstream.server.metrics.service import Service
from tests.patience import PATIENCE_S
from tests.server.conftest import Serve, Served
from tests.server.scraping import Scrape, ask


@pytest.fixture
def measured(serve: Serve) -> Served:
    return serve(metrics_port=0)


def test_other_paths_and_methods_are_refused(measured: Served) -> None:
    response, body = ask(measured, "/nosuch")
    assert (response.status, body) == (404, b"there are: /metrics /healthz\n")
    assert ask(measured, "/metrics", "POST")[0].status == 501
    assert ask(measured, "/metrics?name[]=up")[0].status == 200


def test_head_is_get_without_a_body(measured: Served) -> None:
    response, body = ask(measured, "/healthz", "HEAD")
    assert (response.status, body) == (200, b"")
    assert response.headers["Content-Length"] == "3"


def test_the_scraper_chooses_form_and_compression(measured: Served) -> None:
    response, body = ask(measured, **{"Accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    response, body = ask(measured, **{"Accept-Encoding": "gzip"})
    assert response.headers["Content-Encoding"] == "gzip"
    assert "kvstream_clients" in Scrape(gzip.decompress(body).decode()).names


def test_the_program_and_its_version_are_not_told_to_strangers(measured: Served) -> None:
    assert ask(measured, "/healthz")[0].headers["Server"].strip() == "kvstream"


def test_a_port_that_is_taken_is_an_error(measured: Served) -> None:
    assert measured.metrics_url is not None
    port = int(measured.metrics_url.split(":")[2].partition("/")[0])
    with pytest.raises(OSError, match="in use"):
        Endpoint("127.0.0.1", port, {})


def test_without_prometheus_client_it_says_what_to_install(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "kvstream.server.metrics.exposition", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(InvalidArgument, match=r"pip install 'kvstream\[server\]'"):
        Service(served.listener)


def test_those_who_say_nothing_keep_nobody_else_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "REQUEST_S", 1.0)
    server = Endpoint("127.0.0.1", 0, {"/": lambda headers: plain(HTTPStatus.OK, "here")})
    place = server.place
    silent = [socket.create_connection(place) for _ in range(REQUESTS_MAX)]
    try:
        with socket.create_connection(place, timeout=PATIENCE_S) as late:
            assert late.recv(10) == b""  # turned away at once
        for each in silent:
            each.settimeout(PATIENCE_S)
            assert each.recv(10) == b""  # cut off
        with socket.create_connection(place, timeout=PATIENCE_S) as asking:
            asking.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert asking.makefile("rb").readline() == b"HTTP/1.0 200 OK\r\n"
    finally:
        for each in silent:
            each.close()
        server.stop()


def test_one_who_trickles_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "REQUEST_S", 0.5)
    server = Endpoint("127.0.0.1", 0, {})
    try:
        with socket.create_connection(server.place, timeout=0.1) as slow:
            slow.sendall(b"GET / HTTP/1.0\r\n")
            deadline = time.monotonic() + PATIENCE_S
            said = None
            while said is None:
                assert time.monotonic() < deadline
                with suppress(TimeoutError, BrokenPipeError, ConnectionResetError):
                    slow.sendall(b"x")
                    said = slow.recv(10)
            assert said == b""
    finally:
        server.stop()


def test_a_page_that_fails_is_reported_and_the_next_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: list[type[BaseException]] = []
    seen = threading.Event()

    def report(told: threading.ExceptHookArgs) -> None:
        reported.append(told.exc_type)
        seen.set()

    def fails(headers: Headers) -> Answer:
        raise ZeroDivisionError

    own = SimpleNamespace(**{**vars(threading), "excepthook": report})
    monkeypatch.setattr(endpoint, "threading", own)  # other threads may fail, too
    server = Endpoint("::1" if socket.has_ipv6 else "127.0.0.1", 0, {"/": fails})
    try:
        for _ in range(REQUESTS_MAX + 1):
            seen.clear()
            with socket.create_connection(server.place, timeout=PATIENCE_S) as asking:
                asking.sendall(b"GET / HTTP/1.0\r\n\r\n")
                assert asking.recv(10) == b""
            assert seen.wait(PATIENCE_S)
    finally:
        server.stop()
    assert reported == [ZeroDivisionError] * (REQUESTS_MAX + 1)
