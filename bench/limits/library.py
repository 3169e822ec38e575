"""Limits of the library: reads stay fast, loads do not stall, a store may exceed memory."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

import redis.asyncio

import kvstream.aio
from bench.latency import Probe, blocking_commands
from bench.load import CONSUMER, GROUP, Line, words
from bench.processes import framed, kvstream_server, port_of, redis_server
from bench.results import Limit, Limits
from bench.server import KEY
from bench.workload import BATCH, Fields, Sizes, entries
from kvstream import Group, Queue, Store, Stream

POOL = 100_000
"""Distinct entries, which a long run repeats."""
CALLS = 200
"""The number of calls whose median is the figure."""
KEPT = 1000
STUCK = 10
MEGABYTE = 1 << 20

SLOWER_MAX = 2.0
STUCK_MS_MAX = 1.0
OPEN_S_MAX = 1.0
MEMORY_MB_MAX = 400
CALL_MS_MAX = 100.0
TURNS_TIMES_MAX = 6.0
"""The other key has its turn first, so two messages are delivered instead of one, from a group
whose pending entries are on disk."""
WAIT_MS_MAX = 50.0
TASK_TIMES_MAX = 0.2

STREAMS = ("orders", "returns")
"""Written by turns in a bulk load, so that each flushed SST file has rows of both."""
PARTS = 10
"""Parts of a bulk load whose rates are compared."""
BLOCKED_S = 0.2
"""After so long all tasks have blocked."""
PAYLOAD: Any = {"payload": "x" * 100}


def _batches(count: int) -> Iterator[list[Fields]]:
    supply = islice(cycle(entries(min(count, POOL))), count)
    while batch := list(islice(supply, BATCH)):
        yield batch


def _microseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1000


def _read_first(stream: Stream) -> float:
    return _microseconds(lambda: stream.range("-", "+", count=1))


def head_of_a_trimmed_stream(folder: Path, sizes: Sizes) -> list[Limit]:
    """Read the first entry of a stream that was trimmed of almost all its entries, and the last."""
    with Store.open(folder / "trimmed") as store:
        old, fresh = store.stream("old"), store.stream("fresh")
        for fields in islice(cycle(entries(POOL)), sizes.trimmed):
            old.add(fields, maxlen=KEPT)
        fresh.add_many(entries(KEPT))
        pairs = [(_read_first(old), _read_first(fresh)) for _ in range(CALLS)]
        short = store.stream("short")
        for batch in _batches(sizes.trimmed):
            short.add_many(batch)
        short.trim(maxlen=STUCK)
        title = f"XREVRANGE of {STUCK} entries after a trim of {sizes.trimmed:,}"
        reverse = _call_limit("reverse", title, lambda: short.revrange(count=STUCK))
    old_us, fresh_us = (median(side) for side in zip(*pairs, strict=True))
    return [
        Limit(
            "head",
            f"first entry after {sizes.trimmed:,} adds with MAXLEN {KEPT}, beside a fresh stream",
            old_us / fresh_us,
            SLOWER_MAX,
            "x",
            f"{old_us:.1f} us against {fresh_us:.1f} us",
        ),
        reverse,
    ]


def _ack_all_but(group: Group, stuck: int) -> None:
    worker = group.consumer("worker-1")
    left = stuck
    while page := worker.read(count=BATCH):
        group.ack(*[entry.id for entry in page[left:]])
        left = 0


def _call_limit(key: str, title: str, call: Callable[[], object]) -> Limit:
    took = sorted(_microseconds(call) / 1000 for _ in range(CALLS))
    slowest = f"slowest of {CALLS} calls: {took[-1]:.2f} ms"
    return Limit(key, title, median(took), STUCK_MS_MAX, "ms", slowest)


def stuck_entries(folder: Path, sizes: Sizes) -> list[Limit]:
    """Find the few pending entries of a group after a million acknowledgements."""
    with Store.open(folder / "stuck") as store:
        stream = store.stream("orders")
        for batch in _batches(sizes.acked):
            stream.add_many(batch)
        group = stream.create_group("billing", start="0")
        _ack_all_but(group, STUCK)
        after = f"after {sizes.acked:,} acks with {STUCK} stuck entries"
        return [
            _call_limit("pending", f"XPENDING {after}", group.pending),
            _call_limit(
                "autoclaim",
                f"XAUTOCLAIM {after}",
                lambda: group.autoclaim("worker-2", min_idle=0),
            ),
        ]


def keys_in_turns(folder: Path, sizes: Sizes) -> list[Limit]:
    """Put and get a message of one key behind very many of another, and behind none."""
    with Store.open(folder / "turns") as store:
        took: dict[int, float] = {}
        for before in (0, sizes.trimmed):
            queue = Queue(store, f"calls-{before}", order_by="key", max_per_key=STUCK, fair=True)
            queue.prepare()
            for _ in range(0, before, BATCH):
                queue.put_many([{"key": "large", **PAYLOAD}] * BATCH)
            took[before] = median(_microseconds(partial(_pass, queue)) for _ in range(CALLS))
            assert store.check() == []
    alone, behind = took.values()
    title = f"a key's message behind {sizes.trimmed:,} of another key, beside behind none"
    note = f"{behind:.0f} us against {alone:.0f} us, from put to ack"
    return [Limit("turns", title, behind / alone, TURNS_TIMES_MAX, "x", note)]


def _pass(queue: Queue) -> None:
    """Put a message, and get and acknowledge messages until it was among them."""
    queue.put({"key": "small", **PAYLOAD})
    for message in iter(queue.get_one, None):
        message.ack()
        if message.fields[b"key"] == b"small":
            return
    raise AssertionError("the message did not come")


def _redis_megabytes(folder: Path, sizes: Sizes) -> float:
    """Estimate Redis's memory for the large store, from a part of it."""
    with redis_server(folder / "redis-memory", "everysec") as client:
        before = client.info("memory")["used_memory"]
        for batch in _batches(sizes.bulk):
            pipe = client.pipeline(transaction=False)
            for fields in batch:
                pipe.xadd("orders", fields)  # type: ignore[arg-type]
            pipe.execute()
        grown: int = client.info("memory")["used_memory"] - before
    return grown / sizes.bulk * sizes.large / MEGABYTE


def large_store(folder: Path, sizes: Sizes) -> list[Limit]:
    """Measure the opening time and the memory of a large store, in a fresh process."""
    path = folder / "large"
    with Store.open(path) as store:
        stream = store.stream("orders")
        for batch in _batches(sizes.large):
            stream.add_many(batch)
    command = [sys.executable, "-m", "bench.limits.store_memory", str(path)]
    seen = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    peer = _redis_megabytes(folder, sizes)
    held = f"a store of {sizes.large:,} entries"
    return [
        Limit("open", f"{held}: open", seen["open_s"], OPEN_S_MAX, "s"),
        Limit(
            "memory",
            f"{held}: peak memory through open, reads, a full scan and 10,000 adds",
            seen["peak_mb"],
            MEMORY_MB_MAX,
            "MB",
            f"{seen['opened_mb']:.0f} MB once open; Redis would hold {peer:,.0f} MB",
        ),
    ]


# --- bulk loads -----------------------------------------------------------------------------------


def _per_second(calls: list[float]) -> tuple[float, float]:
    """Return the rate of all calls, and of the slowest part."""
    size = max(1, len(calls) // PARTS)
    parts = [calls[at : at + size] for at in range(0, len(calls), size)]
    rates = [BATCH * len(part) / sum(part) for part in parts]
    return BATCH * len(calls) / sum(calls), min(rates)


def _load_store(folder: Path, sizes: Sizes) -> Limit:
    pool = entries(min(sizes.loaded, POOL))
    batches = cycle([pool[at : at + BATCH] for at in range(0, len(pool), BATCH)])
    calls = []
    with Store.open(folder / "bulk") as store:
        streams = cycle([store.stream(name) for name in STREAMS])
        for batch in islice(batches, sizes.loaded // BATCH):
            stream = next(streams)
            begun = time.perf_counter()
            stream.add_many(batch)
            calls.append(time.perf_counter() - begun)
    rate, slowest = _per_second(calls)
    late = sum(call > CALL_MS_MAX / 1000 for call in calls)
    return Limit(
        "bulk",
        f"bulk load of {sizes.loaded:,} entries by add_many of {BATCH}, two streams: worst call",
        1000 * max(calls),
        CALL_MS_MAX,
        "ms",
        f"{rate:,.0f} entries/s, slowest tenth {slowest:,.0f}; {late} calls took longer",
    )


def _load_server(folder: Path, sizes: Sizes) -> Limit:
    pool = entries(min(sizes.loaded, BATCH))
    requests = [
        b"".join(framed("XADD", name, "*", *words(fields)) for fields in pool) for name in STREAMS
    ]
    with kvstream_server(folder / "bulk-served", "everysec") as client:
        line, probe = Line(port_of(client)), Probe(port_of(client))
        probe.start()
        begun = time.perf_counter()
        for batch in islice(cycle(requests), sizes.loaded // BATCH):
            line.send(batch)
        rate = sizes.loaded / (time.perf_counter() - begun)
        waits = probe.waits_ms()
        probe.end()
        line.close()
    return Limit(
        "bulk",
        f"others' longest wait during {sizes.loaded:,} XADDs of one client, {BATCH} at once",
        waits[-1],
        WAIT_MS_MAX,
        "ms",
        f"{rate:,.0f} entries/s; p99 of the waits {waits[len(waits) * 99 // 100]:.1f} ms",
    )


def bulk_load(folder: Path, sizes: Sizes) -> list[Limit]:
    """Load a store and a server with many entries; measure the slowest call, and others' waits.

    If flushes and compaction fall behind, some call must wait for them. So the load is much larger
    than the write buffers, and each call is timed.
    """
    return [_load_store(folder, sizes), _load_server(folder, sizes)]


# --- tasks of an event loop -----------------------------------------------------------------------


Call = Callable[[], Awaitable[Any]]


async def _work(take: Call, add: Call, tasks: int, each: int, blocked: bool) -> float:
    """Run tasks that take their entries one by one; return the seconds.

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
        await asyncio.sleep(BLOCKED_S)
        begun = time.perf_counter()
        await fill()
    await asyncio.gather(*workers)
    return time.perf_counter() - begun


async def _store_tasks(path: Path, tasks: int, each: int, blocked: bool) -> float:
    async with kvstream.aio.open(path) as store:
        stream = store.stream(KEY)
        group = await stream.create_group(GROUP)
        consumer = group.consumer(CONSUMER)

        async def take() -> None:
            (entry,) = await consumer.read(1, block=0)
            assert await group.ack(entry) == 1

        return await _work(take, lambda: stream.add(PAYLOAD), tasks, each, blocked)


async def _client_tasks(port: int, tasks: int, each: int, blocked: bool) -> float:
    async with redis.asyncio.Redis(port=port, max_connections=tasks + 1) as client:
        await client.flushall()
        await client.xgroup_create(KEY, GROUP, mkstream=True)

        async def take() -> None:
            reply: Any = await client.xreadgroup(GROUP, CONSUMER, {KEY: ">"}, count=1, block=0)
            assert await client.xack(KEY, GROUP, reply[0][1][0][0]) == 1

        return await _work(take, lambda: client.xadd(KEY, PAYLOAD), tasks, each, blocked)


def tasks_beside_redis(folder: Path, sizes: Sizes) -> list[Limit]:
    """Compare tasks that read as consumers and acknowledge with redis.asyncio on redis-server."""
    tasks = sizes.blocked
    each = max(sizes.queued // tasks // 2, 1)
    limits = []
    with redis_server(folder / "tasks", "everysec") as client:
        for key, what, limit in (
            ("async-tasks", "tasks read 1, XACK", TASK_TIMES_MAX),
            ("async-blocked", "blocked tasks read 1, XACK, as entries are added", 0),
        ):
            sides: tuple[list[float], list[float]] = ([], [])
            for number in range(sizes.command_rounds):
                blocked, path = key == "async-blocked", folder / f"{key}-{number}"
                sides[0].append(asyncio.run(_store_tasks(path, tasks, each, blocked)))
                sides[1].append(asyncio.run(_client_tasks(port_of(client), tasks, each, blocked)))
            own, peer = (1e6 * median(side) / (tasks * each) for side in sides)
            title = f"{tasks:,} {what}, beside redis.asyncio on redis-server"
            note = f"{own:.1f} us an entry against {peer:.1f} us"
            limits.append(Limit(key, title, own / peer, limit, "x", note))
    return limits


LIBRARY_LIMITS: Limits = {
    "head": ("first entry of a trimmed stream", head_of_a_trimmed_stream),
    "turns": ("keys that take turns", keys_in_turns),
    "stuck": ("stuck entries of a busy group", stuck_entries),
    "large": ("a large store: open and memory", large_store),
    "bulk": ("bulk load, worst call", bulk_load),
    "gaps": ("latency of other clients during large commands", blocking_commands),
}
