"""Nodes read many at a time equal those read one by one, within the limit of a batch."""

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream.errors import BadPayload
from kvstream.layout.columns import (
    put_in_python,
    put_rows,
    unpack_in_python,
    unpack_rows,
)
from kvstream.layout.listpack import elements_size, node_size
from kvstream.meta.bulk_fill import fit_in_python, names_of
from kvstream.rdb import nodes as packed
from kvstream.rdb import twins
from kvstream.rdb.nodes import BATCH_BYTES, NodesReader, PackedNode, encode, encode_node
from kvstream.rdb.primitives import Reader, encode_length, encode_string
from kvstream.rdb.streams import StreamReading
from kvstream.rdb.versions import Kind
from kvstream.types.ids import StreamID
from kvstream.types.images import NodeImage
from tests.rdb.generated import IDS, entry, nodes
from tests.storage.stores import pack_rows

needs_twins = pytest.mark.skipif(twins is None, reason="the compiled twins are not installed")
KEY = StreamID(1, 1).packed
UNLIMITED = 1 << 62


@st.composite
def written_nodes(draw: st.DrawFn) -> list[bytes]:
    """Nodes as they are in a file, in order: their keys and listpacks, some of these as LZF."""
    ids = sorted(draw(st.sets(IDS, min_size=1, max_size=20)))
    found = []
    while ids:
        count = draw(st.integers(1, 6))
        node, ids = draw(nodes(ids[:count])), ids[count:]
        listpack = encode_string(encode_node(node), compress=draw(st.booleans()))
        found.append(encode_string(node.first) + listpack)
    return found


def read(data: bytes) -> tuple[list[NodeImage], list[str], str]:
    """Return a stream's nodes, their reports, and the end of reading them."""
    reading = StreamReading(Reader(data), Kind.COUNTERS)
    found: list[NodeImage] = []
    try:
        found.extend(reading.nodes())
    except BadPayload as error:
        return found, reading.corrections, str(error)
    return found, reading.corrections, ""


@needs_twins
@given(written_nodes(), st.data())
def test_nodes_are_the_same_with_either_reader(written: list[bytes], data: st.DataObject) -> None:
    sound = bytearray(b"".join(written))
    for _ in range(data.draw(st.integers(0, 2))):
        sound[data.draw(st.integers(0, len(sound) - 1))] = data.draw(st.integers(0, 255))
    whole = encode_length(len(written)) + bytes(sound)
    by_many = read(whole)
    with patch.object(packed, "twins", None):
        assert read(whole) == by_many


@needs_twins
@given(written_nodes())
def test_a_node_is_measured_as_it_is_read(written: list[bytes]) -> None:
    data = b"".join(written)
    used, found = NodesReader().read(data, 0, len(data), len(written), b"")
    assert (used, len(found)) == (len(data), len(written))
    for node in found:
        ids, values = unpack_in_python(node.rows)
        assert (node.count, node.value_bytes) == (len(ids), sum(map(len, values)))
        assert (node.first_id, node.last_id) == (ids[0], ids[-1])
        assert node._replace() == node
        if names_of(values[0]) != node.names:
            assert node.measure == -1
            continue
        empty = node_size(elements_size(node.names)[0], len(node.names)), 0, 0
        args = (ids, values, 0, len(ids), node.names, node.first, empty, UNLIMITED)
        assert node.measure == fit_in_python(*args)[1]


@needs_twins
def test_deleted_and_unusual_entries_are_left_to_the_slow_path() -> None:
    def written(*elements: Any) -> bytes:
        return encode_string(KEY) + encode_string(encode(list(elements)))

    living = written(1, 1, 1, b"f", 0, *entry(3, 0, 0, 1), *entry(2, 1, 0, 2))
    for odd in (
        written(0, 1, 1, b"f", 0, *entry(3, 0, 0, 1)),  # it has no live entry
        written(2, 0, 1, b"f", 0, *entry(2, 0, 0, 1)),  # it ends too early
        written(2, 0, 1, b"f", 0, *entry(3, 0, 0, 1), *entry(2, 1, 0, 2)),  # it claims two
        living[:-1],
        encode_string(KEY)[:9],
        living.replace(KEY, bytes(16), 1)[:17],
    ):
        assert NodesReader().read(odd, 0, len(odd), 9, b"") == (0, [])
    used, (node,) = NodesReader().read(living + odd, 0, len(living + odd), 9, b"")
    assert (used, node.appended, node.count) == (len(living), 2, 1)
    assert NodesReader().read(living, 0, len(living), 9, KEY) == (0, [])


@needs_twins
def test_at_most_one_batch_is_read_ahead() -> None:
    value = b"v" * 4000
    made = b""
    for n in range(1, 101):
        key = StreamID(n, 1).packed
        listpack = encode([1, 0, 1, b"f", 0, *entry(2, 0, 0, value)])
        made += encode_string(key) + encode_string(listpack)
    used, found = NodesReader().read(made, 0, len(made), 100, b"")
    assert sum(len(node.rows) for node in found) < BATCH_BYTES + 2 * len(value)
    assert used == len(made) * len(found) // 100
    assert len(NodesReader().read(made, 0, len(made), 3, b"")[1]) == 3
    assert all(type(node) is PackedNode for node in found)


@given(st.lists(st.tuples(st.binary(min_size=16, max_size=16), st.binary(max_size=300))))
def test_packed_rows_are_unpacked_unchanged(rows: list[tuple[bytes, bytes]]) -> None:
    ids, values = [eid for eid, _ in rows], [value for _, value in rows]
    made = pack_rows(ids, values)
    assert unpack_rows(made) == unpack_in_python(made) == (ids, values)
    puts: tuple[dict[bytes, bytes], dict[bytes, bytes]] = {}, {}
    put_rows(puts[0], b"prefix", made)
    put_in_python(puts[1], b"prefix", made)
    assert puts[0] == puts[1] == {b"prefix" + eid: value for eid, value in rows}
    if made:
        for way in (unpack_rows, unpack_in_python):
            with pytest.raises(ValueError, match="end within a row"):
                way(made[:-1])
        for put in (put_rows, put_in_python):
            with pytest.raises(ValueError, match="end within a row"):
                put({}, b"prefix", made[:-1])
