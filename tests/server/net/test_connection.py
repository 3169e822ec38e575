"""The two ends of a request at its socket, in Python and compiled."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from kvstream.resp.compiled import twins
from kvstream.server.net.epoll_reader import PythonLink
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.reply_queue import closing_in_python, write_in_python
from kvstream.server.runtime.xadd_requests import BURST_BYTES_MAX, Burst
from kvstream.types.ids import StreamID

LINKS = [PythonLink] if twins is None else [PythonLink, twins.Link]
WRITERS = [write_in_python] if twins is None else [write_in_python, twins.write_replies]
CLOSERS = [closing_in_python] if twins is None else [closing_in_python, twins.closing_clients]
XADD = b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\nf\r\n$1\r\nv\r\n"
PING = b"*1\r\n$4\r\nPING\r\n"


class Transport:
    """Takes what it is given, or keeps it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.kept = 0
        self.closing = self.aborted = False

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def get_write_buffer_size(self) -> int:
        return self.kept

    def abort(self) -> None:
        self.aborted = True


class Arrivals:
    """Notes what it is given."""

    burst_bytes_max = BURST_BYTES_MAX

    def __init__(self) -> None:
        self.statistics = SimpleNamespace(bytes_in=0, bytes_out=0)
        self.looked: list[object] = []
        self.limits = SimpleNamespace(
            near=100, admits=lambda client: False, look=self.looked.append
        )
        self.bursts: list[Any] = []
        self.kept: list[bytes] = []

    def received(self, client: Any, data: bytes) -> None:
        self.statistics.bytes_in += len(data)
        client.bytes_in += len(data)
        if client.bytes_in > client.look_at:
            self.looked.append(client)
        if client.direct and data == XADD:
            self.bursts.append(Burst(client, b"s", [(b"", ())], data))
        else:
            self.keep(client, data)

    def keep(self, client: Any, data: bytes) -> None:
        self.kept.append(data)


class Turns:
    """Counts."""

    def __init__(self) -> None:
        self.scheduled = False
        self.count = 0
        self.functions: list[Callable[[], None]] = []

    def schedule(self) -> None:
        self.scheduled = True
        self.count += 1

    def soon(self, function: Callable[[], None]) -> None:
        self.functions.append(function)


class Known:
    """A client of which something is known."""


class Slotted:
    """One whose attributes lie in slots, as those of real clients do."""

    __slots__ = (
        *("bytes_in", "bytes_out", "closing", "commands_run", "direct", "last_command"),
        *("last_used", "look_at", "lost", "output_over_since", "prefix", "send", "user"),
    )


@contextmanager
def _knowing(clients: type) -> Iterator[None]:
    """Have the compiled twins read slots of these clients where they lie."""
    assert twins is not None
    twins.know_clients(clients)
    try:
        yield
    finally:
        twins.know_clients(Client)


def _client(**told: Any) -> Any:
    known: dict[str, Any] = {
        "direct": True,
        "bytes_in": 0,
        "bytes_out": 0,
        "look_at": 1000,
        "lost": False,
    }
    known |= {"output_over_since": None, "closing": False, "paged": False}
    client = Known()
    client.__dict__.update(known | told)
    return client


class _Ends:
    def __init__(self, kind: Any) -> None:
        self.arrivals, self.turns, self.transport = Arrivals(), Turns(), Transport()
        self.link = kind(self.arrivals, self.turns)
        self.link.client, self.link.transport = _client(), self.transport


@pytest.fixture(params=LINKS)
def ends(request: pytest.FixtureRequest) -> _Ends:
    return _Ends(request.param)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def test_bursts_and_all_else_come_in_and_are_counted(ends: _Ends) -> None:
    for data in (XADD, PING, XADD):
        ends.link.data_received(data)
    arrivals = ends.arrivals
    assert [burst.key for burst in arrivals.bursts] == [b"s", b"s"]
    assert arrivals.kept == [PING]
    assert arrivals.statistics.bytes_in == ends.link.client.bytes_in == 2 * len(XADD) + len(PING)
    assert ends.turns.count == 1
    assert arrivals.looked == []


@pytest.mark.skipif(twins is None, reason="the compiled twins are not installed")
@pytest.mark.parametrize("clients", [Slotted, Client, Known])
def test_clients_are_the_same_to_compiled_code_whether_it_knows_their_slots(clients: type) -> None:
    assert twins is not None
    ends = _Ends(twins.Link)
    client: Any = Slotted()
    ends.link.client = client
    for name, value in vars(_client(user=SimpleNamespace(free=True), prefix=b"0")).items():
        if name in Slotted.__slots__:
            setattr(client, name, value)
    client.commands_run = 0
    with _knowing(clients):
        with pytest.raises(AttributeError):
            twins.write_replies([Burst(client, b"s", [], XADD)], print, 9)  # it has no ``paged``
        client.send = ends.link.send
        ends.link.data_received(XADD)
        waiting: dict[bytes, list[Any]] = {}
        bursts = ends.arrivals.bursts
        assert twins.gather(bursts, waiting, 5) == (1, [], 1, set())
        twins.answer(waiting[b"0s"], [StreamID(1, 2)], 3.0)
        assert twins.closing_clients(bursts) == []
        twins.write_replies(bursts, print, 9)
    assert (client.commands_run, client.last_command, client.last_used) == (1, "xadd", 3.0)
    assert (client.bytes_in, client.bytes_out) == (len(XADD), len(b"$3\r\n1-2\r\n"))
    assert ends.transport.written == [b"$3\r\n1-2\r\n"]
    assert ends.arrivals.statistics.bytes_out == client.bytes_out


def test_who_waits_for_something_sends_no_bursts(ends: _Ends) -> None:
    ends.link.client.direct = False
    ends.link.data_received(XADD)
    assert (ends.arrivals.bursts, ends.arrivals.kept) == ([], [XADD])


def test_who_has_sent_much_is_looked_at(ends: _Ends) -> None:
    ends.link.client.look_at = len(XADD)
    ends.link.data_received(XADD)
    ends.link.data_received(XADD)
    assert ends.arrivals.looked == [ends.link.client]


def test_who_is_gone_sends_and_gets_nothing(ends: _Ends) -> None:
    ends.link.client = None
    ends.link.data_received(XADD)
    ends.link.send(b"+OK\r\n")
    assert (ends.arrivals.bursts, ends.turns.count, ends.transport.written) == ([], 0, [])


def test_replies_go_out_and_are_counted(ends: _Ends) -> None:
    ends.link.send(b"+OK\r\n")
    assert ends.transport.written == [b"+OK\r\n"]
    assert ends.link.client.bytes_out == ends.arrivals.statistics.bytes_out == 5
    ends.transport.closing = True
    ends.link.send(b"+OK\r\n")
    assert ends.transport.written == [b"+OK\r\n"]
    assert not ends.transport.aborted


@pytest.mark.parametrize(("kept", "since"), [(101, None), (1, 3.0)])
def test_who_does_not_read_is_cut_off(ends: _Ends, kept: int, since: float | None) -> None:
    ends.transport.kept, ends.link.client.output_over_since = kept, since
    ends.link.send(b"+OK\r\n")
    assert ends.transport.aborted


def test_a_socket_gets_what_it_takes_and_the_transport_the_rest_in_order(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    ends = _Ends(LINKS[-1])
    ends.link.socket = ours.fileno()
    ends.link.send(b"+1\r\n")
    long = bytes(8 << 20)
    ends.link.send(long)
    came = b""
    while len(came) < 5 and LINKS[-1] is not PythonLink:  # there is room, but not for what follows
        came += theirs.recv(1 << 20)
    ends.link.send(b"+2\r\n")
    written = b"".join(ends.transport.written)
    assert written.endswith(b"+2\r\n")
    for function in ends.turns.functions:
        function()
    ends.link.send(b"+3\r\n")
    ours.close()
    came += b"".join(iter(lambda: theirs.recv(1 << 20), b""))
    assert LINKS[-1] is PythonLink or (4 < len(came) < len(long) and came.endswith(b"+3\r\n"))
    assert came.removesuffix(b"+3\r\n") + written == b"+1\r\n" + long + b"+2\r\n"


@pytest.mark.parametrize("write", WRITERS)
def test_replies_of_a_client_go_out_together_and_long_ones_at_once(write: Any) -> None:
    sent: list[tuple[str, bytes]] = []
    a, b = (_client(send=lambda data, name=name: sent.append((name, data))) for name in "ab")
    lost, paged = _client(lost=True), _client(paged=True)
    pages: list[Any] = []

    def slot(client: Any, reply: bytes) -> Any:
        if client is a:
            burst = Burst(client, b"", [], b"")
            burst.replies = reply
            return burst
        return SimpleNamespace(client=client, encoded=lambda: reply)

    slots = [slot(a, b"1"), slot(b, b"2"), slot(a, b"3"), slot(lost, b"4"), slot(paged, b"")]
    slots += [slot(b, b"long"), slot(a, b"5"), slot(b, b""), slot(b, b"6")]
    write(slots, pages.append, 3)
    assert sent == [("b", b"2long"), ("a", b"135"), ("b", b"6")]
    assert pages == [slots[4]]


@pytest.mark.parametrize("closing", CLOSERS)
def test_those_to_be_closed_are_found(closing: Any) -> None:
    ends, stays = _client(closing=True), _client()
    slots = [Burst(ends, b"", [], b""), SimpleNamespace(client=stays), SimpleNamespace(client=ends)]
    assert closing(slots) == [ends, ends]
