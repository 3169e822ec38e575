"""Measure executors' memory: ``python -m bench.spark_memory STORE EXECUTOR_MB`` prints JSON.

A job reads the store on a cluster of two executors. The figures are rows, bytes, seconds, and the
peak of the larger executor: its JVM and its Python processes together.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from bench.spark import bench_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXECUTORS = 2
LOOK_S = 0.2
PAGE_BYTES = 4096
MEGABYTE = 1 << 20
_PARENT = 1
"""The index of the parent in /proc/PID/stat, after the name."""


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
        while not self._over.wait(LOOK_S):
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
    master = f"local-cluster[{EXECUTORS},1,{executor_mb}]"
    config = {"spark.executor.memory": f"{executor_mb}m"}
    with bench_session(master, **config) as spark:
        with Memory(spark.sparkContext.applicationId) as memory:
            start = time.perf_counter()
            rows, size = _read(spark, path)
            seconds = time.perf_counter() - start
        figures = {"rows": rows, "bytes": size, "seconds": seconds, "peak_mb": memory.peak_mb}
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
