"""``python -m tests.spark.followed FILES STORES CHECKPOINT``: files as a stream, into stores."""

import os
import sys
from typing import TYPE_CHECKING

from kvstream.spark import session
from tests.spark.killing import DRIVER_VARIABLE, KilledSource
from tests.spark.settings import SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def drain(spark: "SparkSession", files: str, stores: str, checkpoint: str) -> None:
    """Write all rows of the files, one file a micro-batch."""
    rows = spark.readStream.schema("stream string, n bigint").option("maxFilesPerTrigger", 1)
    write = rows.json(files).writeStream.format("kvstream").option("path", stores)
    write = write.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    write.start().awaitTermination()


def main() -> None:
    os.environ[DRIVER_VARIABLE] = str(os.getpgid(0))
    spark = session("followed", master="local[2]", config=SETTINGS)
    spark.dataSource.register(KilledSource)
    drain(spark, *sys.argv[1:])
    spark.stop()


if __name__ == "__main__":
    main()
