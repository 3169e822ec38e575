"""Turns that fail and run again, a request at a time: what their clients must not notice."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from kvstream.errors import StoreFull
from kvstream.storage.batch import Batch
from tests.server.talking import Server, Talker, request


@contextmanager
def first_commit_fails(server: Server) -> Iterator[None]:
    """Have the next write meet a full disk, and all behind it an empty one."""
    database = server.engine.database
    written, tries = database.write, []

    def write(batch: Batch, frees: bool = False) -> int:
        tries.append(batch)
        if len(tries) == 1:
            raise StoreFull("no room")
        return written(batch, frees)

    with patch.object(database, "write", write):
        yield
    assert len(tries) > 1


def test_a_reply_that_was_to_be_left_out_is_left_out(server: Server, ann: Talker) -> None:
    ann.send("CLIENT", "REPLY", "SKIP")
    ann.send("XADD", "s", "1-1", "f", "v")
    ann.send("XADD", "s", "2-1", "f", "v")
    ann.send("CLIENT", "REPLY", "OFF")
    ann.send("XADD", "s", "3-1", "f", "v")
    ann.send("CLIENT", "REPLY", "ON")
    with first_commit_fails(server):
        server.turn()
    assert ann.heard() == b"$3\r\n2-1\r\n+OK\r\n"
    assert ann.ask("XLEN", "s") == b":3\r\n"


def test_a_burst_is_answered_though_what_follows_wants_no_answers(
    server: Server, ann: Talker
) -> None:
    ann.send_bytes(request("XADD", "s", "*", "f", "v"))
    ann.send("CLIENT", "REPLY", "OFF")
    with first_commit_fails(server):
        server.turn()
    assert ann.heard().count(b"\r\n") == 2


def test_an_error_is_left_out_where_a_reply_would_be(server: Server, ann: Talker) -> None:
    ann.send("CLIENT", "REPLY", "SKIP")
    ann.send("XADD", "s", "1-1", "f", "v")
    ann.send("PING")
    with patch.object(server.engine.database, "write", side_effect=StoreFull("no room")):
        server.turn()
    assert ann.heard() == b"+PONG\r\n"
