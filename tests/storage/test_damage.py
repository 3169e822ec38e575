"""Damaged tables and files raise an error on every way to read, and never shorten a result."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvstream.errors import Corruption, DataError, KVStreamError, LostWrites, StoreReadOnly
from kvstream.storage.batch import Batch, Family
from kvstream.storage.database import Database, recover
from tests.storage.stores import SMALL, contents, key_of, keys, put_one_by_one, value_of

ROWS = 6000
LOWER, UPPER = key_of(0), key_of(ROWS)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose rows are all in two tables."""
    directory = tmp_path_factory.mktemp("damage") / "store"
    database = Database.open(directory, SMALL)
    for numbers in (range(ROWS // 2), range(ROWS // 2, ROWS)):
        put_one_by_one(database, numbers)
        database.flush()
    database.close()
    return directory


@pytest.fixture
def store(original: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(original, tmp_path / "store"))


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)


def tables(store: Path) -> list[Path]:
    return sorted(store.glob("*.sst"))


def flip_in_data(store: Path) -> None:
    flip(tables(store)[0], tables(store)[0].stat().st_size // 4)


# A damaged data block: the store opens, since the block may be one of a million


@pytest.fixture
def with_a_bad_block(store: Path) -> Database:
    flip_in_data(store)
    return Database.open(store, SMALL)


def first_bad(database: Database) -> int:
    """Return the number of the first row that cannot be read."""
    for number in range(ROWS):
        try:
            assert database.get(Family.MESSAGES, key_of(number)) == value_of(number)
        except Corruption:
            return number
    pytest.fail("no row lies in the damaged block")


READS: dict[str, Callable[[Database], object]] = {
    "get_many": lambda database: database.get_many(0, [key_of(number) for number in range(ROWS)]),
    "scan": lambda database: list(database.scan(0, LOWER, UPPER)),
    "scan in reverse": lambda database: list(database.scan(0, LOWER, UPPER, reverse=True)),
    "page": lambda database: database.page(0, LOWER, UPPER, ROWS),
    "page in reverse": lambda database: database.page(0, LOWER, UPPER, ROWS, reverse=True),
    "page beyond the end": lambda database: database.page(0, LOWER, UPPER, 2 * ROWS),
    "batch": lambda database: list(Batch(database).scan(0, LOWER, UPPER)),
    "verify": lambda database: database.verify(),
}


@pytest.mark.parametrize("read", READS)
def test_a_damaged_block_is_an_error_on_every_way_to_read(
    with_a_bad_block: Database, read: str
) -> None:
    for _ in range(2):
        with pytest.raises(Corruption):
            READS[read](with_a_bad_block)
    with_a_bad_block.close()


@pytest.mark.parametrize("limit", [1, 4, 5, 10])
def test_a_page_that_reaches_a_damaged_block_is_an_error_and_others_are_complete(
    with_a_bad_block: Database, limit: int
) -> None:
    bad = first_bad(with_a_bad_block)
    whole = with_a_bad_block.page(0, key_of(bad - limit), UPPER, limit)
    assert whole == [(key_of(number), value_of(number)) for number in range(bad - limit, bad)]
    with pytest.raises(Corruption):
        with_a_bad_block.page(0, key_of(bad - limit + 1), UPPER, limit)
    with_a_bad_block.close()


def test_damage_seen_by_a_reader_names_the_table_and_no_folder_that_is_gone(store: Path) -> None:
    flip_in_data(store)
    reader = Database.open(store, replace(SMALL, read_only=True))
    with pytest.raises(Corruption, match=r" in \d+\.sst offset \d+"):
        reader.verify()
    reader.close()


def test_rows_outside_a_damaged_block_are_still_read(with_a_bad_block: Database) -> None:
    half = ROWS // 2
    found = with_a_bad_block.page(0, key_of(half), UPPER, ROWS)
    assert len(found) == half
    with_a_bad_block.close()


def test_compacting_a_damaged_block_is_an_error_and_the_store_still_reads(
    with_a_bad_block: Database,
) -> None:
    covering = Batch(with_a_bad_block)
    covering.put(Family.MESSAGES, key_of(0), b"")
    covering.put(Family.MESSAGES, key_of(ROWS - 1), value_of(ROWS - 1))
    with_a_bad_block.write(covering)  # otherwise the tables would be moved without being read
    with pytest.raises(Corruption):
        with_a_bad_block.compact()
    batch = Batch(with_a_bad_block)
    batch.put(Family.METADATA, b"key", b"value")
    with pytest.raises(StoreReadOnly):
        with_a_bad_block.write(batch)
    assert with_a_bad_block.get(0, key_of(ROWS - 1)) == value_of(ROWS - 1)
    with_a_bad_block.close()


# Damage that is detected at open


def test_a_store_whose_compaction_met_damage_is_unlocked_when_it_is_closed(
    with_a_bad_block: Database,
) -> None:
    covering = Batch(with_a_bad_block)
    covering.put(Family.MESSAGES, key_of(0), b"")
    covering.put(Family.MESSAGES, key_of(ROWS - 1), b"last")
    with_a_bad_block.write(covering)
    with_a_bad_block.compact_messages(LOWER, UPPER)  # which hides its error
    with_a_bad_block.close()
    reopened = Database.open(with_a_bad_block.directory, replace(SMALL, read_only=True))
    assert reopened.get(Family.MESSAGES, key_of(ROWS - 1)) == b"last"
    reopened.close()


def manifest(store: Path) -> Path:
    (found,) = store.glob("MANIFEST-*")
    return found


def delete_table(store: Path) -> None:
    tables(store)[0].unlink()


def swap_tables(store: Path) -> None:
    first, second, *_ = tables(store)
    first.rename(store / "aside")
    second.rename(first)
    (store / "aside").rename(second)


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


REFUSED: dict[str, Callable[[Path], object]] = {
    "a flip in a table's footer": lambda store: flip(tables(store)[0], -10),
    "a flip in a table's index": lambda store: flip(
        tables(store)[0], tables(store)[0].read_bytes().rindex(b"rocksdb.")
    ),
    "a truncated table": lambda store: cut_in_half(tables(store)[0]),
    "an empty table": lambda store: os.truncate(tables(store)[0], 0),
    "a deleted table": delete_table,
    "swapped tables": swap_tables,
    "a flip in the manifest": lambda store: flip(manifest(store), 40),
    "a deleted manifest": lambda store: manifest(store).unlink(),
    "garbage in CURRENT": lambda store: (store / "CURRENT").write_bytes(b"garbage"),
    "an empty CURRENT": lambda store: os.truncate(store / "CURRENT", 0),
    "a deleted CURRENT": lambda store: (store / "CURRENT").unlink(),
}


@pytest.mark.parametrize("damage", REFUSED)
def test_a_damaged_store_is_refused_every_time(store: Path, damage: str) -> None:
    REFUSED[damage](store)
    before = contents(store)
    for options in (SMALL, SMALL, replace(SMALL, read_only=True)):
        with pytest.raises(DataError):
            Database.open(store, options)
        assert contents(store) == before
    with pytest.raises(DataError):
        Database.open(store, replace(SMALL, accept_loss=True))


def test_a_manifest_that_lost_its_end_is_refused_before_its_tables_are_removed(
    store: Path,
) -> None:
    cut_in_half(manifest(store))
    before = contents(store)
    for options in (SMALL, SMALL, replace(SMALL, read_only=True)):
        with pytest.raises(LostWrites):
            Database.open(store, options)
        assert contents(store) == before
    report = recover(store, SMALL, accept_loss=True)
    assert report.rows < ROWS
    assert report.kept_logs is not None
    kept = contents(report.kept_logs)
    assert kept == {name: before[name] for name in kept}
    assert {path.name for path in report.kept_logs.glob("*.sst")} == set(
        filter(lambda name: name.endswith(".sst"), before)
    )


def remove_all(store: Path, pattern: str) -> None:
    for path in store.glob(pattern):
        path.unlink()


HARMLESS: dict[str, Callable[[Path], object]] = {
    "garbage in the options": lambda store: [
        path.write_bytes(b"garbage") for path in store.glob("OPTIONS-*")
    ],
    "no options": lambda store: remove_all(store, "OPTIONS-*"),
    "an empty rocksdict-config.json": lambda store: os.truncate(store / "rocksdict-config.json", 0),
    "a rocksdict-config.json that asks for pickles": lambda store: (
        store / "rocksdict-config.json"
    ).write_text('{"raw_mode":false,"prefix_extractors":{}}'),
    "no IDENTITY": lambda store: (store / "IDENTITY").unlink(),
    "no LOCK": lambda store: (store / "LOCK").unlink(),
    "no log of events": lambda store: (store / "LOG").unlink(),
}


@pytest.mark.parametrize("damage", HARMLESS)
def test_files_without_rows_can_be_lost(store: Path, damage: str) -> None:
    HARMLESS[damage](store)
    database = Database.open(store, SMALL)
    assert len(keys(database)) == ROWS
    database.close()


def test_a_torn_end_of_the_manifest_loses_nothing_or_is_refused(store: Path) -> None:
    path = manifest(store)
    os.truncate(path, path.stat().st_size - 5)
    try:
        database = Database.open(store, SMALL)
    except KVStreamError as error:
        assert isinstance(error, DataError)  # noqa: PT017 - either way is right
    else:
        assert len(keys(database)) == ROWS
        database.close()
