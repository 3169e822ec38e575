"""What went wrong in a job of Spark, as one error of kvstream without the stacks of two languages.

What our own code raised in a planner or a task comes out of Spark as text in text; the last error
of kvstream in it is what happened. This module knows how Spark words things, and no job.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from kvstream import errors
from kvstream.errors import KVStreamError, RequestError

_OURS = re.compile(r"^(?:kvstream\.)[\w.]*?(\w+): (\S.*)$", re.MULTILINE)
_STACKS = "SQLQueryContextLogger"
"""What PySpark logs the JVM's stack to, as JSON of some kilobytes in one line."""
_JAVA = re.compile(r"^: (?:[\w$]+\.)+[\w$]+: (\S.*)$", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)+[\w$]+: (\S.*)$", re.MULTILINE)
_CONDITION = re.compile(r"^\[([A-Z_.]+)\] ")


class SparkFailed(RequestError):
    """A job of Spark failed; the text is the first line of what Spark says."""


@contextmanager
def plainly() -> Iterator[None]:
    """Raise what Spark raises as an error of kvstream."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger(_STACKS)
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:  # the latter where Spark knows no better
        raise error_of(str(error)) from error
    finally:
        logger.disabled = disabled


def error_of(text: str) -> KVStreamError:
    """Return the error that a text of Spark tells of."""
    found = _OURS.findall(text)
    if found:
        name, message = found[-1]
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, KVStreamError):
            return kind(message)
        return SparkFailed(message)
    java = _JAVA.search(text)
    line = _CONDITION.sub("", java[1] if java else text.strip().partition("\n")[0])
    causes = [cause for cause in _CAUSE.findall(text) if cause not in line]
    if causes:
        line += f" ({causes[-1]})"
    return SparkFailed(line or "Spark does not say why")
