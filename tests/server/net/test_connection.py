"""Connections: the end of a client at its socket, and the replies written there; both twins."""

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kvstream.server.compiled import twins
from kvstream.server.net.asyncio_server import PythonChannel
from kvstream.server.runtime.reply_queue import closing_in_python, write_in_python
from kvstream.server.runtime.xadd_batching import XaddBatch
from tests.patience import until
from tests.server.asking import Asker
from tests.server.conftest import Served

CHANNELS = [PythonChannel] if twins is None else [PythonChannel, twins.Channel]
WRITERS = [write_in_python] if twins is None else [write_in_python, twins.write_replies]
CLOSERS = [closing_in_python] if twins is None else [closing_in_python, twins.closing_clients]
PING = b"*1\r\n$4\r\nPING\r\n"
PONG = b"+PONG\r\n"


class Transport(asyncio.Transport):
    """A transport that accepts bytes, or keeps them."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.kept = 0
        self.closing = self.aborted = False

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.kept

    def abort(self) -> None:
        self.aborted = True


class Ends:
    """A channel, and its surroundings."""

    def __init__(self, kind: Any) -> None:
        self.statistics = SimpleNamespace(bytes_out=0)
        limits = SimpleNamespace(near=100, admits=lambda client: False)
        self.received: list[bytes] = []
        executor = SimpleNamespace(
            statistics=self.statistics,
            limits=limits,
            receive=lambda client, data: self.received.append(data),
        )
        self.turns = 0
        self.functions: list[Callable[[], None]] = []
        turns = SimpleNamespace(
            scheduled=False, schedule=self._schedule, soon=self.functions.append
        )
        self.transport = Transport()
        self.channel = kind(executor, turns)
        self.client = _client(bytes_out=0, output_over_since=None)
        self.channel.client, self.channel.transport = self.client, self.transport

    def _schedule(self) -> None:
        self.turns += 1


@pytest.fixture(params=CHANNELS)
def ends(request: pytest.FixtureRequest) -> Ends:
    return Ends(request.param)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def test_a_closed_client_neither_sends_nor_receives(ends: Ends) -> None:
    ends.channel.client = None
    ends.channel.data_received(PING)
    ends.channel.send(b"+OK\r\n")
    assert (ends.received, ends.turns, ends.transport.written) == ([], 0, [])


def test_replies_are_sent_and_counted(ends: Ends) -> None:
    ends.channel.send(b"+OK\r\n")
    assert ends.transport.written == [b"+OK\r\n"]
    assert ends.client.bytes_out == ends.statistics.bytes_out == 5
    ends.transport.closing = True
    ends.channel.send(b"+OK\r\n")
    assert ends.transport.written == [b"+OK\r\n"]
    assert not ends.transport.aborted


@pytest.mark.parametrize(("kept", "since"), [(101, None), (1, 3.0)])
def test_a_client_that_does_not_read_is_disconnected(
    ends: Ends, kept: int, since: float | None
) -> None:
    ends.transport.kept, ends.client.output_over_since = kept, since
    ends.channel.send(b"+OK\r\n")
    assert ends.transport.aborted


def test_the_transport_sends_what_the_socket_does_not_accept_in_order(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    ends = Ends(CHANNELS[-1])
    ends.channel.socket = ours.fileno()
    ends.channel.send(b"+1\r\n")
    long = bytes(8 << 20)
    ends.channel.send(long)
    came = b""
    # There is room, but not for the next reply.
    while len(came) < 5 and CHANNELS[-1] is not PythonChannel:
        came += theirs.recv(1 << 20)
    ends.channel.send(b"+2\r\n")
    written = b"".join(ends.transport.written)
    assert written.endswith(b"+2\r\n")
    for function in ends.functions:
        function()
    ends.channel.send(b"+3\r\n")
    ours.close()
    came += b"".join(iter(lambda: theirs.recv(1 << 20), b""))
    assert CHANNELS[-1] is PythonChannel or (4 < len(came) < len(long) and came.endswith(b"+3\r\n"))
    assert came.removesuffix(b"+3\r\n") + written == b"+1\r\n" + long + b"+2\r\n"


class Known:
    """A client with the given state."""


def _client(**state: Any) -> Any:
    client = Known()
    client.__dict__.update({"lost": False, "closing": False, "reply_unfinished": False} | state)
    return client


@pytest.mark.parametrize("write", WRITERS)
def test_replies_of_a_client_are_sent_together_and_long_ones_at_once(write: Any) -> None:
    sent: list[tuple[str, bytes]] = []
    a, b = (_client(send=lambda data, name=name: sent.append((name, data))) for name in "ab")
    lost, unfinished = _client(lost=True), _client(reply_unfinished=True)
    pages: list[Any] = []

    def slot(client: Any, reply: bytes) -> Any:
        if client is a:
            batch = XaddBatch(client, b"", [], b"")
            batch.replies = reply
            return batch
        return SimpleNamespace(client=client, encode=lambda: reply)

    slots = [slot(a, b"1"), slot(b, b"2"), slot(a, b"3"), slot(lost, b"4"), slot(unfinished, b"")]
    slots += [slot(b, b"long"), slot(a, b"5"), slot(b, b""), slot(b, b"6")]
    write(slots, pages.append, 3)
    assert sent == [("b", b"2long"), ("a", b"135"), ("b", b"6")]
    assert pages == [slots[4]]


@pytest.mark.parametrize("closing", CLOSERS)
def test_connections_to_be_closed_are_found(closing: Any) -> None:
    ends, stays = _client(closing=True), _client()
    slots: list[Any] = [
        XaddBatch(ends, b"", [], b""),
        SimpleNamespace(client=stays),
        SimpleNamespace(client=ends),
    ]
    assert closing(slots) == [ends, ends]


def test_a_half_closed_client_is_answered_first(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as client:
        client.sendall(PING * 3)
        client.shutdown(socket.SHUT_WR)
        assert b"".join(iter(lambda: client.recv(100), b"")) == PONG * 3


def test_a_client_that_resets_its_connection_is_removed(served: Served) -> None:
    client = socket.create_connection(("127.0.0.1", served.port), timeout=60)
    client.sendall(PING)
    assert client.recv(100) == PONG
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    with Asker(served.port, 2) as other:
        until(lambda: len(other.ask("CLIENT", "LIST").splitlines()) == 1)


def test_many_short_lived_clients_are_each_answered(served: Served) -> None:
    for number in range(30):
        with Asker(served.port, 2) as one, Asker(served.port, 2) as other:
            assert one.ask("ECHO", f"one{number}") == b"one%d" % number
            assert other.ask("ECHO", f"other{number}") == b"other%d" % number


def test_an_internal_error_is_logged_and_ends_only_one_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(client: Any, data: bytes) -> None:
        raise LookupError("nobody thought of this")

    with Asker(served.port, 2) as one, Asker(served.port, 2) as other:
        assert (one.ask("PING"), other.ask("PING")) == (b"PONG", b"PONG")
        with monkeypatch.context() as patch:
            patch.setattr(served.executor, "receive", break_down)
            one.send_bytes(PING)
            with pytest.raises((EOFError, ConnectionResetError)):
                one.read()
        assert other.ask("PING") == b"PONG"
    assert "nobody thought of this" in caplog.text
