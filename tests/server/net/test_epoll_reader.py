"""Plain sockets are read together, by compiled code where it can be; with the same outcome."""

import asyncio
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from kvstream.resp.compiled import twins
from kvstream.server.net import epoll_reader as module
from kvstream.server.net.epoll_reader import LOOKS_MAX, Link, Sockets
from tests.server.asking import Asker
from tests.server.conftest import Served
from tests.server.net.test_connection import XADD, Arrivals, Turns, _client

needs_twins = pytest.mark.skipif(
    twins is None or not hasattr(select, "epoll"), reason="transports read the sockets here"
)
PING = b"*1\r\n$4\r\nPING\r\n"
PONG = b"+PONG\r\n"


class Ending(Link):
    """A link that notes how it ended."""

    def __init__(self, arrivals: Any) -> None:
        super().__init__(arrivals, Turns())
        self.client = _client()
        self.told: list[object] = []

    def ended(self) -> None:
        self.told.append("ended")

    def failed(self, error: Exception) -> None:
        self.told.append(error)

    def abort(self) -> None:
        self.told.append("aborted")


class Pairs:
    """Sockets of ours, what they are connected to, and their links."""

    def __init__(self, count: int) -> None:
        self.arrivals = Arrivals()
        self.pairs = [socket.socketpair() for _ in range(count)]
        self.links = [Ending(self.arrivals) for _ in range(count)]

    def join(self, sockets: Sockets) -> None:
        for (ours, _), link in zip(self.pairs, self.links, strict=True):
            sockets.add(ours.fileno(), link)

    def close(self) -> None:
        for ours, theirs in self.pairs:
            ours.close()
            theirs.close()


@pytest.fixture
def pairs() -> Iterator[Pairs]:
    made = Pairs(3)
    yield made
    made.close()


def in_loop(function: Callable[[Sockets], None]) -> None:
    """Call a function with sockets, in a loop."""

    async def main() -> None:
        sockets = Sockets(lambda: None)
        function(sockets)
        asyncio.get_running_loop().remove_reader(sockets.descriptor)

    asyncio.run(main())


@needs_twins
def test_what_has_come_to_any_is_taken_together(pairs: Pairs) -> None:
    def run(sockets: Sockets) -> None:
        pairs.join(sockets)
        assert not sockets.receive()
        pairs.pairs[0][1].sendall(XADD)
        pairs.pairs[2][1].sendall(PING)
        assert sockets.receive()
        assert [burst.client for burst in pairs.arrivals.bursts] == [pairs.links[0].client]
        assert pairs.arrivals.kept == [PING]
        pairs.pairs[1][1].sendall(PING)
        sockets.discard(pairs.pairs[1][0].fileno())
        sockets.discard(pairs.pairs[1][0].fileno())
        assert not sockets.receive()
        sockets.add(pairs.pairs[1][0].fileno(), pairs.links[1])
        assert sockets.receive()
        assert pairs.arrivals.kept == [PING, PING]

    in_loop(run)


@needs_twins
def test_ends_and_failures_are_told_to_those_whom_they_concern(pairs: Pairs) -> None:
    error = ValueError("no such request")

    def refuse(client: Any, data: bytes) -> None:
        raise error

    def run(sockets: Sockets) -> None:
        pairs.join(sockets)
        pairs.arrivals.keep = refuse  # type: ignore[method-assign]
        pairs.pairs[0][1].sendall(PING)
        pairs.pairs[1][1].close()
        pairs.pairs[2][1].sendall(XADD)
        assert sockets.receive()
        assert [link.told for link in pairs.links] == [[error], ["ended"], []]
        assert len(pairs.arrivals.bursts) == 1

    in_loop(run)


@needs_twins
def test_more_is_looked_for_less_and_less_often_while_there_is_none(
    pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(sockets: Sockets) -> None:
        pairs.join(sockets)
        looked: list[int] = []
        receive = sockets.links.receive

        def look(patience_us: int = 0) -> int:
            looked.append(patience_us)
            return receive()

        monkeypatch.setattr(sockets, "links", SimpleNamespace(receive=look))
        for _ in range(2 ** (LOOKS_MAX + 2)):
            assert not sockets.receive_more()
        found = [number for number, us in enumerate(looked) if us]
        gaps = [later - sooner for sooner, later in pairwise(found)]
        assert gaps[:LOOKS_MAX] == [2**n for n in range(1, LOOKS_MAX + 1)]
        assert set(gaps[LOOKS_MAX:]) == {2**LOOKS_MAX}
        while not looked[-1]:
            pairs.pairs[0][1].sendall(XADD)
            assert sockets.receive_more()
        assert not sockets.receive_more()
        assert looked[-1]

    monkeypatch.setattr(module, "_processors", lambda: 2)
    in_loop(run)


@needs_twins
@pytest.mark.parametrize("count", [1, 2])
def test_a_process_with_one_processor_lets_others_have_it(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(sockets: Sockets) -> None:
        looked: list[int] = []

        def look(patience_us: int) -> int:
            looked.append(patience_us)
            return 1

        assert bool(sockets.patience_us) is (count > 1)
        monkeypatch.setattr(sockets, "links", SimpleNamespace(receive=look))
        assert sockets.receive_within(70)
        assert looked == [70 if count > 1 else 0]

    monkeypatch.setattr(module, "_processors", lambda: count)
    in_loop(run)


def test_who_ends_its_side_is_answered_first(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as client:
        client.sendall(PING * 3)
        client.shutdown(socket.SHUT_WR)
        assert b"".join(iter(lambda: client.recv(100), b"")) == PONG * 3


def test_who_resets_its_connection_is_forgotten(served: Served) -> None:
    client = socket.create_connection(("127.0.0.1", served.port), timeout=60)
    client.sendall(PING)
    assert client.recv(100) == PONG
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    deadline = time.monotonic() + 60
    with Asker(served.port, 2) as other:
        while len(other.ask("CLIENT", "LIST").splitlines()) > 1:
            assert time.monotonic() < deadline


def test_many_who_come_and_go_are_each_answered_by_their_own_link(served: Served) -> None:
    for number in range(30):
        with Asker(served.port, 2) as one, Asker(served.port, 2) as other:
            assert one.ask("ECHO", f"one{number}") == b"one%d" % number
            assert other.ask("ECHO", f"other{number}") == b"other%d" % number


def test_a_fault_of_ours_is_logged_and_ends_one_connection_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(client: Any, data: bytes) -> None:
        raise LookupError("nobody thought of this")

    with Asker(served.port, 2) as one, Asker(served.port, 2) as other:
        assert (one.ask("PING"), other.ask("PING")) == (b"PONG", b"PONG")
        with monkeypatch.context() as patch:
            patch.setattr(served.executor, "keep", break_down)
            one.send_bytes(PING)
            with pytest.raises((EOFError, ConnectionResetError)):
                one.read()
        assert other.ask("PING") == b"PONG"
    assert "nobody thought of this" in caplog.text
