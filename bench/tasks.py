"""Tasks of an event loop that read as consumers and acknowledge: beside redis.asyncio."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import redis.asyncio

import kvstream.aio
from bench.load import CONSUMER, GROUP
from bench.processes import port_of, redis_server
from bench.results import Limit
from bench.server import KEY
from bench.workload import Sizes

TIMES_MAX = 0.2
PAUSE_S = 0.2
"""After so long all tasks have blocked."""
FIELDS: Any = {"payload": "x" * 100}

Call = Callable[[], Awaitable[Any]]


async def _work(take: Call, add: Call, tasks: int, each: int, blocked: bool) -> float:
    """Let each task take its entries one by one; return the seconds.

    The entries are there before, or added while the tasks wait for them.
    """

    async def worker() -> None:
        for _ in range(each):
            await take()

    async def fill() -> None:
        for _ in range(tasks * each):
            await add()

    if not blocked:
        await fill()
    begun = time.perf_counter()
    workers = [asyncio.create_task(worker()) for _ in range(tasks)]
    if blocked:
        await asyncio.sleep(PAUSE_S)
        begun = time.perf_counter()
        await fill()
    await asyncio.gather(*workers)
    return time.perf_counter() - begun


async def _library(path: Path, tasks: int, each: int, blocked: bool) -> float:
    async with kvstream.aio.open(path) as store:
        stream = store.stream(KEY)
        group = await stream.create_group(GROUP)
        consumer = group.consumer(CONSUMER)

        async def take() -> None:
            (entry,) = await consumer.read(1, block=0)
            assert await group.ack(entry) == 1

        return await _work(take, lambda: stream.add(FIELDS), tasks, each, blocked)


async def _client(port: int, tasks: int, each: int, blocked: bool) -> float:
    async with redis.asyncio.Redis(port=port, max_connections=tasks + 1) as client:
        await client.flushall()
        await client.xgroup_create(KEY, GROUP, mkstream=True)

        async def take() -> None:
            reply: Any = await client.xreadgroup(GROUP, CONSUMER, {KEY: ">"}, count=1, block=0)
            assert await client.xack(KEY, GROUP, reply[0][1][0][0]) == 1

        return await _work(take, lambda: client.xadd(KEY, FIELDS), tasks, each, blocked)


def tasks_beside_redis(folder: Path, sizes: Sizes) -> list[Limit]:
    """Compare reads and acknowledgements by tasks with redis.asyncio on redis-server."""
    tasks = sizes.blocked
    each = max(sizes.queued // tasks // 2, 1)
    limits = []
    with redis_server(folder / "tasks", "everysec") as client:
        for key, what, limit in (
            ("async-tasks", "tasks read 1, XACK", TIMES_MAX),
            ("async-blocked", "blocked tasks read 1, XACK, as entries are added", 0),
        ):
            sides: tuple[list[float], list[float]] = ([], [])
            for number in range(sizes.command_rounds):
                blocked, path = key == "async-blocked", folder / f"{key}-{number}"
                sides[0].append(asyncio.run(_library(path, tasks, each, blocked)))
                sides[1].append(asyncio.run(_client(port_of(client), tasks, each, blocked)))
            own, peer = (1e6 * median(side) / (tasks * each) for side in sides)
            title = f"{tasks:,} {what}, beside redis.asyncio on redis-server"
            note = f"{own:.1f} us an entry against {peer:.1f} us"
            limits.append(Limit(key, title, own / peer, limit, "x", note))
    return limits
