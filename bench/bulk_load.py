"""The slowest call of a bulk load, and the latency of the server's other clients meanwhile.

If flushes and compaction fall behind, some call must wait for them. So the load is much larger than
the write buffers, and each call is timed.
"""

import time
from itertools import cycle, islice
from pathlib import Path

from bench.latency import Probe
from bench.load import Line, words
from bench.processes import framed, kvstream_server, port_of
from bench.results import Limit
from bench.workload import BATCH, Sizes, entries
from kvstream import Store

POOL = 100_000
"""Distinct entries, which a load repeats."""
STREAMS = ("orders", "returns")
"""Written by turns, so that each flushed SST file has rows of both."""
PARTS = 10
"""Parts of a load whose rates are compared."""
CALL_MS_MAX = 100.0
WAIT_MS_MAX = 50.0


def _per_second(calls: list[float]) -> tuple[float, float]:
    """Return the rate of all calls, and of the slowest part."""
    size = max(1, len(calls) // PARTS)
    parts = [calls[at : at + size] for at in range(0, len(calls), size)]
    rates = [BATCH * len(part) / sum(part) for part in parts]
    return BATCH * len(calls) / sum(calls), min(rates)


def _library(folder: Path, sizes: Sizes) -> Limit:
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


def _server(folder: Path, sizes: Sizes) -> Limit:
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
    """Load a store and a server with many entries; compare the worst latencies with the limits."""
    return [_library(folder, sizes), _server(folder, sizes)]
