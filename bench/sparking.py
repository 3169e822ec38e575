"""Streams read and written by Spark: kvstream's format, beside redis-py in tasks of one session.

The peer is what people write: each task reads a range of IDs by pages of XRANGE, or adds its rows
in pipelines of XADD. Both have two cores, two tasks and the same entries; the session starts
before the clock does.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.peer import file_server
from bench.results import Contest
from bench.runner import Tell
from bench.workload import PAGE, Sizes
from kvstream import Store, migration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY = "orders"
LOADED = "loaded"
FIRST_MS = 1_700_000_000_000
TASKS = 2
ROUNDS = 3
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
    count: int
    out: Path
    files: Path
    """The same entries as Parquet, in a file for each task."""

    def read(self, schema: str | None = None) -> "DataFrame":
        reader = self.spark.read.format("kvstream").option("partitions", TASKS)
        reader = reader.option("path", str(self.store)).option("stream", KEY)
        return (reader if schema is None else reader.schema(schema)).load()

    def ranges(self) -> Any:
        """Return the ranges of IDs that the peer's tasks read."""
        step = -(-self.count // TASKS)
        bounds = [
            (FIRST_MS + first, FIRST_MS + min(first + step, self.count) - 1)
            for first in range(0, self.count, step)
        ]
        return self.spark.sparkContext.parallelize(bounds, len(bounds))


def _pages(port: int, bounds: Iterator[tuple[int, int]]) -> Iterator[list[Any]]:
    import redis

    client = redis.Redis(port=port)
    for first, last in bounds:
        page = _page(client, str(first), last)
        while page:
            yield page
            page = _page(client, "(" + page[-1][0].decode(), last)
    client.close()


def _page(client: Any, start: str, last: int) -> list[Any]:
    page: list[Any] = client.xrange(KEY, start, str(last), PAGE)
    return page


def _count(scene: Scene) -> int:
    """Count rows with their map of fields; Spark asks for every column that the format has."""
    return scene.read().count()


def _count_peer(scene: Scene) -> int:
    port = scene.port

    def counted(bounds: Iterator[tuple[int, int]]) -> Iterator[int]:
        yield sum(sum(1 for _, fields in page if fields) for page in _pages(port, bounds))

    total: int = scene.ranges().mapPartitions(counted).sum()
    return total


def _parquet(scene: Scene) -> int:
    scene.read(TYPED).write.mode("overwrite").parquet(str(scene.out))
    return scene.count


def _parquet_peer(scene: Scene) -> int:
    port = scene.port

    def rows(bounds: Iterator[tuple[int, int]]) -> Iterator[tuple[Any, ...]]:
        from datetime import datetime

        for page in _pages(port, bounds):
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
    own: Callable[[Scene], int]
    peer: Callable[[Scene], int]


SPARKED = (
    Sparked("spark-count", "Spark counts rows with maps of fields", 4, _count, _count_peer),
    Sparked("spark-parquet", "Spark writes typed rows to Parquet", 3, _parquet, _parquet_peer),
    Sparked("spark-load", "Spark loads a stream from Parquet", 6, _load, _load_peer),
)


def run_sparked(chosen: Sequence[Sparked], sizes: Sizes, folder: Path, tell: Tell) -> list[Contest]:
    """Fill both sides, start one session, and run the rows chosen by turns."""
    if not chosen:
        return []
    from kvstream.spark import session

    tell(f"Spark: {sizes.sparked:,} entries on both sides")
    place = folder / "sparked"
    place.mkdir()
    with file_server(place) as server:
        script = server.client.register_script(_FILL)
        for first in range(0, sizes.sparked, _FILL_STEP):
            last = min(first + _FILL_STEP, sizes.sparked) - 1
            script(keys=[KEY], args=[first, last, FIRST_MS])
        port = server.client.connection_pool.connection_kwargs["port"]
        store = folder / "sparked-store"
        migration.run(f"redis://127.0.0.1:{port}", store, state=folder / "sparked-state")
        settings = {"spark.ui.enabled": "false", "spark.driver.memory": "1g"}
        spark = session("bench", master=f"local[{TASKS}]", config=settings)
        try:
            out, files = folder / "sparked-out", folder / "sparked-files"
            scene = Scene(spark, store, port, sizes.sparked, out, files)
            _write_files(scene)
            results = [_contest(row, scene, tell) for row in chosen]
        finally:
            spark.stop()
    for left in folder.glob("sparked*"):
        shutil.rmtree(left)
    return results


def _write_files(scene: Scene) -> None:
    """Write the entries to files, their times as text, as both sides have them."""
    rows = scene.read("sku string, quantity int, customer string, placed string")
    rows.repartition(TASKS).write.parquet(str(scene.files))


def _contest(row: Sparked, scene: Scene, tell: Tell) -> Contest:
    tell(row.title)
    result = Contest(row.key, row.title, row.target, scene.count)
    for number in range(ROUNDS + 1):
        own, peer = _seconds(row.own, scene), _seconds(row.peer, scene)
        if number:  # workers start and classes load in the first
            result.seconds.append(own)
            result.peer_seconds.append(peer)
    return result


def _seconds(work: Callable[[Scene], int], scene: Scene) -> float:
    start = time.perf_counter()
    done = work(scene)
    took = time.perf_counter() - start
    assert done == scene.count, f"{done} of {scene.count} entries"
    return took
