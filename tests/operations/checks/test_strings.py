"""Rows of plain strings: their records, and the rows common to all keys."""

from collections.abc import Callable

import pytest

from kvstream import Corruption, Store
from kvstream.layout.keys import expiry_row, key_count_row, message_prefix, scan_row, stream_row
from kvstream.meta.strings import StringMeta
from kvstream.operations import strings
from tests.operations.checks.seeding import (
    MESSAGES,
    METADATA,
    Reopen,
    Rows,
    assert_mended,
    damage,
    fault_texts,
)

LOCK = b"\x00\x00lock"
FAR = 4_000_000_000_000

Seed = Callable[[Rows], None]


@pytest.fixture
def locked(busy: Store) -> Store:
    """The busy store, with a string that expires."""
    busy.engine.run(strings.put, LOCK, b"mine", FAR)
    return busy


def lock_of(rows: Rows) -> StringMeta:
    return StringMeta.decode(LOCK, rows.get(METADATA, stream_row(LOCK)))


def _delete_scan_row(rows: Rows) -> None:
    rows.delete(METADATA, scan_row(0, lock_of(rows).generation))


def _delete_expiry_row(rows: Rows) -> None:
    rows.delete(METADATA, expiry_row(FAR, LOCK))


def _add_scan_row(rows: Rows) -> None:
    rows.put(METADATA, scan_row(0, 9999), b"lock")


def _add_expiry_row(rows: Rows) -> None:
    rows.put(METADATA, expiry_row(FAR + 1, LOCK), b"")


def _add_message(rows: Rows) -> None:
    prefix = message_prefix(LOCK, lock_of(rows).generation)
    rows.put(MESSAGES, prefix + bytes(16), b"\x01\x80")


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (_delete_scan_row, ["the row for SCAN is missing"]),
        (_delete_expiry_row, ["the row for expiry is missing"]),
        (_add_scan_row, ["a row for SCAN of no such key"]),
        (_add_expiry_row, ["a row for expiry of no such key"]),
        (_add_message, ["entries of no stream"]),
    ],
)
def test_a_wrong_row_of_a_string_is_reported_and_repaired(
    locked: Store, reopen: Reopen, seed: Seed, expected: list[str]
) -> None:
    store = assert_mended(damage(locked, reopen, seed), reopen, *expected)
    assert store.keys() == [b"orders", b"brief", b"lock"]
    assert store.size() == 3
    assert store.engine.run(strings.get, LOCK) == b"mine"


def test_rows_of_a_string_without_record_are_deleted(locked: Store, reopen: Reopen) -> None:
    store = damage(locked, reopen, lambda rows: rows.delete(METADATA, stream_row(LOCK)))
    expected = [
        "the number of keys is wrong",
        "a row for SCAN of no such key",
        "a row for expiry of no such key",
    ]
    assert sorted(fault_texts(store.check(repair=True))) == sorted(expected)
    assert store.check() == []
    assert store.keys() == [b"orders", b"brief"]


@pytest.mark.parametrize("cut", [0, 1, 5, 17])
def test_an_undecodable_string_stays_reported(locked: Store, reopen: Reopen, cut: int) -> None:
    record = Rows(locked).get(METADATA, stream_row(LOCK))
    store = damage(locked, reopen, lambda rows: rows.put(METADATA, stream_row(LOCK), record[:cut]))
    assert fault_texts(store.check(repair=True)) == ["the record cannot be decoded"]
    assert fault_texts(store.check()) == ["the record cannot be decoded"]
    with pytest.raises(Corruption, match="the record of key b'lock' is damaged"):
        store.engine.run(strings.get, LOCK)
    assert store.size() == 3
    assert Rows(store).get(METADATA, key_count_row(0))[-1] == 3
    Rows(store).put(METADATA, stream_row(LOCK), record)


def test_the_rows_of_a_flushed_string_are_swept(locked: Store, reopen: Reopen) -> None:
    other = locked.select(3)
    with locked.transaction():
        for number in range(150):
            locked.engine.run(strings.put, b"\x00\x03%d" % number, b"v", FAR)
    assert other.flush() == 150
    store = reopen(locked)
    assert store.check() == []
    assert store.select(3).keys() == []
    assert store.keys() == [b"orders", b"brief", b"lock"]
