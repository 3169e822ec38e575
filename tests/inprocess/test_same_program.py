"""Programs of redis-py, each unchanged on a redis-server and on a store of this process."""

import threading
import time
from contextlib import suppress
from typing import Any

import pytest
import redis

from tests.inprocess.peers import Peer
from tests.patience import PATIENCE_S, until


def fields_of(entries: Any) -> list[dict[bytes, bytes]]:
    return [fields for _, fields in entries]


def news_of(reply: Any) -> list[tuple[bytes, list[dict[bytes, bytes]]]]:
    """Return the entries of a reply to XREAD or XREADGROUP in either protocol."""
    if isinstance(reply, dict):  # RESP3: the entries of a stream are in one more list
        return [(key, fields_of(entries[0])) for key, entries in reply.items()]
    return [(key, fields_of(entries)) for key, entries in reply]


# --- streams ------------------------------------------------------------------------------------


def test_entries_are_added_read_trimmed_and_deleted(client: Any) -> None:
    ids = [client.xadd("orders", {"number": number, "sku": b"\x00\xff"}) for number in range(10)]
    assert client.xlen("orders") == 10
    assert client.xrange("orders", count=1) == [(ids[0], {b"number": b"0", b"sku": b"\x00\xff"})]
    assert [eid for eid, _ in client.xrevrange("orders", count=2)] == [ids[9], ids[8]]
    assert news_of(client.xread({"orders": ids[8]})) == [
        (b"orders", [{b"number": b"9", b"sku": b"\x00\xff"}])
    ]
    assert client.xdel("orders", ids[3], ids[4]) == 2
    assert client.xtrim("orders", maxlen=5, approximate=False) == 3
    assert client.xinfo_stream("orders")["length"] == 5
    assert client.xadd("orders", {"a": "b"}, id="9999999999999-1", nomkstream=True)
    assert client.type("orders") == b"stream"


def test_replies_are_decoded_on_request(peer: Peer, protocol: int) -> None:
    client = peer.client(decode_responses=True, protocol=protocol)
    eid = client.xadd("täglich", {"größe": "µ"})
    assert isinstance(eid, str)
    assert client.xrange("täglich") == [(eid, {"größe": "µ"})]
    assert client.set("k", "ä")
    assert client.get("k") == "ä"
    with pytest.raises(UnicodeDecodeError):
        client.echo(b"\xff")
    assert client.ping()


def test_large_values_and_large_replies_are_complete(client: Any) -> None:
    value = bytes(range(256)) * 4096 * 3
    client.xadd("big", {"value": value, "view": memoryview(value)[:100_000]})
    [(_, fields)] = client.xrange("big")
    assert fields == {b"value": value, b"view": value[:100_000]}
    with client.pipeline(transaction=False) as pipe:
        for n in range(5000):
            pipe.xadd("many", {"n": n, "text": "x" * 100})
        pipe.execute()
    assert [int(row[b"n"]) for row in fields_of(client.xrange("many"))] == list(range(5000))


# --- pipelines and transactions -----------------------------------------------------------------


@pytest.mark.parametrize("transaction", [True, False])
def test_a_pipeline_answers_command_by_command(client: Any, transaction: bool) -> None:
    with client.pipeline(transaction=transaction) as pipe:
        pipe.xadd("s", {"a": 1})
        pipe.get("s")
        pipe.xlen("s")
        replies = pipe.execute(raise_on_error=False)
    assert isinstance(replies[0], bytes)
    assert isinstance(replies[1], redis.ResponseError)
    assert "WRONGTYPE" in str(replies[1])
    assert replies[2] == 1
    with client.pipeline(transaction=transaction) as pipe, pytest.raises(redis.ResponseError):
        pipe.get("s").xlen("s").execute()


def test_a_watched_key_that_changes_undoes_a_transaction(client: Any) -> None:
    with client.pipeline() as pipe:
        pipe.watch("cursor")
        assert pipe.get("cursor") is None
        client.set("cursor", "7")
        pipe.multi()
        pipe.set("cursor", "8")
        with pytest.raises(redis.WatchError):
            pipe.execute()
    assert client.get("cursor") == b"7"


# --- blocking -----------------------------------------------------------------------------------


def test_a_blocked_read_gets_what_another_thread_adds(peer: Peer, protocol: int) -> None:
    reader = peer.client(protocol=protocol, socket_timeout=None)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(reader.xread({"s": "$"}, block=20_000)))
    thread.start()
    other = peer.client()
    _await_blocked(other, 1)
    other.xadd("s", {"n": 1})
    thread.join(PATIENCE_S)
    assert [news_of(reply) for reply in found] == [[(b"s", [{b"n": b"1"}])]]


def test_a_blocked_read_without_entries_ends_at_its_timeout(peer: Peer) -> None:
    client = peer.client(socket_timeout=None)
    begun = time.monotonic()
    assert not client.xread({"s": "$"}, block=200)
    assert 0.15 < time.monotonic() - begun < 20
    assert client.ping()


def test_a_blocked_read_is_ended_by_client_unblock(peer: Peer) -> None:
    reader, other = peer.client(socket_timeout=None, client_name="reader"), peer.client()
    failures: list[Exception] = []

    def read() -> None:
        try:
            reader.xread({"s": "$"}, block=0)
        except redis.ResponseError as error:
            failures.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    _await_blocked(other, 1)
    [number] = [row["id"] for row in other.client_list() if row["name"] == "reader"]
    assert other.client_unblock(int(number), error=True)
    thread.join(PATIENCE_S)
    assert [str(failure) for failure in failures] == [
        "UNBLOCKED client unblocked via CLIENT UNBLOCK"
    ]


def test_a_socket_timeout_ends_a_read_and_the_connection(peer: Peer) -> None:
    client = peer.client(socket_timeout=0.5, client_name="impatient", retry=None)
    with pytest.raises(redis.TimeoutError):
        client.xread({"s": "$"}, block=10_000)
    other = peer.client()
    _await_blocked(other, 0)

    def answers() -> bool:
        with suppress(redis.TimeoutError):  # half a second may be too short for any reply
            return bool(client.ping())
        return False

    until(answers)


def _await_blocked(client: Any, count: int) -> None:
    until(lambda: client.info("clients")["blocked_clients"] == count)


# --- keys and strings beside streams ------------------------------------------------------------


# --- connections --------------------------------------------------------------------------------


def test_errors_have_the_classes_of_redis_py(client: Any) -> None:
    client.set("k", "v")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        client.xadd("k", {"a": 1})
    client.xgroup_create("s", "g", mkstream=True)
    with pytest.raises(redis.ResponseError, match="BUSYGROUP"):
        client.xgroup_create("s", "g")
    with pytest.raises(redis.ResponseError, match="NOGROUP"):
        client.xreadgroup("none", "c", {"s": ">"})
    with pytest.raises(redis.ResponseError, match="unknown command"):
        client.execute_command("NOSUCH", "x")
    with pytest.raises(redis.DataError):
        client.xadd("s", {})
    assert client.ping()


def test_a_callback_of_the_program_sees_the_reply(client: Any) -> None:
    client.set_response_callback("XLEN", lambda reply, **options: f"<{reply}>")
    client.xadd("s", {"a": 1})
    assert client.xlen("s") == "<1>"


def test_names_numbers_and_lists_of_clients(peer: Peer, protocol: int) -> None:
    client = peer.client(client_name="worker", protocol=protocol)
    assert client.client_getname() in ("worker", b"worker")
    assert client.client_setname("other")
    row = client.client_info()
    assert (row["name"], int(row["id"]), int(row["db"])) == ("other", client.client_id(), 0)
    assert str(row.get("lib-name", "redis-py")).startswith("redis-py")
    assert [each["name"] for each in client.client_list()] == ["other"]


def test_a_killed_client_reconnects(peer: Peer) -> None:
    victim, killer = peer.client(client_name="victim"), peer.client()
    before = victim.client_id()
    assert killer.client_kill_filter(_id=before) == 1
    assert victim.client_id() != before
    assert victim.client_getname() in ("victim", b"victim")


def test_a_client_may_kill_itself(peer: Peer) -> None:
    client = peer.client()
    number = client.client_id()
    assert client.client_kill_filter(_id=number, skipme=False) == 1
    assert client.client_id() != number


def test_a_client_of_one_connection_keeps_it(peer: Peer) -> None:
    client = peer.client(single_connection_client=True)
    number = client.client_id()
    assert client.select(3)
    client.set("k", "v")
    assert (client.client_id(), client.client_info()["db"]) == (number, 3)


def test_the_connections_of_a_pool_are_limited(peer: Peer) -> None:
    client = peer.client(max_connections=1, socket_timeout=None)
    thread = threading.Thread(target=lambda: client.xread({"s": "$"}, block=20_000))
    thread.start()
    other = peer.client()
    _await_blocked(other, 1)
    with pytest.raises(redis.ConnectionError, match="Too many connections"):
        client.ping()
    other.xadd("s", {"a": 1})
    thread.join(PATIENCE_S)
    assert client.ping()


def test_a_blocking_pool_waits_for_a_connection(peer: Peer) -> None:
    pool: Any = redis.BlockingConnectionPool
    client = peer.client(pool=pool, max_connections=2, timeout=20, socket_timeout=None)
    lengths: list[Any] = []

    def add() -> None:
        for n in range(50):
            client.xadd("s", {"n": n})
        lengths.append(client.xlen("s"))

    threads = [threading.Thread(target=add) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert max(lengths) == 300


def test_a_connection_tests_its_health(peer: Peer) -> None:
    client = peer.client(health_check_interval=1)
    number = client.client_id()
    connection = client.connection_pool.get_connection()
    connection.next_health_check = 0
    client.connection_pool.release(connection)
    assert client.client_id() == number


def test_monitor_shows_what_others_do(peer: Peer) -> None:
    client = peer.client()
    client.ping()
    with client.monitor() as monitor:
        client.xadd("s", {"a": 'with "quotes"'})
        while not (seen := monitor.next_command())["command"].startswith("XADD"):
            pass  # the handshake of the connection that it used
    assert seen["command"].startswith("XADD s * a with")
    assert (seen["db"], seen["client_type"]) == (0, "tcp")


def test_a_closed_client_reconnects(peer: Peer) -> None:
    client = peer.client()
    client.xadd("s", {"a": 1})
    client.close()
    assert client.xlen("s") == 1


def test_the_peer_tells_of_itself(client: Any) -> None:
    assert client.info("server")["redis_mode"] == "standalone"
    assert client.config_get("maxclients")
    assert client.time()[0] > 1_000_000_000
    assert client.command_count() > 50
    assert client.echo("hello") == b"hello"
    assert client.acl_whoami() in (b"default", "default")
