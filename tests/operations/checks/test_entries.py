"""Message rows, and the counters and bounds of them in the stream's record."""

from collections.abc import Callable

import pytest

from kvstream import Store, StreamID
from kvstream.types.ids import MAX_ID, MIN_ID
from tests.operations.checks.seeding import (
    MESSAGES,
    Reopen,
    Rows,
    assert_mended,
    damage,
    fault_texts,
    mend,
    use,
)

Seed = Callable[[Rows], None]


def _lower_first(rows: Rows) -> None:
    rows.edit_orders(first=StreamID.unpack(rows.messages()[2][0][-16:]))


def _raise_first(rows: Rows) -> None:
    rows.edit_orders(first=StreamID.unpack(rows.live()[5][0][-16:]))


def _lose_first_entry(rows: Rows) -> None:
    rows.delete(MESSAGES, rows.live()[0][0])


def _add_row_above(rows: Rows) -> None:
    above = StreamID(rows.orders.last.ms + 5, 0)
    rows.put(MESSAGES, rows.orders.prefix + above.packed, rows.live()[0][1])


def _add_row_of_another_length(rows: Rows) -> None:
    rows.put(MESSAGES, rows.live()[3][0] + b"extra", b"?")


def _count_too_few_unswept(rows: Rows) -> None:
    rows.edit_orders(unswept=rows.orders.unswept - 1)


def _raise_swept(rows: Rows) -> None:
    rows.edit_orders(swept=StreamID.unpack(rows.messages()[3][0][-16:]))


def _raise_swept_into_live_entries(rows: Rows) -> None:
    rows.edit_orders(swept=rows.orders.last)


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (lambda rows: rows.edit_orders(length=3), ["the length is wrong"]),
        (lambda rows: rows.edit_orders(length=300, entries_added=400), ["the length is wrong"]),
        (lambda rows: rows.edit_orders(length=0), ["the length is wrong"]),
        (_lower_first, ["the first live ID is wrong"]),
        (_raise_first, ["the first live ID is wrong"]),
        (lambda rows: rows.edit_orders(first=MIN_ID), ["the first live ID is wrong"]),
        (_count_too_few_unswept, ["too few entries wait for the sweep"]),
        (_raise_swept, ["the bound of the sweep is too high"]),
        (_raise_swept_into_live_entries, ["the bound of the sweep is too high"]),
        (
            lambda rows: rows.edit_orders(entries_added=2),
            ["the number of entries added is too small"],
        ),
        (
            lambda rows: rows.edit_orders(max_deleted=StreamID(1 << 50, 0)),
            ["the greatest deleted ID lies above the last"],
        ),
        (_add_row_of_another_length, ["a row that is no entry"]),
    ],
)
def test_a_wrong_counter_or_bound_is_reported_and_recomputed_from_the_rows(
    busy: Store, reopen: Reopen, seed: Seed, expected: list[str]
) -> None:
    before = busy.stream("orders").range()
    store = mend(damage(busy, reopen, seed), reopen, *expected)
    assert store.stream("orders").range() == before
    use(store)


def test_a_last_id_below_an_entry_is_raised_so_that_ids_go_on_growing(
    busy: Store, reopen: Reopen
) -> None:
    top = busy.stream("orders").revrange(count=1)[0].id
    store = damage(busy, reopen, lambda rows: rows.edit_orders(last=StreamID(5, 5)))
    found = store.check(repair=True)
    assert fault_texts(found) == ["a row lies above the last ID"]
    assert store.check() == []
    assert store.stream("orders").info().last_generated_id == top
    use(store)


def test_a_row_above_the_last_id_is_the_last_entry(busy: Store, reopen: Reopen) -> None:
    length = len(busy.stream("orders"))
    store = damage(busy, reopen, _add_row_above)
    assert store.check() == []
    assert len(store.stream("orders")) == length + 1
    use(store)


def test_a_row_above_the_last_id_of_an_emptied_stream_is_reported(
    busy: Store, reopen: Reopen
) -> None:
    busy.stream("orders").trim(maxlen=0)
    store = damage(busy, reopen, _add_row_above)
    expected = ["too few entries wait for the sweep", "a row lies above the last ID"]
    store = assert_mended(store, reopen, *expected)


def test_an_entry_without_its_row_is_not_counted(busy: Store, reopen: Reopen) -> None:
    length = len(busy.stream("orders"))
    store = damage(busy, reopen, _lose_first_entry)
    expected = ["a node's live is wrong", "the length is wrong", "the first live ID is wrong"]
    assert fault_texts(store.check(repair=True)) == expected
    assert len(store.stream("orders")) == length - 1
    use(store)


def test_a_stream_that_lost_all_entries_is_repaired_to_an_empty_one(
    busy: Store, reopen: Reopen
) -> None:
    def lose_all(rows: Rows) -> None:
        rows.delete(MESSAGES, *(key for key, _ in rows.live()))

    store = damage(busy, reopen, lose_all)
    found = store.check(repair=True)
    assert "the length is wrong" in fault_texts(found)
    assert all(fault.repaired for fault in found)
    assert store.check() == []
    assert store.stream("orders").range() == []
    use(store)


@pytest.mark.parametrize(
    "value",
    [b"", b"\x01", b"\x07\xa1a", b"\x01\x05", b"\x01\x80", b"\x01\x81\x05\xa1a", b"\x02\x91\xa1a"],
)
def test_an_undecodable_entry_is_reported_by_its_id_and_stays(
    busy: Store, reopen: Reopen, value: bytes
) -> None:
    entry = busy.stream("orders").range()[7]
    key = Rows(busy).orders.prefix + entry.id.packed
    store = damage(busy, reopen, lambda rows: rows.put(MESSAGES, key, value))
    for repair in (False, True, False):
        found = store.check(repair=repair)
        assert [fault.message for fault in found] == [f"an entry cannot be decoded: {entry.id}"]
        assert not found[0].repaired
    assert store.stream("orders").delete(entry.id) == 1
    assert store.check() == []
    use(store)


def test_a_stream_with_an_undecodable_entry_in_its_open_node_still_works(
    busy: Store, reopen: Reopen
) -> None:
    stream = busy.stream("orders")
    (entry,) = stream.revrange(count=1)
    key = Rows(busy).orders.prefix + entry.id.packed
    store = damage(busy, reopen, lambda rows: rows.put(MESSAGES, key, b"\x01\xc1"))
    stream = store.stream("orders")
    store.check(repair=True)
    stream.add_many([{"n": number} for number in range(10)])
    assert fault_texts(store.check()) == ["an entry cannot be decoded"]
    assert stream.delete(entry.id) == 1
    assert store.check() == []
    use(store)


def test_many_undecodable_entries_make_one_fault_with_examples(busy: Store, reopen: Reopen) -> None:
    ids = [entry.id for entry in busy.stream("orders").range(count=10)]

    def spoil(rows: Rows) -> None:
        for eid in ids:
            rows.put(MESSAGES, rows.orders.prefix + eid.packed, b"\x01\xc1")

    store = damage(busy, reopen, spoil)
    (fault,) = store.check()
    shown = "; ".join(map(str, ids[:3]))
    assert fault.message == f"an entry cannot be decoded: {shown}; and {len(ids) - 3} more"
    store.stream("orders").delete(ids)


def test_an_empty_stream_has_no_first_entry(busy: Store, reopen: Reopen) -> None:
    busy.stream("orders").trim(maxlen=0)
    store = damage(busy, reopen, lambda rows: rows.edit_orders(first=rows.orders.last))
    assert_mended(store, reopen, "the first live ID is wrong")


def test_a_stream_at_the_greatest_id_is_sound(store: Store) -> None:
    stream = store.stream("s")
    stream.add({"a": "b"}, id="5-5")
    stream.add({"a": "b"}, id=MAX_ID)
    stream.trim(maxlen=0)
    assert store.check() == []


def test_xsetid_may_give_an_empty_stream_any_counters(store: Store) -> None:
    stream = store.stream("s")
    stream.add({"a": "b"}, id="5-5", maxlen=0)
    stream.set_id("3-0", entries_added=0)
    assert store.check() == []
    stream.set_id("9-0", entries_added=1000, max_deleted_id="8-1")
    assert store.check() == []
    stream.add({"a": "b"})
    assert store.check() == []
