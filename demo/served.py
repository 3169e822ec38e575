"""The same streams over the wire: ``kvstream serve``, read by redis-py."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from demo.job import DemoFailed
from demo.readings import SOURCES, Key, Sum, fold
from demo.worker import RESULTS

ROOT = Path(__file__).resolve().parent.parent
PAGE = 1000


@contextmanager
def serving(folder: Path) -> Iterator[redis.Redis]:
    """Serve a store on a free port; yield a client."""
    command = [sys.executable, "-m", "kvstream", "serve", "--dir", str(folder.resolve())]
    with subprocess.Popen(
        [*command, "--port", "0"], stdout=subprocess.PIPE, text=True, cwd=ROOT
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
