"""Programs of redis.asyncio: each runs unchanged on a redis-server and in this process."""

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
import redis

from tests.inprocess.peers import Peer
from tests.inprocess.test_same_program import news_of
from tests.patience import PATIENCE_S


def run(program: Coroutine[Any, Any, None]) -> None:
    """Run a program that must end."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await program

    asyncio.run(bounded())


@pytest.mark.parametrize("decode", [True, False])
def test_streams_and_groups(peer: Peer, protocol: int, decode: bool) -> None:
    async def program() -> None:
        async with peer.tasks_client(protocol=protocol, decode_responses=decode) as client:
            text = str if decode else str.encode
            eid = await client.xadd("s", {"a": 1})
            assert await client.xrange("s") == [(eid, {text("a"): text("1")})]
            await client.xgroup_create("s", "g", id="0")
            given = await client.xreadgroup("g", "c", {"s": ">"})
            assert news_of(given) == [(text("s"), [{text("a"): text("1")}])]
            assert await client.xack("s", "g", eid) == 1
            with pytest.raises(redis.ResponseError, match="BUSYGROUP"):
                await client.xgroup_create("s", "g")

    run(program())


def test_pipelines_and_transactions(peer: Peer, protocol: int) -> None:
    async def program() -> None:
        async with peer.tasks_client(protocol=protocol) as client:
            for transaction in (True, False):
                async with client.pipeline(transaction=transaction) as pipe:
                    replies = await pipe.xadd("s", {"a": 1}).xlen("s").get("k").execute()
                assert replies[1:] == [2 - transaction, None]
            async with client.pipeline() as pipe:
                await pipe.watch("k")
                await client.set("k", "1")
                pipe.multi()
                pipe.set("k", "2")
                with pytest.raises(redis.WatchError):
                    await pipe.execute()

    run(program())


def test_many_tasks_add_and_read_at_once(peer: Peer) -> None:
    async def program() -> None:
        async with peer.tasks_client(max_connections=200) as client:
            await client.xgroup_create("s", "g", id="0", mkstream=True)
            ids = await asyncio.gather(*(client.xadd("s", {"n": n}) for n in range(100)))
            assert len(set(ids)) == 100
            got = [
                news_of(reply)[0][1]
                for reply in await asyncio.gather(
                    *(client.xreadgroup("g", f"c{n}", {"s": ">"}, count=10) for n in range(10))
                )
            ]
            assert sorted(int(row[b"n"]) for rows in got for row in rows) == list(range(100))

    run(program())


def test_blocked_tasks_get_the_entries_of_others(peer: Peer, protocol: int) -> None:
    async def program() -> None:
        async with peer.tasks_client(protocol=protocol, socket_timeout=None) as client:
            readers = [
                asyncio.create_task(client.xread({"s": "$"}, block=20_000)) for _ in range(5)
            ]
            await _blocked(client, 5)
            await client.xadd("s", {"n": 1})
            for reply in await asyncio.gather(*readers):
                assert news_of(reply) == [(b"s", [{b"n": b"1"}])]
            begun = time.monotonic()
            assert not await client.xread({"s": "$"}, block=150)
            assert time.monotonic() - begun > 0.1

    run(program())


def test_a_cancelled_read_no_longer_waits(peer: Peer) -> None:
    async def program() -> None:
        async with peer.tasks_client(socket_timeout=None) as client:
            reader = asyncio.create_task(client.xread({"s": "$"}, block=0))
            await _blocked(client, 1)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            await _blocked(client, 0)
            assert await client.ping()

    run(program())


def test_a_socket_timeout_ends_a_read(peer: Peer) -> None:
    async def program() -> None:
        async with peer.tasks_client(socket_timeout=0.5, retry=None) as client:
            with pytest.raises(redis.TimeoutError):
                await client.xread({"s": "$"}, block=10_000)
            answered = False
            while not answered:  # half a second may be too short for any reply
                with suppress(redis.TimeoutError):
                    answered = await client.ping()

    run(program())


def test_a_killed_client_reconnects(peer: Peer) -> None:
    async def program() -> None:
        async with peer.tasks_client(client_name="victim") as victim, peer.tasks_client() as other:
            before = await victim.client_id()
            assert await other.client_kill_filter(_id=before) == 1
            assert await victim.client_id() != before
            await victim.aclose()
            assert await victim.ping()

    run(program())


def test_monitor_shows_what_others_do(peer: Peer) -> None:
    async def program() -> None:
        async with peer.tasks_client() as client, client.monitor() as monitor:
            await client.set("k", "v")
            while not (seen := await monitor.next_command())["command"].startswith("SET"):
                pass  # the handshake of the connection that it used
            assert seen["command"] == "SET k v"

    run(program())


def test_large_replies_are_complete(peer: Peer) -> None:
    async def program() -> None:
        value = bytes(range(256)) * 20_000
        async with peer.tasks_client(db=3, single_connection_client=True) as client:
            await client.xadd("big", {"value": value})
            [(_, fields)] = await client.xrange("big")
            assert fields == {b"value": value}

    run(program())


async def _blocked(client: Any, count: int) -> None:
    while (await client.info("clients"))["blocked_clients"] != count:
        await asyncio.sleep(0.005)
