"""Tasks of a server's operator, done by a client on the host in its own process."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

import kvstream
from kvstream import Store
from kvstream.inprocess import host as hosts
from tests.inprocess.peers import Peer
from tests.patience import PATIENCE_S, until


def test_shutdown_is_refused_with_an_alternative(here: Peer) -> None:
    client = here.client()
    with pytest.raises(redis.ResponseError, match="closed with its last client"):
        client.shutdown()
    assert client.ping()


def test_a_pipeline_of_any_length_is_one_turn(store: Store, here: Peer) -> None:
    client = here.client()
    before = store.engine.seen_sequence
    with client.pipeline(transaction=False) as pipe:
        for n in range(1000):
            pipe.xadd("s", {"n": n, "text": "x" * 100})
        pipe.execute()
    written = store.engine.seen_sequence
    client.xadd("t", {"a": 1})
    assert before < written
    assert client.xlen("s") == 1000
    row = client.info("commandstats")["cmdstat_xadd"]
    assert row["calls"] == 1001


def test_a_slow_reader_of_monitor_is_disconnected(here: Peer) -> None:
    client = here.client()
    client.config_set("client-output-buffer-limit", "normal 20000 0 0")
    monitor = client.monitor()
    monitor.__enter__()
    for _ in range(20):
        client.set("k", "v" * 2000)
    shown: list[Any] = []
    with pytest.raises(redis.ConnectionError):
        shown.extend(iter(monitor.next_command, None))
    assert 0 < len(shown) < 40
    assert client.ping()
    monitor.__exit__(None, None, None)


def test_clients_beyond_the_limit_are_refused(here: Peer) -> None:
    first, second = here.client(), here.client()
    first.config_set("maxclients", "1")
    with pytest.raises(redis.ConnectionError, match="max number of clients reached"):
        second.ping()
    first.config_set("maxclients", "2")
    assert second.ping()


def test_a_new_password_applies_to_later_clients(here: Peer) -> None:
    first = here.client()
    first.config_set("requirepass", "secret")
    with pytest.raises(redis.AuthenticationError):
        here.client().ping()
    assert here.client(password="secret").ping()
    assert first.acl_whoami() == "default"


def test_an_idle_client_is_closed_after_the_timeout_and_reconnects(here: Peer) -> None:
    client = here.client()
    number = client.client_id()
    other = here.client(health_check_interval=0)
    other.config_set("timeout", "1")
    until(lambda: len(other.client_list()) == 1, "the end of the idle client")
    other.config_set("timeout", "0")
    assert client.client_id() > number


def test_saving_and_syncing(store: Store, here: Peer) -> None:
    client = here.client()
    client.set("k", "v")
    assert client.save()
    assert client.waitaof(1, 0, 0) == [1, 0]
    assert client.execute_command("DEBUG RELOAD") == b"OK"
    assert client.bgrewriteaof()
    assert client.get("k") == b"v"


def test_a_failure_in_the_host_s_thread_is_reported_and_the_host_continues(
    here: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = here.client()
    client.ping()
    host = client.connection_pool.connection_kwargs["handle"].host
    reported: list[BaseException | None] = []
    report = {"excepthook": lambda args: reported.append(args.exc_value)}
    own = SimpleNamespace(**{**vars(threading), **report})
    monkeypatch.setattr(hosts, "threading", own)  # other threads may fail, too

    real, failures = host.executor.tick, [OSError("what nobody expects")]

    def tick() -> None:
        if failures:
            raise failures.pop()
        real()

    before = client.client_id()
    monkeypatch.setattr(host.executor, "tick", tick)
    until(lambda: bool(reported), "the report of the failure")
    assert [str(error) for error in reported] == ["what nobody expects"]
    assert client.client_id() != before  # the connection might have been owed a reply


def test_info_shows_clients_and_waiters(here: Peer, store: Store) -> None:
    client = here.client()
    thread = threading.Thread(target=lambda: client.xread({"s": "$"}, block=20_000))
    thread.start()
    until(lambda: len(store.engine.waiters) == 1, "a waiter")
    other = here.client()
    reply = other.info()
    assert (reply["connected_clients"], reply["blocked_clients"], reply["tcp_port"]) == (2, 1, 0)
    addresses = {row["addr"] for row in other.client_list()}
    assert all(address.startswith("inprocess:") for address in addresses)
    assert len(addresses) == 2
    other.xadd("s", {"a": 1})
    thread.join(PATIENCE_S)


def test_a_reply_may_stay_unread(here: Peer, store: Store) -> None:
    client = here.client()
    connection = client.connection_pool.get_connection()
    connection.send_command("XADD", "s", "*", "a", "1")
    assert len(store.stream("s")) == 1
    client.connection_pool.release(connection)
    assert client.ping()  # on a new connection: the old one has a reply too many
    assert connection.can_read() is False


@pytest.mark.parametrize("parser", ["_HiredisParser", "_RESP2Parser", "_RESP3Parser"])
def test_every_parser_of_redis_py_reads_the_replies(here: Peer, parser: str) -> None:
    from redis import _parsers

    protocol = 2 if parser == "_RESP2Parser" else 3
    client = here.client(parser_class=getattr(_parsers, parser), protocol=protocol)
    value = bytes(range(256)) * 1000
    assert client.set("k", value)
    assert client.get("k") == value
    with client.pipeline() as pipe:
        assert pipe.xadd("s", {"a": value}).xlen("s").execute()[1] == 1
    connection = client.connection_pool.get_connection()
    connection.send_packed_command(connection.pack_commands([("PING",), ("PING",)]))
    assert connection.read_response() in (b"PONG", "PONG")
    assert connection.can_read()  # the reply to the second one
    client.connection_pool.release(connection)
    assert client.ping()
    with pytest.raises(redis.TimeoutError):
        here.client(
            parser_class=getattr(_parsers, parser), protocol=protocol, socket_timeout=0.05
        ).xread({"s": "$"}, block=10_000)


def test_acknowledged_with_always_is_on_disk(tmp_path: Path) -> None:
    with (
        Store.open(tmp_path / "data", durability="always") as store,
        kvstream.connect(store) as client,
    ):
        lengths: list[Any] = []

        def add() -> None:
            for n in range(20):
                client.xadd("s", {"n": n})
                assert store.engine.committer.durable_sequence >= 0
            lengths.append(client.xlen("s"))

        threads = [threading.Thread(target=add) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert max(lengths) == 160
        sequence = store.engine.seen_sequence
        client.xadd("s", {"last": 1})
        assert store.engine.committer.durable_sequence > sequence
        assert store.check() == []


def test_producers_and_consumers_in_many_threads_lose_nothing(store: Store, here: Peer) -> None:
    client = here.client(protocol=2)
    client.xgroup_create("jobs", "g", mkstream=True)
    done: list[bytes] = []

    def produce(name: int) -> None:
        for n in range(100):
            client.xadd("jobs", {"job": f"{name}-{n}"})

    def consume(name: int) -> None:
        deadline = time.monotonic() + 60
        while len(done) < 400 and time.monotonic() < deadline:
            for _, entries in client.xreadgroup("g", f"c{name}", {"jobs": ">"}, 7, block=100):
                with client.pipeline() as pipe:
                    for eid, _ in entries:
                        pipe.xack("jobs", "g", eid)
                    assert sum(pipe.execute()) == len(entries)
                done.extend(fields[b"job"] for _, fields in entries)

    threads = [threading.Thread(target=produce, args=[n]) for n in range(4)]
    threads += [threading.Thread(target=consume, args=[n]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(done) == sorted(f"{a}-{b}".encode() for a in range(4) for b in range(100))
    assert client.xpending("jobs", "g")["pending"] == 0


def test_a_blocked_reader_whose_rights_are_withdrawn_is_refused(store: Store, here: Peer) -> None:
    boss = here.client()
    boss.acl_setuser("u", enabled=True, passwords="+secret", keys="*", commands=["+@all"])
    boss.xgroup_create("a:1", "g", "0", mkstream=True)
    reader, refused = here.client(username="u", password="secret"), []

    def read() -> None:
        with pytest.raises(redis.exceptions.NoPermissionError) as raised:
            reader.xreadgroup("g", "c", {"a:1": ">"}, block=0)
        refused.append(str(raised.value))

    thread = threading.Thread(target=read)
    thread.start()
    until(lambda: boss.info("clients")["blocked_clients"] == 1)
    boss.acl_setuser("u", commands=["-xreadgroup"])
    store.stream("a:1").add({"f": "secret"})  # this thread makes the attempt for the reader
    thread.join(PATIENCE_S)
    assert refused == ["User u has no permissions to run the 'xreadgroup' command"]
    assert boss.xpending("a:1", "g")["pending"] == 0
    assert boss.acl_log()[0]["object"] == "xreadgroup"
