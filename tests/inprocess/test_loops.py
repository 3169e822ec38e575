"""asyncio's clients in this process: the loop never waits for the store."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

import kvstream
from kvstream import InvalidArgument, Store, StoreLocked
from kvstream.engine.turns import Turn
from kvstream.inprocess.host import Host
from kvstream.inprocess.shared_store import Handle
from tests.inprocess.peers import Peer
from tests.inprocess.test_stores import sound
from tests.inprocess.test_tasks import run
from tests.patience import PATIENCE_S, until

BEATS = 200
"""A loop that waited for the store would not reach this number while a thread holds it."""


def test_the_loop_runs_while_the_store_is_held(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data", durability="always")
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with store.transaction():
            held.set()
            release.wait(PATIENCE_S)

    async def program() -> None:
        client: Any = kvstream.connect_async(store)
        await client.ping()
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(PATIENCE_S)
        adding = [asyncio.create_task(client.xadd("s", {"n": n})) for n in range(10)]
        for _ in range(BEATS):
            await asyncio.sleep(0.005)
        assert thread.is_alive()
        assert not any(task.done() for task in adding)
        release.set()
        assert len(set(await asyncio.gather(*adding))) == 10
        thread.join(PATIENCE_S)
        await client.aclose()

    run(program())
    assert store.check() == []
    store.close()


def test_the_store_opens_with_the_first_command_and_closes_with_its_client(tmp_path: Path) -> None:
    async def program() -> None:
        client: Any = kvstream.connect_async(tmp_path / "data", decode_responses=True)
        assert type(client) is redis.asyncio.Redis
        assert not (tmp_path / "data").exists()
        async with client:
            await client.xadd("s", {"a": 1})
            with pytest.raises(StoreLocked):
                Store.open(tmp_path / "data")
        sound(tmp_path / "data").close()
        assert await client.xlen("s") == 1
        await client.aclose()

    run(program())
    sound(tmp_path / "data").close()


def test_threads_and_tasks_share_a_store(tmp_path: Path) -> None:
    found: list[Any] = []
    plain: Any = kvstream.connect(tmp_path / "data", protocol=2)
    thread = threading.Thread(target=lambda: found.append(plain.xread({"s": "$"}, block=20_000)))

    async def program() -> None:
        async with kvstream.connect_async(tmp_path / "data") as client:
            thread.start()
            while (await client.info("clients"))["blocked_clients"] != 1:
                await asyncio.sleep(0.005)
            await client.xadd("s", {"by": "a task"})
            await asyncio.to_thread(thread.join, PATIENCE_S)

    run(program())
    assert found[0][0][1][0][1] == {b"by": b"a task"}
    plain.close()
    sound(tmp_path / "data").close()


def test_a_blocking_pool_waits_for_a_connection(store: Store, here: Peer) -> None:
    async def program() -> None:
        pool = redis.asyncio.BlockingConnectionPool
        async with here.tasks_client(pool=pool, max_connections=2, timeout=20) as client:
            await asyncio.gather(*(client.xadd("s", {"n": n}) for n in range(50)))
            assert len(await client.client_list()) <= 2

    run(program())
    assert len(store.stream("s")) == 50


def test_each_loop_has_a_client_of_its_own(tmp_path: Path) -> None:
    async def program() -> None:
        async with kvstream.connect_async(tmp_path / "data") as client:
            await client.incr("n")

    for _ in range(3):
        asyncio.run(program())
    with sound(tmp_path / "data") as store, kvstream.connect(store) as client:
        assert client.get("n") == b"3"


def test_a_request_inside_a_transaction_of_the_store_is_refused(store: Store, here: Peer) -> None:
    async def program() -> None:
        async with here.tasks_client() as client:
            await client.ping()
            refused = pytest.raises(InvalidArgument, match="a transaction of the store is open")
            with store.transaction(), refused:
                await client.ping()
            assert await client.ping()

    run(program())


def test_a_store_that_is_closed_under_its_tasks_is_a_lost_connection(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data")

    async def program() -> None:
        client: Any = kvstream.connect_async(store, socket_timeout=None)
        reading = asyncio.create_task(client.xread({"s": "$"}, block=0))
        while not len(store.engine.waiters):
            await asyncio.sleep(0.005)
        await asyncio.to_thread(store.close)
        with pytest.raises(redis.RedisError, match="the store is closed"):
            await reading
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                await client.ping()
        await client.aclose()

    run(program())


def test_a_failed_opening_is_a_lost_connection(tmp_path: Path) -> None:
    async def program() -> None:
        client: Any = kvstream.connect_async(tmp_path / "data")
        taken = pytest.raises(redis.ConnectionError, match="StoreLocked")
        with Store.open(tmp_path / "data"), taken:
            await client.ping()
        assert await client.ping()
        await client.aclose()

    run(program())
    sound(tmp_path / "data").close()


def _stop_with_a_client_open(directory: Path, closes: bool) -> None:
    """Run a loop, and stop it while a task of its client waits for news."""
    loop = asyncio.new_event_loop()

    async def program() -> None:
        client: Any = kvstream.connect_async(directory)
        reading = asyncio.create_task(client.xread({"s": "$"}, block=0))
        while (await client.info("clients"))["blocked_clients"] == 0:
            await asyncio.sleep(0.005)
        loop.stop()
        await reading

    task = loop.create_task(program())
    loop.run_forever()
    assert not task.done()
    if closes:
        loop.close()


def _collect() -> None:
    gc.collect()


def _handle_of(client: Any) -> Handle:
    handle: Handle = client.connection_pool.connection_kwargs["handle"]
    return handle


@pytest.fixture
def abandoned(tmp_path: Path) -> Iterator[Host]:
    """The host of a client that only the garbage collector can find, when it is called."""
    gc.disable()
    client: Any = kvstream.connect(tmp_path / "data")
    host = _handle_of(client).host
    assert host is not None
    cycle: list[object] = [client]
    cycle.append(cycle)
    del client, cycle
    yield host
    gc.enable()


# What Python says of loops and connections that nobody has closed.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("closes", [True, False])
def test_stopped_loops_with_open_clients_release_the_store(tmp_path: Path, closes: bool) -> None:
    for _ in range(5):
        _stop_with_a_client_open(tmp_path / "data", closes)
    sound(tmp_path / "data").close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("collects", [True, False])
def test_a_subscriber_of_a_closed_loop_is_disconnected(tmp_path: Path, collects: bool) -> None:
    kept: list[Any] = []

    async def program() -> None:
        client: Any = kvstream.connect_async(tmp_path / "data")
        pubsub = client.pubsub()
        await pubsub.subscribe("news")
        await pubsub.get_message(timeout=PATIENCE_S)
        kept.append(pubsub)

    with kvstream.connect(tmp_path / "data") as client:
        asyncio.run(program())
        if collects:
            kept.clear()
            gc.collect()
        else:
            client.publish("news", "nobody reads it")
        until(lambda: client.pubsub_channels() == [])
        assert client.publish("news", "nobody") == 0
        kept.clear()


def test_an_unreferenced_task_keeps_waiting(tmp_path: Path) -> None:
    found: list[Any] = []

    async def program() -> None:
        async with kvstream.connect_async(tmp_path / "data") as client:

            async def read() -> None:
                async with kvstream.connect_async(tmp_path / "data") as own:
                    found.append(await own.xread({"s": "$"}, block=0))

            asyncio.create_task(read())  # noqa: RUF006
            while (await client.info("clients"))["blocked_clients"] == 0:
                await asyncio.sleep(0.005)
            gc.collect()
            await client.xadd("s", {"a": 1})
            while not found:
                await asyncio.sleep(0.005)

    run(program())
    sound(tmp_path / "data").close()


def test_a_client_collected_during_a_turn_releases_the_store(
    tmp_path: Path, abandoned: Host
) -> None:
    def collect_in_a_turn() -> None:
        turn = Turn(abandoned.engine)
        turn.run(lambda txn: _collect())
        turn.commit()

    abandoned.enqueue(collect_in_a_turn)
    until(lambda: bool(abandoned.ended))
    sound(tmp_path / "data").close()


def test_a_collected_client_never_blocks_the_host(tmp_path: Path, abandoned: Host) -> None:
    other: Any = kvstream.connect(tmp_path / "data")
    collected = threading.Event()
    with _handle_of(other)._shared._lock:  # another client opens or closes the store
        abandoned.enqueue(_collect)
        abandoned.enqueue(collected.set)
        assert collected.wait(PATIENCE_S)
        assert other.ping()
    other.close()
    sound(tmp_path / "data").close()
