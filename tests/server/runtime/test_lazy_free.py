"""Deleted keys leave their names at once, and their rows later, a batch of groups at a time."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream.layout.keys import U64, successor, tree_prefix
from kvstream.operations import keyspace
from kvstream.operations.checks import check
from kvstream.operations.plans import Stepped
from kvstream.operations.strings import plan_put
from kvstream.storage.batch import Family
from kvstream.types.clock import ManualClock
from kvstream.types.thresholds import DEFAULT, Thresholds
from tests.commands.dispatcher import Dispatcher
from tests.opening import change_thresholds
from tests.server.runtime.test_incremental_commands import reply_to
from tests.server.talking import Other, Server

KEYS = [f"k{number}" for number in range(40)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(tmp_path: Path, clock: ManualClock) -> Iterator[Server]:
    sizes = {"long_keys": 4, "step_keys": 4, "keys_together": 2, "step_names": 1}
    sizes |= {"unlinked_keys": 2, "groups_together": 2, "cycle_pause_s": 3600}
    started = Server(tmp_path / "store", clock=clock, thresholds=Thresholds(steps_s=-1.0, **sizes))
    yield started
    assert started.engine.run(check) == []
    while started.engine.run(keyspace.sweep, 100):
        assert started.engine.run(check) == []
    left = started.engine.database.scan(Family.METADATA, b"G", successor(b"G"))
    assert list(left) == []
    started.engine.close()


@pytest.fixture
def ann(server: Server) -> Other:
    """Another client that runs commands meanwhile."""
    return Other(server, 1)


@pytest.mark.parametrize("gone", ["DEL", "FLUSHDB", "DEL of many"])
@pytest.mark.parametrize("cached_rows", [DEFAULT.cached_rows, 2])
def test_the_groups_of_a_stream_are_deleted_in_batches(
    server: Server, ann: Other, gone: str, cached_rows: int
) -> None:
    change_thresholds(server.engine, cached_rows=cached_rows, store_rows=0)
    for number in range(1, 9):
        ann.ask("XADD", "s", f"{number}-1", "f", "v")
        ann.ask("XGROUP", "CREATE", "s", f"g{number}", "0")
        for consumer in ("one", "other", "third"):
            read = ("XREADGROUP", "GROUP", f"g{number}", consumer, "COUNT", "1")
            ann.ask(*read, "STREAMS", "s", ">")
    ann.ask("SET", "t", "v")
    ann.ask("WATCH", "s")
    commands = {"DEL": ["s"], "FLUSHDB": [], "DEL of many": ["s", *KEYS]}
    assert Dispatcher(server.engine).execute(
        [gone.split()[0].encode(), *map(str.encode, commands[gone])]
    )
    ann.ask("MULTI")
    assert ann.ask("EXEC") == b"*-1\r\n"
    assert reply_to(ann, "EXISTS", "s") == 0
    assert reply_to(ann, "DBSIZE") == (gone != "FLUSHDB")
    steps = 0
    while server.engine.run(keyspace.sweep, 100) == 100:
        steps += 1
        assert server.engine.run(check) == []
        assert reply_to(ann, "DBSIZE") == (gone != "FLUSHDB")
    assert steps >= 2
    assert list(server.engine.database.scan(Family.TREES, b"", b"\xff")) == []


def test_a_name_is_free_before_its_groups_are_deleted(server: Server, ann: Other) -> None:
    for _ in range(2):
        for number in range(5):
            ann.ask("XGROUP", "CREATE", "s", f"g{number}", "0", "MKSTREAM")
        assert reply_to(ann, "DEL", "s") == 1
        assert reply_to(ann, "DEL", "s") == 0
        server.engine.run(keyspace.sweep, 100)
        ann.ask("XADD", "s", "1-1", "f", "v")
        assert server.engine.run(check) == []
    assert reply_to(ann, "XINFO", "GROUPS", "s") == []


@pytest.mark.parametrize("word", ["SET", "RENAME", "COPY", "RESTORE", "PEXPIREAT", "FLUSHDB"])
@pytest.mark.parametrize("expiring", [False, True])
def test_replacing_a_stream_deletes_its_groups_later(
    server: Server, ann: Other, word: str, expiring: bool
) -> None:
    for number in range(1, 9):
        ann.ask("XADD", "s", f"{number}-1", "f", "v")
        ann.ask("XGROUP", "CREATE", "s", f"g{number}", "0")
        ann.ask("XREADGROUP", "GROUP", f"g{number}", "w", "COUNT", "1", "STREAMS", "s", ">")
    if expiring:
        ann.ask("EXPIRE", "s", "1000")
    ann.ask("SET", "t", "v")
    words: dict[str, tuple[str | bytes, ...]] = {
        "SET": ("SET", "s", "v"),
        "RENAME": ("RENAME", "t", "s"),
        "COPY": ("COPY", "t", "s", "REPLACE"),
        "RESTORE": ("RESTORE", "s", "0", reply_to(ann, "DUMP", "t"), "REPLACE"),
        "PEXPIREAT": ("PEXPIREAT", "s", "1"),
        "FLUSHDB": ("FLUSHDB",),
    }
    before = len(list(server.engine.database.scan(Family.TREES, b"", b"\xff")))
    assert not ann.ask(*words[word]).startswith(b"-")
    if word in ("PEXPIREAT", "FLUSHDB"):
        ann.ask("SET", "s", "v")
    left = list(server.engine.database.scan(Family.TREES, b"", b"\xff"))
    assert len(left) >= before // 2
    if word == "COPY":  # and in the middle of it
        server.engine.reopen()
    steps = 0
    while server.engine.run(keyspace.sweep, 100) == 100:
        steps += 1
        assert reply_to(ann, "GET", "s") == b"v"
        assert reply_to(ann, "TTL", "s") == -1
        assert server.engine.run(check) == []
    assert steps >= 2
    assert list(server.engine.database.scan(Family.TREES, b"", b"\xff")) == []
    keys = {b"s"} if word in ("RENAME", "FLUSHDB") else {b"s", b"t"}
    assert set(reply_to(ann, "KEYS", "*")) == keys
    assert reply_to(ann, "DBSIZE") == len(keys)


def make_many_groups(server: Server, ann: Other) -> bytes:
    """Create a stream of five groups; return the key that keeps it once it is deleted."""
    for number in range(5):
        ann.ask("XGROUP", "CREATE", "s", f"g{number}", "0", "MKSTREAM")
    stream = server.engine.run(lambda txn: txn.stream(b"\0\0s"))
    assert stream is not None
    return b"kvstream:gone:" + U64.pack(stream.generation)


def test_an_existing_key_under_the_kept_name_stays(server: Server, ann: Other) -> None:
    taken = make_many_groups(server, ann)
    ann.ask("SET", taken, "v")
    assert reply_to(ann, "DEL", "s") == 1
    assert ann.ask("GET", taken) == b"$1\r\nv\r\n"


@pytest.mark.parametrize("steps", [False, True])
def test_a_key_of_that_name_may_be_about_to_be_set(server: Server, ann: Other, steps: bool) -> None:
    taken = make_many_groups(server, ann)
    if steps:
        work = Stepped(plan_put(0, {b"t": b"v", taken: b"v"}))
        assert server.engine.run(work.step) is None
        assert reply_to(ann, "DEL", "s") == 1
        while server.engine.run(work.step) is None:
            pass
    else:
        assert ann.ask("MSET", "s", "v", taken, "v") == b"+OK\r\n"
    assert reply_to(ann, "DBSIZE") == 2
    assert server.engine.run(check) == []


@pytest.mark.parametrize("gone", [("FLUSHDB",), ("DEL", "s", *KEYS)])
def test_a_damaged_stream_stays_deleted(server: Server, ann: Other, gone: tuple[str, ...]) -> None:
    for number in range(5):
        ann.ask("XGROUP", "CREATE", "s", f"g{number}", "0", "MKSTREAM")
    stream = server.engine.run(lambda txn: txn.stream(b"\0\0s"))
    assert stream is not None
    damaged = tree_prefix(stream.groups_tree) + b"g0"
    server.engine.run(lambda txn: txn.batch.put(Family.TREES, damaged, b"x"))
    server.engine.reopen()
    Dispatcher(server.engine).execute([word.encode() for word in gone])
    while server.engine.run(keyspace.sweep, 100) == 100:
        pass
    assert reply_to(ann, "KEYS", "*") == []
    server.engine.run(check, repair=True)
