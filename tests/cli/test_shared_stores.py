"""Commands on a directory that another process shares: they are its clients."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from kvstream import Store
from tests import forking
from tests.cli.program import ENVIRONMENT
from tests.patience import PATIENCE_S, until


@contextmanager
def holding(place: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that has opened a store and shares it."""
    command = [sys.executable, "-m", "tests.shared.holder", str(place)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with forking.start(command, env={**os.environ, **ENVIRONMENT}, **pipes) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"open\n"
        yield holder
        holder.stdin.close()
        holder.wait(PATIENCE_S)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """The directory of a store that another process shares."""
    with holding(tmp_path / "store"):
        yield tmp_path / "store"


def kvstream(place: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "kvstream", "--store", str(place), *words]
    return forking.run(command, env={**os.environ, **ENVIRONMENT}, text=True, timeout=PATIENCE_S)


def test_a_shared_store_is_read_and_written_beside_its_owner(held: Path) -> None:
    assert kvstream(held, "add", "orders", "sku=a1").returncode == 0
    shown = kvstream(held, "range", "orders")
    assert (shown.returncode, "sku=a1" in shown.stdout) == (0, True)
    assert "orders" in kvstream(held, "ls").stdout
    assert kvstream(held, "compact").returncode == 0


def start(place: Path, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "kvstream", "--store", str(place), *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return forking.start(command, env={**os.environ, **ENVIRONMENT}, text=True, **pipes)


@contextmanager
def watching(place: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """Start ``monitor``, and enter once the owner has registered it."""
    with start(place, "monitor", *words) as process:
        until(lambda: process.poll() is not None or monitors(place))
        yield process


def monitors(place: Path) -> bool:
    """Return whether the owner of a shared store has a MONITOR client."""
    try:
        with redis.Redis(unix_socket_path=str(place / "shared.sock")) as client:
            return any("O" in each["flags"] for each in client.client_list())
    except redis.ConnectionError:
        return False


def test_monitor_shows_the_requests_to_the_owner(held: Path) -> None:
    with watching(held, "--command", "xadd", "-n", "1") as process:
        assert kvstream(held, "add", "orders", "sku=a1").returncode == 0
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, "")
    assert "XADD orders" in out
    assert out.endswith("sku a1\n")


def test_monitor_continues_with_the_next_owner(tmp_path: Path) -> None:
    place = tmp_path / "store"
    words = ("--command", "xadd", "-n", "2", "--wait", "0s")  # it waits for the next owner, however
    with holding(place) as first, watching(place, *words) as process:
        assert kvstream(place, "add", "orders", "sku=a1").returncode == 0
        first.kill()
        first.wait(PATIENCE_S)
        time.sleep(0.5)  # nobody owns the store
        assert process.poll() is None
        with holding(place):
            until(lambda: monitors(place))
            assert kvstream(place, "add", "orders", "sku=a2").returncode == 0
            out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, "")
    assert [line.rpartition(" ")[2] for line in out.splitlines()] == ["a1", "a2"]


def test_monitor_names_the_process_that_holds_an_unshared_store(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store"):
        refused = kvstream(tmp_path / "store", "--wait", "0s", "monitor")
    assert refused.returncode == 3
    assert f"held by process {os.getpid()}" in refused.stderr
    assert "not shared" in refused.stderr


def test_top_watches_the_store_of_the_owner(held: Path) -> None:
    assert kvstream(held, "add", "orders", "sku=a1").returncode == 0
    shown = kvstream(held, "top", "--once")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "orders" in shown.stdout
    assert str(held) in shown.stdout


def test_commands_that_need_the_files_report_that_the_store_is_shared(held: Path) -> None:
    refused = kvstream(held, "check")
    assert refused.returncode != 0
    assert "no shared store" in refused.stderr
