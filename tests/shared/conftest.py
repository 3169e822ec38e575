"""Shared stores: one directory that several processes have open."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

import kvstream
from kvstream import Store
from kvstream.storage import directory as directories
from tests import forking

Holder = subprocess.Popen[bytes]


def shared(directory: Path) -> Store:
    return kvstream.open(directory, shared=True, durability="no")


def owner_of(directory: Path) -> int | None:
    """Return the process that owns a store."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return next(iter(directories.holders_of(descriptor)), None)
    finally:
        os.close(descriptor)


def is_owner(store: Store) -> bool:
    return store._engine.clients is not None  # type: ignore[attr-defined]


def end(process: Holder) -> None:
    """Let a process close its store."""
    process.communicate()
    assert process.returncode == 0


def kill(process: Holder) -> None:
    process.kill()
    process.communicate()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def holder(directory: Path) -> Iterator[Callable[[], Holder]]:
    """Start processes that have the store open; the first one owns it."""
    with ExitStack() as ends:

        def start() -> Holder:
            process = forking.start(
                [sys.executable, "-m", "tests.shared.holder", str(directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            ends.callback(kill_if_it_runs, process)
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            return process

        yield start


def kill_if_it_runs(process: Holder) -> None:
    if process.returncode is None:
        kill(process)


@pytest.fixture(params=["owner", "client"])
def place(
    request: pytest.FixtureRequest,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    holder: Callable[[], Holder],
) -> str:
    """A shared store, which ``kvstream.open`` opens as its owner, or as a client of a process."""
    for module in (kvstream, kvstream.aio):
        opening = partial(module.open, shared=True, durability="no")
        monkeypatch.setattr(module, "open", opening)
    if request.param == "client":
        holder()
    return str(directory)
