"""Reads of an archive: a moment of it, only what the streams need, and nothing is left behind."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvstream import Store
from kvstream.archive import archiver
from kvstream.archive.history import get_snapshot
from kvstream.archive.objects import open_objects
from kvstream.archive.parts import find_moment
from kvstream.engine.reader_snapshots import read_start_time
from kvstream.errors import InvalidArgument
from kvstream.spark.read import remover
from kvstream.spark.source import KVStreamSource
from kvstream.storage.manifest import parse_manifest
from tests.archive.conftest import bucket_url, seaweed, seaweed_server, wait_archived
from tests.archive.proxy import Proxy
from tests.archive.seaweed import Seaweed
from tests.patience import PATIENCE_S
from tests.spark.conftest import ROOT, Read, entries_of, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["bucket_url", "seaweed", "seaweed_server"]
MANY = 6000
SMALL = dict.fromkeys(
    ("target_file_size_base", "write_buffer_size", "max_bytes_for_level_base"), "1M"
)


class Archive:
    """An archive of a store that has gone on since ``then_ms``."""

    def __init__(self, folder: Path, url: str = "") -> None:
        self.url = url or f"file://{folder}/bucket"
        self.bucket = folder / "bucket"
        with Store.open(folder / "data", rocksdb=SMALL) as store:
            for key in ("orders", "others"):
                for _ in range(MANY // 500):
                    rows = [{"n": os.urandom(1000)} for _ in range(500)]
                    store.stream(key).add_many(rows)
            store.compact()
        with Store.open(folder / "data", archive=self.url) as store:
            self._work(store)

    def _work(self, store: Store) -> None:
        orders = store.stream("orders")
        orders.add_many([{"n": str(n)} for n in range(500)])
        orders.trim(maxlen=MANY)
        group = orders.create_group("workers", start="0")
        group.consumer("ann").read(count=10)
        orders.delete(*[entry.id for entry in orders.revrange(count=250)])  # the newest node's too
        self.info, (self.group,) = orders.info(), orders.groups()
        store.stream("mail:1").add({"to": "ann"})
        wait_archived(store)
        time.sleep(0.3)
        self.then_ms = time.time_ns() // 1_000_000
        self.then = entries_of(store, "orders")
        time.sleep(0.3)
        store.delete("orders")
        store.stream("mail:2").add({"to": "ben"})
        wait_archived(store)

    @property
    def at(self) -> str:
        """The moment before the stream was deleted, as text."""
        shown = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.then_ms // 1000))
        return f"{shown}.{self.then_ms % 1000:03d}Z"

    def tables_of(self, key: bytes) -> set[str]:
        """Return the tables that have entries of one stream alone."""
        snapshot = get_snapshot(open_objects(self.url), find_moment(self.url).piece)
        manifest = parse_manifest(snapshot.files[snapshot.files["CURRENT"].decode().strip()])
        return {
            snapshot.tables[each.name][0]
            for each in manifest.tables
            if each.first[6:].startswith(key) and each.last[6:].startswith(key)
        }


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archive]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archiver, "SAMPLE_S", 0.01)
        yield Archive(tmp_path_factory.mktemp("archive"))


def fetched(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*/*/tables/*") if "." not in path.name}


def test_a_read_is_of_the_moment_and_fetches_the_tables_of_its_stream(
    archive: Archive, read: Read, tmp_path: Path
) -> None:
    options = {"archive": archive.url, "stagingPath": tmp_path, "partitions": 4}
    frame = read(**options, at=archive.at, stream="orders")
    assert frame.rdd.getNumPartitions() == 4
    assert rows_of(frame) == archive.then
    assert len(archive.tables_of(b"others")) > 3
    assert not archive.tables_of(b"others") & fetched(tmp_path)
    assert archive.tables_of(b"orders") <= fetched(tmp_path)
    assert not [*tmp_path.glob("*/*/store-*")]
    assert not [*(archive.bucket / "pins").iterdir()]


def test_the_end_is_read_without_a_moment_and_patterns_find_streams(
    archive: Archive, read: Read, tmp_path: Path
) -> None:
    options = {"archive": archive.url, "stagingPath": tmp_path}
    frame = read(**options, match="mail:*,orders", schema="stream string, id string")
    assert {row.stream for row in frame.collect()} == {"mail:1", "mail:2"}
    frame = read(**options, match="*", at=archive.at, schema="stream string")
    counts = {row.stream: row["count"] for row in frame.groupBy("stream").count().collect()}
    assert counts == {"orders": archive.info.length, "others": MANY, "mail:1": 1}


@pytest.mark.parametrize("table", ["streams", "groups", "consumers", "pending"])
def test_metadata_tables_are_of_the_moment(
    archive: Archive, read: Read, tmp_path: Path, table: str
) -> None:
    options = {"archive": archive.url, "stagingPath": tmp_path}
    rows = read(**options, table=table, at=archive.at, stream="orders").collect()
    if table == "pending":
        assert [(row.group, row.consumer, row.deliveries) for row in rows] == [
            ("workers", "ann", 1)
        ] * 10
        return
    (row,) = rows
    if table == "streams":
        assert archive.info.first_entry is not None
        assert (row.length, row.groups, row.entries_added) == (MANY - 250, 1, MANY + 500)
        assert row.first_id == str(archive.info.first_entry.id)
        assert row.last_id == str(archive.info.last_generated_id)
    elif table == "groups":
        assert (row.consumers, row.pending) == (1, 10)
        assert (row.lag, row.entries_read) == (archive.group.lag, archive.group.entries_read)
    else:
        assert (row.consumer, row.pending) == ("ann", 10)
    assert not archive.tables_of(b"others") & fetched(tmp_path)
    assert not archive.tables_of(b"orders") <= fetched(tmp_path)


def test_a_session_reads_a_bucket_and_asks_for_the_tables_of_its_stream(
    tmp_path: Path, bucket_url: str, seaweed: Seaweed
) -> None:
    """In a program of its own: workers get the credentials of the environment when they start."""
    archive = Archive(tmp_path, bucket_url)
    with Proxy(seaweed.ports[0]) as proxy:
        environment = {**os.environ, **seaweed.environment, "PYSPARK_PYTHON": sys.executable}
        environment["AWS_ENDPOINT"] = f"http://127.0.0.1:{proxy.port}"
        environment["PYTHONPATH"] = str(ROOT)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, bucket_url, archive.at, str(tmp_path / "staged")],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        parts = [get for get in proxy.gets if "/tables/" in get[0]]
    asked = {path.rpartition("/")[2] for path, _ in parts}
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{len(archive.then)} rows"
    assert archive.tables_of(b"orders") <= asked
    assert not archive.tables_of(b"others") & asked
    assert len(parts) == len(set(parts))
    until = time.monotonic() + PATIENCE_S
    while [*(tmp_path / "staged").glob("*/*")]:  # the program's JVM has ended
        assert time.monotonic() < until
        time.sleep(0.1)


PROGRAM = """
import sys
from kvstream.spark import local_sockets, register, session
spark = session("bucket", master="local[2]", config=local_sockets())
register(spark)
url, at, staged = sys.argv[1:]
options = {"archive": url, "at": at, "stagingPath": staged, "partitions": 4}
print(spark.read.format("kvstream").options(stream="orders", **options).load().count(), "rows")
spark.stop()
"""


def test_a_moment_that_is_not_there_is_refused(archive: Archive, read: Read) -> None:
    with pytest.raises(Exception, match="nothing before it can be restored"):
        read(archive=archive.url, stream="orders", at="2001-01-01").collect()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "data", "at": "1h ago"}, "at is for archives: with path or url, use asof"),
        ({"archive": "file:///a", "path": "data"}, "or archive"),
        ({"archive": "file:///a", "at": "soon"}, "the option at must be a time"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, str], message: str) -> None:
    source = KVStreamSource({**options, "stream": "orders"})
    with pytest.raises(InvalidArgument, match=message):
        source.reader(source.schema())


def test_archives_are_neither_followed_nor_written(archive: Archive, spark: "SparkSession") -> None:
    source = KVStreamSource({"archive": archive.url, "stream": "orders"})
    schema = source.schema()
    with pytest.raises(InvalidArgument, match="archive is for batch reads: a streaming read"):
        source.streamReader(schema)
    with pytest.raises(InvalidArgument, match="can only be read"):
        source.writer(schema, False)


def test_the_folder_goes_with_its_process_and_when_nobody_uses_it(tmp_path: Path) -> None:
    for ends in (True, False):
        folder = tmp_path / f"folder-{ends}"
        (folder / "tables").mkdir(parents=True)
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as jvm:
            idle_s = 1000.0 if ends else 0.3
            start = read_start_time(jvm.pid)
            words = [sys.executable, remover.__file__, folder, jvm.pid, start, idle_s, 0.05]
            subprocess.run(list(map(str, words)), check=True)
            if ends:
                time.sleep(0.3)
                assert folder.exists()
                jvm.kill()
                jvm.wait()
            until = time.monotonic() + PATIENCE_S
            while folder.exists():
                assert time.monotonic() < until
                time.sleep(0.02)
            jvm.kill()
