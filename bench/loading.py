"""How long a single call of a bulk load takes, and how long the server's others wait meanwhile.

A store keeps up with a load only if flushes and compaction do: else some call waits for them. So
the load goes on for much longer than the buffers last, and each call is timed.
"""

import time
from itertools import cycle, islice
from pathlib import Path

from bench.gaps import Line, Probe
from bench.results import Claim
from bench.servers import framed, kvstream_server, port_of
from bench.serving import words
from bench.workload import BATCH, Sizes, entries
from kvstream import Store

POOL = 100_000
"""Different entries that a load cycles through."""
STREAMS = ("orders", "returns")
"""Written by turns: rows of both are in each table that is flushed."""
PARTS = 10
"""Of a load, whose rates are compared: they should be the same."""
CALL_MS_MAX = 100.0
WAIT_MS_MAX = 50.0


def _per_second(calls: list[float]) -> tuple[float, float]:
    """Return the rate of all calls, and that of the slowest part."""
    size = max(1, len(calls) // PARTS)
    parts = [calls[at : at + size] for at in range(0, len(calls), size)]
    rates = [BATCH * len(part) / sum(part) for part in parts]
    return BATCH * len(calls) / sum(calls), min(rates)


def _library(folder: Path, sizes: Sizes) -> Claim:
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
    return Claim(
        "bulk",
        f"bulk load of {sizes.loaded:,} entries by add_many of {BATCH}, two streams: worst call",
        1000 * max(calls),
        CALL_MS_MAX,
        "ms",
        f"{rate:,.0f} entries/s, slowest tenth {slowest:,.0f}; {late} calls took longer",
    )


def _server(folder: Path, sizes: Sizes) -> Claim:
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
    return Claim(
        "bulk",
        f"others' longest wait during {sizes.loaded:,} XADDs of one client, {BATCH} at once",
        waits[-1],
        WAIT_MS_MAX,
        "ms",
        f"{rate:,.0f} entries/s; p99 of the waits {waits[len(waits) * 99 // 100]:.1f} ms",
    )


def bulk_load(folder: Path, sizes: Sizes) -> list[Claim]:
    """Load a store and a server with many entries, and hold the worst waits against the bounds."""
    return [_library(folder, sizes), _server(folder, sizes)]
