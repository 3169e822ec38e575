"""What a replica costs its primary, how far it is behind, and what waiting for it takes.

Two servers take turns, round by round: one has a replica and one has none. Both have the same
processors as their replica, so the ratio is that of processor time. Latencies are beside a Redis
that has a replica too.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from redis import Redis

from bench.copies.archive import ANY_ORDER, NONE, Side, compare
from bench.load import WrongReply
from bench.processes import (
    kvstream_server,
    loaded,
    port_of,
    process_id,
    process_seconds,
    redis_server,
)
from bench.results import Limit, Limits
from bench.workload import Sizes

WITH = "replica"
COST_MAX = 1.03
"""The processor time of a write with a replica, over that without."""
BURST_S_MAX = 2.0
"""How long after a burst the replica may have all of it."""
WAIT_MAX = 2.0
"""The median latency of XADD and WAIT 1, over that of Redis."""
BEHIND_S_MAX = 120.0
"""After this time a replica that is behind is an error, on a busy machine too."""


@contextmanager
def pair(folder: Path) -> Iterator[Redis]:
    """Run a primary and its replica; yield a client of the primary."""
    with ExitStack() as stack:
        primary = stack.enter_context(kvstream_server(folder / "primary", "everysec"))
        place = f"127.0.0.1:{port_of(primary)}"
        words = ("--replicaof", place)
        stack.enter_context(kvstream_server(folder / "replica", "everysec", *words))
        wait_caught_up(primary)
        yield primary


@contextmanager
def redis_pair(folder: Path) -> Iterator[Redis]:
    """Run a Redis and its replica; yield a client of the primary."""
    with ExitStack() as stack:
        primary = stack.enter_context(redis_server(folder / "redis-primary", "everysec"))
        replica = stack.enter_context(redis_server(folder / "redis-replica", "everysec"))
        replica.replicaof("127.0.0.1", str(port_of(primary)))
        wait_caught_up(primary)
        yield primary


def wait_caught_up(primary: Any) -> float:
    """Wait until the replica has all; return the seconds; raise WrongReply if it takes too long."""
    begun = time.monotonic()
    while True:
        shown = primary.info("replication")
        replica = shown.get("slave0", {})
        if replica.get("state") == "online" and replica["offset"] >= shown["master_repl_offset"]:
            return time.monotonic() - begun
        if time.monotonic() - begun > BEHIND_S_MAX:
            raise WrongReply("the replica is behind")
        time.sleep(0.005)


# --- the primary's processor time ---------------------------------------------------------------


def _serve(client: Redis, pipeline: int, has_replica: bool, count: int) -> float:
    """Send XADD; return the processor seconds of the primary until its replica has all."""
    pid = process_id(client)
    begun = process_seconds(pid)
    loaded(client, count, pipeline, "-r", "1000000", "XADD", "orders", "*", *ANY_ORDER)
    if has_replica:
        wait_caught_up(client)
    return process_seconds(pid) - begun


def serve_cost(pipeline: int, folder: Path, sizes: Sizes) -> list[Limit]:
    """Compare XADD of a server with a replica and of one without."""
    key, requests = f"replica-serve-{pipeline}", 4 * sizes.served if pipeline > 1 else sizes.served
    with ExitStack() as stack:
        alone = stack.enter_context(kvstream_server(folder / key / "alone", "everysec"))
        primary = stack.enter_context(pair(folder / key))
        sides: dict[str, Side] = {
            NONE: partial(_serve, alone, pipeline, False),
            WITH: partial(_serve, primary, pipeline, True),
        }
        used = compare(sides, requests, sizes.archive_rounds)
    ratios = [own / none for own, none in zip(used[WITH], used[NONE], strict=True)]
    us = {name: 1e6 * median(each) / requests for name, each in used.items()}
    note = f"{us[WITH]:.2f} us against {us[NONE]:.2f} us; {len(ratios)} rounds"
    title = f"XADD, -P {pipeline}, with a replica: the primary's processor time, beside none"
    return [Limit(key, title, median(ratios), COST_MAX, "x", note)]


# --- lag, and waiting ---------------------------------------------------------------------------


def burst_lag(folder: Path, sizes: Sizes) -> list[Limit]:
    """Measure how long after a burst of XADD its replica has all of it."""
    requests = 4 * sizes.served
    with pair(folder / "replica-lag") as primary:
        lags, rates = [], []
        for _ in range(max(sizes.archive_rounds // 4, 1)):
            shown = loaded(primary, requests, 16, "XADD", "orders", "*", *ANY_ORDER)
            lags.append(wait_caught_up(primary))
            rates.append(shown["rps"])
    note = f"{requests:,} XADD at {median(rates):,.0f} a second; {len(lags)} bursts"
    title = "a burst of XADD, -P 16: until the replica has all"
    return [Limit("replica-lag", title, max(lags), BURST_S_MAX, "s", note)]


def _wait_ms(client: Any, number: int) -> float:
    """Return the milliseconds of an XADD and WAIT 1, one after the other."""
    begun = time.perf_counter()
    client.xadd("orders", {"number": number})
    if client.wait(1, 60_000) != 1:
        raise WrongReply("no replica has the entry")
    return 1e3 * (time.perf_counter() - begun)


def wait_latency(folder: Path, sizes: Sizes) -> list[Limit]:
    """Compare XADD and WAIT 1 with those of Redis."""
    place = folder / "replica-wait"
    place.mkdir()
    with pair(place) as own, redis_pair(place) as peer:
        took: dict[str, list[float]] = {"own": [], "peer": []}
        numbers = count()
        for _ in range(10 * sizes.archive_rounds):
            for name, client in (("own", own), ("peer", peer)):
                took[name].append(_wait_ms(client, next(numbers)))
    own_ms, peer_ms = median(took["own"]), median(took["peer"])
    note = f"{own_ms:.2f} ms against {peer_ms:.2f} ms; {len(took['own'])} of each"
    title = "XADD and WAIT 1, one by one: the median latency, beside Redis"
    return [Limit("replica-wait", title, own_ms / peer_ms, WAIT_MAX, "x", note)]


REPLICA_LIMITS: Limits = {
    "replica-serve-16": ("XADD, -P 16, with a replica", partial(serve_cost, 16)),
    "replica-serve-1": ("XADD, -P 1, with a replica", partial(serve_cost, 1)),
    "replica-lag": ("the lag of a replica", burst_lag),
    "replica-wait": ("XADD and WAIT 1", wait_latency),
}
