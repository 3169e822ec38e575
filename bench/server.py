"""``kvstream serve`` beside redis-server: 50 clients on the loopback, entries of 4 fields.

redis-benchmark generates the load, except for consumers, whose XACK depends on what they read: they
are in ``consumers``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from redis import Redis

from bench.consumers import consumed
from bench.processes import both, further_servers, loaded
from bench.results import Comparison, Log
from bench.workload import BATCH, Fields, Sizes, entries

KEY = "orders"
PAGE = "100"
STORED = 10_000
"""Entries of the stream that is read."""

Load = Callable[[Redis, int], float]
"""Runs a number of operations on a server; returns the seconds."""


@dataclass(frozen=True, slots=True)
class ServerRow:
    """One row: its load, the operations of a round, and the promised ratio (0: none)."""

    key: str
    title: str
    target: float
    durability: str
    count: Callable[[Sizes], int]
    load: Load
    prepare: Callable[[Redis], None] = lambda client: None


def words(fields: Fields) -> list[str]:
    """Return the fields of an entry as arguments of a command."""
    return [word for pair in fields.items() for word in pair]


def _bench(pipeline: int, *command: str) -> Load:
    def load(client: Redis, count: int) -> float:
        return count / loaded(client, count, pipeline, *command)["rps"]

    return load


def _xadd(pipeline: int, *options: str) -> Load:
    return _bench(pipeline, "XADD", KEY, *options, "*", *words(entries(1)[0]))


def fill(client: Redis, count: int, key: str = KEY, numbered: bool = False) -> None:
    """Append ``count`` entries; ``numbered``: with the IDs 1-0, 2-0 ..."""
    for start in range(0, count, BATCH):
        pipe = client.pipeline(transaction=False)
        for at, fields in enumerate(entries(min(BATCH, count - start)), start + 1):
            pipe.xadd(key, fields, id=f"{at}-0" if numbered else "*")  # type: ignore[arg-type]
        pipe.execute()


def _stored(client: Redis) -> None:
    fill(client, STORED, numbered=True)


ANYWHERE = ("-r", str(STORED - 2 * int(PAGE)))
"""Options with which redis-benchmark replaces ``__rand_int__`` by a number below this."""


SERVER_ROWS = (
    ServerRow("serve-add", "XADD, -P 1", 0.8, "everysec", lambda s: s.served, _xadd(1)),
    ServerRow("serve-add-16", "XADD, -P 16", 1.0, "everysec", lambda s: 4 * s.served, _xadd(16)),
    ServerRow(
        "serve-add-trim",
        "XADD MAXLEN ~ 1000, -P 16",
        0.0,
        "everysec",
        lambda s: 2 * s.served,
        _xadd(16, "MAXLEN", "~", "1000"),
    ),
    ServerRow("serve-add-100", "XADD, -P 100", 1.2, "everysec", lambda s: 4 * s.served, _xadd(100)),
    ServerRow(
        "serve-range",
        "XRANGE COUNT 100",
        1.0,
        "everysec",
        lambda s: s.served // 5,
        _bench(1, *ANYWHERE, "XRANGE", KEY, "__rand_int__", "+", "COUNT", PAGE),
        _stored,
    ),
    ServerRow(
        "serve-read",
        "XREAD COUNT 100",
        1.0,
        "everysec",
        lambda s: s.served // 5,
        _bench(1, *ANYWHERE, "XREAD", "COUNT", PAGE, "STREAMS", KEY, "__rand_int__"),
        _stored,
    ),
    ServerRow(
        "serve-group",
        "XREADGROUP COUNT 100, XACK of 100",
        1.0,
        "everysec",
        lambda s: max(s.served // 50, 100),
        consumed,
    ),
    ServerRow(
        "serve-always", "`always`: XADD, -P 1", 1.0, "always", lambda s: s.served // 5, _xadd(1)
    ),
    ServerRow(
        "serve-always-16", "`always`: XADD, -P 16", 1.0, "always", lambda s: s.served, _xadd(16)
    ),
)


def _compare(
    row: ServerRow, own: Redis, peer: Redis, further: dict[str, Redis], sizes: Sizes
) -> Comparison:
    count = row.count(sizes)
    result = Comparison(row.key, row.title, row.target, count)
    sides = [(own, result.seconds), (peer, result.peer_seconds)]
    for name, client in further.items():
        sides.append((client, result.further_seconds.setdefault(name, [])))
    for number in range(-1, sizes.rounds):
        for client, seconds in sides if number % 2 else reversed(sides):
            client.flushall()
            row.prepare(client)
            took = row.load(client, count if number >= 0 else max(count // 10, 100))
            if number >= 0:  # the first round warms up
                seconds.append(took)
    return result


def run_server(rows: list[ServerRow], sizes: Sizes, folder: Path, log: Log) -> Iterator[Comparison]:
    """Run rows one by one, with one server of each kind for each durability."""
    for durability, same in groupby(rows, key=lambda row: row.durability):
        with (
            both(folder, durability) as (own, peer),
            further_servers(folder / f"further-serve-{durability}", durability) as further,
        ):
            for row in same:
                log(f"server: {row.title}")
                yield _compare(row, own, peer, further, sizes)
