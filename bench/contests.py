"""What both sides do: each contest prepares a round on either side, and only its call is timed.

kvstream is used as its README shows it, Redis as redis-py's own documentation does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Barrier, Thread
from typing import Any

from redis import Redis

from bench.workload import BATCH, PAGE, Fields, Sizes
from kvstream import Store
from kvstream.types.ids import MIN_ID

GROUP = "billing"
CONSUMER = "worker-1"
THREADS = 50

Timed = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Round:
    """What one round works on: a stream that does not exist yet, and the entries for it."""

    key: str
    entries: Sequence[Fields]

    @property
    def batches(self) -> list[Sequence[Fields]]:
        return [self.entries[at : at + BATCH] for at in range(0, len(self.entries), BATCH)]


@dataclass(frozen=True, slots=True)
class Work:
    """One row of the table: the work, the size of a round and the ratio that was promised."""

    key: str
    title: str
    target: float
    durability: str
    count: Callable[[Sizes], int]
    own: Callable[[Store, Round], Timed]
    peer: Callable[[Redis, Round], Timed]


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
            pipe = client.pipeline(transaction=False)  # the faster kind, though not atomic
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
    """Share the entries among threads that are running, and waiting, before the clock starts."""
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
    """Tell the type checker that a synchronous client's reply is no awaitable."""
    return value


CONTESTS = (
    Work("add", "add, one by one", 6, "everysec", lambda s: s.single, _add, _add_peer),
    Work(
        "add_many",
        f"add_many of {BATCH} against a pipeline of {BATCH}",
        5,
        "everysec",
        lambda s: s.bulk,
        _add_many,
        _add_many_peer,
    ),
    Work(
        "range",
        f"range in pages of {PAGE}, decoded to entries",
        2,
        "everysec",
        lambda s: s.bulk,
        _range,
        _range_peer,
    ),
    Work(
        "read-100",
        "consumer reads 100, acks 100",
        2,
        "everysec",
        lambda s: s.bulk,
        _consume(100),
        _consume_peer(100),
    ),
    Work(
        "read-1",
        "consumer reads 1, acks 1",
        6,
        "everysec",
        lambda s: s.single,
        _consume(1),
        _consume_peer(1),
    ),
    Work("always", "`always`, one by one", 1, "always", lambda s: s.synced, _add, _add_peer),
    Work(
        "always-threads",
        f"`always`, {THREADS} threads",
        2,
        "always",
        lambda s: s.synced_threads,
        _add_threads,
        _add_threads_peer,
    ),
)
