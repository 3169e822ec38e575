"""Runs of pending entries, and the indexes by time and by consumer."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from kvstream import Corruption, PendingEntry, Store, StreamID
from kvstream.layout.keys import ID_LAST, qualified
from kvstream.meta.pel import VALID_IDS_MAX
from kvstream.meta.runs import Run
from kvstream.operations.queues import leases
from kvstream.types.thresholds import DEFAULT
from tests.operations.checks.seeding import (
    GROUP,
    Reopen,
    Rows,
    damage,
    fault_texts,
    mend,
    small_trees,
    use,
)

Seed = Callable[[Rows], None]
DISORDER = "pending entries are out of order"
NOT_INDEXED = "runs are missing from the index"
STRAYS = "the index has rows of no such run"
UNUSED = "the group is not indexed, and its index has rows"
NOT_COUNTED = "the group is not indexed, and yet counts of pending entries are kept"


def pending(store: Store) -> list[PendingEntry]:
    return store.stream("orders").group(GROUP).pending_range(count=1000)


def _long(rows: Rows) -> Run:
    """Return a run of several IDs, owned by ann."""
    return next(run for run in rows.runs if len(run.ids) > 2 and run.owner == b"ann")


def _lose_time(rows: Rows) -> None:
    rows.delete_from(rows.group.times.id, _long(rows).times_suffix)


def _lose_all_times(rows: Rows) -> None:
    tree = rows.group.times.id
    rows.delete_from(tree, *(suffix for suffix, _ in rows.tree(tree)))


def _add_time(rows: Rows) -> None:
    rows.put_in(rows.group.times.id, _long(rows)._replace(time_ms=1).times_suffix, b"")


def _add_time_of_nothing(rows: Rows) -> None:
    rows.put_in(rows.group.times.id, b"what is this", b"")


def _fill_time(rows: Rows) -> None:
    rows.put_in(rows.group.times.id, _long(rows).times_suffix, b"not empty")


def _lose_owned(rows: Rows) -> None:
    rows.delete_from(rows.consumer(b"ann").runs.id, _long(rows).anchor)


def _add_owned(rows: Rows) -> None:
    rows.put_in(rows.consumer(b"bob").runs.id, _long(rows).anchor, b"")


def _move_owned(rows: Rows) -> None:
    _lose_owned(rows)
    _add_owned(rows)


def _add_row_that_is_no_run(rows: Rows) -> None:
    rows.put_in(rows.group.runs.id, b"short", b"")


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (_lose_time, [NOT_INDEXED]),
        (_lose_all_times, [NOT_INDEXED]),
        (_fill_time, [NOT_INDEXED]),
        (_add_time, [STRAYS]),
        (_add_time_of_nothing, [STRAYS]),
        (_lose_owned, [NOT_INDEXED]),
        (_add_owned, [STRAYS]),
        (_move_owned, [NOT_INDEXED, STRAYS]),
        (_add_row_that_is_no_run, ["a row that is no run"]),
        (lambda rows: rows.edit_group(pending=0), ["the number of pending entries is wrong"]),
        (lambda rows: rows.edit_group(nacked=5), ["the number of entries given back is wrong"]),
        (
            lambda rows: rows.edit_group(nack_rank=0),
            ["the rank of entries given back is behind"],
        ),
    ],
)
def test_a_wrong_index_or_counter_is_reported_and_rebuilt_from_the_runs(
    indexed: Store, reopen: Reopen, seed: Seed, expected: list[str]
) -> None:
    before = pending(indexed)
    store = mend(damage(indexed, reopen, seed), reopen, *expected)
    assert pending(store) == before
    use(store)


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (_add_time, [UNUSED]),
        (_add_time_of_nothing, [UNUSED]),
        (_add_owned, [UNUSED]),
        (lambda rows: rows.edit_group(pending=5), [NOT_COUNTED]),
        (lambda rows: rows.edit_group(nacked=5), [NOT_COUNTED]),
        (lambda rows: rows.edit_consumer(b"ann", pending=1), [NOT_COUNTED]),
        (
            lambda rows: rows.edit_group(nack_rank=0),
            ["the rank of entries given back is behind"],
        ),
    ],
)
def test_a_group_that_is_not_indexed_has_no_rows_of_an_index_and_no_counts(
    busy: Store, reopen: Reopen, seed: Seed, expected: list[str]
) -> None:
    before = pending(busy)
    store = mend(damage(busy, reopen, seed), reopen, *expected)
    assert pending(store) == before
    use(store)


def test_a_group_without_the_mark_of_indexed_loses_its_indexes(
    indexed: Store, reopen: Reopen
) -> None:
    before = pending(indexed)
    store = damage(indexed, reopen, lambda rows: rows.edit_group(indexed=False))
    store = mend(store, reopen, UNUSED, UNUSED, UNUSED, NOT_COUNTED, NOT_COUNTED, NOT_COUNTED)
    assert pending(store) == before
    use(store)


def test_a_group_wrongly_marked_as_indexed_gets_its_indexes(busy: Store, reopen: Reopen) -> None:
    before = pending(busy)
    store = damage(busy, reopen, lambda rows: rows.edit_group(indexed=True))
    found = store.check()
    assert set(fault_texts(found)) == {
        NOT_INDEXED,
        "the number of pending entries is wrong",
        "the number of entries given back is wrong",
    }
    store = mend(store, reopen, *fault_texts(found))
    assert pending(store) == before
    use(store)


def _unsort(rows: Rows) -> None:
    run = _long(rows)
    rows.put_run(run._replace(packed=b"".join([run.ids[0], *reversed(run.ids[1:])])))


def _repeat(rows: Rows) -> None:
    run = _long(rows)
    rows.put_run(run._replace(packed=run.ids[0] + run.packed))


@pytest.mark.parametrize("seed", [_unsort, _repeat])
def test_runs_out_of_order_are_put_in_order(either: Store, reopen: Reopen, seed: Seed) -> None:
    before = pending(either)
    store = damage(either, reopen, seed)
    found = store.check()
    assert fault_texts(found)[0] == DISORDER
    mended = store.check(repair=True)
    assert fault_texts(mended) == fault_texts(found)
    assert all(fault.repaired for fault in mended)
    assert store.check() == []
    assert pending(reopen(store)) == before


def test_an_entry_in_two_runs_stays_with_the_latest_delivery(either: Store, reopen: Reopen) -> None:
    def overlap(rows: Rows) -> None:
        run = _long(rows)
        rows.put_run(Run(run.ids[1], run.ids[1], b"bob", run.time_ms + 1000, run.deliveries + 1))

    before = pending(either)
    store = damage(either, reopen, overlap)
    mended = store.check(repair=True)
    assert fault_texts(mended)[0] == DISORDER
    assert all(fault.repaired for fault in mended)
    assert store.check() == []
    moved = [row for row in pending(store) if row not in before]
    assert [(row.consumer, row.deliveries) for row in moved] == [(b"bob", 2)]
    assert [row.id for row in pending(store)] == [row.id for row in before]
    use(store)


def test_a_run_that_repeats_a_later_one_leaves_with_its_index_rows(
    indexed: Store, reopen: Reopen
) -> None:
    def repeat_earlier(rows: Rows) -> None:
        run = _long(rows)
        earlier = Run(run.ids[1], run.ids[1], b"bob", run.time_ms - 1000, 1)
        rows.put_run(earlier)
        rows.put_in(rows.group.times.id, earlier.times_suffix, b"")
        rows.put_in(rows.consumer(b"bob").runs.id, earlier.anchor, b"")

    before = pending(indexed)
    store = damage(indexed, reopen, repeat_earlier)
    assert fault_texts(store.check(repair=True))[0] == DISORDER
    assert store.check() == []
    assert pending(store) == before
    use(store)


def test_an_entry_given_back_has_no_owner_and_no_time(either: Store, reopen: Reopen) -> None:
    def give_owner(rows: Rows) -> None:
        run = next(run for run in rows.runs if not run.owned)
        rows.put_run(run._replace(owner=b"ann", time_ms=5))

    before = pending(either)
    store = damage(either, reopen, give_owner)
    assert fault_texts(store.check(repair=True)) == [DISORDER]
    assert store.check() == []
    assert pending(store) == before
    use(store)


def test_a_run_of_too_many_ids_is_split(either: Store, reopen: Reopen) -> None:
    ids = [StreamID(1, number).packed for number in range(VALID_IDS_MAX + 7)]

    def put_long_run(rows: Rows) -> None:
        rows.put_run(Run.of(ids, (b"ann", 7, 1, 0)))

    store = damage(either, reopen, put_long_run)
    assert fault_texts(store.check(repair=True))[0] == DISORDER
    assert store.check() == []
    assert {len(run.ids) for run in Rows(store).runs if run.time_ms == 7} == {DEFAULT.run_ids, 7}
    use(store)


def test_a_run_of_an_unknown_consumer_creates_the_consumer(either: Store, reopen: Reopen) -> None:
    stranger = StreamID.unpack(ID_LAST).packed

    def put_strangers_run(rows: Rows) -> None:
        rows.put_run(Run(stranger, stranger, b"stranger", 7, 1))

    store = damage(either, reopen, put_strangers_run)
    expected = [
        "the owner of pending entries has no record",
        "the number of consumers is wrong",
    ]
    if Rows(store).group.indexed:
        expected += [NOT_INDEXED, "the number of pending entries is wrong"]
    found = store.check(repair=True)
    assert sorted(fault_texts(found)) == sorted(expected)
    assert store.check() == []
    (row,) = store.stream("orders").group(GROUP).consumer("stranger").pending()
    assert row.id.packed == stranger
    use(store)


def test_an_undecodable_run_stays_reported_and_leaves_the_indexes(
    either: Store, reopen: Reopen
) -> None:
    run = _long(Rows(either))
    store = damage(
        either, reopen, lambda rows: rows.put_in(rows.group.runs.id, run.anchor, b"\x00" * 30)
    )
    what = "a run of pending entries cannot be decoded"
    first = store.check(repair=True)
    assert fault_texts(first)[0] == what
    assert [fault.repaired for fault in first] == [False] + [True] * (len(first) - 1)
    assert fault_texts(store.check()) == [what]
    stream = store.stream("orders")
    assert stream.group("audit").pending().count == 0  # other groups still work
    with pytest.raises(Corruption):
        stream.group(GROUP).pending_range()
    assert stream.group(GROUP).destroy()
    assert store.check() == []
    stream.create_group(GROUP, "0")
    use(store)


def test_many_runs_are_compared_with_their_indexes_in_chunks(
    store: Store,
) -> None:
    stream = store.stream("s")
    stream.add_many([{"n": number} for number in range(3000)])
    group = stream.create_group("g", "0")
    for _ in range(1500):
        group.consumer("a").read(count=1)
        group.consumer("b").read(count=1)
    assert store.check() == []
    group.ack([row.id for row in group.pending_range(count=3000)][::3])
    assert store.check() == []


@pytest.mark.parametrize("form", ["in memory", "indexed"])
def test_entries_waiting_without_a_timer_become_ready_at_once(
    store: Store, reopen: Reopen, form: str
) -> None:
    stream = store.stream("orders")
    stream.add_many([{"n": number} for number in range(40)])
    group = stream.create_group(GROUP, "0")
    with small_trees(store) if form == "indexed" else nullcontext():
        ids = [entry.id for _ in range(40) for entry in group.consumer("ann").read(count=1)]
        tokens = [(eid, 1) for eid in ids[:20:2]]
        store.engine.run(leases.nack, qualified(0, b"orders"), GROUP, b"ann", tokens, 5000)
        assert store.check() == []
        tree = Rows(store).orders.queue_tree
        store = damage(store, reopen, lambda rows: rows.delete_from(tree, rows.tree(tree)[0][0]))
        found = store.check(repair=True)
        assert set(fault_texts(found)) >= {"entries wait without a timer"}
        assert all(fault.repaired for fault in found)
        assert store.check() == []
        ready = store.stream("orders").group(GROUP).consumer("bob").read(count=10)
        assert [entry.id for entry in ready] == [eid for eid, _ in tokens]
