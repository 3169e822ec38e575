"""The least server replies to the benchmark's requests as redis-server does."""

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from bench.__main__ import COMMAND_GROUPS
from bench.least.__main__ import LeastServer
from bench.load import WrongReply, connect
from bench.processes import framed, least_server, port_of
from bench.server import SERVER_ROWS, ServerRow, run_round
from bench.targets import LEAST, TARGETS, runs_least

COUNT = 150
GROUPED = [row for rows in COMMAND_GROUPS.values() for row in rows]
LEAST_ROWS = [row for row in (*SERVER_ROWS, *GROUPED) if runs_least(row.key)]

WIDE = b"*2\r\n$3\r\n2-1\r\n*4\r\n$1\r\nf\r\n$1\r\nv\r\n$1\r\ng\r\n$1\r\nw\r\n"
"""The entry of two fields."""
EXCHANGES: tuple[tuple[str, bytes], ...] = (
    ("PING", b"+PONG\r\n"),
    ("ping", b"+PONG\r\n"),
    ("ECHO end", b"$3\r\nend\r\n"),
    ("CLIENT SETINFO LIB-NAME redis-py", b"+OK\r\n"),
    ("CONFIG GET save", b"*2\r\n$4\r\nsave\r\n$0\r\n\r\n"),
    ("GET k", b"$-1\r\n"),
    ("SET k 9", b"+OK\r\n"),
    ("GET k", b"$1\r\n9\r\n"),
    ("INCR k", b":10\r\n"),
    ("INCR n", b":1\r\n"),
    ("XADD s 1-0 f v", b"$3\r\n1-0\r\n"),
    ("XADD s 2-0 f v", b"$3\r\n2-0\r\n"),
    ("XADD s 2-1 f v g w", b"$3\r\n2-1\r\n"),
    ("XADD s 3-0 f v", b"$3\r\n3-0\r\n"),
    ("XLEN s", b":4\r\n"),
    ("XGROUP CREATE s g 0", b"+OK\r\n"),
    ("XPENDING s g", b"*4\r\n:0\r\n$-1\r\n$-1\r\n*-1\r\n"),
    ("XDEL s 2-0 9-0", b":1\r\n"),
    ("XDEL s 2-0", b":0\r\n"),
    (
        "XRANGE s 2 2",
        b"*1\r\n" + WIDE,
    ),
    ("XRANGE s - + COUNT 1", b"*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n"),
    (
        "XRANGE s 2-1 + COUNT 1",
        b"*1\r\n" + WIDE,
    ),
    ("XRANGE s 4 + COUNT 1", b"*0\r\n"),
    (
        "XREAD COUNT 1 STREAMS s 2-1",
        b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n3-0\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n",
    ),
    ("XREAD COUNT 1 STREAMS s 3", b"*-1\r\n"),
    (
        "XREADGROUP GROUP g c COUNT 2 STREAMS s >",
        b"*1\r\n*2\r\n$1\r\ns\r\n*2\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n" + WIDE,
    ),
    (
        "XPENDING s g",
        b"*4\r\n:2\r\n$3\r\n1-0\r\n$3\r\n2-1\r\n*1\r\n*2\r\n$1\r\nc\r\n$1\r\n2\r\n",
    ),
    ("XACK s g 1-0 9-0", b":1\r\n"),
    ("XACK s g 1-0", b":0\r\n"),
    (
        "XREADGROUP GROUP g c COUNT 2 STREAMS s >",
        b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n3-0\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n",
    ),
    ("XREADGROUP GROUP g c COUNT 2 STREAMS s >", b"*-1\r\n"),
)
"""Requests and the replies of redis-server."""


@pytest.fixture
def least(tmp_path: Path) -> Iterator[LeastServer]:
    server = LeastServer(tmp_path / "rows")
    yield server
    server.close()


def _reply(least: LeastServer, words: str) -> bytes:
    return least.reply([word.encode() for word in words.split()])


@pytest.mark.parametrize("commits", [False, True], ids=["in one turn", "a turn each"])
def test_a_reply_is_that_of_redis_server(least: LeastServer, commits: bool) -> None:
    for words, reply in EXCHANGES:
        assert (words, _reply(least, words)) == (words, reply)
        if commits:
            least.commit()


def test_redis_server_makes_these_replies(servers: dict[str, Redis]) -> None:
    servers["redis"].flushall()
    with connect(port_of(servers["redis"])) as connection:
        connection.settimeout(None)  # with a timeout MSG_WAITALL does not wait
        for words, reply in EXCHANGES:
            connection.sendall(framed(*words.split()))
            received = connection.recv(len(reply), socket.MSG_WAITALL)
            if not words.startswith("CLIENT"):  # unknown to 7.0
                assert (words, received) == (words, reply)
            elif received.startswith(b"-"):
                while not received.endswith(b"\r\n"):
                    received += connection.recv(1000)


def test_an_unknown_command_is_an_error(least: LeastServer) -> None:
    assert _reply(least, "XCLAIM s") == b"-ERR unknown command 'XCLAIM'\r\n"


def test_ids_are_the_time_and_rise(least: LeastServer) -> None:
    ids = [_reply(least, "XADD s * f v").split(b"\r\n")[1] for _ in range(3)]
    numbers = [tuple(map(int, each.split(b"-"))) for each in ids]
    assert sorted(set(numbers)) == numbers


def test_a_group_skips_what_is_deleted(least: LeastServer) -> None:
    for number in range(1, 6):
        _reply(least, f"XADD s {number}-0 f v")
    _reply(least, "XGROUP CREATE s g 0")
    _reply(least, "XDEL s 1-0 3-0")
    for expected in (b"2-0", b"4-0", b"5-0"):
        assert expected in _reply(least, "XREADGROUP GROUP g c COUNT 1 STREAMS s >")
    assert _reply(least, "XREADGROUP GROUP g c COUNT 1 STREAMS s >") == b"*-1\r\n"


def test_flushall_empties_it(least: LeastServer) -> None:
    _reply(least, "SET k v")
    _reply(least, "XADD s 1-0 f v")
    least.commit()
    assert _reply(least, "FLUSHALL") == b"+OK\r\n"
    assert _reply(least, "GET k") == b"$-1\r\n"
    assert _reply(least, "XLEN s") == b":0\r\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with least_server(tmp_path_factory.mktemp("least")) as client:
        yield client


def test_it_says_what_a_stream_and_its_groups_have(running: Redis) -> None:
    running.flushall()
    running.xgroup_create("s", "g", "0", mkstream=True)
    for number in range(1, 4):
        running.xadd("s", {"f": "v"}, id=f"{number}-0")
    running.xreadgroup("g", "c", {"s": ">"}, count=2)
    stream, (group,) = running.xinfo_stream("s"), running.xinfo_groups("s")
    assert stream == {
        "length": 3,
        "last-generated-id": b"3-0",
        "entries-added": 3,
        "groups": 1,
        "first-entry": (b"1-0", {b"f": b"v"}),
        "last-entry": (b"3-0", {b"f": b"v"}),
    }
    assert group == {
        "name": b"g",
        "consumers": 1,
        "pending": 2,
        "last-delivered-id": b"2-0",
        "entries-read": 2,
        "lag": 1,
    }


@pytest.mark.usefixtures("peer")
@pytest.mark.parametrize("row", LEAST_ROWS, ids=lambda row: row.key)
def test_it_runs_the_rows_that_stand_beside_it(row: ServerRow, running: Redis) -> None:
    used = run_round(row, running, COUNT)
    assert used.seconds > 0
    assert used.processor > 0


def test_the_targets_are_those_of_rows() -> None:
    keys = {row.key for row in (*SERVER_ROWS, *GROUPED)}
    assert TARGETS.keys() <= keys
    assert len(LEAST_ROWS) == sum(target.of == LEAST for target in TARGETS.values())


def test_a_row_that_it_cannot_run_is_noticed(running: Redis) -> None:
    row = next(row for row in GROUPED if row.key == "xclaim-p1")
    with pytest.raises(WrongReply, match="unknown command"):
        run_round(row, running, COUNT)


def test_a_reply_longer_than_a_socket_takes_arrives(running: Redis) -> None:
    running.flushall()
    value = b"x" * 4_000_000
    running.set("k", value)
    with connect(port_of(running)) as connection:
        connection.sendall(framed("GET", "k"))
        head = b"$%d\r\n" % len(value)
        size = len(head) + len(value) + 2
        connection.settimeout(None)  # with a timeout MSG_WAITALL does not wait
        assert connection.recv(size, socket.MSG_WAITALL) == head + value + b"\r\n"


def test_a_client_that_is_lost_does_not_stop_it(running: Redis) -> None:
    for _ in range(5):
        lost = connect(port_of(running))
        lost.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        lost.sendall(framed("PING") * 1000)
        lost.close()
    assert running.ping()
