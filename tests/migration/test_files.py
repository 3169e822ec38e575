"""RDB files and append-only files in, RDB files out, and the errors of damaged files."""

import os
import re
import resource
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kvstream
from kvstream import Store, migration
from kvstream.errors import BadPayload, InvalidArgument, RequestError
from kvstream.migration import LossRefused, Outcome, plan, run, verify
from kvstream.migration.items import Selection
from kvstream.rdb.primitives import crc64
from tests.migration.conftest import Start
from tests.migration.filling import DATABASES, dumps, expiries, fill, fill_all_databases, full
from tests.migration.servers import RedisServer

ALL = 8 + 2 * (DATABASES - 1)


def loaded(start_redis: Start, name: str, file: Path) -> RedisServer:
    """Start a redis-server on an RDB file."""
    folder = file.parent / name
    folder.mkdir()
    shutil.copy(file, folder / "dump.rdb")
    return start_redis(str(folder), "--rdbcompression", "no")


def test_an_rdb_file_is_migrated_to_a_store_and_to_a_new_server(
    source: RedisServer, start_redis: Start, tmp_path: Path
) -> None:
    fill_all_databases(source.client())
    file, store, written = source.saved(), tmp_path / "store", tmp_path / "out.rdb"
    assert run(file, store).outcomes == {Outcome.COPIED: ALL}
    assert verify(file, store).differences == []
    assert verify(store, file).differences == []
    run(store, written, target_version="redis:7.0")
    assert verify(file, written).differences == []
    fresh = loaded(start_redis, "fresh", written)
    for db in range(DATABASES):
        assert full(source.client(db=db)) == full(fresh.client(db=db))
        assert expiries(source.client(db=db)) == expiries(fresh.client(db=db))
    assert run(file, store).outcomes == {Outcome.SAME: ALL}


def test_a_file_is_migrated_directly_to_a_server_and_to_another_file(
    source: RedisServer, target: RedisServer, tmp_path: Path
) -> None:
    fill(source.client())
    file = source.saved()
    run(file, target.url)
    assert full(source.client()) == full(target.client())
    assert dumps(source.client())[b"orders"] == dumps(target.client())[b"orders"]
    run(file, tmp_path / "copy.rdb", target_version="redis:7.0")
    assert verify(file, tmp_path / "copy.rdb").differences == []
    run(source.url, tmp_path / "live.rdb", target_version="redis:7.0")
    assert verify(source.url, tmp_path / "live.rdb").differences == []


def test_an_existing_file_is_replaced_only_if_allowed(source: RedisServer, tmp_path: Path) -> None:
    source.client().xadd("s", {"a": 1})
    file = tmp_path / "dump.rdb"
    file.write_bytes(b"of somebody else")
    with pytest.raises(RequestError, match="is there already"):
        run(source.url, file)
    assert file.read_bytes() == b"of somebody else"
    run(source.url, file, replace=True)
    assert verify(source.url, file).differences == []
    assert [path.name for path in tmp_path.glob("dump*")] == ["dump.rdb"]


def test_losses_on_an_older_server_are_refused_unless_allowed(
    source: RedisServer, tmp_path: Path
) -> None:
    fill(source.client())
    file, out = source.saved(), tmp_path / "old.rdb"
    lost = {
        loss.name
        for planned in plan(file, out, target_version="redis:6.2")
        for loss in planned.losses
    }
    assert {"entries-added", "max-deleted", "entries-read"} <= lost
    with pytest.raises(LossRefused, match="--allow-loss"):
        run(file, out, target_version="redis:6.2")
    assert not out.exists()
    run(file, out, target_version="redis:6.2", allow_loss=lost)
    assert {each.what for each in verify(file, out).differences} == set()


def test_an_unknown_loss_cannot_be_allowed(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="unknown loss 'activ-time': use active-time"):
        run(tmp_path / "here", tmp_path / "there", allow_loss=["activ-time", "nacked"])
    assert list(tmp_path.iterdir()) == []


def test_a_file_for_an_older_server_is_loaded_without_the_losses(
    source: RedisServer, start_redis: Start, tmp_path: Path
) -> None:
    fill(source.client())
    names = ("entries-added", "max-deleted", "entries-read", "active-time")
    out = tmp_path / "old.rdb"
    run(source.url, out, target_version="redis:5.0", allow_loss=names)
    fresh = loaded(start_redis, "fresh", out)
    assert fresh.client().xlen("deleted") == 400
    assert fresh.client().xpending("orders", "bill")["pending"] == 150


@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_an_append_only_directory_is_migrated_to_a_store(
    preamble: str, start_redis: Start, tmp_path: Path
) -> None:
    options = ("--appendonly", "yes", "--aof-use-rdb-preamble", preamble)
    # With ``everysec`` a write waits for an fsync under way: the log may lack the last commands.
    server = start_redis("logging", *options, "--appendfsync", "no")
    client = server.client()
    fill_all_databases(client)
    client.execute_command("BGREWRITEAOF")
    while client.info("persistence")["aof_rewrite_in_progress"]:
        pass
    client.xadd("orders", {"sku": "late"}, "99999-0")
    client.xreadgroup("bill", "worker-9", {"orders": ">"}, 5)
    client.xtrim("deleted", maxlen=100)
    client.rpush("list", 1)
    client.delete("ids")
    log = server.folder / "appendonlydir"
    run(log, tmp_path / "store", allow_loss=["other-types"])
    server.kill()
    server.start()  # the state that Redis itself loads from such a log, which lacks some things
    found = verify(server.url, tmp_path / "store").differences
    assert {each.what for each in found if not each.may_move} == set()
    assert verify(log, tmp_path / "store").equal


def test_a_single_append_only_file_is_migrated_to_a_store(tmp_path: Path) -> None:
    log = tmp_path / "appendonly.aof"
    log.write_bytes(
        b"".join(map(_framed, ("SELECT 0", "XADD s 1-1 a 1", "XADD s 2-1 b 2", "SET k v")))
        + b"*3\r\n$4\r\nXADD"
    )
    report = run(log, tmp_path / "store")
    assert report.outcomes == {Outcome.COPIED: 2}
    with Store.open(tmp_path / "store", read_only=True) as store:
        assert len(store.stream("s")) == 2


def _framed(line: str) -> bytes:
    words = line.encode().split()
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


def test_a_damaged_file_is_refused_before_any_write(source: RedisServer, tmp_path: Path) -> None:
    fill(source.client())
    whole = source.saved().read_bytes()
    file = tmp_path / "damaged.rdb"
    for at in range(20, len(whole), len(whole) // 40):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(BadPayload):
            run(file, tmp_path / "store")
        file.write_bytes(whole[:at])
        with pytest.raises(BadPayload):
            run(file, tmp_path / "store")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("behind", [b"f" * 40, bytes(5000)])
def test_bytes_after_the_end_of_a_file_are_ignored_as_by_servers(
    source: RedisServer, start_redis: Start, tmp_path: Path, behind: bytes
) -> None:
    fill(source.client())
    saved = source.saved().read_bytes()
    for name, whole in (("summed", saved), ("unsummed", saved[:-8] + bytes(8))):
        file = tmp_path / f"{name}.rdb"
        file.write_bytes(whole + behind)
        assert loaded(start_redis, f"{name} server", file).client().dbsize() > 0
        run(file, tmp_path / name)
        assert verify(source.url, tmp_path / name).differences == []
        file.write_bytes(whole[:-9] + behind)
        with pytest.raises(BadPayload):
            run(file, tmp_path / name, replace=True)


def test_the_number_of_bytes_after_the_end_is_reported(source: RedisServer, tmp_path: Path) -> None:
    source.client().xadd("s", {"a": 1})
    file = tmp_path / "dump.rdb"
    file.write_bytes(source.saved().read_bytes() + b"f" * 40)
    opened = migration.open_source(migration.parse_place(file))
    for _ in range(2):
        assert [item.key for item in opened.items(Selection())] == [b"s"]
        assert opened.remarks == ["40 bytes behind the end of the RDB data are ignored"]


def test_a_file_without_a_checksum_is_read_completely_before_any_write(
    source: RedisServer, tmp_path: Path
) -> None:
    fill(source.client())
    whole = source.saved().read_bytes()[:-8] + bytes(8)
    file = tmp_path / "unsummed.rdb"
    end = whole.rindex(b"\xff", 0, -8)
    file.write_bytes(whole[:end] + b"\xf1" + whole[end:])
    with pytest.raises(BadPayload, match="241 is unknown"):
        run(file, tmp_path / "store")
    assert not (tmp_path / "store").exists()
    file.write_bytes(whole)
    assert verify(file, file).differences == []


def test_a_hostile_file_with_a_right_checksum_leaves_no_partial_key(
    source: RedisServer, tmp_path: Path
) -> None:
    fill(source.client())
    whole = source.saved().read_bytes()[:-8]
    file = tmp_path / "hostile.rdb"
    damaged = 0
    for at in range(100, len(whole), len(whole) // 40):
        changed = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
        file.write_bytes(changed + crc64(changed).to_bytes(8, "little"))
        with suppress(BadPayload):
            run(file, tmp_path / "store", replace=True)
            continue
        damaged += 1
    assert damaged > 5
    with Store.open(tmp_path / "store", read_only=True) as store:
        assert store.check() == []


def test_a_wrong_length_is_counted_again_and_reported(
    source: RedisServer, target: RedisServer, tmp_path: Path
) -> None:
    client = source.client()
    for at in range(1, 5):
        client.xadd("s", {"a": at}, f"{at}-0")
    payload: Any = client.dump("s")
    at = payload.index(bytes([4, 4, 0, 1, 0, 0, 0, 4]))  # length, last, first, greatest deleted
    wrong = payload[:at] + bytes([40]) + payload[at + 1 : -8]
    client.restore("s", 0, wrong + crc64(wrong).to_bytes(8, "little"), replace=True)
    assert client.xlen("s") == 40
    report = run(source.url, tmp_path / "store")
    (found,) = report.noteworthy
    assert "40" in found.corrections[0]
    with Store.open(tmp_path / "store", read_only=True) as store:
        assert len(store.stream("s")) == 4
        assert store.check() == []
    run(tmp_path / "store", target.url)
    assert target.client().xlen("s") == 4


def programs_of_the_guide() -> list[str]:
    guide = (Path(kvstream.__file__).parent.parent / "docs" / "migration.md").read_text()
    return re.findall(r"^```python\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)


def test_the_programs_in_the_guide_run_unchanged(
    source: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.client().xadd("orders:1", {"a": 1})
    shutil.copy(source.saved(), tmp_path / "dump.rdb")
    source.client().config_set("repl-diskless-sync-delay", 0)
    monkeypatch.chdir(tmp_path)
    names = {"migration": migration}
    for program in programs_of_the_guide():
        shutil.rmtree("data", ignore_errors=True)
        here = program.replace("redis://127.0.0.1:6379", source.url)
        try:
            exec(compile(here, "migration.md", "exec"), names)
        finally:
            source.client().client_unpause()
        with Store.open("data", read_only=True) as store:
            assert store.keys() == [b"orders:1"]


@pytest.mark.timeout(3000)
def test_many_entries_survive_every_route(start_redis: Start, tmp_path: Path) -> None:
    server = start_redis("many", "--rdbcompression", "no")
    client = server.client()
    for first in range(1, MANY + 1, SCRIPTED):
        client.eval(FILLING, 1, "many", first, min(first + SCRIPTED - 1, MANY))
    client.xgroup_create("many", "g", "0")
    for consumer in range(4):
        client.xreadgroup("g", f"c{consumer}", {"many": ">"}, MANY // 10)
    file, store, out = server.saved(), tmp_path / "store", tmp_path / "out.rdb"
    assert run(file, store).entries == MANY
    assert run(server.url, store).outcomes == {Outcome.SAME: 1}
    run(store, out, target_version="redis:7.0")
    fresh = loaded(start_redis, "fresh", out)
    assert fresh.client().xlen("many") == MANY
    assert verify(server.url, fresh.url).differences == []
    assert dumps(client) == dumps(fresh.client())
    assert verify(file, out).entries == MANY


MANY = int(os.environ.get("KVSTREAM_MIGRATE_ENTRIES") or 30_000)
"""More entries than are loaded at once, or read from a server at once; a long form is a million."""
SCRIPTED = 10_000
FILLING = (
    "for n = tonumber(ARGV[1]), tonumber(ARGV[2]) do "
    "redis.call('XADD', KEYS[1], n .. '-0', 'n', n, 'text', string.rep('x', n % 80)) end"
)


def test_an_rdb_file_without_room_is_named_and_not_left(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        store.stream("large").add_many([{"v": os.urandom(1000)} for _ in range(3000)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*/out.rdb'$"):
            run(tmp_path / "store", tmp_path / "out.rdb")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.glob("out*"))
