"""Turns that fail and run again, a request at a time: what their clients must not notice."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from kvstream.errors import StoreFull
from kvstream.layout.keys import qualified, stream_row
from kvstream.operations.pages import SHORT_ROWS
from kvstream.storage.batch import Batch, Family
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


def damage(server: Server, key: bytes) -> None:
    """Have whoever looks at a key meet damage."""
    batch = Batch(server.engine.database)
    batch.put(Family.METADATA, stream_row(qualified(0, key)), b"\x01\x01damaged")
    server.engine.database.write(batch)
    server.engine.catalog.forget()


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Server]:
    """A server on a store with a damaged key, ``bad``."""
    server = Server(tmp_path / "damaged")
    damage(server, b"bad")
    yield server
    server.engine.close()


def test_what_comes_behind_a_request_that_fails_half_way_is_run(damaged: Server) -> None:
    ann = damaged.client()
    ann.send_bytes(request("XLEN", "bad") + request("ECHO", "told"))
    damaged.turn()
    said = ann.heard()
    assert said.startswith(b"-ERR the record of stream b'bad' is damaged")
    assert said.endswith(b"$4\r\ntold\r\n")


@pytest.mark.parametrize("entries", [1, 3], ids=str)
def test_a_request_behind_appends_that_fail_half_way_is_run(damaged: Server, entries: int) -> None:
    ann, bob = damaged.client(), damaged.client()
    ann.send_bytes(request("XADD", "bad", "*", "f", "v") * entries)
    bob.send_bytes(request("SET", "k", "v") + request("ECHO", "told"))
    damaged.turn()
    assert ann.heard().count(b"-ERR the record of stream b'bad' is damaged") == entries
    assert bob.heard() == b"+OK\r\n$4\r\ntold\r\n"


def test_long_reads_that_were_put_off_are_answered_though_one_of_them_fails(
    damaged: Server,
) -> None:
    talkers = ann, bob = damaged.client(), damaged.client()
    for talker, key in zip(talkers, ("s", "t"), strict=True):
        talker.client.pages = True
        talker.send_bytes(request("XADD", key, "*", "f", "v") * (SHORT_ROWS + 1))
        damaged.turn()
        talker.heard()
    ann.send("SET", "k", "v")  # behind which nothing long is read in the same turn
    ann.send("XRANGE", "s", "-", "+")
    bob.send("XRANGE", "t", "-", "+")
    damaged.executor.run()
    assert (ann.heard(), bob.heard()) == (b"+OK\r\n", b"")
    damage(damaged, b"s")
    damaged.turn()
    assert ann.heard().startswith(b"-ERR the record")
    assert bob.heard().startswith(b"*%d\r\n" % (SHORT_ROWS + 1))
    assert bob.ask("PING") == b"+PONG\r\n"


def test_what_follows_a_read_that_waits_only_when_run_again_comes_behind_it(
    server: Server, ann: Talker, bob: Talker
) -> None:
    bob.send("XADD", "s", "1-1", "f", "v")
    ann.send("XREAD", "BLOCK", "0", "STREAMS", "s", "0")
    with patch.object(server.engine.database, "write", side_effect=StoreFull("no room")):
        server.turn()
    assert bob.heard().startswith(b"-MISCONF")
    ann.send_bytes(request("XADD", "t", "*", "f", "v"))
    server.turn()
    assert ann.heard() == b""
    bob.ask("XADD", "s", "2-1", "f", "v")
    assert ann.heard().startswith(b"*1\r\n*2\r\n$1\r\ns\r\n")


def test_a_long_reply_that_only_a_second_run_has_is_not_interrupted(
    server: Server, ann: Talker, bob: Talker
) -> None:
    ann.client.pages = True
    bob.send_bytes(request("XADD", "s", "*", "f", "v") * (SHORT_ROWS + 1))
    server.turn()
    bob.heard()
    bob.send("XTRIM", "s", "MAXLEN", "1")
    bob.send("SET", "k", "v")
    ann.send("XRANGE", "s", "-", "+")
    with patch.object(server.engine.database, "write", side_effect=StoreFull("no room")):
        server.executor.run()
    assert ann.client.paged
    ann.send_bytes(request("XADD", "t", "*", "f", "v"))
    server.executor.run()
    server.turn()
    said = ann.heard()
    assert said.startswith(b"*%d\r\n" % (SHORT_ROWS + 1))
    assert said.count(b"\r\n") == 1 + 8 * (SHORT_ROWS + 1) + 2
