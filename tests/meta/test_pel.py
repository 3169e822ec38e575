"""Compare pending runs with a dict of single entries, with small runs and trees that spill too."""

from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvstream import Corruption
from kvstream.meta import pel, pel_index
from kvstream.meta.records import GroupMeta
from kvstream.meta.runs import Run
from kvstream.storage.database import Database
from kvstream.types.ids import StreamID
from kvstream.types.thresholds import DEFAULT, Thresholds
from tests.meta.rows import Metadata, fresh_name

ALL_IDS = [StreamID(ms, 0).packed for ms in range(24)]
IDS = st.sampled_from(ALL_IDS)
SETS_OF_IDS = st.lists(IDS, min_size=1, max_size=12, unique=True).map(sorted)
CONSUMERS = [b"", b"one", b"two"]
TIMES = st.integers(0, 5)


class Entry(NamedTuple):
    """The model of one pending entry."""

    owner: bytes
    time_ms: int
    deliveries: int
    rank: int = 0


class Pending(NamedTuple):
    """One pending entry."""

    id: bytes
    owner: bytes
    time_ms: int
    deliveries: int
    rank: int


class PendingMachine(RuleBasedStateMachine):
    """Every operation on pending entries, compared with a dict of them."""

    database: ClassVar[Database]
    sizes: ClassVar[Thresholds]

    def __init__(self) -> None:
        super().__init__()
        self.metadata = Metadata(self.database, thresholds=self.sizes)
        self.name = fresh_name()
        self.model: dict[bytes, Entry] = {}
        self.rank = 0
        for consumer in CONSUMERS:
            self.metadata.consumer(self.group, consumer)
        self.commit()

    @property
    def group(self) -> GroupMeta:
        return self.metadata.group(self.name)

    def those(self, wanted: list[bytes]) -> list[Pending]:
        """Return what the model has pending of ``wanted``."""
        return [Pending(eid, *self.model[eid]) for eid in wanted if eid in self.model]

    # --- changes --------------------------------------------------------------------------------

    @rule(ids=SETS_OF_IDS, owner=st.sampled_from(CONSUMERS), time=TIMES, count=st.integers(0, 2))
    def deliver(self, ids: list[bytes], owner: bytes, time: int, count: int) -> None:
        fresh = [eid for eid in ids if eid not in self.model]
        pel.insert(self.metadata.txn, self.group, fresh, owner, time, count)
        self.model |= dict.fromkeys(fresh, Entry(owner, time, count))

    @rule(ids=SETS_OF_IDS, owner=st.sampled_from(CONSUMERS), time=TIMES)
    def deliver_again(self, ids: list[bytes], owner: bytes, time: int) -> None:
        pel.deliver(self.metadata.txn, self.group, ids, owner, time)
        self.model |= dict.fromkeys(ids, Entry(owner, time, 1))

    @rule(owner=st.sampled_from(CONSUMERS), time=st.integers(0, 1))
    def deliver_the_next(self, owner: bytes, time: int) -> None:
        following = [eid for eid in ALL_IDS if eid > max(self.model, default=b"")]
        if following:
            self.deliver_again(following[:1], owner, time)

    @rule(eid=IDS)
    def drop(self, eid: bytes) -> None:
        assert pel.discard(self.metadata.txn, self.group, [eid]) == (eid in self.model)
        self.model.pop(eid, None)

    @rule(ids=SETS_OF_IDS)
    def take(self, ids: list[bytes]) -> None:
        expected = [each.id for each in self.those(ids)]
        assert pel.acknowledge(self.metadata.txn, self.group, ids) == expected
        for eid in ids:
            self.model.pop(eid, None)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def take_a_whole_run(self, data: st.DataObject) -> None:
        eid = data.draw(st.sampled_from(sorted(self.model)))
        run = pel.run_at(self.metadata.txn, self.group, eid)
        assert run is not None
        self.take(list(run.ids))

    @rule(ids=SETS_OF_IDS, owner=st.sampled_from(CONSUMERS), time=TIMES)
    def claim(self, ids: list[bytes], owner: bytes, time: int) -> None:
        self.take(ids)
        self.deliver(ids, owner, time, 1)

    @rule(ids=SETS_OF_IDS, count=st.integers(0, 2))
    def give_back(self, ids: list[bytes], count: int) -> None:
        self.rank += 1
        self.group.nack_rank = self.rank
        self.plan(ids, Entry(b"", 0, count, self.rank))
        self.metadata.txn.member_changed(self.group)

    @rule(ids=SETS_OF_IDS, owner=st.sampled_from(CONSUMERS), time=TIMES, count=st.integers(0, 2))
    def change_owner(self, ids: list[bytes], owner: bytes, time: int, count: int) -> None:
        self.plan(ids, Entry(owner, time, count))

    def plan(self, ids: list[bytes], target: Entry) -> None:
        """Plan that IDs, pending or not, become ``target``, and change their runs."""
        txn, group = self.metadata.txn, self.group
        found = pel.stretches(txn, group, ids)
        pel.plan(txn, group, found, lambda run, some: dict.fromkeys(some, target)).apply(txn, group)
        self.model |= dict.fromkeys(ids, target)

    @rule()
    def commit(self) -> None:
        self.metadata.commit()
        self.committed = dict(self.model), self.rank

    @rule()
    def reload(self) -> None:
        self.commit()
        self.metadata.reload()

    @rule()
    def abandon(self) -> None:
        self.metadata.abandon()
        self.model, self.rank = dict(self.committed[0]), self.committed[1]

    # --- looks ----------------------------------------------------------------------------------

    @rule(start=IDS)
    def look_by_id(self, start: bytes) -> None:
        txn, group = self.metadata.txn, self.group
        one = self.those([start])
        assert pel.pending_among(txn, group, [start]) == [each.id for each in one]
        for end in (start, ALL_IDS[-1]):
            wanted = [eid for eid in ALL_IDS if start <= eid <= end]
            runs = list(pel.runs_from(txn, group, start))
            assert entries(runs, start, end) == self.those(wanted)

    @rule(start=IDS, owner=st.sampled_from(CONSUMERS))
    def look_by_consumer(self, start: bytes, owner: bytes) -> None:
        group = self.group
        runs = list(
            pel.runs_of(self.metadata.txn, group, self.metadata.consumer(group, owner), start)
        )
        expected = self.those([eid for eid in ALL_IDS if eid >= start])
        assert entries(runs, start, ALL_IDS[-1]) == [
            entry for entry in expected if entry.rank == 0 and entry.owner == owner
        ]

    @rule(latest=st.integers(-1, 6))
    def look_by_time(self, latest: int) -> None:
        runs = list(pel.runs_by_time(self.metadata.txn, self.group, latest))
        found = entries(runs, ALL_IDS[0], ALL_IDS[-1])
        expected = self.those(ALL_IDS)
        assert sorted(found) == [
            entry for entry in expected if entry.rank or entry.time_ms <= latest
        ]
        given_back = [entry for entry in found if entry.rank]
        assert given_back == sorted(given_back, key=lambda entry: entry.rank)
        owned = [entry.time_ms for entry in found if entry.rank == 0]
        assert owned == sorted(owned)
        times = [entry.time_ms for entry in expected]
        oldest = pel.oldest_time(self.metadata.txn, self.group)
        assert oldest == (min(times) if times else None)

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        txn, group, everything = self.metadata.txn, self.group, self.model.values()
        assert pel_index.pending_in(txn, group) == len(self.model)
        assert pel_index.nacked_in(txn, group) == sum(entry.rank > 0 for entry in everything)
        for name in CONSUMERS:
            own = sum(entry.owner == name and not entry.rank for entry in everything)
            consumer = self.metadata.consumer(group, name)
            assert pel_index.pending_with(txn, group, consumer) == own

    @invariant()
    def no_two_runs_overlap(self) -> None:
        runs = list(self.group.runs.scan(self.metadata.txn.batch))
        bounds = [bound for run in runs for bound in (run.anchor, run.ids[-1])]
        assert bounds == sorted(bounds)
        assert len({run.anchor for run in runs}) == len(runs)
        assert all(list(run.ids) == sorted(run.ids) for run in runs)
        assert all(len(run.ids) <= self.sizes.run_ids for run in runs)


def entries(runs: list[Run], start: bytes, end: bytes) -> list[Pending]:
    """Return the single entries of ``runs`` between two IDs."""
    return [
        Pending(eid, run.owner, run.time_ms, run.deliveries, run.rank)
        for run in runs
        for eid in pel.ids_between(run, start, end)
    ]


@pytest.mark.parametrize("few_ids", [DEFAULT.few_ids, 0, 99])
@pytest.mark.parametrize("cached_rows", [DEFAULT.cached_rows, 2])
@pytest.mark.parametrize("run_ids", [DEFAULT.run_ids, 3, 1])
def test_pending_runs_behave_like_single_entries(
    database: Database, run_ids: int, cached_rows: int, few_ids: int
) -> None:
    sizes = {"run_ids": run_ids, "few_ids": few_ids, "few_runs": run_ids % 3}
    sizes |= {"cached_rows": cached_rows, "store_rows": 0, "chunk_keys": 2}
    given = {"database": database, "sizes": Thresholds(**sizes)}
    run_state_machine_as_test(
        type("Machine", (PendingMachine,), given),
        settings=settings(max_examples=15, stateful_step_count=30, deadline=None),
    )


def test_a_read_of_many_is_stored_as_few_runs(metadata: Metadata) -> None:
    group = metadata.group(fresh_name())
    metadata.consumer(group, b"c")
    ids = [StreamID(1, seq).packed for seq in range(70)]
    pel.insert(metadata.txn, group, ids, b"c", 5, 1)
    sizes = [len(run.ids) for run in group.runs.scan(metadata.txn.batch)]
    assert sizes == [32, 32, 6]
    metadata.commit()


def test_no_entry_is_placed_where_there_is_none_to_place(metadata: Metadata) -> None:
    group = metadata.group(fresh_name())
    metadata.consumer(group, b"c")
    metadata.commit()
    pel.insert(metadata.txn, group, [], b"c", 5, 1)
    assert pel.acknowledge(metadata.txn, group, []) == []
    assert metadata.txn.finish() is None


def change_one(metadata: Metadata, change: Any) -> list[list[bytes]]:
    """Deliver 1 to 9 as one run, make ``change`` to it, and return the IDs of the runs."""
    group = metadata.group(fresh_name())
    metadata.consumer(group, b"c")
    pel.insert(metadata.txn, group, ALL_IDS[1:10], b"c", 5, 1)
    change(metadata.txn, group)
    return [list(run.ids) for run in group.runs.scan(metadata.txn.batch)]


def test_entries_delivered_one_by_one_share_runs(metadata: Metadata) -> None:
    group = metadata.group(fresh_name())
    for name in (b"c", b"d"):
        metadata.consumer(group, name)
    ids = [StreamID(1, seq).packed for seq in range(37)]
    for eid in ids[:35]:
        pel.deliver(metadata.txn, group, [eid], b"c", 5)
    pel.deliver(metadata.txn, group, [ids[35]], b"d", 5)
    pel.deliver(metadata.txn, group, [ids[36]], b"d", 6)
    runs = [(run.owner, len(run.ids)) for run in group.runs.scan(metadata.txn.batch)]
    assert runs == [(b"c", 32), (b"c", 3), (b"d", 1), (b"d", 1)]
    metadata.commit()


def test_a_growing_run_is_listed_up_to_its_new_end(metadata: Metadata) -> None:
    group = metadata.group(fresh_name())
    metadata.consumer(group, b"c")
    watch = pel_index.watch(group)
    pel.deliver(metadata.txn, group, [ALL_IDS[3]], b"c", 5)
    pel.deliver(metadata.txn, group, [ALL_IDS[7]], b"c", 5)
    assert watch.take() == [(ALL_IDS[3], ALL_IDS[3]), (ALL_IDS[3], ALL_IDS[7])]
    pel.discard(metadata.txn, group, [ALL_IDS[7]])
    assert watch.take() == [(ALL_IDS[3], ALL_IDS[7])]
    metadata.commit()


def test_an_entry_delivered_and_acknowledged_in_one_commit_is_never_written(
    metadata: Metadata,
) -> None:
    group = metadata.group(fresh_name())
    metadata.consumer(group, b"c")
    metadata.commit()
    for eid in ALL_IDS:
        pel.deliver(metadata.txn, group, [eid], b"c", 5)
        assert pel.discard(metadata.txn, group, [eid]) == 1
    metadata.txn.batch.put_deferred()
    assert not metadata.txn.batch
    metadata.commit()


def test_an_acknowledged_entry_leaves_its_run_in_one_piece(metadata: Metadata) -> None:
    runs = change_one(metadata, lambda txn, group: pel.acknowledge(txn, group, [ALL_IDS[4]]))
    assert runs == [[*ALL_IDS[1:4], *ALL_IDS[5:10]]]


def test_an_entry_that_comes_where_a_run_reaches_splits_it(metadata: Metadata) -> None:
    def nack(txn: Any, group: GroupMeta) -> None:
        pel.acknowledge(txn, group, [ALL_IDS[4]])
        pel.insert(txn, group, [ALL_IDS[4]], b"", 0, 1, rank=1)

    assert change_one(metadata, nack) == [ALL_IDS[1:4], [ALL_IDS[4]], ALL_IDS[5:10]]


def test_an_entry_pending_with_no_consumer_is_corruption(metadata: Metadata) -> None:
    group = metadata.group(fresh_name())
    with pytest.raises(Corruption, match="has pending entries of no consumer b'nobody'"):
        pel.insert(metadata.txn, group, [ALL_IDS[1]], b"nobody", 5, 1)
    metadata.abandon()


def test_a_run_that_an_index_knows_and_nothing_else_is_corruption(metadata: Metadata) -> None:
    group = metadata.group(fresh_name())
    consumer = metadata.consumer(group, b"c")
    group.indexed = True
    consumer.runs.put(metadata.txn.batch, ALL_IDS[1], ALL_IDS[1])
    with pytest.raises(Corruption, match=f"has lost the run of pending entries {'0' * 15}1"):
        list(pel.runs_of(metadata.txn, group, consumer))
    metadata.abandon()


def test_large_groups_share_the_memory_of_a_store(database: Database) -> None:
    metadata = Metadata(database, thresholds=Thresholds(cached_rows=4, store_rows=24))
    names = [fresh_name(), fresh_name(), fresh_name()]

    def deliver(name: bytes, first: int, last: int) -> GroupMeta:
        group = metadata.group(name)
        metadata.consumer(group, b"c")
        for time, eid in enumerate(ALL_IDS[first:last], first):
            pel.deliver(metadata.txn, group, [eid], b"c", time)
        return group

    assert not deliver(names[0], 0, 16).indexed
    second = deliver(names[1], 0, 8)
    assert not second.indexed
    assert deliver(names[1], 8, 9) is second
    assert second.indexed
    assert not deliver(names[2], 0, 8).indexed
    assert pel.discard(metadata.txn, metadata.group(names[0]), ALL_IDS[:16]) == 16
    for left in range(8, 4, -1):  # with the third group they exceed half
        assert pel.discard_one(metadata.txn, second, ALL_IDS[8 - left]) == 1
        assert second.indexed
    assert pel.discard_one(metadata.txn, second, ALL_IDS[4]) == 1
    assert not second.indexed
    assert not deliver(names[1], 9, 20).indexed  # the first group has left room
    metadata.reload()
    for name, expected in zip(names, ([], ALL_IDS[5:20], ALL_IDS[:8]), strict=True):
        runs = pel.runs_from(metadata.txn, metadata.group(name), b"")
        assert [eid for run in runs for eid in run.ids] == expected
    metadata.commit()


def test_an_indexed_group_returns_to_memory_at_half_of_what_the_store_keeps(
    database: Database,
) -> None:
    metadata = Metadata(database, thresholds=Thresholds(cached_rows=2, store_rows=16))
    group = metadata.group(fresh_name())
    metadata.consumer(group, b"c")
    for time, eid in enumerate(ALL_IDS[:18]):
        pel.deliver(metadata.txn, group, [eid], b"c", time)
    assert group.indexed
    for at, eid in enumerate(ALL_IDS[:10], 1):
        assert group.indexed == (18 - at >= 8)
        assert pel.discard_one(metadata.txn, group, eid) == 1
    metadata.commit()
