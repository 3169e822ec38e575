"""Streams as keys: ls, rename, expire, persist, ttl, rm."""

import pytest

from kvstream import Store
from kvstream.cli.session import IMPORT_PREFIX
from tests.cli.program import Program
from tests.commands.dispatcher import Dispatcher

pytestmark = pytest.mark.places("store", "server", "redis")


@pytest.mark.places("store", "server")
def test_ls_lists_streams_in_the_order_of_their_creation(orders: Program) -> None:
    assert [row["stream"] for row in orders.json("ls")] == ["orders", "orders:2025"]


def test_ls_shows_the_length_and_the_expiry_of_a_stream(orders: Program) -> None:
    rows = {row["stream"]: row for row in orders.json("ls")}
    first = rows["orders"]
    assert (first["length"], first["groups"], first["last_id"]) == (5, 1, "1700000004000-0")
    assert (first["lag"], rows["orders:2025"]["lag"]) == (3, None)
    assert 100 < first["size"] < 10_000
    assert first["ttl"] > 0
    assert rows["orders:2025"]["ttl"] is None
    lines = orders.lines("ls")
    titles = "stream length groups lag size age expires type last id time"
    assert lines[0].split() == titles.split()
    shown = {line.split()[0]: line for line in lines[1:]}
    assert "2023-11-14 22:13:24.000Z" in shown["orders"]
    assert "never" in shown["orders:2025"].split()


@pytest.mark.places("store")
def test_ls_shows_plain_strings_as_keys_and_not_as_streams(orders: Program) -> None:
    with Store.open(orders.directory) as store:
        Dispatcher(store.engine).execute([b"SET", b"lock", b"mine"])
    rows = orders.json("ls")
    assert [(row["stream"], row["type"]) for row in rows] == [
        ("orders", "stream"),
        ("orders:2025", "stream"),
        ("lock", "string"),
    ]
    shown = orders.lines("ls", "lock")[1].split()
    assert (shown[:4], shown[-4:]) == (["lock", "-", "-", "-"], ["-", "never", "string", "-"])
    assert orders.one("expire", "lock", "1h")["ttl"] > 0
    assert orders.one("rename", "lock", "lock:2") == {"renamed": True}
    for command in (["export", "lock:2"], ["range", "lock:2"], ["len", "lock:2"]):
        refusal = orders(*command, code=1).stderr
        assert "'lock:2' is a string, not a stream" in refusal
    assert "is a string, not a stream" in orders("import", "lock:2", code=1, input="").stderr
    assert orders.one("rm", "lock:2") == {"deleted": 1}


def test_ls_accepts_a_glob(orders: Program) -> None:
    assert [row["stream"] for row in orders.json("ls", "orders:*")] == ["orders:2025"]
    assert orders.lines("ls", "nothing*") == []


def test_ls_shows_names_alone(orders: Program) -> None:
    assert sorted(orders.lines("ls", "--names")) == ["orders", "orders:2025"]
    assert orders.json("ls", "orders:*", "--names") == [{"stream": "orders:2025"}]
    assert orders.lines("ls", "*2025", "--names", "--format", "csv") == ["stream", "orders:2025"]
    assert orders("ls", "nothing", "--names").stderr == "no streams\n"


def test_ls_hides_what_kvstream_keeps_for_itself_by_default(orders: Program) -> None:
    orders("add", IMPORT_PREFIX.decode() + "x", "a=1")
    assert len(orders.json("ls")) == 2
    orders("add", "kvstream:audit", "who=ann")
    assert len(orders.json("ls")) == 2
    assert len(orders.json("ls", "--all")) == 4
    assert orders.lines("ls", "kvstream:a*", "--names") == ["kvstream:audit"]
    assert sorted(orders.lines("ls", "*:*", "--names")) == ["orders:2025"]


def test_databases_have_separate_streams(orders: Program) -> None:
    orders("--db", "3", "add", "orders", "a=1")
    assert orders.one("--db", "3", "len", "orders")["length"] == 1
    assert orders.one("len", "orders")["length"] == 5
    assert "out of range" not in orders("--db", "16", "ls", code=2).stdout


def test_rename_replaces_another_stream_by_default(orders: Program) -> None:
    assert orders.one("rename", "orders", "orders:2025", "--no-replace", code=1) == {
        "renamed": False
    }
    assert orders.one("rename", "orders", "orders:2025") == {"renamed": True}
    assert [row["stream"] for row in orders.json("ls")] == ["orders:2025"]
    assert orders.one("len", "orders:2025")["length"] == 5


def test_a_stream_expires_after_a_duration_or_at_a_time(orders: Program) -> None:
    assert orders.one("expire", "orders:2025", "1h")["ttl"] == pytest.approx(3600, abs=60)
    assert "in 59m" in orders.lines("ttl", "orders:2025")[0]
    assert orders.one("persist", "orders:2025") == {"persisted": True}
    assert orders.one("persist", "orders:2025", code=1) == {"persisted": False}
    assert orders.one("ttl", "orders:2025") == {"ttl": None}
    assert orders.lines("ttl", "orders:2025") == ["never"]
    assert orders.one("expire", "orders:2025", "--at", "2020-01-01")["ttl"] == 0
    assert "no stream" in orders("ttl", "orders:2025", code=1).stderr


@pytest.mark.parametrize("arguments", [[], ["1h", "--at", "2030-01-01"]])
def test_expire_needs_one_time(orders: Program, arguments: list[str]) -> None:
    assert "either a DURATION" in orders("expire", "orders", *arguments, code=2).stderr


def test_rm_deletes_streams_and_reports_missing_ones(orders: Program) -> None:
    assert orders.one("rm", "orders", "missing", code=1) == {"deleted": 1}
    assert orders.one("rm", "orders:2025") == {"deleted": 1}
    assert orders.json("ls") == []


def test_a_dry_run_of_rm_names_the_missing_streams(orders: Program) -> None:
    result = orders("rm", "--dry-run", "orders", "nosuch", "nosuch", code=1)
    assert "orders" in result.stdout
    assert result.stderr == "not found: 'nosuch'\n"
    orders("rm", "--dry-run", "orders")


@pytest.mark.parametrize(
    "arguments",
    [["rename", "x", "y"], ["expire", "x", "1h"], ["persist", "x"], ["ttl", "x"], ["len", "x"]],
)
def test_the_error_names_a_missing_stream(orders: Program, arguments: list[str]) -> None:
    assert "there is no stream 'x' in database 0" in orders(*arguments, code=1).stderr


def test_copy_creates_a_second_stream_with_its_groups(orders: Program) -> None:
    assert orders.one("copy", "orders", "orders:copy") == {"copied": True}
    assert orders.json("range", "orders:copy") == orders.json("range", "orders")
    assert orders.json("group", "ls", "orders:copy") == orders.json("group", "ls", "orders")
    assert orders.one("copy", "orders", "orders:2025", code=1) == {"copied": False}
    assert orders.one("copy", "orders", "orders:2025", "--replace") == {"copied": True}
    assert orders.one("len", "orders:2025") == {"length": 5}
    assert "no stream 'missing'" in orders("copy", "missing", "x", code=1).stderr
