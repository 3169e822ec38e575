"""What clients ask of both servers over the loopback: 50 of them, entries of 4 fields.

redis-benchmark makes the load; consumers that read and acknowledge are sockets of our own, for
what they acknowledge depends on what they read.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from redis import Redis

from bench.consumers import consumed
from bench.peer import further_servers
from bench.results import Contest
from bench.runner import Tell
from bench.servers import both, loaded
from bench.workload import BATCH, Fields, Sizes, entries

KEY = "orders"
PAGE = "100"
STORED = 10_000
"""Entries of the stream that is read."""

Load = Callable[[Redis, int], float]
"""Does so many operations on a server; returns the seconds that they took."""


@dataclass(frozen=True, slots=True)
class Served:
    """One row of the table: its work, the operations of a round, the ratio promised (0: none)."""

    key: str
    title: str
    target: float
    durability: str
    count: Callable[[Sizes], int]
    load: Load
    prepare: Callable[[Redis], None] = lambda client: None


def words(fields: Fields) -> list[str]:
    """Return the words of a command that names the fields of an entry."""
    return [word for pair in fields.items() for word in pair]


def _bench(pipeline: int, *command: str) -> Load:
    def load(client: Redis, count: int) -> float:
        return count / loaded(client, count, pipeline, *command)["rps"]

    return load


def _xadd(pipeline: int, *options: str) -> Load:
    return _bench(pipeline, "XADD", KEY, *options, "*", *words(entries(1)[0]))


def fill(client: Redis, count: int, key: str = KEY, numbered: bool = False) -> None:
    """Append ``count`` entries; ``numbered``: with the IDs 1-0, 2-0 and so on."""
    for start in range(0, count, BATCH):
        pipe = client.pipeline(transaction=False)
        for at, fields in enumerate(entries(min(BATCH, count - start)), start + 1):
            pipe.xadd(key, fields, id=f"{at}-0" if numbered else "*")  # type: ignore[arg-type]
        pipe.execute()


def _stored(client: Redis) -> None:
    fill(client, STORED, numbered=True)


ANYWHERE = ("-r", str(STORED - 2 * int(PAGE)))
"""Has redis-benchmark put a number below that in the place of each ``__rand_int__``."""


SERVED = (
    Served("serve-add", "XADD, -P 1", 0.8, "everysec", lambda s: s.served, _xadd(1)),
    Served("serve-add-16", "XADD, -P 16", 1.0, "everysec", lambda s: 4 * s.served, _xadd(16)),
    Served(
        "serve-add-trim",
        "XADD MAXLEN ~ 1000, -P 16",
        0.0,
        "everysec",
        lambda s: 2 * s.served,
        _xadd(16, "MAXLEN", "~", "1000"),
    ),
    Served("serve-add-100", "XADD, -P 100", 1.2, "everysec", lambda s: 4 * s.served, _xadd(100)),
    Served(
        "serve-range",
        "XRANGE COUNT 100",
        1.0,
        "everysec",
        lambda s: s.served // 5,
        _bench(1, *ANYWHERE, "XRANGE", KEY, "__rand_int__", "+", "COUNT", PAGE),
        _stored,
    ),
    Served(
        "serve-read",
        "XREAD COUNT 100",
        1.0,
        "everysec",
        lambda s: s.served // 5,
        _bench(1, *ANYWHERE, "XREAD", "COUNT", PAGE, "STREAMS", KEY, "__rand_int__"),
        _stored,
    ),
    Served(
        "serve-group",
        "XREADGROUP COUNT 100, XACK of 100",
        1.0,
        "everysec",
        lambda s: max(s.served // 50, 100),
        consumed,
    ),
    Served(
        "serve-always", "`always`: XADD, -P 1", 1.0, "always", lambda s: s.served // 5, _xadd(1)
    ),
    Served(
        "serve-always-16", "`always`: XADD, -P 16", 1.0, "always", lambda s: s.served, _xadd(16)
    ),
)


def _measured(
    work: Served, own: Redis, peer: Redis, further: dict[str, Redis], sizes: Sizes
) -> Contest:
    count = work.count(sizes)
    result = Contest(work.key, work.title, work.target, count)
    sides = [(own, result.seconds), (peer, result.peer_seconds)]
    for name, client in further.items():
        sides.append((client, result.further_seconds.setdefault(name, [])))
    for number in range(-1, sizes.rounds):
        for client, seconds in sides if number % 2 else reversed(sides):
            client.flushall()
            work.prepare(client)
            took = work.load(client, count if number >= 0 else max(count // 10, 100))
            if number >= 0:  # the first is to warm up
                seconds.append(took)
    return result


def run_served(works: list[Served], sizes: Sizes, folder: Path, tell: Tell) -> Iterator[Contest]:
    """Run ``works``, one after another; one server of each kind serves all of a durability."""
    for durability, same in groupby(works, key=lambda work: work.durability):
        with (
            both(folder, durability) as (own, peer),
            further_servers(folder / f"further-serve-{durability}", durability) as further,
        ):
            for work in same:
                tell(f"server: {work.title}")
                yield _measured(work, own, peer, further, sizes)
