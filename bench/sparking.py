"""Streams read and written by Spark: kvstream's format, beside redis-py in tasks of one session.

The peer is what people write: each task reads a range of IDs by pages of XRANGE, or adds its rows
in pipelines of XADD. Both have two cores, two tasks and the same entries; the session starts
before the clock does, and both sides have done the same work on a few entries then. Afterwards
kvstream's side runs in a session of one core, to tell what the second one brings.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.peer import file_server
from bench.results import Contest, Scaled
from bench.runner import Tell
from bench.workload import PAGE, Sizes
from kvstream import Store, migration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY = "orders"
WARM_KEY = "few-orders"
WARM_SHARE = 20
"""One in so many of the entries is what both sides warm up with."""
WARM_ROUNDS = 4
"""Spark's planner is compiled by the JVM while it runs, and that is not over after one job."""
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
class Scene:
    """What both sides read, and where what they write goes."""

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
        """The same entries as Parquet, in a file for each task."""
        return self.folder / f"sparked-{self.key}"

    def read(self, schema: str | None = None) -> "DataFrame":
        reader = self.spark.read.format("kvstream").option("partitions", TASKS)
        reader = reader.option("path", str(self.store)).option("stream", self.key)
        return (reader if schema is None else reader.schema(schema)).load()

    def ranges(self) -> Any:
        """Return the ranges of IDs that the peer's tasks read."""
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


def _count(scene: Scene) -> int:
    """Count rows with their map of fields; Spark asks for every column that the format has."""
    return scene.read().count()


def _count_peer(scene: Scene) -> int:
    port, key = scene.port, scene.key

    def counted(bounds: Iterator[tuple[int, int]]) -> Iterator[int]:
        yield sum(sum(1 for _, fields in page if fields) for page in _pages(port, key, bounds))

    total: int = scene.ranges().mapPartitions(counted).sum()
    return total


def _parquet(scene: Scene) -> int:
    scene.read(TYPED).write.mode("overwrite").parquet(str(scene.out))
    return scene.count


def _parquet_peer(scene: Scene) -> int:
    port, key = scene.port, scene.key

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

    frame = scene.spark.createDataFrame(scene.ranges().mapPartitions(rows), TYPED)
    frame.write.mode("overwrite").parquet(str(scene.out))
    return scene.count


def _load(scene: Scene) -> int:
    """Append the rows of files to a stream of an empty store."""
    target = scene.out.with_name("sparked-loaded")
    shutil.rmtree(target, ignore_errors=True)
    write = scene.spark.read.parquet(str(scene.files)).write.format("kvstream").mode("append")
    write.option("path", str(target)).option("stream", KEY).save()
    with Store.open(target) as store:
        return len(store.stream(KEY))


def _load_peer(scene: Scene) -> int:
    """Add the same rows by pipelines, each task its own."""
    import redis

    port = scene.port

    def added(rows: Iterator[Any]) -> None:
        with redis.Redis(port=port) as client:
            while page := list(islice(rows, PAGE)):
                with client.pipeline(transaction=False) as pipe:
                    for row in page:
                        pipe.xadd(LOADED, row.asDict())
                    pipe.execute()

    with redis.Redis(port=port) as client:
        client.delete(LOADED)
        scene.spark.read.parquet(str(scene.files)).foreachPartition(added)
        return int(client.xlen(LOADED))


@dataclass(frozen=True, slots=True)
class Sparked:
    """One row: the same job on both sides."""

    key: str
    title: str
    target: float
    rounds: int
    """Fewer where the peer takes minutes."""
    own: Callable[[Scene], int]
    peer: Callable[[Scene], int]


SPARKED = (
    Sparked("spark-count", "Spark counts rows with maps of fields", 4, 5, _count, _count_peer),
    Sparked("spark-parquet", "Spark writes typed rows to Parquet", 3, 2, _parquet, _parquet_peer),
    Sparked("spark-load", "Spark loads a stream from Parquet", 6, 2, _load, _load_peer),
)


SCALING = "spark-scaling"
SPARKED_ROWS = (*(row.key for row in SPARKED), SCALING)


def run_sparked(
    chosen: Sequence[str], sizes: Sizes, folder: Path, tell: Tell
) -> Iterator[Contest | Scaled]:
    """Fill both sides, and measure the rows chosen: contests first, then what a core brings."""
    if not chosen:
        return
    tell(f"Spark: {sizes.sparked:,} entries on both sides")
    counts = {WARM_KEY: max(sizes.sparked // WARM_SHARE, 1000), KEY: sizes.sparked}
    place = folder / "sparked"
    place.mkdir()
    with file_server(place) as server:
        port = server.client.connection_pool.connection_kwargs["port"]
        for key, count in counts.items():
            _fill(server.client, key, count)
        store = folder / "sparked-store"
        migration.run(f"redis://127.0.0.1:{port}", store, state=folder / "sparked-state")
        rows = [row for row in SPARKED if row.key in chosen]
        own: dict[str, list[float]] = {}
        with _scenes(TASKS, store, port, counts, folder) as (warm, scene):
            for each in (warm, scene):
                _write_files(each)
            for row in rows:
                contest = _contest(row, warm, scene, tell)
                own[row.key] = contest.seconds
                yield contest
            if SCALING in chosen:
                own |= {row.key: _alone(row, warm, scene) for row in SPARKED if row not in rows}
        if SCALING in chosen:
            tell("the same in a session of one core")
            with _scenes(1, store, port, counts, folder) as (warm, scene):
                for row in SPARKED:
                    one = _alone(row, warm, scene)
                    yield Scaled(row.key, row.title, sizes.sparked, one, own[row.key])
    for left in folder.glob("sparked*"):
        shutil.rmtree(left)


def _fill(client: Any, key: str, count: int) -> None:
    script = client.register_script(_FILL)
    for first in range(0, count, _FILL_STEP):
        script(keys=[key], args=[first, min(first + _FILL_STEP, count) - 1, FIRST_MS])


@contextmanager
def _scenes(
    cores: int, store: Path, port: int, counts: Mapping[str, int], folder: Path
) -> Iterator[tuple[Scene, ...]]:
    """Start a session, and return a scene for each stream."""
    with bench_session(f"local[{cores}]") as spark:
        yield tuple(Scene(spark, store, port, key, count, folder) for key, count in counts.items())


@contextmanager
def bench_session(master: str, **config: object) -> Iterator["SparkSession"]:
    """Run a session that says nothing."""
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


def _write_files(scene: Scene) -> None:
    """Write the entries to files, their times as text, as both sides have them."""
    rows = scene.read("sku string, quantity int, customer string, placed string")
    rows.repartition(TASKS).write.parquet(str(scene.files))


def _contest(row: Sparked, warm: Scene, scene: Scene, tell: Tell) -> Contest:
    tell(row.title)
    result = Contest(row.key, row.title, row.target, scene.count)
    for _ in range(WARM_ROUNDS):
        for side in (row.own, row.peer):
            _seconds(side, warm)
    for _ in range(row.rounds):
        result.seconds.append(_seconds(row.own, scene))
        result.peer_seconds.append(_seconds(row.peer, scene))
    return result


def _alone(row: Sparked, warm: Scene, scene: Scene) -> list[float]:
    """Return the seconds of kvstream's side, once it is warm."""
    for _ in range(WARM_ROUNDS):
        _seconds(row.own, warm)
    return [_seconds(row.own, scene)]


def _seconds(work: Callable[[Scene], int], scene: Scene) -> float:
    start = time.perf_counter()
    done = work(scene)
    took = time.perf_counter() - start
    assert done == scene.count, f"{done} of {scene.count} entries"
    return took
