"""The steps of the job: append, process until killed, resume, check, serve. Prints nothing."""

import json
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from demo.readings import SOURCES, Key, Sum, fold
from demo.worker import DOOMED, GROUP, RESULTS
from kvstream import Store

NAMES = ("anna", "ben", DOOMED, "dora")
ROOT = Path(__file__).resolve().parent.parent
PAGE = 1000

Watch = Callable[[int], None]
"""Receives the number of entries delivered so far."""


class DemoFailed(Exception):
    """A result is not as promised."""


@dataclass(slots=True)
class Run:
    """What one run of the worker process did, in entries."""

    delivered: Counter[str] = field(default_factory=Counter)
    """By their origin: new, resumed or claimed."""
    abandoned: int = 0
    """Left pending by the consumer that died."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The pending and undelivered entries of a group, over all streams."""

    pending: int
    lag: int


def append(folder: Path, data: Path, rows_max: int | None) -> int:
    """Append the files to their streams, with each row's time as ID; return the number of rows."""
    rows = 0
    with Store.open(folder) as store:
        for source in SOURCES:
            stream = store.stream(source.stream)
            for reading in source.readings(data, rows_max):
                stream.add(reading.columns, id=reading.ms)
            stream.create_group(GROUP, start="0")
            rows += len(stream)
    return rows


def _reports(worker: subprocess.Popen[str]) -> Iterator[tuple[str, int]]:
    """Yield each report, and answer it when the next one is requested."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    for line in worker.stdout:
        report = json.loads(line)
        yield report["event"], report["count"]
        worker.stdin.write("\n")
        worker.stdin.flush()


def work(folder: Path, names: Sequence[str], kill_at: int | None, watch: Watch) -> Run:
    """Run the worker process; with ``kill_at``, kill -9 it after that many deliveries."""
    command = [sys.executable, "-m", "demo.worker", str(folder), *names]
    run = Run()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as worker:
        for event, count in _reports(worker):
            if event == "died":
                run.abandoned += count
                event = "new"
            run.delivered[event] += count
            watch(run.delivered.total())
            if kill_at is not None and run.delivered.total() >= kill_at:
                worker.kill()
                break
    expected = 0 if kill_at is None else -signal.SIGKILL
    if worker.returncode != expected:
        raise DemoFailed(f"the worker ended with {worker.returncode}, not with {expected}")
    return run


def backlog(folder: Path) -> Backlog:
    """Return the group's pending and undelivered entries, over all streams."""
    with Store.open(folder) as store:
        infos = [store.stream(source.stream).group(GROUP).info() for source in SOURCES]
    return Backlog(sum(info.pending for info in infos), sum(info.lag or 0 for info in infos))


def sums_of_the_store(folder: Path) -> dict[Key, Sum]:
    """Add up the sums that the consumers appended to the stream of results."""
    with Store.open(folder) as store:
        rows = [entry.fields or {} for entry in store.stream(RESULTS).scan()]
    return fold(
        ((fields[b"stream"].decode(), fields[b"period"].decode()), Sum.from_fields(fields))
        for fields in rows
    )


def sums_of_the_files(data: Path, rows_max: int | None) -> dict[Key, Sum]:
    """Add up the measurements of the files."""
    return fold(
        ((source.stream, source.period(reading.ms)), Sum.of(reading.columns[source.column]))
        for source in SOURCES
        for reading in source.readings(data, rows_max)
    )


def faults(folder: Path) -> list[str]:
    """Check the whole store; return its faults."""
    with Store.open(folder) as store:
        return [f"{fault.place}: {fault.message}" for fault in store.check()]


# --- over the wire --------------------------------------------------------------------------------


@contextmanager
def serving(folder: Path) -> Iterator[redis.Redis]:
    """Serve a store on a free port; yield a client."""
    command = [sys.executable, "-m", "kvstream", "serve", "--dir", str(folder.resolve())]
    with subprocess.Popen(
        [*command, "--port", "0", "--log-level", "warning"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as server:
        assert server.stdout is not None
        found = re.search(r" at 127\.0\.0\.1:(\d+)$", server.stdout.readline().strip())
        if found is None:
            raise DemoFailed("kvstream serve did not start")
        client = redis.Redis(port=int(found[1]))
        try:
            yield client
        finally:
            client.close()
            server.terminate()
    if server.returncode != 0:
        raise DemoFailed(f"kvstream serve ended with {server.returncode}")


def entries(client: redis.Redis, stream: str) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
    """Yield the entries of a stream, read by XRANGE in pages."""
    start = "-"
    while True:
        page: Any = client.xrange(stream, min=start, count=PAGE)
        yield from page
        if len(page) < PAGE:
            return
        start = f"({page[-1][0].decode()}"


def _measurements(client: redis.Redis) -> Iterator[tuple[Key, Sum]]:
    for source in SOURCES:
        column = source.column.encode()
        for eid, fields in entries(client, source.stream):
            period = source.period(int(eid.partition(b"-")[0]))
            yield (source.stream, period), Sum.of(fields[column].decode())


def _results(client: redis.Redis) -> Iterator[tuple[Key, Sum]]:
    for _, fields in entries(client, RESULTS):
        key = fields[b"stream"].decode(), fields[b"period"].decode()
        yield key, Sum.from_fields(fields)


def sums_over_the_wire(folder: Path) -> tuple[dict[Key, Sum], dict[Key, Sum], int]:
    """Return the sums of the entries, the sums in the results, and the number of entries."""
    with serving(folder) as client:
        measured = list(_measurements(client))
        return fold(measured), fold(_results(client)), len(measured)
