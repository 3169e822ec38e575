"""The records of groups and consumers."""

from collections.abc import Callable

import pytest

from kvstream import ManualClock, NoGroup, Store
from kvstream.types.ids import MAX_ID
from tests.operations.checks.seeding import (
    GROUP,
    TREES,
    Reopen,
    Rows,
    assert_mended,
    damage,
    fault_texts,
    mend,
    use,
)

Seed = Callable[[Rows], None]


def _cut_consumer(rows: Rows) -> None:
    rows.put(TREES, rows.consumer(b"bob").row, b"\x01")


def _delete_consumer(rows: Rows) -> None:
    rows.delete(TREES, rows.consumer(b"bob").row)


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (lambda rows: rows.edit_orders(groups_count=9), ["the number of groups is wrong"]),
        (lambda rows: rows.edit_group(consumers_count=9), ["the number of consumers is wrong"]),
        (
            lambda rows: rows.edit_consumer(b"ann", pending=77),
            ["the number of pending entries is wrong"],
        ),
    ],
)
def test_a_wrong_counter_is_reported_and_corrected(
    indexed: Store, reopen: Reopen, seed: Seed, expected: list[str]
) -> None:
    assert_mended(damage(indexed, reopen, seed), reopen, *expected)


@pytest.mark.parametrize(
    ("seed", "fault"),
    [
        (_cut_consumer, "the record cannot be decoded"),
        (_delete_consumer, "the owner of pending entries has no record"),
    ],
)
def test_a_consumer_without_its_record_keeps_its_pending_entries(
    either: Store, reopen: Reopen, seed: Seed, fault: str
) -> None:
    def pending(store: Store) -> list[object]:
        return [*store.stream("orders").group(GROUP).consumer("bob").pending()]

    before = pending(either)
    assert before
    expected = [fault, *["rows of no known tree"] * Rows(either).group.indexed]
    store = mend(damage(either, reopen, seed), reopen, *expected)
    assert pending(store) == before
    names = [info.name for info in store.stream("orders").group(GROUP).consumers()]
    assert names == [b"ann", b"bob"]
    use(store)


def test_an_undecodable_group_stays_reported_with_the_rows_that_may_be_its_own(
    either: Store, reopen: Reopen
) -> None:
    row, record = Rows(either).group.row, Rows(either).get(TREES, Rows(either).group.row)
    store = damage(either, reopen, lambda rows: rows.put(TREES, row, record[:9]))
    for repair in (False, True, False):
        found = store.check(repair=repair)
        assert fault_texts(found) == ["the record cannot be decoded", "rows of no known tree"]
        assert not any(fault.repaired for fault in found)
    Rows(store).put(TREES, row, record)
    store = reopen(store)
    assert store.check() == []
    use(store)


def test_trees_of_a_group_without_its_record_are_deleted(either: Store, reopen: Reopen) -> None:
    store = damage(either, reopen, lambda rows: rows.delete(TREES, rows.group.row))
    mended = store.check(repair=True)
    assert fault_texts(mended) == ["the number of groups is wrong", "rows of no known tree"]
    assert store.check() == []
    with pytest.raises(NoGroup):
        store.stream("orders").group(GROUP).pending()
    store.stream("orders").create_group(GROUP, "0")
    use(store)


def test_a_repair_keeps_seen_times_that_were_not_yet_written(
    busy: Store, reopen: Reopen, clock: ManualClock
) -> None:
    store = damage(busy, reopen, lambda rows: rows.edit_group(consumers_count=9))
    clock.advance(5000)
    ann = store.stream("orders").group(GROUP).consumer("ann")
    assert ann.history(MAX_ID) == []  # updates only the seen time, in memory
    assert fault_texts(store.check(repair=True)) == ["the number of consumers is wrong"]
    store = reopen(store)
    idle = {info.name: info.idle for info in store.stream("orders").group(GROUP).consumers()}
    assert idle == {b"ann": 0, b"bob": 5000}
