"""Streaming queries run by Spark: restarts, AvailableNow, trims, and a writing owner."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from kvstream import Store
from tests.spark.conftest import SLOW_START, TRIES, Read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Job:
    """A query that writes streams' IDs into files, and can be restarted."""

    def __init__(self, spark: "SparkSession", folder: Path, **options: Any) -> None:
        self.spark = spark
        self.folder = folder
        self.options = options

    def frame(self) -> "DataFrame":
        reader = self.spark.readStream.format("kvstream")
        for name, value in self.options.items():
            reader = reader.option(name, str(value))
        return reader.schema("stream string, id string, n int").load()

    def start(self, **trigger: Any) -> "StreamingQuery":
        writer = self.frame().writeStream.format("json").option("path", str(self.folder / "out"))
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()

    def run(self) -> "StreamingQuery":
        """Read the current entries."""
        return self.follow(lambda query: query.awaitTermination(300), availableNow=True)

    def follow(self, work: Callable[["StreamingQuery"], Any], **trigger: Any) -> "StreamingQuery":
        """Run a query until its work is done."""
        for left in reversed(range(TRIES)):
            query = self.start(**trigger)
            try:
                work(query)
                return query
            except StreamingQueryException as error:
                if SLOW_START not in str(error) or not left:
                    raise
            finally:
                query.stop()
        raise AssertionError("the last try raises")

    def found(self) -> list[tuple[str, int]]:
        rows = [
            json.loads(line)
            for file in (self.folder / "out").glob("*.json")
            for line in file.read_text().splitlines()
        ]
        return sorted((row["stream"], row["n"]) for row in rows)


def add(store: Store, key: str, numbers: range) -> None:
    store.stream(key).add_many([{"n": str(number)} for number in numbers])


def test_a_query_resumes_and_sees_the_writes_of_the_owner(
    spark: "SparkSession", read: Read, tmp_path: Path
) -> None:
    job = Job(spark, tmp_path, path=tmp_path / "data", match="s:*", maxEntriesPerTrigger=600)
    with Store.open(tmp_path / "data") as store:
        add(store, "s:1", range(1000))
        query = job.run()
        assert [each["numInputRows"] for each in query.recentProgress][:2] == [600, 400]
        add(store, "s:1", range(1000, 1010))
        add(store, "s:2", range(3))
        late = iter([range(3, 5)])

        def write_meanwhile(query: "StreamingQuery") -> None:
            query.processAllAvailable()
            for numbers in late:
                add(store, "s:2", numbers)
            query.processAllAvailable()

        job.follow(write_meanwhile)
        expected = [("s:1", n) for n in range(1010)] + [("s:2", n) for n in range(5)]
        assert job.found() == expected
    job.run()  # nobody holds the store now, and there is nothing new
    assert job.found() == expected


def test_the_progress_of_a_query_has_its_source_and_its_lag(
    spark: "SparkSession", tmp_path: Path
) -> None:
    limits = {"minEntriesPerTrigger": 5, "maxEntriesPerTrigger": 600}
    job = Job(spark, tmp_path, path=tmp_path / "data", stream="orders", **limits)
    with Store.open(tmp_path / "data") as store:
        add(store, "orders", range(1000))
    query = job.run()
    latest = [json.loads(each.sources[0].latestOffset) for each in query.recentProgress]
    assert [each["lag"] for each in latest][:2] == [400, 0]
    assert latest[0]["source"] == f"kvstream: orders in {tmp_path / 'data'}"
    assert len(job.found()) == 1000


def test_a_trim_ahead_of_a_query_fails_it(spark: "SparkSession", tmp_path: Path) -> None:
    job = Job(spark, tmp_path, path=tmp_path / "data", stream="s")
    with Store.open(tmp_path / "data") as store:
        add(store, "s", range(10))
        job.run()
        add(store, "s", range(10, 20))
        store.stream("s").trim(maxlen=5)
        with pytest.raises(StreamingQueryException, match=r"5 entries after .* were removed"):
            job.run()
        job.options["failOnDataLoss"] = "false"
        job.run()
    assert job.found() == [("s", n) for n in (*range(10), *range(15, 20))]
