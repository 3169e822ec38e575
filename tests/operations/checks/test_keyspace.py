"""Records, the order of SCAN, the numbers of keys, the order of expiry, the allocator."""

from collections.abc import Callable

import msgpack
import pytest

from kvstream import Corruption, Store
from kvstream.layout.keys import ALLOCATOR_KEY, U64, expiry_row, key_count_row, scan_row
from tests.operations.checks.seeding import (
    METADATA,
    Reopen,
    Rows,
    assert_mended,
    damage,
    fault_texts,
    use,
)

Seed = Callable[[Rows], None]


def _delete_scan_row(rows: Rows) -> None:
    rows.delete(METADATA, scan_row(0, rows.orders.generation))


def _misname_scan_row(rows: Rows) -> None:
    rows.put(METADATA, scan_row(0, rows.orders.generation), b"another")


def _add_scan_row(rows: Rows) -> None:
    rows.put(METADATA, scan_row(0, 9999), b"orders")


def _miscount_keys(rows: Rows) -> None:
    rows.put(METADATA, key_count_row(0), U64.pack(7))


def _lose_key_count(rows: Rows) -> None:
    rows.delete(METADATA, key_count_row(1))


def _cut_key_count(rows: Rows) -> None:
    rows.put(METADATA, key_count_row(0), b"\x01")


def _delete_expiry_row(rows: Rows) -> None:
    brief = rows.stream(b"brief")
    rows.delete(METADATA, expiry_row(brief.expire_at, brief.name))


def _add_expiry_row(rows: Rows) -> None:
    rows.put(METADATA, expiry_row(1 << 60, rows.orders.name), b"")


def _set_back_allocator(rows: Rows) -> None:
    rows.put(METADATA, ALLOCATOR_KEY, U64.pack(3))


def _lose_allocator(rows: Rows) -> None:
    rows.delete(METADATA, ALLOCATOR_KEY)


def _add_unknown_row(rows: Rows) -> None:
    rows.put(METADATA, b"Q what is this", b"?")


def _add_malformed_rows(rows: Rows) -> None:
    for key in (b"Ax", b"C\x00", b"N\x00\x00", b"S", b"X\x00\x00"):
        rows.put(METADATA, key, b"")


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (_delete_scan_row, ["the row for SCAN is missing"]),
        (
            _misname_scan_row,
            ["a row for SCAN of no such key", "the row for SCAN is missing"],
        ),
        (_add_scan_row, ["a row for SCAN of no such key"]),
        (_miscount_keys, ["the number of keys is wrong"]),
        (_lose_key_count, ["the number of keys is wrong"]),
        (_cut_key_count, ["the number of keys is wrong"]),
        (_delete_expiry_row, ["the row for expiry is missing"]),
        (_add_expiry_row, ["a row for expiry of no such key"]),
        (_set_back_allocator, ["the allocator is behind"]),
        (_lose_allocator, ["the allocator is behind"]),
        (_add_unknown_row, ["unknown metadata row"]),
        (_add_malformed_rows, ["unknown metadata row"]),
    ],
)
def test_a_wrong_row_is_reported_and_repaired(
    busy: Store, reopen: Reopen, seed: Seed, expected: list[str]
) -> None:
    store = assert_mended(damage(busy, reopen, seed), reopen, *expected)
    assert store.keys() == [b"orders", b"brief"]
    assert store.size() == 2
    assert store.select(1).size() == 1


def test_an_undecodable_allocator_is_set_above_all_numbers_in_use(
    busy: Store, reopen: Reopen
) -> None:
    store = damage(busy, reopen, lambda rows: rows.put(METADATA, ALLOCATOR_KEY, b"\x01"))
    store = assert_mended(
        store, reopen, "the allocator cannot be decoded", "the allocator is behind"
    )
    in_use = Rows(store).orders.generation
    store.stream("new").add({"a": "b"})
    assert Rows(store).stream(b"new").generation > in_use


def test_a_repaired_key_expires_on_time(busy: Store, reopen: Reopen) -> None:
    store = damage(busy, reopen, _delete_expiry_row)
    store.check(repair=True)
    assert store.ttl("brief") is not None
    store.expire("brief", -1)
    assert store.keys() == [b"orders"]


def test_a_record_in_another_encoding_is_rewritten_in_the_usual_one(
    busy: Store, reopen: Reopen
) -> None:
    def write_names_at_length(rows: Rows) -> None:
        record, names = rows.get(METADATA, rows.orders.row), rows.orders.names
        usual = msgpack.packb(names, use_bin_type=False)
        long_head = b"\xdc" + len(names).to_bytes(2)
        rows.put(METADATA, rows.orders.row, record.removesuffix(usual) + long_head + usual[1:])

    store = damage(busy, reopen, write_names_at_length)
    assert_mended(store, reopen, "the record has bytes of no meaning")


def _cut_record(rows: Rows) -> None:
    record = rows.get(METADATA, rows.orders.row)
    rows.put(METADATA, rows.orders.row, record[:50])


def _make_another_kind(rows: Rows) -> None:
    record = rows.get(METADATA, rows.orders.row)
    rows.put(METADATA, rows.orders.row, b"\x63" + record[1:])


def _misplace_prefix(rows: Rows) -> None:
    rows.edit_orders(prefix=rows.orders.prefix[:-1] + b"\xfe")


@pytest.mark.parametrize("seed", [_cut_record, _make_another_kind, _misplace_prefix])
def test_an_undecodable_record_stays_reported_and_its_rows_are_kept(
    busy: Store, reopen: Reopen, seed: Seed
) -> None:
    before = Rows(busy).orders
    record = Rows(busy).get(METADATA, before.row)
    store = damage(busy, reopen, seed)
    expected = ["the record cannot be decoded", "entries of no stream", "rows of no known tree"]
    found = store.check(repair=True)
    assert fault_texts(found) == expected
    assert not any(fault.repaired for fault in found)
    assert fault_texts(store.check()) == expected
    assert store.size() == 2

    Rows(store).put(METADATA, before.row, record)  # as if from a backup
    store = reopen(store)
    assert store.check() == []
    use(store)


def test_a_damaged_record_does_not_affect_other_streams(busy: Store, reopen: Reopen) -> None:
    row, record = Rows(busy).orders.row, Rows(busy).get(METADATA, Rows(busy).orders.row)
    store = damage(busy, reopen, _cut_record)
    with pytest.raises(Corruption):
        store.stream("orders").add({"a": "b"})
    assert len(store.stream("brief")) == 6
    assert store.delete("brief") == 1
    found = store.check()
    assert {fault.place for fault in found} == {"database 0, stream 'orders'", "the store"}
    Rows(store).put(METADATA, row, record)


def test_rows_of_a_stream_without_record_are_deleted(busy: Store, reopen: Reopen) -> None:
    store = damage(busy, reopen, lambda rows: rows.delete(METADATA, rows.orders.row))
    expected = [
        "a row for SCAN of no such key",
        "the number of keys is wrong",
        "entries of no stream",
        "rows of no known tree",
    ]
    assert fault_texts(store.check(repair=True)) == expected
    assert store.check() == []
    assert store.keys() == [b"brief"]
    assert len(store.stream("orders").range()) == 0
