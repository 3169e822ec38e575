"""Each row is written exactly once, after any kill, retry or second run."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kvstream import Store
from kvstream.spark.write.stage import MARK_PREFIX
from tests.cli.program import ENVIRONMENT, ROOT
from tests.patience import until
from tests.spark import stuck
from tests.spark.followed import drain
from tests.spark.killing import KILL_VARIABLE
from tests.spark.test_sessions import cluster

STREAMS = 8
LOCAL_CLUSTER = "local-cluster[2,1,1024]"
ROWS = 200
"""Of one file."""
STEPS = ("staged", "begun", "between", "done")
LONG = "KVSTREAM_LOAD" in os.environ
"""Kill at each step; by default only in the middle of a commit."""


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


def follow(files: Path, stores: str, checkpoint: Path, kill: Path) -> int:
    """Run the query in a separate process until it ends or dies; return its exit code."""
    return run(kill, "-m", "tests.spark.followed", str(files), stores, str(checkpoint))


def run(kill: Path, *words: str) -> int:
    """Run a program that may be killed, and return its exit code."""
    environment = {**os.environ, **ENVIRONMENT, KILL_VARIABLE: str(kill), "PYTHONPATH": str(ROOT)}
    with open(kill.parent / "output", "w+b") as output:
        mark = f"{KILL_VARIABLE}={kill}"
        code = stuck.run([sys.executable, *words], mark, output, cwd=ROOT, env=environment)
        assert code in (0, -signal.SIGKILL), stuck.text_of(output)[-3000:]
    return code


SLEEPER = """
import sys, threading
from pathlib import Path
from tests.spark import stuck
from tests.spark.followed import drain

def sleeping():
    Path(sys.argv[1]).touch()
    threading.Event().wait()

sleeping()
"""


def test_a_hanging_program_shows_its_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stuck, "SHOWING_S", 0.0)
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
            stuck.run(words, mark, output, 0.5, env=environment)


def test_a_query_whose_driver_is_killed_at_any_step_has_every_row_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    files, kill = tmp_path / "files", tmp_path / "kill"
    files.mkdir()
    kill.mkdir()
    stores = [tmp_path / "one", tmp_path / "two"]
    named = ",".join(map(str, stores))
    number = 0
    for step in STEPS if LONG else ("between",):
        write_file(files, number)
        number += 1
        (kill / step).touch()
        assert follow(files, named, tmp_path / "checkpoint", kill) == -signal.SIGKILL
        assert (kill / f"{step}.done").exists()
    write_file(files, number)
    drain(spark, str(files), named, str(tmp_path / "checkpoint"))
    assert numbers_in(*stores) == Counter(range(ROWS * (number + 1)))
    assert not list(tmp_path.glob("*.staging"))


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


CLUSTER = """
import os, sys
from pathlib import Path
from pyspark.sql import functions as F
from kvstream.spark import session
from tests.spark.killing import KILL_VARIABLE, KilledSource
from tests.spark.settings import SETTINGS

store, kind, master, folder = sys.argv[1:]
config = {**SETTINGS, "spark.executorEnv.PYTHONPATH": os.getcwd(), "spark.task.maxFailures": "4"}
config[f"spark.executorEnv.{KILL_VARIABLE}"] = os.environ[KILL_VARIABLE]
if kind == "speculation":
    config |= {"spark.speculation": "true", "spark.speculation.interval": "100ms",
               "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.3",
               "spark.speculation.minTaskRuntime": "100ms"}
spark = session("cluster", master=master, config=config)
spark.dataSource.register(KilledSource)

def slowly(batches):
    import time
    from pyspark import TaskContext
    context = TaskContext.get()
    (Path(folder) / f"map-{context.taskAttemptId()}").touch()
    for batch in batches:
        if kind == "speculation" and context.partitionId() == 3 and context.attemptNumber() == 0:
            time.sleep(6)
        yield batch

rows = spark.range(0, 40000, 1, 4).select(
    F.concat(F.lit("s"), F.col("id") % 8).alias("stream"), F.col("id").alias("n"),
    F.repeat(F.lit("x"), 200).alias("filling"))
rows = rows.mapInArrow(slowly, rows.schema)
if kind == "stage":
    rows = rows.repartition(4)  # what the executor had made for others is gone with it
rows.write.format("kvstream").mode("append").option("path", store).save()
spark.stop()
"""


KINDS = ["executor", *(["speculation", "stage", "standalone"] if LONG else [])]
TASKS = 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_write_survives_the_kill_of_an_executor_and_tasks_that_run_twice(
    tmp_path: Path, kind: str
) -> None:
    kill = tmp_path / "kill"
    kill.mkdir()
    if kind != "speculation":
        (kill / "executor").touch()
    store = tmp_path / "store"
    with cluster(tmp_path) if kind == "standalone" else nullcontext(LOCAL_CLUSTER) as master:
        done = subprocess.run(
            [sys.executable, "-c", CLUSTER, str(store), kind, master, str(kill)],
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT, KILL_VARIABLE: str(kill), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert kind == "speculation" or (kill / "executor.done").exists()
    assert len(list(kill.glob("map-*"))) > TASKS  # some ran again
    assert numbers_in(store) == Counter(range(40_000))
