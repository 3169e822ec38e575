"""What an archive costs its store, and how long a restore takes.

Each store is in a process of its own, so its processor time is that of its archive too: one has
none, one a folder, one a bucket of SeaweedFS on this machine, if that is installed. They take
turns, round by round. A round ends when all that it wrote is in the archive. ::

    python -m bench.copies.archive DIRECTORY [INTERVAL_S URL]     adds as many as each line says
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from redis import Redis

from bench.load import WrongReply
from bench.machine import seaweed
from bench.machine.seaweed import Seaweed
from bench.processes import kvstream_server, loaded, process_id, process_seconds
from bench.results import Limit, Limits
from bench.workload import BATCH, Sizes, entries
from kvstream import Store
from kvstream.archive.restore import restore

NONE = "none"
PLACES = {"folder": "a folder", "bucket": "a bucket of SeaweedFS"}
PUT_S, PUT_S_MAX = 0.3, 60.0
"""The time of a put, and the longest on a busy machine."""
COST_MAX = 1.03
"""The processor time of a write with an archive, over that without."""
RESTORE_S_MAX = 20.0
"""For a GB: 50 MB a second."""
POOL = 20_000
"""Different entries that are added one by one."""
VALUE_BYTES = 1000
ANY_ORDER = ("sku", "sku-__rand_int__", "quantity", "07", "customer", "customer-__rand_int__")
"""An entry of which redis-benchmark makes different ones."""

Side = Callable[[int], float]
"""Writes a number of entries into a store; returns the processor seconds that it took."""


@contextmanager
def places(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the URL of an archive in each place, the first one none."""
    found = {NONE: "", "folder": f"file://{folder.resolve()}/archive"}
    if seaweed.PROGRAM is None:
        yield found
        return
    (folder / "seaweed").mkdir(parents=True)
    server, before = Seaweed(folder / "seaweed"), dict(os.environ)
    try:
        os.environ.update(server.environment)
        server.make_bucket("kvstream")
        yield found | {"bucket": f"s3://kvstream/{folder.name}"}
    finally:
        os.environ.clear()
        os.environ.update(before)
        server.kill()


def compare(sides: dict[str, Side], count: int, rounds: int) -> dict[str, list[float]]:
    """Return the processor seconds of the rounds of each side."""
    used: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():  # warms up
        side(count // 10)
    for number in range(rounds):
        for name in sides if number % 2 else reversed(sides):
            used[name].append(sides[name](count))
    return used


def _costs(key: str, what: str, used: dict[str, list[float]], count: int) -> Iterator[Limit]:
    """Yield the processor time with each archive over that without."""
    least_us = 1e6 * median(used[NONE]) / count
    for name in used.keys() - {NONE}:
        ratios = [own / none for own, none in zip(used[name], used[NONE], strict=True)]
        low, _, high = quantiles(ratios, n=4)
        note = f"{1e6 * median(used[name]) / count:.2f} us against {least_us:.2f} us; the middle "
        note += f"half of {len(ratios)} rounds {low:.2f} to {high:.2f}"
        title = f"{what} with an archive in {PLACES[name]}: processor time, beside none"
        yield Limit(f"{key}-{name}", title, median(ratios), COST_MAX, "x", note)


# --- one by one ---------------------------------------------------------------------------------


def write_rounds(directory: Path, interval_s: float = 1.0, url: str = "") -> None:
    """Add as many entries as each line of the input says; print the processor seconds."""
    pool = entries(POOL)
    with Store.open(directory, archive=url, archive_interval_s=interval_s) as store:
        stream = store.stream("orders")
        for line in sys.stdin:
            begun = time.process_time()
            for fields in islice(cycle(pool), int(line)):
                stream.add(fields)
            time.sleep(interval_s + PUT_S)
            _wait_until_archived(lambda: _is_archived(store))
            print(time.process_time() - begun, flush=True)


def _is_archived(store: Store) -> bool:
    """Return whether all is in the archive, if the store has one."""
    status = store.engine.archiving.status()
    return status is None or status.reached >= store.engine.database.sequence


def _wait_until_archived(is_archived: Callable[[], bool]) -> None:
    """Wait for a put that takes long; raise WrongReply if it takes too long."""
    deadline = time.monotonic() + PUT_S_MAX
    while not is_archived():
        if time.monotonic() > deadline:
            raise WrongReply("the archive is behind")
        time.sleep(PUT_S / 3)


@contextmanager
def _writer(directory: Path, interval_s: float, url: str) -> Iterator[Side]:
    """Run a process that adds entries one by one."""
    command = [sys.executable, "-m", "bench.copies.archive", str(directory), str(interval_s), url]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        given, answers = child.stdin, child.stdout

        def write(count: int) -> float:
            given.write(f"{count}\n")
            given.flush()
            return float(answers.readline())

        try:
            yield write
        finally:
            given.close()
            child.wait()


def add_cost(folder: Path, sizes: Sizes) -> list[Limit]:
    """Compare adding one by one with and without an archive."""
    count, interval_s = 5 * sizes.single, sizes.archive_interval_s
    with places(folder / "archive-add") as urls, ExitStack() as stack:
        sides = {
            name: stack.enter_context(_writer(folder / "archive-add" / name, interval_s, url))
            for name, url in urls.items()
        }
        used = compare(sides, count, sizes.archive_rounds)
    return sorted(_costs("archive-add", "add one by one", used, count), key=lambda row: row.key)


# --- a server -----------------------------------------------------------------------------------


def _serve(client: Redis, interval_s: float, count: int) -> float:
    """Send XADD, sixteen at once; return the processor seconds of the server."""
    pid = process_id(client)
    begun = process_seconds(pid)
    loaded(client, count, 16, "-r", "1000000", "XADD", "orders", "*", *ANY_ORDER)
    time.sleep(interval_s + PUT_S)
    _wait_until_archived(lambda: not _lag_s(client))
    return process_seconds(pid) - begun


def _lag_s(client: Any) -> float:
    """Return how far a server's archive is behind; 0 if it has none."""
    return float(client.info("persistence").get("archive_lag_seconds", 0))


def serve_cost(folder: Path, sizes: Sizes) -> list[Limit]:
    """Compare XADD -P 16 of a server with and without an archive."""
    count, interval_s = 4 * sizes.served, sizes.archive_interval_s
    with places(folder / "archive-serve") as urls, ExitStack() as stack:
        sides: dict[str, Side] = {}
        for name, url in urls.items():
            options = ("--archive", url, "--archive-interval", f"{interval_s}s") if url else ()
            place = folder / "archive-serve" / name
            client = stack.enter_context(kvstream_server(place, "everysec", *options))
            sides[name] = partial(_serve, client, interval_s)
        used = compare(sides, count, sizes.archive_rounds)
    return sorted(_costs("archive-serve", "XADD, -P 16", used, count), key=lambda row: row.key)


# --- restoring ----------------------------------------------------------------------------------


def _fill(store: Store, megabytes: int) -> int:
    """Add entries that cannot be compressed; return their number."""
    batches = max(megabytes * 1_000_000 // (BATCH * VALUE_BYTES), 1)
    for _ in range(batches):
        store.stream("orders").add_many([{"v": os.urandom(VALUE_BYTES)} for _ in range(BATCH)])
    return batches * BATCH


def _restored(folder: Path, url: str, megabytes: int) -> tuple[float, str]:
    """Make an archive, half of it tables and half a log; return the seconds for a GB of it."""
    with Store.open(folder / "data") as store:
        count = _fill(store, megabytes // 2)
    with Store.open(folder / "data", archive=url) as store:
        status = store.engine.archiving.status
        while not status().snapshot_ms:  # type: ignore[union-attr]
            time.sleep(0.1)
        count += _fill(store, megabytes // 2)
    begun = time.perf_counter()
    plan = restore(url, folder / "back")
    fetched_s = time.perf_counter() - begun
    with Store.open(folder / "back") as store:
        took_s = time.perf_counter() - begun
        if len(store.stream("orders")) != count:
            raise WrongReply(f"{len(store.stream('orders'))} entries of {count} were restored")
    size = plan.table_bytes + plan.log_bytes
    note = f"{size / took_s / 1e6:,.0f} MB/s; {fetched_s:.1f} s for {plan.table_bytes / 1e6:,.0f} "
    note += f"MB of tables and {plan.log_bytes / 1e6:,.0f} MB of log, {took_s - fetched_s:.1f} s "
    return took_s * 1e9 / size, note + "to open it"


def restore_time(folder: Path, sizes: Sizes) -> list[Limit]:
    """Measure a restore from each place until the store is open."""
    found = []
    with places(folder / "archive-restore") as urls:
        for name, url in urls.items():
            if url:
                place = folder / "archive-restore" / name
                took_s, note = _restored(place, f"{url}-{name}", sizes.archived_mb)
                title = f"restore of 1 GB from {PLACES[name]}, until it is open"
                row = Limit(f"archive-restore-{name}", title, took_s, RESTORE_S_MAX, "s", note)
                found.append(row)
    return found


ARCHIVE_LIMITS: Limits = {
    "archive-add": ("add with an archive, one by one", add_cost),
    "archive-serve": ("XADD, -P 16, with an archive", serve_cost),
    "archive-restore": ("restore of an archive", restore_time),
}


if __name__ == "__main__":
    write_rounds(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
