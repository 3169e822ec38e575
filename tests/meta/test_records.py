"""Records of streams, nodes, groups, consumers and runs: round trips, and damage."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream import Corruption, StreamID, WrongType
from kvstream.layout.keys import COUNTED_MAX, message_prefix
from kvstream.meta.policy import GroupPolicy
from kvstream.meta.records import Activity, ConsumerMeta, GroupMeta, Node, StreamMeta
from kvstream.meta.runs import Run, run_tree, time_of
from kvstream.meta.trees import key_tree
from kvstream.types.thresholds import DEFAULT

NAME = b"\x00\x03orders"
U32, U64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
GIVEN_OUT = st.integers(1, COUNTED_MAX - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
IDS = st.builds(StreamID, U64, U64)
NAMES = st.lists(st.binary(max_size=8), max_size=4).map(tuple)

STREAM_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("length", "entries_added", "expire_at"), U64),
    **dict.fromkeys(("pids", "iids", "iids_added", "iids_duplicates"), U64),
    **dict.fromkeys(("unswept", "nodes", "open_appended", "open_live", "open_bytes"), U32),
    **dict.fromkeys(("groups_count", "idmp_duration", "idmp_maxsize"), U32),
    **dict.fromkeys(("last", "first", "head", "swept", "max_deleted", "open_first"), IDS),
    **dict.fromkeys(("open_last", "measured"), IDS),
    **dict.fromkeys(("generation", "nodes_tree"), GIVEN_OUT),
    **dict.fromkeys(("groups_tree", "idmp_tree"), GIVEN_OUT | st.just(0)),
    "prefix": st.builds(message_prefix, st.binary(min_size=2, max_size=9), U64),
    "names": NAMES,
}
QUEUE_FIELDS = {"queue_tree": GIVEN_OUT, "due_at": U64}
POLICIES = st.none() | st.builds(
    GroupPolicy,
    lease_ms=st.integers(0, COUNTED_MAX - 1),
    backoff_ms=st.lists(st.integers(0, COUNTED_MAX - 1), max_size=4).map(tuple),
    dead_letter=st.binary(max_size=9),
    paused=st.booleans(),
    keyed_tree=GIVEN_OUT | st.just(0),
)
GROUP_FIELDS = {
    **dict.fromkeys(("pending", "nacked", "nack_rank"), U64),
    "last_delivered": IDS,
    "entries_read": I64,
    "indexed": st.booleans(),
    "activity": st.builds(Activity, U64, I64, st.binary(max_size=9)),
    "consumers_count": U32,
    "policy": POLICIES,
}


def a_stream() -> StreamMeta:
    stream = StreamMeta(NAME, 7)
    stream.nodes_tree = 8
    stream.names = (b"sku", b"qty")
    return stream


def a_group() -> GroupMeta:
    return GroupMeta(b"g", b"row", 3, run_tree(4, DEFAULT), key_tree(5, DEFAULT))


def a_consumer() -> ConsumerMeta:
    return ConsumerMeta(b"c", b"row", key_tree(6, DEFAULT), seen_ms=8)


def a_node() -> Node:
    return Node(StreamID(1, 0), StreamID(2, 0), 3, 2, 99, (b"sku",), is_open=False)


def a_run(owner: bytes = b"c") -> Run:
    return Run(bytes(16), bytes(16) + b"\x01" * 16, owner, 5, 2)


@given(st.fixed_dictionaries(STREAM_FIELDS) | st.fixed_dictionaries(STREAM_FIELDS | QUEUE_FIELDS))
def test_a_stream_s_record_is_read_back_as_it_was(fields: dict[str, Any]) -> None:
    stream = a_stream()
    for field, value in fields.items():
        setattr(stream, field, value)
    found = StreamMeta.decode(NAME, stream.encode())
    assert {field: getattr(found, field) for field in fields} == fields
    assert (found.name, found.row) == (NAME, b"S" + NAME)
    assert found.encode() == stream.encode()


def test_the_cold_part_of_a_record_is_encoded_again_only_on_request() -> None:
    stream = a_stream()
    before = stream.encode()
    stream.length, stream.expire_at = 1, 5
    assert StreamMeta.decode(NAME, stream.encode()).expire_at == 0
    assert StreamMeta.decode(NAME, stream.encode()).length == 1
    stream.forget_cold_part()
    assert StreamMeta.decode(NAME, stream.encode()).expire_at == 5
    assert len(stream.encode()) == len(before)


@given(st.fixed_dictionaries(GROUP_FIELDS), st.lists(GIVEN_OUT, min_size=3, max_size=3))
def test_a_group_s_record_is_read_back_as_it_was(fields: dict[str, Any], trees: list[int]) -> None:
    group = GroupMeta(
        b"g", b"row", trees[0], run_tree(trees[1], DEFAULT), key_tree(trees[2], DEFAULT)
    )
    for field, value in fields.items():
        setattr(group, field, value)
    found = GroupMeta.decode(b"g", b"row", group.encode())
    assert {field: getattr(found, field) for field in fields} == fields
    assert (found.name, found.row) == (b"g", b"row")
    assert [found.consumers_tree, found.runs.id, found.times.id] == trees


@given(GIVEN_OUT, I64, I64, U64, U64)
def test_a_consumer_s_record_is_read_back_as_it_was(
    tree: int, seen_ms: int, active_ms: int, pending: int, activity: int
) -> None:
    consumer = ConsumerMeta(b"c", b"row", key_tree(tree, DEFAULT), seen_ms)
    consumer.active_ms, consumer.pending, consumer.activity = active_ms, pending, activity
    found = ConsumerMeta.decode(b"c", b"row", consumer.encode())
    assert (found.name, found.row, found.runs.id) == (b"c", b"row", tree)
    assert (found.seen_ms, found.active_ms, found.pending) == (seen_ms, active_ms, pending)
    assert found.activity == activity


@given(IDS, IDS, U32, U32, U32, NAMES)
def test_a_closed_node_s_record_is_read_back_as_it_was(
    first: StreamID, last: StreamID, appended: int, live: int, size: int, names: tuple[bytes, ...]
) -> None:
    node = Node(first, last, appended, live, size, names, is_open=False)
    assert Node.decode(first, node.encode()) == node


@given(
    st.lists(IDS, min_size=1, max_size=20, unique=True).map(sorted),
    st.binary(max_size=9),
    U64,
    U64,
    U64,
)
def test_a_run_is_read_back_as_it_was(
    ids: list[StreamID], owner: bytes, time_ms: int, deliveries: int, rank: int
) -> None:
    packed = [eid.packed for eid in ids]
    run = Run.of(packed, (owner, time_ms, deliveries, rank))
    assert Run.decode(packed[0], run.encode()) == run
    assert time_of(run.times_suffix) == time_ms
    assert run.times_suffix.endswith(packed[0])
    assert run.owned == (rank == 0)


DECODERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "stream": (lambda record: StreamMeta.decode(NAME, record), a_stream().encode()),
    "group": (lambda record: GroupMeta.decode(b"g", b"row", record), a_group().encode()),
    "consumer": (lambda record: ConsumerMeta.decode(b"c", b"row", record), a_consumer().encode()),
    "node": (lambda record: Node.decode(StreamID(1, 0), record), a_node().encode()),
    "run": (lambda record: Run.decode(bytes(16), record), a_run().encode()),
}
every_kind = pytest.mark.parametrize(("decode", "record"), DECODERS.values(), ids=DECODERS.keys())


@every_kind
def test_a_record_cut_short_anywhere_is_corruption(
    decode: Callable[[bytes], object], record: bytes
) -> None:
    is_run = record == a_run().encode()
    for length in range(1, len(record)):
        if is_run and length == len(record) - 16:
            continue  # a run that is shorter by one ID
        with pytest.raises(Corruption, match="is damaged"):
            decode(record[:length])


@every_kind
@pytest.mark.parametrize("rest", [b"\x00", b"\xff" * 7])
def test_a_record_that_is_too_long_is_corruption(
    decode: Callable[[bytes], object], record: bytes, rest: bytes
) -> None:
    with pytest.raises(Corruption, match="is damaged"):
        decode(record + rest)


@pytest.mark.parametrize(("kind", "at"), [("stream", 1), ("group", 0), ("consumer", 0)])
def test_a_record_of_an_unknown_version_is_corruption(kind: str, at: int) -> None:
    decode, record = DECODERS[kind]
    with pytest.raises(Corruption, match="unknown version 9"):
        decode(record[:at] + b"\x09" + record[at + 1 :])


@pytest.mark.parametrize("kind", ["stream", "node"])
@pytest.mark.parametrize("names", [b"\x05", b"\xc1", b"\x81", b"\xa1a", b"\x92\x05\x80", b"\xc0"])
def test_names_that_are_no_array_of_names_are_corruption(kind: str, names: bytes) -> None:
    decode, record = DECODERS[kind]
    empty = b"\x92\xa3sku\xa3qty" if kind == "stream" else b"\x91\xa3sku"
    assert record.endswith(empty)
    with pytest.raises(Corruption, match="is damaged"):
        decode(record.removesuffix(empty) + names)


@every_kind
@given(data=st.data())
def test_a_damaged_record_is_another_or_corruption(
    decode: Callable[[bytes], object], record: bytes, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(record) - 1))
    byte = data.draw(st.integers(0, 255))
    with suppress(Corruption, WrongType):
        decode(record[:at] + bytes([byte]) + record[at + 1 :])


def test_a_record_of_another_kind_is_a_wrong_type() -> None:
    with pytest.raises(WrongType, match="Operation against a key holding the wrong kind of value"):
        StreamMeta.decode(NAME, b"\x02" + a_stream().encode()[1:])


@pytest.mark.parametrize("record", [b"", bytes(28), a_run(b"").encode()[:-32]])
def test_a_run_without_ids_is_corruption(record: bytes) -> None:
    with pytest.raises(Corruption, match=r"the run of pending entries at 0000.* is damaged"):
        Run.decode(bytes(16), record)


def test_a_node_has_its_own_names_and_not_those_of_the_one_before() -> None:
    names, others, long = (b"sku",), (b"qty", b"sku"), (b"n" * 5000,)
    for each in (names, others, names, names, long, names, long):
        node = Node(StreamID(1, 0), StreamID(2, 0), 3, 2, 99, each, is_open=False)
        assert Node.decode(node.first, node.encode()).names == each
