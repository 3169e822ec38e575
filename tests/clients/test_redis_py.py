"""redis-py, plain and asyncio, in both protocols: one program, on kvstream and on redis-server."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import aclosing, closing
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.patience import PATIENCE_S

Call = tuple[str, tuple[Any, ...], dict[str, Any]]
PROTOCOLS = pytest.mark.parametrize("protocol", [2, 3], ids=["RESP2", "RESP3"])
READERS = 50


def call(name: str, *args: Any, **options: Any) -> Call:
    return name, args, options


CALLS = [
    call("ping"),
    call("echo", "hello"),
    call("xadd", "s", {"sku": "a1", "qty": 2}, id="1-1"),
    call("xadd", "s", {b"raw": b"\x00\xff\r\n"}, id="1-2"),
    call("xadd", "s", {"f": "v"}, id="2-*"),
    call("xadd", "s", {"f": "v"}, id="1-1"),
    call("xadd", "none", {"f": "v"}, nomkstream=True),
    *(call("xadd", "t", {"n": n}, id=f"{n}-1", maxlen=5, approximate=False) for n in range(1, 9)),
    call("xlen", "s"),
    call("xrange", "s"),
    call("xrange", "s", min="(1-1", max="2", count=1),
    call("xrevrange", "t", count=2),
    call("xread", {"s": "1-1", "t": "7"}, count=2),
    call("xread", {"s": "99"}, block=5),
    call("xgroup_create", "s", "g", "0"),
    call("xgroup_create", "s", "g", "0"),
    call("xgroup_create", "new", "g", "$", mkstream=True),
    call("xgroup_createconsumer", "s", "g", "bob"),
    call("xreadgroup", "g", "ann", {"s": ">"}, count=2),
    call("xreadgroup", "g", "ann", {"s": "0"}),
    call("xreadgroup", "g", "ann", {"s": ">"}, count=2, block=5),
    call("xreadgroup", "g", "ann", {"s": ">"}, block=5),
    call("xpending", "s", "g"),
    call("xpending_range", "s", "g", "-", "+", 10),
    call("xclaim", "s", "g", "bob", 0, ["1-1", "9-9"]),
    call("xclaim", "s", "g", "bob", 0, ["1-2"], justid=True),
    call("xautoclaim", "s", "g", "cid", 0, count=2),
    call("xautoclaim", "s", "g", "cid", 0, justid=True),
    call("xack", "s", "g", "1-1", "5-5"),
    call("xdel", "s", "1-2"),
    call("xinfo_stream", "t"),
    call("xinfo_consumers", "s", "g"),
    call("xgroup_delconsumer", "s", "g", "bob"),
    call("xgroup_setid", "s", "g", "0"),
    call("xgroup_destroy", "s", "g"),
    call("xtrim", "t", maxlen=2),
    call("xtrim", "t", minid="8", approximate=False),
    call("set", "k", "v", ex=1000),
    call("set", "k", "w", nx=True),
    call("set", "k", "w", get=True, keepttl=True),
    call("get", "k"),
    call("get", "s"),
    call("mget", "k", "none", "s"),
    call("incr", "n", 5),
    call("incr", "k"),
    call("getdel", "k"),
    call("type", "s"),
    call("exists", "s", "t", "none"),
    call("keys", "[st]"),
    call("expire", "t", 100),
    call("persist", "t"),
    call("ttl", "t"),
    call("rename", "t", "u"),
    call("rename", "none", "u"),
    call("copy", "u", "v"),
    call("dbsize"),
    call("client_setname", "tester"),
    call("client_getname"),
    call("config_get", "maxclients"),
    call("delete", "u", "v", "none"),
    call("unlink", "new"),
    call("swapdb", 0, 1),
    call("dbsize"),
    call("flushall"),
]
TIMES = {"idle", "inactive", "time_since_delivered"}
NEWER = {
    *("idmp-duration", "idmp-maxsize", "pids-tracked", "iids-tracked", "iids-added"),
    *("iids-duplicates", "radix-tree-nodes"),
}


def comparable(value: Any) -> Any:
    """Return a result without times, and without fields unknown to Redis 7.0."""
    if isinstance(value, dict):
        rows = {as_text(name): comparable(part) for name, part in value.items()}
        return {name: part for name, part in rows.items() if name not in TIMES | NEWER}
    if isinstance(value, list | tuple):
        return [comparable(part) for part in value]
    return f"{type(value).__name__}: {value}" if isinstance(value, Exception) else value


def as_text(name: Any) -> Any:
    return name.decode() if isinstance(name, bytes) else name


def in_order(name: str, result: Any) -> Any:
    return sorted(result) if name == "keys" else result


def run(port: int, protocol: int, **options: Any) -> list[Any]:
    found = []
    with closing(redis.Redis(port=port, protocol=protocol, **options)) as client:
        for name, args, given in CALLS:
            try:
                result = getattr(client, name)(*args, **given)
                found.append((name, args, in_order(name, comparable(result))))
            except redis.RedisError as error:
                found.append((name, args, comparable(error)))
    return found


async def run_async(port: int, protocol: int) -> list[Any]:
    found = []
    async with aclosing(redis.asyncio.Redis(port=port, protocol=protocol)) as client:
        for name, args, given in CALLS:
            try:
                result = await getattr(client, name)(*args, **given)
                found.append((name, args, in_order(name, comparable(result))))
            except redis.RedisError as error:
                found.append((name, args, comparable(error)))
    return found


@PROTOCOLS
@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "text"])
def test_every_call_is_answered_as_by_redis(
    port: int, redis_port: int, protocol: int, decode: bool
) -> None:
    options = {"decode_responses": decode, "encoding_errors": "surrogateescape"}
    ours, theirs = (run(each, protocol, **options) for each in (port, redis_port))
    for one, other in zip(ours, theirs, strict=True):
        assert one == other


@PROTOCOLS
def test_every_awaited_call_is_answered_as_by_redis(
    port: int, redis_port: int, protocol: int
) -> None:
    ours, theirs = (asyncio.run(run_async(each, protocol)) for each in (port, redis_port))
    for one, other in zip(ours, theirs, strict=True):
        assert one == other


def _count(pipe: Any) -> None:
    pipe.multi()
    pipe.incr("n")


def transactions(port: int) -> list[Any]:
    client: Any
    with closing(redis.Redis(port=port)) as client:
        with client.pipeline(transaction=True) as pipe:
            pipe.xadd("s", {"f": "v"}, id="1-1").incr("n").get("s").xlen("s")
            found = [comparable(pipe.execute(raise_on_error=False))]
        with client.pipeline(transaction=False) as pipe:
            for _ in range(300):
                pipe.incr("n")
            found.append(pipe.execute())
        with client.pipeline() as pipe:
            pipe.watch("n")
            client.incr("n")
            pipe.multi()
            pipe.set("n", 0)
            with pytest.raises(redis.WatchError):
                pipe.execute()
        found.append(client.transaction(_count, "n"))
        found.append(sorted(client.scan_iter(count=1)))
        return found


def test_pipelines_and_transactions_do_what_they_do_on_redis(port: int, redis_port: int) -> None:
    assert transactions(port) == transactions(redis_port)


@PROTOCOLS
def test_a_reader_that_blocks_is_woken(port: int, protocol: int) -> None:
    found: list[Any] = []
    with closing(redis.Redis(port=port, protocol=protocol)) as client:
        reading = threading.Thread(target=lambda: found.append(client.xread({"s": "$"}, block=0)))
        reading.start()
        while client.info("clients")["blocked_clients"] < 1:
            pass
        client.xadd("s", {"f": "v"}, id="1-1")
        reading.join(PATIENCE_S)
    entry = (b"1-1", {b"f": b"v"})
    assert found == [{b"s": [[entry]]} if protocol == 3 else [[b"s", [entry]]]]


def test_a_client_that_was_killed_comes_back(port: int) -> None:
    client: Any
    other: Any
    with closing(redis.Redis(port=port)) as client, closing(redis.Redis(port=port)) as other:
        client.set("k", "v")
        other.client_kill_filter(_id=client.client_id())
        assert client.get("k") == b"v"


def test_a_database_is_chosen_by_its_url(port: int) -> None:
    with (
        closing(redis.Redis.from_url(f"redis://127.0.0.1:{port}/3")) as third,
        closing(redis.Redis(port=port)) as client,
    ):
        third.set("k", "v")
        assert (client.get("k"), client.info("keyspace")["db3"]["keys"]) == (None, 1)


Task = Callable[["redis.asyncio.Redis"], Awaitable[None]]


def check_commands(port: int, task: Task) -> None:
    async def main() -> None:
        async with aclosing(redis.asyncio.Redis(port=port)) as client:
            await asyncio.wait_for(task(client), PATIENCE_S)

    asyncio.run(main())


async def until_blocked(client: "redis.asyncio.Redis", count: int) -> None:
    while (await client.info("clients"))["blocked_clients"] != count:
        await asyncio.sleep(0.001)


def test_many_tasks_wait_at_once(port: int) -> None:
    async def task(client: "redis.asyncio.Redis") -> None:
        readers = [asyncio.ensure_future(client.xread({"s": "$"}, block=0)) for _ in range(READERS)]
        await until_blocked(client, READERS)
        await client.xadd("s", {"f": "v"}, id="1-1")
        reply = await asyncio.gather(*readers)
        assert reply == [[[b"s", [(b"1-1", {b"f": b"v"})]]]] * READERS

    check_commands(port, task)


def test_of_a_task_that_gives_up_no_wait_is_left(port: int) -> None:
    async def task(client: "redis.asyncio.Redis") -> None:
        await client.xgroup_create("s", "g", "$", mkstream=True)
        reading = asyncio.ensure_future(client.xreadgroup("g", "c", {"s": ">"}, block=0))
        await until_blocked(client, 1)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await until_blocked(client, 0)
        await client.xadd("s", {"f": "v"})
        assert (await client.xpending("s", "g"))["pending"] == 0

    check_commands(port, task)
