"""Processes made by multiprocessing share a store with their parent."""

import signal
import sys
from pathlib import Path

import pytest

from tests import forking
from tests.crash.rounds import rounds
from tests.patience import PATIENCE_S, until
from tests.shared.conftest import shared
from tests.shared.pool import TASKS

METHODS = ["fork", "spawn", "forkserver"]


@pytest.mark.parametrize("method", METHODS)
def test_children_share_the_store_of_their_parent(directory: Path, method: str) -> None:
    all_tasks_are_done_once(directory, method)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("method", METHODS)
def test_children_take_over_the_store_of_a_killed_parent(directory: Path, method: str) -> None:
    for number in range(rounds(1)):
        all_tasks_are_done_once(directory.with_name(f"store-{number}"), method, "killed")


def all_tasks_are_done_once(directory: Path, method: str, killed: str = "") -> None:
    command = [sys.executable, "-m", "tests.shared.pool", str(directory), method]
    command += [killed] if killed else []
    done = forking.run(command, text=True, timeout=PATIENCE_S)
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
    done = forking.run([sys.executable, "-c", FORKED, str(directory)], timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
