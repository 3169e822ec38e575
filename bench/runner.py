"""Runs the contests: both sides by turns, the order changing from round to round."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from redis import Redis

from bench.contests import Round, Timed, Work
from bench.peer import further_servers, redis_server
from bench.results import Contest
from bench.workload import Sizes, entries
from kvstream import Store

WARM_UP = 500
"""Entries of the round before the first: connections, caches and imports are made then."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sides:
    """The two that compete, newer servers beside them, and the pause between their turns."""

    store: Store
    client: Redis
    further: dict[str, Redis]
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

    def further_round(self, work: Work, this: Round) -> dict[str, float]:
        """Return the seconds of the newer servers."""
        return {
            name: self._seconds(work.peer(client, this)) for name, client in self.further.items()
        }

    def forget(self, this: Round) -> None:
        """Delete the round's stream on all sides."""
        for client in (self.client, *self.further.values()):
            client.delete(this.key)
        self.store.delete(this.key)


def _contest(work: Work, sides: Sides, sizes: Sizes) -> Contest:
    pool = entries(work.count(sizes))
    result = Contest(work.key, work.title, work.target, len(pool))
    warm_up = Round(f"{work.key}-warm-up", pool[:WARM_UP])
    sides.round(work, warm_up, own_first=True)
    sides.further_round(work, warm_up)
    for number in range(sizes.rounds):
        this = Round(f"{work.key}-{number}", pool)
        own, peer = sides.round(work, this, own_first=number % 2 == 0)
        result.seconds.append(own)
        result.peer_seconds.append(peer)
        for name, took in sides.further_round(work, this).items():
            result.further_seconds.setdefault(name, []).append(took)
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
            further = stack.enter_context(
                further_servers(folder / f"further-{durability}", durability)
            )
            sides = Sides(store, client, further, sizes.settle_s)
            for work in same:
                tell(work.title)
                yield _contest(work, sides, sizes)
