"""Commands on a directory that other processes have open and share: they are its clients."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import ENVIRONMENT
from tests.patience import PATIENCE_S


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """The directory of a store that another process has open, and shares."""
    place = tmp_path / "store"
    command = [sys.executable, "-m", "tests.shared.holder", str(place)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env={**os.environ, **ENVIRONMENT}, **pipes) as holder:  # type: ignore[call-overload]
        assert holder.stdout.readline() == b"open\n"
        yield place
        holder.stdin.close()
        holder.wait(PATIENCE_S)


def kvstream(place: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "kvstream", "--store", str(place), *words],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_a_shared_store_is_read_and_written_beside_its_owner(held: Path) -> None:
    assert kvstream(held, "add", "orders", "sku=a1").returncode == 0
    shown = kvstream(held, "range", "orders")
    assert (shown.returncode, "sku=a1" in shown.stdout) == (0, True)
    assert "orders" in kvstream(held, "ls").stdout
    assert kvstream(held, "compact").returncode == 0


def test_what_needs_the_files_says_that_the_store_is_shared(held: Path) -> None:
    refused = kvstream(held, "check")
    assert refused.returncode != 0
    assert "no shared store" in refused.stderr
