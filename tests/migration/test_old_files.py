"""Files of Redis 5.0 to 6.2, which lack entries-read of groups, and faulty files."""

from pathlib import Path

import pytest

from kvstream import RequestError
from kvstream.migration import Outcome, run, verify
from kvstream.rdb.versions import LOSSES
from tests.migration.servers import RedisServer
from tests.rdb.building import built, length, record, string
from tests.rdb.golden import GOLDEN


def old_file(source: RedisServer, folder: Path) -> Path:
    """Write a file of Redis 6.2, with groups at both ends of streams and everywhere between."""
    client = source.client()
    for at in range(450):
        client.xadd("s", {"n": at}, f"{10 + at}-0")
    for at in (0, 9, 10, 11, 108, 109, 110, 300, 458, 459):
        client.xgroup_create("s", f"at {at}", f"{at}-0")
    client.xgroup_create("empty", "g", "0", mkstream=True)
    run(source.url, folder / "new.rdb", target_version="redis:7.0")
    run(folder / "new.rdb", folder / "old.rdb", target_version="redis:6.2", allow_loss=LOSSES)
    return folder / "old.rdb"


def test_entries_read_of_groups_are_counted_on_every_route(
    source: RedisServer, target: RedisServer, tmp_path: Path
) -> None:
    file = old_file(source, tmp_path)
    run(file, tmp_path / "store")
    run(file, tmp_path / "again.rdb", target_version="redis:7.0")
    run(file, target.url)
    for there in (tmp_path / "again.rdb", target.url):
        assert verify(tmp_path / "store", there).differences == []
        assert verify(file, there).differences == []
    groups = target.client().xinfo_groups("s")
    assert {group["name"]: group["entries-read"] for group in groups} == {
        f"at {at}".encode(): max(0, at - 9) for at in (0, 9, 10, 11, 108, 109, 110, 300, 458, 459)
    }
    target.client().flushall()
    target.client().acl_setuser(
        "some", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-restore"]
    )
    by_commands = target.url.replace("redis://", "redis://some:any@")
    run(file, by_commands, allow_loss=LOSSES)
    assert verify(tmp_path / "store", target.url).differences == []


def twice() -> bytes:
    """Return a file with a repeated stream, and a repeated string."""
    stream = next(iter(GOLDEN.values()))
    streams = record(stream[0], stream[1:-10], b"s")
    strings = record(0, string(b"v"), b"n")
    return built(b"\xfe" + length(0), streams, strings, streams, strings)


def test_a_repeated_key_is_refused_when_a_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "twice.rdb").write_bytes(twice())
    with pytest.raises(RequestError, match=r"b's' comes twice in database 0"):
        run(tmp_path / "twice.rdb", tmp_path / "out.rdb")
    assert not (tmp_path / "out.rdb").exists()


def test_a_repeated_key_is_stored_once(tmp_path: Path) -> None:
    (tmp_path / "twice.rdb").write_bytes(twice())
    assert run(tmp_path / "twice.rdb", tmp_path / "store").outcomes == {
        Outcome.COPIED: 2,
        Outcome.SAME: 2,
    }
