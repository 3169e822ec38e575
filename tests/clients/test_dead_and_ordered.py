"""Dead letters, redrive and order by key, as plain redis-py uses them."""

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

from tests.patience import PATIENCE_S, until


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def client(port: int, request: pytest.FixtureRequest) -> Iterator[Any]:
    made: Any = redis.Redis(port=port, protocol=request.param, decode_responses=True)
    with closing(made):
        yield made


def numbers(reply: Any) -> list[str]:
    """Return the field ``n`` of the entries that XREADGROUP returned."""
    streams = reply.items() if isinstance(reply, dict) else reply
    return [fields["n"] for _, pages in streams for page in pages for _, fields in _entries(page)]


def _entries(page: Any) -> Any:
    return page if isinstance(page, list) else [page]


def read(client: Any, consumer: str = "w", **options: Any) -> list[str]:
    return numbers(client.xreadgroup("g", consumer, {"s": ">"}, **options))


def policy(client: Any, *rules: object) -> None:
    client.execute_command("KVSTREAM.POLICY", "SET", "s", "g", *rules)


def as_dict(reply: Any) -> dict[str, Any]:
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def test_a_failed_message_becomes_a_dead_letter_and_is_redriven(client: Any) -> None:
    client.xgroup_create("s", "g", mkstream=True)
    policy(client, "DELIVERIES", 1)
    first = client.xadd("s", {"n": "1"})
    assert read(client) == ["1"]
    client.execute_command("XNACK", "s", "g", "FAIL", "IDS", 1, first)
    ((_, fields),) = client.xrange("s:dead")
    assert fields["dead:reason"] == "max-deliveries"
    assert (fields["dead:id"], fields["dead:consumer"]) == (first, "w")
    run = ("KVSTREAM.REDRIVE", "START", "s:dead")
    dry = as_dict(client.execute_command(*run, "WHERE", "dead:group", "g", "DRYRUN"))
    assert (dry["state"], dry["moved"], as_dict(dry["streams"])) == ("dry-run", 1, {"s": 1})
    done = as_dict(client.execute_command(*run))
    assert (done["state"], done["moved"]) == ("done", 1)
    assert client.xlen("s:dead") == 0
    assert read(client) == ["1"]


def test_thousands_of_letters_move_while_other_clients_are_served(client: Any) -> None:
    with client.pipeline() as pipe:
        for n in range(3000):
            pipe.xadd("letters", {"n": n})
        pipe.execute()
    run = ("KVSTREAM.REDRIVE", "START", "letters", "TO", "t")
    dry = as_dict(client.execute_command(*run, "DRYRUN"))
    assert (dry["moved"], client.xlen("letters")) == (3000, 3000)
    assert as_dict(client.execute_command(*run))["state"] == "running"

    def state() -> Any:
        return as_dict(client.execute_command("KVSTREAM.REDRIVE", "STATUS", "letters"))["state"]

    until(lambda: state() == "done")
    assert [fields["n"] for _, fields in client.xrange("t")] == [str(n) for n in range(3000)]
    assert client.xlen("letters") == 0
    assert client.execute_command("KVSTREAM.REDRIVE", "CANCEL", "letters") == 0


def test_keys_are_in_order_and_a_blocked_reader_wakes(client: Any) -> None:
    client.xgroup_create("s", "g", mkstream=True)
    policy(client, "ORDERBY", "user")
    ids = [client.xadd("s", {"n": n, "user": user}) for n, user in enumerate("aab")]
    assert read(client) == ["0", "2"]
    assert read(client) == []
    got: list[str] = []
    options = client.connection_pool.connection_kwargs
    blocked: Any = redis.Redis(
        port=options["port"], protocol=options["protocol"], decode_responses=True
    )

    def wait() -> None:
        with closing(blocked):
            got.extend(read(blocked, "v", block=int(PATIENCE_S * 1000)))

    waiter = threading.Thread(target=wait)
    waiter.start()
    until(lambda: client.info("clients")["blocked_clients"] == 1)
    assert client.xack("s", "g", ids[0]) == 1
    waiter.join(PATIENCE_S)
    assert got == ["1"]


def test_thousands_are_acknowledged_in_steps(client: Any) -> None:
    client.xgroup_create("s", "g", mkstream=True)
    policy(client, "ORDERBY", "user")
    with client.pipeline(transaction=False) as pipe:
        for n in range(6000):
            pipe.xadd("s", {"n": n, "user": f"u{n % 3000}"})
        ids = pipe.execute()
    got: list[str] = []
    while found := read(client, count=10_000):
        got += found
    assert got == [str(n) for n in range(3000)]
    assert client.xack("s", "g", *ids[:3000]) == 3000
    assert read(client, count=10_000) == [str(n) for n in range(3000, 6000)]


def test_a_backlog_of_one_key_does_not_delay_a_blocked_reader(client: Any) -> None:
    client.xgroup_create("s", "g", mkstream=True)
    policy(client, "ORDERBY", "user")
    with client.pipeline(transaction=False) as pipe:
        for n in range(25_000):
            pipe.xadd("s", {"n": n, "user": "a"})
        pipe.xadd("s", {"n": "last", "user": "b"})
        pipe.execute()
    assert read(client, count=1) == ["0"]
    assert read(client, block=int(PATIENCE_S * 1000)) == ["last"]
