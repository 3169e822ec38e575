"""Ten thousand silent clients and a thousand blocked ones: all are served, and all are released."""

from collections.abc import Callable, Iterator

import pytest

from kvstream import Store
from tests.server.asking import Asker
from tests.server.net.crowds import Crowd, await_field, room_for
from tests.serving import ServerProcess

IDLE = 10_000
WAITING = 1000
MEGABYTE = 1 << 20
IDLE_BYTES_MAX = 20 << 10
"""The memory of an idle client, without its socket buffers in the system."""
GROWTH_MAX = 2 * MEGABYTE
"""Memory that the allocator may keep after a thousand clients."""
ROUNDS = 3
ALONE = 100
"""The number of clients that are killed one by one; each time all clients are checked."""
FOREVER = ("BLOCK", "0", "STREAMS")


@pytest.fixture(scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with room_for(2 * IDLE):  # the server inherits the limit of its parent
        started = ServerProcess(tmp_path_factory.mktemp("served") / "store", "--durability", "no")
        yield started
        started.stop()
    with Store.open(started.directory) as store:
        assert store.check() == []


@pytest.fixture
def server(_server: ServerProcess) -> ServerProcess:
    """A serving process without keys; its store is checked at the end."""
    with _server.asker() as asker:
        asker.ask("FLUSHALL")
    return _server


def test_ten_thousand_idle_clients_are_all_served(server: ServerProcess) -> None:
    allowed = int(server.information("clients")["maxclients"]) - 10
    before, files = server.resident, server.descriptors
    with room_for(IDLE) as room, Crowd(server.port, min(room, allowed)) as crowd:
        count = len(crowd.sockets)
        assert count == IDLE - 10 or count > 100  # as many as the system allows
        await_field(server, "clients", "connected_clients", count + 1)
        crowd.send(lambda number: ["PING"])
        assert crowd.read(7) == [b"+PONG\r\n"] * count
        assert server.resident - before < count * IDLE_BYTES_MAX
    await_field(server, "clients", "connected_clients", 1)
    assert server.descriptors <= files + 2


def _wait_by(crowd: Crowd, server: ServerProcess, words: Callable[[int], list[str]]) -> None:
    crowd.send(words)
    await_field(server, "clients", "blocked_clients", len(crowd.sockets))


def _entry(key: str, eid: str) -> bytes:
    header = f"*1\r\n*2\r\n${len(key)}\r\n{key}\r\n*1\r\n*2\r\n${len(eid)}\r\n{eid}\r\n"
    return f"{header}*2\r\n$1\r\nf\r\n$1\r\nv\r\n".encode()


def test_a_thousand_readers_of_one_stream_are_all_served(server: ServerProcess) -> None:
    with Crowd(server.port, WAITING) as crowd, server.asker() as asker:
        _wait_by(crowd, server, lambda number: ["XREAD", *FOREVER, "s", "$"])
        assert asker.ask("XADD s 1-1 f v") == b"1-1"
        expected = _entry("s", "1-1")
        assert crowd.read(len(expected)) == [expected] * WAITING
        assert server.information("clients")["blocked_clients"] == "0"


def test_a_thousand_readers_of_as_many_streams_get_their_own_entries(server: ServerProcess) -> None:
    with Crowd(server.port, WAITING) as crowd, server.asker() as asker:
        _wait_by(crowd, server, lambda number: ["XREAD", *FOREVER, f"s{number:03}", "$"])
        for number in range(WAITING):
            asker.send("XADD", f"s{number:03}", "1-1", "f", "v")
        found = [_entry(f"s{number:03}", "1-1") for number in range(WAITING)]
        assert crowd.read(len(found[0])) == found
        assert [asker.read() for _ in range(WAITING)] == [b"1-1"] * WAITING


def _read_group(number: int) -> list[str]:
    return ["XREADGROUP", "GROUP", "g", f"c{number}", "COUNT", "1", *FOREVER, "s", ">"]


def test_a_thousand_consumers_get_an_entry_each_first_come_first_served(
    server: ServerProcess,
) -> None:
    with Crowd(server.port, WAITING) as crowd, server.asker() as asker:
        asker.ask("XGROUP CREATE s g $ MKSTREAM")
        _wait_by(crowd, server, _read_group)
        for number in range(WAITING):
            asker.send("XADD", "s", f"1-{number + 1000}", "f", "v")
        found = [_entry("s", f"1-{number + 1000}") for number in range(WAITING)]
        assert crowd.read(len(found[0])) == found
        assert [asker.read() for _ in range(WAITING)][-1] == b"1-1999"
        assert asker.ask("XPENDING s g")[0] == WAITING


def test_a_thousand_waits_time_out_together(server: ServerProcess) -> None:
    with Crowd(server.port, WAITING) as crowd:
        crowd.send(lambda number: ["XREAD", "BLOCK", "300", "STREAMS", "s", "$"])
        assert crowd.read(5) == [b"*-1\r\n"] * WAITING
    assert server.information("clients")["clients_in_timeout_table"] == "0"


def _kill_all(crowd: Crowd, asker: Asker) -> None:
    killed = asker.ask("CLIENT KILL TYPE normal SKIPME yes")
    assert killed >= len(crowd.sockets)  # the client that called INFO last may be closing
    assert [connection.recv(1) for connection in crowd.sockets] == [b""] * len(crowd.sockets)


def _kill_each(crowd: Crowd, asker: Asker) -> None:
    lines = asker.ask("CLIENT LIST").splitlines()
    waiting = [line for line in lines if b" cmd=xreadgroup " in line]
    assert len(waiting) == WAITING
    for number in [line.split()[0].removeprefix(b"id=") for line in waiting][:ALONE]:
        assert asker.ask("CLIENT", "KILL", "ID", number) == 1
    crowd.close()


ENDS: dict[str, Callable[[Crowd, Asker], None]] = {
    "closed": lambda crowd, asker: crowd.close(),
    "reset": lambda crowd, asker: crowd.reset(),
    "killed together": _kill_all,
    "killed one by one": _kill_each,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_clients_killed_while_they_wait_leave_nothing(
    server: ServerProcess, end: Callable[[Crowd, Asker], None]
) -> None:
    with server.asker() as asker:
        asker.ask("XGROUP CREATE s g $ MKSTREAM")
        held = []
        for number in range(ROUNDS + 1):
            _wait_and_die(server, asker, end)
            assert asker.ask("XADD", "s", f"{number + 1}-1", "f", "v")
            held.append(server.resident)
            assert asker.ask("XPENDING s g") == [0, None, None, None]
            (read,) = asker.ask("XREADGROUP GROUP g last NOACK STREAMS s >")
            assert [entry[0] for entry in read[1]] == [b"%d-1" % (number + 1)]
        consumers = asker.ask("XINFO CONSUMERS s g")
        assert {row[row.index(b"pending") + 1] for row in consumers} == {0}
    assert held[-1] - held[0] < GROWTH_MAX  # the first ones have created the consumers


def _wait_and_die(server: ServerProcess, asker: Asker, end: Callable[[Crowd, Asker], None]) -> None:
    files = server.descriptors
    with Crowd(server.port, WAITING) as crowd:
        _wait_by(crowd, server, _read_group)
        end(crowd, asker)
        await_field(server, "clients", "connected_clients", 2)
    fields = server.information("clients")
    assert [fields[name] for name in LEFT] == ["0"] * len(LEFT)
    assert server.descriptors <= files + 2


LEFT = ("blocked_clients", "total_blocking_keys", "total_blocking_keys_on_nokey")
