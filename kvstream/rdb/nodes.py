"""A node of a stream: one listpack, to and from packed IDs and stored values.

::

    node   := listpack of  living deleted n name*n 0  entry*(living + deleted)
    entry  := flags ms-delta seq-delta  value*n              n + 3           with SAME_FIELDS
            | flags ms-delta seq-delta  n (name value)*n     2n + 4          without
    flags  := 1 DELETED | 2 SAME_FIELDS

Deltas are those to the node's key, the ID of the first entry ever put into it; they are taken
modulo 2^64, so that a sequence may well be lower than the first one's.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kvstream.errors import BadPayload, InvalidArgument
from kvstream.ids import PACKED, U64_MAX, StreamID
from kvstream.images import ID_BYTES, NodeImage, PackedID
from kvstream.layout.values import decode_checked, encode_flat
from kvstream.options import ENTRY_BYTES_MAX, MEGABYTE
from kvstream.rdb import listpack
from kvstream.rdb.compiled import twins
from kvstream.rdb.listpack import Element, text_of
from kvstream.rdb.packed import GROWTH_FREE, GROWTH_MAX
from kvstream.records import RepeatedFields

NODE_BYTES_MAX = 1024 * MEGABYTE
"""Largest listpack of a node: Redis's own limit."""

_DELETED, _SAME_FIELDS = 1, 2
_I63, _I64 = 1 << 63, 1 << 64


class Node(NamedTuple):
    """A node as it was read."""

    names: tuple[bytes, ...]
    ids: list[PackedID]
    """The living entries; there may be none."""
    values: list[bytes]
    appended: int
    last: PackedID
    """The last entry ever put into it, living or not."""
    told: int
    """How many living entries it says it has."""


def decode_node(key: PackedID, data: bytes) -> Node:
    """Return what a listpack holds, or raise BadPayload with the offset in it."""
    if twins is not None:
        found = twins.decode_node(key, data, growth_max(len(data)), ENTRY_BYTES_MAX)
        if found is not None:
            return Node(*found)
    return decode_in_python(key, data)


def growth_max(size: int) -> int:
    """Return how many bytes of stored values a listpack of ``size`` bytes may hold."""
    return max(GROWTH_FREE, GROWTH_MAX * size)


def decode_in_python(key: PackedID, data: bytes) -> Node:
    """Do ``decode_node`` in Python."""
    if len(key) != ID_BYTES:
        raise BadPayload(f"the key of a node has {len(key)} bytes")
    elements = _Elements(listpack.decode(data))
    living, deleted, count = elements.number(), elements.number(), elements.number()
    names = tuple(elements.texts(count))
    if elements.number() != 0:
        raise BadPayload("the master entry of a node does not end")
    found = Node(names, [], [], living + deleted, key, living)
    last, left = key, growth_max(len(data))
    for _ in range(living + deleted):
        eid, value = _take_entry(elements, key, names)
        if value is None:
            # XSETID may go back below what was deleted, so only the living must ascend.
            last = max(eid, found.ids[-1] if found.ids else key)
            continue
        if eid < key or (found.ids and eid <= found.ids[-1]):
            raise BadPayload(f"entry {StreamID.unpack(eid)} is out of order")
        last = eid
        found.ids.append(eid)
        found.values.append(value)
        left -= len(value)
        if left < 0:
            raise BadPayload("the entries of a node are too large")
    if not elements.ended():
        raise BadPayload("a node goes on behind its last entry")
    return found._replace(last=last)


class _Elements:
    """Takes elements one by one, and refuses what is not there."""

    def __init__(self, elements: list[Element]) -> None:
        self._elements = elements
        self._at = 0

    def integer(self) -> int:
        """Take an integer."""
        (element,) = self._take(1)
        if isinstance(element, bytes):
            raise BadPayload("a node has a text where an integer belongs")
        return element

    def number(self) -> int:
        """Take an integer that counts something."""
        number = self.integer()
        if number < 0:
            raise BadPayload("a node counts below zero")
        return number

    def texts(self, count: int) -> list[bytes]:
        return list(map(text_of, self._take(count)))

    def _take(self, count: int) -> list[Element]:
        start, self._at = self._at, self._at + count
        if self._at > len(self._elements):
            raise BadPayload("a node ends too early")
        return self._elements[start : self._at]

    def ended(self) -> bool:
        return self._at == len(self._elements)


def _take_entry(
    elements: _Elements, key: PackedID, names: tuple[bytes, ...]
) -> tuple[PackedID, bytes | None]:
    """Take an entry: its ID and, if it lives, its stored value."""
    flags, ms, seq = elements.integer(), elements.integer(), elements.integer()
    if flags & ~(_DELETED | _SAME_FIELDS):
        raise BadPayload(f"an entry has flags {flags}")
    if flags & _SAME_FIELDS:
        values = elements.texts(len(names))
        flat = [part for pair in zip(names, values, strict=True) for part in pair]
        expected = len(values) + 3
    else:
        flat = elements.texts(2 * elements.number())
        expected = len(flat) + 4
    if elements.integer() != expected:
        raise BadPayload("an entry does not end as it begins")
    first = StreamID.unpack(key)
    eid = PACKED(first.ms + ms & U64_MAX, first.seq + seq & U64_MAX)
    return eid, None if flags & _DELETED else _stored(eid, flat)


def _stored(eid: PackedID, flat: list[bytes]) -> bytes:
    if not flat:
        raise BadPayload(f"entry {StreamID.unpack(eid)} has no fields")
    try:
        return encode_flat(flat)[0]
    except InvalidArgument as error:
        raise BadPayload(f"entry {StreamID.unpack(eid)}: {error}") from None


# --- writing --------------------------------------------------------------------------------------


def encode_node(node: NodeImage) -> bytes:
    """Return the listpack of a node, as if nothing had been deleted inside it.

    ValueError where the IDs do not ascend from the node's first; Corruption for damaged values.
    """
    if twins is not None:
        made = twins.encode_node(node.first, node.names, node.ids, node.values)
        if made is not None:
            return made
    return encode_in_python(node)


def encode_in_python(node: NodeImage) -> bytes:
    """Do ``encode_node`` in Python."""
    if not node.ids or node.first > node.ids[0]:
        raise ValueError("a node has no entries, or one before its first")
    if any(a >= b for a, b in zip(node.ids, node.ids[1:], strict=False)):
        raise ValueError("the entries of a node are out of order")
    elements: list[Element] = [len(node.ids), 0, len(node.names), *node.names, 0]
    for eid, flat in zip(node.ids, _flats(node.values), strict=True):
        elements += _entry(node.first, node.names, eid, flat)
    return listpack.encode(elements)


def _flats(values: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for fields in decode_checked(values):
        if isinstance(fields, RepeatedFields):
            yield fields.flat
        else:
            yield [part for pair in fields.items() for part in pair]


def _entry(
    key: PackedID, names: tuple[bytes, ...], eid: PackedID, flat: Sequence[bytes]
) -> list[Element]:
    first, own = StreamID.unpack(key), StreamID.unpack(eid)
    deltas = [_signed(own.ms - first.ms), _signed(own.seq - first.seq)]
    if tuple(flat[::2]) == names:
        return [_SAME_FIELDS, *deltas, *flat[1::2], len(names) + 3]
    return [0, *deltas, len(flat) // 2, *flat, len(flat) + 4]


def _signed(delta: int) -> int:
    return (delta + _I63) % _I64 - _I63
