"""How check is called, which errors it raises, and how it names places."""

from contextlib import suppress
from pathlib import Path

import pytest

from kvstream import Corruption, InvalidArgument, ManualClock, Store, StoreReadOnly
from kvstream.layout.keys import key_count_row
from tests.opening import Stores
from tests.operations.checks.seeding import (
    GROUP,
    METADATA,
    TREES,
    Reopen,
    Rows,
    damage,
    fault_texts,
    fill,
    small_trees,
    use,
)


def _miscount(rows: Rows) -> None:
    rows.delete(METADATA, key_count_row(0))


def test_a_sound_store_has_no_faults_and_a_repair_writes_nothing(busy: Store) -> None:
    assert busy.check() == []
    sequence = busy.engine.database.sequence
    assert busy.check(repair=True) == []
    assert busy.engine.database.sequence == sequence


def test_an_empty_store_is_sound(store: Store) -> None:
    assert store.check() == []
    assert store.check(repair=True) == []


def test_a_store_of_every_feature_is_sound_when_reopened(busy: Store, reopen: Reopen) -> None:
    store = reopen(busy)
    assert store.check() == []
    use(store)
    assert reopen(store).check() == []


def test_a_check_without_repair_writes_nothing(busy: Store, reopen: Reopen) -> None:
    store = damage(busy, reopen, _miscount)
    sequence = store.engine.database.sequence
    for _ in range(2):
        (fault,) = store.check()
        assert not fault.repaired
    assert store.engine.database.sequence == sequence
    store.check(repair=True)


def test_a_read_only_store_is_checked_but_not_repaired(busy: Store, reopen: Reopen) -> None:
    store = reopen(damage(busy, reopen, _miscount), read_only=True)
    assert fault_texts(store.check()) == ["the number of keys is wrong"]
    with pytest.raises(StoreReadOnly):
        store.check(repair=True)
    assert fault_texts(store.check()) == ["the number of keys is wrong"]
    reopen(store, read_only=False).check(repair=True)


def test_a_check_is_refused_in_a_transaction_that_has_changed_something(busy: Store) -> None:
    with busy.transaction():
        assert busy.check() == []
        busy.stream("orders").add({"a": "b"})
        with pytest.raises(InvalidArgument, match="a check needs a transaction"):
            busy.check()
    assert busy.check() == []


def test_a_repair_may_open_a_transaction_and_is_undone_with_it(busy: Store, reopen: Reopen) -> None:
    store = damage(busy, reopen, _miscount)
    with suppress(RuntimeError), store.transaction():
        assert len(store.check(repair=True)) == 1
        store.stream("orders").add({"a": "b"})
        raise RuntimeError
    assert fault_texts(store.check()) == ["the number of keys is wrong"]
    with store.transaction():
        assert len(store.check(repair=True)) == 1
        use(store)
    assert store.check() == []


def test_expired_keys_are_checked_like_others(store: Store, clock: ManualClock) -> None:
    for number in range(150):
        store.stream(f"s{number}").add({"a": "b"})
        store.expire(f"s{number}", 1)
    clock.advance(2000)
    assert store.check() == []
    assert store.keys() == []
    assert store.check() == []


@pytest.mark.parametrize(
    ("key", "group", "consumer", "place"),
    [
        ("s", "g", "c", "database 0, stream 's', group 'g', consumer 'c'"),
        (b"\xff", b"\xfe", "", "database 0, stream b'\\xff', group b'\\xfe', consumer ''"),
    ],
)
def test_a_place_names_database_stream_group_and_consumer(
    store: Store, reopen: Reopen, key: str, group: str, consumer: str, place: str
) -> None:
    stream = store.stream(key)
    stream.add({"a": "b"})
    with small_trees(store, rows=0):
        stream.create_group(group, "0").consumer(consumer).read()

    def lose_index(rows: Rows) -> None:
        tree = max(row[0][:8] for row in rows.under(TREES, b"\x00"))
        rows.delete(TREES, *(row[0] for row in rows.under(TREES, tree)))

    store = damage(store, reopen, lose_index)
    (fault,) = store.check(repair=True)
    assert fault.place == place
    assert fault.message.startswith("runs are missing from the index: ")


def test_many_kinds_of_damage_are_repaired_at_once(either: Store, reopen: Reopen) -> None:
    def ruin(rows: Rows) -> None:
        rows.edit_group(pending=1, nacked=9, consumers_count=0)
        for tree in (rows.group.times.id, rows.consumer(b"ann").runs.id, rows.orders.nodes_tree):
            rows.delete_from(tree, *(suffix for suffix, _ in rows.tree(tree)))
        rows.delete(TREES, rows.consumer(b"bob").row)
        rows.edit_orders(length=1, nodes=1, groups_count=0, entries_added=0, iids=0, head=(1, 1))
        for tag in (b"A", b"C", b"N", b"X"):
            rows.delete(METADATA, *(key for key, _ in rows.under(METADATA, tag)))

    pending = either.stream("orders").group(GROUP).pending_range()
    entries = either.stream("orders").range()
    store = damage(either, reopen, ruin)
    assert len(store.check(repair=True)) > 10
    assert store.check() == []
    store = reopen(store)
    assert store.check() == []
    assert store.stream("orders").range() == entries
    assert store.stream("orders").group(GROUP).pending_range() == pending
    use(store)


def test_rows_that_cannot_be_read_are_an_error_and_never_a_short_answer(
    open_store: Stores, clock: ManualClock
) -> None:
    store = open_store("damaged")
    fill(store, clock)
    store.stream("long").add_many([{"n": number, "note": "y" * 50} for number in range(20_000)])
    store.close()
    _flip_a_byte(_largest_table(open_store.path_of(store)))
    store = open_store("damaged")
    for repair in (False, True):
        with pytest.raises(Corruption):
            store.check(repair=repair)
    store.close()


def _largest_table(directory: Path) -> Path:
    return max(directory.rglob("*.sst"), key=lambda path: path.stat().st_size)


def _flip_a_byte(table: Path) -> None:
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 0x55
    table.write_bytes(content)
