"""The same streams in Spark: ``python -m demo.lake STORE FOLDER`` sums them by hour.

The sums go into Parquet files in FOLDER and, in one commit, into the stream ``hours`` of the store,
each with the time of its hour as ID. The library and pyarrow read them back for comparison.
"""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import reduce
from importlib.util import find_spec
from pathlib import Path

from demo.job import DemoFailed
from demo.readings import SOURCES, Key, Sum, fold
from kvstream import Store

HOURS = "hours"
"""The stream of results."""
ROOT = Path(__file__).resolve().parent.parent
_HOUR_MS = 3_600_000
_DECIMAL = "decimal(18,4)"
_SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # for a job of seconds
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def is_installed() -> bool:
    return find_spec("pyspark") is not None


def run(store: Path, folder: Path) -> None:
    """Run the job in a process of its own. Raises DemoFailed if it fails."""
    command = [sys.executable, "-m", "demo.lake", str(store.resolve()), str(folder.resolve())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DemoFailed(f"the job of Spark ended with {done.returncode}: {done.stderr[-2000:]}")


def _hour(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:00")


def sums_of_the_files(data: Path, rows_max: int | None) -> dict[Key, Sum]:
    """Add up the measurements of the files by hour."""
    return fold(
        ((source.stream, _hour(reading.ms)), Sum.of(reading.columns[source.column]))
        for source in SOURCES
        for reading in source.readings(data, rows_max)
    )


def sums_of_the_stream(store: Path) -> dict[Key, Sum]:
    """Return the sums in the job's stream, and check that each has its hour's ID."""
    with Store.open(store) as opened:
        entries = list(opened.stream(HOURS).scan())
    found = {}
    for entry in entries:
        fields = entry.fields or {}
        key = fields[b"source"].decode(), _hour(entry.id.ms)
        if entry.id.ms % _HOUR_MS or key in found:
            raise DemoFailed(f"{entry.id} in {HOURS} is not the ID of an hour, or repeats one")
        found[key] = Sum.from_fields(fields)
    return found


def sums_of_the_lake(folder: Path) -> dict[Key, Sum]:
    """Return the sums in the Parquet files, read by pyarrow."""
    from pyarrow import dataset

    rows = dataset.dataset(folder, partitioning="hive").to_table().to_pylist()
    return {
        (row["source"], _hour(round(row["hour"].timestamp() * 1000))): Sum(
            row["count"], row["total"], row["low"], row["high"]
        )
        for row in rows
    }


def picture(sums: dict[Key, Sum]) -> str:
    """Return a plot of the mean temperature at each hour of the day, as SVG."""
    from kvstream.spark.jobs.plots import lines

    series = [
        (source.stream, list(_by_hour_of_day(sums, source.stream)))
        for source in SOURCES
        if source.column == "temp"
    ]
    return lines(
        "Mean temperature by hour of the day",
        [(name, points) for name, points in series if points],
        x="hour of the day (local time, read as UTC)",
        y="mean temperature (°F)",
        legend="stream",
    )


def _by_hour_of_day(sums: dict[Key, Sum], stream: str) -> Iterator[tuple[float, float]]:
    for hour in range(24):
        parts = [
            part
            for (source, at), part in sums.items()
            if source == stream and at.endswith(f" {hour:02}:00")
        ]
        if parts:
            whole = reduce(Sum.__add__, parts)
            yield hour, float(whole.total / whole.count)


def main() -> None:
    """Run the Spark job."""
    from pyspark.sql import functions as F

    from kvstream.spark import session

    store, folder = sys.argv[1:]
    spark = session("demo", master="local[2]", config=_SETTINGS)
    readings = (
        spark.read.format("kvstream")
        .schema("stream string, timestamp timestamp, fields map<string,string>")
        .options(path=store, stream=",".join(source.stream for source in SOURCES))
        .load()
    )
    columns = F.coalesce(
        *(F.when(F.col("stream") == each.stream, F.col("fields")[each.column]) for each in SOURCES)
    )
    value = columns.cast(_DECIMAL)
    hours = readings.groupBy(
        F.col("stream").alias("source"), F.date_trunc("hour", "timestamp").alias("hour")
    ).agg(
        F.count(F.lit(1)).alias("count"),
        F.sum(value).alias("total"),
        F.min(value).alias("low"),
        F.max(value).alias("high"),
    )
    hours.write.partitionBy("source").mode("overwrite").parquet(folder)
    again = spark.read.parquet(folder).withColumnRenamed("hour", "timestamp")
    again.write.format("kvstream").mode("append").options(path=store, stream=HOURS).save()
    spark.stop()


if __name__ == "__main__":
    main()
