"""Compiled XADD, XREADGROUP, XACK and XDEL of plain entries write the rows that Python writes."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from struct import error as StructError
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvstream.layout.values import encode_flat
from kvstream.meta import changeset, filling, nodes, pel, pel_index, records, runs, trees
from kvstream.meta import txn as transactions
from kvstream.meta.changeset import Changeset
from kvstream.meta.compiled import plain
from kvstream.meta.events.keys import XADD
from kvstream.meta.policy import GroupPolicy
from kvstream.meta.runs import Run, run_tree
from kvstream.meta.trees import key_tree
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.operations import ack, append, claim, delete, groups, readgroup
from kvstream.operations.ack import Nack
from kvstream.operations.queues import leases, policy
from kvstream.operations.reads import limits, rows
from kvstream.operations.trim import Strategy, Trim
from kvstream.storage.database import Database
from kvstream.types.ids import StreamID
from kvstream.types.options import NackMode, StoreOptions
from kvstream.types.thresholds import DEFAULT, Thresholds
from tests.meta.rows import NOW_MS, Metadata

pytestmark = pytest.mark.skipif(plain is None, reason="kvstream is not compiled")
NAME = b"\x00\x00s"
USERS: tuple[ModuleType, ...] = (
    *(ack, append, delete, groups, leases, readgroup),
    *(changeset, pel, records, trees, transactions),
)
SIZES = Thresholds(cached_rows=4, cached_ids=12, run_ids=3, chunk_keys=2)
"""A group outgrows memory soon."""

POLICIES: list[dict[str, int]] = [
    {"lease_ms": 3000},
    {"lease_ms": 3000},
    {"lease_ms": 0},
    {"max_in_flight": 2},
    {"max_in_flight": 0},
    {"rate_count": 2, "rate_ms": 4000},
]
SMALL = st.integers(0, 9)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from([b"f", b"g"]), st.sampled_from([1, 200, 5000])),
        st.tuples(st.just("add"), st.just(b"f"), st.just(1)),
        st.tuples(st.just("trim"), SMALL),
        st.tuples(st.just("read"), st.sampled_from([b"c", b"c", b"d"]), st.integers(1, 3)),
        st.tuples(st.just("read"), st.just(b"c"), st.just(1)),
        st.tuples(st.just("next"), st.sampled_from([b"c", b"d"]), st.sampled_from([None, 1, 2])),
        st.tuples(st.just("policy"), st.sampled_from(POLICIES)),
        st.tuples(st.just("lease"), st.sampled_from([b"c", b"c", b"d"]), st.integers(1, 3)),
        st.tuples(st.just("lease"), st.just(b"c"), st.just(1)),
        st.tuples(st.just("nack"), SMALL),
        st.tuples(st.just("noack"), st.just(b"c"), st.integers(1, 3)),
        st.tuples(st.just("ack"), SMALL),
        st.tuples(st.just("ack"), st.just(0)),
        st.tuples(st.just("settle"), SMALL, st.sampled_from([b"c", b"c", b"d"]), st.integers(1, 2)),
        st.tuples(st.just("delete"), SMALL),
        st.tuples(st.just("delete all"), SMALL),
        st.tuples(st.just("claim"), SMALL),
        st.tuples(st.just("count")),
        st.tuples(st.just("set_id"), SMALL),
        st.tuples(st.just("wait"), st.integers(1, 5000)),
        st.tuples(st.just("commit")),
        st.tuples(st.just("reload")),
        st.tuples(st.just("undo")),
    ),
    max_size=60,
)


@contextmanager
def without_twins() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patches:
        for user in USERS:
            patches.setattr(user, "plain", None)
        yield


class Side:
    """A store on which steps run; both sides must have the same results and rows."""

    def __init__(
        self, database: Database, sizes: Thresholds, options: StoreOptions | None = None
    ) -> None:
        self.metadata = Metadata(database, options or StoreOptions(), thresholds=sizes)
        self.ids: list[StreamID] = []
        groups.create_group(self.metadata.txn, NAME, b"g", StreamID(0, 0), mkstream=True)
        self.metadata.commit()
        self.now_ms = NOW_MS

    def run(self, step: tuple[Any, ...]) -> Any:
        """Run a step; return its result, and the rows that a commit writes."""
        kind, *args = step
        txn = self.metadata.txn
        txn.now_ms = self.now_ms
        eid = self.ids[-1 - args[0] % len(self.ids)] if self.ids and kind not in _OTHERS else None
        if kind == "add":
            name, size = args
            added = append.add(txn, NAME, *encode_flat([name, b"v" * size]))
            assert added is not None
            self.ids.append(added)
            return added
        if kind == "trim":
            trim = Trim(Strategy.MAXLEN, args[0])
            added = append.add(txn, NAME, *encode_flat([b"f", b"v"]), trim=trim)
            assert added is not None
            self.ids.append(added)
            return added
        if kind in ("read", "noack"):
            consumer, count = args
            noack = kind == "noack"
            found = readgroup.read_short(txn, NAME, b"g", consumer, count, noack)
            return None if found is None else [*found]
        if kind == "next":
            consumer, count = args
            return [*readgroup.read_new(txn, NAME, b"g", consumer, count)]
        if kind == "policy":
            return policy.set_policy(txn, NAME, b"g", args[0])
        if kind == "lease":
            consumer, count = args
            reply = readgroup.lease(txn, [NAME], b"g", consumer, count, 2000)
            return [(name, [*entries]) for name, entries in reply]
        if kind == "nack" and eid is not None:
            return ack.negative_acknowledge(txn, NAME, b"g", [eid], Nack(NackMode.FAIL))
        if kind == "ack" and eid is not None:
            return ack.acknowledge_packed(txn, NAME, b"g", [eid.packed])
        if kind == "settle" and eid is not None:
            return leases.ack(txn, NAME, b"g", args[1], [(eid, args[2])])
        if kind == "delete" and eid is not None:
            return delete.delete(txn, NAME, [eid])
        if kind == "delete all" and eid is not None:
            return delete.delete(txn, NAME, [eid, *self.ids[-2:]])
        if kind == "claim" and eid is not None:
            return [*claim.claim(txn, NAME, b"g", b"d", 0, [eid])]
        if kind == "set_id" and eid is not None:
            return groups.set_group_id(txn, NAME, b"g", eid, None)
        if kind == "count":
            return pel_index.pending_in(txn, self.metadata.group(NAME))
        if kind == "wait":
            self.now_ms += args[0]
        if kind in ("commit", "reload", "undo"):
            return self.commit(kind == "reload")
        if kind == "undo":
            self.metadata.abandon()
        return None

    def commit(self, reload: bool) -> Any:
        """Commit; return the rows."""
        batch = self.metadata.txn.finish()
        if batch is None:
            return None
        batch.put_deferred()
        rows = [dict(puts) for puts in batch.puts]
        self.metadata.reload() if reload else self.metadata.commit()
        return rows, batch.ranges


_OTHERS = (
    *("add", "trim", "read", "next", "noack", "policy", "lease", "count", "wait"),
    *("commit", "reload", "undo"),
)


@given(STEPS, st.booleans())
@settings(max_examples=int(os.environ.get("KVSTREAM_EXAMPLES") or 60), deadline=None)
def test_both_twins_have_the_same_results_and_write_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]], small: bool
) -> None:
    folder = tmp_path_factory.mktemp("twins")
    options = StoreOptions(stream_node_max_entries=4 if small else 100)
    one, other = (Database.open(folder / side, options) for side in ("one", "other"))
    try:
        compiled, python = (
            Side(database, SIZES if small else DEFAULT, options) for database in (one, other)
        )
        for step in [*steps, ("commit",)]:
            found = compiled.run(step)
            with without_twins():
                assert python.run(step) == found
    finally:
        one.close()
        other.close()


def test_a_clock_before_1970_gives_the_ids_that_python_gives(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with closing(Database.open(tmp_path_factory.mktemp("clock") / "s", StoreOptions())) as database:
        side = Side(database, DEFAULT)
        first = side.run(("add", b"f", 1))
        side.now_ms = -1
        assert side.run(("add", b"f", 1)) == first.next()


def test_compiled_code_does_the_plain_cycle(tmp_path_factory: pytest.TempPathFactory) -> None:
    """After the first entry, which makes the consumer and its activity known."""
    with closing(Database.open(tmp_path_factory.mktemp("cycle") / "s", StoreOptions())) as database:
        side = Side(database, DEFAULT)
        for step in (("add", b"f", 1), ("read", b"c", 1), ("ack", 0), ("commit",)):
            side.run(step)
        txn = side.metadata.txn
        group = side.metadata.group(NAME)
        for _ in range(3):
            added = plain.append(txn, NAME, *encode_flat([b"f", b"v"]))
            assert added is not None
            assert plain.read_new(Run, txn, NAME, b"g", b"c", 1) is not None
            assert plain.discard(Run, txn, group, added.packed, b"d", 1) == -1
            assert plain.discard(Run, txn, group, added.packed, b"c", 2) == -1
            assert plain.discard(Run, txn, group, added.packed, b"c", 1) == 1
            assert plain.discard(Run, txn, group, added.packed, b"c", 1) == 0
            assert plain.discard(Run, txn, group, added.packed) == 0


def test_compiled_code_deletes_from_nodes_of_known_ids(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The first deletion from a node makes the live IDs known; the last one ends the node."""
    options = StoreOptions(stream_node_max_entries=4)
    folder = tmp_path_factory.mktemp("known") / "s"
    with closing(Database.open(folder, options)) as database:
        side = Side(database, DEFAULT, options)
        ids = [side.run(("add", b"f", 1)).packed for _ in range(12)]
        side.run(("commit",))

        def delete_plain(number: int) -> int:
            return plain.delete(nodes.measure, side.metadata.txn, NAME, ids[number])

        for first in (0, 8):  # of the head and of the open node
            assert delete_plain(first) == -2
            assert delete.delete_one(side.metadata.txn, NAME, ids[first]) == 1
            assert [delete_plain(first + more) for more in range(4)] == [0, 1, 1, -2]
        stream = side.metadata.stream(NAME)
        assert (stream.length, stream.nodes, stream.first) == (6, 3, StreamID.unpack(ids[3]))
        assert stream.max_deleted == StreamID.unpack(ids[10])
        side.metadata.catalog.wanted_events = 1
        side.run(("commit",))
        assert delete_plain(2) == -2


def test_compiled_code_does_the_plain_cycle_of_a_queue(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with closing(Database.open(tmp_path_factory.mktemp("queue") / "s", StoreOptions())) as database:
        side = Side(database, DEFAULT)
        for step in (
            *(("policy", {"lease_ms": 3000}), ("add", b"f", 1), ("lease", b"c", 1)),
            *(("settle", 0, b"c", 1), ("commit",)),
        ):
            side.run(step)
        txn = side.metadata.txn
        for _ in range(3):
            added = plain.append(txn, NAME, *encode_flat([b"f", b"v"]))
            assert added is not None
            assert plain.lease(Run, txn, NAME, b"g", b"c", 1, 2000) is not None
            assert plain.finish(txn) is txn.batch
            txn.batch.put_deferred()
            assert plain.settle(Run, txn, NAME, b"g", b"d", added, 1) == -1
            assert plain.settle(Run, txn, NAME, b"g", b"c", added, 1) == 1
            assert plain.settle(Run, txn, NAME, b"g", b"c", added, 1) == 0
            assert plain.finish(txn) is txn.batch
        assert plain.settle(Run, txn, NAME, b"g", b"c", StreamID(-1, 0), 1) == -2


@given(st.lists(st.integers(-1, 1 << 65) | st.integers(0, 9), min_size=12, max_size=12))
@example([1 << 31] * 12)
@example([(1 << 63) - 1] * 12)
@settings(deadline=None)
def test_both_twins_encode_a_group_alike(numbers: list[int]) -> None:
    group = records.GroupMeta(b"g", b"row", numbers[0], run_tree(1, DEFAULT), key_tree(2, DEFAULT))
    group.last_delivered = StreamID(*numbers[1:3])
    group.entries_read, group.pending, group.nacked, group.nack_rank = numbers[3:7]
    group.consumers_count, group.runs.id, group.times.id = numbers[7:10]
    group.indexed = bool(numbers[1] % 2)
    group.policy = GroupPolicy(lease_ms=5) if numbers[2] % 2 else None
    group.rated = [(1, 2)] if numbers[0] == 1 else []
    group.activity = records.Activity(numbers[10], numbers[11], b"c" * (numbers[1] % 300))
    found = plain.encode_group(group)
    with without_twins():
        if found is None:
            with suppress(StructError):
                group.encode()
        else:
            assert group.encode() == found


def test_both_twins_reset_a_transaction_alike(tmp_path_factory: pytest.TempPathFactory) -> None:
    with closing(Database.open(tmp_path_factory.mktemp("reset") / "s", StoreOptions())) as database:
        one, other = (Metadata(database).txn for _ in range(2))
        for txn in (one, other):
            txn.frees = txn.only_redelivered = True
            txn.groups_dropped = 3
            txn.events.append((XADD, NAME))
            txn.signals[NAME] = Wake.ADDED
            txn.unwritten[NAME] = StreamID(1, 1)
            txn.missing.add(NAME)
        assert plain.reset(one, NOW_MS + 5, True)
        with without_twins():
            other.reset(NOW_MS + 5, True)
        for name in set(Changeset.__slots__ + Txn.__slots__) - {"batch", "catalog"}:
            if not name.startswith("_") and name != "thresholds":
                assert getattr(one, name) == getattr(other, name), name


class OtherTxn(Txn):
    """A class whose slots compiled code has not found."""


def test_objects_of_other_classes_are_not_plain(tmp_path_factory: pytest.TempPathFactory) -> None:
    with closing(Database.open(tmp_path_factory.mktemp("other") / "s", StoreOptions())) as database:
        side = Side(database, DEFAULT)
        for step in (("add", b"f", 1), ("read", b"c", 1), ("commit",)):
            side.run(step)
        txn = OtherTxn(database, side.metadata.catalog, NOW_MS)
        stream, group = side.metadata.stream(NAME), side.metadata.group(NAME)
        consumer = side.metadata.consumer(group, b"c")
        eid = side.ids[0].packed
        assert plain.append(txn, NAME, *encode_flat([b"f", b"v"])) is None
        assert plain.read_new(Run, txn, NAME, b"g", b"c", 1) is None
        assert plain.give(Run, txn, stream, group, consumer, [eid]) is False
        assert plain.acknowledge(Run, txn, NAME, b"g", eid) == -2
        assert plain.discard(Run, txn, group, eid) == -2
        assert plain.delete(nodes.measure, txn, NAME, eid) == -2
        assert plain.lease(Run, txn, NAME, b"g", b"c", 1, 2000) is None
        assert plain.settle(Run, txn, NAME, b"g", b"c", side.ids[0], 1) == -2
        assert plain.reset(txn, NOW_MS, False) is False
        assert plain.finish(txn) is False
        assert plain.put_changed(group.times, txn.batch) is False


def test_a_class_without_slots_is_refused() -> None:
    with pytest.raises(TypeError, match="object has no slot"):
        plain.bind(*[object] * 13, Run.encode)  # type: ignore[call-arg]


def test_compiled_code_has_the_bounds_of_python() -> None:
    assert {
        "near": filling._NEAR,
        "counters_max": filling._COUNTERS_MAX,
        "head_far": filling._HEAD_FAR,
        "noted_bytes_max": filling._NOTED_BYTES_MAX,
        "node_bytes_max": filling.NODE_BYTES_MAX,
        "unrecorded_max": records.UNRECORDED_MAX,
        "first_page": limits.FIRST_PAGE,
        "first_bytes": limits.FIRST_BYTES,
        "short": rows.FEW,
        "member_version": records.MEMBER_VERSION,
        "policy_version": records.POLICY_VERSION,
        "group_bytes": records._GROUP.size,
        "activity_bytes": records._HEAD.size,
        "run_bytes": runs.HEAD_BYTES,
    } == plain.BOUNDS
