"""Policies of groups on a server, with plain redis-py: no read bypasses them."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kvstream import Store
from tests.commands.dispatcher import Dispatcher
from tests.opening import change_thresholds
from tests.patience import PATIENCE_S, until
from tests.server.conftest import Served

LONG = 5000
"""A number of entries that a server delivers in steps, if none must be held back."""


def ids(reply: Any) -> list[bytes]:
    if not reply:
        return []
    ((_, entries),) = reply.items() if isinstance(reply, dict) else reply
    return [entry[0] for entry in (entries[0] if isinstance(reply, dict) else entries)]


@pytest.fixture
def client(served: Served) -> Any:
    client = served.client()
    client.xgroup_create("s", "g", "0", mkstream=True)
    return client


def test_a_lease_ends_for_plain_redis_py(client: Any) -> None:
    client.execute_command("KVSTREAM.POLICY SET", "s", "g", "LEASE", 30)
    eid = client.xadd("s", {"f": "v"})
    assert ids(client.xreadgroup("g", "a", {"s": ">"})) == [eid]
    assert ids(client.xreadgroup("g", "b", {"s": ">"}, block=0)) == [eid]
    client.execute_command("KVSTREAM.POLICY SET", "s", "g", "LEASE", 60000)
    (row,) = client.xpending_range("s", "g", "-", "+", 9)
    assert (row["consumer"], row["times_delivered"]) == (b"b", 2)
    assert client.execute_command("KVSTREAM.ACK", "s", "g", "a", eid, 1) == [-1]
    assert client.execute_command("KVSTREAM.ACK", "s", "g", "b", eid, 2) == [1]


def test_a_retry_wakes_a_blocked_client(client: Any) -> None:
    client.execute_command("KVSTREAM.POLICY SET", "s", "g", "BACKOFF", "30")
    eid = client.xadd("s", {"f": "v"})
    client.xreadgroup("g", "a", {"s": ">"})
    assert client.execute_command("XNACK", "s", "g", "FAIL", "IDS", 1, eid) == 1
    assert ids(client.xreadgroup("g", "b", {"s": ">"}, block=0)) == [eid]


def test_a_rate_wakes_the_blocked_clients_in_order(served: Served, client: Any) -> None:
    client.execute_command("KVSTREAM.POLICY SET", "s", "g", "RATE", 1, 40)
    expected = [client.xadd("s", {"f": number}) for number in range(4)]
    given: list[bytes] = []

    def read(name: str) -> None:
        given.extend(ids(served.client().xreadgroup("g", name, {"s": ">"}, count=1, block=0)))

    readers = [threading.Thread(target=read, args=(f"c{number}",)) for number in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(PATIENCE_S)
    assert sorted(given) == expected


def test_a_freed_place_goes_to_the_client_that_has_waited_longest(
    served: Served, client: Any
) -> None:
    client.execute_command("KVSTREAM.POLICY SET", "s", "g", "INFLIGHT", 1)
    first, second = (client.xadd("s", {"f": number}) for number in range(2))
    client.xreadgroup("g", "a", {"s": ">"}, count=1)
    given: list[list[bytes]] = []
    reader = threading.Thread(
        target=lambda: given.append(ids(served.client().xreadgroup("g", "b", {"s": ">"}, block=0)))
    )
    reader.start()
    until(lambda: served.engine.waiters.names())
    assert client.xack("s", "g", first) == 1
    reader.join(PATIENCE_S)
    assert given == [[second]]


def test_a_transaction_sees_the_policy(client: Any) -> None:
    client.execute_command("KVSTREAM.POLICY SET", "s", "g", "INFLIGHT", 1)
    pipe = client.pipeline(transaction=True)
    for number in (1, 2):
        pipe.xadd("s", {"f": number}, id=f"{number}-0")
    for _ in range(2):
        pipe.xreadgroup("g", "a", {"s": ">"}, count=1)
    pipe.execute_command("KVSTREAM.NACK", "s", "g", "a", "DELAY", 100000, "1-0", 1)
    pipe.xreadgroup("g", "a", {"s": ">"}, count=1)
    *_, one, none, nacked, two = pipe.execute()
    assert [ids(one), ids(none), nacked, ids(two)] == [[b"1-0"], [], [1], [b"2-0"]]


WAYS: dict[str, Callable[[Any], Any]] = {
    "COUNT 1": lambda client: client.xreadgroup("g", "a", {"s": ">"}, count=1),
    "COUNT 16": lambda client: client.xreadgroup("g", "a", {"s": ">"}, count=16),
    "COUNT 100": lambda client: client.xreadgroup("g", "a", {"s": ">"}, count=100),
    "no COUNT": lambda client: client.xreadgroup("g", "a", {"s": ">"}),
    "NOACK": lambda client: client.xreadgroup("g", "a", {"s": ">"}, noack=True),
    "BLOCK": lambda client: client.xreadgroup("g", "a", {"s": ">"}, count=1, block=1),
    "BLOCK without COUNT": lambda client: client.xreadgroup("g", "a", {"s": ">"}, block=1),
    "CLAIM": lambda client: client.execute_command(
        *["XREADGROUP", "GROUP", "g", "a", "CLAIM", "0", "STREAMS", "s", ">"]
    ),
    "MAXCOUNT": lambda client: client.execute_command(
        *["XREADGROUP", "GROUP", "g", "a", "MAXCOUNT", "5", "STREAMS", "s", ">"]
    ),
    "two streams": lambda client: client.xreadgroup("g", "a", {"s": ">", "t": ">"}),
    "EXEC": lambda client: client.pipeline().xreadgroup("g", "a", {"s": ">"}, 1).execute()[0],
    "a pipeline": lambda client: [
        reply
        for reply in client.pipeline(transaction=False)
        .xreadgroup("g", "a", {"s": ">"}, 1)
        .xreadgroup("g", "a", {"s": ">"}, 1)
        .execute()
        if reply
    ],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("entries", [3, LONG])
def test_no_read_bypasses_a_policy(client: Any, way: str, entries: int) -> None:
    client.xgroup_create("t", "g", "0", mkstream=True)
    pipe = client.pipeline(transaction=False)
    for _ in range(entries):
        pipe.xadd("s", {"f": "v"})
    pipe.execute()
    client.execute_command("KVSTREAM.POLICY PAUSE", "s", "g")
    assert not WAYS[way](client)
    assert client.xpending("s", "g")["pending"] == 0
    client.execute_command("KVSTREAM.POLICY RESUME", "s", "g")
    client.execute_command("KVSTREAM.POLICY SET", "s", "g", "INFLIGHT", 2)
    WAYS[way](client)
    assert client.xpending("s", "g")["pending"] <= 2


@pytest.mark.parametrize("count", [1, 16, 100, None])
@pytest.mark.parametrize("block", [None, 0.001])
def test_no_read_of_the_library_bypasses_a_policy(
    store: Store, count: int | None, block: float | None
) -> None:
    stream = store.stream("s")
    group = stream.create_group("g", "0")
    stream.add_many([{"f": "v"}] * 200)
    Dispatcher(store.engine).execute([b"KVSTREAM.POLICY", b"PAUSE", b"s", b"g"])
    consumer = group.consumer("a")
    assert consumer.read(count=count, block=block) == []
    assert store.read_group("g", "a", {"s": ">"}, count=count, block=block) == {}
    assert consumer.read(count=count, block=block, claim_min_idle=0) == []
    assert consumer.read(count=count, block=block, noack=True) == []


def test_a_long_read_is_limited_and_the_next_continues(served: Served, client: Any) -> None:
    change_thresholds(served.engine, room_entries=7)
    client.execute_command("KVSTREAM.POLICY SET", "s", "g", "LEASE", 60000)
    expected = [client.xadd("s", {"f": number}) for number in range(10)]
    assert ids(client.xreadgroup("g", "a", {"s": ">"})) == expected[:7]
    client.execute_command("XNACK", "s", "g", "FAIL", "IDS", 7, *expected[:7])
    assert ids(client.xreadgroup("g", "a", {"s": ">"})) == expected[:7]
    assert ids(client.xreadgroup("g", "a", {"s": ">"})) == expected[7:]


def test_repeated_entries_respect_the_limit_of_a_reply(served: Served, client: Any) -> None:
    served.engine.catalog.limits.reply_max = 16 << 20
    client.execute_command("KVSTREAM.POLICY SET", "s", "g", "LEASE", 60000)
    expected = [client.xadd("s", {"f": b"x" * 200_000}) for _ in range(40)]
    first = ids(client.xreadgroup("g", "a", {"s": ">"}))
    assert 0 < len(first) < 40
    client.execute_command("XNACK", "s", "g", "FAIL", "IDS", len(first), *first)
    found: list[bytes] = []
    while some := ids(client.xreadgroup("g", "a", {"s": ">"})):
        assert len(some) < 40
        found += some
    assert found == expected
