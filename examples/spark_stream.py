"""Spark follows a stream, and writes sums into another store: each micro-batch exactly once.

    python examples/spark_stream.py

It needs ``pip install '.[spark]'``. The query ends when it has read all that was there; run again,
it goes on where its checkpoint is. A service leaves the trigger out, and runs for ever. The data is
in the folder that ``DATA`` names in the environment, else in a temporary one.
"""

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import kvstream
from kvstream.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def sell(folder: Path, first: int, count: int) -> None:
    """Add orders, as a program beside Spark does."""
    with kvstream.open(folder / "shop") as store:
        orders = range(first, first + count)
        store.stream("orders").add_many([{"sku": f"a{n % 3}", "qty": n} for n in orders])


def follow(spark: "SparkSession", folder: Path) -> int:
    """Write the sums of each micro-batch; return the number of rows that were read."""

    def write(batch: "DataFrame", number: int) -> None:
        sums = batch.groupBy("sku").sum("qty").withColumnRenamed("sum(qty)", "qty")
        sink = sums.write.format("kvstream").mode("append").option("path", str(folder / "sums"))
        # Spark may run a batch again; the sink skips it if it knows its number.
        once = sink.option("txnAppId", "sums").option("txnVersion", number)
        once.option("stream", "sums").save()

    orders = (
        spark.readStream.format("kvstream")
        .schema("sku string, qty int")
        .option("path", str(folder / "shop"))
        .option("stream", "orders")
        .load()
    )
    query = (
        orders.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def main(spark: "SparkSession", folder: Path) -> None:
    sell(folder, 0, 300)
    print("rows:", follow(spark, folder))
    sell(folder, 300, 30)
    print("rows after a restart:", follow(spark, folder))
    with kvstream.open(folder / "sums", decode=True) as store:
        rows = [(row.fields["sku"], int(row.fields["qty"])) for row in store.stream("sums").scan()]
    print("batches:", len(rows) // 3, "sum:", sum(qty for _, qty in rows) == sum(range(330)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary, session("orders", master="local[2]") as spark:
        main(spark, Path(os.environ.get("DATA", temporary)))
