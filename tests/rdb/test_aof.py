"""Append-only files that a redis-server wrote, and their ends, as it would load them itself."""

import shutil
from pathlib import Path

import pytest

from kvstream.errors import BadPayload, InvalidArgument
from kvstream.migration.aof_source import AppendOnlyFile, Command, Cut, Unit
from kvstream.rdb.file_reader import StreamRecord, StringRecord
from tests.rdb.building import MULTI, SELECTED, SET
from tests.rdb.conftest import Start
from tests.rdb.redis_files import RedisFiles


def _work(server: RedisFiles) -> None:
    client = server.client()
    for number in range(300):
        client.xadd("s", {"n": number}, id=f"{number + 1}-0")
    client.xgroup_create("s", "g", "0")
    client.xreadgroup("g", "c", {"s": ">"}, count=10)
    client.xack("s", "g", "1-0", "2-0")
    with client.pipeline(transaction=True) as pipeline:
        pipeline.set("a", 1)
        pipeline.incr("a")
        pipeline.xadd("s", {"last": 1})
        pipeline.execute()
    other = server.client(db=15)
    other.xadd("t", {"f": "v"}, id="7-7")
    other.set("plain", "x", px=10_000_000)
    other.rpush("list", *range(10))


def _rewrite(server: RedisFiles) -> None:
    client = server.client()
    client.bgrewriteaof()
    while client.info("persistence")["aof_rewrite_in_progress"]:
        pass


def _words(path: Path) -> list[tuple[int, bytes]]:
    return [
        (command.db, command.argv[0].upper())
        for unit in AppendOnlyFile(path)
        if isinstance(unit, Unit)
        for command in unit.commands
    ]


@pytest.mark.parametrize("preamble", ["yes", "no"])
@pytest.mark.parametrize("stamps", ["yes", "no"])
def test_a_directory_gives_base_and_increments(
    redis_files: Start, preamble: str, stamps: str
) -> None:
    settings = {
        "appendonly": "yes",
        "aof_use_rdb_preamble": preamble,
        "aof_timestamp_enabled": stamps,
    }
    with redis_files(**settings) as server:
        _work(server)
        directory = server.directory / "appendonlydir"
        assert _words(directory).count((0, b"XADD")) == 301
        _rewrite(server)
        server.client().xadd("s", {"after": 1}, id="99999999999999-0")
        aof = AppendOnlyFile(directory)
        items = list(aof)
    units = [item for item in items if isinstance(item, Unit)]
    streams = {(r.db, r.key) for r in items if isinstance(r, StreamRecord)}
    assert streams == ({(0, b"s"), (15, b"t")} if preamble == "yes" else set())
    assert aof.cut is None
    assert aof.offset == aof.size
    assert units[-1].commands[0].argv[:3] == [b"XADD", b"s", b"99999999999999-0"]
    if preamble == "no":
        assert {(0, b"XADD"), (15, b"RPUSH")} <= set(_words(directory))
    else:
        assert len(units) == 1


def test_a_transaction_of_a_server_is_one_unit(redis_files: Start) -> None:
    with redis_files(appendonly="yes") as server:
        _work(server)
        units = [u for u in AppendOnlyFile(server.directory / "appendonlydir") if type(u) is Unit]
    together = [[c.argv[0] for c in unit.commands] for unit in units if len(unit.commands) > 1]
    assert [b"SET", b"INCRBY", b"XADD"] in [[word.upper() for word in words] for words in together]


def test_a_single_file_with_an_rdb_in_front_is_read_through(
    redis_files: Start, tmp_path: Path
) -> None:
    with redis_files() as server:
        _work(server)
        dump = server.saved().read_bytes()
    single = tmp_path / "appendonly.aof"
    single.write_bytes(dump + SELECTED + SET)
    aof = AppendOnlyFile(single)
    items = list(aof)
    assert items[-1] == Unit([Command(3, [b"SET", b"a", b"1"])])
    assert {r.key for r in items if isinstance(r, StreamRecord | StringRecord)} >= {b"s", b"a"}
    assert (aof.scan(), aof.cut) == (None, None)


def test_the_last_file_may_be_cut_off_as_the_server_itself_allows(redis_files: Start) -> None:
    with redis_files(appendonly="yes") as server:
        _work(server)
        server.kill()
        [increment] = (server.directory / "appendonlydir").glob("*.incr.aof")
        whole = increment.read_bytes()
        increment.write_bytes(whole[:-3])
        aof = AppendOnlyFile(increment.parent)
        cut = aof.scan()
        assert cut is not None
        assert cut == Cut(increment, len(whole) - 3 - cut.size, cut.size)
        kept = [unit for unit in aof if isinstance(unit, Unit)]
    with redis_files(appendonly="yes") as server:  # cuts it off, and says so
        assert increment.stat().st_size == cut.offset
        assert server.client(15).llen("list") == 0
        assert b"RPUSH" not in [unit.commands[0].argv[0] for unit in kept]


def test_a_transaction_that_is_cut_off_is_cut_from_its_multi(redis_files: Start) -> None:
    with redis_files(appendonly="yes") as server:
        _work(server)
        server.kill()
        [increment] = (server.directory / "appendonlydir").glob("*.incr.aof")
        whole = increment.read_bytes()
        multi = whole.index(b"*1\r\n$5\r\nMULTI", whole.index(b"last") - 300)
        # The server cuts at MULTI only if the last command is whole; if not it keeps the MULTI.
        for size in (whole.index(b"last") + 20, whole.index(b"*5\r\n$4\r\nXADD", multi)):
            increment.write_bytes(whole[:size])
            found = AppendOnlyFile(increment.parent).scan()
            assert found == Cut(increment, multi, size - multi)
    with redis_files(appendonly="yes"):
        assert increment.stat().st_size == multi


def test_a_file_that_is_not_the_last_must_be_whole(tmp_path: Path) -> None:
    manifest = tmp_path / "a.manifest"
    manifest.write_bytes(b"file a.1 seq 1 type i\nfile a.2 seq 2 type i\n")
    (tmp_path / "a.1").write_bytes(SET + SET[:-4])
    (tmp_path / "a.2").write_bytes(SET)
    with pytest.raises(BadPayload, match=r"a\.1") as caught:
        AppendOnlyFile(tmp_path).scan()
    assert caught.value.offset == len(SET)
    (tmp_path / "a.1").write_bytes(SET)
    (tmp_path / "a.2").write_bytes(SET + MULTI + SET)
    assert AppendOnlyFile(manifest).scan() == Cut(tmp_path / "a.2", len(SET), len(MULTI + SET))


def test_each_increment_begins_in_database_0(tmp_path: Path) -> None:
    manifest = tmp_path / "a.manifest"
    manifest.write_bytes(b"file a.1 seq 1 type b\nfile a.2 seq 2 type i\n")
    (tmp_path / "a.1").write_bytes(SELECTED + SET)
    (tmp_path / "a.2").write_bytes(SET)
    assert [db for db, _ in _words(manifest)] == [3, 0]


# --- which files ----------------------------------------------------------------------------------


def test_a_directory_is_read_by_its_manifest(tmp_path: Path) -> None:
    (tmp_path / "x.manifest").write_bytes(
        b"file one seq 7 type i\nfile b seq 4 type b\nfile old seq 3 type h\n"
    )
    (tmp_path / "temp-x.manifest").write_bytes(b"half of")
    for name in ("b", "one"):
        (tmp_path / name).write_bytes(b"")
    assert [file.name for file in AppendOnlyFile(tmp_path).files] == ["b", "one"]
    assert list(AppendOnlyFile(tmp_path)) == []
    (tmp_path / "x.manifest").write_bytes(b"?\n")
    with pytest.raises(BadPayload, match=r"x\.manifest"):
        AppendOnlyFile(tmp_path)


def test_a_directory_must_have_one_manifest_and_all_its_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="none"):
        AppendOnlyFile(tmp_path)
    (tmp_path / "x.manifest").write_bytes(b"file gone seq 1 type b\n")
    with pytest.raises(InvalidArgument, match="gone"):
        AppendOnlyFile(tmp_path)
    shutil.copy(tmp_path / "x.manifest", tmp_path / "y.manifest")
    with pytest.raises(InvalidArgument, match=r"x\.manifest, y\.manifest"):
        AppendOnlyFile(tmp_path)
    with pytest.raises(InvalidArgument, match="no such file"):
        AppendOnlyFile(tmp_path / "nowhere.aof")
