"""The rows of idempotent producers."""

from collections.abc import Callable
from struct import Struct

import pytest

from kvstream import Store
from kvstream.layout.keys import U64
from tests.operations.checks.seeding import (
    Reopen,
    Rows,
    assert_mended,
    damage,
    fault_texts,
    mend,
    use,
)

Seed = Callable[[Rows], None]
WEB = (3).to_bytes(4) + b"web"
BOUNDS, IID = Struct(">QQ"), Struct(">16sQQ")
"""Return the oldest and next order of a producer; entry, stamp and order of an idempotent ID."""


def _order(number: int) -> bytes:
    return b"O" + WEB + U64.pack(number)


def _lose_order(rows: Rows) -> None:
    rows.delete_from(rows.orders.idmp_tree, _order(0))


def _spoil_order(rows: Rows) -> None:
    rows.put_in(rows.orders.idmp_tree, _order(0), U64.pack(1) + b"another")


def _add_order(rows: Rows) -> None:
    rows.put_in(rows.orders.idmp_tree, _order(9), U64.pack(1) + b"another")


def _add_order_of_no_producer(rows: Rows) -> None:
    suffix = b"O" + (4).to_bytes(4) + b"none" + U64.pack(0)
    rows.put_in(rows.orders.idmp_tree, suffix, U64.pack(1) + b"1")


def _lose_producer(rows: Rows) -> None:
    rows.delete_from(rows.orders.idmp_tree, b"Pweb")


def _spoil_producer(rows: Rows) -> None:
    rows.put_in(rows.orders.idmp_tree, b"Pweb", BOUNDS.pack(1, 1))


def _cut_producer(rows: Rows) -> None:
    rows.put_in(rows.orders.idmp_tree, b"Pweb", b"")


def _add_producer(rows: Rows) -> None:
    rows.put_in(rows.orders.idmp_tree, b"Pnone", BOUNDS.pack(0, 1))


def _add_malformed_rows(rows: Rows) -> None:
    for suffix in (b"", b"?", b"I\x00", b"I\xff\xff\xff\xffweb", b"O" + WEB + b"short"):
        rows.put_in(rows.orders.idmp_tree, suffix, b"")


def _give_one_order_twice(rows: Rows) -> None:
    tree = rows.orders.idmp_tree
    value = dict(rows.tree(tree))[b"I" + WEB + b"1"]
    rows.put_in(tree, b"I" + WEB + b"1again", value)
    rows.edit_orders(iids=rows.orders.iids + 1)


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (lambda rows: rows.edit_orders(pids=9), ["the number of producers is wrong"]),
        (lambda rows: rows.edit_orders(iids=9), ["the number of idempotent IDs is wrong"]),
        (_lose_order, ["an order row is missing"]),
        (_spoil_order, ["an order row is wrong"]),
        (_add_order, ["an order row of no idempotent ID"]),
        (_add_order_of_no_producer, ["an order row of no idempotent ID"]),
        (_lose_producer, ["a producer has no row"]),
        (_spoil_producer, ["a producer's bounds are wrong"]),
        (_cut_producer, ["a producer's bounds are wrong"]),
        (_add_producer, ["a producer without idempotent IDs"]),
        (_add_malformed_rows, ["a row that is no producer's"]),
        (
            _give_one_order_twice,
            [
                "two idempotent IDs have one order",
                "a producer's bounds are wrong",
                "an order row is missing",
            ],
        ),
    ],
)
def test_a_wrong_row_or_counter_is_reported_and_rebuilt_from_the_idempotent_ids(
    busy: Store, reopen: Reopen, seed: Seed, expected: list[str]
) -> None:
    first = busy.stream("orders").add({"n": "again"}, idmp=("web", 1))
    store = mend(damage(busy, reopen, seed), reopen, *expected)
    assert store.stream("orders").add({"n": "again"}, idmp=("web", 1)) == first
    use(store)


def test_an_idempotent_id_that_cannot_be_decoded_stays_reported(
    busy: Store, reopen: Reopen
) -> None:
    suffix = b"I" + WEB + b"2"
    value = dict(Rows(busy).tree(Rows(busy).orders.idmp_tree))[suffix]
    store = damage(busy, reopen, lambda rows: rows.put_in(rows.orders.idmp_tree, suffix, b"?"))
    what = "an idempotent ID cannot be decoded"
    assert what in fault_texts(store.check(repair=True))
    (fault,) = store.check()
    assert fault.message.startswith(what)
    damage(store, reopen, lambda rows: rows.put_in(rows.orders.idmp_tree, suffix, value)).check(
        repair=True
    )


def test_a_producer_with_only_undecodable_ids_is_removed(busy: Store, reopen: Reopen) -> None:
    suffix = b"I" + (3).to_bytes(4) + b"app1"
    value = dict(Rows(busy).tree(Rows(busy).orders.idmp_tree))[suffix]
    store = damage(busy, reopen, lambda rows: rows.put_in(rows.orders.idmp_tree, suffix, b"?"))
    store.check(repair=True)
    assert fault_texts(store.check()) == ["an idempotent ID cannot be decoded"]
    assert store.stream("orders").info().pids_tracked == 1
    damage(store, reopen, lambda rows: rows.put_in(rows.orders.idmp_tree, suffix, value)).check(
        repair=True
    )


def test_a_lost_idempotent_id_is_not_counted(busy: Store, reopen: Reopen) -> None:
    store = damage(
        busy, reopen, lambda rows: rows.delete_from(rows.orders.idmp_tree, b"I" + WEB + b"2")
    )
    expected = [
        "a producer's bounds are wrong",
        "an order row of no idempotent ID",
        "the number of idempotent IDs is wrong",
    ]
    assert_mended(store, reopen, *expected)


def test_producers_are_sound_while_ids_expire_and_overflow(store: Store, clock: object) -> None:
    stream = store.stream("s")
    stream.add({"a": "b"})
    stream.configure(idmp_duration=10, idmp_maxsize=3)
    for number in range(30):
        stream.add({"n": number}, idmp=("p" * (number % 3 + 1), number))
        assert store.check() == []
