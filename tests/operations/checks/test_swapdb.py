"""The row of swapped databases, and faults in databases with exchanged numbers."""

import pytest

from kvstream import Corruption, Store
from kvstream.layout.keys import NUMBERS_KEY, U64, key_count_row
from kvstream.meta.keyspace import decode_numbers, encode_numbers
from kvstream.operations import keyspace
from tests.operations.checks.seeding import METADATA, Reopen, damage, fault_texts

WRONG = {
    "empty": b"",
    "cut": b"\x00\x00\x00",
    "out of order": bytes.fromhex("0001 0000 0000 0001"),
    "twice the same": bytes.fromhex("0000 0001 0000 0001"),
    "its own number": bytes.fromhex("0000 0000"),
    "a number of nobody": bytes.fromhex("0000 0001 0001 0002"),
    "a number of two": bytes.fromhex("0000 0001 0001 0001"),
}


@pytest.fixture
def swapped(busy: Store) -> Store:
    """The busy store, whose database 0 was database 1 before a swap."""
    busy.engine.run(keyspace.swap, 0, 1)
    return busy


@pytest.mark.parametrize(
    "numbers", [{0: 1, 1: 0}, {0: 2, 1: 0, 2: 1}, {3: 32767, 32767: 3}, {0: 32768, 1: 65535}]
)
def test_the_row_of_swapped_databases_survives_a_round_trip(numbers: dict[int, int]) -> None:
    assert decode_numbers(encode_numbers(numbers)) == numbers
    assert decode_numbers(None) == {}


@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG.keys())
def test_a_row_that_is_no_permutation_is_corruption(value: bytes) -> None:
    with pytest.raises(Corruption, match="the row of the numbers of databases"):
        decode_numbers(value)


def test_a_swap_survives_a_restart(swapped: Store, reopen: Reopen) -> None:
    assert swapped.keys() == [b"elsewhere"]
    store = reopen(swapped)
    assert store.keys() == [b"elsewhere"]
    assert store.select(1).keys() == [b"orders", b"brief"]
    assert store.check() == []
    store.engine.run(keyspace.swap, 1, 0)
    assert store.keys() == [b"orders", b"brief"]
    assert store.engine.database.get(METADATA, NUMBERS_KEY) is None


def test_faults_are_reported_with_the_numbers_that_users_see(
    swapped: Store, reopen: Reopen
) -> None:
    store = damage(swapped, reopen, lambda rows: rows.put(METADATA, key_count_row(0), U64.pack(7)))
    (fault,) = store.check(repair=True)
    assert fault.place == "database 1"
    assert store.check() == []
    assert store.select(1).size() == 2


@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG.keys())
def test_a_repair_resets_the_numbers_of_databases_if_the_row_is_lost(
    swapped: Store, reopen: Reopen, value: bytes
) -> None:
    store = damage(swapped, reopen, lambda rows: rows.put(METADATA, NUMBERS_KEY, value))
    with pytest.raises(Corruption, match="the row of the numbers of databases"):
        store.keys()
    assert fault_texts(store.check(repair=True)) == [
        "the stored numbers of databases cannot be known"
    ]
    assert store.check() == []
    assert store.keys() == [b"orders", b"brief"]
    assert store.select(1).keys() == [b"elsewhere"]


def test_a_row_with_the_prefix_of_swapped_databases_is_unknown(busy: Store, reopen: Reopen) -> None:
    store = damage(busy, reopen, lambda rows: rows.put(METADATA, NUMBERS_KEY + b"x", b""))
    assert fault_texts(store.check(repair=True)) == ["unknown metadata row"]
    assert store.check() == []
