"""Entries that are decoded when first used: message rows, and encoded replies.

::

    text    := entry*            the reply of RESP2 and RESP3
    entry   := "*2" CRLF string(id) "*" count CRLF string*
    string  := "$" length CRLF bytes CRLF

A text has the ends of its entries, so a part of it is cut out without parsing.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from struct import Struct
from typing import NamedTuple, TypeAlias, overload

from kvstream.errors import Corruption
from kvstream.layout import twins
from kvstream.layout.columns import Columns, of_rows
from kvstream.layout.keys import ID_BYTES
from kvstream.layout.values import decode_checked, decode_page
from kvstream.types.ids import StreamID, new_id
from kvstream.types.records import Entry, fields_of

_NOTHING = repeat(None)
_new_entry = partial(tuple.__new__, Entry)


def ids_in_python(first: StreamID, count: int) -> list[StreamID]:
    """Return ``count`` IDs of one millisecond, from ``first`` on."""
    ms, seq = first
    return [new_id((ms, number)) for number in range(seq, seq + count)]


def _ids_compiled(first: StreamID, count: int) -> list[StreamID]:
    return twins.ids_from(StreamID, *first, count)


ids_from = ids_in_python if twins is None else _ids_compiled


class Undecoded(Sequence[Entry]):
    """A sequence of entries that are decoded when first used."""

    __slots__ = ()

    def entries(self) -> list[Entry]:
        """Return the decoded entries."""
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
    """Entries as message rows; the reply writer encodes the rows without decoding them."""

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
        """Return the packed IDs of the entries; raise Corruption for a damaged row."""
        if twins is not None and self._entries is None:
            ids = twins.packed_ids(self.page, self.prefix)
            if ids is not None:
                return ids
        decode_checked([value for _, value in self.page])
        return [entry.id.packed for entry in self.entries()]

    def columns(self) -> Columns:
        """Return the entries as columns; raise Corruption for a damaged row."""
        return of_rows(self.page, self.prefix)

    def entries(self) -> list[Entry]:
        """Return the entries of the rows; raise Corruption for a damaged row."""
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


TEXT_BYTES_MAX = (1 << 32) - 1
"""The bound of 32-bit ends."""
_ID = Struct(f"{ID_BYTES}s")
_CRLF = b"\r\n"
_ENTRY_HEAD = len(b"*2\r\n")


class Text(NamedTuple):
    """Encoded entries."""

    ids: bytes
    """The packed IDs, side by side."""
    ends: "memoryview[int]"
    """The end of each entry in ``data``, 32 bits each."""
    data: bytes

    @property
    def length(self) -> int:
        return len(self.ends)

    def part(self, start: int, stop: int) -> bytes:
        """Return the bytes of the entries from index ``start`` to ``stop``."""
        if start >= stop:
            return b""
        return self.data[self.ends[start - 1] if start else 0 : self.ends[stop - 1]]


Write: TypeAlias = Callable[[list[tuple[bytes, bytes]], int, int], Text | None]
"""Encodes rows: takes the page, the length of the key prefix, and the most bytes of the text.

Returns None if the text would be longer, or if a row is not plain."""


def text_of(made: tuple[bytes, bytes, bytes]) -> Text:
    """Return a text; its ends are given as unsigned integers in machine order."""
    ids, ends, data = made
    return Text(ids, memoryview(ends).cast("I"), data)


def below_in_python(ids: bytes, eid: bytes) -> int:
    """Return how many of the ascending packed ``ids`` are below an ID."""
    return bisect_left(
        range(len(ids) // ID_BYTES), eid, key=lambda at: ids[at * ID_BYTES : (at + 1) * ID_BYTES]
    )


below = below_in_python if twins is None else twins.below


class EncodedEntries(Undecoded):
    """Entries as pieces of encoded text; the reply writer copies them without decoding."""

    __slots__ = ("_count", "_entries", "_ids", "parts")

    def __init__(self, count: int, parts: list[bytes], ids: list[bytes]) -> None:
        """``parts`` are pieces of text, ``ids`` their packed IDs."""
        self._count = count
        self.parts = parts
        self._ids = ids
        self._entries: list[Entry] | None = None

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"EncodedEntries({self._count}, {self.parts!r}, {self._ids!r})"

    def packed_ids(self) -> list[bytes]:
        """Return the packed IDs of the entries."""
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
        yield Entry(StreamID.parse(eid), fields_of(flat))


def _number(data: bytes, at: int) -> tuple[int, int]:
    end = data.index(_CRLF, at)
    return int(data[at + 1 : end]), end + len(_CRLF)


def _string(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _number(data, at)
    return data[at : at + size], at + size + len(_CRLF)
