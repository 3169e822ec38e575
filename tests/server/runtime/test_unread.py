"""Requests are parsed in pieces, between the turns of other clients; none is lost."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import pytest

from kvstream.resp.requests import TAKEN_MAX, Request, RequestReader
from kvstream.server.runtime.client import PIECE, STRANGER_AHEAD, Unread
from kvstream.server.runtime.pipelines import CLIENT_REQUESTS
from tests.patience import PATIENCE_S
from tests.server.conftest import Serve
from tests.server.talking import Server, Talker, parsed, request

MANY = 20_000
FLOOD = 300_000
"""The number of empty lines that each of many clients sends."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "store")
    yield started
    started.engine.close()


@pytest.mark.parametrize("sizes", [[1], [PIECE], [PIECE + 1], [5, 3 * PIECE, 7], [PIECE] * 3])
def test_the_pieces_are_the_received_bytes(sizes: list[int]) -> None:
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


def test_many_requests_at_once_are_answered_in_order(server: Server, ann: Talker) -> None:
    ann.send_bytes(b"".join(request("ECHO", str(number)) for number in range(MANY)))
    server.turn()
    said = ann.heard().split(b"\r\n")[1::2]
    assert said == [b"%d" % number for number in range(MANY)]


@pytest.mark.parametrize(
    "nothing", [b"*0\r\n", b"\r\n", b"*-1\r\n", b"\n", b" \t\r\n", b"\n*0\r\n"]
)
def test_very_many_empty_requests_delay_no_other_client(
    server: Server, ann: Talker, monkeypatch: pytest.MonkeyPatch, nothing: bytes
) -> None:
    looks = _counted(monkeypatch)
    bob = server.client()
    ann.send_bytes(nothing * MANY)
    bob.send("PING")
    server.turn()
    assert bob.heard() == b"+PONG\r\n"
    assert looks() <= 3 * (len(nothing) * MANY // PIECE + 3)  # Python steps for each piece
    ann.send("PING")
    server.turn()
    assert ann.heard() == b"+PONG\r\n"


def _counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count the Python steps that read requests."""
    steps: list[RequestReader] = []
    advance = RequestReader._advance

    def counted(reader: RequestReader, requests: list[Request]) -> bool:
        steps.append(reader)
        return advance(reader, requests)

    monkeypatch.setattr(RequestReader, "_advance", counted)
    return lambda: len(steps)


@pytest.mark.parametrize("password", ["", "secret"])
def test_a_flood_of_empty_lines_from_many_sockets_takes_few_steps(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    served = serve(requirepass=password)
    steps = _counted(monkeypatch)
    data, clients = b"\r\n" * (FLOOD // 2), 30
    with ExitStack() as stack:
        crowd = [stack.enter_context(served.asker()) for _ in range(clients)]
        senders = [Thread(target=asker.send_bytes, args=(data,)) for asker in crowd]
        for each in senders:
            each.start()
        for each in senders:
            each.join(PATIENCE_S)
        for asker in crowd:
            assert asker.ask("PING") in (b"PONG", "NOAUTH Authentication required.")
    assert served.executor.statistics.bytes_in >= clients * FLOOD
    # Each step handles a piece, or the bytes of one read of a socket: never a single line.
    assert steps() <= clients * FLOOD // 100


def test_a_client_gets_no_more_than_its_share_while_others_wait(
    server: Server, ann: Talker
) -> None:
    bob, carl = server.client(), server.client()
    ann.send_bytes(b"INCR n\r\n" * 500)
    bob.send_bytes(request("INCR", "n") * 500)
    carl.send("GET", "n")
    server.turn()
    assert int(parsed(carl.heard())) <= 2 * CLIENT_REQUESTS
    assert ann.heard().count(b"\r\n") == bob.heard().count(b"\r\n") == 500


def test_an_unauthenticated_client_runs_one_request_while_others_wait(
    server: Server, ann: Talker
) -> None:
    server.executor.acl.require(b"secret")
    strangers = [server.client() for _ in range(3)]
    for each in strangers:
        each.send_bytes(b"PING\r\n" * 100)
    ann.send("INFO", "errorstats")
    server.turn()
    assert b"errorstat_NOAUTH:count=3\r\n" in ann.heard()
    for each in strangers:
        assert each.heard() == b"-NOAUTH Authentication required.\r\n" * 100


def test_little_is_read_ahead_of_an_unauthenticated_client(server: Server, ann: Talker) -> None:
    server.executor.acl.require(b"secret")
    stranger = server.client()
    for talker in (ann, stranger):
        for _ in range(12):
            talker.send_bytes(b"PING\r\n" * (STRANGER_AHEAD // 24))
    assert (ann.holds, stranger.holds) == ([], ["held"])
    server.turn()
    assert (ann.holds, stranger.holds) == ([], ["held", "read"])
    assert stranger.ask("AUTH", "secret").endswith(b"+OK\r\n")


@pytest.mark.parametrize("before", [0, 1, TAKEN_MAX - 2, TAKEN_MAX - 1, TAKEN_MAX])
def test_requests_after_a_wait_in_the_same_piece_run_later(
    server: Server, ann: Talker, before: int
) -> None:
    lines = b"PING\r\n" * before + b"XREAD BLOCK 0 STREAMS s $\r\n" + b"PING\r\n" * 200
    ann.send_bytes(lines)
    server.turn()
    assert ann.heard() == b"+PONG\r\n" * before
    ann.send("ECHO", "last")
    server.turn()
    assert ann.heard() == b""
    server.client().ask("XADD", "s", "1-1", "f", "v")
    server.turn()
    assert ann.heard().endswith(b"$1\r\nv\r\n" + b"+PONG\r\n" * 200 + b"$4\r\nlast\r\n")


def test_a_protocol_error_follows_all_earlier_replies(server: Server, ann: Talker) -> None:
    ann.send_bytes(b"PING\r\n" * MANY + b"*1\r\n!")
    ann.send_bytes(b"\r\n" + b"PING\r\n" * MANY)
    server.turn()
    found = b"-ERR Protocol error: expected '$', got '!'\r\n"
    assert ann.heard() == b"+PONG\r\n" * MANY + found
    assert ann.closed


def test_bytes_after_a_wait_are_kept_unparsed(server: Server, ann: Talker) -> None:
    ann.ask("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    for _ in range(100):
        ann.send_bytes(b"PING\r\n" * 1000)
    server.turn()
    assert ann.client.unread.size == 100 * 6000
    assert len(ann.client.requests) == 0
    server.client().ask("XADD", "s", "1-1", "f", "v")
    server.turn()
    assert ann.heard().endswith(b"$1\r\nv\r\n" + b"+PONG\r\n" * 100_000)


def test_a_blocked_client_that_sends_too_much_is_disconnected(server: Server, ann: Talker) -> None:
    ann.client.reader.query_max = 10_000
    ann.ask("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    ann.send_bytes(b"x" * 10_000)
    assert not ann.closed
    ann.send_bytes(b"x")
    assert ann.closed
    assert len(server.engine.waiters) == 0


def test_a_long_argument_in_pieces_is_complete(server: Server, ann: Talker) -> None:
    value = bytes(range(256)) * 4000
    for part in (request("SET", "k", value), request("GET", "k")):
        ann.send_bytes(part)
    server.turn()
    assert ann.heard() == b"+OK\r\n$%d\r\n%b\r\n" % (len(value), value)
