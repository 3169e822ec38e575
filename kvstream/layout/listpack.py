"""Sizes of entries in Redis's listpacks, which decide where a node ends.

Nothing is stored as a listpack. Redis closes a node when its listpack would reach
``stream-node-max-bytes``, and ``~`` trims whole nodes, so the sizes must equal Redis's.

::

    listpack := header(6 bytes) element* 0xFF
    element  := encoding data backlen
    node     := listpack of  count deleted n field*n 0  entry*
    entry    := flags ms-delta seq-delta  value*n            lp-count     (fields of the node)
              | flags ms-delta seq-delta  n (field value)*n  lp-count     (other fields)
"""

import re
from collections.abc import Sequence
from itertools import compress, repeat

FRAME_BYTES = 7
SMALL_INTEGER_BYTES = 2
SMALL_INTEGER_MAX = 127
_CANONICAL_INTEGER = re.compile(rb"-?[1-9][0-9]{0,18}|0")
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_INTEGER_SIZES = (  # (values below this magnitude, bytes of the element)
    (1 << 12, 3),
    (1 << 15, 4),
    (1 << 23, 5),
    (1 << 31, 6),
)
_INT64_BYTES = 10
_SHORT = 64
"""Strings below this many bytes take one byte of encoding and one of backlen."""
_SHORT_OVERHEAD = 2
_ZERO = ord("0")


def integer_size(value: int) -> int:
    """Return the bytes of an integer element; ``value`` is taken modulo 2^64, as signed."""
    if 0 <= value <= SMALL_INTEGER_MAX:
        return SMALL_INTEGER_BYTES
    if not _INT64_MIN <= value <= _INT64_MAX:
        return integer_size((value - _INT64_MIN) % (1 << 64) + _INT64_MIN)
    for magnitude, size in _INTEGER_SIZES:
        if -magnitude <= value < magnitude:
            return size
    return _INT64_BYTES


def string_size(length: int) -> int:
    """Return the bytes of a string element of ``length`` bytes."""
    body = length + (1 if length < _SHORT else 2 if length < 4096 else 5)
    return body + backlen_size(body)


def backlen_size(body: int) -> int:
    """Return the bytes of the backlen of an element with a body of ``body`` bytes."""
    if body <= 127:
        return 1
    if body < 16383:
        return 2
    if body < 2097151:
        return 3
    return 4 if body < 268435455 else 5


_ZERO = ord("0")


def element_size(value: bytes) -> int:
    """Return the bytes of an element; a canonical decimal of 64 bits is stored as an integer."""
    number = canonical_integer(value)
    return string_size(len(value)) if number is None else integer_size(number)


def canonical_integer(value: bytes) -> int | None:
    """Return the number of a canonical decimal of 64 bits; None for any other bytes."""
    if value.isdigit() and len(value) < 19 and value[0] != _ZERO:  # most often
        return int(value)
    if len(value) <= 20 and _CANONICAL_INTEGER.fullmatch(value):
        number = int(value)
        if _INT64_MIN <= number <= _INT64_MAX:
            return number
    return None


def elements_size(values: Sequence[bytes]) -> tuple[int, int]:
    """Return the bytes of the elements, and of the values themselves.

    All are counted as short strings first, without Python code for each; then long strings and
    integers are corrected.
    """
    joined = b"".join(values)
    size = len(joined) + _SHORT_OVERHEAD * len(values)
    others = [
        value for value in filter(bytes.isdigit, values) if value[0] != _ZERO or value == b"0"
    ]
    if b"-" in joined:
        others += compress(values, map(bytes.startswith, values, repeat(b"-")))
    if len(joined) >= _SHORT and max(map(len, values)) >= _SHORT:
        others = [value for value in others if len(value) < _SHORT]
        others += [value for value in values if len(value) >= _SHORT]
    for value in others:
        size += element_size(value) - len(value) - _SHORT_OVERHEAD
    return size, len(joined)


def node_size(names_size: int, count: int) -> int:
    """Return the bytes of a node before its first entry, without its two counters."""
    return FRAME_BYTES + integer_size(count) + names_size + SMALL_INTEGER_BYTES


def counters_size(live: int, dead: int) -> int:
    """Return the bytes of a node's two counters."""
    return integer_size(live) + integer_size(dead)


def entry_size(count: int) -> int:
    """Return the bytes of an entry with the node's ``count`` names, without deltas and values."""
    return SMALL_INTEGER_BYTES + integer_size(count + 3)


def foreign_entry_size(count: int) -> int:
    """Return the bytes of an entry with ``count`` names of its own, without deltas and elements."""
    return SMALL_INTEGER_BYTES + integer_size(count) + integer_size(2 * count + 4)


def fields_size(names: tuple[bytes, ...], flat: Sequence[bytes]) -> int:
    """Return the bytes of an entry in a node with these names, without deltas."""
    count = len(flat) // 2
    if tuple(flat[::2]) == names:
        return entry_size(count) + elements_size(flat[1::2])[0]
    return foreign_entry_size(count) + elements_size(flat)[0]
