"""Large values: reading, deleting or claiming neighbouring rows does not read them.

The large value is damaged on disk, so that reading it fails.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import kvstream
from kvstream import Store
from kvstream.errors import Corruption
from kvstream.storage.batch import Batch, Family
from kvstream.storage.database import Database
from kvstream.storage.options import LARGE_VALUE, LARGE_VALUES_SUFFIX
from kvstream.storage.reads import PAGE_ROWS, SHORT_PAGE
from tests.storage.stores import EVERYTHING, SMALL, key_of, keys, put

LARGE = os.urandom(LARGE_VALUE)
LARGE_AT = 500
SMALL_AT = [*range(LARGE_AT - 20, LARGE_AT), *range(LARGE_AT + 1, LARGE_AT + 21)]
MESSAGES = Family.MESSAGES


def damage(directory: Path, value: bytes = LARGE) -> None:
    """Change a byte of a large value, in the file that has it."""
    middle = value[len(value) // 2 :][:64]
    for path in directory.iterdir():
        if path.is_file() and (at := (content := path.read_bytes()).find(middle)) >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([content[at] ^ 1]))
            return
    raise AssertionError("no file has the value")


def has_damage(database: Database) -> bool:
    try:
        database.get(MESSAGES, key_of(LARGE_AT))
    except Corruption:
        return True
    return False


def large_value_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*" + LARGE_VALUES_SUFFIX))


@pytest.fixture
def damaged(directory: Path) -> Iterator[Database]:
    """Small rows around a large one that is unreadable."""
    made = Database.open(directory, SMALL)
    put(made, {key_of(number): b"small" for number in SMALL_AT} | {key_of(LARGE_AT): LARGE})
    made.close()
    damage(directory)
    opened = Database.open(directory, SMALL)
    assert has_damage(opened)
    yield opened
    opened.close()


@pytest.mark.parametrize("count", [1, SHORT_PAGE, SHORT_PAGE + 1, 20])
@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "in reverse"])
def test_a_page_ends_before_a_large_value(damaged: Database, count: int, reverse: bool) -> None:
    first, end = (LARGE_AT + 1, 2000) if reverse else (LARGE_AT - 20, LARGE_AT + 1)
    at = range(LARGE_AT + 20, LARGE_AT, -1) if reverse else range(first, LARGE_AT)
    found = damaged.page(MESSAGES, key_of(first), key_of(end), count, reverse)
    assert [key for key, _ in found] == [key_of(number) for number in at[:count]]


def test_a_range_ends_before_a_large_value(damaged: Database) -> None:
    below = damaged.page(MESSAGES, key_of(0), key_of(LARGE_AT), 1000)
    above = damaged.page(MESSAGES, key_of(LARGE_AT + 1), key_of(2000), 1000, reverse=True)
    assert (len(below), len(above)) == (20, 20)
    assert len(damaged.page(MESSAGES, key_of(0), key_of(LARGE_AT), 1000, reverse=True)) == 20


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "in reverse"])
def test_scans_and_snapshots_end_before_a_large_value(damaged: Database, reverse: bool) -> None:
    lower = key_of(LARGE_AT + 1 if reverse else 0)
    upper = key_of(2000 if reverse else LARGE_AT)
    assert len(list(damaged.scan(MESSAGES, lower, upper, reverse))) == 20
    assert [len(page) for page in damaged.snapshot(MESSAGES, lower, upper, reverse)] == [20]
    seeks = damaged.seeks(MESSAGES)
    assert len(seeks.send((key_of(LARGE_AT + 1), key_of(LARGE_AT + 20), 100))) == 20


def test_a_page_of_a_snapshot_does_not_look_for_the_next(directory: Path) -> None:
    made = Database.open(directory, SMALL)
    rows = {key_of(number): b"small" for number in range(PAGE_ROWS)}
    put(made, rows | {key_of(PAGE_ROWS): LARGE})
    made.close()
    damage(directory)
    opened = Database.open(directory, SMALL)
    try:
        pages = opened.snapshot(MESSAGES, *EVERYTHING)
        assert len(next(pages)) == PAGE_ROWS
        with pytest.raises(Corruption):
            next(pages)
    finally:
        opened.close()


def test_missing_keys_are_looked_up_without_it(damaged: Database) -> None:
    missing = [key_of(number) for number in (0, LARGE_AT - 21, 3000)]
    assert damaged.get_many(MESSAGES, missing) == [None] * 3


def test_a_page_is_consistent_while_others_write(database: Database) -> None:
    """The last row is read apart from those before it."""
    count = SHORT_PAGE + 4
    put(database, {key_of(number): b"old" for number in range(count)})
    family: Any = database._families[MESSAGES]

    class Written:
        """Rewrite all rows while a page of them is read."""

        items = family.items
        latest_sequence_number = family.latest_sequence_number
        begun = 0

        def iter(self, bounds: Any) -> Any:
            self.begun += 1
            if self.begun == 1:
                put(database, {key_of(number): b"new" for number in range(count)})
            return family.iter(bounds)

    database._families[MESSAGES] = Written()
    try:
        page = database.page(MESSAGES, *EVERYTHING, count)
    finally:
        database._families[MESSAGES] = family
    assert [value for _, value in page] == [b"new"] * count


# --- streams --------------------------------------------------------------------------------------


@pytest.fixture
def client(directory: Path) -> Iterator[Any]:
    """A client of a store whose streams ``k`` and ``r`` have a large entry between small ones."""
    with Store.open(directory) as store, kvstream.connect(store) as made:
        for key in ("k", "r"):
            ids = [*range(11, 21), 100, *range(201, 211)]
            for at in ids:
                made.xadd(key, {b"f": LARGE if at == 100 else b"small"}, id=f"{at}-0")
            made.xgroup_create(key, "g", id="0")
            made.xgroup_create(key, "behind", id="100-0")
        made.xreadgroup("g", "c", {"k": ">"}, count=10)
        made.xadd("last", {b"f": b"small"})
    damage(directory)
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    with Store.open(copy) as store, kvstream.connect(store) as opened:
        opened.response_callbacks.clear()
        with pytest.raises(Exception, match=r"(?i)corrupt|checksum"):
            opened.execute_command("XRANGE", "k", "100", "100")
        yield opened


NEIGHBOURS = [
    "XRANGE k - + COUNT 10",
    "XRANGE k - 99",
    "XRANGE k - (100-0",
    "XRANGE k (100 +",
    "XRANGE k 101 + COUNT 5",
    "XRANGE k 50 60",
    "XREVRANGE k + - COUNT 10",
    "XREVRANGE k + 101",
    "XREVRANGE k + (100 COUNT 20",
    "XREVRANGE k + 101 COUNT 5000",
    "XREVRANGE k 99 - COUNT 10",
    "XREVRANGE k 99 -",
    "XREVRANGE k 205 203 COUNT 9",
    "XREVRANGE r + - COUNT 10",
    "XRANGE last - +",
    "XREVRANGE last + - COUNT 1",
    "XREAD COUNT 10 STREAMS k 0",
    "XREAD COUNT 10 STREAMS k last 0 0",
    "XREAD STREAMS k r 100-0 100-0",
    "XREAD STREAMS k +",
    "XREADGROUP GROUP behind c STREAMS k r > >",
    "XREADGROUP GROUP g c STREAMS k 0",
    "XCLAIM k g d 0 11-0 12-0 JUSTID",
    "XCLAIM k g d 0 11-0 12-0 13-0 14-0 15-0 16-0 17-0 18-0 19-0",
    "XAUTOCLAIM k g d 0 - JUSTID",
    "XAUTOCLAIM k g d 0 -",
    "XPENDING k g - + 10",
    "XACK k g 11-0 12-0",
    "XLEN k",
    "XINFO GROUPS k",
    "XINFO STREAM k",
    "XINFO CONSUMERS k g",
    "XADD k 300-0 f small",
    "XADD k MAXLEN 21 300-0 f small",
    "XDEL k 11-0 12-0",
    "XDEL k 20-0",
    "XDEL k 50-0 51-0",
    "XDEL k 11-0 12-0 13-0 14-0 15-0 16-0 17-0 18-0 19-0 20-0",
    "XDEL k 12-0 13-0 14-0 15-0 16-0 201-0 202-0 203-0 204-0 205-0",
    "XTRIM k MAXLEN 15",
    "XTRIM k MINID 16",
    "XTRIM k MINID 100-0",
    "XTRIM k MINID 101-0",
    "XTRIM k MAXLEN 10",
    "XTRIM k MAXLEN ~ 1",
    "SCAN 0",
]


@pytest.mark.parametrize("command", NEIGHBOURS)
def test_commands_on_small_entries_do_not_read_a_large_one(client: Any, command: str) -> None:
    assert client.execute_command(*command.split()) not in (None, b"")


# --- their files ----------------------------------------------------------------------------------


def test_a_large_value_leaves_the_disk_with_its_row(directory: Path) -> None:
    database = Database.open(directory, SMALL)
    try:
        put(database, {key_of(1): b"small", key_of(2): LARGE, key_of(3): b"small"})
        database.flush()
        assert len(large_value_files(directory)) == 1
        batch = Batch(database)
        batch.delete(MESSAGES, key_of(2))
        database.write(batch)
        database.compact()
        assert database.statistics()["families"]["messages"]["large_value_bytes"] == 0
    finally:
        database.close()
    Database.open(directory, SMALL).close()
    assert large_value_files(directory) == []


@pytest.mark.parametrize("where", ["missing", "short"])
def test_a_store_without_a_file_of_large_values_is_refused(directory: Path, where: str) -> None:
    database = Database.open(directory, SMALL)
    put(database, {key_of(1): LARGE, key_of(2): b"small"})
    database.close()
    (path,) = large_value_files(directory)
    if where == "missing":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size - 1)
    before = sorted(file.name for file in directory.iterdir())
    with pytest.raises(Corruption, match="large values"):
        Database.open(directory, SMALL)
    assert sorted(file.name for file in directory.iterdir()) == before


def test_a_checkpoint_has_the_large_values(database: Database, tmp_path: Path) -> None:
    put(database, {key_of(1): LARGE, key_of(2): b"small"})
    database.flush()
    database.checkpoint(tmp_path / "copy", nullcontext())
    put(database, {key_of(1): b"small"})
    database.compact()
    copy = Database.open(tmp_path / "copy", SMALL)
    try:
        assert copy.get(MESSAGES, key_of(1)) == LARGE
        assert keys(copy) == [key_of(1), key_of(2)]
        assert copy.verify() == 2
    finally:
        copy.close()
