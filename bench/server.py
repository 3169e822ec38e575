"""``kvstream serve`` beside redis-server: 50 clients on the loopback, entries of 4 fields.

redis-benchmark generates the load, except for consumers, whose XACK depends on what they read:
their requests come from ``load``.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from redis import Redis

from bench.load import (
    ENTRY,
    GROUP,
    Script,
    WrongReply,
    bulk_string,
    entry_id,
    entry_reply,
    exchanges,
    fill_numbered,
    run_scripts,
)
from bench.machine.counters import counted
from bench.machine.neighbour import Neighbour
from bench.processes import (
    CLIENTS,
    both,
    framed,
    further_servers,
    least_server,
    loaded,
    port_of,
    process_id,
    process_seconds,
)
from bench.results import COMPARED, OWN, PEER, Comparison, Log, Used
from bench.targets import LEAST, runs_least
from bench.workload import Sizes

KEY = "orders"
READ = 100
"""Entries of one read."""
STORED = 10_000
"""Entries of the stream that is read."""

RESOLUTION_S = 0.001
"""What redis-benchmark measures in."""

Load = Callable[[Redis, int], float]
"""Runs a number of operations on a server; returns the seconds."""
Check = Callable[[Redis, int], None]


@dataclass(frozen=True, slots=True)
class ServerRow:
    """One row: its load, the operations of a round, and the promised ratio (0: none)."""

    key: str
    title: str
    target: float
    durability: str
    count: Callable[[Sizes], int]
    load: Load
    prepare: Check = lambda client, count: None
    """Fills an empty server for a round of that many operations."""
    check: Check = lambda client, count: None
    """Raises WrongReply unless the round has done that many operations."""
    rounds: Callable[[Sizes], int] = lambda sizes: sizes.rounds


def benchmark(pipeline: int, *command: str, clients: int = CLIENTS) -> Load:
    """Return a load by redis-benchmark."""

    def load(client: Redis, count: int) -> float:
        rate = loaded(client, count, pipeline, *command, clients=clients)["rps"]
        return max(count / rate, RESOLUTION_S)

    return load


def _xadd(pipeline: int, *options: str) -> Load:
    return benchmark(pipeline, "XADD", KEY, *options, "*", *ENTRY)


def fill(client: Redis, count: int) -> None:
    """Append ``count`` entries with the IDs 1-0, 2-0 ..."""
    fill_numbered(port_of(client), KEY, count, first=1)


def _stored(client: Redis, count: int) -> None:
    fill(client, STORED)


def _own_stream(number: int) -> str:
    """Return the key of one consumer's stream."""
    return f"orders-{number:02d}"


def _pages(count: int) -> int:
    """Return the pages of one consumer."""
    return max(count // CLIENTS, 1)


def _prepare_pages(client: Redis, count: int) -> None:
    """Fill a stream with a group for each consumer: ``count`` pages in all."""
    for number in range(CLIENTS):
        fill_numbered(port_of(client), _own_stream(number), READ * _pages(count))
        client.xgroup_create(_own_stream(number), GROUP, id="0")


def _pages_script(key: str, pages: int) -> Script:
    """Read a page of entries and acknowledge it; repeat."""
    read = framed("XREADGROUP", "GROUP", GROUP, "c", "COUNT", str(READ), "STREAMS", key, ">")
    head = b"*1\r\n*2\r\n" + bulk_string(key) + b"*%d\r\n" % READ
    pairs = []
    for first in range(0, READ * pages, READ):
        numbers = range(first, first + READ)
        pairs.append((read, head + b"".join(map(entry_reply, numbers))))
        pairs.append((framed("XACK", key, GROUP, *map(entry_id, numbers)), b":%d\r\n" % READ))
    return exchanges(pairs)


def _consume_pages(client: Redis, count: int) -> float:
    """Read and acknowledge ``count`` pages with 50 consumers; return the seconds."""
    pages = _pages(count)
    scripts = [_pages_script(_own_stream(number), pages) for number in range(CLIENTS)]
    return run_scripts(port_of(client), scripts) * count / (pages * CLIENTS)


def _check_pages(client: Redis, count: int) -> None:
    """Raise WrongReply unless every entry was read and acknowledged."""
    for number in range(CLIENTS):
        group = client.xinfo_groups(_own_stream(number))[0]
        if group["pending"] or group["entries-read"] != READ * _pages(count):
            raise WrongReply(f"{_own_stream(number)} was not consumed fully: {group}")


ANYWHERE = ("-r", str(STORED - 2 * READ))
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
        benchmark(1, *ANYWHERE, "XRANGE", KEY, "__rand_int__", "+", "COUNT", str(READ)),
        _stored,
    ),
    ServerRow(
        "serve-read",
        "XREAD COUNT 100",
        1.0,
        "everysec",
        lambda s: s.served // 5,
        benchmark(1, *ANYWHERE, "XREAD", "COUNT", str(READ), "STREAMS", KEY, "__rand_int__"),
        _stored,
    ),
    ServerRow(
        "serve-group",
        "XREADGROUP COUNT 100, XACK of 100",
        1.0,
        "everysec",
        lambda s: max(s.served // 50, 100),
        _consume_pages,
        _prepare_pages,
        _check_pages,
    ),
    ServerRow(
        "serve-always", "`always`: XADD, -P 1", 1.0, "always", lambda s: s.served // 5, _xadd(1)
    ),
    ServerRow(
        "serve-always-16", "`always`: XADD, -P 16", 1.0, "always", lambda s: s.served, _xadd(16)
    ),
)


def run_round(row: ServerRow, client: Redis, count: int) -> Used:
    """Run one round on one server; return what it took."""
    client.flushall()
    row.prepare(client, count)
    pid = process_id(client)
    with counted(pid) as counts:
        before = process_seconds(pid)
        took = row.load(client, count)
        processor = process_seconds(pid) - before
    row.check(client, count)
    return Used(took, processor, counts)


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of one durability, by name, and the neighbour beside them if there is one."""

    clients: dict[str, Redis]
    neighbour: Neighbour | None

    def of(self, key: str) -> dict[str, Redis]:
        """Return the servers that run a row: the least one if the row has a place beside it."""
        left_out = () if runs_least(key) else (LEAST,)
        return {name: each for name, each in self.clients.items() if name not in left_out}

    def measure(self, row: ServerRow, sizes: Sizes) -> Comparison:
        """Run the rounds of a row, the servers by turns, each also beside the neighbour."""
        further = {name: list[float]() for name in self.clients if name not in COMPARED}
        result = Comparison(row.key, row.title, row.target, row.count(sizes), [], [], further)
        rounds = row.rounds(sizes)
        if rounds > 1:
            for client in self.of(row.key).values():  # warms up
                run_round(row, client, max(result.count // 10, 100))
        for number in range(rounds):
            self._run(row, result, number)
        return result

    def _run(self, row: ServerRow, result: Comparison, number: int) -> None:
        """Run one round on each server."""
        sides = [*self.of(row.key).items()]
        for name, client in sides if number % 2 else reversed(sides):
            result.add(name, run_round(row, client, result.count))
            if self.neighbour is not None and name in COMPARED:
                with self.neighbour.running([process_id(client)]):
                    result.add_beside(name, run_round(row, client, result.count))


@contextmanager
def _running(
    durability: str, rows: Sequence[ServerRow], folder: Path, neighbour: Neighbour | None
) -> Iterator[Servers]:
    """Run the servers that some rows of one durability need."""
    with ExitStack() as stack:
        own, peer = stack.enter_context(both(folder, durability))
        clients = {OWN: own, PEER: peer}
        if any(runs_least(row.key) for row in rows):
            clients[LEAST] = stack.enter_context(least_server(folder / "least"))
        further = stack.enter_context(further_servers(folder / f"further-{durability}", durability))
        yield Servers(clients | further, neighbour)


def run_server(
    rows: list[ServerRow], sizes: Sizes, folder: Path, log: Log, neighbour: Neighbour | None = None
) -> Iterator[Comparison]:
    """Run rows one by one, with one server of each kind for each durability."""
    for durability, group in groupby(rows, key=lambda row: row.durability):
        same = list(group)
        with _running(durability, same, folder, neighbour) as servers:
            for row in same:
                log(f"server: {row.title}")
                yield servers.measure(row, sizes)
