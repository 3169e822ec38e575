"""A store whose directory is moved, removed or replaced while it is open.

RocksDB works by path, so the files of a new store at that path must stay as they are.
"""

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from kvstream import Durability, Store
from kvstream.engine import reader_snapshots, server_address
from kvstream.errors import KVStreamError, StoreError, StoreReadOnly, UnknownOutcome
from kvstream.storage.batch import Family
from kvstream.storage.database import Database
from kvstream.types.options import StoreOptions
from tests.patience import until
from tests.storage.stores import SMALL, contents, key_of, keys, put_one_by_one, value_of

NEW = range(5)
SAYS = "removed or replaced while it was open"


def make_store(directory: Path, numbers: range = NEW) -> None:
    database = Database.open(directory, SMALL)
    put_one_by_one(database, numbers)
    database.close()


def removed(directory: Path) -> None:
    shutil.rmtree(directory)


def emptied(directory: Path) -> None:
    """Remove the files, but not the directory."""
    for path in directory.iterdir():
        path.unlink()


def made_anew(directory: Path) -> None:
    shutil.rmtree(directory)
    make_store(directory)


def moved(directory: Path) -> None:
    directory.rename(directory.with_name("moved"))


def replaced_by_a_backup(directory: Path) -> None:
    make_store(directory.with_name("backup"))
    moved(directory)
    directory.with_name("backup").rename(directory)


def replaced_by_a_link(directory: Path) -> None:
    moved(directory)
    make_store(directory.with_name("other"))
    directory.symlink_to("other")


def restored_in_place(directory: Path) -> None:
    """Replace the files and keep the directory, as rsync and tar do."""
    make_store(directory.with_name("backup"))
    emptied(directory)
    for path in directory.with_name("backup").iterdir():
        shutil.copy2(path, directory)


CHANGES = pytest.mark.parametrize(
    "change",
    [
        removed,
        emptied,
        made_anew,
        moved,
        replaced_by_a_backup,
        replaced_by_a_link,
        restored_in_place,
    ],
)


@CHANGES
def test_writes_end_with_an_error_and_change_nothing_at_the_path(
    directory: Path, change: Callable[[Path], None]
) -> None:
    old = Database.open(directory, SMALL)
    put_one_by_one(old, range(100))
    change(directory)
    before = contents(directory) if directory.exists() else {}

    def is_refused() -> bool:
        try:
            put_one_by_one(old, range(1))
        except StoreReadOnly as error:
            return SAYS in str(error) and "open it again" in str(error)
        return False

    until(is_refused, "writes to be refused")
    for call in (old.flush, old.compact, old.flush_wal, old.reopen):
        with pytest.raises(StoreReadOnly, match=SAYS):
            call()
    assert old.get(Family.MESSAGES, key_of(99)) == value_of(99)  # reads go on
    old.close()
    assert (contents(directory) if directory.exists() else {}) == before


@pytest.mark.parametrize("change", [made_anew, replaced_by_a_backup, replaced_by_a_link])
def test_rocksdb_itself_never_meets_the_new_store(
    directory: Path, change: Callable[[Path], None]
) -> None:
    """Its own flushes and compactions come before anyone has looked at the path."""
    old = Database.open(directory, SMALL)
    put_one_by_one(old, range(100))
    change(directory)
    before = contents(directory)
    old.write_guard.open_until = inf
    try:
        for _ in range(3):
            put_one_by_one(old, range(6000))
    except KVStreamError:  # it cannot make files in a directory that was removed
        assert change is made_anew
    old.close()
    assert contents(directory) == before
    database = Database.open(directory.resolve(), SMALL)
    assert len(keys(database)) == database.verify() == len(NEW)
    database.close()


def test_a_moved_store_has_all_that_was_acknowledged(directory: Path) -> None:
    old = Database.open(directory, SMALL)
    put_one_by_one(old, range(3000))
    replaced_by_a_backup(directory)
    old.close()
    database = Database.open(directory.with_name("moved"), SMALL)
    assert len(keys(database)) == 3000
    database.close()
    make_store(directory, range(10))  # nobody holds either


def test_a_moved_store_that_is_back_is_not_displaced(directory: Path) -> None:
    old = Database.open(directory, SMALL)
    moved(directory)
    directory.with_name("moved").rename(directory)
    assert not old.is_displaced()
    old.close()


def test_the_error_says_where_a_moved_store_is(directory: Path) -> None:
    old = Database.open(directory, SMALL)
    moved(directory)
    assert old.is_displaced()
    assert f"moved to {directory.with_name('moved')}" in str(old.failure)
    old.close()


def test_an_abandoned_rocksdb_keeps_the_number_of_its_descriptor(
    directory: Path, tmp_path: Path
) -> None:
    """Its paths lead through the number, and the next directory opened would get it."""
    sound = Database.open(tmp_path / "sound", SMALL)
    number = sound.own_path
    sound.close()
    old = Database.open(directory, SMALL)
    assert old.own_path == number
    put_one_by_one(old, range(100))
    replaced_by_a_backup(directory)
    old.close()
    other = Database.open(tmp_path / "other", SMALL)
    assert other.own_path != number
    other.close()
    Database.open(directory, SMALL).close()
    Database.open(directory.with_name("moved"), SMALL).close()


def test_errors_of_rocksdb_name_the_directory(directory: Path) -> None:
    database = Database.open(directory, SMALL)
    put_one_by_one(database, range(10))
    shutil.rmtree(directory)
    database.write_guard.describe_displacement = lambda: None
    with pytest.raises(UnknownOutcome) as caught:
        database.flush()
    assert str(directory) in str(caught.value)
    assert "/proc" not in str(caught.value)
    database.write_guard.describe_displacement = database._opened.describe_displacement
    database.close()


def test_always_acknowledges_nothing_after_the_loss(directory: Path) -> None:
    store = Store.open(directory, durability="always")
    store.stream("s").add({"n": 1})
    shutil.rmtree(directory)
    store.engine.database.write_guard.open_until = inf
    with pytest.raises(UnknownOutcome, match=SAYS):
        store.stream("s").add({"n": 2})
    with pytest.raises(StoreReadOnly, match=SAYS):
        store.stream("s").add({"n": 3})
    store.close()


def test_an_idle_store_notices_and_ends_blocked_reads(directory: Path) -> None:
    store = Store.open(directory)
    errors: list[KVStreamError] = []

    def read() -> None:
        try:
            store.stream("s").read(after="$", block=0)
        except KVStreamError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    until(lambda: store.engine.waiters.queues, "the read to block")
    replaced_by_a_backup(directory)
    thread.join()
    assert [type(error) for error in errors] == [StoreReadOnly]
    assert SAYS in str(errors[0])
    store.close()


def test_a_reader_goes_on_reading_its_own_files(directory: Path) -> None:
    make_store(directory, range(3000))
    reader = Database.open(directory, replace(SMALL, read_only=True))
    replaced_by_a_backup(directory)
    assert len(keys(reader)) == reader.verify() == 3000
    with pytest.raises(StoreError, match=SAYS):
        reader.reopen()
    reader.close()


def test_a_follower_says_that_its_store_is_gone(directory: Path) -> None:
    owner = Database.open(directory, SMALL)
    put_one_by_one(owner, range(10))
    owner.flush_wal()
    follower = Database.open(directory, replace(StoreOptions(), read_only=True, following=True))
    replaced_by_a_backup(directory)
    with pytest.raises(StoreError, match=SAYS):
        follower.catch_up()
    follower.close()
    owner.close()


def test_the_old_owner_serves_nothing_that_belongs_to_the_new_store(directory: Path) -> None:
    old = Store.open(directory)
    replaced_by_a_backup(directory)
    token = reader_snapshots.new_token(os.getpid())
    with pytest.raises(StoreError, match="no copy of it"):
        reader_snapshots.ask(directory, token, 0.3)
    server_address.write(directory, server_address.Address("redis://127.0.0.1:1", "new"))
    server_address.remove(old.engine.database.own_path)
    assert server_address.read(directory) is not None
    old.close()


def test_without_paths_through_descriptors_the_look_at_the_path_protects(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstream.storage.directory._DESCRIPTORS", "/nowhere/")
    old = Database.open(directory, SMALL)
    assert old.own_path == directory
    put_one_by_one(old, range(100))
    replaced_by_a_backup(directory)
    before = contents(directory)
    with pytest.raises(StoreReadOnly, match=SAYS):
        old.flush()
    old.close()
    assert contents(directory) == before


@CHANGES
@pytest.mark.parametrize("durability", ["everysec", "no"])
def test_the_end_of_a_with_block_tells_of_writes_that_are_missing(
    directory: Path, change: Callable[[Path], None], durability: str
) -> None:
    def use(store: Store) -> None:
        with store:
            store.stream("s").add({"n": 1})
            change(directory)

    store = Store.open(directory, durability=Durability(durability))
    with pytest.raises(StoreReadOnly, match=SAYS):
        use(store)
    store.close()  # it is closed


def test_an_error_in_the_block_is_not_replaced(directory: Path) -> None:
    def use() -> None:
        with Store.open(directory) as store:
            store.stream("s").add({"n": 1})
            removed(directory)
            raise InterruptedError

    with pytest.raises(InterruptedError):
        use()


def test_a_close_is_silent_if_nothing_was_written_since_the_last_fsync(directory: Path) -> None:
    with Store.open(directory) as store:
        store.stream("s").add({"n": 1})
        store.engine.sync()
        moved(directory)
