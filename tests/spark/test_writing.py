"""Write DataFrames into streams: all or nothing, exact, in every kind of place."""

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kvstream import Store
from kvstream.spark.write.stage import store_of
from tests.server.conftest import Served, redis_port, redis_process
from tests.serving import ServerProcess

__all__ = ["redis_port", "redis_process"]


def numbered(spark: SparkSession, rows: int, streams: int = 1, size: int = 1) -> DataFrame:
    """Return rows ``n`` of 0, 1, 2 ... in two partitions, spread over streams ``s0``, ``s1`` ..."""
    n = F.col("id")
    return spark.range(0, rows, 1, 2).select(
        F.concat(F.lit("s"), n % streams).alias("stream"),
        n.cast("string").alias("n"),
        F.repeat(F.lit("x"), size).alias("filling"),
    )


def contents(path: Path) -> dict[bytes, list[int]]:
    """Return the numbers in each stream of a store, after a check."""
    with Store.open(path) as store:
        assert store.check() == []
        return {
            key: [int((entry.fields or {})[b"n"]) for entry in store.stream(key)]
            for key in sorted(store.keys())
            if store.type(key) == "stream"
        }


def files_beside(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir())


def test_rows_are_appended_in_the_order_of_the_dataframe(
    spark: SparkSession, tmp_path: Path
) -> None:
    write = numbered(spark, 1000, streams=3).write.format("kvstream").mode("append")
    write.option("path", str(tmp_path / "store")).save()
    found = contents(tmp_path / "store")
    assert found == {b"s%d" % at: [*range(at, 1000, 3)] for at in range(3)}
    assert files_beside(tmp_path / "store") == ["store"]


def test_a_large_write_is_staged_in_files_that_the_commit_removes(
    spark: SparkSession, tmp_path: Path
) -> None:
    write = numbered(spark, 30_000, streams=2, size=300).write.format("kvstream").mode("append")
    write.option("path", str(tmp_path / "store")).save()
    assert contents(tmp_path / "store") == {b"s%d" % at: [*range(at, 30_000, 2)] for at in (0, 1)}
    assert files_beside(tmp_path / "store") == ["store"]


def test_streams_are_spread_over_stores_by_their_keys(spark: SparkSession, tmp_path: Path) -> None:
    stores = [tmp_path / "one", tmp_path / "two", tmp_path / "three"]
    write = numbered(spark, 300, streams=30).write.format("kvstream").mode("append")
    write.option("path", ",".join(map(str, stores))).save()
    found = [contents(path) for path in stores]
    for at in range(30):
        key = b"s%d" % at
        assert [position for position in range(3) if key in found[position]] == [store_of(key, 3)]
        assert found[store_of(key, 3)][key] == [*range(at, 300, 30)]


def test_streams_are_spread_over_servers_and_read_back_as_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    servers = [Served(tmp_path / name) for name in ("one", "two", "three")]
    urls = [f"redis://127.0.0.1:{server.port}" for server in servers]
    try:
        write = numbered(spark, 300, streams=30).write.format("kvstream").mode("append")
        write.option("url", ",".join(urls)).save()
        read = spark.read.format("kvstream").option("url", ",".join(urls))
        rows = read.option("match", "*").load().groupBy("store", "stream").count().collect()
        assert {(row.store, row.stream): row["count"] for row in rows} == {
            (urls[store_of(b"s%d" % at, 3)], f"s{at}"): 10 for at in range(30)
        }
    finally:
        for server in servers:
            server.stop()


def test_a_failed_task_leaves_nothing_visible_and_nothing_staged(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = numbered(spark, 20_000, size=400)
    bad = rows.withColumn("id", F.when(F.col("n") == "19999", "no ID"))
    with pytest.raises(PySparkException, match="Invalid stream ID"):
        bad.write.format("kvstream").mode("append").option("path", str(tmp_path / "store")).save()
    assert files_beside(tmp_path / "store") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": "s"}, "both name the stream"),
        ({"url": "redis://127.0.0.1:1"}, "either the option path"),
        ({"txnAppId": "me"}, "go together"),
        ({"delivery": "perhaps"}, "the option delivery must be one of exactlyOnce, atLeastOnce"),
    ],
)
def test_invalid_options_are_refused_before_any_job_runs(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    write = numbered(spark, 10).write.format("kvstream").mode("append").options(**options)
    with pytest.raises(AnalysisException, match=message):
        write.option("path", str(tmp_path / "store")).save()
    assert files_beside(tmp_path / "store") == []


def test_overwriting_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write = numbered(spark, 10).write.format("kvstream").mode("overwrite")
    with pytest.raises(AnalysisException, match="appended"):
        write.option("path", str(tmp_path / "store")).save()


def test_a_named_write_happens_once(spark: SparkSession, tmp_path: Path) -> None:
    write = numbered(spark, 10).write.format("kvstream").mode("append")
    write = write.option("path", str(tmp_path / "store")).option("txnAppId", "nightly")
    for version in (1, 1, 2, 1):
        write.option("txnVersion", version).save()
    assert contents(tmp_path / "store") == {b"s0": [*range(10)] * 2}


def test_a_second_attempt_completes_a_write_that_one_store_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    stores = [tmp_path / "one", tmp_path / "two"]
    write = numbered(spark, 300, streams=30).write.format("kvstream").mode("append")
    write = write.option("path", ",".join(map(str, stores))).option("wait", 0)
    write = write.option("txnAppId", "nightly").option("txnVersion", 1)
    with Store.open(stores[1]), pytest.raises(PySparkException, match="holds the store"):
        write.save()
    before = contents(stores[0])
    assert contents(stores[1]) == {}
    write.save()
    assert contents(stores[0]) == before
    both = before | contents(stores[1])
    assert both == {b"s%d" % at: [*range(at, 300, 30)] for at in range(30)}


def test_a_served_store_gets_tables_through_its_server(spark: SparkSession, tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "store", "--requirepass", "sesame")
    try:
        write = numbered(spark, 20_000, streams=2, size=200).write.format("kvstream")
        write = write.mode("append").option("path", str(tmp_path / "store")).option("wait", 0)
        with pytest.raises(PySparkException, match="is held by its server"):
            write.save()
        write = write.option("password", "sesame").option("txnAppId", "me").option("txnVersion", 1)
        for _ in range(2):
            write.save()
        with server.asker() as asker:
            asker.ask("AUTH sesame")
            assert b"cmdstat_kvstream.load|put" in asker.ask("INFO commandstats")
    finally:
        server.stop()
    assert contents(tmp_path / "store") == {b"s%d" % at: [*range(at, 20_000, 2)] for at in (0, 1)}
    assert files_beside(tmp_path / "store") == ["store"]


@pytest.mark.parametrize("server", ["kvstream", "redis"])
def test_a_server_gets_the_same_rows(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, server: str
) -> None:
    import redis

    served = Served(tmp_path / "store") if server == "kvstream" else None
    port = served.port if served else request.getfixturevalue("redis_port")
    try:
        write = numbered(spark, 20_000, streams=3, size=100).write.format("kvstream")
        write.mode("append").option("url", f"redis://127.0.0.1:{port}/0").save()
        with redis.Redis(port=port) as client:
            for at in range(3):
                rows = client.xrange(f"s{at}")
                assert isinstance(rows, list)
                assert [int(fields[b"n"]) for _, fields in rows] == [*range(at, 20_000, 3)]
    finally:
        if served is not None:
            served.stop()


def test_rows_are_written_at_once_with_at_least_once(
    spark: SparkSession, tmp_path: Path, redis_port: int
) -> None:
    import redis

    write = numbered(spark, 6_000, size=2000).write.format("kvstream").mode("append")
    write.option("url", f"redis://127.0.0.1:{redis_port}").option("delivery", "atLeastOnce").save()
    with redis.Redis(port=redis_port) as client:
        assert client.xlen("s0") == 6_000
