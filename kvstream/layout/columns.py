"""Pages of entries by column, in buffers with Arrow's layout.

::

    ids         := id*                      16 bytes each, big-endian
    ends        := 0 end*                   ends of the entries, as numbers of fields
    name_ends   := 0 end*                   ends of the field names in ``names``
    value_ends  := 0 end*                   ends of the field values in ``values``

Ends are int32 in the byte order of the machine, so a page has at most 2 GB.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

from kvstream.errors import Corruption, InvalidArgument
from kvstream.layout.compiled import compiled
from kvstream.layout.keys import ID_BYTES
from kvstream.layout.packing import unpack_rows
from kvstream.layout.values import decode_checked
from kvstream.types.ids import StreamID
from kvstream.types.records import RepeatedFields

_END_MAX = (1 << 31) - 1

_compiled = compiled("kvstream.layout._columns")


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


def of_packed(rows: bytes) -> Columns:
    """Return packed rows (packing.py); Corruption where one is damaged."""
    buffers = None if _compiled is None else _compiled.of_packed(rows)
    return packed_in_python(rows) if buffers is None else Columns(*buffers)


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
        each.flat if type(each) is RepeatedFields else tuple(chain.from_iterable(each.items()))
        for each in fields
    ]
    repeated = [at for at, each in enumerate(fields) if type(each) is RepeatedFields]
    return _columns(b"".join([key[prefix:] for key, _ in page]), flats, repeated)


def packed_in_python(rows: bytes) -> Columns:
    """Do ``of_packed`` in Python."""
    try:
        ids, values = unpack_rows(rows)
    except ValueError as error:
        raise Corruption(str(error)) from None
    return rows_in_python(list(zip(ids, values, strict=True)), 0)


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
        _ends(len(each) // 2 for each in flats),
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
