"""T15: blocked clients that die in any way leave no waiter, and lose no message."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.patience import PATIENCE_S, until
from tests.server.asking import Asker, Failure
from tests.server.conftest import Served
from tests.server.talking import Server, request

WAIT = ("XREADGROUP", "GROUP", "g", "dead", "BLOCK", "0", "STREAMS", "s", ">")


def reset(connection: socket.socket) -> None:
    """Close so that the other side gets RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def half_close(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)


def close(connection: socket.socket) -> None:
    connection.close()


@pytest.fixture
def asker(served: Served) -> Iterator[Asker]:
    with served.asker() as made:
        made.ask("XGROUP CREATE s g $ MKSTREAM")
        yield made


def wait_in_group(served: Served) -> socket.socket:
    """Return a connection that waits for the group's next entry."""
    connection = socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S)
    before = len(served.executor.blocked)
    connection.sendall(request(*WAIT))
    until(lambda: len(served.executor.blocked) == before + 1)
    return connection


def assert_nobody_waits(served: Served, asker: Asker) -> None:
    """Check that the dead client left nothing, and that no consumer gets the next entry."""
    until(lambda: not served.executor.blocked and len(served.executor.clients) == 1)
    until(lambda: not len(served.engine.waiters))
    asker.ask("XADD s * f v")
    assert asker.ask("XPENDING s g") == [0, None, None, None]


@pytest.mark.parametrize("die", [reset, half_close, close])
def test_a_closed_connection_no_longer_waits(
    served: Served, asker: Asker, die: Callable[[socket.socket], None]
) -> None:
    connections = [wait_in_group(served) for _ in range(5)]
    for connection in connections:
        die(connection)
    assert_nobody_waits(served, asker)
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("die", [half_close, close])
def test_an_entry_that_comes_just_after_the_end_of_a_reader_is_not_delivered_to_it(
    served: Served, asker: Asker, die: Callable[[socket.socket], None]
) -> None:
    for _ in range(50):
        connection = wait_in_group(served)
        die(connection)
        asker.ask("XADD s * f v")
        assert asker.ask("XPENDING s g") == [0, None, None, None]
        asker.ask("XGROUP SETID s g $")
        connection.close()


def test_requests_after_the_wait_of_a_dead_client_are_not_run(served: Served, asker: Asker) -> None:
    connection = wait_in_group(served)
    connection.sendall(request("SET", "k", "v") * 10)
    until(lambda: any(client.has_work for client in served.executor.clients.values()))
    reset(connection)
    assert_nobody_waits(served, asker)
    assert asker.ask("EXISTS k") == 0


@pytest.mark.parametrize("by", ["ID", "USER", "TYPE"])
def test_a_killed_client_no_longer_waits(served: Served, asker: Asker, by: str) -> None:
    connection = wait_in_group(served)
    (blocked,) = served.executor.blocked
    value = {"ID": str(blocked.id), "USER": "default", "TYPE": "normal"}[by]
    assert asker.ask("CLIENT", "KILL", by, value) == 1
    assert connection.recv(100) == b""
    assert_nobody_waits(served, asker)
    connection.close()


@pytest.mark.parametrize(
    ("news", "error"),
    [
        ("DEL s", "NOGROUP"),
        ("XGROUP DESTROY s g", "NOGROUP"),
        ("RENAME s t", "NOGROUP"),
        ("SET s text", "WRONGTYPE"),
        ("FLUSHALL", "NOGROUP"),
    ],
)
def test_a_blocked_read_fails_when_its_stream_or_group_is_deleted(
    served: Served, asker: Asker, news: str, error: str
) -> None:
    with served.asker() as waiting:
        waiting.send(*WAIT)
        until(lambda: len(served.executor.blocked) == 1)
        asker.ask(news)
        answer = waiting.read()
        assert isinstance(answer, Failure)
        assert answer.startswith(error)
        assert waiting.ask("PING") == b"PONG"
        assert len(served.engine.waiters) == 0


def test_entries_added_while_clients_die_are_delivered_once(served: Served, asker: Asker) -> None:
    taken = 0
    for number in range(1, 201):
        connection = wait_in_group(served)
        killer = threading.Thread(target=reset, args=(connection,))
        killer.start()
        asker.ask("XADD", "s", f"{number}-1", "f", "v")
        killer.join()
        until(lambda: len(served.executor.clients) == 1)
        unread = asker.ask("XREADGROUP GROUP g alive STREAMS s >")
        taken += len(unread[0][1]) if unread else 0
    assert len(served.engine.waiters) == 0
    total, first, last, owners = asker.ask("XPENDING s g")
    assert (total, first, last) == (200, b"1-1", b"200-1")
    counts = {name: int(count) for name, count in owners}
    assert counts.get(b"alive", 0) == taken
    assert sum(counts.values()) == 200


# --- one who is dropped in the very turn that has news for it -------------------------------------


def test_a_client_killed_in_the_turn_before_an_entry_gets_nothing(server: Server) -> None:
    waiting, other, admin = server.client(), server.client(), server.client()
    admin.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    waiting.ask(*WAIT)
    admin.send("CLIENT", "KILL", "ID", str(waiting.client.id))
    other.send("XADD", "s", "1-1", "f", "v")
    server.turn()
    assert (admin.heard(), waiting.heard()) == (b":1\r\n", b"")
    assert admin.ask("XPENDING", "s", "g").startswith(b"*4\r\n:0\r\n")
    assert len(server.engine.waiters) == 0


def test_a_client_killed_in_the_turn_after_an_entry_has_it_pending(server: Server) -> None:
    waiting, other, admin = server.client(), server.client(), server.client()
    admin.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    waiting.ask(*WAIT)
    other.send("XADD", "s", "1-1", "f", "v")
    admin.send("CLIENT", "KILL", "ID", str(waiting.client.id))
    server.turn()
    assert admin.heard() == b":1\r\n"
    pending = admin.ask("XPENDING", "s", "g").startswith(b"*4\r\n:1\r\n")
    unread = b"1-1" in admin.ask("XREADGROUP", "GROUP", "g", "x", "STREAMS", "s", ">")
    assert pending != unread  # some client has it, and no two clients do
    assert len(server.engine.waiters) == 0
    assert not server.executor.blocked


def test_disconnecting_one_reader_does_not_affect_the_others(server: Server) -> None:
    """The first reader is too slow; the others are served nevertheless."""
    talkers = [server.client() for _ in range(3)]
    writer = server.client()
    for talker in talkers:
        talker.ask("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    first = talkers[0].client
    first.send = lambda data: server.executor.drop(first)
    writer.ask("XADD", "s", "1-1", "f", "v")
    assert [b"1-1" in talker.heard() for talker in talkers] == [False, True, True]
    assert len(server.engine.waiters) == 0
    assert len(server.executor.clients) == 3
