"""Limits of the library: reads stay fast, and a store may be larger than memory."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from statistics import median

from bench.bulk_load import bulk_load
from bench.latency import blocking_commands
from bench.processes import redis_server
from bench.results import Limit
from bench.workload import BATCH, Fields, Sizes, entries
from kvstream import Group, Store, Stream

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
    """Read the first entry of a stream that was trimmed of almost all its entries."""
    with Store.open(folder / "trimmed") as store:
        old, fresh = store.stream("old"), store.stream("fresh")
        for fields in islice(cycle(entries(POOL)), sizes.trimmed):
            old.add(fields, maxlen=KEPT)
        fresh.add_many(entries(KEPT))
        pairs = [(_read_first(old), _read_first(fresh)) for _ in range(CALLS)]
    old_us, fresh_us = (median(side) for side in zip(*pairs, strict=True))
    return [
        Limit(
            "head",
            f"first entry after {sizes.trimmed:,} adds with MAXLEN {KEPT}, beside a fresh stream",
            old_us / fresh_us,
            SLOWER_MAX,
            "x",
            f"{old_us:.1f} us against {fresh_us:.1f} us",
        )
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
    command = [sys.executable, "-m", "bench.store_memory", str(path)]
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


LIBRARY_LIMITS: dict[str, tuple[str, Callable[[Path, Sizes], list[Limit]]]] = {
    "head": ("first entry of a trimmed stream", head_of_a_trimmed_stream),
    "stuck": ("stuck entries of a busy group", stuck_entries),
    "large": ("a large store: open and memory", large_store),
    "bulk": ("bulk load, worst call", bulk_load),
    "gaps": ("latency of other clients during large commands", blocking_commands),
}
