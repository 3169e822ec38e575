"""What clients send is looked at in pieces, between the turns of others; nothing of it is lost."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream.server.unread import PIECE, Unread
from tests.server.talking import Server, Talker, request

MANY = 20_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "store")
    yield started
    started.engine.close()


@pytest.mark.parametrize("sizes", [[1], [PIECE], [PIECE + 1], [5, 3 * PIECE, 7], [PIECE] * 3])
def test_the_pieces_are_what_came(sizes: list[int]) -> None:
    unread = Unread()
    data = [bytes([number]) * size for number, size in enumerate(sizes)]
    for each in data:
        unread.add(each)
    pieces = []
    while unread:
        left = unread.size
        pieces.append(unread.piece())
        assert 0 < len(pieces[-1]) <= PIECE
        assert unread.size == left - len(pieces[-1])
    assert b"".join(pieces) == b"".join(data)
    unread.add(b"more")
    unread.clear()
    assert not unread


def test_much_that_comes_at_once_is_answered_in_order(server: Server, ann: Talker) -> None:
    ann.send_bytes(b"".join(request("ECHO", str(number)) for number in range(MANY)))
    server.turn()
    said = ann.heard().split(b"\r\n")[1::2]
    assert said == [b"%d" % number for number in range(MANY)]


@pytest.mark.unmeasured
@pytest.mark.parametrize("nothing", [b"*0\r\n", b"\r\n", b"*-1\r\n"])
def test_who_sends_nothing_in_great_numbers_holds_up_nobody(
    server: Server, ann: Talker, nothing: bytes
) -> None:
    server.executor.clock = time.monotonic
    bob = server.client()
    ann.send_bytes(nothing * 200_000)  # two turns look at some thousands
    bob.send("PING")
    server.executor.run()
    server.executor.run()
    assert bob.heard() == b"+PONG\r\n"
    assert ann.client.unread.size > 0
    ann.send("PING")
    server.turn()
    assert ann.heard() == b"+PONG\r\n"


def test_a_fault_comes_behind_all_that_was_sent_before(server: Server, ann: Talker) -> None:
    ann.send_bytes(b"PING\r\n" * MANY + b"*1\r\n!")
    ann.send_bytes(b"\r\n" + b"PING\r\n" * MANY)
    server.turn()
    told = b"-ERR Protocol error: expected '$', got '!'\r\n"
    assert ann.heard() == b"+PONG\r\n" * MANY + told
    assert ann.closed


@pytest.mark.unmeasured
def test_what_comes_behind_a_wait_is_kept_as_it_came(server: Server, ann: Talker) -> None:
    ann.ask("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    for _ in range(100):
        ann.send_bytes(b"PING\r\n" * 1000)
    server.turn()
    assert ann.client.unread.size == 100 * 6000
    assert len(ann.client.requests) == 0
    server.client().ask("XADD", "s", "1-1", "f", "v")
    server.turn()
    assert ann.heard().endswith(b"$1\r\nv\r\n" + b"+PONG\r\n" * 100_000)


def test_who_sends_too_much_behind_a_wait_is_cut_off(server: Server, ann: Talker) -> None:
    ann.client.reader.query_max = 10_000
    ann.ask("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    ann.send_bytes(b"x" * 10_000)
    assert not ann.closed
    ann.send_bytes(b"x")
    assert ann.closed
    assert len(server.engine.waiters) == 0


def test_a_long_argument_in_pieces_is_whole(server: Server, ann: Talker) -> None:
    value = bytes(range(256)) * 4000
    for part in (request("SET", "k", value), request("GET", "k")):
        ann.send_bytes(part)
    server.turn()
    assert ann.heard() == b"+OK\r\n$%d\r\n%b\r\n" % (len(value), value)
