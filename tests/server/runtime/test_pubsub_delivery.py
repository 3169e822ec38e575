"""Messages: when they are sent, in which order, and what happens to unread ones."""

import socket
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from kvstream.errors import StoreReadOnly
from kvstream.server.runtime.pubsub import SENT_TOGETHER
from kvstream.types.options import Durability
from kvstream.types.thresholds import Thresholds
from tests.patience import PATIENCE_S, until
from tests.server.commands.test_pubsub import bulk
from tests.server.conftest import Serve, Served
from tests.server.runtime.test_reply_streaming import Reader
from tests.server.talking import Server, Talker, request


def _crowd(server: Server, count: int) -> list[Talker]:
    talkers = [server.client() for _ in range(count)]
    for talker in talkers:
        talker.ask("SUBSCRIBE", "c")
    return talkers


def _ready(talkers: list[Talker]) -> int:
    return sum(talker.has_heard for talker in talkers)


SLOW = Thresholds(slice_s=-1.0)


@pytest.fixture
def slow(server: Server) -> None:
    """Make a slice as short as possible."""
    server.executor.pubsub.sizes = SLOW


@pytest.mark.usefixtures("slow")
def test_other_clients_are_served_while_a_message_is_sent_to_many(server: Server) -> None:
    crowd, ann, bob = _crowd(server, 5 * SENT_TOGETHER), server.client(), server.client()
    ann.send("PUBLISH", "c", "m")
    assert server.executor.run()
    assert ann.heard() == b":%d\r\n" % len(crowd)  # before most have the message
    assert _ready(crowd) < len(crowd)
    bob.send("PING")
    server.executor.run()
    assert bob.heard() == b"+PONG\r\n"
    assert _ready(crowd) < len(crowd)
    server.turn()
    assert all(talker.heard() == bulk(b"message", b"c", b"m") for talker in crowd)


@pytest.mark.usefixtures("slow")
def test_each_subscriber_gets_all_messages_in_order_with_its_replies(server: Server) -> None:
    crowd, ann = _crowd(server, 9 * SENT_TOGETHER), server.client()
    last = crowd[-1]
    for number in range(3):
        ann.send("PUBLISH", "c", str(number))
        server.executor.run()
    assert not last.has_heard
    last.send("PING")
    server.executor.run()  # its reply does not wait for the messages to others
    messages = b"".join(bulk(b"message", b"c", b"%d" % number) for number in range(3))
    assert last.heard() == messages + bulk(b"pong", b"")
    assert _ready(crowd[:-1]) < len(crowd) - 1
    server.turn()
    assert all(talker.heard() == messages for talker in crowd[:-1])


@pytest.mark.usefixtures("slow")
def test_unsent_messages_are_sent_before_the_end_of_a_subscription(server: Server) -> None:
    crowd, ann = _crowd(server, 5 * SENT_TOGETHER), server.client()
    one, two, three = crowd[-3:]
    ann.send("PUBLISH", "c", "m")
    server.executor.run()
    one.send("UNSUBSCRIBE")
    two.send("QUIT")
    three.leave()
    server.executor.run()
    message = bulk(b"message", b"c", b"m")
    assert one.heard() == message + bulk(b"unsubscribe", b"c", 0)
    assert two.heard() == message + b"+OK\r\n"
    server.turn()
    assert three.heard() == b""
    assert not server.executor.pubsub.queue


def test_messages_wait_until_a_streamed_reply_is_complete(server: Server) -> None:
    ann, bob = Reader(server, 1001), server.client()
    for number in range(3000):
        bob.send("XADD", "s", f"{number + 1}-1", "f", "v" * 50)
    server.turn()
    bob.ask("PING")
    ann.ask("HELLO", "3")
    ann.ask("SUBSCRIBE", "c")
    ann.send("XRANGE", "s", "-", "+")
    ann.send("PING")
    said = ann.page()
    for number in range(2):
        bob.ask("PUBLISH", "c", str(number))
    assert not ann.has_heard
    assert server.executor.pubsub.unread_of(ann.client) > 50
    said += ann.rest()
    messages = b"".join(bulk(b"message", b"c", b"%d" % n, sign=b">") for n in range(2))
    assert said.startswith(b"*3000\r\n")
    assert said.endswith(b"v" * 50 + b"\r\n" + messages + b"+PONG\r\n")


def test_a_blocked_client_gets_messages(server: Server, ann: Talker, bob: Talker) -> None:
    ann.ask("HELLO", "3")
    ann.ask("SUBSCRIBE", "c")
    assert ann.ask("XREAD", "BLOCK", "0", "STREAMS", "s", "$") == b""
    bob.ask("PUBLISH", "c", "m")
    assert ann.heard() == bulk(b"message", b"c", b"m", sign=b">")
    bob.send("XADD", "s", "1-1", "f", "v")
    bob.ask("PUBLISH", "c", "m")
    said = ann.heard()
    assert b"1-1" in said
    assert bulk(b"message", b"c", b"m", sign=b">") in said


@pytest.mark.parametrize("fails", [False, True])
def test_with_always_a_message_waits_for_the_disk(tmp_path: Path, fails: bool) -> None:
    server = Server(tmp_path / "store", Durability.ALWAYS)
    ann, bob = server.client(), server.client()
    ann.ask("SUBSCRIBE", "c")
    go, flush = threading.Event(), server.engine.database.flush_wal

    def flush_late() -> int:
        assert go.wait(PATIENCE_S)
        if fails:
            raise StoreReadOnly("gone")
        return flush()

    with patch.object(server.engine.database, "flush_wal", flush_late):
        for words in (("MULTI",), ("SET", "k", "v"), ("PUBLISH", "c", "m"), ("EXEC",)):
            bob.send(*words)
        server.turn()
        assert not ann.has_heard
        go.set()
        until(lambda: bob.has_heard)
    assert (b"the log cannot be made durable" in bob.heard()) is fails
    if fails:
        assert not ann.has_heard
    else:
        until(lambda: ann.has_heard)
        assert ann.heard() == bulk(b"message", b"c", b"m")
    server.engine.close()


def test_a_subscribed_publisher_gets_its_message_after_the_reply(ann: Talker) -> None:
    ann.ask("HELLO", "3")
    ann.ask("SUBSCRIBE", "c")
    push = bulk(b"message", b"c", b"m", sign=b">")
    for _ in range(2):
        ann.send("PUBLISH", "c", "m")
        ann.send("SET", "k", "v")
    assert ann.ask("PUBLISH", "c", "m") == 2 * (b":1\r\n" + push + b"+OK\r\n") + b":1\r\n" + push
    for words in (("MULTI",), ("PUBLISH", "c", "m"), ("GET", "k")):
        ann.ask(*words)
    assert ann.ask("EXEC") == b"*2\r\n:1\r\n$1\r\nv\r\n" + push


def test_a_script_publishes_in_the_protocol_of_each_subscriber(ann: Talker, bob: Talker) -> None:
    ann.ask("HELLO", "3")
    for talker in (ann, bob):
        talker.ask("SUBSCRIBE", "c")
    script = "redis.setresp(2) return {redis.call('PUBLISH', 'c', 'm'), redis.call('PING')}"
    push = bulk(b"message", b"c", b"m", sign=b">")
    assert ann.ask("EVAL", script, "0") == b"*2\r\n:2\r\n+PONG\r\n" + push
    assert ann.ask("PUBLISH", "c", "m") == b":2\r\n" + push
    assert bob.heard() == 2 * bulk(b"message", b"c", b"m")


def test_lines_of_monitor_follow_earlier_replies(server: Server, ann: Talker) -> None:
    bob = server.client()
    ann.send("MONITOR")
    bob.send("PING")
    ann.send("ECHO", "e")
    server.turn()
    said = ann.heard().split(b"\r\n")
    assert [said[0], said[1], said[2]] == [b"+OK", b"$1", b"e"]
    assert [line.partition(b"] ")[2] for line in said[3:]] == [b'"ECHO" "e"', b'"PING"', b""]


def test_with_always_a_message_is_sent_before_the_end_of_the_last_subscription(
    tmp_path: Path,
) -> None:
    server = Server(tmp_path / "store", Durability.ALWAYS)
    ann, bob = server.client(), server.client()
    ann.ask("SUBSCRIBE", "c")
    go, flush = threading.Event(), server.engine.database.flush_wal

    def flush_late() -> int:
        assert go.wait(PATIENCE_S)
        return flush()

    with patch.object(server.engine.database, "flush_wal", flush_late):
        for words in (("SET", "k", "v"), ("PUBLISH", "c", "m")):
            bob.send(*words)
            server.turn()
        bob.send("PUBLISH", "c", "n")
        ann.send("UNSUBSCRIBE")
        server.turn()
        go.set()
        until(lambda: not server.executor.reply_queue.is_waiting())
    messages = bulk(b"message", b"c", b"m") + bulk(b"message", b"c", b"n")
    assert ann.heard() == messages + bulk(b"unsubscribe", b"c", 0)
    server.engine.close()


# --- readers that are too slow ------------------------------------------------------------------


def _slow_subscriber(served: Served) -> socket.socket:
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.settimeout(PATIENCE_S)
    slow.connect(("127.0.0.1", served.port))
    slow.sendall(request("SUBSCRIBE", "c"))
    assert slow.recv(100) == bulk(b"subscribe", b"c", 1)
    return slow


@pytest.mark.parametrize("limit", ["pubsub 1mb 0 0", "pubsub 0 512kb 1"])
def test_a_subscriber_that_is_too_slow_is_disconnected(serve: Serve, limit: str) -> None:
    served = serve()
    with served.asker() as asker, served.asker() as quick, _slow_subscriber(served):
        asker.ask("CONFIG", "SET", "client-output-buffer-limit", limit)
        quick.ask("SUBSCRIBE other")
        asker.ask("SET", "k", b"v" * (8 << 20))  # the limit of normal clients is separate
        assert len(asker.ask("GET k")) == 8 << 20
        sent = 0
        while asker.ask("PUBSUB NUMSUB c") == [b"c", 1]:
            if sent < 16 << 20:
                sent += asker.ask("PUBLISH", "c", b"m" * (1 << 17)) << 17
        assert served.executor.statistics.output_disconnections == 1
        assert asker.ask("PUBLISH other m") == 1
        assert quick.read() == [b"message", b"other", b"m"]


def test_the_client_with_the_most_subscriptions_is_closed_for_its_memory(served: Served) -> None:
    with served.asker() as asker, served.asker() as greedy, served.asker() as modest:
        modest.ask("SUBSCRIBE c")
        asker.ask("CONFIG SET maxmemory-clients 1mb")
        for number in range(20):
            with suppress(EOFError, ConnectionError):
                greedy.ask("SUBSCRIBE", f"{number:0100000}")
        until(lambda: served.executor.statistics.evicted_clients == 1)
        assert asker.ask("PUBLISH c m") == 1
        assert asker.ask("PUBSUB CHANNELS") == [b"c"]


def test_an_idle_subscriber_stays_and_may_be_killed_by_its_type(served: Served) -> None:
    with served.asker() as subscriber:
        subscriber.ask("SUBSCRIBE c")
        with served.asker() as idle:
            idle.ask("CONFIG SET timeout 1")
            assert idle.is_closed()
        served.executor.options.timeout = 0
        asker = served.asker()
        assert asker.ask("PUBLISH c m") == 1
        shown = asker.ask("CLIENT LIST TYPE pubsub")
        assert (shown.count(b"\n"), b" sub=1 " in shown) == (1, True)
        assert b" sub=0 " in asker.ask("CLIENT LIST TYPE normal")
        assert asker.ask("CLIENT KILL TYPE pubsub") == 1
        assert subscriber.read() == [b"message", b"c", b"m"]
        assert subscriber.is_closed()
        assert asker.ask("PUBLISH c m") == 0
        asker.close()


def test_publishers_wait_while_too_much_is_unsent(server: Server) -> None:
    server.executor.pubsub.sizes = replace(SLOW, unsent_bytes=1000)
    crowd, ann = _crowd(server, 9 * SENT_TOGETHER), server.client()
    ann.send("PUBLISH", "c", "m" * 1000)
    server.executor.run()
    assert _ready(crowd) >= len(crowd) - SENT_TOGETHER


def test_receivers_are_looked_up_again_after_each_change(server: Server) -> None:
    """The messages go to alternating channels, more than are cached."""
    server.executor.pubsub.sizes = Thresholds(cached_routes=2)
    ann, bob, eve = server.client(), server.client(), server.client()
    channels = ["a", "b", "c", "x" * 2000]

    def receivers() -> list[bytes]:
        counts = [eve.ask("PUBLISH", channel, "m") for channel in channels]
        assert counts == [eve.ask("PUBLISH", channel, "m") for channel in channels]
        return counts

    assert receivers() == [b":0\r\n"] * 4
    ann.ask("SUBSCRIBE", "a", "x" * 2000)
    assert receivers() == [b":1\r\n", b":0\r\n", b":0\r\n", b":1\r\n"]
    bob.ask("HELLO", "3")
    bob.ask("PSUBSCRIBE", "[ab]")
    assert receivers() == [b":2\r\n", b":1\r\n", b":0\r\n", b":1\r\n"]
    bob.heard()
    bob.ask("HELLO", "2")
    eve.ask("PUBLISH", "b", "m")
    assert bob.heard() == bulk(b"pmessage", b"[ab]", b"b", b"m")
    ann.ask("UNSUBSCRIBE")
    bob.leave()
    assert receivers() == [b":0\r\n"] * 4
    assert not server.executor.pubsub.clients
    assert not any(server.executor.pubsub.names.values())
