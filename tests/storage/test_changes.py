"""Reading the records of a store across its logs, and which logs are kept."""

import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvstream.errors import Corruption, LostWrites
from kvstream.storage.batch import Family
from kvstream.storage.changes import (
    ARCHIVE,
    ChangeReader,
    Position,
    log_numbers,
    remove_archive,
    trim_logs,
)
from kvstream.storage.database import Database
from kvstream.storage.log import Record
from kvstream.storage.sst import TableWriter
from tests.storage.log_bytes import encode_record, written
from tests.storage.stores import SMALL, put, put_one_by_one


@pytest.fixture
def keeping(directory: Path) -> Iterator[Database]:
    """A store that keeps its logs."""
    opened = Database.open(directory, SMALL, keep_logs=True)
    yield opened
    opened.close()


def archived(directory: Path) -> list[str]:
    place = directory / ARCHIVE
    return sorted(os.listdir(place)) if place.exists() else []


def rest(reader: ChangeReader, size: int = 1 << 20) -> list[Record]:
    """Read on to the end."""
    found = []
    while records := reader.read(size):
        found += records
    return found


def all_records(directory: Path) -> list[Record]:
    reader = ChangeReader(directory)
    try:
        return rest(reader)
    finally:
        reader.close()


def fill(database: Database, logs: int = 3) -> None:
    """Write some rows into each of several logs."""
    for number in range(logs):
        put_one_by_one(database, range(number * 50, number * 50 + 50))
        put(database, {b"large": os.urandom(70_000)})
        database.flush()


def test_all_records_are_read_in_order_across_the_logs(keeping: Database) -> None:
    fill(keeping)
    assert len(log_numbers(keeping.directory)) >= 3
    assert archived(keeping.directory)
    records = all_records(keeping.directory)
    assert records[0].sequence == 1
    assert [each.sequence for each in records[1:]] == [each.last + 1 for each in records[:-1]]
    assert records[-1].last == keeping.sequence == 153


@pytest.mark.parametrize("size", [100, 40_000, 1 << 20])
def test_reading_goes_on_from_any_position(keeping: Database, size: int) -> None:
    fill(keeping)
    whole = all_records(keeping.directory)
    reader = ChangeReader(keeping.directory)
    count = 0
    while records := reader.read(size):
        count += len(records)
        assert records == whole[count - len(records) : count]
        second = ChangeReader(keeping.directory, reader.position)
        assert rest(second) == whole[count:]
        second.close()
    assert count == len(whole)
    assert reader.position.sequence == keeping.sequence
    put(keeping, {b"more": b""})
    assert [record.sequence for record in rest(reader)] == [keeping.sequence]
    reader.close()


def test_a_reader_goes_on_while_logs_are_moved_and_the_store_is_opened_again(
    directory: Path,
) -> None:
    database = Database.open(directory, SMALL, keep_logs=True)
    reader, found = ChangeReader(directory), []
    for _ in range(3):
        fill(database, 2)
        found += reader.read()
        database.reopen()
        fill(database, 1)
        last = database.sequence
        database.close()
        database = Database.open(directory, SMALL, keep_logs=True)
    found += rest(reader)
    assert [record.last for record in found][-1] == last
    assert [each.sequence for each in found[1:]] == [each.last + 1 for each in found[:-1]]
    reader.close()
    database.close()


def test_records_are_read_while_logs_change(keeping: Database) -> None:
    thread = threading.Thread(target=fill, args=(keeping, 12))
    reader, found = ChangeReader(keeping.directory), []
    thread.start()
    while thread.is_alive():
        found += reader.read(3000)
    thread.join()
    found += rest(reader)
    assert found[-1].last == keeping.sequence
    assert sum(record.row_count for record in found) == keeping.sequence
    reader.close()


def test_a_torn_end_is_dropped_where_a_newer_log_goes_on(tmp_path: Path) -> None:
    records = [encode_record(n, [(1, 1, b"k", b"v" * 50)]) for n in range(1, 5)]
    first = tmp_path / "000004.log"
    first.write_bytes(written(records[:2]) + written(records[2:3])[:-9])
    reader = ChangeReader(tmp_path)
    assert [record.sequence for record in rest(reader)] == [1, 2]
    (tmp_path / "000009.log").write_bytes(written([records[2], records[3]]))
    assert [record.sequence for record in rest(reader)] == [3, 4]
    assert reader.position == Position(9, len(written(records[2:])), 4)
    reader.close()


def test_the_end_of_a_log_may_be_written_after_the_last_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [encode_record(n, [(1, 1, b"k", b"v")]) for n in range(1, 4)]
    (tmp_path / "000004.log").write_bytes(written(records[:1]))
    reader = ChangeReader(tmp_path)
    assert len(rest(reader)) == 1
    newer = reader._newer

    def late() -> int | None:
        (tmp_path / "000004.log").write_bytes(written(records[:2]))
        (tmp_path / "000005.log").write_bytes(written(records[2:]))
        return newer()

    monkeypatch.setattr(reader, "_newer", late)
    assert [record.sequence for record in rest(reader)] == [2, 3]
    reader.close()


@pytest.mark.parametrize("number", [1, 2, 4, 9])
def test_a_log_that_goes_on_elsewhere_is_refused(tmp_path: Path, number: int) -> None:
    (tmp_path / "000004.log").write_bytes(written([encode_record(1, [(1, 1, b"k", b"v")] * 2)]))
    (tmp_path / "000005.log").write_bytes(written([encode_record(number, [])]))
    reader = ChangeReader(tmp_path)
    assert len(reader.read()) == 1
    with pytest.raises(LostWrites, match=f"000005.log goes on with the row {number}, where 3 is"):
        reader.read()
    reader.close()


def test_damage_is_reported_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "000004.log").write_bytes(bytes(100))
    with pytest.raises(Corruption, match=r"^000004.log: .* byte 0"):
        ChangeReader(tmp_path).read()


def test_an_ingest_is_a_gap_only_where_rows_are(keeping: Database, tmp_path: Path) -> None:
    put(keeping, {b"prefix" + bytes(16): b"value"})
    reader = ChangeReader(keeping.directory)
    for name, first in (("a", 1), ("b", 0)):
        table = TableWriter(tmp_path / name)
        table.put(b"prefix", [bytes([*bytes(15), first])], [b"\1value"])
        table.finish()
        keeping.ingest(Family.MESSAGES, [table.path])
        put(keeping, {b"after": name.encode()})
        if first:
            assert [record.sequence for record in rest(reader)] == [1, 2]
    with pytest.raises(LostWrites, match="goes on with the row 4, where 3 is next"):
        rest(reader)
    reader.close()


def test_logs_that_were_read_are_trimmed_and_the_rest_up_to_a_size(keeping: Database) -> None:
    fill(keeping, 6)
    directory = keeping.directory
    before = log_numbers(directory)
    trim_logs(directory, 1 << 30)
    assert log_numbers(directory) == before
    trim_logs(directory, 1 << 30, before=before[2])
    assert log_numbers(directory) == before[2:]
    trim_logs(directory, 200_000)
    sizes = [(directory / ARCHIVE / name).stat().st_size for name in archived(directory)]
    assert 100_000 < sum(sizes) <= 200_000
    assert log_numbers(directory)[-1] == before[-1]
    with pytest.raises(LostWrites, match="was removed"):
        ChangeReader(directory, Position(before[0], 0, None))
    reader = ChangeReader(directory, Position(before[-1], 0, None))
    trim_logs(directory, 0)
    fill(keeping)
    assert rest(reader)[-1].last == keeping.sequence  # RocksDB goes on moving logs
    reader.close()


def test_a_reader_whose_next_log_was_trimmed_says_so(keeping: Database) -> None:
    put(keeping, {b"key": b"value"})
    reader = ChangeReader(keeping.directory)
    fill(keeping, 4)
    trim_logs(keeping.directory, 100_000)
    with pytest.raises(LostWrites, match="is next"):
        rest(reader)
    reader.close()


def test_an_opening_that_keeps_no_logs_removes_them(directory: Path) -> None:
    database = Database.open(directory, SMALL, keep_logs=True)
    fill(database)
    database.close()
    database = Database.open(directory, SMALL, keep_logs=True)
    kept = archived(directory)
    assert len(kept) >= 3  # also at the opening
    database.close()
    shutil.copytree(directory, directory.with_name("other"))
    Database.open(directory, SMALL).close()
    assert not (directory / ARCHIVE).exists()
    stranger = directory.with_name("other") / ARCHIVE / "notes"
    stranger.write_text("of somebody")
    database = Database.open(directory.with_name("other"), SMALL)
    assert archived(directory.with_name("other")) == ["notes"]
    fill(database)
    assert archived(directory.with_name("other")) == ["notes"]
    database.close()


def test_a_reader_of_the_store_leaves_its_logs(directory: Path) -> None:
    database = Database.open(directory, SMALL, keep_logs=True)
    fill(database)
    database.close()
    kept = archived(directory)
    Database.open(directory, replace(SMALL, read_only=True)).close()
    assert archived(directory) == kept != []


def test_no_log_is_kept_unless_asked_for(database: Database) -> None:
    fill(database)
    assert not (database.directory / ARCHIVE).exists()
    remove_archive(database.directory)  # there is none


def test_a_checkpoint_of_a_store_that_keeps_logs_has_none_of_them(
    keeping: Database, tmp_path: Path
) -> None:
    fill(keeping)
    keeping.checkpoint(tmp_path / "copy", threading.Lock())
    assert not (tmp_path / "copy" / ARCHIVE).exists()
    copy = Database.open(tmp_path / "copy", SMALL)
    assert copy.sequence == keeping.sequence
    copy.close()
