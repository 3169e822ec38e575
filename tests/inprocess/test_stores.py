"""The store behind clients: opened, shared and closed; the library's own face beside it."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import redis

import kvstream
from kvstream import Durability, InvalidArgument, Store, StoreClosed, StoreLocked
from tests.inprocess.peers import Peer
from tests.patience import PATIENCE_S, until


def sound(directory: Path) -> Store:
    """Open a store that must be closed everywhere else, and check its entries."""
    store = Store.open(directory)
    assert store.check() == []
    return store


# --- opening and closing ------------------------------------------------------------------------


def test_a_client_is_a_real_one_and_its_store_closes_with_it(tmp_path: Path) -> None:
    with kvstream.connect(tmp_path / "data", durability="no") as client:
        assert type(client) is redis.Redis
        client.xadd("s", {"a": 1})
        with pytest.raises(StoreLocked):
            Store.open(tmp_path / "data")
    with sound(tmp_path / "data") as store:
        assert store.size() == 1


def test_clients_of_one_directory_share_its_store(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    first = kvstream.connect(str(tmp_path / "data"))
    second = kvstream.connect(bytes(tmp_path / "link"), db=1)
    first.set("k", "v")
    assert (first.dbsize(), second.dbsize(), len(first.client_list())) == (1, 0, 2)
    first.close()
    assert second.set("k", "v")
    second.close()
    sound(tmp_path / "data").close()


def test_other_options_for_an_open_store_are_refused(tmp_path: Path) -> None:
    with kvstream.connect(tmp_path / "data", durability="always", databases=4) as first:
        kvstream.connect(tmp_path / "data", databases=4).close()
        with pytest.raises(
            InvalidArgument, match=r"is open in this process without durability='no'"
        ):
            kvstream.connect(tmp_path / "data", durability="no")
        assert first.ping()
    with kvstream.connect(tmp_path / "data", durability="no") as second:
        assert second.config_get("appendfsync") == {"appendfsync": "no"}


def test_a_closed_client_reopens_the_store_with_its_next_command(tmp_path: Path) -> None:
    client = kvstream.connect(tmp_path / "data")
    client.xadd("s", {"a": 1})
    client.close()
    sound(tmp_path / "data").close()
    assert client.xlen("s") == 1
    client.connection_pool.disconnect()
    sound(tmp_path / "data").close()


def test_an_unreferenced_client_closes_its_store(tmp_path: Path) -> None:
    client = kvstream.connect(tmp_path / "data")
    client.xadd("s", {"a": 1})
    del client
    sound(tmp_path / "data").close()


def test_the_error_of_a_failed_opening_is_raised(tmp_path: Path) -> None:
    with Store.open(tmp_path / "data"), pytest.raises(StoreLocked):
        kvstream.connect(tmp_path / "data")
    with pytest.raises(kvstream.NoSuchStore):
        kvstream.connect(tmp_path / "none", create=False)
    with kvstream.connect(tmp_path / "data", read_only=True) as client:
        with pytest.raises(redis.ResponseError, match="MISCONF"):
            client.set("k", "v")
        assert client.dbsize() == 0


def test_a_store_that_was_taken_meanwhile_is_a_lost_connection(tmp_path: Path) -> None:
    client = kvstream.connect(tmp_path / "data")
    client.close()
    with Store.open(tmp_path / "data"), pytest.raises(redis.ConnectionError, match="StoreLocked"):
        client.ping()
    assert client.ping()
    client.close()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"decode_response": True}, TypeError, "decode_response"),
        (
            {"connection_pool": None},
            InvalidArgument,
            "connection_pool: .* is the class of the pool",
        ),
        ({"cache_config": None}, InvalidArgument, "cache_config: .* CLIENT TRACKING"),
        ({"durability": "sometimes"}, InvalidArgument, "durability must be one of"),
        ({"databases": -1}, InvalidArgument, "databases"),
    ],
)
def test_unknown_options_are_refused_at_once(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    for connect in (kvstream.connect, kvstream.connect_async):
        with pytest.raises(error, match=text):
            connect(tmp_path / "data", **options)
    assert not (tmp_path / "data").exists()


def test_options_for_the_address_of_a_server_have_no_effect(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"host": "10.0.0.1", "port": 6379, "ssl": True, "ssl_certfile": "x"}
    with kvstream.connect(tmp_path / "data", socket_keepalive=True, **settings) as client:
        assert client.ping()


# --- beside the Store ---------------------------------------------------------------------------


def test_the_library_and_the_client_see_each_other_s_writes(store: Store, here: Peer) -> None:
    client = here.client(decode_responses=True)
    eid = store.stream("s").add({"by": "store"})
    assert client.xrange("s") == [(str(eid), {"by": "store"})]
    client.xadd("s", {"by": "client"})
    assert [entry.fields for entry in store.stream("s").range()] == [
        {b"by": b"store"},
        {b"by": b"client"},
    ]


def test_a_client_of_a_store_is_in_the_store_s_database(store: Store, here: Peer) -> None:
    five = kvstream.connect(store.select(5))
    five.set("k", "v")
    assert (store.select(5).keys(), store.keys()) == ([b"k"], [])
    five.close()
    assert store.select(5).exists("k")
    with pytest.raises(InvalidArgument, match="open already"):
        kvstream.connect(store, durability="no")


@pytest.mark.parametrize("durability", [Durability.ALWAYS, Durability.NO])
def test_adds_of_the_library_and_of_the_client_wake_each_other_s_readers(
    tmp_path: Path, durability: Durability
) -> None:
    with (
        Store.open(tmp_path / "data", durability=durability) as store,
        kvstream.connect(store, protocol=2) as client,
    ):
        found: list[Any] = []
        reads = [
            threading.Thread(target=lambda: found.append(client.xread({"s": "$"}, block=20_000))),
            threading.Thread(target=lambda: found.append(store.stream("t").read(block=20))),
        ]
        for read in reads:
            read.start()
        until(lambda: len(store.engine.waiters) == 2, "two waiters")
        store.stream("s").add({"by": "store"})
        reads[0].join(PATIENCE_S)
        assert found[0][0][1][0][1] == {b"by": b"store"}
        client.xadd("t", {"by": "client"})
        reads[1].join(PATIENCE_S)
        assert found[1][0].fields == {b"by": b"client"}
        assert store.check() == []


def test_a_request_inside_a_transaction_of_the_store_is_refused(store: Store, here: Peer) -> None:
    client = here.client()
    client.ping()
    with store.transaction():
        store.stream("s").add({"a": 1})
        with pytest.raises(InvalidArgument, match="a transaction of the store is open"):
            client.xadd("s", {"a": 2})
        client.close()
    assert (client.xlen("s"), client.xadd("t", {"a": 1}) is not None) == (1, True)


def test_a_request_waits_for_the_transaction_of_another_thread(store: Store, here: Peer) -> None:
    client = here.client()
    client.ping()
    lengths: list[Any] = []
    ask = threading.Thread(target=lambda: lengths.append(client.xlen("s")))
    with store.transaction():
        store.stream("s").add({"a": 1})
        ask.start()
        time.sleep(0.05)
        assert lengths == []
        store.stream("s").add({"a": 2})
    ask.join(PATIENCE_S)
    assert lengths == [2]


def test_a_store_that_is_closed_under_its_clients_is_a_lost_connection(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data")
    client, idle = kvstream.connect(store), kvstream.connect(store)
    assert idle.ping()
    failures: list[Exception] = []

    def read() -> None:
        try:
            client.xread({"s": "$"}, block=0)
        except redis.RedisError as error:
            failures.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    until(lambda: len(store.engine.waiters) == 1, "a waiter")
    store.close()
    thread.join(PATIENCE_S)
    assert len(failures) == 1
    assert "the store is closed" in str(failures[0])
    for each in (client, idle, idle):
        with pytest.raises(redis.ConnectionError, match="the store is closed"):
            each.ping()
        each.close()
    with pytest.raises(StoreClosed):
        kvstream.connect(store)


def test_a_client_that_is_closed_ends_the_waits_of_its_threads(store: Store, here: Peer) -> None:
    client = here.client()
    failures: list[Exception] = []

    def read() -> None:
        try:
            client.xread({"s": "$"}, block=0)
        except redis.ConnectionError as error:
            failures.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    until(lambda: len(store.engine.waiters) == 1, "a waiter")
    client.close()
    thread.join(PATIENCE_S)
    assert len(failures) == 1
    assert len(store.engine.waiters) == 0


class Struck(int):
    """A number during whose conversion to text a signal's handler raises."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


def test_an_interrupt_as_a_command_is_packed_is_raised(tmp_path: Path) -> None:
    with kvstream.connect(tmp_path) as r:
        with pytest.raises(KeyboardInterrupt):
            r.set("k", Struck(7))
        assert r.set("k", 7) is True
        assert r.set("k", 7.5) is True
        assert r.get("k") == b"7.5"
        with pytest.raises(redis.DataError):
            r.set("k", True)


def test_the_option_for_text_is_that_of_redis(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'decode_responses'"):
        kvstream.connect(tmp_path / "data", decode=True)
