"""Pages of entries by column, with Arrow's layout, and packed rows, which hold a whole node.

::

    ids         := id*                      16 bytes each, big-endian
    ends        := 0 end*                   ends of the entries, as numbers of fields
    name_ends   := 0 end*                   ends of the field names in ``names``
    value_ends  := 0 end*                   ends of the field values in ``values``

    rows        := (id length(u32) value)*  lengths are little-endian

    column      := (ends, data, valid)
    valid       := flag*                    one byte per row; None if every row has a value

Ends are int32 in the byte order of the machine, so a page has at most 2 GB; the first end of a
column need not be 0. Columns are packed into rows by compiled code only. Its functions return None
without it, or if columns are not plain; then ``values.encode_flat`` makes the rows one by one.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from struct import Struct
from typing import Any, NamedTuple

from kvstream.errors import Corruption, InvalidArgument
from kvstream.layout import import_compiled
from kvstream.layout.keys import ID_BYTES
from kvstream.layout.values import decode_checked
from kvstream.types.ids import StreamID
from kvstream.types.options import ENTRY_BYTES_MAX
from kvstream.types.records import RepeatedFields

Column = tuple[Any, Any, Any]
Packed = tuple[bytes, tuple[bytes, ...]]
"""The value of a row, and the names of its fields."""

_packing = import_compiled("kvstream.layout._packing")


def pack_columns(
    names: tuple[bytes, ...], columns: Sequence[Column], count: int
) -> list[Packed | None] | None:
    """Return the rows of columns that are one field each; None for a row without values."""
    if _packing is None:
        return None
    packed: list[Packed | None] | None = _packing.pack_columns(
        names, list(columns), count, ENTRY_BYTES_MAX
    )
    return packed


def pack_lists(rows: Any, names: Column, values: Column, count: int) -> list[Packed | None] | None:
    """Return the rows of lists of names and values; None for a row that is not plain."""
    if _packing is None:
        return None
    packed: list[Packed | None] | None = _packing.pack_lists(
        rows, names, values, count, ENTRY_BYTES_MAX
    )
    return packed


_HEAD = Struct("<16sI")


def unpack_rows(rows: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return the IDs and values of packed rows."""
    if _packing is not None:
        columns: tuple[list[bytes], list[bytes]] = _packing.unpack_rows(rows)
        return columns
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


def put_rows(into: Any, prefix: bytes, rows: bytes) -> None:
    """Set ``into[prefix + id] = value`` for each packed row; raise ValueError if one is cut."""
    if _packing is not None:
        _packing.put_rows(into, prefix, rows)
    else:
        put_in_python(into, prefix, rows)


def put_in_python(into: Any, prefix: bytes, rows: bytes) -> None:
    """Do the same in Python; a cut row is noticed before the first one is set."""
    for eid, value in zip(*unpack_in_python(rows), strict=True):
        into[prefix + eid] = value


_END_MAX = (1 << 31) - 1

_compiled = import_compiled("kvstream.layout._columns")


class Columns(NamedTuple):
    """A page of entries; the module's docstring has the layout of the buffers."""

    ids: bytes
    ends: bytes
    name_ends: bytes
    names: bytes
    value_ends: bytes
    values: bytes
    repeated: list[int]
    """The indexes of entries with a repeated field name."""

    def __len__(self) -> int:
        return len(self.ids) // ID_BYTES

    @property
    def last(self) -> StreamID:
        """The ID of the last entry."""
        return StreamID.unpack(self.ids[-ID_BYTES:])

    @property
    def size(self) -> int:
        """The bytes of all names and values."""
        return len(self.names) + len(self.values)


def of_rows(page: list[tuple[bytes, bytes]], prefix: int) -> Columns:
    """Return a page of message rows, whose keys are ``prefix`` bytes and the ID.

    Raises Corruption where a row is damaged.
    """
    buffers = None if _compiled is None else _compiled.of_rows(page, prefix)
    return rows_in_python(page, prefix) if buffers is None else Columns(*buffers)


def of_replies(reply: list[Any]) -> Columns:
    """Return the entries of a reply to XRANGE: [ID, [field, value, ...]] each, in bytes."""
    buffers = None if _compiled is None else _compiled.of_replies(reply)
    return replies_in_python(reply) if buffers is None else Columns(*buffers)


def rows_in_python(page: list[tuple[bytes, bytes]], prefix: int) -> Columns:
    """Do ``of_rows`` in Python."""
    if not all(len(key) == prefix + ID_BYTES for key, _ in page):
        raise Corruption("the key of a message is not of its stream's length")
    fields = decode_checked([value for _, value in page]) if page else []
    flats = [
        entry.flat if type(entry) is RepeatedFields else tuple(chain.from_iterable(entry.items()))
        for entry in fields
    ]
    repeated = [at for at, entry in enumerate(fields) if type(entry) is RepeatedFields]
    return _columns(b"".join([key[prefix:] for key, _ in page]), flats, repeated)


def replies_in_python(reply: list[Any]) -> Columns:
    """Do ``of_replies`` in Python."""
    ids = b"".join(StreamID.parse(eid).packed for eid, _ in reply)
    flats = [flat for _, flat in reply]
    repeated = [at for at, flat in enumerate(flats) if 2 * len(set(flat[::2])) != len(flat)]
    return _columns(ids, flats, repeated)


def _columns(ids: bytes, flats: Sequence[Sequence[bytes]], repeated: list[int]) -> Columns:
    flat = list(chain.from_iterable(flats))
    names, values = flat[::2], flat[1::2]
    return Columns(
        ids,
        _ends(len(flat) // 2 for flat in flats),
        _ends(map(len, names)),
        b"".join(names),
        _ends(map(len, values)),
        b"".join(values),
        repeated,
    )


def _ends(sizes: Iterable[int]) -> bytes:
    ends = list(accumulate(sizes, initial=0))
    if ends[-1] > _END_MAX:
        raise InvalidArgument("a page of entries is larger than 2 GB")
    return array("i", ends).tobytes()
