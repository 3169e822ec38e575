"""Rows without an owner, and numbers with two owners."""

from collections.abc import Callable

import pytest

from kvstream import Corruption, Store
from kvstream.layout.keys import (
    ALLOCATOR_KEY,
    COUNTED_MAX,
    U64,
    message_prefix,
    qualified,
    tree_prefix,
)
from tests.operations.checks.seeding import (
    MESSAGES,
    METADATA,
    TREES,
    Reopen,
    Rows,
    assert_mended,
    damage,
    fault_texts,
)

Seed = Callable[[Rows], None]
NOBODYS = 1 << 40
"""A number that was never allocated."""
ID = bytes(16)


def _add_entries_of_no_stream(rows: Rows) -> None:
    prefix = message_prefix(qualified(3, b"nobody's"), NOBODYS)
    for number in range(100):
        rows.put(MESSAGES, prefix + U64.pack(number) * 2, b"\x01\x81\xa1a\xa1b")


def _add_entries_of_the_same_generation(rows: Rows) -> None:
    prefix = message_prefix(qualified(0, b"nobody's"), rows.orders.generation)
    rows.put(MESSAGES, prefix + ID, b"\x01\x81\xa1a\xa1b")


def _add_entries_of_another_database(rows: Rows) -> None:
    prefix = message_prefix(qualified(3, b"orders"), rows.orders.generation)
    rows.put(MESSAGES, prefix + ID, b"\x01\x81\xa1a\xa1b")


def _add_entries_of_an_earlier_generation(rows: Rows) -> None:
    prefix = message_prefix(rows.orders.name, NOBODYS)
    rows.put(MESSAGES, prefix + ID, b"\x01\x81\xa1a\xa1b")


def _add_malformed_messages(rows: Rows) -> None:
    for key in (b"\x00", b"\x00\x00\x00\x00\x00\x09short", b"\xff" * 20):
        rows.put(MESSAGES, key, b"")


def _add_tree(rows: Rows) -> None:
    for number in range(100):
        rows.put_in(NOBODYS, U64.pack(number), b"")


def _add_tree_of_a_generation(rows: Rows) -> None:
    rows.put_in(rows.orders.generation, b"", b"")


def _add_malformed_tree_rows(rows: Rows) -> None:
    for key in (b"\x00", b"\x00" * 7):
        rows.put(TREES, key, b"")


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (_add_entries_of_no_stream, ["entries of no stream"]),
        (_add_entries_of_the_same_generation, ["entries of no stream"]),
        (_add_entries_of_another_database, ["entries of no stream"]),
        (_add_entries_of_an_earlier_generation, ["entries of no stream"]),
        (_add_malformed_messages, ["unknown message row"]),
        (_add_tree, ["rows of no known tree"]),
        (_add_tree_of_a_generation, ["rows of no known tree"]),
        (_add_malformed_tree_rows, ["unknown tree row"]),
    ],
)
def test_rows_without_an_owner_are_reported_and_deleted(
    busy: Store, reopen: Reopen, seed: Seed, expected: list[str]
) -> None:
    assert_mended(damage(busy, reopen, seed), reopen, *expected)


def test_the_number_of_rows_without_an_owner_is_reported(busy: Store, reopen: Reopen) -> None:
    store = damage(busy, reopen, _add_tree)
    (fault,) = store.check(repair=True)
    assert fault.place == "the store"
    assert fault.message == f"rows of no known tree: 100 under {tree_prefix(NOBODYS).hex()}"


def test_entries_of_a_renamed_stream_belong_to_it(busy: Store, reopen: Reopen) -> None:
    busy.rename("orders", "sales")
    busy.rename("brief", "orders")
    busy.rename("sales", "brief")
    assert busy.check() == []
    assert reopen(busy).check() == []


def test_entries_of_a_stream_missing_from_scan_belong_to_it(busy: Store, reopen: Reopen) -> None:
    length = len(busy.stream("orders"))

    def lose_listing(rows: Rows) -> None:
        listing = rows.under(METADATA, b"N")
        rows.delete(METADATA, *(key for key, _ in listing))

    store = damage(busy, reopen, lose_listing)
    assert fault_texts(store.check(repair=True)) == ["the row for SCAN is missing"] * 3
    assert len(store.stream("orders").range()) == length


def test_a_tree_of_two_owners_stays_reported(busy: Store, reopen: Reopen) -> None:
    own = Rows(busy).orders.idmp_tree
    other = Rows(busy).orders.nodes_tree
    store = damage(busy, reopen, lambda rows: rows.edit_orders(idmp_tree=other))
    found = store.check()
    assert ("tree ID used twice", False) in [
        (fault.message.split(":")[0], fault.repaired) for fault in found
    ]
    damage(store, reopen, lambda rows: rows.edit_orders(idmp_tree=own))


@pytest.mark.parametrize("number", [0, COUNTED_MAX])
def test_a_stream_without_the_number_of_its_nodes_is_reported_and_keeps_them(
    busy: Store, reopen: Reopen, number: int
) -> None:
    orders = Rows(busy).orders
    record, nodes = orders.encode(), Rows(busy).nodes
    store = damage(busy, reopen, lambda rows: rows.edit_orders(nodes_tree=number))
    with pytest.raises(Corruption, match="impossible numbers"):
        store.stream("orders").range()
    assert "the record cannot be decoded" in fault_texts(store.check(repair=True))
    store = damage(store, reopen, lambda rows: rows.put(METADATA, orders.row, record))
    assert Rows(store).nodes == nodes


def test_numbers_far_apart_are_recognised(busy: Store, reopen: Reopen) -> None:
    def allocate_far_away(rows: Rows) -> None:
        rows.put(METADATA, ALLOCATOR_KEY, U64.pack(1 << 50))

    store = damage(busy, reopen, allocate_far_away)
    store.stream("far").create_group("g").consumer("c").read()
    assert store.check() == []
    assert Rows(store).stream(b"far").generation >= 1 << 50
