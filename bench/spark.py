"""Spark jobs with ``format("kvstream")``, beside redis-py in the tasks of the same session.

On the other side each task reads a range of IDs by pages of XRANGE, or adds its rows in pipelines
of XADD. Both sides have two cores, two tasks and the same entries, and warm up on a few of them.
Then kvstream's side runs in a session of one core, to measure what the second core brings.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.processes import file_server
from bench.results import Comparison, Log, Scaling
from bench.workload import PAGE, Sizes
from kvstream import Store, migration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY = "orders"
WARM_KEY = "few-orders"
WARM_SHARE = 20
"""Both sides warm up on one entry in this many."""
WARM_ROUNDS = 4
"""The JVM compiles Spark's planner during the first jobs."""
LOADED = "loaded"
FIRST_MS = 1_700_000_000_000
TASKS = 2
TYPED = "id string, sku string, quantity int, customer string, placed timestamp"
_FILL = """
for number = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  redis.call('XADD', KEYS[1], string.format('%.0f-0', tonumber(ARGV[3]) + number),
    'sku', string.format('sku-%016d', number % 9973),
    'quantity', string.format('%02d', number % 12 + 1),
    'customer', string.format('customer-%020d', number),
    'placed', '2026-05-17T09:10:11.250Z')
end
"""
_FILL_STEP = 10_000


@dataclass(frozen=True, slots=True)
class SparkRun:
    """The session, the entries that both sides read, and the folder that they write to."""

    spark: "SparkSession"
    store: Path
    port: int
    key: str
    count: int
    folder: Path

    @property
    def out(self) -> Path:
        return self.folder / "sparked-out"

    @property
    def files(self) -> Path:
        """The entries as Parquet, one file for each task."""
        return self.folder / f"sparked-{self.key}"

    def read(self, schema: str | None = None) -> "DataFrame":
        reader = self.spark.read.format("kvstream").option("partitions", TASKS)
        reader = reader.option("path", str(self.store)).option("stream", self.key)
        return (reader if schema is None else reader.schema(schema)).load()

    def ranges(self) -> Any:
        """Return the ranges of IDs for redis-py's tasks."""
        step = -(-self.count // TASKS)
        bounds = [
            (FIRST_MS + first, FIRST_MS + min(first + step, self.count) - 1)
            for first in range(0, self.count, step)
        ]
        return self.spark.sparkContext.parallelize(bounds, len(bounds))


def _pages(port: int, key: str, bounds: Iterator[tuple[int, int]]) -> Iterator[list[Any]]:
    import redis

    client: Any = redis.Redis(port=port)
    for first, last in bounds:
        page: list[Any] = client.xrange(key, str(first), str(last), PAGE)
        while page:
            yield page
            page = client.xrange(key, "(" + page[-1][0].decode(), str(last), PAGE)
    client.close()


def _count(run: SparkRun) -> int:
    """Count rows with maps of fields: Spark always reads all columns of the format."""
    return run.read().count()


def _count_peer(run: SparkRun) -> int:
    port, key = run.port, run.key

    def counted(bounds: Iterator[tuple[int, int]]) -> Iterator[int]:
        yield sum(sum(1 for _, fields in page if fields) for page in _pages(port, key, bounds))

    total: int = run.ranges().mapPartitions(counted).sum()
    return total


def _parquet(run: SparkRun) -> int:
    run.read(TYPED).write.mode("overwrite").parquet(str(run.out))
    return run.count


def _parquet_peer(run: SparkRun) -> int:
    port, key = run.port, run.key

    def rows(bounds: Iterator[tuple[int, int]]) -> Iterator[tuple[Any, ...]]:
        from datetime import datetime

        for page in _pages(port, key, bounds):
            for eid, fields in page:
                yield (
                    eid.decode(),
                    fields[b"sku"].decode(),
                    int(fields[b"quantity"]),
                    fields[b"customer"].decode(),
                    datetime.fromisoformat(fields[b"placed"].decode()),
                )

    frame = run.spark.createDataFrame(run.ranges().mapPartitions(rows), TYPED)
    frame.write.mode("overwrite").parquet(str(run.out))
    return run.count


def _load(run: SparkRun) -> int:
    """Append the rows of Parquet files to a stream of an empty store."""
    target = run.out.with_name("sparked-loaded")
    shutil.rmtree(target, ignore_errors=True)
    write = run.spark.read.parquet(str(run.files)).write.format("kvstream").mode("append")
    write.option("path", str(target)).option("stream", KEY).save()
    with Store.open(target) as store:
        return len(store.stream(KEY))


def _load_peer(run: SparkRun) -> int:
    """Add the same rows in pipelines, in each task."""
    import redis

    port = run.port

    def added(rows: Iterator[Any]) -> None:
        with redis.Redis(port=port) as client:
            while page := list(islice(rows, PAGE)):
                with client.pipeline(transaction=False) as pipe:
                    for row in page:
                        pipe.xadd(LOADED, row.asDict())
                    pipe.execute()

    with redis.Redis(port=port) as client:
        client.delete(LOADED)
        run.spark.read.parquet(str(run.files)).foreachPartition(added)
        return int(client.xlen(LOADED))


@dataclass(frozen=True, slots=True)
class SparkRow:
    """One row: the same job on both sides."""

    key: str
    title: str
    target: float
    rounds: int
    """Fewer if the other side takes minutes."""
    own: Callable[[SparkRun], int]
    peer: Callable[[SparkRun], int]


SPARK_ROWS = (
    SparkRow("spark-count", "Spark counts rows with maps of fields", 4, 5, _count, _count_peer),
    SparkRow("spark-parquet", "Spark writes typed rows to Parquet", 3, 2, _parquet, _parquet_peer),
    SparkRow("spark-load", "Spark loads a stream from Parquet", 6, 2, _load, _load_peer),
)


SCALING = "spark-scaling"
SPARK_KEYS = (*(row.key for row in SPARK_ROWS), SCALING)


def run_spark(
    chosen: Sequence[str], sizes: Sizes, folder: Path, log: Log
) -> Iterator[Comparison | Scaling]:
    """Fill both sides, and measure the chosen rows, then the scaling with a second core."""
    if not chosen:
        return
    log(f"Spark: {sizes.sparked:,} entries on both sides")
    counts = {WARM_KEY: max(sizes.sparked // WARM_SHARE, 1000), KEY: sizes.sparked}
    place = folder / "sparked"
    place.mkdir()
    with file_server(place) as server:
        port = server.client.connection_pool.connection_kwargs["port"]
        for key, count in counts.items():
            _fill(server.client, key, count)
        store = folder / "sparked-store"
        migration.run(f"redis://127.0.0.1:{port}", store, state=folder / "sparked-state")
        rows = [row for row in SPARK_ROWS if row.key in chosen]
        own: dict[str, list[float]] = {}
        with _runs(TASKS, store, port, counts, folder) as (warm, run):
            for each in (warm, run):
                _write_files(each)
            for row in rows:
                comparison = _compare(row, warm, run, log)
                own[row.key] = comparison.seconds
                yield comparison
            if SCALING in chosen:
                own |= {row.key: _alone(row, warm, run) for row in SPARK_ROWS if row not in rows}
        if SCALING in chosen:
            log("kvstream alone in a session of one core")
            with _runs(1, store, port, counts, folder) as (warm, run):
                for row in SPARK_ROWS:
                    one = _alone(row, warm, run)
                    yield Scaling(row.key, row.title, sizes.sparked, one, own[row.key])
    for left in folder.glob("sparked*"):
        shutil.rmtree(left)


def _fill(client: Any, key: str, count: int) -> None:
    script = client.register_script(_FILL)
    for first in range(0, count, _FILL_STEP):
        script(keys=[key], args=[first, min(first + _FILL_STEP, count) - 1, FIRST_MS])


@contextmanager
def _runs(
    cores: int, store: Path, port: int, counts: Mapping[str, int], folder: Path
) -> Iterator[tuple[SparkRun, ...]]:
    """Start a session; yield a run for each stream."""
    with bench_session(f"local[{cores}]") as spark:
        yield tuple(
            SparkRun(spark, store, port, key, count, folder) for key, count in counts.items()
        )


@contextmanager
def bench_session(master: str, **config: object) -> Iterator["SparkSession"]:
    """Start a quiet session."""
    from kvstream.spark import local_java, local_sockets, session

    settings: dict[str, object] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
    }
    if master.startswith("local["):
        settings |= local_sockets() | local_java()
    spark = session("bench", master=master, config=settings | config)
    try:
        yield spark
    finally:
        spark.stop()


def _write_files(run: SparkRun) -> None:
    """Write the entries to Parquet files, with times as text."""
    rows = run.read("sku string, quantity int, customer string, placed string")
    rows.repartition(TASKS).write.parquet(str(run.files))


def _compare(row: SparkRow, warm: SparkRun, run: SparkRun, log: Log) -> Comparison:
    log(row.title)
    result = Comparison(row.key, row.title, row.target, run.count)
    for _ in range(WARM_ROUNDS):
        for side in (row.own, row.peer):
            _seconds(side, warm)
    for _ in range(row.rounds):
        result.seconds.append(_seconds(row.own, run))
        result.peer_seconds.append(_seconds(row.peer, run))
    return result


def _alone(row: SparkRow, warm: SparkRun, run: SparkRun) -> list[float]:
    """Return the seconds of kvstream's side, after warming up."""
    for _ in range(WARM_ROUNDS):
        _seconds(row.own, warm)
    return [_seconds(row.own, run)]


def _seconds(work: Callable[[SparkRun], int], run: SparkRun) -> float:
    start = time.perf_counter()
    done = work(run)
    took = time.perf_counter() - start
    assert done == run.count, f"{done} of {run.count} entries"
    return took
