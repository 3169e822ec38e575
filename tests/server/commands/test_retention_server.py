"""Retention over a server: redis-py sets the rules, and the background removes entries."""

from typing import Any

import redis

from tests.patience import until
from tests.server.conftest import Serve
from tests.server.metrics.scraping import scrape


def ask(client: redis.Redis, *words: object) -> Any:
    run: Any = client.execute_command
    return run(*words)


def info(client: redis.Redis, key: str = "s") -> dict[bytes, object]:
    reply = ask(client, "KVSTREAM.INFO", key)
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def test_acknowledged_entries_leave_a_stream_while_it_is_produced(
    client: redis.Redis,
) -> None:
    client.xgroup_create("s", "g", "0", mkstream=True)
    assert ask(client, "KVSTREAM.RETENTION", "SET", "s", "ACKED") == b"OK"
    for _ in range(20):
        with client.pipeline() as pipe:
            for number in range(100):
                pipe.xadd("s", {"n": number})
            ids = pipe.execute()
        client.xreadgroup("g", "c", {"s": ">"}, count=100)
        assert client.xack("s", "g", *ids) == 100
    until(lambda: client.xlen("s") == 0, "the deletion of all entries")
    assert client.info("queues")["retained_removed"] == 2000
    assert info(client)[b"length"] == 0


def test_metrics_count_what_retention_removed(serve: Serve) -> None:
    served = serve(metrics_port=0)
    client = served.client()
    client.xadd("s", {"f": "v"})
    client.xadd("s", {"f": "v"})
    ask(client, "KVSTREAM.RETENTION", "SET", "s", "MAXLEN", 1)
    until(lambda: client.info("queues")["retained_removed"] == 1, "the removal")
    assert scrape(served).one("kvstream_queue_retained_removed_total") == 1


def test_metrics_show_delayed_messages_and_waiting_entries(serve: Serve) -> None:
    client = (served := serve(metrics_port=0)).client()
    client.xadd("s", {"f": "v"}, id="1-0")
    client.xgroup_create("s", "g", "0")
    ask(client, "KVSTREAM.POLICY", "SET", "s", "g", "LEASE", 60_000)
    client.xreadgroup("g", "c", {"s": ">"})
    ask(client, "KVSTREAM.NACK", "s", "g", "c", "DELAY", 60_000, "1-0", 1)
    ask(client, "KVSTREAM.ADD", "s", "DELAY", 60_000, "f", "v")
    found = scrape(served)
    assert found.one("kvstream_stream_delayed") == 1
    assert found.one("kvstream_group_waiting") == found.one("kvstream_group_nacked") == 1
