"""How entries are packed into nodes: compiled, in Python, and one by one as XADD does it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstream import InvalidArgument, ManualClock, Store
from kvstream.layout import twins
from kvstream.layout.values import encode_fields
from kvstream.meta.bulk_fill import fit, fit_in_python, names_of
from kvstream.types.ids import StreamID
from kvstream.types.images import NodeImage, StreamState
from tests.operations.images.kept import Kept, take_image

NAMES = st.binary(max_size=3)
VALUES = st.one_of(
    st.binary(max_size=5),
    st.integers(-(1 << 64), 1 << 64).map(lambda n: b"%d" % n),
    st.sampled_from([b"x" * 63, b"x" * 64, b"y" * 5000, b"0", b"-0", b"00"]),
)
ENTRIES = st.lists(
    st.lists(st.tuples(NAMES, VALUES), min_size=1, max_size=4), min_size=1, max_size=12
)
GAPS = st.sampled_from([1, 2, 200, 1 << 16, 1 << 40, 1 << 63])


@given(entries=ENTRIES, gaps=st.lists(GAPS, min_size=12, max_size=12), limit=st.integers(30, 6000))
def test_both_ways_measure_the_same(
    entries: list[list[tuple[bytes, bytes]]], gaps: list[int], limit: int
) -> None:
    values = [encode_fields(each)[0] for each in entries]
    place, ids = 0, []
    for gap in gaps[: len(values)]:
        place += gap << 64 if gap < 1000 else gap
        ids.append(place.to_bytes(16, "big"))
    names = names_of(values[0])
    given_to = (ids, values, 0, len(ids), names, ids[0], (11, 0, 0), limit)
    assert fit(*given_to) == fit_in_python(*given_to)


def test_invalid_values_are_left_to_python() -> None:
    if twins is None:
        pytest.skip("the compiled twins are not installed")
    for bad in (b"", b"\x01", b"\x01\x80", b"\x01\x81\xa1", b"\x03\x81\xa1f\xa1v"):
        assert twins.fit([bytes(16)], [bad], 0, 1, (b"f",), bytes(16), (0, 0, 0), 99) is None


@settings(max_examples=30)
@given(
    entries=st.lists(st.integers(1, 700), min_size=1, max_size=60),
    most=st.sampled_from([0, 3, 100]),
    size=st.sampled_from([0, 200, 4096]),
    cut=st.integers(1, 20),
)
def test_pages_are_packed_into_the_nodes_of_xadd(
    tmp_path_factory: pytest.TempPathFactory, entries: list[int], most: int, size: int, cut: int
) -> None:
    options: dict[str, Any] = {
        "stream_node_max_entries": most,
        "stream_node_max_bytes": size,
    }
    directory = tmp_path_factory.mktemp("store")
    with Store.open(directory, clock=ManualClock(), durability="no", **options) as store:
        fields: list[dict[str, int | str]] = [
            {"f": "x" * n} if n % 7 else {"g": n, "h": "y"} for n in entries
        ]
        for number, each in enumerate(fields, 1):
            store.stream("s").add(each, id=(number * 3, number % 5))
        wanted = take_image(store, "s")
        ids = [eid for node in wanted.found for eid in node.ids]
        values = [value for node in wanted.found for value in node.values]
        pages = [
            NodeImage(b"", (), ids[at : at + cut], values[at : at + cut], 0, 0)
            for at in range(0, len(ids), cut)
        ]
        assert store.load("t", Kept(pages, wanted.rest)).corrections == []
        assert take_image(store, "t") == wanted
        assert store.check() == []


def test_entries_out_of_order_are_refused_and_leave_nothing(store: Store) -> None:
    value, _ = encode_fields({"f": "v"})
    ids = [StreamID(n, 0).packed for n in (1, 3, 2)]
    state = StreamState(length=3, last=StreamID(3, 0))
    for size in (0, 50):
        node = NodeImage(ids[0], (b"f",), ids, [value] * 3, 3, size)
        with pytest.raises(InvalidArgument, match="entry 2-0 is out of order"):
            store.load("s", Kept([node], state))
    with store.transaction():
        with pytest.raises(InvalidArgument):
            store.load("s", Kept([node], state))
        store.stream("t").add({"f": "v"})
    assert store.keys() == [b"t"]
    assert store.check() == []
