"""A latency at a fixed rate counts from the time its request was due; all blocked clients wake."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from redis import Redis

from bench.load import WrongReply
from bench.open_loop import background_adds, send_at_rate
from bench.processes import port_of
from bench.wakeups import Publishing, fan_out, wake_one
from tests.patience import until

REPLY = b"$3\r\n1-0\r\n"


def test_a_load_gets_a_latency_for_each_request(client: Redis) -> None:
    latencies = send_at_rate(port_of(client), "orders", 2000, 0.1)
    assert len(latencies) == client.xlen("orders") == 200
    assert min(latencies) > 0


@pytest.fixture
def stalled() -> Iterator[int]:
    """Run a server that replies to no request before it has 50; yield its port."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        thread = threading.Thread(target=_reply_late, args=(listener, 50, 10, stack))
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def _reply_late(listener: socket.socket, requests: int, connections: int, stack: ExitStack) -> None:
    accepted = [stack.enter_context(listener.accept()[0]) for _ in range(connections)]
    counts = [0] * connections
    while sum(counts) < requests:
        for number, connection in enumerate(accepted):
            connection.setblocking(False)
            try:
                counts[number] += connection.recv(1 << 16).count(b"XADD")
            except BlockingIOError:
                continue
    for connection, count in zip(accepted, counts, strict=True):
        connection.sendall(REPLY * count)


def test_a_latency_counts_from_the_time_its_request_was_due(stalled: int) -> None:
    latencies = sorted(send_at_rate(stalled, "orders", 1000, 0.05))
    assert len(latencies) == 50
    assert latencies[-1] >= 0.049  # the first was due 49 ms before the last
    assert latencies[25] >= 0.024


def test_another_process_adds_during_the_block(client: Redis) -> None:
    with background_adds(client, "orders", 1000):
        first = client.xlen("orders")
        assert first > 0
        until(lambda: client.xlen("orders") > first)


def test_each_wakeup_is_timed(client: Redis) -> None:
    assert len(wake_one(client, 5, 7)) == 7


def test_all_readers_of_a_stream_are_woken_each_time(client: Redis) -> None:
    assert len(fan_out(client, 5, 3)) == 3
    assert client.xlen("news") == 3


def test_clients_that_do_not_block_are_noticed(client: Redis) -> None:
    client.set("wake:0", "a string")
    with pytest.raises(WrongReply):
        wake_one(client, 1, 1, patience_s=0.1)


def test_a_publication_ends_when_all_have_all_messages(client: Redis) -> None:
    publishing = Publishing(5, 1)
    publishing.prepare(client, 100)
    assert publishing.load(client, 100) > 0
    publishing.check(client, 100)


def test_a_subscriber_that_is_lost_is_noticed(client: Redis) -> None:
    publishing = Publishing(5, 1)
    publishing.prepare(client, 100)
    client.client_kill_filter(_type="pubsub")
    with pytest.raises(WrongReply):
        publishing.check(client, 100)
