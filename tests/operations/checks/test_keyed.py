"""Rows of the order by key: each held entry can become ready, and every busy key has a cause."""

from collections.abc import Callable

import pytest

from kvstream import Corruption, Store
from kvstream.layout.keys import qualified
from kvstream.meta.keyed import ENTRY, HELD, IS_BUSY, KEY, Counts, key_of_value
from kvstream.meta.runs import HELD_MS
from kvstream.operations.queues import policy
from tests.operations.checks.seeding import Reopen, Rows, damage, fault_texts, small_trees

A = key_of_value(b"a")
WRONG = "a row of the order by key is wrong"
MISSING = "a row of the order by key is missing"
STRAY = "a row of the order by key belongs to no entry"


@pytest.fixture(params=["in memory", "indexed"])
def ordered(store: Store, request: pytest.FixtureRequest) -> Store:
    """A store with one busy entry of key ``a``, three that are held, and a busy one of ``b``."""

    def fill() -> None:
        stream = store.stream("orders")
        stream.add_many([{"user": user} for user in "aaaba"])
        group = stream.create_group("billing", start="0")
        rules = {"order_by": b"user"}
        store.engine.run(policy.set_policy, qualified(0, b"orders"), b"billing", rules)
        assert len(group.consumer("ann").read()) == 2

    if request.param == "indexed":
        with small_trees(store, 1):
            fill()
        assert Rows(store).group.indexed
    else:
        fill()
    return store


def tree(rows: Rows) -> int:
    assert rows.group.policy is not None
    return rows.group.policy.keyed_tree


def find_held(rows: Rows) -> list[bytes]:
    return [eid for run in rows.runs if run.time_ms == HELD_MS for eid in run.ids]


def lose_entry(rows: Rows) -> None:
    rows.delete_from(tree(rows), ENTRY + find_held(rows)[0])


def lose_held(rows: Rows) -> None:
    rows.delete_from(tree(rows), HELD + A + find_held(rows)[0])


def lose_counts(rows: Rows) -> None:
    rows.delete_from(tree(rows), KEY + A)


def miscount(rows: Rows) -> None:
    rows.put_in(tree(rows), KEY + A, Counts(7, 3, find_held(rows)[0]).encode())


def begin_too_late(rows: Rows) -> None:
    rows.put_in(tree(rows), KEY + A, Counts(1, 3, find_held(rows)[1]).encode())


def point_back(rows: Rows) -> None:
    first, second, _ = find_held(rows)
    rows.put_in(tree(rows), HELD + A + second, A + first)


def damage_counts(rows: Rows) -> None:
    rows.put_in(tree(rows), KEY + A, b"?")


def damage_entry(rows: Rows) -> None:
    rows.put_in(tree(rows), ENTRY + find_held(rows)[0], b"?")


def call_it_busy(rows: Rows) -> None:
    rows.put_in(tree(rows), ENTRY + find_held(rows)[0], IS_BUSY + A)


def add_an_entry(rows: Rows) -> None:
    rows.put_in(tree(rows), ENTRY + b"\1" * 16, IS_BUSY + A)


def add_a_key(rows: Rows) -> None:
    rows.put_in(tree(rows), KEY + key_of_value(b"z"), Counts(1).encode())


def forget_busy(rows: Rows) -> None:
    rows.put_in(tree(rows), KEY + A, Counts(0, 3, find_held(rows)[0]).encode())


def add_what(rows: Rows) -> None:
    rows.put_in(tree(rows), b"what is this", b"")


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lose_entry, MISSING),
        (lose_held, MISSING),
        (lose_counts, MISSING),
        (miscount, WRONG),
        (begin_too_late, WRONG),
        (point_back, WRONG),
        (damage_counts, WRONG),
        (damage_entry, WRONG),
        (call_it_busy, WRONG),
        (add_an_entry, STRAY),
        (add_a_key, STRAY),
        (add_what, STRAY),
    ],
)
def test_damage_is_found_and_repaired(
    ordered: Store, reopen: Reopen, spoil: Callable[[Rows], None], kind: str
) -> None:
    store = damage(ordered, reopen, spoil)
    assert fault_texts(store.check(repair=True)) == [kind]
    assert store.check() == []
    group = store.stream("orders").group("billing")
    group.delete_consumer("ann")
    seen = []
    while found := group.consumer("bob").read():
        assert len(found) == 1
        seen += found
        group.ack(found[0].id)
    assert [entry.fields[b"user"] for entry in seen] == [b"a"] * 3


def test_one_repair_mends_the_runs_and_the_rows_that_follow_from_them(
    ordered: Store, reopen: Reopen
) -> None:
    def repeat_a_held_entry(rows: Rows) -> None:
        busy = rows.runs[0]
        rows.put_run(busy._replace(packed=find_held(rows)[1], time_ms=HELD_MS + 1))

    store = damage(ordered, reopen, repeat_a_held_entry)
    found = store.check(repair=True)
    left = [fault for fault in found if not fault.repaired]
    assert fault_texts(store.check()) == fault_texts(left)


def test_entries_held_in_a_group_without_order_become_ready(ordered: Store, reopen: Reopen) -> None:
    def forget_order(rows: Rows) -> None:
        rows.edit_group(policy=None)
        rows.delete_from(tree_before, *(suffix for suffix, _ in rows.tree(tree_before)))

    tree_before = tree(Rows(ordered))
    store = damage(ordered, reopen, forget_order)
    assert fault_texts(store.check(repair=True)) == ["entries are held in a group without order"]
    assert store.check() == []
    assert len(store.stream("orders").group("billing").consumer("bob").read()) == 3


def test_a_key_with_held_entries_and_free_room_is_reported(ordered: Store, reopen: Reopen) -> None:
    def raise_most(rows: Rows) -> None:
        found = rows.group.policy
        assert found is not None
        rows.edit_group(policy=found.with_rules({"max_per_key": 2}))

    store = damage(ordered, reopen, raise_most)
    assert fault_texts(store.check()) == ["a key has held entries although it has room"]
    busy = store.stream("orders").group("billing").pending_range(consumer="ann")
    store.stream("orders").group("billing").ack(busy[0].id)
    assert store.check() == []


def test_a_held_row_that_points_back_is_damage(ordered: Store, reopen: Reopen) -> None:
    """A change of the policy looked for the next held entry for ever."""
    store = damage(ordered, reopen, point_back)
    group = store.stream("orders").group("billing")
    with pytest.raises(Corruption, match="out of order"):
        group.set_policy(order_by="user", max_per_key=4)
    store.check(repair=True)
    group.set_policy(order_by="user", max_per_key=4)
    assert len(group.consumer("bob").read()) == 3
    assert store.check() == []


@pytest.mark.parametrize("spoil", [lose_counts, forget_busy])
def test_entries_that_were_not_counted_are_damage(
    ordered: Store, reopen: Reopen, spoil: Callable[[Rows], None]
) -> None:
    """A count below 0 was an error of struct."""
    store = damage(ordered, reopen, spoil)
    group = store.stream("orders").group("billing")
    with pytest.raises(Corruption):
        group.ack([each.id for each in group.pending_range()])
    store.check(repair=True)
    assert store.check() == []
    group.delete_consumer("ann")
