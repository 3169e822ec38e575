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


FORKED = """
import os, sys, kvstream
with kvstream.Store.open(sys.argv[1]):
    if os.fork() == 0:
        try:
            kvstream.open(sys.argv[1], shared=True)
        except kvstream.StoreError as error:
            os._exit(0 if "holds the store in" in str(error) else 2)
        os._exit(1)
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_forked_child_of_a_process_that_does_not_share_is_told(directory: Path) -> None:
    subprocess.run([sys.executable, "-c", FORKED, str(directory)], check=True, timeout=PATIENCE_S)
