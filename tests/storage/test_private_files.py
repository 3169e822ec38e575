"""Only the owner can read a store: its directory and every file, whichever thread made it."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvstream.storage import files as private_files
from kvstream.storage.database import Database, recover
from kvstream.storage.files import make_private
from kvstream.storage.watermark import FILE_NAME
from tests.folders import as_killed
from tests.storage.stores import SMALL, put_one_by_one

READER = replace(SMALL, read_only=True)
TABLES = 6


@pytest.fixture(autouse=True, params=[0o000, 0o022])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set the umask, so that new files get all requested permissions, or the usual ones."""
    before = os.umask(request.param)
    yield
    os.umask(before)


def readable_by_others(directory: Path) -> list[str]:
    found = []
    for path in [directory, *directory.rglob("*")]:
        with suppress(FileNotFoundError):  # a compaction has just deleted it
            if path.lstat().st_mode & 0o077 and not path.is_symlink():
                found.append(str(path.relative_to(directory)))
    return sorted(found)


def write_tables(database: Database) -> None:
    """Write until RocksDB's threads have made tables and new logs."""
    number = 0
    while database.property_int("rocksdb.num-immutable-mem-table", 0) or tables(database) < TABLES:
        put_one_by_one(database, range(number, number + 1000))
        number += 1000
        assert number < 1_000_000
    database.compact()


def tables(database: Database) -> int:
    return len(list(database.directory.glob("*.sst")))


def test_files_are_always_private_to_the_owner(directory: Path) -> None:
    database = Database.open(directory, SMALL)
    assert readable_by_others(directory) == []
    write_tables(database)
    assert readable_by_others(directory) == []
    database.close()
    assert readable_by_others(directory) == []
    assert len(list(directory.glob("*.sst"))) > 0


def test_files_that_vanish_during_the_check_are_no_error(tmp_path: Path) -> None:
    """A compaction deletes tables while the permissions of an opening store are checked."""
    files = [tmp_path / f"{number:06}.sst" for number in range(1000)]
    for file in files:
        file.touch(mode=0o644)

    def compact() -> None:
        for file in files[:-1]:
            file.unlink()

    compaction = threading.Thread(target=compact)
    compaction.start()
    while compaction.is_alive():
        make_private(tmp_path)
    make_private(tmp_path)
    assert files[-1].stat().st_mode & 0o777 == 0o600


def test_a_directory_made_beforehand_is_closed_to_others(directory: Path) -> None:
    directory.mkdir()
    directory.chmod(0o755)
    Database.open(directory, SMALL).close()
    assert readable_by_others(directory) == []


def test_a_store_that_others_could_read_is_closed_to_them_when_opened(directory: Path) -> None:
    database = Database.open(directory, SMALL)
    put_one_by_one(database, range(10))
    database.close()
    os.removexattr(directory, "system.posix_acl_default")
    for path in directory.iterdir():
        path.chmod(0o644)
    Database.open(directory, SMALL).close()
    assert readable_by_others(directory) == []
    database = Database.open(directory, SMALL)
    put_one_by_one(database, range(10, 20))
    database.flush()
    assert readable_by_others(directory) == []
    database.close()


def test_a_reader_changes_no_permission(directory: Path) -> None:
    Database.open(directory, SMALL).close()
    (directory / "CURRENT").chmod(0o644)
    Database.open(directory, READER).close()
    assert readable_by_others(directory) == ["CURRENT"]


def test_a_checkpoint_and_its_files_are_private_to_the_owner(
    database: Database, tmp_path: Path
) -> None:
    put_one_by_one(database, range(2000))
    database.checkpoint(tmp_path / "copy", nullcontext())
    assert readable_by_others(tmp_path / "copy") == []
    copy = Database.open(tmp_path / "copy", SMALL)
    write_tables(copy)
    assert readable_by_others(tmp_path / "copy") == []
    copy.close()


def test_a_recovered_store_and_its_kept_files_are_private_to_the_owner(
    database: Database, tmp_path: Path
) -> None:
    put_one_by_one(database, range(100))
    crashed = as_killed(database.directory, tmp_path / "crashed")
    crashed.chmod(0o700)
    (crashed / FILE_NAME).unlink()
    recover(crashed, SMALL, accept_loss=True)
    assert (crashed / "before-recovery-1").is_dir()
    assert readable_by_others(crashed) == []


def test_without_access_control_lists_the_directory_and_the_files_there_are_closed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    without = SimpleNamespace(**{**vars(os), "setxattr": unsupported})
    monkeypatch.setattr(private_files, "os", without)
    database = Database.open(directory, SMALL)
    put_one_by_one(database, range(2000))
    database.close()
    assert directory.stat().st_mode & 0o777 == 0o700
    before = set(directory.iterdir())
    Database.open(directory, SMALL).close()
    old = [path for path in before if path.exists()]
    assert any(path.suffix == ".sst" for path in old)
    assert [path.name for path in old if path.stat().st_mode & 0o077] == []
