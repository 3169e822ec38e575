"""Failed turns run again, one request at a time; clients must not notice."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from kvstream.engine.turns import Turn
from kvstream.errors import StoreFull
from kvstream.layout.keys import qualified, stream_row
from kvstream.meta.keyspace import Usage
from kvstream.storage.batch import Batch, Family
from kvstream.types.clock import ManualClock
from kvstream.types.thresholds import DEFAULT, Thresholds
from tests.server.talking import Server, Talker, Worker, request


@contextmanager
def first_commit_fails(server: Server) -> Iterator[None]:
    """Make the next write find a full disk, and later ones an empty one."""
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


def test_a_suppressed_reply_stays_suppressed(server: Server, ann: Talker) -> None:
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


def test_a_batch_is_answered_before_replies_are_suppressed(server: Server, ann: Talker) -> None:
    ann.send_bytes(request("XADD", "s", "*", "f", "v"))
    ann.send("CLIENT", "REPLY", "OFF")
    with first_commit_fails(server):
        server.turn()
    assert ann.heard().count(b"\r\n") == 2


def test_an_error_is_suppressed_like_a_reply(server: Server, ann: Talker) -> None:
    ann.send("CLIENT", "REPLY", "SKIP")
    ann.send("XADD", "s", "1-1", "f", "v")
    ann.send("PING")
    with patch.object(server.engine.database, "write", side_effect=StoreFull("no room")):
        server.turn()
    assert ann.heard() == b"+PONG\r\n"


def test_keys_are_watched_only_for_the_next_transaction(
    server: Server, ann: Talker, bob: Talker
) -> None:
    ann.send_bytes(request("WATCH", "k") + request("MULTI") + request("SET", "k", "v"))
    bob.send("SET", "other", "v")
    with first_commit_fails(server):
        server.turn()
    assert ann.heard() == b"+OK\r\n+OK\r\n+QUEUED\r\n"
    ann.send_bytes(request("EXEC") + request("WATCH", "l") + request("MULTI") + request("EXEC"))
    with first_commit_fails(server):
        server.turn()
    assert ann.heard() == b"*1\r\n+OK\r\n+OK\r\n+OK\r\n*0\r\n"
    bob.ask("SET", "l", "w")
    ann.send_bytes(request("MULTI") + request("EXEC"))
    server.turn()
    assert ann.heard() == b"+OK\r\n*0\r\n"


def test_a_watching_transaction_gets_the_error_of_a_full_disk(server: Server, ann: Talker) -> None:
    ann.ask("WATCH", "k")
    ann.send_bytes(request("MULTI") + request("SET", "k", "v") + request("EXEC"))
    with patch.object(server.engine.database, "write", side_effect=StoreFull("no room")):
        server.turn()
    assert b"no room" in ann.heard()


def damage(server: Server, key: bytes) -> None:
    """Damage a key, so that every read of it fails."""
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


def test_requests_after_a_failing_one_are_run(damaged: Server) -> None:
    ann = damaged.client()
    ann.send_bytes(request("XLEN", "bad") + request("ECHO", "text"))
    damaged.turn()
    said = ann.heard()
    assert said.startswith(b"-ERR the record of stream b'bad' is damaged")
    assert said.endswith(b"$4\r\ntext\r\n")


@pytest.mark.parametrize("entries", [1, 3], ids=str)
def test_a_request_after_failing_appends_is_run(damaged: Server, entries: int) -> None:
    ann, bob = damaged.client(), damaged.client()
    ann.send_bytes(request("XADD", "bad", "*", "f", "v") * entries)
    bob.send_bytes(request("SET", "k", "v") + request("ECHO", "text"))
    damaged.turn()
    assert ann.heard().count(b"-ERR the record of stream b'bad' is damaged") == entries
    assert bob.heard() == b"+OK\r\n$4\r\ntext\r\n"


def test_postponed_long_reads_are_answered_though_one_of_them_fails(
    damaged: Server,
) -> None:
    talkers = ann, bob = damaged.client(), damaged.client()
    for talker, key in zip(talkers, ("s", "t"), strict=True):
        talker.client.pages = True
        talker.send_bytes(request("XADD", key, "*", "f", "v") * (DEFAULT.short_rows + 1))
        damaged.turn()
        talker.heard()
    ann.send("SET", "k", "v")  # after this, no long read runs in the same turn
    ann.send("XRANGE", "s", "-", "+")
    bob.send("XRANGE", "t", "-", "+")
    damaged.executor.run()
    assert (ann.heard(), bob.heard()) == (b"+OK\r\n", b"")
    damage(damaged, b"s")
    damaged.turn()
    assert ann.heard().startswith(b"-ERR the record")
    assert bob.heard().startswith(b"*%d\r\n" % (DEFAULT.short_rows + 1))
    assert bob.ask("PING") == b"+PONG\r\n"


def test_requests_after_a_read_that_blocks_only_in_the_retry_stay_after_it(
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


def test_a_long_reply_made_only_by_the_retry_is_not_interrupted(
    server: Server, ann: Talker, bob: Talker
) -> None:
    ann.client.pages = True
    bob.send_bytes(request("XADD", "s", "*", "f", "v") * (DEFAULT.short_rows + 1))
    server.turn()
    bob.heard()
    bob.send("XTRIM", "s", "MAXLEN", "1")
    bob.send("SET", "k", "v")
    ann.send("XRANGE", "s", "-", "+")
    with patch.object(server.engine.database, "write", side_effect=StoreFull("no room")):
        server.executor.run()
    assert ann.client.reply_unfinished
    ann.send_bytes(request("XADD", "t", "*", "f", "v"))
    server.executor.run()
    server.turn()
    said = ann.heard()
    assert said.startswith(b"*%d\r\n" % (DEFAULT.short_rows + 1))
    assert said.count(b"\r\n") == 1 + 8 * (DEFAULT.short_rows + 1) + 2


@contextmanager
def write_fails(server: Server, *failing: int) -> Iterator[None]:
    """Make the writes of these numbers find a full disk."""
    database = server.engine.database
    written, numbers = database.write, itertools.count()

    def write(batch: Batch, frees: bool = False) -> int:
        if next(numbers) in failing:
            raise StoreFull("no room")
        return written(batch, frees)

    with patch.object(database, "write", write):
        yield


def test_requests_after_a_read_that_blocks_only_in_the_retry_are_answered_after_it(
    server: Server, ann: Talker, bob: Talker
) -> None:
    bob.send("XADD", "s", "1-1", "f", "v")
    ann.send("XREAD", "BLOCK", "0", "STREAMS", "s", "0")
    ann.send("XADD", "t", "1-1", "f", "v")
    ann.send("SELECT", "1")
    ann.send("ECHO", "last")
    with write_fails(server, 0, 1):  # the turn's write, and that of bob's XADD alone
        server.turn()
    assert bob.heard().startswith(b"-MISCONF")
    assert ann.heard() == b""
    bob.ask("XADD", "s", "2-1", "f", "v")
    said = ann.heard()
    assert said.startswith(b"*1\r\n*2\r\n$1\r\ns\r\n")
    assert said.endswith(b"$3\r\n1-1\r\n+OK\r\n$4\r\nlast\r\n")
    assert bob.ask("XLEN", "t") == b":1\r\n"


def test_a_wait_ended_in_a_failed_turn_is_over(server: Server, ann: Talker, bob: Talker) -> None:
    ann.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    bob.send("CLIENT", "UNBLOCK", str(ann.client.id))
    bob.send("SET", "k", "v")
    with write_fails(server, 0):
        server.turn()
    assert bob.heard() == b":1\r\n+OK\r\n"
    assert ann.heard() == b"*-1\r\n"
    bob.ask("XADD", "s", "1-1", "f", "v")
    assert ann.ask("PING") == b"+PONG\r\n"


def test_requests_held_by_a_pause_in_a_failed_turn_are_not_lost(
    server: Server, ann: Talker, bob: Talker
) -> None:
    bob.send("XADD", "s", "1-1", "f", "v")
    ann.send("XREAD", "BLOCK", "0", "STREAMS", "s", "0")
    bob.send("CLIENT", "PAUSE", "1000", "WRITE")
    ann.send("XADD", "t", "1-1", "f", "v")
    server.executor.ready.clear()
    server.executor.ready |= dict.fromkeys((bob.client, ann.client))
    with write_fails(server, 0, 1):
        server.turn()
    server.wait(1.1)
    assert ann.heard() == b""
    bob.ask("XADD", "s", "2-1", "f", "v")
    assert ann.heard().endswith(b"$3\r\n1-1\r\n")


def test_retried_appends_use_their_original_database(server: Server, ann: Talker) -> None:
    ann.send_bytes(request("XADD", "s", "*", "f", "v") * 2)
    ann.send("SELECT", "1")
    with write_fails(server, 0):
        server.turn()
    assert ann.ask("XLEN", "s").endswith(b":0\r\n")
    ann.ask("SELECT", "0")
    assert ann.ask("XLEN", "s") == b":2\r\n"


def test_a_reader_killed_in_a_failed_turn_gets_no_entry(
    server: Server, ann: Talker, bob: Talker
) -> None:
    bob.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    ann.ask("XREADGROUP", "GROUP", "g", "ann", "BLOCK", "0", "STREAMS", "s", ">")
    bob.send("XADD", "s", "1-1", "f", "v")
    bob.send("CLIENT", "KILL", "ID", str(ann.client.id))
    with write_fails(server, 0, 1):
        server.turn()
    bob.ask("XADD", "s", "2-1", "f", "v")
    assert bob.ask("XPENDING", "s", "g").startswith(b"*4\r\n:0\r\n")


def test_a_failed_turn_may_send_superfluous_invalidations(
    server: Server, ann: Talker, bob: Talker
) -> None:
    bob.ask("SET", "k", "v")
    ann.ask("HELLO", "3")
    ann.ask("CLIENT", "TRACKING", "ON")
    ann.ask("GET", "k")
    bob.send("SET", "k", "w")
    ann.send("GET", "k")
    with first_commit_fails(server):
        server.turn()
    heard = ann.heard()
    assert heard.startswith(b"$1\r\nw\r\n")
    assert b"invalidate" in heard
    bob.ask("SET", "k", "x")
    assert b"invalidate" in ann.heard()


@pytest.mark.parametrize("failures", [1, 2, 3, 1000])
def test_a_postponed_read_is_answered_once_after_any_number_of_failures(
    tmp_path: Path, failures: int
) -> None:
    """It is postponed since it deletes expired keys: each turn of its own has a change."""
    clock = ManualClock()
    sizes = Thresholds(look_rows=1, short_rows=1)
    server = Server(tmp_path / "store", clock=clock, thresholds=sizes)
    server.engine.expiry.active = False
    reader = Worker(server, 1)
    for key in ("e", "s", "s"):
        reader.ask("XADD", key, "*", "f", "v")
    reader.ask("PEXPIRE", "e", "1")
    clock.advance(2)
    reader.send("XREAD", "STREAMS", "e", "s", "0", "0")
    reader.send("ECHO", "behind")
    with refused(server, failures):
        for _ in range(20):
            server.executor.run()
            server.executor.streaming.write()
    said = reader.heard()
    assert said.startswith(
        b"*1\r\n*2\r\n$1\r\ns\r\n*2\r\n" if failures == 1 else b"-MISCONF no room\r\n"
    )
    assert said.count(b"\r\n") == (23 if failures == 1 else 3)
    assert said.endswith(b"$6\r\nbehind\r\n")
    assert not server.executor.pending
    server.engine.close()


@contextmanager
def refused(server: Server, count: int) -> Iterator[None]:
    """Make the next writes find a full disk."""
    database = server.engine.database
    written, tries = database.write, itertools.count()

    def write(batch: Batch, frees: bool = False) -> int:
        if next(tries) < count:
            raise StoreFull("no room")
        return written(batch, frees)

    with patch.object(database, "write", write):
        yield


def test_messages_of_a_failed_turn_are_published_once(server: Server) -> None:
    ann, bob = server.client(), server.client()
    ann.ask("SUBSCRIBE", "c")
    with first_commit_fails(server):
        bob.send("SET", "k", "v")
        assert bob.ask("PUBLISH", "c", "m") == b"+OK\r\n:1\r\n"
    assert ann.heard() == b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n"


def test_a_transaction_that_cannot_be_written_publishes_nothing(server: Server) -> None:
    ann, bob = server.client(), server.client()
    ann.ask("SUBSCRIBE", "c")
    for words in (["MULTI"], ["PUBLISH", "c", "m"], ["SET", "k", "v"]):
        bob.ask(*words)
    with write_fails(server, 0, 1):
        assert bob.ask("EXEC").startswith(b"-")
    assert ann.heard() == b""


@contextmanager
def defect_of(part: object, name: str, word: bytes) -> Iterator[None]:
    """Make a function of the server fail for requests that have ``word`` among their arguments."""
    whole = getattr(part, name)

    def fails(*given: object) -> object:
        if any(type(each) is list and word in each for each in given):
            raise KeyError(word)
        return whole(*given)

    with patch.object(part, name, fails):
        yield


def test_a_defect_before_a_call_is_its_clients_error(
    server: Server, ann: Talker, bob: Talker
) -> None:
    with defect_of(server.executor.dispatcher, "refusal", b"bad"):
        ann.send_bytes(request("INCR", "a") + request("CLIENT", "SETNAME", "bad") + request("PING"))
        bob.send_bytes(request("MULTI") + request("CLIENT", "SETNAME", "bad") + request("EXEC"))
        server.turn()
    assert ann.heard() == b":1\r\n-ERR internal error: KeyError\r\n+PONG\r\n"
    assert bob.heard().startswith(b"+OK\r\n-ERR internal error: KeyError\r\n-EXECABORT ")
    assert bob.ask("GET", "a") == b"$1\r\n1\r\n"


def test_a_defect_after_the_commit_runs_nothing_again(
    server: Server, ann: Talker, bob: Talker
) -> None:
    bob.ask("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    delivered = Turn.deliver
    calls: list[int] = []

    def fails(turn: Turn, sequence: int) -> None:
        calls.append(sequence)
        if len(calls) == 1:
            raise KeyError(sequence)
        delivered(turn, sequence)

    ann.send_bytes(request("INCR", "a") + request("XADD", "s", "1-1", "f", "v"))
    with patch.object(Turn, "deliver", fails), pytest.raises(KeyError):
        server.turn()
    assert bob.heard().startswith(b"*1\r\n*2\r\n$1\r\ns\r\n")
    assert ann.ask("GET", "a").endswith(b"$1\r\n1\r\n")
    assert ann.ask("XLEN", "s") == b":1\r\n"


def test_a_defect_after_a_call_undoes_that_call(server: Server, ann: Talker, bob: Talker) -> None:
    with defect_of(Usage, "record_use", ann.client.prefix + b"bad"):
        ann.send_bytes(request("INCR", "a") + request("MSET", "bad", "1", "b", "2"))
        ann.send_bytes(request("INCR", "a"))
        bob.send("INCR", "c")
        server.turn()
    assert ann.heard() == b":1\r\n-ERR internal error: KeyError\r\n:2\r\n"
    assert bob.heard() == b":1\r\n"
    assert ann.ask("EXISTS", "a", "b", "bad", "c") == b":2\r\n"
