"""Fixtures of the command line: the program, with an empty store or one to try things on."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kvstream import ManualClock, Store
from tests.cli.program import Program

FAR_FUTURE_S = 4_000_000_000
MEMORY = Path("/dev/shm")
"""A file system in memory, as Linux has it; in a container it may be small."""
MEMORY_MIN = 1 << 30


def fast_folder() -> str | None:
    """Return where files take the least time; None: where they usually are.

    No test here is about disks, and a store on one is waited for longer than it is worked on.
    """
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < MEMORY_MIN:
        return None
    return str(MEMORY)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder of its own for each test."""
    with TemporaryDirectory(prefix="kvstream-test-", dir=fast_folder()) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def store_of_orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store to copy: making one takes much longer."""
    directory = tmp_path_factory.mktemp("orders") / "store"
    with Store.open(directory, durability="no", clock=ManualClock()) as store:
        stream = store.stream("orders")
        for at in range(5):
            stream.add({"sku": f"a{at}", "qty": str(at)}, id=1_700_000_000_000 + at * 1000)
        group = stream.create_group("billing", "0")
        group.consumer("worker-1").read(2)
        group.create_consumer("idle-worker")
        store.stream("orders:2025").add({"sku": "old"}, id=1_600_000_000_000)
        store.expire_at("orders", FAR_FUTURE_S)
        assert store.check() == []
    return directory


def files_of(directory: Path) -> set[tuple[str, int, int]]:
    """Return name, size and time of every file: what tells whether anything has been written."""
    return {
        (entry.name, entry.stat().st_size, entry.stat().st_mtime_ns)
        for entry in os.scandir(directory)
    }


@pytest.fixture
def kvstream(tmp_path: Path, store_of_orders: Path) -> Iterator[Program]:
    """The program on a store that is not there yet, and must be sound afterwards if it is.

    The store of orders is known to be sound, and so is a copy that was only looked at.
    """
    directory = tmp_path / "store"
    yield Program(directory)
    if directory.exists() and files_of(directory) != files_of(store_of_orders):
        with Store.open(directory, read_only=True) as store:  # sooner than for writing
            assert store.check() == []


@pytest.fixture
def orders(kvstream: Program, store_of_orders: Path) -> Program:
    """The program on a store of orders.

    Stream ``orders``: five entries, a second apart from 1700000000000-0 on; group ``billing`` has
    the first two pending with ``worker-1``, and a consumer ``idle-worker``. Stream ``orders:2025``:
    one entry.
    """
    shutil.copytree(store_of_orders, kvstream.directory)
    return kvstream
