"""``python -m tests.spark.followed FILES STORES CHECKPOINT``: files as a stream, into two stores.

It takes one file a micro-batch and ends when all are taken.
"""

import os
import sys

from kvstream.spark import session
from tests.spark.killing import DRIVER_VARIABLE, KilledSource
from tests.spark.settings import SETTINGS


def main() -> None:
    files, stores, checkpoint = sys.argv[1:]
    os.environ[DRIVER_VARIABLE] = str(os.getpgid(0))
    spark = session("followed", master="local[2]", config=SETTINGS)
    spark.dataSource.register(KilledSource)
    rows = spark.readStream.schema("stream string, n bigint").option("maxFilesPerTrigger", 1)
    query = (
        rows.json(files)
        .writeStream.format("kvstream")
        .option("path", stores)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
