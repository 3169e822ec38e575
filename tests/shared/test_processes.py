"""Processes made by multiprocessing share a store with their parent."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, until
from tests.shared.conftest import shared
from tests.shared.pool import TASKS


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("killed", [False, True])
def test_children_share_the_store_of_their_parent(
    directory: Path, method: str, killed: bool
) -> None:
    command = [sys.executable, "-m", "tests.shared.pool", str(directory), method]
    if killed:
        command.append("killed")
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == (-signal.SIGKILL if killed else 0), done.stderr
    with shared(directory) as store:
        moved = store.stream("done")
        until(lambda: len(moved) >= TASKS, "the children", 0.05)
        numbers = [int(entry.fields[b"n"]) for entry in moved]
        assert sorted(numbers) == list(range(TASKS))
        assert store.stream("tasks").group("workers").pending().count == 0
