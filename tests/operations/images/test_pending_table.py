"""The table of a group's pending entries."""

import pytest

from kvstream.types.ids import StreamID
from kvstream.types.images import PendingTable

ENTRIES: list[tuple[int, bytes | None, int, int]] = [
    (1, b"a", 5, 1),
    (2, b"a", 5, 1),
    (3, b"a", 5, 1),
    (4, b"b", 5, 1),
    (5, b"b", 6, 1),
    (6, b"b", 6, 2),
    (7, None, 0, 2),
    (8, None, 0, 2),
    (9, b"a", 5, 1),
]


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, [1] * 9), (2, [2, 1, 1, 1, 1, 2, 1]), (100, [3, 1, 1, 1, 2, 1])]
)
def test_neighbours_that_differ_only_in_their_ids_are_joined(most: int, sizes: list[int]) -> None:
    table = PendingTable()
    for ms, owner, time_ms, deliveries in ENTRIES:
        table.add(StreamID(ms, 0).packed, owner, time_ms, deliveries)
    together = list(table.spans(most))
    assert [len(ids) for ids, *_ in together] == sizes
    apart = [(eid, *rest) for ids, *rest in together for eid in ids]
    assert apart == [tuple(entry) for entry in table]
    assert list(PendingTable().spans(most)) == []
