"""Hostile clients at a live server: it survives, frees its memory, and serves other clients."""

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from kvstream import Store
from tests.patience import tries, until
from tests.resp.test_fuzz import conversation
from tests.server.asking import Failure
from tests.server.net.crowds import Crowd, await_field
from tests.server.talking import request
from tests.serving import ServerProcess

MEGABYTE = 1 << 20
OUTPUT_MAX = 4 * MEGABYTE
WAIT_MAX_S = 2.0
"""The maximal processor time of the server before another client gets a reply."""
PEAK_MAX = 150 * MEGABYTE
KEPT_MAX = 60 * MEGABYTE
"""The memory that the allocator may keep."""

Attack = Callable[["Attacker"], None]


class Friend(threading.Thread):
    """A client that keeps adding entries, and records the waiting times."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__()
        self._server = server
        self._over = threading.Event()
        self.answers = 0
        self.longest_s = 0.0

    def run(self) -> None:
        with self._server.asker() as asker:
            while not self._over.wait(0.001):
                begun = self._server.worked_s
                asker.ask("XADD friend * f v")
                self.longest_s = max(self.longest_s, self._server.worked_s - begun)
                self.answers += 1

    def leave(self) -> None:
        self._over.set()
        self.join()


class Attacker:
    """Connections that are held until the attack is over."""

    def __init__(self, port: int, stack: ExitStack) -> None:
        self.port = port
        self.chance = random.Random(20261121)
        self._stack = stack

    def crowd(self, count: int) -> Crowd:
        return self._stack.enter_context(Crowd(self.port, count))

    def send(self, data: bytes, seconds: float = 5.0) -> socket.socket:
        """Send over a connection until all is sent, the server closes it, or stops reading."""
        (connection,) = self.crowd(1).sockets
        connection.settimeout(seconds)
        with suppress(OSError):
            connection.sendall(data)
        return connection


@pytest.fixture(scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    arguments = ("--durability", "no", "--output-max", str(OUTPUT_MAX))
    started = ServerProcess(tmp_path_factory.mktemp("served") / "store", *arguments)
    yield started
    started.stop(warned=" is cut off: it has not read ")
    with Store.open(started.directory) as store:
        assert store.check() == []


@pytest.fixture
def server(_server: ServerProcess) -> ServerProcess:
    """A serving process that holds a large string; it must survive all attacks."""
    with _server.asker() as asker:
        asker.ask("FLUSHALL")
        asker.ask("SET", "large", b"x" * MEGABYTE)
    _server.forget_peak()
    return _server


def _damaged_conversations(attacker: Attacker) -> None:
    for connection in attacker.crowd(300).sockets:
        with suppress(OSError):
            connection.sendall(b"".join(conversation(attacker.chance) for _ in range(10)))


def _any_bytes(attacker: Attacker) -> None:
    for connection in attacker.crowd(200).sockets:
        with suppress(OSError):
            connection.sendall(attacker.chance.randbytes(20_000))


def _promises(attacker: Attacker) -> None:
    for connection in attacker.crowd(500).sockets:
        connection.sendall(b"*2147483647\r\n$536870912\r\nx")


def _replies_never_read(attacker: Attacker) -> None:
    attacker.send(request("GET", "large") * 2000)


def _many_requests(attacker: Attacker) -> None:
    attacker.send(b"PING\r\n" * 1_000_000)


def _requests_behind_a_wait(attacker: Attacker) -> None:
    attacker.send(request("XREAD", "BLOCK", "0", "STREAMS", "none", "$") + b"PING\r\n" * 200_000)


def _transaction_without_end(attacker: Attacker) -> None:
    attacker.send(request("MULTI") + b"PING\r\n" * 100_000 + request("DISCARD"))


def _byte_by_byte(attacker: Attacker) -> None:
    crowd = attacker.crowd(200)
    for byte in request("XADD", "slow", "*", "f", "v"):
        for connection in crowd.sockets:
            connection.sendall(bytes([byte]))


def _resets(attacker: Attacker) -> None:
    for _ in range(5):
        crowd = attacker.crowd(100)
        for number, connection in enumerate(crowd.sockets):
            connection.sendall(request("XADD", "reset", "*", "f", "v" * 1000)[:number])
        crowd.reset()


def _come_and_go(attacker: Attacker) -> None:
    for _ in range(1000):
        socket.create_connection(("127.0.0.1", attacker.port)).close()


def _long_lines(attacker: Attacker) -> None:
    for connection in attacker.crowd(100).sockets:
        with suppress(OSError):
            connection.sendall(b"x" * 100_000)


WIDE = 20_000


def _wide_requests(attacker: Attacker) -> None:
    words = [str(n) for n in range(WIDE)]
    for head in (
        *(["XADD", "wide", "*"], ["MGET"], ["DEL"], ["XACK", "friend", "g"], ["WATCH"], ["NOSUCH"]),
        *(["XREAD", "STREAMS"], ["XDEL", "friend"], ["CLIENT", "KILL"], ["COMMAND", "INFO"]),
    ):
        attacker.send(request(*head, *words))


def _empty_requests(attacker: Attacker) -> None:
    attacker.send(b"*0\r\n" * 500_000)


def _blank_lines(attacker: Attacker) -> None:
    attacker.send(b"\r\n" * 500_000)


def _empty_words(attacker: Attacker) -> None:
    attacker.send(b"*1000000\r\n" + b"$0\r\n\r\n" * 1_000_000)


ATTACKS: list[Attack] = [
    *(_damaged_conversations, _any_bytes, _promises, _replies_never_read, _many_requests),
    *(_requests_behind_a_wait, _transaction_without_end, _byte_by_byte, _resets, _come_and_go),
    *(_long_lines, _wide_requests, _empty_requests, _blank_lines, _empty_words),
]
NAMES = [attack.__name__.replace("_", " ").strip() for attack in ATTACKS]


@pytest.mark.parametrize("attack", ATTACKS, ids=NAMES)
def test_other_clients_are_served_during_an_attack(server: ServerProcess, attack: Attack) -> None:
    for each in tries():  # the client may stop while the server works
        longest_s = wait_during(server, attack)
        with each:
            assert longest_s < WAIT_MAX_S


def wait_during(server: ServerProcess, attack: Attack) -> float:
    """Check that an attack costs and loses nothing; return the most work before another's reply."""
    with server.asker() as asker:
        asker.ask("DEL friend")
    friend = Friend(server)
    friend.start()
    before = server.resident
    with ExitStack() as stack:
        attack(Attacker(server.port, stack))
        time.sleep(0.2)
        assert server.peak - before < PEAK_MAX
    await_field(server, "clients", "connected_clients", 2)
    until(lambda: friend.answers > 0)
    friend.leave()
    assert server.resident - before < KEPT_MAX
    assert server.process.poll() is None
    with server.asker() as asker:
        assert asker.ask("XLEN friend") == friend.answers
        assert not isinstance(asker.ask("PING"), Failure)
    return friend.longest_s
