"""One session of Spark for all tests of a run, stores to read, and a real redis-server.

Without PySpark, which `make test` installs, none of these tests is collected.
"""

import os
import shutil
import socket
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import runtestprotocol

from kvstream import Store
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.spark.settings import ADAPTIVE, JVM, SETTINGS
from tests.spark.workers import forked_python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

collect_ignore_glob: list[str] = [] if find_spec("pyspark") else ["test_*.py"]

HERE = Path(__file__).parent
ROOT = HERE.resolve().parent.parent
LONG = pytest.mark.skipif(
    "KVSTREAM_LOAD" not in os.environ, reason="long: with KVSTREAM_LOAD in the environment"
)

SLOW_START = "failed to connect back"
"""The message of Spark about a worker that did not start within ten seconds: a busy machine."""
TRIES = 10
STARTS = 3
"""The number of attempts of a test after that: Spark can repeat a query, but not its planning."""

Read = Callable[..., "DataFrame"]


@pytest.hookimpl(tryfirst=True)  # before tests are distributed to processes by their groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group all tests in one session, and do not turn warnings of PySpark and py4j into errors."""
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.filterwarnings("ignore"))
        item.add_marker(pytest.mark.timeout(600))
        if "spark" in getattr(item, "fixturenames", ()) and config.pluginmanager.hasplugin("xdist"):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Repeat a test with its fixtures if Spark says that a worker started too slowly."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for left in reversed(range(STARTS)):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if not (left and any(SLOW_START in report.longreprtext for report in reports)):
            break
        item._initrequest()  # type: ignore[attr-defined]
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    if nextitem is None or HERE not in nextitem.path.parents:
        _running.close()
    return True


_running = ExitStack()
"""The session of Spark. It ends with this folder: later it would take 2 % of a processor."""


@pytest.fixture(scope="session", autouse=True)
def _local_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Sessions, also those of other processes, keep their files in the folder of the tests."""
    os.environ["SPARK_LOCAL_DIRS"] = str(tmp_path_factory.mktemp("local"))


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """A session on two cores of this machine."""
    from kvstream.spark import local_java, local_sockets, session

    # Workers import kvstream as the tests do, wherever they start.
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    python = _running.enter_context(forked_python())
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("PYSPARK_PYTHON", python)
        settings = SETTINGS | local_sockets() | local_java(JVM)
        spark = session("tests", master="local[2]", config=settings)
    _running.callback(spark.stop)
    yield spark
    _running.close()


@pytest.fixture
def adaptive(spark: "SparkSession") -> Iterator[None]:
    """Plans change while they run, as in the sessions of users."""
    spark.conf.set(ADAPTIVE, "true")
    yield
    spark.conf.set(ADAPTIVE, "false")


@pytest.fixture
def read(spark: "SparkSession") -> Read:
    """Read streams: ``read(path=..., stream=...)``, with ``schema`` and options by name."""

    def load(schema: str | None = None, **options: Any) -> "DataFrame":
        reader = spark.read.format("kvstream")
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return (reader if schema is None else reader.schema(schema)).load()

    return load


@pytest.fixture(scope="session")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store without an owner: 5,000 orders, and a few other streams."""
    path = tmp_path_factory.mktemp("spark") / "data"
    with Store.open(path, durability="no") as store:
        fill(store)
    return path


def order(number: int) -> dict[str, str]:
    return {"sku": f"a{number % 10}", "qty": str(number), "price": f"{number}.25"}


def fill(store: Store, count: int = 5000) -> None:
    """Add orders, three to the millisecond, and a stream for each of ten skus."""
    with store.transaction():
        for number in range(count):
            eid = (1_700_000_000_000 + number // 3, number % 3)
            store.stream("orders").add(order(number), id=eid)
        for number in range(10):
            store.stream(f"sku:{number}").add({"name": f"item {number}"}, id=(1000 + number, 0))


@pytest.fixture(scope="module")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A real redis-server."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server is installed")
    port = free_port()
    folder = tmp_path_factory.mktemp("redis")
    words = [program, "--port", str(port), "--save", "", "--dir", str(folder)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as server:
        try:
            _wait_for(port)
            yield port
        finally:
            server.terminate()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def rows_of(frame: "DataFrame") -> list[tuple[Any, ...]]:
    """Return (ID, fields) of each row, sorted by ID, as the library returns them."""
    rows = frame.select("id", "fields").collect()
    return sorted(
        ((row.id.ms, row.id.seq), {name.encode(): bytes(v) for name, v in row.fields.items()})
        for row in rows
    )


def entries_of(store: Store, key: str, **bounds: Any) -> list[tuple[Any, Mapping[bytes, bytes]]]:
    """Return (ID, fields) of each entry of a range."""
    return [(tuple(entry.id), entry.fields or {}) for entry in store.stream(key).range(**bounds)]
