"""Migration of an RDB file into a store, beside redis-server loading it and a redis-py copy loop.

The loop reads pages by XRANGE and writes pipelines of XADD. It copies only a part of the entries,
and its time is scaled up.
"""

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.processes import FileServer, file_server
from bench.results import Comparison, Log
from bench.workload import PAGE, Sizes
from kvstream import migration

STREAMS = 4
CONSUMERS = 5
PENDING = 1000
"""Pending entries of each consumer."""
LOOP_SHARE = 20
"""The loop copies one entry in this many."""
ROUNDS = 3

_FILL = """
local first = tonumber(ARGV[1])
for number = first, first + tonumber(ARGV[2]) - 1 do
  redis.call('XADD', KEYS[1], (1700000000000 + number) .. '-0',
    'sku', string.format('sku-%016d', number % 9973),
    'quantity', string.format('%02d', number % 12 + 1),
    'customer', string.format('customer-%020d', number),
    'placed', '2026-05-17T09:10:11.250Z')
end
"""
_FILL_STEP = 10_000
_LOADED = re.compile(r"DB loaded from disk: ([0-9.]+) seconds")


@dataclass(frozen=True, slots=True)
class MigrationRow:
    """One row: what the migration is compared with."""

    key: str
    title: str
    target: float


LOAD = MigrationRow("migrate-load", "an RDB file into a store, beside redis-server loading it", 0.5)
LOOP = MigrationRow("migrate-loop", "the same, beside a redis-py loop of XRANGE and XADD", 5.0)
MIGRATION_ROWS = (LOAD, LOOP)


def run_migration(
    chosen: list[MigrationRow], sizes: Sizes, folder: Path, log: Log
) -> list[Comparison]:
    """Create the file, and measure the chosen rows."""
    if not chosen:
        return []
    log(f"migration: a file of {sizes.moved:,} entries")
    source = folder / "moved" / "dump.rdb"
    source.parent.mkdir()
    with file_server(source.parent) as server:
        _fill(server.client, sizes.moved)
        server.client.save()
    own = [_into_a_store(source, folder / "moved-store") for _ in range(ROUNDS)]
    peers = {LOAD: _loading_seconds, LOOP: _loop_seconds}
    results = []
    for row in chosen:
        log(row.title)
        result = Comparison(row.key, row.title, row.target, sizes.moved, own)
        result.peer_seconds.extend(peers[row](source, folder) for _ in own)
        results.append(result)
    shutil.rmtree(source.parent)
    return results


def _fill(client: Any, count: int) -> None:
    script = client.register_script(_FILL)
    share = count // STREAMS
    for stream in range(STREAMS):
        key = f"orders:{stream}"
        for first in range(0, share, _FILL_STEP):
            script(keys=[key], args=[first, min(_FILL_STEP, share - first)])
        client.xgroup_create(key, "billing", "0")
        for consumer in range(CONSUMERS):
            client.xreadgroup("billing", f"worker-{consumer}", {key: ">"}, PENDING)


def _into_a_store(source: Path, store: Path) -> float:
    start = time.perf_counter()
    migration.run(source, store, state=store.with_name("moved-state"))
    took = time.perf_counter() - start
    shutil.rmtree(store)
    return took


@contextmanager
def _started(source: Path, folder: Path) -> Iterator[FileServer]:
    """Run a redis-server on a copy of the file."""
    place = folder / "moved-loaded"
    place.mkdir()
    shutil.copy(source, place / "dump.rdb")
    with file_server(place) as server:
        yield server
    shutil.rmtree(place)


def _loading_seconds(source: Path, folder: Path) -> float:
    """Return the loading time in redis-server's log."""
    with _started(source, folder) as server:
        loaded = _LOADED.search(server.log.read_text())
    assert loaded is not None, "redis-server's log has no loading time"
    return max(float(loaded[1]), 0.001)


def _loop_seconds(source: Path, folder: Path) -> float:
    """Copy a part of the entries with redis-py; return the time scaled to all."""
    place = folder / "moved-copied"
    place.mkdir()
    with _started(source, folder) as server, file_server(place) as target:
        count = server.client.xlen("orders:0") // (LOOP_SHARE // STREAMS) or 1
        start = time.perf_counter()
        _copy(server.client, target.client, count)
        took = time.perf_counter() - start
        whole = sum(server.client.xlen(f"orders:{stream}") for stream in range(STREAMS))
    shutil.rmtree(place)
    return took * float(whole) / count


def _copy(source: Any, target: Any, count: int) -> None:
    start = "-"
    while count > 0:
        page = source.xrange("orders:0", start, "+", min(PAGE, count))
        pipe = target.pipeline(transaction=False)
        for eid, fields in page:
            pipe.xadd("orders:0", fields, eid)
        pipe.execute()
        start = "(" + page[-1][0].decode()
        count -= len(page)
