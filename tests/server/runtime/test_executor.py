"""Turns without sockets: their commits, failures, waits and transactions."""

import time
from pathlib import Path
from unittest.mock import patch

import pytest

from kvstream.errors import StoreFull
from kvstream.layout.keys import qualified, stream_row
from kvstream.storage.batch import Batch, Family
from tests.server.talking import Server, Talker, request


def test_all_received_requests_are_one_commit(server: Server, ann: Talker, bob: Talker) -> None:
    ann.send("XADD", "s", "1-1", "f", "v")
    ann.send("XADD", "s", "2-1", "f", "v")
    bob.send("XADD", "t", "1-1", "f", "v")
    bob.send("XLEN", "s")
    with patch.object(server.engine.database, "write", wraps=server.engine.database.write) as write:
        server.turn()
    assert write.call_count == 1
    assert ann.heard() == b"$3\r\n1-1\r\n$3\r\n2-1\r\n"
    assert bob.heard() == b"$3\r\n1-1\r\n:2\r\n"


def test_no_reply_is_sent_before_the_commit(server: Server, ann: Talker) -> None:
    real = server.engine.database.write
    seen: list[bytes] = []

    def write(batch: Batch, frees: bool = False) -> int:
        seen.append(ann.heard())
        return real(batch, frees)

    with patch.object(server.engine.database, "write", write):
        assert ann.ask("XADD", "s", "1-1", "f", "v") == b"$3\r\n1-1\r\n"
    assert seen == [b""]


def test_a_refused_command_does_not_affect_others(server: Server, ann: Talker, bob: Talker) -> None:
    ann.send("XADD", "s", "5-1", "f", "v")
    bob.send("XADD", "s", "4-1", "f", "v")
    ann.send("NOSUCH")
    server.turn()
    assert ann.heard().startswith(b"$3\r\n5-1\r\n-ERR unknown command")
    assert bob.heard().startswith(b"-ERR The ID specified in XADD is equal or smaller")


def _damage(server: Server, key: bytes) -> None:
    batch = Batch(server.engine.database)
    batch.put(Family.METADATA, stream_row(qualified(0, key)), b"\x01\x01damaged")
    server.engine.database.write(batch)
    server.engine.catalog.forget()


def test_only_the_client_of_a_damaged_stream_gets_an_error(tmp_path: Path) -> None:
    server = Server(tmp_path / "store")
    ann, bob = server.client(), server.client()
    ann.ask("XADD", "bad", "1-1", "f", "v")
    _damage(server, b"bad")
    ann.send("XADD", "good", "1-1", "f", "v")
    bob.send("XADD", "bad", "2-1", "f", "v")
    ann.send("XADD", "good", "2-1", "f", "v")
    server.turn()
    assert ann.heard() == b"$3\r\n1-1\r\n$3\r\n2-1\r\n"
    assert bob.heard().startswith(b"-ERR the record of stream b'bad' is damaged")
    server.engine.close()


def test_a_full_disk_refuses_additions_and_accepts_deletions(server: Server, ann: Talker) -> None:
    ann.ask("XADD", "s", "1-1", "f", "v")
    real = server.engine.database.write

    def write(batch: Batch, frees: bool = False) -> int:
        if not frees:
            raise StoreFull("no room")
        return real(batch, frees)

    ann.send("XADD", "s", "2-1", "f", "v")
    ann.send("XDEL", "s", "1-1")
    ann.send("XLEN", "s")
    with patch.object(server.engine.database, "write", write):
        server.turn()
    assert ann.heard() == b"-MISCONF no room\r\n:1\r\n:0\r\n"


def test_entries_read_in_a_failed_turn_are_not_sent(
    server: Server, ann: Talker, bob: Talker
) -> None:
    ann.send("XADD", "s", "1-1", "f", "v")
    bob.send("XRANGE", "s", "-", "+")
    bob.send("XREAD", "STREAMS", "s", "0")
    with patch.object(server.engine.database, "write", side_effect=StoreFull("no room")):
        server.turn()
    assert ann.heard() == b"-MISCONF no room\r\n"
    assert bob.heard() == b"*0\r\n*-1\r\n"


def test_commands_after_select_use_that_database_also_when_run_again(
    server: Server, ann: Talker
) -> None:
    fails = [True]
    real = server.engine.database.write

    def write(batch: Batch, frees: bool = False) -> int:
        if fails.pop() if fails else False:
            raise StoreFull("no room")
        return real(batch, frees)

    ann.send("XADD", "s", "1-1", "f", "v")
    ann.send("SELECT", "1")
    ann.send("XADD", "s", "1-1", "f", "v")
    ann.send("XADD", "s", "2-1", "f", "v")
    with patch.object(server.engine.database, "write", write):
        server.turn()
    assert ann.heard() == b"$3\r\n1-1\r\n+OK\r\n$3\r\n1-1\r\n$3\r\n2-1\r\n"
    assert ann.ask("XLEN", "s") == b":2\r\n"
    ann.ask("SELECT", "0")
    assert ann.ask("XLEN", "s") == b":1\r\n"


# --- blocking -----------------------------------------------------------------------------------


def test_a_reader_is_served_right_after_the_append(
    server: Server, ann: Talker, bob: Talker
) -> None:
    assert ann.ask("XREAD", "BLOCK", "0", "STREAMS", "s", "$") == b""
    bob.send("XADD", "s", "1-1", "f", "v")
    bob.send("XDEL", "s", "1-1")
    server.turn()
    assert ann.heard() == (
        b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n"
    )
    assert bob.heard() == b"$3\r\n1-1\r\n:1\r\n"


def test_requests_sent_while_blocked_run_afterwards(
    server: Server, ann: Talker, bob: Talker
) -> None:
    ann.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    ann.send("XLEN", "s")
    server.turn()
    assert ann.heard() == b""
    bob.ask("XADD", "s", "1-1", "f", "v")
    server.turn()
    assert ann.heard().endswith(b"$1\r\nv\r\n:1\r\n")


def test_a_wait_ends_at_its_timeout(server: Server, ann: Talker) -> None:
    assert ann.ask("XREAD", "BLOCK", "1500", "STREAMS", "s", "$") == b""
    server.wait(1.4)
    assert ann.heard() == b""
    assert server.executor.due() == pytest.approx(1001.5)
    server.wait(0.2)
    assert ann.heard() == b"*-1\r\n"
    assert server.executor.due() is None
    assert len(server.engine.waiters) == 0


def test_a_blocked_claim_gets_entries_that_become_idle(
    server: Server, ann: Talker, bob: Talker
) -> None:
    bob.ask("XADD", "s", "1-1", "f", "v")
    bob.ask("XGROUP", "CREATE", "s", "g", "0")
    bob.ask("XREADGROUP", "GROUP", "g", "bob", "STREAMS", "s", ">")
    ann.ask(*("XREADGROUP", "GROUP", "g", "ann", "BLOCK", "0", "CLAIM", "30", "STREAMS", "s", ">"))
    assert ann.heard() == b""
    for _ in range(100):
        if server.executor.due() is None:
            break
        time.sleep(0.01)
        server.wait(0.05)
    assert b"1-1" in ann.heard()


def test_waiters_keep_waiting_when_the_turn_that_served_them_fails(
    server: Server, ann: Talker, bob: Talker
) -> None:
    ann.ask("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    with patch.object(server.engine.database, "write", side_effect=StoreFull("no room")):
        assert bob.ask("XADD", "s", "1-1", "f", "v") == b"-MISCONF no room\r\n"
    assert ann.heard() == b""
    assert ann.client.block is not None
    bob.ask("XADD", "s", "2-1", "f", "v")
    assert b"2-1" in ann.heard()


# --- transactions -------------------------------------------------------------------------------


def test_exec_is_atomic(server: Server, ann: Talker) -> None:
    assert ann.ask("MULTI") == b"+OK\r\n"
    assert ann.ask("XADD", "s", "1-1", "f", "v") == b"+QUEUED\r\n"
    assert ann.ask("XADD", "s", "1-1", "f", "v") == b"+QUEUED\r\n"
    said = ann.ask("EXEC")
    assert said.startswith(b"*2\r\n$3\r\n1-1\r\n-ERR The ID")
    ann.ask("MULTI")
    ann.ask("XADD", "s", "2-1", "f", "v")
    with patch.object(server.engine.database, "write", side_effect=StoreFull("no room")):
        assert ann.ask("EXEC") == b"-MISCONF no room\r\n"
    assert ann.ask("XLEN", "s") == b":1\r\n"


def test_exec_refuses_after_a_command_that_was_refused(server: Server, ann: Talker) -> None:
    ann.ask("MULTI")
    assert ann.ask("XADD", "s").startswith(b"-ERR wrong number of arguments")
    assert ann.ask("EXEC").startswith(b"-EXECABORT Transaction discarded")
    assert ann.ask("EXEC") == b"-ERR EXEC without MULTI\r\n"


def test_exec_does_nothing_when_a_watched_key_has_changed(
    server: Server, ann: Talker, bob: Talker
) -> None:
    ann.ask("WATCH", "s")
    bob.ask("XADD", "s", "1-1", "f", "v")
    ann.ask("MULTI")
    ann.ask("XADD", "s", "2-1", "f", "v")
    assert ann.ask("EXEC") == b"*-1\r\n"
    ann.ask("WATCH", "s")
    ann.ask("MULTI")
    ann.ask("XADD", "s", "2-1", "f", "v")
    assert ann.ask("EXEC") == b"*1\r\n$3\r\n2-1\r\n"


def test_exec_or_discard_without_multi_keeps_watched_keys(
    server: Server, ann: Talker, bob: Talker
) -> None:
    ann.ask("WATCH", "s")
    assert ann.ask("EXEC") == b"-ERR EXEC without MULTI\r\n"
    assert ann.ask("DISCARD") == b"-ERR DISCARD without MULTI\r\n"
    bob.ask("XADD", "s", "1-1", "f", "v")
    ann.ask("MULTI")
    assert ann.ask("EXEC") == b"*-1\r\n"


def test_a_refused_exec_ends_the_transaction(server: Server, ann: Talker) -> None:
    ann.ask("MULTI")
    ann.ask("XADD", "s", "1-1", "f", "v")
    assert ann.ask("EXEC", "now") == (
        b"-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' "
        b"command\r\n"
    )
    assert ann.ask("EXEC") == b"-ERR EXEC without MULTI\r\n"
    assert ann.ask("XLEN", "s") == b":0\r\n"


def test_nothing_blocks_inside_a_transaction(server: Server, ann: Talker) -> None:
    ann.ask("MULTI")
    ann.ask("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    assert ann.ask("EXEC") == b"*1\r\n*-1\r\n"


def test_readers_are_served_after_exec_not_within(server: Server, ann: Talker, bob: Talker) -> None:
    ann.ask("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    bob.ask("MULTI")
    bob.ask("XADD", "s", "1-1", "f", "v")
    bob.ask("XADD", "s", "2-1", "f", "v")
    bob.ask("EXEC")
    assert ann.heard().count(b"-1\r\n*2") == 2


def test_a_protocol_error_follows_the_replies_and_closes(server: Server, ann: Talker) -> None:
    ann.send("PING")
    server.executor.receive(ann.client, b"*1\r\n!4\r\n")
    server.turn()
    assert ann.heard() == b"+PONG\r\n-ERR Protocol error: expected '$', got '!'\r\n"
    assert ann.closed


def test_quit_answers_and_closes(server: Server, ann: Talker) -> None:
    ann.send("QUIT")
    ann.send("PING")
    server.turn()
    assert ann.heard() == b"+OK\r\n"
    assert ann.closed


def test_a_reader_that_blocks_in_a_failing_turn_keeps_waiting(
    server: Server, ann: Talker, bob: Talker
) -> None:
    ann.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    bob.send("XADD", "t", "1-1", "f", "v")
    with patch.object(server.engine.database, "write", side_effect=StoreFull("no room")):
        server.turn()
    assert bob.heard() == b"-MISCONF no room\r\n"
    assert ann.heard() == b""
    assert len(server.engine.waiters) == 1
    bob.ask("XADD", "s", "1-1", "f", "v")
    assert b"1-1" in ann.heard()


def test_a_reader_served_in_a_failing_turn_is_served_again_by_the_retry(
    server: Server, ann: Talker, bob: Talker
) -> None:
    bob.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    fails = [True]
    real = server.engine.database.write

    def write(batch: Batch, frees: bool = False) -> int:
        if fails and fails.pop():
            raise StoreFull("no room")
        return real(batch, frees)

    ann.send("XREADGROUP", "GROUP", "g", "ann", "BLOCK", "0", "STREAMS", "s", ">")
    bob.send("XADD", "s", "1-1", "f", "v")
    with patch.object(server.engine.database, "write", write):
        server.turn()
    assert bob.heard() == b"$3\r\n1-1\r\n"
    assert ann.heard().count(b"1-1") == 1
    assert ann.client.block is None
    assert bob.ask("XPENDING", "s", "g").startswith(b"*4\r\n:1\r\n")


# --- appends that run together ------------------------------------------------------------------


def test_consecutive_appends_get_the_ids_and_replies_of_single_ones(
    server: Server, ann: Talker, bob: Talker
) -> None:
    for number in range(3):
        ann.send("XADD", "s", "*", "n", str(number))
        bob.send("XADD", "s", "*", "n", str(number), "same", "1", "same", "2")
    ann.send("XLEN", "s")
    ann.send("XADD", "t", "*", "n", "9")
    server.turn()
    said = ann.heard().split(b"\r\n") + bob.heard().split(b"\r\n")
    ids = [word for word in said if b"-" in word]
    assert b":3" in said or b":6" in said
    assert len(set(ids[:3] + ids[4:])) == 6
    found = ann.ask("XRANGE", "s", "-", "+")
    assert all(eid in found for eid in ids[:3] + ids[4:])


def test_a_refused_append_does_not_affect_others(server: Server, ann: Talker) -> None:
    ann.ask("SET", "text", "v")
    ann.send("XADD", "s", "*", "f", "v")
    ann.send("XADD", "text", "*", "f", "v")
    ann.send("XADD", "text", "*", "f", "v")
    ann.send("XADD", "s", "*", "f", "v")
    server.turn()
    said = ann.heard()
    assert said.count(b"-WRONGTYPE") == 2
    assert ann.ask("XLEN", "s") == b":2\r\n"


def test_appends_that_run_together_are_counted_one_by_one(server: Server, ann: Talker) -> None:
    for _ in range(5):
        ann.send("XADD", "s", "*", "f", "v")
    server.turn()
    assert b"cmdstat_xadd:calls=5," in ann.ask("INFO", "commandstats")


def test_a_waiting_reader_gets_only_the_first_of_many_appends(
    server: Server, ann: Talker, bob: Talker
) -> None:
    ann.ask("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    for _ in range(5):
        bob.send("XADD", "s", "*", "f", "v")
    server.turn()
    assert ann.heard().count(b"$1\r\nf\r\n") == 1
    assert bob.heard().count(b"-") == 5
    assert bob.ask("XLEN", "s") == b":5\r\n"


def test_requests_in_multi_are_queued_together_and_checked_one_by_one(server: Server) -> None:
    """Requests with an error end a group of queued requests, and make EXEC fail."""
    ann, queue = server.client(), b"+OK\r\n"
    requests = [
        request("SET", "a", "1"),
        request("incr", "a"),
        request("xadd", "s", "1-1", "f", "v"),
    ]
    ann.send_bytes(request("MULTI") + b"".join(requests) + request("EXEC"))
    server.turn()
    replies = b"*3\r\n+OK\r\n:2\r\n$3\r\n1-1\r\n"
    assert ann.heard() == queue + b"+QUEUED\r\n" * 3 + replies
    ann.send_bytes(request("MULTI") + requests[0] + request("GET") + requests[1] + request("EXEC"))
    server.turn()
    heard = ann.heard().split(b"\r\n")
    assert [line.split(b" ")[0] for line in heard] == [
        *(b"+OK", b"+QUEUED", b"-ERR", b"+QUEUED", b"-EXECABORT", b"")
    ]


def test_requests_in_multi_are_not_queued_past_exec_or_the_limit(server: Server) -> None:
    ann = server.client()
    ann.client.reader.query_max = 2000
    ann.send_bytes(request("MULTI") + request("SET", "a", "1") + request("EXEC"))
    ann.send_bytes(
        request("GET", "a") + request("MULTI") + request("GET", "a") + request("DISCARD")
    )
    server.turn()
    expected = b"+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n$1\r\n1\r\n+OK\r\n+QUEUED\r\n+OK\r\n"
    assert ann.heard() == expected
    ann.ask("MULTI")
    ann.send_bytes(request("SET", "a", "x" * 900) * 5)
    server.turn()
    assert ann.closed or ann.client.closing
    assert server.client().ask("GET", "a") == b"$1\r\n1\r\n"
