"""Limits of the Spark data source: the time of a micro-batch, and the memory of executors.

``python -m bench.limits.spark STORE EXECUTOR_MB`` measures that memory in a process of its own.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median
from threading import Event, Thread
from typing import TYPE_CHECKING

from bench.results import Limit, Limits
from bench.spark import bench_session
from bench.workload import Sizes, entries
from kvstream import Store
from kvstream.bulkload.parts import PartWriter
from kvstream.layout.values import encode_flat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_ROWS = 500
BATCHES = 20
WARM_BATCHES = 10
BATCH_MS_MAX = 500.0
LOOK_S = 0.005
BATCH_WAIT_S = 120.0
"""The time after which a micro-batch has failed."""

EXECUTOR_MB = 1024
OVERHEAD_MB = 384
"""The memory that Spark on YARN or Kubernetes allows an executor beside its heap, for Python."""
EXECUTORS = 2
MEMORY_LOOK_S = 0.2
VALUE_BYTES = 1000
PART_ROWS = 50_000
PAGE_BYTES = 4096
MEGABYTE = 1 << 20
_PARENT = 1
"""The index of the parent in /proc/PID/stat, after the name."""


# --- micro-batches --------------------------------------------------------------------------------


def micro_batches(folder: Path, sizes: Sizes) -> list[Limit]:
    """Add entries to a store, and wait until a query has copied them into another one."""
    source, target = folder / "batches-in", folder / "batches-out"
    with Store.open(target) as store:
        store.stream("out").add({"begun": "1"})
    with Store.open(source) as store, _copying(source, target, folder / "batches-state"):
        copied = store.stream("in")
        page = entries(BATCH_ROWS)
        arrived = _arrivals(target)
        took = []
        for _ in range(WARM_BATCHES + BATCHES):
            start = time.perf_counter()
            copied.add_many(page)
            next(arrived)
            took.append(1000 * (time.perf_counter() - start))
    steady = took[WARM_BATCHES:]
    title = f"Spark: {BATCH_ROWS} entries from one store into another, by a micro-batch"
    note = f"fastest {min(steady):.0f} ms, slowest {max(steady):.0f} ms of {BATCHES}"
    return [Limit("spark-batch", title, median(steady), BATCH_MS_MAX, "ms", note)]


@contextmanager
def _copying(source: Path, target: Path, state: Path) -> Iterator[None]:
    """Run a query that follows one store and writes into another."""
    with bench_session("local[2]") as spark:
        reader = spark.readStream.format("kvstream").option("path", str(source))
        rows = reader.option("match", "in").load().select("fields")
        writer = rows.writeStream.format("kvstream").option("path", str(target))
        query = writer.option("stream", "out").option("checkpointLocation", str(state)).start()
        try:
            yield
            query.processAllAvailable()  # until it has logged its last batch
        finally:
            query.stop()


def _arrivals(target: Path) -> Iterator[int]:
    """Yield whenever the store has another batch; it is opened as a secondary."""
    from kvstream.spark.read.watch import catch_up, follower

    with follower(str(target), 0) as store:
        expected = 1
        while True:
            expected += BATCH_ROWS
            deadline = time.monotonic() + BATCH_WAIT_S
            while len(store.stream("out")) < expected:
                assert time.monotonic() < deadline, "a micro-batch did not arrive"
                time.sleep(LOOK_S)
                catch_up(store)
            yield expected


# --- more than memory -----------------------------------------------------------------------------


def more_than_memory(folder: Path, sizes: Sizes) -> list[Limit]:
    """Read a store that is larger than the executors' memory, on a cluster of processes."""
    path, work = folder / "large-read", folder / "large-work"
    rows = _fill(path, folder / "large-parts", sizes.sparked_mb)
    work.mkdir()
    command = [sys.executable, "-m", "bench.limits.spark", str(path), str(EXECUTOR_MB)]
    environment = {**os.environ, "SPARK_WORKER_DIR": str(work)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["rows"] == rows, f"{seen['rows']} of {rows} entries"
    assert seen["bytes"] == rows * VALUE_BYTES, "the values differ from those written"
    title = (
        f"Spark: peak memory of an executor of {EXECUTOR_MB} MB, with its Python, which reads its "
        f"half of {sizes.sparked_mb:,} MB"
    )
    note = f"{rows / seen['seconds']:,.0f} entries of 1 kB a second"
    return [Limit("spark-memory", title, seen["peak_mb"], EXECUTOR_MB + OVERHEAD_MB, "MB", note)]


def _fill(path: Path, staged: Path, megabytes: int) -> int:
    """Load a store with incompressible entries; return their number."""
    staged.mkdir()
    data = Random(0).randbytes(VALUE_BYTES * PART_ROWS)
    values = [
        encode_flat([b"value", data[at : at + VALUE_BYTES]])[0]
        for at in range(0, len(data), VALUE_BYTES)
    ]
    rows = 0
    with Store.open(path) as store:
        while rows * VALUE_BYTES < megabytes * MEGABYTE:
            ticket = store.bulk_ticket(["orders"])
            writer = PartWriter(staged, ticket)
            writer.extend(b"orders", None, values)
            rows += store.bulk_load(ticket, writer.close()).entries
    return rows


class Memory:
    """Samples the peak memory of an application's executors."""

    def __init__(self, application: str) -> None:
        self.peak_mb = 0.0
        self._application = application.encode()
        self._over = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(MEMORY_LOOK_S):
            parents = dict(_parents())
            for pid in parents:
                if self._is_executor(pid):
                    held = sum(map(_resident, _family(pid, parents)))
                    self.peak_mb = max(self.peak_mb, held / MEGABYTE)

    def _is_executor(self, pid: int) -> bool:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
        return b"CoarseGrainedExecutorBackend" in words and self._application in words


def _parents() -> Iterator[tuple[int, int]]:
    """Yield each process with its parent."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            stat = (place / "stat").read_text()
        except OSError:
            continue
        yield int(place.name), int(stat.rpartition(")")[2].split()[_PARENT])


def _family(pid: int, parents: dict[int, int]) -> set[int]:
    """Return a process and its descendants."""
    found = {pid}
    while more := {each for each, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def _read(spark: "SparkSession", path: str) -> tuple[int, int]:
    from pyspark.sql import functions as F

    reader = spark.read.format("kvstream").schema("value binary")
    rows = reader.option("path", path).option("stream", "orders").load()
    row = rows.agg(F.count("*"), F.sum(F.octet_length("value"))).collect()[0]
    return int(row[0]), int(row[1])


def main(path: str, executor_mb: str) -> None:
    """Read a store on a cluster of two executors; print what it took as JSON.

    The peak is that of the larger executor: its JVM and its Python processes together.
    """
    master = f"local-cluster[{EXECUTORS},1,{executor_mb}]"
    config = {"spark.executor.memory": f"{executor_mb}m"}
    with bench_session(master, **config) as spark:
        with Memory(spark.sparkContext.applicationId) as memory:
            start = time.perf_counter()
            rows, size = _read(spark, path)
            seconds = time.perf_counter() - start
        figures = {"rows": rows, "bytes": size, "seconds": seconds, "peak_mb": memory.peak_mb}
    print(json.dumps(figures))


SPARK_LIMITS: Limits = {
    "spark-batch": ("Spark follows a store in micro-batches", micro_batches),
    "spark-memory": ("Spark reads more than its memory", more_than_memory),
}

if __name__ == "__main__":
    main(*sys.argv[1:])
