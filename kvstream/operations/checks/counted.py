"""One node as its rows show it."""

from bisect import bisect_right
from struct import Struct

from kvstream.ids import StreamID
from kvstream.layout.keys import ID_LAST
from kvstream.layout.listpack import (
    elements_size,
    entry_size,
    foreign_entry_size,
    integer_size,
    node_size,
)
from kvstream.meta.records import Node
from kvstream.records import Fields, RepeatedFields

_ID = Struct(">QQ")

_ABOVE_ALL = ID_LAST + b"\0"

Values = list[Fields | None]
"""The fields of a page of rows; None where they cannot be decoded."""


class Counted:
    """A node's record, and the count of its rows. IDs are packed."""

    def __init__(self, first: bytes, recorded: Node | None, measured: bytes = ID_LAST) -> None:
        self.first = first
        self.recorded = recorded
        """None: the node's row is missing or cannot be decoded."""
        self.live = 0
        self._measured = measured
        """The last ID that the node's size includes."""
        self._first_row = self._last_row = first
        self._names: tuple[bytes, ...] = ()
        self._size = self._size_beyond = 0
        self.sound = True
        """Every row so far could be decoded."""

    def take(self, ids: list[bytes], values: Values) -> None:
        """Count the next rows of the node."""
        if not ids:
            return
        if self.live == 0:
            self._start(ids[0], values[0])
        self.live += len(ids)
        self._last_row = ids[-1]
        self.sound = self.sound and None not in values
        within = bisect_right(ids, self._measured)
        self._size += self._measure(ids[:within], values[:within])
        self._size_beyond += self._measure(ids[within:], values[within:])

    def _start(self, first_row: bytes, fields: Fields | None) -> None:
        self._first_row = first_row
        if fields is not None and (self.recorded is None or first_row == self.first):
            self._names = tuple(_flat(fields)[::2])
        elif self.recorded is not None:
            self._names = self.recorded.names
        names_size = elements_size(self._names)[0] if self._names else 0
        self._size = node_size(names_size, len(self._names))

    def _measure(self, ids: list[bytes], values: Values) -> int:
        """Return the listpack bytes of entries of this node, as far as they can be decoded."""
        names = self._names
        size = self._deltas_size(ids)
        own: list[bytes] = []
        for fields in values:
            if type(fields) is dict and tuple(fields) == names:
                own += fields.values()
            elif fields is not None:
                size += _one_size(names, _flat(fields))
        if own:
            size += elements_size(own)[0] + len(own) // len(names) * entry_size(len(names))
        return size

    def _deltas_size(self, ids: list[bytes]) -> int:
        master_ms, master_seq = _ID.unpack(self.first)
        return sum(
            integer_size(ms - master_ms) + integer_size(seq - master_seq)
            for ms, seq in _ID.iter_unpack(b"".join(ids))
        )

    @property
    def size_about(self) -> int:
        """The size of all rows that could be decoded, whether measured before or not."""
        return self._size + self._size_beyond

    def true(self, bound: bytes | None) -> Node:
        """Return the node as it must be; ``bound``: the first ID of the next one."""
        recorded = self.recorded
        last, size = self._last_row, self._size
        if recorded is not None and last <= recorded.last.packed < (bound or _ABOVE_ALL):
            last = recorded.last.packed
        gone = {self.first, last} - {self._first_row, self._last_row}
        appended = self.live + len(gone)
        if recorded is not None:
            appended = max(recorded.appended, appended)
            if appended != self.live or not self.sound:
                size = recorded.size
        ends = StreamID.unpack(self.first), StreamID.unpack(last)
        return Node(*ends, appended, self.live, size, self._names, is_open=False)


def _flat(fields: Fields) -> list[bytes]:
    if type(fields) is RepeatedFields:
        return list(fields.flat)
    return [part for pair in fields.items() for part in pair]


def _one_size(names: tuple[bytes, ...], flat: list[bytes]) -> int:
    count = len(flat) // 2
    if tuple(flat[::2]) == names:
        return entry_size(count) + elements_size(flat[1::2])[0]
    return foreign_entry_size(count) + elements_size(flat)[0]
