"""Compare nodes with a simple model: their ends, their counts, and their rest after trims."""

from random import Random
from typing import ClassVar, NamedTuple

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

from kvstream.layout.values import FieldsLike, encode_fields, encode_many, flat_bytes
from kvstream.meta import nodes
from kvstream.meta.records import StreamMeta
from kvstream.operations import append, delete, trim
from kvstream.operations.trim import Strategy, Trim
from kvstream.storage.database import Database
from kvstream.types.ids import MAX_ID, MIN_ID, StreamID
from kvstream.types.options import StoreOptions
from tests.examples import examples
from tests.layout.listpack_bytes import encode, encode_integer, listpack, signed
from tests.meta.rows import Metadata, between, fresh_name

MAX_ENTRIES, MAX_BYTES = 4, 160
OPTIONS = StoreOptions(stream_node_max_entries=MAX_ENTRIES, stream_node_max_bytes=MAX_BYTES)

VALUES = st.sampled_from(["", "1", "-5", "130", "x", "7" * 70, "x" * 30])
FIELDS: st.SearchStrategy[FieldsLike] = st.one_of(
    st.fixed_dictionaries({"a": VALUES}),
    st.fixed_dictionaries({"a": VALUES, "b": VALUES}),
    st.fixed_dictionaries({b"a": VALUES}),
    st.lists(st.tuples(st.just("a"), VALUES), min_size=2, max_size=3),
)
STEPS = st.sampled_from([(0, 1), (0, 200), (1, 0), (5, 3), (9000, 0)])
APPROXIMATE = st.booleans()


class Shape(NamedTuple):
    """The visible state of a node."""

    first: StreamID
    last: StreamID
    appended: int
    live: int
    size: int


class ModelNode:
    """A node that keeps the bytes of every entry it was ever given."""

    def __init__(self, first: StreamID, flat: list[bytes]) -> None:
        self.first = self.last = first
        self.names = flat[::2]
        self.appended = 0
        self.live: list[StreamID] = []
        self.elements = [encode_integer(len(self.names)), *map(encode, self.names)]
        self.elements.append(encode_integer(0))

    @property
    def size(self) -> int:
        return len(listpack(self.elements))

    def has_room(self, flat: list[bytes]) -> bool:
        counters = encode_integer(len(self.live)) + encode_integer(self.appended - len(self.live))
        bytes_now = self.size + len(counters)
        return self.appended < MAX_ENTRIES and bytes_now + sum(map(len, flat)) < MAX_BYTES

    def add(self, eid: StreamID, flat: list[bytes]) -> None:
        count, own = len(flat) // 2, flat[::2] == self.names
        deltas = signed(eid.ms - self.first.ms), signed(eid.seq - self.first.seq)
        head = [2 if own else 0, *deltas, *([] if own else [count])]
        end = count + 3 if own else 2 * count + 4
        self.elements += map(encode_integer, head)
        self.elements += map(encode, flat[1::2] if own else flat)
        self.elements.append(encode_integer(end))
        self.appended += 1
        self.live.append(eid)
        self.last = eid

    @property
    def shape(self) -> Shape:
        return Shape(self.first, self.last, self.appended, len(self.live), self.size)


class NodeMachine(RuleBasedStateMachine):
    """Adds, deletes and trims of one stream, beside the model of its nodes."""

    database: ClassVar[Database]

    def __init__(self) -> None:
        super().__init__()
        self.metadata = Metadata(self.database, OPTIONS)
        self.name = fresh_name()
        self.nodes: list[ModelNode] = []
        self.metadata.stream(self.name)
        self.metadata.commit()

    @property
    def stream(self) -> StreamMeta:
        return self.metadata.stream(self.name)

    @property
    def live(self) -> list[StreamID]:
        return [eid for node in self.nodes for eid in node.live]

    @rule(step=STEPS, fields=FIELDS)
    def add(self, step: tuple[int, int], fields: FieldsLike) -> None:
        last = self.stream.last
        ms, seq = last.ms + step[0], step[1] if step[0] else last.seq + step[1]
        eid = StreamID(ms, seq)
        value, names = encode_fields(fields)
        append.add(self.metadata.txn, self.name, value, names, eid)
        self.note(eid, fields)

    @rule(batch=st.lists(FIELDS, max_size=6))
    def add_many(self, batch: list[FieldsLike]) -> None:
        encoded = encode_many(batch)
        ids = append.add_many(self.metadata.txn, self.name, encoded)
        for eid, fields in zip(ids, batch, strict=True):
            self.note(eid, fields)

    def note(self, eid: StreamID, fields: FieldsLike) -> None:
        flat = flat_bytes(fields)
        if not self.nodes or not self.nodes[-1].has_room(flat):
            self.nodes.append(ModelNode(eid, flat))
        self.nodes[-1].add(eid, flat)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.live), min_size=1, unique=True))
        assert delete.delete(self.metadata.txn, self.name, chosen) == len(chosen)
        self.drop(chosen)

    @precondition(lambda self: self.nodes)
    @rule()
    def empty_the_last_node(self) -> None:
        chosen = list(self.nodes[-1].live)
        delete.delete(self.metadata.txn, self.name, chosen)
        self.drop(chosen)

    def drop(self, chosen: list[StreamID]) -> None:
        for node in self.nodes:
            node.live = [eid for eid in node.live if eid not in chosen]
        self.nodes = [node for node in self.nodes if node.live]

    @rule(maxlen=st.integers(0, 12), approximate=APPROXIMATE)
    def trim_by_length(self, maxlen: int, approximate: bool) -> None:
        how = Trim(Strategy.MAXLEN, maxlen=maxlen, approximate=approximate)
        before = len(self.live)
        removed = trim.trim(self.metadata.txn, self.name, how)
        if approximate:
            while self.nodes and len(self.live) - len(self.nodes[0].live) >= maxlen:
                self.nodes.pop(0)
        else:
            self.drop(self.live[: max(0, before - maxlen)])
        assert removed == before - len(self.live)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data(), approximate=APPROXIMATE)
    def trim_by_id(self, data: st.DataObject, approximate: bool) -> None:
        minid = data.draw(st.sampled_from(self.live))
        how = Trim(Strategy.MINID, minid=minid, approximate=approximate)
        trim.trim(self.metadata.txn, self.name, how)
        if approximate:
            while self.nodes[0].last < minid:
                self.nodes.pop(0)
        else:
            self.drop([eid for eid in self.live if eid < minid])

    @rule()
    def sweep(self) -> None:
        """Check that the rows of trimmed entries leave the disk."""
        trim.sweep(self.metadata.txn, self.stream, every=1)
        self.metadata.txn.counters_changed(self.stream)

    @rule()
    def commit(self) -> None:
        self.metadata.commit()

    @rule()
    def reload(self) -> None:
        self.metadata.reload()

    @rule()
    def measure(self) -> None:
        """Measure the open node: its bytes are counted late, at any time."""
        if self.stream.open_live:
            nodes.measure(self.metadata.txn.batch, self.stream)
            self.metadata.txn.counters_changed(self.stream)
            assert self.stream.open_bytes == self.nodes[-1].size

    @invariant()
    def nodes_are_those_of_the_model(self) -> None:
        stream = self.stream
        found = list(nodes.from_head(self.metadata.txn, stream))
        shapes = [Shape(node.first, node.last, node.appended, node.live, 0) for node in found]
        assert shapes == [node.shape._replace(size=0) for node in self.nodes]
        sizes = [node.size for node in found if not node.is_open]
        assert sizes == [node.size for node in self.nodes][: len(sizes)]
        assert [node.is_open for node in found[:-1]] == [False] * len(found[:-1])
        assert stream.nodes == len(found)
        assert stream.length == len(self.live)
        assert stream.first == (self.live[0] if self.live else MIN_ID)

    @rule()
    def look(self) -> None:
        """Check that counts by nodes equal counts of entries."""
        txn, stream = self.metadata.txn, self.stream
        found = [entry.id for entry in between(txn, stream, MIN_ID, MAX_ID, None)]
        assert found == self.live
        probes = {MIN_ID, MAX_ID, stream.last}
        for eid in self.live:
            probes |= {eid.previous(), eid, eid.next()}
            node = nodes.node_of(txn, stream, eid)
            assert node.first <= eid <= node.last
        for eid in probes:
            expected = sum(other > eid for other in self.live)
            assert nodes.live_after(txn, stream, eid) == expected


def test_nodes_are_those_of_a_plain_model(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeMachine, "database", database, raising=False)
    run_state_machine_as_test(
        NodeMachine,
        settings=settings(max_examples=examples(), stateful_step_count=30, deadline=None),
    )


@pytest.fixture
def two_nodes(database: Database) -> tuple[Metadata, bytes]:
    """A stream of 1-0 to 6-0: a closed node of four, and the open one."""
    metadata, name = Metadata(database, OPTIONS), fresh_name()
    value, names = encode_fields({"a": "1"})
    for ms in range(1, 7):
        append.add(metadata.txn, name, value, names, StreamID(ms, 0))
    metadata.commit()
    return metadata, name


def shapes_of(metadata: Metadata, name: bytes) -> list[tuple[int, int, int, bool]]:
    found = nodes.from_head(metadata.txn, metadata.stream(name))
    return [(node.first.ms, node.appended, node.live, node.is_open) for node in found]


@pytest.mark.parametrize("reload", [False, True])
def test_the_node_before_is_open_again_when_the_open_one_has_lost_all(
    two_nodes: tuple[Metadata, bytes], reload: bool
) -> None:
    metadata, name = two_nodes
    assert shapes_of(metadata, name) == [(1, 4, 4, False), (5, 2, 2, True)]
    delete.delete(metadata.txn, name, [StreamID(ms, 0) for ms in (2, 3, 5, 6)])
    if reload:
        metadata.reload()
    assert shapes_of(metadata, name) == [(1, 4, 2, True)]


def test_a_node_open_again_is_full_when_it_was_full_before(
    two_nodes: tuple[Metadata, bytes],
) -> None:
    metadata, name = two_nodes
    delete.delete(metadata.txn, name, [StreamID(ms, 0) for ms in (2, 3, 5, 6)])
    metadata.reload()
    value, names = encode_fields({"a": "1"})
    append.add(metadata.txn, name, value, names, StreamID(7, 0))
    assert shapes_of(metadata, name) == [(1, 4, 2, False), (7, 1, 1, True)]


def test_a_stream_that_has_lost_all_starts_with_a_new_node(
    two_nodes: tuple[Metadata, bytes],
) -> None:
    metadata, name = two_nodes
    trim.trim(metadata.txn, name, Trim(Strategy.MAXLEN))
    metadata.reload()
    assert shapes_of(metadata, name) == []
    value, names = encode_fields({"b": "2"})
    append.add(metadata.txn, name, value, names, StreamID(7, 0))
    assert shapes_of(metadata, name) == [(7, 1, 1, True)]
    assert metadata.stream(name).names == (b"b",)


@pytest.mark.parametrize("seed", range(8))
def test_entries_deleted_nearly_in_order_leave_the_right_nodes(
    database: Database, seed: int
) -> None:
    """Several clients share a deletion in order: nodes are read ahead, with their live IDs."""
    random, count = Random(seed), 50 * MAX_ENTRIES
    metadata, name = Metadata(database, OPTIONS), fresh_name()
    value, names = encode_fields({"a": "1"})
    for ms in range(1, count + 1):
        append.add(metadata.txn, name, value, names, StreamID(ms, 0))
    metadata.reload()
    live = list(range(1, count + 1))
    while live:
        ms = live.pop(random.randrange(min(len(live), 1 + seed * MAX_ENTRIES)))
        assert delete.delete(metadata.txn, name, [StreamID(ms, 0)]) == 1
        nodes_left = sorted({(each - 1) // MAX_ENTRIES for each in live})
        firsts = [number * MAX_ENTRIES + 1 for number in nodes_left]
        assert [first for first, *_ in shapes_of(metadata, name)] == firsts
        if random.random() < 0.1:
            metadata.commit()
        stream = metadata.stream(name)
        assert stream.first.ms == (live[0] if live else 0)


def test_a_node_between_two_that_followed_each_other_becomes_the_first(
    database: Database,
) -> None:
    """The last ID is set back, and a node begins again where a removed one has begun."""
    metadata, name = Metadata(database, OPTIONS), fresh_name()
    value, names = encode_fields({"a": "1"})

    def add(*ids: tuple[int, int]) -> None:
        for eid in ids:
            append.add(metadata.txn, name, value, names, StreamID(*eid))

    add(*[(ms, 0) for ms in range(1, 14)])
    metadata.reload()
    for ms in (1, 2, 3, *range(13, 4, -1)):  # all but 4-0
        delete.delete(metadata.txn, name, [StreamID(ms, 0)])
    metadata.stream(name).last = StreamID(4, 0)
    add((4, 1), (4, 2), (4, 3), (4, 4), (5, 0), (6, 0), (7, 0), (8, 0), (9, 0))
    delete.delete(metadata.txn, name, [StreamID(6, 0)])
    delete.delete(metadata.txn, name, [StreamID(4, 0)])
    assert [first for first, *_ in shapes_of(metadata, name)] == [4, 5, 9]
