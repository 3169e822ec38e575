"""redis-py's PubSub, sync and asyncio: programs that run alike on a redis-server and in process."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
import redis

import kvstream
from kvstream import Store
from tests.inprocess.peers import Peer
from tests.inprocess.test_tasks import run
from tests.patience import PATIENCE_S, until


def next_of(pubsub: Any, most_s: float = PATIENCE_S) -> tuple[str, Any, Any]:
    """Return the kind, channel and text of the next message; it wakes the reader."""
    message = pubsub.get_message(timeout=most_s)
    while message is None:
        message = pubsub.get_message(timeout=most_s)
    return message["type"], message["channel"], message["data"]


def test_messages_of_channels_and_patterns(client: Any) -> None:
    with client.pubsub() as pubsub:
        pubsub.subscribe("news", "sport")
        assert [next_of(pubsub) for _ in range(2)] == [
            ("subscribe", b"news", 1),
            ("subscribe", b"sport", 2),
        ]
        pubsub.psubscribe("n*")
        assert next_of(pubsub) == ("psubscribe", b"n*", 3)
        assert client.publish("news", "\x00\xff") == 2
        assert client.publish("nothing", "a") == 1
        assert client.publish("weather", "a") == 0
        data = "\x00\xff".encode()
        assert [next_of(pubsub) for _ in range(3)] == [
            ("message", b"news", data),
            ("pmessage", b"news", data),
            ("pmessage", b"nothing", b"a"),
        ]
        assert client.pubsub_channels() == [b"news", b"sport"] or client.pubsub_channels()
        assert client.pubsub_numsub("news", "none") == [(b"news", 1), (b"none", 0)]
        assert client.pubsub_numpat() == 1
        pubsub.unsubscribe("news")
        pubsub.punsubscribe()
        assert [next_of(pubsub)[:2] for _ in range(2)] == [
            ("unsubscribe", b"news"),
            ("punsubscribe", b"n*"),
        ]
        assert client.publish("news", "late") == 0
        assert pubsub.get_message() is None
    until(lambda: client.pubsub_channels() == [], "the end of the subscription")


def test_a_message_wakes_a_waiting_reader(client: Any) -> None:
    with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe("c")
        pubsub.get_message(timeout=PATIENCE_S)
        heard: list[Any] = []
        reader = threading.Thread(target=lambda: heard.append(next_of(pubsub)))
        reader.start()
        until(lambda: client.publish("c", "wake") == 1)
        reader.join(PATIENCE_S)
        assert heard == [("message", b"c", b"wake")]


def test_listening_and_handlers(client: Any) -> None:
    heard: list[Any] = []
    with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe("plain", handled=lambda message: heard.append(message["data"]))
        for channel in ("handled", "plain"):
            until(lambda c=channel: client.pubsub_numsub(c)[0][1] == 1)  # type: ignore[misc]
            client.publish(channel, channel)
        found = next(pubsub.listen())
        assert found["data"] == b"plain"
        assert heard == [b"handled"]


def test_a_thread_of_redis_py_gets_messages(client: Any) -> None:
    heard: list[Any] = []
    pubsub = client.pubsub()
    pubsub.psubscribe(**{"c*": lambda message: heard.append(message["data"])})
    thread = pubsub.run_in_thread(sleep_time=PATIENCE_S, daemon=True)
    until(lambda: client.publish("c1", "a") == 1)
    until(lambda: heard == [b"a"], "the message")
    thread._running.clear()
    client.publish("c1", "b")  # wakes it long before its timeout
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_subscriber_may_ping_and_comes_back(peer: Peer) -> None:
    client = peer.client(health_check_interval=1)
    with client.pubsub() as pubsub:
        pubsub.subscribe("c")
        assert next_of(pubsub) == ("subscribe", b"c", 1)
        pubsub.ping("text")
        assert next_of(pubsub) == ("pong", None, b"text")
        pubsub.connection.disconnect()  # it subscribes again
        assert next_of(pubsub) == ("subscribe", b"c", 1)
        client.publish("c", "m")
        assert next_of(pubsub) == ("message", b"c", b"m")


def test_writes_of_the_library_publish_events(store: Store, here: Peer) -> None:
    client = here.client()
    client.config_set("notify-keyspace-events", "Et")
    with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.psubscribe("*")
        until(lambda: client.pubsub_numpat() == 1)
        store.stream("s").add({"n": "1"})
        assert next_of(pubsub)[1:] == (b"__keyevent@0__:xadd", b"s")
    client.close()
    until(lambda: store.engine.catalog.wanted_events == 0, "the end of the host")


def test_closing_the_store_ends_the_subscription(tmp_path: Path) -> None:
    client: Any = kvstream.connect(tmp_path / "store")
    pubsub = client.pubsub()
    pubsub.subscribe("c")
    assert next_of(pubsub) == ("subscribe", b"c", 1)
    errors: list[BaseException] = []

    def listen() -> None:
        try:
            next(pubsub.listen())
        except (redis.ConnectionError, ConnectionError) as error:
            errors.append(error)

    reader = threading.Thread(target=listen)
    reader.start()
    client.close()
    reader.join(PATIENCE_S)
    assert errors
    assert not reader.is_alive()


# --- asyncio ------------------------------------------------------------------------------------


async def next_in_task(pubsub: Any) -> tuple[str, Any, Any]:
    while (message := await pubsub.get_message(timeout=PATIENCE_S)) is None:
        pass
    return message["type"], message["channel"], message["data"]


def test_tasks_get_messages(peer: Peer, protocol: int) -> None:
    async def program() -> None:
        async with peer.tasks_client(protocol=protocol) as client, client.pubsub() as pubsub:
            await pubsub.subscribe("c")
            await pubsub.psubscribe("p*")
            assert await next_in_task(pubsub) == ("subscribe", b"c", 1)
            assert await next_in_task(pubsub) == ("psubscribe", b"p*", 2)
            waiting = asyncio.create_task(next_in_task(pubsub))
            await asyncio.sleep(0)
            assert await client.publish("c", "m") == 1
            assert await waiting == ("message", b"c", b"m")
            assert await client.publish("p1", "n") == 1
            assert await next_in_task(pubsub) == ("pmessage", b"p1", b"n")
            await pubsub.unsubscribe()
            assert (await next_in_task(pubsub))[0] == "unsubscribe"

    run(program())


def test_tasks_listen_with_handlers(peer: Peer, protocol: int) -> None:
    async def program() -> None:
        heard: asyncio.Queue[Any] = asyncio.Queue()
        async with peer.tasks_client(protocol=protocol) as client, client.pubsub() as pubsub:
            await pubsub.subscribe(c=heard.put_nowait)
            task = asyncio.create_task(pubsub.run())
            while await client.publish("c", "m") == 0:
                await asyncio.sleep(0)
            assert (await heard.get())["data"] == b"m"
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            listener = client.pubsub(ignore_subscribe_messages=True)
            await listener.subscribe("d")
            while await client.publish("d", "m") == 0:
                await asyncio.sleep(0)
            async for message in listener.listen():
                assert message["data"] == b"m"
                break
            await listener.aclose()

    run(program())


def test_tasks_get_the_events_of_expired_keys(peer: Peer) -> None:
    async def program() -> None:
        async with peer.tasks_client() as client, client.pubsub() as pubsub:
            await client.config_set("notify-keyspace-events", "Ex")
            await pubsub.psubscribe("__keyevent@0__:expired")
            await next_in_task(pubsub)
            await client.set("k", "v", px=5)
            assert (await next_in_task(pubsub))[2] == b"k"
            await client.config_set("notify-keyspace-events", "")

    run(program())


def test_a_thread_publishes_to_a_task(store: Store, here: Peer) -> None:
    sync = here.client()

    async def program() -> None:
        async with here.tasks_client() as client, client.pubsub() as pubsub:
            await pubsub.subscribe("c")
            await next_in_task(pubsub)
            assert await asyncio.to_thread(sync.publish, "c", "m") == 1
            assert (await next_in_task(pubsub))[2] == b"m"

    run(program())
