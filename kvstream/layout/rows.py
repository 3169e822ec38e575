"""Entries as the rows that hold them, decoded when somebody looks."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import repeat
from struct import Struct
from typing import overload

from kvstream.errors import Corruption
from kvstream.ids import StreamID, new_id
from kvstream.layout.compiled import twins
from kvstream.layout.keys import ID_BYTES
from kvstream.layout.values import decode_page
from kvstream.records import Entry

_NOTHING = repeat(None)
_new_entry = partial(tuple.__new__, Entry)


def ids_in_python(first: StreamID, count: int) -> list[StreamID]:
    """Return ``first`` and the IDs that follow it in its millisecond, ``count`` in all."""
    ms, seq = first
    return [new_id((ms, number)) for number in range(seq, seq + count)]


def _ids_compiled(first: StreamID, count: int) -> list[StreamID]:
    return twins.ids_from(StreamID, *first, count)


ids_from = ids_in_python if twins is None else _ids_compiled


class Undecoded(Sequence[Entry]):
    """Entries in the bytes that somebody else has made, decoded when one is looked at."""

    __slots__ = ()

    def entries(self) -> list[Entry]:
        """Return the entries themselves."""
        raise NotImplementedError

    @overload
    def __getitem__(self, at: int) -> Entry: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Entry]: ...
    def __getitem__(self, at: int | slice) -> Entry | Sequence[Entry]:
        return self.entries()[at]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries())


class Rows(Undecoded):
    """Entries as the message rows that hold them, for Entries and Streams or as a reply alone.

    A writer turns the rows themselves into bytes; whoever looks at an entry has them decoded.
    """

    __slots__ = ("_entries", "page", "prefix")

    def __init__(self, page: list[tuple[bytes, bytes]], prefix: int) -> None:
        """Hold a page of (key, value) rows, whose keys are ``prefix`` bytes and the ID."""
        self.page = page
        self.prefix = prefix
        self._entries: list[Entry] | None = None

    def __len__(self) -> int:
        return len(self.page)

    def __repr__(self) -> str:
        return f"Rows({self.page!r}, {self.prefix})"

    def packed_ids(self) -> list[bytes]:
        """Return the IDs of the entries as they stand in rows; Corruption where one is damaged."""
        if twins is not None and self._entries is None:
            ids = twins.packed_ids(self.page, self.prefix)
            if ids is not None:
                return ids
        return [entry.id.packed for entry in self.entries()]

    def entries(self) -> list[Entry]:
        """Return the entries of the rows; Corruption where one is damaged."""
        entries = self._entries
        if entries is None:
            if twins is not None:
                entries = twins.decode_rows(self.page, self.prefix, Entry, StreamID)
            if entries is None:
                entries = self._in_python()
            self._entries = entries
        return entries

    def _in_python(self) -> list[Entry]:
        if not self.page:
            return []
        keys, values = zip(*self.page, strict=True)
        if not all(len(key) == self.prefix + ID_BYTES for key in keys):
            raise Corruption("the key of a message is not of its stream's length")
        ids = Struct(f">{self.prefix}xQQ").iter_unpack(b"".join(keys))
        parts = zip(map(new_id, ids), decode_page(values), _NOTHING, _NOTHING, strict=False)
        return list(map(_new_entry, parts))
