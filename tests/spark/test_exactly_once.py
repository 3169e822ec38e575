"""Each row is written exactly once, after any kill, retry or second run."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kvstream import Store
from kvstream.spark.write.stage import MARK_PREFIX
from tests.cli.program import ENVIRONMENT, ROOT
from tests.patience import until
from tests.spark import stuck
from tests.spark.killed import BATCH_ROWS, TASKS, drain
from tests.spark.killing import KILL_VARIABLE
from tests.spark.test_sessions import cluster
from tests.spark.workers import forked_python

STREAMS = 8
LOCAL_CLUSTER = "local-cluster[1,2,1024]"
"""One executor with two tasks: each further one is a JVM, five seconds of the processor."""
TWO_EXECUTORS = "local-cluster[2,1,1024]"
ROWS = 200
"""Of one file."""
STEPS = ("staged", "begun", "between", "done")
LONG = "KVSTREAM_LOAD" in os.environ


def write_file(folder: Path, number: int) -> None:
    """Add a complete file of rows."""
    rows = [
        json.dumps({"stream": f"s{n % STREAMS}", "n": n})
        for n in range(number * ROWS, (number + 1) * ROWS)
    ]
    partial = folder / f".{number}"
    partial.write_text("\n".join(rows))
    partial.rename(folder / f"{number:03}.json")


def numbers_in(*stores: Path) -> Counter[int]:
    """Return how often each number occurs in the streams of some sound stores."""
    found: Counter[int] = Counter()
    for path in stores:
        with Store.open(path) as store:
            assert store.check() == []
            for key in store.scan_keys():
                if not key.startswith(MARK_PREFIX):
                    found.update(int((entry.fields or {})[b"n"]) for entry in store.stream(key))
    return found


def run(kill: Path, *words: str) -> int:
    """Run a program that may be killed, and return its exit code."""
    variables = {KILL_VARIABLE: str(kill)}
    with open(kill.parent / "output", "w+b") as output, forked_python(**variables) as python:
        own = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": python}
        environment = {**os.environ, **ENVIRONMENT, **variables, **own}
        mark = f"{KILL_VARIABLE}={kill}"
        code = stuck.run([sys.executable, *words], mark, output, cwd=ROOT, env=environment)
        assert code in (0, -signal.SIGKILL), stuck.text_of(output)[-3000:]
    return code


@dataclass(frozen=True)
class Query:
    """Files as a stream, the stores that they are written into, and a folder for kills."""

    folder: Path
    files: Path
    kill: Path

    @classmethod
    def of(cls, folder: Path) -> "Query":
        made = cls(folder, folder / "files", folder / "kill")
        made.files.mkdir()
        made.kill.mkdir()
        return made

    @property
    def stores(self) -> list[Path]:
        return [self.folder / "one", self.folder / "two"]

    @property
    def words(self) -> list[str]:
        """Return what ``drain`` is called with."""
        stores = ",".join(map(str, self.stores))
        return [str(self.files), stores, str(self.folder / "checkpoint")]

    def has_each_row_once(self, files: int) -> None:
        assert numbers_in(*self.stores) == Counter(range(ROWS * files))
        assert not list(self.folder.glob("*.staging"))


@pytest.fixture(scope="module")
def killed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Query:
    """A query whose driver was killed amid a commit, after a batch write that lost an executor.

    One program for both, as its JVMs take the time. Its tests run in the process of the session.
    """
    query = Query.of(tmp_path_factory.mktemp("killed"))
    write_file(query.files, 0)
    (query.kill / "executor").touch()
    batch = ["write", LOCAL_CLUSTER, str(query.kill), str(query.folder / "store"), "executor"]
    code = run(query.kill, "-m", "tests.spark.killed", *batch, "drain", "between", *query.words)
    assert code == -signal.SIGKILL
    return query


SLEEPER = """
import sys, threading
from pathlib import Path
from tests.spark import stuck

def sleeping():
    Path(sys.argv[1]).touch()
    threading.Event().wait()

sleeping()
"""


def test_a_hanging_program_shows_its_stacks(tmp_path: Path) -> None:
    mark, ready = f"{KILL_VARIABLE}={tmp_path}", tmp_path / "ready"
    environment = {**os.environ, KILL_VARIABLE: str(tmp_path), "PYTHONPATH": str(ROOT)}
    with open(tmp_path / "output", "w+b") as output:
        words = [sys.executable, "-c", SLEEPER, str(ready)]
        with subprocess.Popen(words, stderr=output, env=environment) as process:
            until(ready.exists)
            assert f"{process.pid} in " in stuck.show_stacks(mark)
            until(lambda: "in sleeping" in stuck.text_of(output))
            assert process.poll() is None
            process.kill()
        with pytest.raises(AssertionError, match="no end within"):
            stuck.run(words, mark, output, 0.5, 0.0, env=environment)


def test_a_query_whose_driver_is_killed_amid_a_commit_has_every_row_once(
    spark: SparkSession, killed: Query
) -> None:
    assert (killed.kill / "between.done").exists()
    write_file(killed.files, 1)
    drain(spark, *killed.words)
    killed.has_each_row_once(2)


@pytest.mark.skipif(not LONG, reason="long: with KVSTREAM_LOAD in the environment")
def test_a_query_whose_driver_is_killed_at_any_step_has_every_row_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query.of(tmp_path)
    for number, step in enumerate(STEPS):
        write_file(query.files, number)
        words = ["drain", step, *query.words]
        assert run(query.kill, "-m", "tests.spark.killed", *words) == -signal.SIGKILL
        assert (query.kill / f"{step}.done").exists()
    write_file(query.files, len(STEPS))
    drain(spark, *query.words)
    query.has_each_row_once(len(STEPS) + 1)


def test_a_repeated_batch_is_skipped(spark: SparkSession, tmp_path: Path) -> None:
    files, checkpoint, store = (tmp_path / name for name in ("files", "checkpoint", "store"))
    files.mkdir()

    write_file(files, 0)
    write_file(files, 1)
    drain(spark, str(files), str(store), str(checkpoint))
    for forgotten in (checkpoint / "commits").glob("*1*"):  # as if Spark had died before
        forgotten.unlink()
    write_file(files, 2)
    drain(spark, str(files), str(store), str(checkpoint))
    assert numbers_in(store) == Counter(range(3 * ROWS))
    with Store.open(store) as opened:
        marks = [key for key in opened.scan_keys() if key.startswith(MARK_PREFIX)]
    assert len(marks) == 1


BATCH = """
import os, sys
from pyspark.sql import functions as F
from kvstream.spark import session
from tests.spark.killing import DRIVER_VARIABLE, KilledSource
from tests.spark.settings import SETTINGS

stores, version = sys.argv[1:]
os.environ[DRIVER_VARIABLE] = str(os.getpgid(0))
spark = session("batch", master="local[2]", config=SETTINGS)
spark.dataSource.register(KilledSource)
rows = spark.range(0, 20000, 1, 2).select(
    F.concat(F.lit("s"), F.col("id") % 8).alias("stream"), F.col("id").alias("n"),
    F.repeat(F.lit("x"), 200).alias("filling"))
write = rows.write.format("kvstream").mode("append").option("path", stores)
write.option("txnAppId", "nightly").option("txnVersion", version).save()
spark.stop()
"""


@pytest.mark.skipif(not LONG, reason="long: with KVSTREAM_LOAD in the environment")
def test_a_batch_write_whose_driver_is_killed_at_any_step_happens_once(tmp_path: Path) -> None:
    kill = tmp_path / "kill"
    kill.mkdir()
    stores = [tmp_path / "one", tmp_path / "two"]
    named = ",".join(map(str, stores))
    for step in STEPS:  # each continues from the state that the previous one left
        (kill / step).touch()
        assert run(kill, "-c", BATCH, named, "1") == -signal.SIGKILL
        assert (kill / f"{step}.done").exists()
    assert run(kill, "-c", BATCH, named, "1") == 0
    assert numbers_in(*stores) == Counter(range(20_000))
    assert not list(tmp_path.glob("*.staging"))


def test_a_write_survives_the_kill_of_an_executor(killed: Query) -> None:
    assert (killed.kill / "executor.done").exists()
    assert len(list(killed.kill.glob("map-*"))) > TASKS  # some ran again
    assert numbers_in(killed.folder / "store") == Counter(range(BATCH_ROWS))


@pytest.mark.skipif(not LONG, reason="long: with KVSTREAM_LOAD in the environment")
@pytest.mark.parametrize("kind", ["speculation", "stage", "standalone"])
def test_a_write_survives_tasks_that_run_twice(tmp_path: Path, kind: str) -> None:
    kill, store = tmp_path / "kill", tmp_path / "store"
    kill.mkdir()
    if kind != "speculation":
        (kill / "executor").touch()
    with cluster(tmp_path) if kind == "standalone" else nullcontext(TWO_EXECUTORS) as master:
        words = ["write", master, str(kill), str(store), kind]
        assert run(kill, "-m", "tests.spark.killed", *words) == 0
    assert kind == "speculation" or (kill / "executor.done").exists()
    assert len(list(kill.glob("map-*"))) > TASKS
    assert numbers_in(store) == Counter(range(BATCH_ROWS))
