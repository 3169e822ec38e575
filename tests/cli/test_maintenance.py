"""Maintenance of the store: info, stats, check, recover, checkpoint, compact, bench, version."""

from pathlib import Path

import pytest

import kvstream as library
from kvstream import Store
from kvstream.layout import twins
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.storage.directory import LAYOUT_FILE, LAYOUT_VERSION
from kvstream.storage.watermark import FILE_NAME as WATERMARK_FILE
from tests.cli.program import FIRST, Program
from tests.cli.terminal import Terminal


@pytest.mark.places("store", "server", "redis")
def test_info_shows_counters_and_groups(orders: Program) -> None:
    info = orders.one("info", "orders")
    assert (info["length"], info["last_generated_id"]) == (5, "1700000004000-0")
    assert info["first_entry"] == {"id": FIRST, "fields": {"sku": "a0", "qty": "0"}}
    assert info["groups"][0]["name"] == "billing"
    lines = orders.lines("info", "orders")
    assert lines[0].split() == ["length", "5"]
    assert "groups" in lines
    assert lines[-1].startswith("billing")
    assert "no stream" in orders("info", "missing", code=1).stderr


@pytest.mark.places("store", "server", "redis")
def test_info_in_full_shows_entries_and_pending_entries(orders: Program) -> None:
    detail = orders.one("info", "orders", "--full", "-n", "1")
    assert len(detail["entries"]) == 1
    (group,) = detail["groups"]
    assert (group["pel_count"], len(group["pending"])) == (2, 1)
    lines = orders.lines("info", "orders", "--full")
    assert "group billing" in lines
    assert sum(line.startswith("worker-1") for line in lines) == 1
    assert sum(line.startswith("1700000") for line in lines) == 5 + 2


def test_stats_show_the_size_of_the_store(orders: Program) -> None:
    stats = orders.one("stats")
    assert stats["streams"] == 2
    assert stats["size_on_disk"] > 0
    assert set(stats["families"]) == {"messages", "metadata", "trees"}
    assert any(line.startswith("size on disk") for line in orders.lines("stats"))


def miscount(program: Program) -> None:
    """Write a wrong length to the counters of ``orders``."""

    def operation(txn: Txn) -> None:
        stream = txn.stream(qualified(0, b"orders"))
        assert stream is not None
        stream.length += 1
        txn.counters_changed(stream)

    with Store.open(program.directory) as store:
        store.engine.run(operation)


def test_check_finds_wrong_counters_and_repairs_them_on_request(orders: Program) -> None:
    assert orders.lines("check") == ["sound"]
    miscount(orders)
    assert orders.json("check", code=4)[0]["repaired"] is False
    assert orders.lines("check", code=4)[-1].endswith("fault, 0 repaired")
    assert all(fault["repaired"] for fault in orders.json("check", "--repair"))
    assert orders.json("check") == []
    assert orders.one("len", "orders") == {"length": 5}


def test_recover_accepts_a_loss_only_on_request(orders: Program) -> None:
    assert orders.lines("recover")[0].startswith("nothing is lost: ")
    (orders.directory / WATERMARK_FILE).unlink()
    refused = orders("ls", code=4).stderr
    assert "kvstream recover --accept-loss" in refused
    assert "watermark" in orders("recover", code=4).stderr
    lines = orders.lines("recover", "--accept-loss")
    assert lines[0].startswith("recovered: ")
    assert "an unknown number of writes" in lines[2]
    assert "before-recovery-1" in lines[-1]
    assert orders.one("len", "orders") == {"length": 5}
    assert orders.one("recover")["damage"] is None


def test_a_checkpoint_is_an_independent_store(orders: Program, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    assert orders.one("checkpoint", str(target)) == {"path": str(target)}
    orders("rm", "orders")
    assert Program(target).one("len", "orders") == {"length": 5}
    assert orders("checkpoint", str(target), code=5).stderr.startswith("Error: ")


def test_compact_shows_the_size_before_and_after(orders: Program) -> None:
    assert set(orders.one("compact")) == {"before_bytes", "after_bytes"}
    assert "before, " in orders.lines("compact")[0]


def test_bench_measures_each_operation_and_leaves_nothing(orders: Program, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    rows = orders.json("bench", "--entries", "1000")
    assert [row["entries"] for row in rows] == [1000, 1000, 1000, 1000, 200]
    assert all(row["rate"] > 0 for row in rows)
    assert sorted(tmp_path.iterdir()) == before
    folder = tmp_path / "here"
    folder.mkdir()
    arguments = ["bench", "--entries", "1000", "--directory", str(folder)]
    shown = orders.lines("--durability", "no", *arguments)
    assert shown[-1] == f"durability no, in {folder}"


def test_the_version_is_that_of_the_library(kvstream: Program) -> None:
    shown = kvstream.one("version")
    assert shown["kvstream"] == library.__version__
    assert shown["layout"] == LAYOUT_VERSION
    assert shown["compiled"] == ("no" if twins is None else "yes")
    assert kvstream.lines("--version") == [f"kvstream {library.__version__}"]


def test_a_store_of_another_layout_is_refused(orders: Program) -> None:
    (orders.directory / LAYOUT_FILE).write_text("kvstream store\nlayout 99\n")
    shown = orders("ls", code=4).stderr
    assert "layout 99" in shown
    assert shown.count("use the version of kvstream that wrote it") == 1
    (orders.directory / LAYOUT_FILE).write_text("kvstream store\nlayout 1\n")


def test_an_unsafe_directory_is_refused(orders: Program) -> None:
    orders.directory.chmod(0o777)
    assert "0700" in orders("ls", code=5).stderr
    orders.directory.chmod(0o700)


@pytest.mark.parametrize("command", [["ls"], ["del", "s", "1-1"], ["recover"], ["check"]])
def test_a_missing_store_is_named_and_not_created(kvstream: Program, command: list[str]) -> None:
    shown = kvstream(*command, code=5).stderr
    where = f"there is no store in {kvstream.directory}"
    assert shown == f"Error: {where} (name another one, or create a store with add or import)\n"
    assert not kvstream.directory.exists()


@pytest.mark.places("store", "server", "redis")
def test_ping_confirms_that_the_place_is_reachable(orders: Program) -> None:
    assert orders.one("ping")["ms"] > 0
    assert orders("ping").stdout.startswith("PONG after ")


def test_ping_of_a_missing_store_fails(kvstream: Program) -> None:
    assert "no store" in kvstream("ping", code=5).stderr


@pytest.mark.parametrize("command", ["check", "compact"])
def test_progress_is_shown_on_a_terminal_and_on_demand(orders: Program, command: str) -> None:
    assert orders(command).stderr == ""
    assert orders(command, "--progress", "--json").stderr.startswith(f"{command}: ")
    terminal = Terminal(*orders.place, command)
    terminal.await_text(command.encode())
    assert terminal.wait() == 0
    quiet = Terminal(*orders.place, command, "--no-progress")
    assert quiet.wait() == 0
    assert b"%" not in quiet.said


def test_the_progress_of_a_check_counts_the_rows_of_entries(orders: Program) -> None:
    said = orders("check", "--progress").stderr
    rows = int(said.removeprefix("check: ").removesuffix(" rows\n"))
    assert rows >= 6
