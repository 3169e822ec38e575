"""Nodes as the compiled reader gives them: no object an entry until somebody asks for one."""

from typing import Any

from kvstream.images import NodeImage, PackedID
from kvstream.layout.packing import unpack_rows
from kvstream.options import ENTRY_BYTES_MAX, MEGABYTE
from kvstream.rdb import lzf
from kvstream.rdb.compiled import twins

GROWTH_MAX = 256
GROWTH_FREE = 16 * MEGABYTE
"""Stored values repeat the names that a node has once: no honest node grows more than this."""

BATCH_BYTES = 1 << 16
"""Rows that are made ahead of the node that is asked for."""

_LIMITS = (lzf.RATIO_MAX, GROWTH_MAX, GROWTH_FREE, ENTRY_BYTES_MAX, BATCH_BYTES)


class PackedNode(NodeImage):
    """A node whose rows lie in one string; its lists are made when they are asked for."""

    __slots__ = (
        "_ids",
        "_values",
        "count",
        "first_id",
        "last_id",
        "measure",
        "rows",
        "value_bytes",
    )

    def __init__(
        self,
        first: PackedID,
        names: tuple[bytes, ...],
        appended: int,
        size: int,
        last: PackedID,
        rows: bytes,
        count: int,
        value_bytes: int,
        measure: int,
        first_id: PackedID,
        last_id: PackedID,
    ) -> None:
        self.first, self.names = first, names
        self.appended, self.size, self.last = appended, size, last
        self.rows = rows
        """As layout/packing.py tells."""
        self.count, self.value_bytes = count, value_bytes  # type: ignore[misc]
        self.measure = measure
        """Bytes of a listpack of the living entries, less its counters.

        -1: the first entry of the node has names of its own, so the node has them too.
        """
        self.first_id, self.last_id = first_id, last_id  # type: ignore[misc]
        self._ids: list[PackedID] | None = None
        self._values: list[bytes] = []

    @property
    def ids(self) -> list[PackedID]:  # type: ignore[override]
        if self._ids is None:
            self._ids, self._values = unpack_rows(self.rows)
        return self._ids

    @property
    def values(self) -> list[bytes]:  # type: ignore[override]
        return self._values if self.ids else []


class NodesReader:
    """Reads plain nodes of one stream, many at a time; none where they are not compiled."""

    def __init__(self) -> None:
        self._names: Any = None if twins is None else twins.Names()

    def read(
        self, buffer: bytes, start: int, stop: int, most: int, last: PackedID
    ) -> tuple[int, list[PackedNode]]:
        """Return how many bytes of a buffer are plain nodes above ``last``, and these."""
        if twins is None:
            return 0, []
        used, found = twins.read_nodes(buffer, start, stop, most, last, _LIMITS, self._names)
        return used, [PackedNode(*node) for node in found]
