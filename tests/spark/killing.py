"""The data source in programs that are killed at a given step of a write.

A variable names a folder in which an empty file names a step that kills, once: ``staged`` (a task
has its rows ready), ``begun`` (the commit has all messages), ``between`` (the first of two stores
has its rows), ``done`` (all stores have them, Spark does not know). The kill hits all processes of
the driver's group, as when a machine fails; ``executor`` kills the one that runs the task.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from kvstream.spark.source import KVStreamSource
from kvstream.spark.write import writers
from kvstream.spark.write.writers import BatchWriter, StreamWriter, Written
from tests.spark import stuck  # noqa: F401 - has each process heed the signal that asks for stacks
from tests.spark.forked_python import STARTED_BY

KILL_VARIABLE = "KVSTREAM_TEST_KILL"
DRIVER_VARIABLE = "KVSTREAM_TEST_DRIVER"
COMMIT = "commit_to"
"""The function that ``writers`` calls for the commit into one store."""


def step(name: str) -> None:
    """Exit here, if requested and not done yet."""
    folder = os.environ.get(KILL_VARIABLE)
    if folder is None:
        return
    try:
        (Path(folder) / name).rename(Path(folder) / f"{name}.done")
    except FileNotFoundError:
        return
    if name == "executor":
        os.kill(executor(), signal.SIGKILL)
    else:
        os.killpg(int(os.environ[DRIVER_VARIABLE]), signal.SIGKILL)
    os._exit(1)  # otherwise this process would continue the commit


def executor() -> int:
    """Return the process of the JVM that runs this task."""
    pid = int(os.environ.get(STARTED_BY, os.getpid()))
    while "java" not in Path(f"/proc/{pid}/comm").read_text():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


@contextmanager
def killed_in_commit() -> Iterator[None]:
    """Insert the steps of a commit around a block that commits."""
    step("begun")
    commit_to = getattr(writers, COMMIT)

    def committed(*arguments: Any) -> object:
        found = commit_to(*arguments)
        step("between")
        return found

    setattr(writers, COMMIT, committed)
    yield
    step("done")


class KilledBatchWriter(BatchWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        written = super().write(iterator)
        step("executor")
        step("staged")
        return written

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with killed_in_commit():
            super().commit(messages)


class KilledStreamWriter(StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        written = super().write(iterator)
        step("staged")
        return written

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        with killed_in_commit():
            super().commit(messages, batchId)


class KilledSource(KVStreamSource):
    """Found under the same name."""

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        writer = KilledBatchWriter(writers.settings_of(schema, self.options))
        writer.begin()
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return KilledStreamWriter(writers.settings_of(schema, self.options))
