"""After the first failed write or fsync a store still reads, refuses writes, and loses nothing."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kvstream import Store
from kvstream.errors import StoreFull
from kvstream.storage.batch import Batch, Family
from kvstream.storage.database import LARGE_WRITE, Database
from kvstream.storage.directory import Directory
from kvstream.storage.durability import Committer
from kvstream.storage.write_guard import WriteGuard, is_broken_log
from kvstream.types.options import Durability
from kvstream.types.thresholds import Thresholds
from tests.faultshim.disk import FaultyDisk
from tests.opening import open_with
from tests.patience import PATIENCE_S, until
from tests.storage.failing import SCENARIOS, fill, recovers, started
from tests.storage.stores import EVERYTHING, SMALL, key_of, keys, put, put_one_by_one, value_of

ENDLESS = 1 << 62


Playing = dict[str, tuple[FaultyDisk, subprocess.Popen[str]]]


@pytest.fixture(scope="module")
def playing(fault_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playing]:
    """Start every scenario at once: they mostly wait."""
    children: Playing = {}
    for scenario in SCENARIOS:
        place = tmp_path_factory.mktemp(scenario.__name__)
        disk = FaultyDisk(fault_library, place / "disk", place)
        children[scenario.__name__] = disk, started(scenario, disk)
    yield children
    for _, child in children.values():
        child.kill()
        child.communicate()


@pytest.mark.parametrize("scenario", [scenario.__name__ for scenario in SCENARIOS])
def test_a_failing_disk_is_survived(playing: Playing, scenario: str) -> None:
    disk, child = playing[scenario]
    said, _ = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 0, said
    database = Database.open(disk.root / "store", SMALL)
    assert keys(database)[:100] == [key_of(number) for number in range(100)]
    assert database.failure is None
    put(database, {b"key": b"value"})
    database.close()


# The reserve of free space


def test_below_the_reserve_only_writes_that_free_space_are_accepted(directory: Path) -> None:
    database = Database.open(directory, SMALL)
    put_one_by_one(database, range(10))
    database.close()
    full = Database.open(directory, replace(SMALL, free_space_reserve=ENDLESS))
    batch = Batch(full)
    batch.put(Family.MESSAGES, b"key", b"value")
    for _ in range(2):
        with pytest.raises(StoreFull, match="reserve"):
            full.write(batch)
    assert full.failure is None
    trim = Batch(full)
    trim.delete_range(Family.MESSAGES, *EVERYTHING)
    full.write(trim, frees=True)
    assert keys(full) == []
    full.close()


def test_a_large_write_is_compared_with_the_free_space_by_its_size(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database.open(directory, replace(SMALL, free_space_reserve=1 << 20))
    free = (1 << 20) + LARGE_WRITE
    monkeypatch.setattr(database._opened.directory, "free_bytes", lambda: free)
    put(database, {b"small": b"row"})
    with pytest.raises(StoreFull):
        put(database, {b"large": bytes(2 * LARGE_WRITE)})
    assert database.get(0, b"large") is None
    put(database, {b"small": b"row again"})
    database.close()


def test_the_free_space_is_soon_checked_again(directory: Path) -> None:
    database = Database.open(directory, SMALL)
    guard = database.write_guard

    def is_refused() -> bool:
        with suppress(StoreFull):
            put(database, {b"key": b"other"})
            return False
        return True

    put(database, {b"key": b"value"})
    guard._reserve = ENDLESS
    until(is_refused, "a look at the free space")
    guard._reserve = 0
    put(database, {b"key": b"third"})
    database.close()


@contextmanager
def mounted(tmp_path: Path, limit: str) -> Iterator[Path]:
    """Give a small file system."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system; the shim covers the same")
    disk = tmp_path / "small"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"{limit},mode=0700", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("cannot mount here; the shim covers the same")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path, "size=16m") as disk:
        yield disk


@pytest.fixture
def few_inodes(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path, "size=64m,nr_inodes=100") as disk:
        yield disk


def take_inodes(disk: Path) -> Path:
    """Take all free inodes of a disk; return the folder that has them."""
    taken = disk / "taken"
    taken.mkdir()
    with suppress(OSError):
        for number in count():
            (taken / str(number)).touch()
    return taken


def add_until_full(store: Store) -> int:
    """Add entries until the store takes none; return how many it took."""
    for added in count():
        try:
            store.stream("s").add({"v": bytes(64 << 10)})
        except StoreFull:
            return added
    raise AssertionError


def is_written(store: Store) -> bool:
    with suppress(StoreFull):
        store.stream("s").add({"v": "again"})
        return True
    return False


def test_writes_are_refused_before_rocksdb_lacks_an_inode(few_inodes: Path) -> None:
    with Store.open(few_inodes / "store", free_space_reserve=1 << 20) as store:
        store.stream("s").add({"v": "before"})
        taken = take_inodes(few_inodes)
        for call in (store.compact, store.engine.flush):
            with pytest.raises(StoreFull, match="inodes"):
                call()
        until(lambda: not is_written(store), "a write to be refused")
        assert store.engine.database.failure is None  # RocksDB has not met it
        with pytest.raises(StoreFull, match="inodes"):
            store.stream("s").add({"v": "refused"})
        shutil.rmtree(taken)
        until(partial(is_written, store), "writes")


def test_a_store_that_could_make_no_file_recovers_by_itself(
    few_inodes: Path,
) -> None:
    options: Any = {"free_space_reserve": 0, "write_buffer_bytes": 256 << 10}
    with open_with(few_inodes / "store", Thresholds(recovery_s=0.1), **options) as store:
        taken = take_inodes(few_inodes)
        added = add_until_full(store)
        assert store.engine.database.failure is not None
        assert len(store.stream("s")) == added
        shutil.rmtree(taken)
        until(lambda: store.engine.database.failure is None, "the store to recover")
        store.stream("s").add({"v": "again"})
        assert len(store.stream("s")) == added + 1
        assert store.check() == []
    with Store.open(few_inodes / "store") as store:
        assert len(store.stream("s")) == added + 1


# A real full disk


def test_a_store_recovers_from_a_full_disk_without_loss(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(8 << 20))
    database = Database.open(small_disk / "store", replace(SMALL, tree_write_buffer_bytes=1 << 20))
    committer = Committer(database, Durability.EVERYSEC)
    written: list[int] = []
    with pytest.raises(StoreFull):
        fill(database, written.append)
    rows = len(keys(database))
    assert rows == len(written)
    ballast.unlink()
    recovers(database, committer)
    assert len(keys(database)) == rows + 1
    committer.close()
    database.close()
    database = Database.open(small_disk / "store", SMALL)
    assert len(keys(database)) == rows + 1
    assert database.get(0, key_of(100_001)) == value_of(100_001)
    database.close()


def test_a_log_that_a_full_disk_has_broken_is_no_failed_fsync(tmp_path: Path) -> None:
    """RocksDB has it for some moments after the disk has space again, and refuses to sync it."""
    guard = WriteGuard(Directory.acquire(tmp_path / "store", read_only=False, create=True), 0)
    broken, full = (
        Exception(f"IO error: {why}")
        for why in ("Writer has previous error.", "No space left on device")
    )
    guard.stop_writes(full, recovers=True)
    guard.resume_writes()
    guard.stop_writes(broken, is_broken_log(broken))
    assert guard.recovers
    assert not guard.is_shut
    guard.stop_writes(Exception("IO error: input/output"), recovers=False)
    guard.stop_writes(broken, is_broken_log(broken))
    assert not guard.recovers
    assert guard.is_shut
