"""A stream larger than memory is dumped by nodes and loaded by tables."""

import tracemalloc
from collections.abc import Iterator
from itertools import islice

from kvstream import Store
from kvstream.layout.values import encode_fields
from kvstream.types.ids import PACKED, StreamID
from kvstream.types.images import NodeImage, StreamState
from kvstream.types.options import MEGABYTE

NODES, ENTRIES, VALUE_BYTES = 600, 50, 4000


class Long:
    """A stream of 120 MB, generated while it is read."""

    def nodes(self) -> Iterator[NodeImage]:
        for node in range(NODES):
            ids = [PACKED(node + 1, seq) for seq in range(ENTRIES)]
            values = [
                encode_fields({"f": b"%d" % seq + bytes(VALUE_BYTES)})[0] for seq in range(ENTRIES)
            ]
            yield NodeImage(ids[0], (b"f",), ids, values, ENTRIES, 1)

    def state(self) -> StreamState:
        return StreamState(length=NODES * ENTRIES, last=StreamID(NODES, ENTRIES - 1))


def test_long_streams_pass_through_little_memory(store: Store) -> None:
    tracemalloc.start()
    try:
        loaded = store.load("s", Long())
        image = store.image("s")
        assert image is not None
        nodes = image.nodes()
        assert sum(len(node.ids) for node in islice(nodes, NODES)) == loaded.entries
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert loaded.entries == NODES * ENTRIES
    assert peak < 4 * 8 * MEGABYTE  # held until the load is known to be long, and the copies of it
