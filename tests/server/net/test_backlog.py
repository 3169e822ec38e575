"""Requests that clients send during the running one, and the end of their input."""

import socket
from contextlib import suppress
from pathlib import Path

import pytest

from kvstream.server.runtime.client import READ_AHEAD
from tests.patience import PATIENCE_S, until
from tests.resp.test_lengths import resident
from tests.server.conftest import Serve, Served
from tests.server.talking import Server, request

MEGABYTE = 1 << 20


def send_all_that_is_taken(connection: socket.socket) -> int:
    """Send requests until the other side stops reading; return the number of bytes sent."""
    connection.settimeout(0.5)
    data = request("ECHO", "x" * 1000) * 100
    sent = 0
    with suppress(TimeoutError):
        while sent < 200 * MEGABYTE:
            sent += connection.send(data[sent % len(data) :])
    return sent


def test_requests_after_a_wait_are_read_up_to_a_limit(served: Served) -> None:
    with (
        served.asker() as other,
        socket.create_connection(("127.0.0.1", served.port)) as waiting,
    ):
        waiting.sendall(request("XREAD", "BLOCK", "0", "STREAMS", "s", "$"))
        until(lambda: len(served.executor.blocked) == 1)
        (client,) = served.executor.blocked
        assert send_all_that_is_taken(waiting) < 32 * MEGABYTE
        assert client.bytes_in < 8 * READ_AHEAD
        assert other.ask("PING") == b"PONG"
        other.ask("XADD s 1-1 f v")
        waiting.settimeout(PATIENCE_S)
        received = 0
        while received < client.bytes_in // 2:  # the server reads again, and continues
            received += len(waiting.recv(1 << 20))


def test_a_client_that_sends_faster_than_the_server_runs_is_paused_and_loses_nothing(
    served: Served,
) -> None:
    count = 40_000
    with (
        served.asker() as other,
        socket.create_connection(("127.0.0.1", served.port)) as writer,
    ):
        other.ask("SET n 0")
        before = resident()
        writer.settimeout(PATIENCE_S)
        writer.sendall(request("INCR", "n") * count)
        received = b""
        while received.count(b"\n") < count:
            received += writer.recv(1 << 20)
        assert received.endswith(b":%d\r\n" % count)
        assert resident() - before < 64 * MEGABYTE


def test_a_paused_client_that_dies_is_removed_with_its_wait(
    served: Served,
) -> None:
    with served.asker() as other:
        waiting = socket.create_connection(("127.0.0.1", served.port))
        waiting.sendall(request("XREAD", "BLOCK", "2000", "STREAMS", "s", "$"))
        send_all_that_is_taken(waiting)
        waiting.close()
        until(lambda: len(served.executor.clients) == 1)
        until(lambda: other.ask("PING") == b"PONG" and not served.executor.limits.paused)


# --- half-closed --------------------------------------------------------------------------------


def answers_to(served: Served, data: bytes) -> bytes:
    """Send bytes, close that side, and return all replies."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_requests_sent_before_the_end_are_answered(served: Served) -> None:
    assert answers_to(served, b"PING\r\n") == b"+PONG\r\n"
    assert answers_to(served, request("PING") * 3000) == b"+PONG\r\n" * 3000
    assert answers_to(served, request("XADD", "s", "*", "f", "v") * 10).count(b"$") == 10
    assert answers_to(served, b"") == b""
    assert answers_to(served, b"PING") == b""
    assert b"Protocol error" in answers_to(served, b"*1\r\n!\r\n")
    until(lambda: not served.executor.clients)


def test_a_half_closed_client_does_not_block(served: Served) -> None:
    wait = request("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    assert answers_to(served, request("PING") + wait) in (b"+PONG\r\n", b"")
    until(lambda: not served.executor.clients)
    assert len(served.engine.waiters) == 0


def test_the_end_inside_a_transaction_discards_it(served: Served) -> None:
    assert answers_to(served, request("MULTI") + request("SET", "k", "v")) == b"+OK\r\n+QUEUED\r\n"
    with served.asker() as asker:
        assert asker.ask("EXISTS k") == 0


# --- long turns ---------------------------------------------------------------------------------


@pytest.fixture
def quiet(tmp_path: Path) -> Server:
    return Server(tmp_path / "store")


def test_a_turn_ends_after_its_time_limit_though_one_client_has_more(quiet: Server) -> None:
    talker, other = quiet.client(), quiet.client()
    steps = iter(range(10_000))
    dispatcher = quiet.executor.dispatcher
    clock = dispatcher.clock
    dispatcher.clock = lambda: clock() + next(steps) * 0.004
    for _ in range(1000):
        talker.send("PING")
    other.send("PING")
    assert quiet.executor.run()
    assert 0 < talker.heard().count(b"PONG") < 200
    quiet.turn()
    assert other.heard() == b"+PONG\r\n"
    quiet.engine.close()


def test_no_replies_are_made_for_a_disconnected_client(serve: Serve) -> None:
    served = serve(output_max=MEGABYTE)
    with served.asker() as other, served.asker() as slow:
        other.ask("SET", "k", b"v" * MEGABYTE)
        slow.ask("PING")  # now the server has registered it
        before = other.ask("INFO stats")
        slow.send_bytes(request("GET", "k") * 500)
        until(lambda: len(served.executor.clients) == 1)
        assert before != other.ask("INFO stats")
        assert served.executor.statistics.output_disconnections == 1
        assert served.executor.statistics.bytes_out < 40 * MEGABYTE
