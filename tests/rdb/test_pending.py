"""Pending lists, read and written by both twins."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvstream.rdb import streams
from kvstream.rdb.primitives import Reader
from kvstream.types.ids import StreamID
from kvstream.types.images import GroupImage
from tests.examples import examples
from tests.rdb import generated


@settings(max_examples=examples())
@given(
    st.lists(
        st.tuples(generated.IDS, st.integers(-(1 << 63), (1 << 63) - 1), generated.COUNTS),
        max_size=20,
        unique_by=lambda each: each[0],
    ),
    st.integers(1, 30),
)
def test_pending_lists_are_written_and_read_alike(
    twins: Any, entries: list[tuple[StreamID, int, int]], most: int
) -> None:
    group = GroupImage(b"g", StreamID(0, 0), None)
    for eid, time_ms, deliveries in sorted(entries):
        group.pending.add(eid.packed, b"c", time_ms, deliveries)
    columns = group.pending.columns(0, len(entries))
    data = streams.encode_columns_in_python(*columns)
    assert twins.encode_pending(*columns) == data
    count = min(most, len(entries))
    slow = streams.read_columns_in_python(Reader(data), count)
    fast = twins.decode_pending(data, 0, len(data), most)
    if fast is None:
        assert not entries
    else:
        assert fast[:3] == (slow[0], slow[1].tobytes(), slow[2].tobytes())
        assert fast[3] == len(streams.encode_columns_in_python(*slow))


@settings(max_examples=examples(100))
@given(
    st.lists(st.integers(0, 40).map(lambda n: StreamID(0, n).packed), unique=True),
    st.lists(st.integers(0, 40).map(lambda n: StreamID(0, n).packed)),
    st.booleans(),
)
def test_ids_are_found_alike(
    twins: Any, ids: list[bytes], wanted: list[bytes], sound: bool
) -> None:
    ids.sort()
    if sound:
        wanted = sorted(set(wanted).intersection(ids))
    found = twins.find_ids(b"".join(ids), b"".join(wanted))
    assert found == streams.find_ids_in_python(b"".join(ids), b"".join(wanted))
    assert not sound or found is not None
