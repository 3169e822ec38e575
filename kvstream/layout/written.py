"""Entries in the bytes in which clients get them, made once and given out often.

::

    text    := entry*            as RESP has entries, the same in both of its versions
    entry   := "*2" CRLF string(id) "*" count CRLF string*
    string  := "$" length CRLF bytes CRLF

A text knows where its entries end, so that a part of it is cut out without looking at it.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import chain
from struct import Struct
from typing import NamedTuple, TypeAlias

from kvstream.ids import StreamID
from kvstream.layout.compiled import twins
from kvstream.layout.keys import ID_BYTES
from kvstream.layout.rows import Undecoded
from kvstream.records import Entry, Fields, RepeatedFields

TEXT_BYTES_MAX = (1 << 32) - 1
"""Ends are of 32 bits."""
_ID = Struct(f"{ID_BYTES}s")
_CRLF = b"\r\n"
_ENTRY_HEAD = len(b"*2\r\n")


class Text(NamedTuple):
    """Entries side by side."""

    ids: bytes
    """As they are stored: 16 bytes each."""
    ends: "memoryview[int]"
    """Where each entry ends, 32 bits each."""
    data: bytes

    @property
    def length(self) -> int:
        return len(self.ends)

    def part(self, start: int, stop: int) -> bytes:
        """Return the entries from the one number to the other."""
        if start >= stop:
            return b""
        return self.data[self.ends[start - 1] if start else 0 : self.ends[stop - 1]]


Write: TypeAlias = Callable[[list[tuple[bytes, bytes]], int, int], Text | None]
"""Makes the text of rows whose keys have an ID after so many bytes; None where it would take more
bytes than told, or a row is not plain."""


def text_of(made: tuple[bytes, bytes, bytes]) -> Text:
    """Return a text of its parts, the ends being unsigned integers of the machine."""
    ids, ends, data = made
    return Text(ids, memoryview(ends).cast("I"), data)


def below_in_python(ids: bytes, eid: bytes) -> int:
    """Return how many of the ascending ``ids``, packed side by side, are below one."""
    return bisect_left(
        range(len(ids) // ID_BYTES), eid, key=lambda at: ids[at * ID_BYTES : (at + 1) * ID_BYTES]
    )


below = below_in_python if twins is None else twins.below


class Written(Undecoded):
    """So many entries in pieces of text, for Entries and Streams or as a reply alone.

    A writer takes the text; whoever looks at an entry has it read back.
    """

    __slots__ = ("_count", "_entries", "_ids", "parts")

    def __init__(self, count: int, parts: list[bytes], ids: list[bytes]) -> None:
        """Hold pieces of text, and of the IDs of its entries as a Text has them."""
        self._count = count
        self.parts = parts
        self._ids = ids
        self._entries: list[Entry] | None = None

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"Written({self._count}, {self.parts!r}, {self._ids!r})"

    def packed_ids(self) -> list[bytes]:
        """Return the IDs of the entries as they stand in rows."""
        return list(chain.from_iterable(_ID.iter_unpack(b"".join(self._ids))))

    def entries(self) -> list[Entry]:
        """Return the entries of the text."""
        if self._entries is None:
            self._entries = list(_read(b"".join(self.parts)))
        return self._entries


def _read(data: bytes) -> Iterator[Entry]:
    at = 0
    while at < len(data):
        eid, at = _string(data, at + _ENTRY_HEAD)
        count, at = _number(data, at)
        flat = []
        for _ in range(count):
            part, at = _string(data, at)
            flat.append(part)
        yield Entry(StreamID.parse(eid), _fields(flat))


def _fields(flat: list[bytes]) -> Fields:
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    return fields if 2 * len(fields) == len(flat) else RepeatedFields(tuple(flat))


def _number(data: bytes, at: int) -> tuple[int, int]:
    end = data.index(_CRLF, at)
    return int(data[at + 1 : end]), end + len(_CRLF)


def _string(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _number(data, at)
    return data[at : at + size], at + size + len(_CRLF)
