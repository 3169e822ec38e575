"""Packed rows, which hold a whole node in one string, and row values from Arrow columns.

::

    rows   := (id length(u32) value)*     lengths are little-endian

    column := (ends, data, valid)
    ends   := 0 end*           int32 in the byte order of the machine; the first need not be 0
    valid  := flag*            one byte per row; None if every row has a value

Columns are packed by compiled code only. The functions return None without it, or if columns are
not plain; then ``values.encode_flat`` makes the rows one by one.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Any

from kvstream.layout.compiled import compiled
from kvstream.types.options import ENTRY_BYTES_MAX

Column = tuple[Any, Any, Any]
Packed = tuple[bytes, tuple[bytes, ...]]
"""The value of a row, and the names of its fields."""

_compiled = compiled("kvstream.layout._packing")


def pack_columns(
    names: tuple[bytes, ...], columns: Sequence[Column], count: int
) -> list[Packed | None] | None:
    """Return the rows of columns that are one field each; None for a row without values."""
    if _compiled is None:
        return None
    packed: list[Packed | None] | None = _compiled.pack_columns(
        names, list(columns), count, ENTRY_BYTES_MAX
    )
    return packed


def pack_lists(rows: Any, names: Column, values: Column, count: int) -> list[Packed | None] | None:
    """Return the rows of lists of names and values; None for a row that is not plain."""
    if _compiled is None:
        return None
    packed: list[Packed | None] | None = _compiled.pack_lists(
        rows, names, values, count, ENTRY_BYTES_MAX
    )
    return packed


_HEAD = Struct("<16sI")


def unpack_rows(rows: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return the IDs and values of packed rows."""
    if _compiled is not None:
        found: tuple[list[bytes], list[bytes]] = _compiled.unpack_rows(rows)
        return found
    return unpack_in_python(rows)


def unpack_in_python(rows: bytes) -> tuple[list[bytes], list[bytes]]:
    """Do the same in Python; ValueError where the last row is not whole."""
    ids, values, at = [], [], 0
    while at < len(rows):
        if len(rows) - at < _HEAD.size:
            raise ValueError("packed rows end within a row")
        eid, size = _HEAD.unpack_from(rows, at)
        at += _HEAD.size
        if len(rows) - at < size:
            raise ValueError("packed rows end within a row")
        ids.append(eid)
        values.append(rows[at : at + size])
        at += size
    return ids, values


def pack_rows(ids: Sequence[bytes], values: Sequence[bytes]) -> bytes:
    """Return rows as one string."""
    pairs = zip(ids, values, strict=True)
    return b"".join(_HEAD.pack(eid, len(value)) + value for eid, value in pairs)
