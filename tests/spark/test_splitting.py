"""Migrate long streams of a server in ranges of IDs, with groups and expiry."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import SparkSession

from kvstream import DataError, Store, migration
from kvstream.spark.jobs.migration import Pair, migrate
from kvstream.spark.jobs.splitting import (
    LABEL_PREFIX,
    LongStream,
    long_streams,
    migrate_stream,
    state_differences,
)
from tests.server.conftest import Served

ENTRIES = 3000


@pytest.fixture
def source(redis_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, redis.Redis]]:
    """A Redis with a long stream in database 3, whose head was trimmed, and a short one."""
    monkeypatch.setattr("kvstream.spark.read.servers.PIECE_LEAST", 500)
    client = redis.Redis(port=redis_port, db=3)
    client.flushall()
    with client.pipeline(transaction=False) as pipeline:
        for number in range(ENTRIES + 10):
            pipeline.xadd(
                "long", {"n": number, "text": "x" * 20}, id=f"{1000 + number // 3}-{number % 3}"
            )
        pipeline.xtrim("long", maxlen=ENTRIES, approximate=False)
        pipeline.xadd("short", {"n": 1}, id="5-1")
        pipeline.xgroup_create("long", "bill", id="0")
        pipeline.pexpire("long", 3_600_000)
        pipeline.execute()
    client.xreadgroup("bill", "w1", {"long": ">"}, count=700)
    client.xreadgroup("bill", "w2", {"long": ">"}, count=5)
    client.xack("long", "bill", "1004-0", "1200-1")
    yield f"redis://127.0.0.1:{redis_port}/3", client
    client.flushall()
    client.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Served]]:
    server = Served(tmp_path / "served")
    yield f"redis://127.0.0.1:{server.port}", server
    server.stop()


def sound(path: Path, url: str) -> None:
    """Check that a store has the streams of the server, and nothing else."""
    found = migration.verify(url, path, tolerance_ms=200)
    assert [each for each in found.differences if not each.may_move] == []
    with Store.open(path, db=3) as store:
        assert store.check() == []
        assert sorted(store.keys()) == [b"long", b"short"]
        assert 3000 < (store.ttl("long") or 0) <= 3600
    assert [each.name for each in path.parent.iterdir() if "staging" in each.name] == []


def test_a_long_stream_is_migrated_by_several_tasks(
    spark: SparkSession, tmp_path: Path, source: tuple[str, redis.Redis], served: tuple[str, Served]
) -> None:
    (url, client), (target, _) = source, served
    found: list[str] = []
    pairs = [Pair(url, str(tmp_path / "store")), Pair(url, target)]
    state = str(tmp_path / "state")
    for moved in migrate(spark, pairs, split=1000, state=state, say=found.append):
        assert (moved.keys, moved.entries, moved.differences) == (2, ENTRIES + 1, 0)
    sound(tmp_path / "store", url)
    client.xadd("long", {"n": "more"})  # existing ranges are compared
    with pytest.raises(DataError, match="2 of 2 sources"):
        migrate(spark, pairs, split=1000, state=state, say=found.append)
    ranges = [line for line in found if "ranges of IDs" in line]
    assert ranges == ["long: 6 ranges of IDs"] * 2
    counts = f"{ENTRIES + 1:,} entries in the source, {ENTRIES:,} in the target"
    assert sum(counts in line for line in found) == 2


class Tasks:
    """The part of a session that a split needs, in this process."""

    defaultParallelism = 1

    def __init__(self, before: Any = lambda: None) -> None:
        self.sparkContext = self
        self._before = before
        self._work: list[Any] = []

    def parallelize(self, work: list[Any], tasks: int) -> "Tasks":
        self._work = work
        return self

    def flatMap(self, run: Any) -> "Tasks":
        self._work = [made for each in self._work for made in run(each)]
        return self

    def collect(self) -> list[Any]:
        self._before()
        return self._work


def long_of(url: str, path: Path) -> LongStream:
    [found] = long_streams(url, str(path), (), frozenset(), 1000)
    return found


def test_entries_added_meanwhile_are_migrated_too(
    tmp_path: Path, source: tuple[str, redis.Redis]
) -> None:
    url, client = source
    stream = long_of(url, tmp_path / "store")
    with Store.open(tmp_path / "store", db=3) as store:
        store.stream(stream.label.decode()).add({"left": "by a run that was killed"})
        store.stream("short").add({"n": 1}, id="5-1")
    added: Any = Tasks(lambda: [client.xadd("long", {"n": "late"}) for _ in range(150)])
    assert migrate_stream(added, stream, print) == ENTRIES + 150
    sound(tmp_path / "store", url)
    assert migrate_stream(added, stream, print) == 0


def test_a_stream_trimmed_meanwhile_is_not_complete(
    tmp_path: Path, source: tuple[str, redis.Redis]
) -> None:
    url, client = source
    stream = long_of(url, tmp_path / "store")
    trimmed: Any = Tasks(lambda: client.xtrim("long", maxlen=100))
    with pytest.raises(DataError, match="was changed while it was read"):
        migrate_stream(trimmed, stream, print)
    with Store.open(tmp_path / "store", db=3) as store:
        assert list(store.keys()) == []


def test_only_long_streams_without_losses_are_split(
    tmp_path: Path, source: tuple[str, redis.Redis]
) -> None:
    url, client = source
    target = str(tmp_path / "store")
    assert [each.key for each in long_streams(url, target, (), frozenset(), 1)] == [
        b"long",
        b"short",
    ]
    assert long_streams(url, target, ("sh*",), frozenset(), 1000) == []
    assert long_streams(url, target, (), frozenset(), 0) == []
    assert long_streams(url, url[:-1] + "4", (), frozenset(), 1) == []
    client.rename("long", b"\xff")
    assert long_streams(url, target, (), frozenset(), 1000) == []
    assert LABEL_PREFIX.startswith(b"kvstream:migrate:")


# --- a server as the target -----------------------------------------------------------------------


def test_a_kvstream_server_gets_a_long_stream_as_files_of_rows(
    source: tuple[str, redis.Redis], served: tuple[str, Served]
) -> None:
    (url, client), (target, server) = source, served
    there = server.client(db=3)
    client.xautoclaim("long", "bill", "w3", 0, count=3)
    [stream] = long_streams(url, target, (), frozenset(), 1000)
    there.xadd(stream.label, {"left": "by a run that was killed"})
    there.xadd("short", {"n": 1}, id="5-1")
    late: Any = Tasks(lambda: [client.xadd("long", {"n": "late"}) for _ in range(150)])
    assert migrate_stream(late, stream, print) == ENTRIES + 150
    found = migration.verify(url, f"{target}/3", tolerance_ms=200)
    assert [each for each in found.differences if not each.may_move] == []
    assert state_differences(stream) == 0
    assert sorted(there.keys()) == [b"long", b"short"]
    assert 3000 < there.ttl("long") <= 3600
    calls = server.client().info("commandstats")
    assert calls["cmdstat_kvstream.load|commit"]["calls"] == 1
    assert migrate_stream(late, stream, print) == 0
    assert list((server.engine.database.directory / "loads").iterdir()) == []


def test_a_changed_stream_leaves_nothing_on_a_server(
    source: tuple[str, redis.Redis], served: tuple[str, Served]
) -> None:
    (url, client), (target, server) = source, served
    [stream] = long_streams(url, target, (), frozenset(), 1000)
    trimmed: Any = Tasks(lambda: client.xtrim("long", maxlen=100))
    with pytest.raises(DataError, match="was changed while it was read"):
        migrate_stream(trimmed, stream, print)
    assert server.client(db=3).keys() == []
    taken: Any = Tasks(lambda: server.client(db=3).xadd("long", {"n": "other"}))
    with pytest.raises(DataError, match="was created at the target"):
        migrate_stream(taken, stream, print)
    assert server.client(db=3).keys() == [b"long"]


def test_servers_without_bulk_loads_get_no_parts(
    source: tuple[str, redis.Redis], served: tuple[str, Served]
) -> None:
    (url, _), (target, server) = source, served
    server.client().acl_setuser("ann", True, True, commands=["+@all", "-@admin"], keys=["*"])
    others = (target.replace("//", "//ann:x@"), f"{target}/4", url, url[:-2])
    for other in others:
        assert long_streams(url, other, (), frozenset(), 1000) == []
