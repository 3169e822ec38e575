"""Runs the contests: both sides by turns, the order changing from round to round."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

from redis import Redis

from bench.contests import Round, Timed, Work
from bench.peer import redis_server
from bench.results import Contest
from bench.workload import Sizes, entries
from kvstream import Store

WARM_UP = 500
"""Entries of the round before the first: connections, caches and imports are made then."""
SETTLE_S = 0.2
"""Pause after each side, so that neither pays for what the other does in the background."""

Tell = Callable[[str], None]


def _seconds(run: Timed) -> float:
    start = time.perf_counter()
    run()
    took = time.perf_counter() - start
    time.sleep(SETTLE_S)
    return took


def _round(
    work: Work, store: Store, client: Redis, this: Round, own_first: bool
) -> tuple[float, float]:
    """Return the seconds of kvstream and of Redis for one round."""
    if own_first:
        own = _seconds(work.own(store, this))
        return own, _seconds(work.peer(client, this))
    peer = _seconds(work.peer(client, this))
    return _seconds(work.own(store, this)), peer


def _contest(work: Work, store: Store, client: Redis, sizes: Sizes) -> Contest:
    pool = entries(work.count(sizes))
    result = Contest(work.key, work.title, work.target, len(pool))
    _round(work, store, client, Round(f"{work.key}-warm-up", pool[:WARM_UP]), own_first=True)
    for number in range(sizes.rounds):
        this = Round(f"{work.key}-{number}", pool)
        own, peer = _round(work, store, client, this, own_first=number % 2 == 0)
        result.seconds.append(own)
        result.peer_seconds.append(peer)
        client.delete(this.key)
        store.delete(this.key)
    return result


def run_contests(works: Sequence[Work], sizes: Sizes, folder: Path, tell: Tell) -> list[Contest]:
    """Run ``works``; one store and one redis-server serve all of the same durability."""
    results = []
    for durability, same in groupby(works, key=lambda work: work.durability):
        with ExitStack() as stack:
            client = stack.enter_context(redis_server(folder / f"redis-{durability}", durability))
            store = stack.enter_context(
                Store.open(folder / f"kvstream-{durability}", durability=durability)
            )
            for work in same:
                tell(work.title)
                results.append(_contest(work, store, client, sizes))
    return results
