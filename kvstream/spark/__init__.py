"""The Apache Spark data source: streams as DataFrames, read in parallel and written in bulk.

``session`` starts a Spark session in which ``format("kvstream")`` works; ``register`` adds the
format to an existing session. Install with ``pip install 'kvstream-db[spark]'``.
"""

from kvstream.spark.spark_session import (
    JavaMissing,
    SparkMissing,
    java_home,
    local_java,
    local_sockets,
    register,
    session,
)

__all__ = [
    "JavaMissing",
    "SparkMissing",
    "java_home",
    "local_java",
    "local_sockets",
    "register",
    "session",
]


def __dir__() -> list[str]:
    return __all__
