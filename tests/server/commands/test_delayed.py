"""Delayed messages and schedules over a server: blocked readers, limits, WATCH, tracking, ACL."""

from time import time
from typing import Any

import pytest
import redis

from tests.patience import PATIENCE_S, until
from tests.server.conftest import Served

BLOCK_MS = int(PATIENCE_S * 1000)


def ask(client: Any, words: str) -> Any:
    return client.execute_command(*words.split())


def test_a_blocked_reader_gets_a_delayed_message(client: Any) -> None:
    client.xgroup_create("s", "g", mkstream=True)
    begun = time()
    ticket = ask(client, "KVSTREAM.ADD s DELAY 80 n 1")
    assert ticket.startswith(b"@")
    assert client.xlen("s") == 0
    found: Any = client.xreadgroup("g", "c", {"s": ">"}, block=BLOCK_MS)
    entries = found[b"s"][0] if isinstance(found, dict) else found[0][1]
    assert entries[0][1] == {b"n": b"1"}
    assert time() - begun > 0.075
    assert ask(client, "KVSTREAM.DELAYED LIST s") == []


def test_delayed_messages_are_listed_moved_and_cancelled(client: Any) -> None:
    tickets = [ask(client, f"KVSTREAM.ADD s DELAY 90000 n {n}") for n in range(3)]
    listed = ask(client, "KVSTREAM.DELAYED LIST s")
    assert [ticket for ticket, _ in listed] == tickets
    assert listed[1][1] == [b"n", b"1"]
    assert client.execute_command("KVSTREAM.DELAYED", "CANCEL", "s", tickets[0]) == 1
    assert client.execute_command("KVSTREAM.DELAYED", "MOVE", "s", tickets[1], 5) is not None
    until(lambda: client.xlen("s") == 1, "the moved message")
    assert ask(client, "KVSTREAM.DELAYED LEN s") == 1
    assert b"LIST key [start-ticket] [COUNT count]" in ask(client, "KVSTREAM.DELAYED HELP")


def test_a_schedule_fires_on_a_server(client: Any) -> None:
    words = ("KVSTREAM.SCHEDULE", "SET", "s", "tick", "@every 1s", "FIELDS", "n", "1")
    next_ms: Any = client.execute_command(*words)
    found: Any = client.xread({"s": "0"}, block=BLOCK_MS)
    entries = found[b"s"][0] if isinstance(found, dict) else found[0][1]
    assert entries[0][1][b"cron:at"] == b"%d" % next_ms
    [row] = ask(client, "KVSTREAM.SCHEDULE LIST s")
    shown = row if isinstance(row, dict) else dict(zip(row[::2], row[1::2], strict=True))
    assert (shown[b"name"], shown[b"cron"]) == (b"tick", b"@every 1s")
    assert ask(client, "KVSTREAM.SCHEDULE DEL s tick") == 1


def test_a_message_that_becomes_due_is_a_change_for_watch(served: Served) -> None:
    client: Any = served.client()
    other = served.client()
    ask(other, "KVSTREAM.ADD s DELAY 500 n 1")
    pipe = client.pipeline()
    pipe.watch("s")
    until(lambda: other.xlen("s") == 1, "the message")
    pipe.multi()
    pipe.set("done", "1")
    with pytest.raises(redis.WatchError):
        pipe.execute()


def test_a_message_that_becomes_due_invalidates_caches(served: Served) -> None:
    with served.asker(3) as cache:
        cache.ask("CLIENT TRACKING ON")
        cache.ask("KVSTREAM.ADD s DELAY 500 n 1")
        assert cache.ask("XLEN s") == 0
        other = served.client()
        until(lambda: other.xlen("s") == 1, "the message")
        assert "invalidate" in repr(cache.ask("PING")) + repr(cache.read())


def test_the_limits_of_xadd_apply(served: Served) -> None:
    client: Any = served.client()
    client.config_set("stream-entry-max-bytes", 1 << 20)
    with pytest.raises(redis.ResponseError, match="larger than the stream-entry-max-bytes"):
        client.execute_command("KVSTREAM.ADD", "s", "DELAY", 5, "n", "x" * (1 << 20))
    client.config_set("maxmemory", 1)
    for words in ("KVSTREAM.ADD s DELAY 5 n 1", "KVSTREAM.SCHEDULE SET s a @daily FIELDS n 1"):
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            ask(client, words)


def test_users_need_the_rights_of_streams(served: Served) -> None:
    client: Any = served.client()
    client.execute_command("ACL", "SETUSER", "ann", "on", ">pw", "~own", "+@read", "-@write")
    ann = served.client(username="ann", password="pw")
    assert ask(ann, "KVSTREAM.DELAYED LEN own") == 0
    for words in ("KVSTREAM.DELAYED LEN other", "KVSTREAM.ADD own n 1"):
        with pytest.raises(redis.exceptions.NoPermissionError):
            ask(ann, words)


def test_a_transaction_adds_delayed_messages_atomically(client: Any) -> None:
    with client.pipeline() as pipe:
        for n in range(3):
            ask(pipe, f"KVSTREAM.ADD s DELAY 90000 UNIQUE u WINDOW 0 SKIP n {n}")
        first, second, third = pipe.execute()
    assert first == second == third
    assert ask(client, "KVSTREAM.DELAYED LEN s") == 1
