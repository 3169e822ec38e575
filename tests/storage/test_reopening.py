"""A database that is closed and opened again while in use."""

import threading
from pathlib import Path

import pytest

from kvstream.errors import LostWrites, StoreClosed, StoreLocked, StoreReadOnly
from kvstream.storage.batch import Family
from kvstream.storage.database import Database
from kvstream.types.options import StoreOptions
from tests.patience import PATIENCE_S
from tests.storage.stores import EVERYTHING, SMALL, key_of, keys, put_one_by_one, value_of

FROM_LOG = pytest.mark.parametrize("from_log", [False, True], ids=["tables", "log"])


@FROM_LOG
def test_all_rows_are_kept_and_more_can_be_written(database: Database, from_log: bool) -> None:
    put_one_by_one(database, range(500))
    before = database.sequence
    for _ in range(3):
        database.reopen(from_log)
    assert database.sequence == before
    put_one_by_one(database, range(500, 600))
    assert keys(database) == [key_of(number) for number in range(600)]
    database.reopen(from_log)
    assert database.get(Family.MESSAGES, key_of(599)) == value_of(599)


def test_the_log_is_flushed_to_tables_unless_it_will_be_replayed(database: Database) -> None:
    put_one_by_one(database, range(10))
    database.reopen(from_log=True)
    recovered = {path.name for path in database.directory.glob("*.sst")}
    put_one_by_one(database, range(10, 20))
    database.reopen()
    assert {path.name for path in database.directory.glob("*.sst")} - recovered


@FROM_LOG
def test_a_directory_has_one_owner(database: Database, directory: Path, from_log: bool) -> None:
    database.reopen(from_log)
    with pytest.raises(StoreLocked):
        Database.open(directory, SMALL)


def test_a_running_scan_raises(database: Database) -> None:
    put_one_by_one(database, range(10))
    scan = database.scan(Family.MESSAGES, *EVERYTHING)
    next(scan)
    database.reopen()
    with pytest.raises(StoreClosed):
        next(scan)


def test_a_store_that_cannot_be_reopened_is_closed_with_the_reason(
    database: Database, directory: Path
) -> None:
    put_one_by_one(database, range(10))
    (directory / "WATERMARK").unlink()
    with pytest.raises(LostWrites):
        database.reopen()
    with pytest.raises(StoreClosed, match="could not be opened again"):
        database.get(Family.MESSAGES, key_of(1))
    with pytest.raises(StoreClosed, match="could not be opened again"):
        put_one_by_one(database, range(1))
    database.close()


def test_a_reader_sees_the_current_rows(directory: Path) -> None:
    with_rows = Database.open(directory, SMALL)
    put_one_by_one(with_rows, range(10))
    with_rows.close()
    reader = Database.open(directory, StoreOptions(read_only=True))
    reader.reopen()
    assert len(keys(reader)) == 10
    with pytest.raises(StoreReadOnly):
        put_one_by_one(reader, range(1))
    reader.close()


def test_properties_during_a_reopening_are_returned_or_raise_store_closed(
    database: Database,
) -> None:
    put_one_by_one(database, range(10))
    ended, values = threading.Event(), []

    def ask() -> None:
        while not ended.is_set():
            try:
                values.append(database.property_int("rocksdb.estimate-num-keys", Family.MESSAGES))
            except StoreClosed:
                values.append(-1)

    asking = threading.Thread(target=ask)
    asking.start()
    for turn in range(6):
        database.reopen(from_log=turn % 2 == 1)
    ended.set()
    asking.join(PATIENCE_S)
    assert not asking.is_alive()
    assert set(values) <= {-1, 0, 10}
    assert database.property_int("rocksdb.estimate-num-keys", Family.MESSAGES) == 10
