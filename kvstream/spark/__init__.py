"""Streams as DataFrames of Apache Spark: read in parallel, written in bulk, followed live.

``session`` gives a session of Spark in which ``format("kvstream")`` works; ``register`` makes it
known to a session of your own. Installed with ``pip install 'kvstream[spark]'``.
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
