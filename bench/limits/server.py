"""Limits of the server: its memory, its latency during background work, and INFO."""

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

from redis import Redis

from bench.load import ENTRY, WrongReply, ask_in_batches
from bench.processes import (
    both,
    framed,
    kvstream_server,
    loaded,
    meanwhile,
    port_of,
    processor_seconds,
)
from bench.results import Limit, Limits
from bench.server import KEY
from bench.workload import Sizes

MEMORY_SHARE_MAX = 0.25
SLOWER_MAX = 3.0
INFO_MS_MAX = 0.5
INFOS = 1_000
PIPELINE = 100
OLD = "old"
PAGE_BYTES = 4096
MEGABYTE = 1 << 20

Work = Callable[[Any], object]


def _fill(client: Redis, key: str, count: int) -> None:
    loaded(client, count, PIPELINE, "XADD", key, "*", *ENTRY)


def _resident_mb(client: Any) -> float:
    """Return the resident memory of a server's process in megabytes."""
    pid = client.info("server")["process_id"]
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * PAGE_BYTES / MEGABYTE


def memory(folder: Path, sizes: Sizes) -> list[Limit]:
    """Fill both servers, read some entries, and compare the memory of their processes."""
    held = []
    with both(folder / "memory", "everysec") as servers:
        for client in servers:
            _fill(client, KEY, sizes.large)
            for _ in range(10):
                client.xrange(KEY, count=1000)
                client.xrevrange(KEY, count=1000)
            held.append(_resident_mb(client))
    own, peer = held
    title = f"server with {sizes.large:,} entries of 100 bytes: memory, beside redis-server"
    note = f"{own:,.0f} MB against {peer:,.0f} MB"
    return [Limit("serve-memory", title, own / peer, MEMORY_SHARE_MAX, "x", note)]


def _p99_ms(client: Redis, count: int) -> float:
    return loaded(client, count, 1, "XADD", KEY, "*", *ENTRY)["p99_latency_ms"]


def _compact(client: Any) -> None:
    client.bgrewriteaof()
    while client.info("persistence")["aof_rewrite_in_progress"]:
        Event().wait(0.01)


def _once(work: Work) -> Work:
    """Return work that does something once, and nothing after that."""
    done = Event()

    def run(client: Any) -> None:
        if not done.is_set():
            done.set()
            work(client)
        Event().wait(0.01)

    return run


def latency(folder: Path, sizes: Sizes) -> list[Limit]:
    """Compare the p99 of XADD during background work with that of an idle server."""
    works: tuple[tuple[str, str, Work], ...] = (
        ("checkpoint", "checkpoints are made", lambda client: client.save()),
        ("compaction", "compactions run", _compact),
        ("del", f"a DEL of {sizes.large:,} entries runs", _once(lambda client: client.delete(OLD))),
    )
    limits = []
    with kvstream_server(folder / "latency", "everysec") as client:
        _fill(client, OLD, sizes.large)
        _p99_ms(client, sizes.served)
        for key, what, work in works:
            quiet = _p99_ms(client, sizes.served)
            with meanwhile(port_of(client), work):
                busy = _p99_ms(client, sizes.served)
            note = f"{busy:.2f} ms against {quiet:.2f} ms"
            title = f"p99 of XADD while {what}, beside quiet"
            limits.append(Limit(f"serve-{key}", title, busy / quiet, SLOWER_MAX, "x", note))
    return limits


def info(folder: Path, sizes: Sizes) -> list[Limit]:
    """Measure the processor time of INFO with many keys that will expire."""
    used = []
    with both(folder / "info", "everysec") as servers:
        for client in servers:
            port = port_of(client)
            sets = [framed("SET", f"key:{n}", n, "EX", 100_000) for n in range(sizes.expiring)]
            ask_in_batches(port, sets)
            before = processor_seconds(client)
            ask_in_batches(port, [framed("INFO")] * INFOS)
            used.append(1000 * (processor_seconds(client) - before) / INFOS)
            if client.info("keyspace")["db0"]["expires"] != sizes.expiring:
                raise WrongReply("INFO does not count the keys that expire")
    own, peer = used
    title = f"INFO with {sizes.expiring:,} expiring keys: the server's processor"
    note = f"redis-server {peer:.3f} ms"
    return [Limit("serve-info", title, own, INFO_MS_MAX, "ms", note)]


SERVER_LIMITS: Limits = {
    "serve-memory": ("memory of the server", memory),
    "serve-latency": ("latency during background work", latency),
    "serve-info": ("INFO with expiring keys", info),
}
