"""MANIFEST written anew: RocksDB opens it, and reads what its tables hold."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream.storage.batch import Family
from kvstream.storage.database import Database
from kvstream.storage.log import BLOCK, FragmentReader, join, put_varint, take_varint
from kvstream.storage.manifest import (
    CURRENT,
    Manifest,
    newer,
    parse_manifest,
    read_manifest,
)
from tests.storage.stores import EVERYTHING, SMALL, put


class Whole(FragmentReader[bytes]):
    """Reads payloads as they are."""

    def _payload(self, payload: bytes, end: int) -> bytes:
        return payload


SIZES = st.integers(0, 40) | st.integers(BLOCK - 40, BLOCK + 40) | st.just(3 * BLOCK)


@given(st.lists(SIZES, max_size=6))
def test_what_is_joined_is_read_as_it_was(sizes: list[int]) -> None:
    payloads = [os.urandom(size) for size in sizes]
    assert Whole().feed(join(payloads)) == payloads


@given(st.integers(0, (1 << 64) - 1))
def test_varints_are_read_as_they_were(number: int) -> None:
    data = put_varint(number)
    assert take_varint(data, 0, 10) == (number, len(data))


@pytest.fixture
def filled(directory: Path) -> Path:
    """A store with tables at several levels, deletions, and a file of large values."""
    database = Database.open(directory, SMALL)
    for number in range(40):
        for family in Family:
            put(database, {b"%d" % (number % 7): os.urandom(3000)}, family)
        if number == 20:
            put(database, {b"large": os.urandom(400_000)}, Family.MESSAGES)
        if number % 10 == 9:
            database.flush()
    database.close()
    return directory


def rows_of(directory: Path) -> list[tuple[bytes, bytes]]:
    """Return the rows of all families, read by RocksDB."""
    database = Database.open(directory, replace(SMALL, read_only=True))
    try:
        return [row for family in Family for row in database.scan(family, *EVERYTHING)]
    finally:
        database.close()


def rewrite(directory: Path, manifest: Manifest) -> None:
    (directory / (directory / CURRENT).read_text().strip()).write_bytes(manifest.encode())


def test_a_manifest_that_is_written_anew_has_the_same_tables_and_rows(filled: Path) -> None:
    manifest = parse_manifest(read_manifest(filled))
    assert {each.name for each in manifest.tables} == {path.name for path in filled.glob("*.sst")}
    assert {each.name for each in manifest.blobs} >= {path.name for path in filled.glob("*.blob")}
    again = parse_manifest(manifest.encode())  # it has the tables of each family together
    tables = {each.number: each for each in manifest.tables}
    assert {each.number: each for each in again.tables} == tables
    with_rows = rows_of(filled)
    rewrite(filled, manifest)
    assert rows_of(filled) == with_rows != []


def test_the_place_of_a_table_is_all_that_newer_changes(filled: Path) -> None:
    tables = parse_manifest(read_manifest(filled)).tables
    assert newer(tables, []) == tables
    for before, after in zip(tables, newer(tables, tables), strict=True):
        assert after.epoch == before.epoch + max(each.epoch for each in tables)
        assert after.field.values[:7] == before.field.values[:7]
        assert newer([after], [])[0] == after


def test_without_tables_there_are_no_rows(filled: Path) -> None:
    manifest = parse_manifest(read_manifest(filled))
    rewrite(filled, Manifest(manifest.families, [], [], manifest.rest))
    assert rows_of(filled) == []
