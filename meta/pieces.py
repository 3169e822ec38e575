"""The values of large plain strings: rows among the messages, so that no row is large.

::

    messages row := prefix number(u32) -> piece

The prefix is formed as that of a stream's entries, with the string's name and generation as they
were when it became large; a rename leaves it. Each piece but the last has the same size, and the
string's record says how long all of them are: one that is missing, or of another length, is damage
and raises Corruption. A value is written anew over the rows of the one before.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from struct import Struct

from kvstream.errors import Corruption
from kvstream.layout.keys import key_in, successor
from kvstream.meta.trees import DELETE_RANGE_ROWS
from kvstream.options import MEGABYTE
from kvstream.storage.batch import Batch, Family, Row

WHOLE_BYTES_MAX = 16 << 10
"""Up to so many bytes a value stands in its record: a row that neighbours hardly feel."""
PIECE_BYTES = 64 << 10
PAGE_BYTES = 4 * MEGABYTE
"""Pieces are read by so many bytes at once: beside the value, memory holds no more."""

_MESSAGES = Family.MESSAGES
_NUMBER = Struct(">I")


@dataclass(frozen=True, slots=True)
class Pieces:
    """Where a value stands."""

    prefix: bytes
    length: int
    """Bytes of the whole value."""
    size: int
    """Bytes of each piece but the last."""
    written: int
    """A number of its own for each time that the value was changed."""

    @property
    def count(self) -> int:
        return -(-self.length // self.size)

    def row(self, number: int) -> bytes:
        return self.prefix + _NUMBER.pack(number)

    def bytes_of(self, number: int) -> int:
        """Return how long the piece of a number is."""
        return min(self.size, self.length - number * self.size)

    @property
    def is_possible(self) -> bool:
        return self.length > 0 and self.size > 0 and self.count <= 1 << 32


def is_large(length: int) -> bool:
    """Tell whether a value of so many bytes has rows of its own."""
    return length > WHOLE_BYTES_MAX


def read(batch: Batch, pieces: Pieces, start: int = 0, end: int | None = None) -> bytes:
    """Return the bytes of a value from ``start`` to ``end``, or all; Corruption for damage."""
    end = pieces.length if end is None else min(end, pieces.length)
    if start >= end:
        return b""
    first = start // pieces.size
    whole = BytesIO()
    for piece in _found(batch, pieces, first, (end - 1) // pieces.size + 1):
        whole.write(piece)
    skipped = start - first * pieces.size
    whole.truncate(end - first * pieces.size)
    return whole.getvalue()[skipped:]


def steps(batch: Batch, pieces: Pieces) -> Iterator[bytes]:
    """Return the value as it is now, to be read piece by piece."""
    found = batch.snapshot(_MESSAGES, pieces.row(0), _upper(pieces, pieces.count))
    return _sound(pieces, 0, pieces.count, found)


def _found(batch: Batch, pieces: Pieces, number: int, until: int) -> Iterator[bytes]:
    return _sound(pieces, number, until, _pages(batch, pieces, number, until))


def _pages(batch: Batch, pieces: Pieces, number: int, until: int) -> Iterator[list[Row]]:
    most = max(1, PAGE_BYTES // pieces.size)
    while number < until:
        page = batch.page(
            _MESSAGES, pieces.row(number), _upper(pieces, until), min(most, until - number)
        )
        if not page:
            return
        yield page
        number += len(page)


def _upper(pieces: Pieces, until: int) -> bytes:
    return pieces.row(until - 1) + b"\0"


def _sound(pieces: Pieces, number: int, until: int, pages: Iterator[list[Row]]) -> Iterator[bytes]:
    """Yield the pieces from one number to another; Corruption where one is not there."""
    for page in pages:
        for key, piece in page:
            if key != pieces.row(number) or len(piece) != pieces.bytes_of(number):
                raise _lost(pieces, number)
            yield piece
            number += 1
    if number < until:
        raise _lost(pieces, number)


def _lost(pieces: Pieces, number: int) -> Corruption:
    key = key_in(pieces.prefix)
    return Corruption(f"the string first named {key!r} is damaged: piece {number} is lost")


def write(batch: Batch, prefix: bytes, value: bytes, written: int, old: Pieces | None) -> Pieces:
    """Put a value where there may be another."""
    made = Pieces(prefix, len(value), PIECE_BYTES, written)
    puts = batch.puts[_MESSAGES]
    for number in range(made.count):
        at = number * made.size
        puts[made.row(number)] = value[at : at + made.size]
    if old is not None:
        drop(batch, old, made.count)
    return made


def overwrite(batch: Batch, pieces: Pieces, offset: int, part: bytes, written: int) -> Pieces:
    """Put bytes over a value from an offset on, zeros between: pieces they do not touch stay."""
    stop = offset + len(part)
    made = Pieces(pieces.prefix, max(pieces.length, stop), pieces.size, written)
    for number in range(min(offset, pieces.length) // made.size, (stop - 1) // made.size + 1):
        base = number * made.size
        piece = bytearray(made.bytes_of(number))
        low, high = max(offset, base), min(stop, base + len(piece))
        if base < pieces.length and high - low < len(piece):
            held = read(batch, pieces, base, base + made.size)
            piece[: len(held)] = held
        if low < high:
            piece[low - base : high - base] = part[low - offset : high - offset]
        batch.put(_MESSAGES, made.row(number), bytes(piece))
    return made


def drop(batch: Batch, pieces: Pieces, kept: int = 0) -> None:
    """Delete the pieces of a value, but for the first: row by row where they are few."""
    if pieces.count - kept < DELETE_RANGE_ROWS:
        for number in range(kept, pieces.count):
            batch.delete(_MESSAGES, pieces.row(number))
    else:
        batch.delete_range(_MESSAGES, pieces.row(kept), successor(pieces.prefix))
