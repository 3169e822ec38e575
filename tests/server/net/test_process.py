"""Tests that need a process: its real loop, its timers, the end of connections."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.server.talking import request
from tests.serving import ServerProcess


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    started = ServerProcess(tmp_path / "store", "--durability", "no")
    yield started
    started.end()


def test_a_wait_that_ends_while_the_loop_is_busy_is_answered(server: ServerProcess) -> None:
    with server.asker() as waiting, server.asker() as sleeper, server.asker() as other:
        for _ in range(20):
            waiting.send("XREAD", "BLOCK", "1", "STREAMS", "s", "$")
            sleeper.send("DEBUG", "SLEEP", "0.02")
            other.send("PING")
            assert waiting.read() is None
            assert (sleeper.read(), other.read()) == (b"OK", b"PONG")


@pytest.mark.parametrize("count", [1, 5000])
def test_a_half_closed_client_is_answered(server: ServerProcess, count: int) -> None:
    for words in (("PING",), ("XADD", "s", "*", "f", "v")):
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
            connection.sendall(request(*words) * count)
            connection.shutdown(socket.SHUT_WR)
            received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        assert received.count(b"PONG") + received.count(b"-") == count
    with server.asker() as asker:
        assert asker.ask("XLEN s") == count


def test_a_writer_that_is_faster_than_the_server_is_slowed_down(server: ServerProcess) -> None:
    """Batches of one client wait up to a limit, and all of them run."""
    data = request("XADD", "s", "*", "f", "v" * 100) * 1000
    before = server.resident
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as writer:
        replies = threading.Thread(target=_read_all, args=(writer, 200_000))
        replies.start()
        for _ in range(200):
            writer.sendall(data)
        replies.join(PATIENCE_S)
        assert not replies.is_alive()
    with server.asker() as asker:
        assert asker.ask("XLEN s") == 200_000
    assert server.peak - before < 64 << 20  # all requests together would be 92 MB


def _read_all(connection: socket.socket, count: int) -> None:
    while count > 0:
        count -= connection.recv(1 << 20).count(b"$")
