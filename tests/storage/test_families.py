"""The numbers of column families, read from MANIFEST as RocksDB writes it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import Options, Rdict

from kvstream.errors import Corruption
from kvstream.storage import files, log
from kvstream.storage.batch import Family
from kvstream.storage.database import Database
from kvstream.storage.log import LogReader
from kvstream.storage.manifest import family_names, read_families
from tests.storage import log_bytes
from tests.storage.log_bytes import part, varint, written
from tests.storage.stores import SMALL, put

NAMES = {family.name.lower(): family for family in Family}


def manifest_of(directory: Path) -> bytes:
    return (directory / (directory / "CURRENT").read_text().strip()).read_bytes()


def edit(tag: int, values: bytes = b"") -> bytes:
    return varint(tag) + values


def created(number: int, name: bytes) -> bytes:
    return edit(200, varint(number)) + edit(201, part(name))


def dropped(number: int) -> bytes:
    return edit(200, varint(number)) + edit(202)


def test_the_numbers_are_those_of_the_rows_in_the_log(database: Database) -> None:
    for family in Family:
        put(database, {family.name.encode(): b"value"}, family)
    (path,) = log_bytes.logs(database.directory)
    found = read_families(database.directory)
    rows = [row for record in LogReader().feed(path.read_bytes()) for row in record.rows()]
    assert {found[number]: key for number, _, key, _ in rows} == {
        family: family.name.encode() for family in Family
    }


def test_a_manifest_with_all_that_a_store_does_is_read(directory: Path) -> None:
    """Flushes, compactions, files of large values and deleted ones, and several openings."""
    numbers = None
    for opening in range(3):
        database = Database.open(directory, SMALL)
        numbers = numbers or read_families(directory)
        for number in range(3):
            for family in Family:
                put(database, {b"%d" % (number % 2): b"v" * 300_000}, family)
            database.flush()
            assert read_families(directory) == numbers
        database.compact()
        assert read_families(directory) == numbers, opening
        database.close()
        assert read_families(directory) == numbers
    assert b"blob" in b"".join(path.name.encode() for path in directory.iterdir())


def test_families_that_were_dropped_are_left_out(tmp_path: Path) -> None:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    database = Rdict(str(tmp_path), options)
    for name in ("one", "two", "three"):
        database.create_column_family(name, Options(raw_mode=True)).close()
    database.drop_column_family("two")
    assert family_names(manifest_of(tmp_path)) == {0: "default", 1: "one", 3: "three"}
    database.close()
    with pytest.raises(Corruption, match="lacks a column family: it has default, one, three"):
        read_families(tmp_path)


def test_a_torn_end_is_left_out() -> None:
    data = written([created(1, b"trees"), created(2, b"messages")])
    assert family_names(data) == {0: "default", 1: "trees", 2: "messages"}
    first = len(written([created(1, b"trees")]))
    for end in range(first, len(data)):
        assert family_names(data[:end]) == {0: "default", 1: "trees"}


def test_all_fields_are_stepped_over() -> None:
    large = b"\xff" * 9 + b"\x01"  # the greatest number of 64 bits
    name = part(b"name")
    fields = [
        edit(1, name),
        *[edit(tag, large) for tag in (2, 3, 4, 9, 10, 203, 300)],
        edit(5, large + name),
        edit(6, large * 2),
        edit(7, large * 3 + name * 2),
        edit(100, large * 3 + name * 2 + large * 2),
        edit(102, large * 4 + name * 2 + large * 2),
        edit(103, large * 3 + name * 2 + large * 2 + (varint(300) + name) * 2 + b"\x01"),
        edit(400, large * 3 + name * 2 + b"\x05" + name + b"\x00"),
        edit(401, large * 3 + b"\x00"),
        edit(8193, name),
        edit(1 << 14 | 1 << 13, name),
    ]
    both = b"".join(fields)
    for before in [*fields, both]:
        assert family_names(written([before + created(7, b"trees") + before])) == {
            0: "default",
            7: "trees",
        }
    for field in fields:
        with pytest.raises(Corruption, match="damaged, or of another version"):
            family_names(written([field[:-1]]))


@pytest.mark.parametrize("tag", [8, 11, 101, 104, 204, 301, 402, 4096])
def test_an_unknown_field_is_refused(tag: int) -> None:
    with pytest.raises(Corruption, match=f"unknown tag {tag}"):
        family_names(written([created(1, b"trees") + edit(tag, b"\x01")]))


def test_a_family_that_is_dropped_and_created_again() -> None:
    edits = [created(1, b"trees"), dropped(1), created(2, b"trees"), dropped(9)]
    assert family_names(written(edits)) == {0: "default", 2: "trees"}


@given(st.binary(max_size=60))
def test_any_edit_is_read_or_refused(content: bytes) -> None:
    try:
        names = family_names(written([content]))
    except Corruption:
        return
    assert all(isinstance(name, str) for name in names.values())


def test_a_damaged_manifest_is_refused(database: Database) -> None:
    data = bytearray(manifest_of(database.directory))
    data[len(data) // 2] ^= 1
    with pytest.raises(Corruption):
        family_names(bytes(data))


def test_the_manifest_may_be_replaced_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current, names = tmp_path / "CURRENT", [*NAMES]
    edits = [created(number, name.encode()) for number, name in enumerate(names, 1)]
    (tmp_path / "MANIFEST-2").write_bytes(written(edits))
    current.write_bytes(b"MANIFEST-1\n")
    read = files.read

    def replace(path: Path) -> bytes:
        content = read(path)
        if content == b"MANIFEST-1\n":
            current.write_bytes(b"MANIFEST-2\n")
        return content

    monkeypatch.setattr(files, "read", replace)
    assert [*read_families(tmp_path).values()] == [NAMES[name] for name in names]
    (tmp_path / "MANIFEST-2").unlink()
    with pytest.raises(FileNotFoundError):
        read_families(tmp_path)


def test_it_does_not_need_the_compiled_twin(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read_families(database.directory)
    monkeypatch.setattr(log, "twin", None)
    assert read_families(database.directory) == found
