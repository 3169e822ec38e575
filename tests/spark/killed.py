"""Programs whose processes are killed: a batch write, and files as a stream.

``python -m tests.spark.killed write MASTER FOLDER STORE KIND`` writes a batch on a cluster, and
``python -m tests.spark.killed drain STEP FILES STORES CHECKPOINT`` the files into stores, until it
is killed at a step. With the words of both, one session does one after the other.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as F

from kvstream.spark import session
from tests.spark.killing import DRIVER_VARIABLE, KILL_VARIABLE, KilledSource
from tests.spark.settings import SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "100ms",
}
BATCH_ROWS = 40_000
TASKS = 4


def settings(kind: str) -> dict[str, str]:
    """Return the settings of a session on a cluster."""
    environment = {"PYTHONPATH": os.getcwd(), KILL_VARIABLE: os.environ[KILL_VARIABLE]}
    executors = {f"spark.executorEnv.{name}": value for name, value in environment.items()}
    extra = SPECULATION if kind == "speculation" else {}
    return {**SETTINGS, **executors, "spark.task.maxFailures": "4", **extra}


def write(spark: "SparkSession", folder: str, store: str, kind: str) -> None:
    """Write rows in four tasks, each of which leaves an empty file ``map-ID`` in a folder."""

    def noted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        (Path(folder) / f"map-{context.taskAttemptId()}").touch()
        for batch in batches:
            if kind == "speculation" and context.partitionId() == 3 and not context.attemptNumber():
                time.sleep(6)
            yield batch

    rows = spark.range(0, BATCH_ROWS, 1, TASKS).select(
        F.concat(F.lit("s"), F.col("id") % 8).alias("stream"),
        F.col("id").alias("n"),
        F.repeat(F.lit("x"), 200).alias("filling"),
    )
    rows = rows.mapInArrow(noted, rows.schema)
    if kind == "stage":
        rows = rows.repartition(TASKS)  # what the executor had made for others is gone with it
    rows.write.format("kvstream").mode("append").option("path", store).save()


def drain(spark: "SparkSession", files: str, stores: str, checkpoint: str) -> None:
    """Write all rows of the files, one file a micro-batch."""
    rows = spark.readStream.schema("stream string, n bigint").option("maxFilesPerTrigger", 1)
    query = rows.json(files).writeStream.format("kvstream").option("path", stores)
    query = query.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query.start().awaitTermination()


def main(words: Sequence[str]) -> None:
    os.environ[DRIVER_VARIABLE] = str(os.getpgid(0))
    writes = words[0] == "write"
    master, config = (words[1], settings(words[4])) if writes else ("local[2]", SETTINGS)
    spark = session("killed", master=master, config=config)
    spark.dataSource.register(KilledSource)
    if writes:
        write(spark, *words[2:5])
    if "drain" in words:
        step, *names = words[words.index("drain") + 1 :]
        (Path(os.environ[KILL_VARIABLE]) / step).touch()
        drain(spark, *names)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
