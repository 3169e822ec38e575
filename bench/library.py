"""The library beside redis-py: each row prepares a round on both sides, then times one call.

The sides take turns, and the one that begins changes from round to round. kvstream is used as in
its README, Redis as in redis-py's documentation.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

from redis import Redis

import kvstream
from bench.processes import further_servers, owner_process, redis_server
from bench.results import Comparison, Log
from bench.workload import BATCH, PAGE, Fields, Sizes, entries
from kvstream import Store
from kvstream.types.ids import MIN_ID

GROUP = "billing"
CONSUMER = "worker-1"
THREADS = 50

Timed = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Round:
    """A new stream, and the entries of one round."""

    key: str
    entries: Sequence[Fields]

    @property
    def batches(self) -> list[Sequence[Fields]]:
        return [self.entries[at : at + BATCH] for at in range(0, len(self.entries), BATCH)]


@dataclass(frozen=True, slots=True)
class LibraryRow:
    """One row of the table: the work on each side, its size, and the promised ratio."""

    key: str
    title: str
    target: float
    durability: str
    count: Callable[[Sizes], int]
    own: Callable[[Store, Round], Timed]
    peer: Callable[[Redis, Round], Timed]
    shared: bool = False
    """kvstream's side is a client of a shared directory; another process owns the store."""


def _add(store: Store, work: Round) -> Timed:
    stream = store.stream(work.key)

    def run() -> None:
        for fields in work.entries:
            stream.add(fields)

    return run


def _add_peer(client: Redis, work: Round) -> Timed:
    def run() -> None:
        for fields in work.entries:
            client.xadd(work.key, fields)  # type: ignore[arg-type]  # its dict is invariant

    return run


def _add_many(store: Store, work: Round) -> Timed:
    stream = store.stream(work.key)

    def run() -> None:
        for batch in work.batches:
            stream.add_many(batch)

    return run


def _add_many_peer(client: Redis, work: Round) -> Timed:
    def run() -> None:
        for batch in work.batches:
            pipe = client.pipeline(transaction=False)  # faster than MULTI, but not atomic
            for fields in batch:
                pipe.xadd(work.key, fields)  # type: ignore[arg-type]
            pipe.execute()

    return run


def _range(store: Store, work: Round) -> Timed:
    _add_many(store, work)()
    stream = store.stream(work.key)

    def run() -> None:
        seen, start = 0, MIN_ID
        while page := stream.range(start, "+", count=PAGE):
            for entry in page:
                seen += len(entry.fields or ()) if entry.id else 0
            start = page[-1].id.next()
        assert seen == 4 * len(work.entries)

    return run


def _range_peer(client: Redis, work: Round) -> Timed:
    _add_many_peer(client, work)()

    def run() -> None:
        seen, start = 0, b"-"
        while page := _reply(client.xrange(work.key, start, "+", count=PAGE)):
            for entry_id, fields in page:
                seen += len(fields) if entry_id else 0
            start = b"(" + page[-1][0]
        assert seen == 4 * len(work.entries)

    return run


def _consume(count: int) -> Callable[[Store, Round], Timed]:
    def prepare(store: Store, work: Round) -> Timed:
        _add_many(store, work)()
        group = store.stream(work.key).create_group(GROUP, start="0")
        worker = group.consumer(CONSUMER)

        def run() -> None:
            acked = 0
            while page := worker.read(count=count):
                acked += group.ack(*[entry.id for entry in page if entry.fields])
            assert acked == len(work.entries)

        return run

    return prepare


def _consume_peer(count: int) -> Callable[[Redis, Round], Timed]:
    def prepare(client: Redis, work: Round) -> Timed:
        _add_many_peer(client, work)()
        client.xgroup_create(work.key, GROUP, id="0")

        def run() -> None:
            acked = 0
            while reply := _reply(client.xreadgroup(GROUP, CONSUMER, {work.key: ">"}, count=count)):
                ids = [entry_id for entry_id, fields in reply[0][1] if fields]
                acked += _reply(client.xack(work.key, GROUP, *ids))
            assert acked == len(work.entries)

        return run

    return prepare


def _in_threads(add: Callable[[Fields], object], work: Round) -> Timed:
    """Divide the entries among threads that have started before the clock does."""
    start = Barrier(THREADS + 1)

    def share(entries: Sequence[Fields]) -> None:
        start.wait()
        for fields in entries:
            add(fields)

    shares = [work.entries[at::THREADS] for at in range(THREADS)]
    threads = [Thread(target=share, args=(entries,), daemon=True) for entries in shares]
    for thread in threads:
        thread.start()

    def run() -> None:
        start.wait()
        for thread in threads:
            thread.join()

    return run


def _add_threads(store: Store, work: Round) -> Timed:
    return _in_threads(store.stream(work.key).add, work)


def _add_threads_peer(client: Redis, work: Round) -> Timed:
    def add(fields: Fields) -> None:
        client.xadd(work.key, fields)  # type: ignore[arg-type]

    return _in_threads(add, work)


def _reply(value: Any) -> Any:
    """Hide from the type checker that an asynchronous client's reply is an awaitable."""
    return value


LIBRARY_ROWS = (
    LibraryRow("add", "add, one by one", 6, "everysec", lambda s: s.single, _add, _add_peer),
    LibraryRow(
        "add_many",
        f"add_many of {BATCH} against a pipeline of {BATCH}",
        5,
        "everysec",
        lambda s: s.bulk,
        _add_many,
        _add_many_peer,
    ),
    LibraryRow(
        "range",
        f"range in pages of {PAGE}, decoded to entries",
        2,
        "everysec",
        lambda s: s.bulk,
        _range,
        _range_peer,
    ),
    LibraryRow(
        "read-100",
        "consumer reads 100, acks 100",
        2,
        "everysec",
        lambda s: s.bulk,
        _consume(100),
        _consume_peer(100),
    ),
    LibraryRow(
        "read-1",
        "consumer reads 1, acks 1",
        6,
        "everysec",
        lambda s: s.single,
        _consume(1),
        _consume_peer(1),
    ),
    LibraryRow("always", "`always`, one by one", 1, "always", lambda s: s.synced, _add, _add_peer),
    LibraryRow(
        "always-threads",
        f"`always`, {THREADS} threads",
        2,
        "always",
        lambda s: s.synced_threads,
        _add_threads,
        _add_threads_peer,
    ),
    LibraryRow(
        "shared-add",
        "shared directory: add by a client, one by one",
        2,
        "everysec",
        lambda s: s.single,
        _add,
        _add_peer,
        shared=True,
    ),
    LibraryRow(
        "shared-read-1",
        "shared directory: a client reads 1, acks 1",
        2,
        "everysec",
        lambda s: s.single,
        _consume(1),
        _consume_peer(1),
        shared=True,
    ),
)

WARM_UP = 500
"""Entries of the warm-up round, which opens connections and fills caches."""


@dataclass(frozen=True, slots=True)
class Sides:
    """The two sides, newer servers, and the pause before each measurement."""

    store: Store
    client: Redis
    further: dict[str, Redis]
    settle_s: float

    def _seconds(self, run: Timed) -> float:
        time.sleep(self.settle_s)
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    def round(self, row: LibraryRow, this: Round, own_first: bool) -> tuple[float, float]:
        """Run one round; return the seconds of kvstream and of Redis."""
        if own_first:
            own = self._seconds(row.own(self.store, this))
            return own, self._seconds(row.peer(self.client, this))
        peer = self._seconds(row.peer(self.client, this))
        return self._seconds(row.own(self.store, this)), peer

    def further_round(self, row: LibraryRow, this: Round) -> dict[str, float]:
        """Run one round on the newer servers; return their seconds by name."""
        return {
            name: self._seconds(row.peer(client, this)) for name, client in self.further.items()
        }

    def forget(self, this: Round) -> None:
        """Delete the round's stream on all sides."""
        for client in (self.client, *self.further.values()):
            client.delete(this.key)
        self.store.delete(this.key)


def _compare(row: LibraryRow, sides: Sides, sizes: Sizes) -> Comparison:
    pool = entries(row.count(sizes))
    result = Comparison(row.key, row.title, row.target, len(pool))
    warm_up = Round(f"{row.key}-warm-up", pool[:WARM_UP])
    sides.round(row, warm_up, own_first=True)
    sides.further_round(row, warm_up)
    for number in range(sizes.rounds):
        this = Round(f"{row.key}-{number}", pool)
        own, peer = sides.round(row, this, own_first=number % 2 == 0)
        result.seconds.append(own)
        result.peer_seconds.append(peer)
        for name, took in sides.further_round(row, this).items():
            result.further_seconds.setdefault(name, []).append(took)
        sides.forget(this)
    return result


def run_library(
    rows: Sequence[LibraryRow], sizes: Sizes, folder: Path, log: Log
) -> Iterator[Comparison]:
    """Run rows one by one, with one store and one redis-server for each kind of store."""
    for (durability, shared), same in groupby(rows, key=lambda row: (row.durability, row.shared)):
        place = folder / f"{durability}{'-shared' if shared else ''}"
        with ExitStack() as stack:
            client = stack.enter_context(redis_server(place / "redis", durability))
            if shared:
                stack.enter_context(owner_process(place / "kvstream"))
                store = stack.enter_context(kvstream.open(place / "kvstream", shared=True))
            else:
                store = stack.enter_context(Store.open(place / "kvstream", durability=durability))
            further = stack.enter_context(further_servers(place / "further", durability))
            sides = Sides(store, client, further, sizes.settle_s)
            for row in same:
                log(row.title)
                yield _compare(row, sides, sizes)
