"""XADDs that trim together have the effect of single ones."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvstream.layout.values import encode_fields
from kvstream.meta import nodes
from kvstream.operations import append, delete
from kvstream.operations.trim import Strategy, Trim, may_trim_once
from kvstream.storage.batch import Family
from kvstream.storage.database import Database
from kvstream.types.ids import StreamID
from kvstream.types.options import RefPolicy, StoreOptions
from tests.examples import examples
from tests.meta.rows import NOW_MS, Metadata, fresh_name

SMALL = StoreOptions(stream_node_max_entries=4, stream_node_max_bytes=160)
WIDE = StoreOptions(stream_node_max_entries=200, stream_node_max_bytes=1700)
UNBOUNDED = StoreOptions(stream_node_max_entries=0, stream_node_max_bytes=1700)

TINY = encode_fields({"a": ""})
VALUES = st.sampled_from(["", "", "x", "x" * 30])
ENTRY = st.builds(lambda value: encode_fields({"a": value}), VALUES)
LIMITS = st.sampled_from([None, None, 0, 1, 3, 4, 9, 200])


def by_length(most: int, limit: int | None) -> Trim:
    return Trim(Strategy.MAXLEN, maxlen=most, approximate=True, limit=limit)


def by_id(seq: int, limit: int | None) -> Trim:
    return Trim(Strategy.MINID, minid=StreamID(NOW_MS, seq), approximate=True, limit=limit)


def steps(most: int) -> st.SearchStrategy[list[Any]]:
    """Return what is done to streams that get up to ``most`` entries at once."""
    approximate = st.builds(by_length, st.integers(0, most), LIMITS) | st.builds(
        by_id, st.integers(0, 3 * most), LIMITS
    )
    exact = approximate.map(lambda trim: replace(trim, approximate=False, limit=None))
    odd = exact.flatmap(
        lambda trim: st.sampled_from(RefPolicy).map(lambda policy: replace(trim, policy=policy))
    )
    runs = st.lists(
        st.tuples(
            st.none() | approximate | exact | odd,
            st.lists(st.tuples(ENTRY, st.integers(1, most)), min_size=1, max_size=2),
        ),
        min_size=1,
        max_size=3,
    )
    deleted = st.sets(st.integers(0, 3 * most), max_size=12)
    return st.lists(runs | runs | deleted | st.sampled_from(["commit", "reload"]), max_size=12)


def seen(metadata: Metadata, name: bytes) -> list[Any]:
    """Return the state of a stream: its counters, its nodes and its live entries."""
    txn, stream = metadata.txn, metadata.stream(name)
    rows = txn.batch.page(
        Family.MESSAGES, stream.prefix + stream.first.packed, stream.prefix + b"\xff" * 17, 9999
    )
    nodes.measure(txn.batch, stream)
    return [
        (stream.length, stream.entries_added, stream.nodes, stream.max_deleted),
        (stream.last, stream.first, stream.head),
        [
            (node.first, node.last, node.appended, node.live, node.size, node.names)
            for node in nodes.from_head(txn, stream)
        ],
        [(key[-16:], value) for key, value in rows] if stream.length else [],
    ]


def run(metadata: Metadata, one: bytes, other: bytes, runs: list[Any]) -> None:
    """Add entries to one stream together, and to the other one by one."""
    trims = [trim for trim, entries in runs for _, count in entries for _ in range(count)]
    added = [entry for _, entries in runs for entry, count in entries for _ in range(count)]
    together = append.add_each(metadata.txn, one, added, trims)
    assert together == [
        append.add(metadata.txn, other, value, names, trim=trim)
        for (value, names), trim in zip(added, trims, strict=True)
    ]


def prove(database: Database, options: StoreOptions, done: list[Any]) -> StreamID:
    """Apply all changes to two streams, in both ways; return the final start of the open node."""
    metadata = Metadata(database, options)
    one, other = fresh_name(), fresh_name()
    for step in done:
        if step == "commit":
            metadata.commit()
        elif step == "reload":
            metadata.reload()
        elif isinstance(step, set):
            for name in (one, other):
                delete.delete(metadata.txn, name, [StreamID(NOW_MS, seq) for seq in sorted(step)])
        else:
            run(metadata, one, other, step)
        assert seen(metadata, one) == seen(metadata, other)
    return metadata.stream(one).open_first


@settings(max_examples=examples(100))
@given(done=steps(12))
@example(done=[[(None, [(TINY, 20)])], [(by_id(16, 4), [(TINY, 3)])]])
def test_the_result_equals_that_of_single_appends(database: Database, done: list[Any]) -> None:
    prove(database, SMALL, done)


@pytest.mark.parametrize("options", [WIDE, UNBOUNDED])
@pytest.mark.parametrize(
    "trim", [Trim(Strategy.MAXLEN, maxlen=20), Trim(Strategy.MINID, minid=StreamID(NOW_MS, 60))]
)
def test_nodes_of_many_entries_end_where_they_would(
    database: Database, options: StoreOptions, trim: Trim
) -> None:
    """The counts of live and dead entries take another byte each from 128 on."""
    metadata, name = Metadata(database, options), fresh_name()
    append.add_many(metadata.txn, name, [TINY] * 130)
    nodes.measure(metadata.txn.batch, metadata.stream(name))
    room = options.stream_node_max_bytes - metadata.stream(name).open_bytes
    ends = set()
    for size in range(room - 9, room):
        last = encode_fields({"a": "x" * size})
        runs = [[(None, [(TINY, 100)])], [(trim, [(TINY, 30), (last, 1)])]]
        ends.add(prove(database, options, runs))
    assert len(ends) == 2, "no size ends the node"


@pytest.mark.parametrize(
    ("trim", "once"),
    [
        (Trim(Strategy.MAXLEN, maxlen=1, approximate=True), True),
        (Trim(Strategy.MAXLEN, maxlen=3), True),
        (Trim(Strategy.MAXLEN, maxlen=10, approximate=True, limit=13), True),
        (Trim(Strategy.MAXLEN, maxlen=10, approximate=True, limit=12), False),
        (Trim(Strategy.MINID, minid=StreamID(NOW_MS, 9)), True),
        (Trim(Strategy.MINID, minid=StreamID(NOW_MS, 10)), False),
        (Trim(Strategy.MINID, minid=StreamID(NOW_MS, 9), approximate=True), True),
        (Trim(Strategy.MINID, minid=StreamID(NOW_MS, 10), approximate=True), False),
        (Trim(Strategy.MAXLEN, maxlen=10, policy=RefPolicy.ACKED), False),
    ],
)
def test_trims_that_touch_no_open_node_and_meet_no_limit_are_one(
    database: Database, trim: Trim, once: bool
) -> None:
    metadata, name = Metadata(database, SMALL), fresh_name()
    append.add_many(metadata.txn, name, [encode_fields({"a": ""})] * 10)
    assert may_trim_once(metadata.catalog.limits, metadata.stream(name), trim, 13) is once
