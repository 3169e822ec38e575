"""The places that a text can name: a store, a server, an RDB file, an append-only file."""

import os
from pathlib import Path

import pytest

from kvstream import InvalidArgument, NoSuchStore, Store
from kvstream.migration import parse_place, plan, run
from kvstream.migration.places import PlaceKind


@pytest.mark.parametrize(
    ("text", "shown", "database"),
    [
        ("redis://host", "redis://host", None),
        ("redis://host:6380/3", "redis://host:6380/3", 3),
        ("rediss://ann:secret@host:6380/0?ssl_ca_certs=ca.pem", "rediss://host:6380/0", 0),
        ("redis://:p%40ss@[::1]:6380", "redis://[::1]:6380", None),
        ("valkeys://ann:secret@host/1", "rediss://host/1", 1),
        ("unix:///run/redis.sock?db=2&password=secret", "unix:///run/redis.sock/2", 2),
    ],
)
def test_a_server_is_shown_without_its_password(
    text: str, shown: str, database: int | None
) -> None:
    place = parse_place(text)
    assert (place.kind, str(place), place.database) == (PlaceKind.SERVER, shown, database)
    assert place.has_password == ("p%40ss" in text or "secret" in text)
    assert "secret" not in repr(place)


def test_a_path_is_recognised_by_its_content(tmp_path: Path) -> None:
    Store.open(tmp_path / "store").close()
    (tmp_path / "dump.rdb").write_bytes(b"REDIS0011")
    (tmp_path / "valkey").write_bytes(b"VALKEY080")
    (tmp_path / "log").write_bytes(b"*2\r\n")
    (tmp_path / "old.aof").write_bytes(b"REDIS0009")  # an append-only file with a preamble
    (tmp_path / "redis" / "appendonlydir").mkdir(parents=True)
    found = {name: parse_place(tmp_path / name).kind.value for name in (
        "store", "dump.rdb", "valkey", "log", "old.aof", "redis"
    )}  # fmt: skip
    assert found == {
        "store": "store",
        "dump.rdb": "rdb",
        "valkey": "rdb",
        "log": "aof",
        "old.aof": "aof",
        "redis": "aof",
    }
    assert parse_place(f"aof:{tmp_path / 'valkey'}").kind is PlaceKind.AOF


def test_a_missing_path_is_a_store_or_a_file_by_its_name(tmp_path: Path) -> None:
    assert parse_place(tmp_path / "new", create=True).kind is PlaceKind.STORE
    assert parse_place(tmp_path / "new.rdb", create=True).kind is PlaceKind.RDB
    with pytest.raises(NoSuchStore, match="nothing at"):
        parse_place(tmp_path / "new")


def test_an_invalid_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InvalidArgument, match="not a store, RDB file or append-only file"):
        parse_place(tmp_path / "text")


@pytest.mark.parametrize("url", ["https://host", "memcached://host", "file:///a", "s3://a/b.rdb"])
@pytest.mark.parametrize("prefix", ["", "store:", "rdb:", "aof:"])
def test_a_url_of_no_server_is_no_place(prefix: str, url: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^{url.partition(':')[0]}://\.\.\. is "):
        parse_place(prefix + url, create=True)


def test_a_server_is_no_store_and_no_folder_of_states(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="is the URL of a server"):
        parse_place("store:redis://host", create=True)
    Store.open(tmp_path / "store").close()
    with pytest.raises(InvalidArgument, match="is the URL of a server"):
        run(tmp_path / "store", tmp_path / "new", state="redis://host")
    assert not (tmp_path / "new").exists()


def test_invalid_pairs_are_refused(tmp_path: Path) -> None:
    store = tmp_path / "store"
    Store.open(store).close()
    with pytest.raises(InvalidArgument, match="same place"):
        run(store, store)
    with pytest.raises(InvalidArgument, match="choose database 3"):
        run(store, "redis://host/3")
    with pytest.raises(InvalidArgument, match="only an RDB file takes a version"):
        list(plan(store, tmp_path / "other", target_version="redis:7.0"))
    with pytest.raises(InvalidArgument, match="cannot be written"):
        run(store, tmp_path / "out.aof")
    with pytest.raises(InvalidArgument, match="use one of"):
        run(store, tmp_path / "out.rdb", target_version="redis:1")


@pytest.mark.parametrize("name", ["piped.rdb", "piped.aof", "piped"])
def test_a_pipe_is_refused_without_waiting(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InvalidArgument, match=f"{name} is a named pipe, but must be"):
        parse_place(tmp_path / name)
