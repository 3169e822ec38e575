"""Runs the contests: both sides by turns, the order changing from round to round."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sides:
    """The two that compete, and the pause between their turns."""

    store: Store
    client: Redis
    settle_s: float

    def _seconds(self, run: Timed) -> float:
        time.sleep(self.settle_s)
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    def round(self, work: Work, this: Round, own_first: bool) -> tuple[float, float]:
        """Return the seconds of kvstream and of Redis for one round."""
        if own_first:
            own = self._seconds(work.own(self.store, this))
            return own, self._seconds(work.peer(self.client, this))
        peer = self._seconds(work.peer(self.client, this))
        return self._seconds(work.own(self.store, this)), peer

    def forget(self, this: Round) -> None:
        """Delete the round's stream on both sides."""
        self.client.delete(this.key)
        self.store.delete(this.key)


def _contest(work: Work, sides: Sides, sizes: Sizes) -> Contest:
    pool = entries(work.count(sizes))
    result = Contest(work.key, work.title, work.target, len(pool))
    sides.round(work, Round(f"{work.key}-warm-up", pool[:WARM_UP]), own_first=True)
    for number in range(sizes.rounds):
        this = Round(f"{work.key}-{number}", pool)
        own, peer = sides.round(work, this, own_first=number % 2 == 0)
        result.seconds.append(own)
        result.peer_seconds.append(peer)
        sides.forget(this)
    return result


def run_contests(
    works: Sequence[Work], sizes: Sizes, folder: Path, tell: Tell
) -> Iterator[Contest]:
    """Run ``works``, one by one; one store and one redis-server serve all of a durability."""
    for durability, same in groupby(works, key=lambda work: work.durability):
        with ExitStack() as stack:
            client = stack.enter_context(redis_server(folder / f"redis-{durability}", durability))
            store = stack.enter_context(
                Store.open(folder / f"kvstream-{durability}", durability=durability)
            )
            sides = Sides(store, client, sizes.settle_s)
            for work in same:
                tell(work.title)
                yield _contest(work, sides, sizes)
