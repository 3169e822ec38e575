"""Opening after a crash: which stores open, and which are refused, by log and watermark."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import pytest

from kvstream.errors import Corruption, DataError, LostWrites, UnknownLayout
from kvstream.storage import watermark
from kvstream.storage.batch import Family
from kvstream.storage.database import Database, recover
from kvstream.storage.watermark import Mark, Watermark
from tests.folders import as_killed
from tests.storage.stores import (
    SMALL,
    contents,
    key_of,
    put,
    put_one_by_one,
    value_of,
)

DURABLE, WRITTEN = 2000, 3000
BIG = replace(SMALL, write_buffer_bytes=16 << 20)
"""No table is written before the end of the test: all rows are in one log."""


@dataclass(frozen=True)
class Crashed:
    """A store as kill -9 left it: the first 2000 of its 3000 writes were durable."""

    directory: Path
    durable_bytes: int

    @property
    def log(self) -> Path:
        (log,) = [path for path in self.directory.glob("*.log") if path.stat().st_size]
        return log


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    base = tmp_path_factory.mktemp("opening")
    database = Database.open(base / "store", BIG)
    put_one_by_one(database, range(DURABLE))
    database.flush_wal()
    (log,) = (base / "store").glob("*.log")
    durable_bytes = log.stat().st_size
    put_one_by_one(database, range(DURABLE, WRITTEN))
    crashed = as_killed(database.directory, base / "crashed")
    database.close()
    return Crashed(crashed, durable_bytes)


@pytest.fixture
def crashed(original: Crashed, tmp_path: Path) -> Crashed:
    """A copy to damage."""
    copy = tmp_path / "crashed"
    shutil.copytree(original.directory, copy)
    return Crashed(copy, original.durable_bytes)


def opened_rows(directory: Path) -> int:
    """Open the store, check that it has the first rows without a gap, and return their number."""
    database = Database.open(directory, BIG)
    try:
        rows = database.page(Family.MESSAGES, b"", b"\xff", WRITTEN + 1)
    finally:
        database.close()
    assert rows == [(key_of(number), value_of(number)) for number in range(len(rows))]
    return len(rows)


# Damage to the log: nine kinds at four places

BLOCK = 4096
Damage = Callable[[Path, int], int]
"""Damage a log from an offset on, and return the first changed offset."""


def overwrite(log: Path, offset: int, content: bytes) -> int:
    with log.open("r+b") as file:
        file.seek(offset)
        file.write(content)
    return offset


def torn(log: Path, offset: int) -> int:
    os.truncate(log, offset)
    return offset


def flipped(log: Path, offset: int) -> int:
    return overwrite(log, offset, bytes([log.read_bytes()[offset] ^ 0x40]))


def zeroed(log: Path, offset: int) -> int:
    return overwrite(log, offset, bytes(min(BLOCK, log.stat().st_size - offset)))


def zeroed_to_the_end(log: Path, offset: int) -> int:
    return overwrite(log, offset, bytes(log.stat().st_size - offset))


def torn_then_zeros(log: Path, offset: int) -> int:
    torn(log, offset)
    return overwrite(log, offset, bytes(2 * BLOCK))


def torn_then_garbage(log: Path, offset: int) -> int:
    torn(log, offset)
    return overwrite(log, offset, b"\xa5\x5a garbage" * 300)


def a_piece_missing(log: Path, offset: int) -> int:
    content = log.read_bytes()
    log.write_bytes(content[:offset] + content[offset + 100 :])
    return offset


def emptied(log: Path, offset: int) -> int:
    os.truncate(log, 0)
    return 0


def deleted(log: Path, offset: int) -> int:
    log.unlink()
    return 0


DAMAGES: list[Damage] = [
    torn,
    flipped,
    zeroed,
    zeroed_to_the_end,
    torn_then_zeros,
    torn_then_garbage,
    a_piece_missing,
    emptied,
    deleted,
]
PLACES: dict[str, Callable[[int], int]] = {
    "in the first record": lambda durable: 20,
    "in the middle": lambda durable: durable // 2,
    "in the last durable record": lambda durable: durable - 5,
    "after the last durable record": lambda durable: durable + 5,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_log_is_refused_when_durable_writes_are_lost_and_only_then(
    crashed: Crashed, damage: Damage, place: str
) -> None:
    offset = damage(crashed.log, PLACES[place](crashed.durable_bytes))
    before = contents(crashed.directory)
    if offset >= crashed.durable_bytes:
        assert DURABLE <= opened_rows(crashed.directory) < WRITTEN
        return
    for _ in range(2):  # a refused store stays unchanged, and is refused again
        with pytest.raises(DataError):
            opened_rows(crashed.directory)
        with pytest.raises(DataError):
            Database.open(crashed.directory, replace(BIG, read_only=True))
        assert contents(crashed.directory) == before
    report = recover(crashed.directory, BIG, accept_loss=True)
    assert report.rows == opened_rows(crashed.directory) < DURABLE
    assert report.lost == range(report.rows + 1, DURABLE + 1)


@pytest.mark.parametrize("added", [b"garbage" * 100, bytes(2 * BLOCK)])
def test_bytes_after_the_last_write_are_no_damage(crashed: Crashed, added: bytes) -> None:
    with crashed.log.open("ab") as log:
        log.write(added)
    assert opened_rows(crashed.directory) == WRITTEN


def test_a_manifest_older_than_the_log_is_refused(directory: Path, tmp_path: Path) -> None:
    """As in a copy whose files were taken one after another while the store was open."""
    database, copy = Database.open(directory, BIG), tmp_path / "copy"
    put_one_by_one(database, range(10))
    database.flush()
    put_one_by_one(database, range(10, 20))
    copy.mkdir(0o700)
    early = [directory / "CURRENT", *directory.glob("MANIFEST-*")]
    for path in early:
        shutil.copy(path, copy)
    database.flush()
    put_one_by_one(database, range(20, 30))
    for path in directory.iterdir():
        if path.is_file() and path not in early:
            shutil.copy(path, copy)
    database.close()
    before = contents(copy)
    for options in (BIG, replace(BIG, read_only=True)):
        with pytest.raises(LostWrites, match=r"tables end at .* 10, .* begins at 21:"):
            Database.open(copy, options)
        assert contents(copy) == before
    report = recover(copy, BIG, accept_loss=True)
    assert (report.rows, report.skipped_records) == (20, True)
    Database.open(copy, BIG).close()


def test_an_undamaged_log_restores_every_write(crashed: Crashed) -> None:
    assert opened_rows(crashed.directory) == WRITTEN
    assert opened_rows(crashed.directory) == WRITTEN


def test_damage_to_the_older_of_two_logs_is_refused_and_recovered_with_a_gap(
    directory: Path, tmp_path: Path
) -> None:
    database = Database.open(directory, BIG)
    put(database, {b"tree": b"row"}, Family.TREES)
    put_one_by_one(database, range(1000))
    first = {path.name for path in directory.glob("*.log")}
    # This starts a new log; the tree row stays in the first.
    database._families[Family.MESSAGES].flush(True)
    put_one_by_one(database, range(1000, 2000))
    put(database, {b"last": b"row"}, Family.TREES)
    database.flush_wal()
    crashed = as_killed(database.directory, tmp_path / "crashed")
    database.close()
    (older,) = first
    assert len(list(crashed.glob("*.log"))) == 2
    flipped(crashed / older, 4000)
    before = contents(crashed)
    with pytest.raises(Corruption):
        Database.open(crashed, BIG)
    assert contents(crashed) == before
    report = recover(crashed, BIG, accept_loss=True)
    assert report.skipped_records
    assert report.kept_logs is not None
    assert (report.kept_logs / older).read_bytes() == before[older]
    assert opened_rows(crashed) == 2000


def test_recovering_a_sound_store_loses_nothing(crashed: Crashed) -> None:
    report = recover(crashed.directory, BIG, accept_loss=True)
    assert (report.rows, report.damage, report.kept_logs) == (WRITTEN, None, None)
    assert list(report.lost) == []


def test_recovering_without_accepting_loss_changes_nothing(crashed: Crashed) -> None:
    torn(crashed.log, crashed.durable_bytes // 2)
    before = contents(crashed.directory)
    with pytest.raises(LostWrites, match="2000 was durable"):
        recover(crashed.directory, BIG, accept_loss=False)
    assert contents(crashed.directory) == before


def test_every_recovery_keeps_the_original_files(crashed: Crashed) -> None:
    torn(crashed.log, 2000)
    name, damaged = crashed.log.name, crashed.log.read_bytes()
    earlier = crashed.directory / "before-recovery-1"
    earlier.mkdir(mode=0o700)
    report = recover(crashed.directory, BIG, accept_loss=True)
    assert report.kept_logs == crashed.directory / "before-recovery-2"
    assert (report.kept_logs / name).read_bytes() == damaged
    assert list(earlier.iterdir()) == []


def test_writing_continues_after_the_loss_was_accepted(crashed: Crashed) -> None:
    torn(crashed.log, crashed.durable_bytes // 2)
    left = recover(crashed.directory, BIG, accept_loss=True).rows
    database = Database.open(crashed.directory, BIG)
    put_one_by_one(database, range(left, left + 10))
    database.flush_wal()
    database.close()
    assert opened_rows(crashed.directory) == left + 10


# The watermark itself


def test_the_watermark_follows_every_fsync_of_the_log(database: Database) -> None:
    for number in range(3):
        sequence = put_one_by_one(database, range(number + 1))
        assert database.flush_wal() == sequence
        mark = Watermark.read(database.directory)
        assert mark is not None
        assert mark.sequence == sequence


def test_closing_makes_all_writes_durable_and_records_it(directory: Path) -> None:
    database = Database.open(directory, SMALL)
    sequence = put_one_by_one(database, range(10))
    database.close()
    mark = Watermark.read(directory)
    assert mark is not None
    assert mark.sequence == sequence


def test_a_torn_write_of_the_watermark_leaves_the_previous_mark(database: Database) -> None:
    mark = Watermark.open(database.directory)
    for sequence in (50, 60, 70):
        mark.record(sequence)
        path = database.directory / watermark.FILE_NAME
        whole = path.read_bytes()
        newest = whole.index(mark_bytes(mark))
        path.write_bytes(whole[:newest] + b"\0" * 10 + whole[newest + 10 :])
        before = Watermark.read(database.directory)
        assert before is not None
        assert before.counter == mark.mark.counter - 1
        path.write_bytes(whole)
    mark.close()


def mark_bytes(mark: Watermark) -> bytes:
    return mark.mark.counter.to_bytes(8, "big") + mark.mark.sequence.to_bytes(8, "big")


@pytest.mark.parametrize("slot", [0, 1])
def test_a_torn_write_of_the_watermark_is_harmless(crashed: Crashed, slot: int) -> None:
    overwrite(crashed.directory / watermark.FILE_NAME, slot * 4096, b"\0" * 29)
    assert opened_rows(crashed.directory) == WRITTEN


def marked(version: int, counter: int, sequence: int) -> bytes:
    """Return a slot as its version wrote it; 0 is the format without versions."""
    head = b"KVSW" + (version.to_bytes(4) if version else b"") + counter.to_bytes(8)
    body = head + sequence.to_bytes(8)
    return body + crc32(body).to_bytes(4)


def test_a_watermark_without_a_version_is_read_and_converted(crashed: Crashed) -> None:
    path = crashed.directory / watermark.FILE_NAME
    before = Watermark.read(crashed.directory)
    assert before is not None
    slots = marked(0, 2, before.sequence), marked(0, 1, 7)
    path.write_bytes(b"".join(slot.ljust(4096, b"\0") for slot in slots))
    assert Watermark.read(crashed.directory) == Mark(2, before.sequence)
    database = Database.open(crashed.directory, BIG)
    database.flush_wal()
    assert Watermark.read(crashed.directory) == Mark(3, database.sequence)
    database.close()
    assert path.read_bytes().startswith(marked(1, 4, WRITTEN))
    assert opened_rows(crashed.directory) == WRITTEN


def test_an_older_watermark_refuses_a_log_that_ends_below_it(crashed: Crashed) -> None:
    path = crashed.directory / watermark.FILE_NAME
    path.write_bytes(marked(0, 1, WRITTEN + 1).ljust(8192, b"\0"))
    with pytest.raises(LostWrites, match=f"{WRITTEN + 1} was durable"):
        opened_rows(crashed.directory)


@pytest.mark.parametrize("slot", [0, 1])
def test_a_watermark_of_a_later_version_is_refused_before_any_write(
    crashed: Crashed, slot: int
) -> None:
    overwrite(crashed.directory / watermark.FILE_NAME, slot * 4096, marked(2, 9, WRITTEN))
    before = contents(crashed.directory)
    reader, forced = replace(BIG, read_only=True), replace(BIG, accept_loss=True)
    for options in (BIG, reader, forced):
        with pytest.raises(UnknownLayout, match="version 2"):
            Database.open(crashed.directory, options)
    assert contents(crashed.directory) == before


def lost(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, 0)


def scribbled(path: Path) -> None:
    path.write_bytes(b"\x55" * path.stat().st_size)


@pytest.mark.parametrize("harm", [lost, cut, scribbled])
def test_a_store_without_its_watermark_is_refused_until_the_loss_is_accepted(
    crashed: Crashed, harm: Callable[[Path], None]
) -> None:
    harm(crashed.directory / watermark.FILE_NAME)
    before = contents(crashed.directory)
    for reads in (False, True):
        with pytest.raises(LostWrites, match="watermark"):
            Database.open(crashed.directory, replace(BIG, read_only=reads))
    assert contents(crashed.directory) == before
    report = recover(crashed.directory, BIG, accept_loss=True)
    assert (report.rows, report.promised, list(report.lost)) == (WRITTEN, None, [])
    assert opened_rows(crashed.directory) == WRITTEN


def test_an_older_copy_of_the_tables_is_refused_after_a_clean_close(
    directory: Path, tmp_path: Path
) -> None:
    database = Database.open(directory, SMALL)
    put_one_by_one(database, range(100))
    database.close()
    shutil.copytree(directory, tmp_path / "older")
    database = Database.open(directory, SMALL)
    put_one_by_one(database, range(100, 200))
    database.close()
    shutil.copy(directory / watermark.FILE_NAME, tmp_path / "older")
    refusals = []
    for _ in range(2):
        with pytest.raises(LostWrites) as refusal:
            opened_rows(tmp_path / "older")
        refusals.append(refusal.value)  # kept, with all references of its traceback
    assert recover(tmp_path / "older", SMALL, accept_loss=True).rows == 100
    assert len(refusals) == 2


def test_a_view_left_by_a_killed_opener_is_cleared(crashed: Crashed) -> None:
    (crashed.directory / ".preview").mkdir(mode=0o700)
    (crashed.directory / ".preview" / "CURRENT").write_bytes(b"stale")
    assert opened_rows(crashed.directory) == WRITTEN
    assert not (crashed.directory / ".preview").exists()
