"""The two forms of a group, indexed and not indexed: the rows of each, and the conversion."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from kvstream import Group, Store
from tests.opening import change_thresholds
from tests.operations.checks.seeding import KEY, TREES, Reopen, Rows, read_new, small_trees

ROWS = 8
GROUP = b"billing"


class _Undo(Exception):
    """Ends a transaction without a commit."""


@pytest.fixture
def group(store: Store) -> Group:
    """A group of a stream of 200 entries."""
    stream = store.stream(KEY)
    stream.add_many([{"n": number} for number in range(200)])
    return stream.create_group(GROUP, "0")


def read_singly(group: Group, count: int) -> None:
    """Deliver this many runs of one ID each, to two consumers in turn."""
    for number in range(count):
        read_new(group, ("ann", "bob")[number % 2])


def index_rows(store: Store) -> int:
    """Return how many rows the indexes of the group have."""
    rows = Rows(store)
    trees = [rows.group.times.id, *(rows.consumer(name).runs.id for name in (b"ann", b"bob"))]
    return sum(len(rows.tree(tree)) for tree in trees)


def counts(store: Store) -> list[int]:
    """Return the counts in the records of the group and its consumers."""
    rows = Rows(store)
    group = rows.group
    return [group.pending, group.nacked, *(rows.consumer(n).pending for n in (b"ann", b"bob"))]


def answers(group: Group) -> list[Any]:
    """Return all pending entries of a group, read by each of its indexes."""
    return [
        group.pending(),
        group.pending_range(count=1000),
        group.pending_range(count=1000, min_idle=0.001),
        [list(group.consumer(name).pending()) for name in ("ann", "bob")],
        group.info(),
        group.consumers(),
    ]


def test_a_group_of_few_runs_has_no_index_rows(store: Store, group: Group) -> None:
    read_singly(group, 100)
    rows = Rows(store)
    assert not rows.group.indexed
    assert len(rows.runs) == 100
    assert index_rows(store) == 0
    assert counts(store) == [0, 0, 0, 0]
    assert group.info().pending == group.pending().count == 100


def test_an_acknowledgement_writes_no_record(store: Store, group: Group) -> None:
    read_singly(group, 4)
    before = dict(Rows(store).under(TREES, b"\x00"))
    sequence = store.engine.database.sequence
    assert group.ack([row.id for row in group.consumer("ann").pending()][:1]) == 1
    assert store.engine.database.sequence == sequence + 1
    after = dict(Rows(store).under(TREES, b"\x00"))
    assert len(before) - len(after) == 1
    assert after.items() < before.items()


def test_the_first_run_above_the_limit_indexes_the_group(store: Store, group: Group) -> None:
    with small_trees(store, ROWS):
        read_singly(group, ROWS)
        group.nack([group.pending_range(count=1)[0].id])
        assert not Rows(store).group.indexed
        before = answers(group)
        read_singly(group, 1)
        assert Rows(store).group.indexed
        assert index_rows(store) == 2 * (ROWS + 1) - 1
        assert counts(store) == [ROWS + 1, 1, 4, 4]
        assert group.pending_range(count=ROWS) == before[1]
        assert store.check() == []


def test_an_indexed_group_answers_as_one_that_is_not(
    store: Store, group: Group, reopen: Reopen
) -> None:
    read_singly(group, 2 * ROWS)
    group.ack([row.id for row in group.pending_range(count=3)][1:])
    group.nack([row.id for row in group.pending_range(count=8)][4:])
    before = answers(group)
    with small_trees(store, ROWS):
        store = reopen(store)  # one run above the limit, not indexed: the limit was lowered
        group = store.stream(KEY).group(GROUP)
        assert answers(group) == before
        with suppress(_Undo), store.transaction():
            read_new(group, "ann")
            raise _Undo
        assert answers(group) == before
        assert not Rows(store).group.indexed
        last = read_new(group, "ann")
        assert Rows(store).group.indexed
        group.ack(last)
        assert Rows(store).group.indexed
        assert answers(group)[:4] == before[:4]
        assert answers(reopen(store).stream(KEY).group(GROUP))[:4] == before[:4]


def test_an_indexed_group_drops_its_indexes_when_it_has_few_runs(
    store: Store, group: Group, reopen: Reopen
) -> None:
    left = ROWS // 2
    with small_trees(store, ROWS):
        read_singly(group, 3 * ROWS)
        assert Rows(store).group.indexed
        held = [row.id for row in group.pending_range(count=100)]
        for eid in held[: len(held) - left - 1]:
            group.ack(eid)
        assert Rows(store).group.indexed
        group.ack(held[-left - 1])
        assert not Rows(store).group.indexed
        assert index_rows(store) == 0
        assert counts(store) == [0, 0, 0, 0]
        before = answers(group)
        assert [row.id for row in before[1]] == held[len(held) - left :]
        store = reopen(store)
        group = store.stream(KEY).group(GROUP)
        assert answers(group) == before
        read_singly(group, 3 * ROWS)
        assert Rows(store).group.indexed
        assert group.pending().count == 3 * ROWS + left


def test_an_indexed_group_drops_its_indexes_when_it_is_empty(store: Store, group: Group) -> None:
    with small_trees(store, ROWS):
        for _ in range(3):
            read_singly(group, ROWS + 1)
            assert Rows(store).group.indexed
            assert group.ack([row.id for row in group.pending_range(count=100)]) == ROWS + 1
            assert not Rows(store).group.indexed
            assert index_rows(store) == 0
            assert store.check() == []


def test_a_group_changes_its_form_in_the_commit_that_crosses_the_limit(
    store: Store, group: Group
) -> None:
    with small_trees(store, ROWS):
        read_singly(group, ROWS)
        before = answers(group)
        with suppress(_Undo), store.transaction():
            read_singly(group, 2 * ROWS)
            group.ack([row.id for row in group.pending_range(count=2 * ROWS)])
            raise _Undo
        assert answers(group) == before
        assert not Rows(store).group.indexed
        with store.transaction():
            read_singly(group, 2 * ROWS)
            group.ack([row.id for row in group.pending_range(count=3 * ROWS)])
            read_singly(group, 1)
        assert not Rows(store).group.indexed
        assert group.pending().count == 1
        with store.transaction():
            read_singly(group, 2 * ROWS)
        with suppress(_Undo), store.transaction():
            group.ack([row.id for row in group.pending_range(count=3 * ROWS)])
            raise _Undo
        assert Rows(store).group.indexed
        assert group.pending().count == 2 * ROWS + 1
        assert store.check() == []


@pytest.mark.parametrize("runs", [2, 3 * ROWS])
def test_a_read_only_store_reads_both_forms(
    store: Store, group: Group, reopen: Reopen, runs: int
) -> None:
    with small_trees(store, ROWS):
        read_singly(group, runs)
        assert Rows(store).group.indexed == (runs > ROWS)
        before = answers(group)
        store = reopen(store, read_only=True)
        assert answers(store.stream(KEY).group(GROUP)) == before
        assert store.check() == []
        reopen(store, read_only=False)


def test_many_ids_in_few_runs_are_not_kept_in_memory(store: Store, group: Group) -> None:
    change_thresholds(store.engine, cached_ids=40)
    consumer = group.consumer("ann")
    group.consumer("bob").read(count=1)
    for _ in range(10):
        group.ack(consumer.read(count=10))
    assert not Rows(store).group.indexed
    given = [consumer.read(count=10) for _ in range(5)]
    assert Rows(store).group.indexed
    loaded = store.engine.catalog.streams[Rows(store).orders.name].groups[GROUP]
    assert loaded.runs.memory is None
    before = answers(group)
    store.engine.catalog.forget()
    assert answers(group) == before
    for entries in given:
        group.ack(entries)
    assert group.pending().count == 1


Deed = Callable[[Group], object]


@pytest.mark.parametrize("runs", [3, 3 * ROWS])
@pytest.mark.parametrize(
    "deed",
    [
        lambda group: group.destroy(),
        lambda group: group.delete_consumer("ann"),
        lambda group: group.autoclaim("cid", count=2),
        lambda group: group.claim("cid", [row.id for row in group.pending_range(count=2)]),
        lambda group: group.consumer("bob").read(claim_min_idle=0, count=2),
        lambda group: group.consumer("bob").history(),
        lambda group: group.ack_delete([row.id for row in group.pending_range(count=9)]),
        lambda group: group.nack([row.id for row in group.pending_range(count=2)]),
        lambda group: group.set_id("0"),
    ],
)
def test_random_commands_leave_a_group_of_either_form_sound(
    store: Store, group: Group, reopen: Reopen, deed: Deed, runs: int
) -> None:
    with small_trees(store, ROWS):
        read_singly(group, runs)
        deed(group)
        assert store.check() == []
        store.rename(KEY, "other")
        assert store.check() == []
        store = reopen(store)
        assert store.check() == []
        store.flush()
        assert store.check() == []


def test_a_rank_is_never_reused(store: Store, group: Group, reopen: Reopen) -> None:
    read_singly(group, 3)
    first, second, third = (row.id for row in group.pending_range())
    group.nack(third)
    group.nack(second)
    group.ack(second)
    store = reopen(store)
    group = store.stream(KEY).group(GROUP)
    group.nack(first)
    assert [run.rank for run in Rows(store).runs] == [3, 1]
    claimed = group.consumer("bob").read(claim_min_idle=0, count=2)
    assert [entry.id for entry in claimed] == [third, first]
