"""Plain strings, the second type of key: a metadata row each, and pieces of large values.

::

    string := kind(u8=2) version(u8=1|3) expire_at(u64) generation(u64) value
            | kind(u8=2) version(u8=2) expire_at(u64) generation(u64)
              length(u64) size(u32) written(u64) prefix
    messages row := prefix number(u32) -> piece

Numbers are big-endian; an expiry of 0 means never; the generation is that of the row for SCAN. The
value of version 1 or 3 follows; version 3 was written in parts. The value of version 2 stands in
pieces among the messages, so that no row is large.

The prefix has the form of a stream's, with the string's name and generation at the time it became
large; a rename keeps it. All pieces but the last have the same size. A piece that is missing or has
another length is damage and raises Corruption. A new value overwrites the rows of the one before.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from io import BytesIO
from struct import Struct
from struct import error as StructError
from typing import Protocol, TypeAlias

from kvstream.errors import Corruption
from kvstream.layout.keys import (
    COUNTED_MAX,
    U64,
    database_of,
    generation_in,
    key_in,
    key_of,
    message_prefix,
    scan_row,
    stream_row,
    successor,
)
from kvstream.meta.records import STREAM_KIND, StreamMeta
from kvstream.storage.batch import Batch, Family, Row
from kvstream.types.options import MEGABYTE
from kvstream.types.thresholds import DEFAULT

WHOLE_BYTES_MAX = 16 << 10
"""Up to this length a value stands in its record: a row that does not slow its neighbours."""
PIECE_BYTES = 64 << 10
PAGE_BYTES = 4 * MEGABYTE
"""Bytes of pieces read at once: memory holds no more besides the value."""
RANGE_PIECES = DEFAULT.range_rows
"""From this number on, pieces are deleted as one range."""

_MESSAGES, _METADATA = Family.MESSAGES, Family.METADATA
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
    """A number that differs after each change of the value."""

    @property
    def count(self) -> int:
        return -(-self.length // self.size)

    def row(self, number: int) -> bytes:
        return self.prefix + _NUMBER.pack(number)

    def bytes_of(self, number: int) -> int:
        """Return the length of the piece with this number."""
        return min(self.size, self.length - number * self.size)

    @property
    def is_possible(self) -> bool:
        return self.length > 0 and self.size > 0 and self.count <= 1 << 32


def is_large(length: int) -> bool:
    """Return whether a value of this length has rows of its own."""
    return length > WHOLE_BYTES_MAX


def read(batch: Batch, pieces: Pieces, start: int = 0, end: int | None = None) -> bytes:
    """Return the bytes of a value from ``start`` to ``end``; raise Corruption for damage."""
    end = pieces.length if end is None else min(end, pieces.length)
    if start >= end:
        return b""
    first = start // pieces.size
    whole = BytesIO()
    until = (end - 1) // pieces.size + 1
    for piece in _check_pieces(pieces, first, until, _pages(batch, pieces, first, until)):
        whole.write(piece)
    skipped = start - first * pieces.size
    whole.truncate(end - first * pieces.size)
    return whole.getvalue()[skipped:]


def steps(batch: Batch, pieces: Pieces) -> Iterator[bytes]:
    """Return the value as it is now, to be read piece by piece."""
    pages = batch.snapshot(_MESSAGES, pieces.row(0), _upper(pieces, pieces.count))
    return _check_pieces(pieces, 0, pieces.count, pages)


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


def _check_pieces(
    pieces: Pieces, number: int, until: int, pages: Iterator[list[Row]]
) -> Iterator[bytes]:
    """Yield the pieces from one number to another; raise Corruption if one is missing."""
    for page in pages:
        for key, piece in page:
            if key != pieces.row(number) or len(piece) != pieces.bytes_of(number):
                raise _missing_piece(pieces, number)
            yield piece
            number += 1
    if number < until:
        raise _missing_piece(pieces, number)


def _missing_piece(pieces: Pieces, number: int) -> Corruption:
    key = key_in(pieces.prefix)
    return Corruption(f"the string first named {key!r} is damaged: piece {number} is lost")


def write(batch: Batch, prefix: bytes, value: bytes, written: int, old: Pieces | None) -> Pieces:
    """Write a value, possibly over another."""
    pieces = Pieces(prefix, len(value), PIECE_BYTES, written)
    puts = batch.puts[_MESSAGES]
    for number in range(pieces.count):
        at = number * pieces.size
        puts[pieces.row(number)] = value[at : at + pieces.size]
    if old is not None:
        drop(batch, old, pieces.count)
    return pieces


def overwrite(batch: Batch, pieces: Pieces, offset: int, part: bytes, written: int) -> Pieces:
    """Overwrite a value from an offset on, with zeros between; other pieces stay as they are."""
    stop = offset + len(part)
    new_pieces = Pieces(pieces.prefix, max(pieces.length, stop), pieces.size, written)
    for number in range(
        min(offset, pieces.length) // new_pieces.size, (stop - 1) // new_pieces.size + 1
    ):
        base = number * new_pieces.size
        piece = bytearray(new_pieces.bytes_of(number))
        low, high = max(offset, base), min(stop, base + len(piece))
        if base < pieces.length and high - low < len(piece):
            old = read(batch, pieces, base, base + new_pieces.size)
            piece[: len(old)] = old
        if low < high:
            piece[low - base : high - base] = part[low - offset : high - offset]
        batch.put(_MESSAGES, new_pieces.row(number), bytes(piece))
    return new_pieces


def drop(batch: Batch, pieces: Pieces, kept: int = 0) -> None:
    """Delete the pieces of a value except the first ``kept``: row by row if they are few."""
    if pieces.count - kept < RANGE_PIECES:
        for number in range(kept, pieces.count):
            batch.delete(_MESSAGES, pieces.row(number))
    else:
        batch.delete_range(_MESSAGES, pieces.row(kept), successor(pieces.prefix))


STRING_KIND = 2
WHOLE_VERSION, PIECES_VERSION, PARTS_VERSION = 1, 2, 3
_HEAD = Struct(">BB QQ")
_PIECES = Struct(">QIQ")


class Writing(Protocol):
    """What a string needs of the transaction that changes it."""

    batch: Batch

    def allocate(self) -> int: ...


@dataclass(slots=True)
class StringMeta:
    """A plain string with the fields of every key."""

    name: bytes
    row: bytes
    generation: int
    value: bytes
    """The value; empty if it stands in pieces."""
    expire_at: int = 0
    pieces: Pieces | None = None
    in_parts: bool = False
    """Part of it was overwritten or appended, which Redis shows as OBJECT ENCODING raw."""
    _head: bytes = field(default=b"", init=False, repr=False, compare=False)
    """How its record begins if it is whole and never expires; empty: not packed yet."""

    @property
    def length(self) -> int:
        """Return the length of the value in bytes."""
        return len(self.value) if self.pieces is None else self.pieces.length

    @property
    def prefix(self) -> bytes | None:
        """Return the prefix of its pieces; None if it has none."""
        return None if self.pieces is None else self.pieces.prefix

    def read(self, batch: Batch, start: int = 0, end: int | None = None) -> bytes:
        """Return the value, or its bytes from ``start`` to ``end``."""
        if self.pieces is None:
            return self.value[start:end]
        return read(batch, self.pieces, start, end)

    def steps(self, batch: Batch) -> Iterator[bytes]:
        """Return the value as it is now, to be read in steps."""
        return iter((self.value,)) if self.pieces is None else steps(batch, self.pieces)

    def put(self, txn: Writing, value: bytes) -> bytes:
        """Set the value; return the record, which the caller writes."""
        self.in_parts = False
        if len(value) <= WHOLE_BYTES_MAX:
            if self.pieces is not None:
                self.drop_pieces(txn.batch)
            self.value = value
            return self._head + value if self._head and not self.expire_at else self.encode()
        old, number = self.pieces, txn.allocate()
        prefix = old.prefix if old else message_prefix(self.name, self.generation)
        self.value, self.pieces = b"", write(txn.batch, prefix, value, number, old)
        return self.encode()

    def overwrite(self, txn: Writing, offset: int, part: bytes) -> None:
        """Overwrite from an offset on, with zeros between; the caller writes the record."""
        if self.pieces is None:
            value = self.value
            tail = value[offset + len(part) :]
            self.put(txn, value[:offset].ljust(offset, b"\0") + part + tail)
            self.in_parts = True
        elif part:
            number = txn.allocate()
            self.pieces = overwrite(txn.batch, self.pieces, offset, part, number)

    def drop_pieces(self, batch: Batch) -> None:
        """Delete the pieces."""
        if self.pieces is not None:
            drop(batch, self.pieces)
            self.pieces = None

    def encode(self) -> bytes:
        at = self.pieces
        if at is None:
            version = PARTS_VERSION if self.in_parts else WHOLE_VERSION
            head = _HEAD.pack(STRING_KIND, version, self.expire_at, self.generation)
            if not (self.in_parts or self.expire_at):
                self._head = head
            return head + self.value
        head = _HEAD.pack(STRING_KIND, PIECES_VERSION, self.expire_at, self.generation)
        return head + _PIECES.pack(at.length, at.size, at.written) + at.prefix

    @classmethod
    def decode(cls, name: bytes, record: bytes) -> "StringMeta":
        """Decode the record of a string; raise Corruption if it is damaged."""
        try:
            kind, version, expire_at, generation = _HEAD.unpack_from(record)
        except StructError:
            raise _damage_error(name, "it is too short") from None
        if kind != STRING_KIND:
            raise _damage_error(name, f"unknown kind {kind}")
        if not WHOLE_VERSION <= version <= PARTS_VERSION:
            raise _damage_error(name, f"unknown version {version}")
        if not 0 < generation < COUNTED_MAX:
            raise _damage_error(name, f"impossible number {generation}")
        string = cls(name, stream_row(name), generation, record[_HEAD.size :], expire_at)
        string.in_parts = version == PARTS_VERSION
        if version == PIECES_VERSION:
            string.value, string.pieces = b"", _pieces_of(string)
        return string


def _pieces_of(string: StringMeta) -> Pieces:
    """Decode the part of a record that describes its pieces."""
    try:
        length, size, written = _PIECES.unpack_from(string.value)
    except StructError:
        raise _damage_error(string.name, "it is too short") from None
    pieces = Pieces(string.value[_PIECES.size :], length, size, written)
    own = generation_in(pieces.prefix, database_of(string.name)) == string.generation
    if not own or not pieces.is_possible:
        raise _damage_error(string.name, "its pieces cannot be its own")
    return pieces


def _damage_error(name: bytes, why: str) -> Corruption:
    return Corruption(f"the record of key {key_of(name)!r} is damaged: {why}")


Key: TypeAlias = StreamMeta | StringMeta
"""The types that a name may stand for."""


_STREAM = bytes([STREAM_KIND])


def decode_key(name: bytes, record: bytes) -> Key:
    """Decode the record of a key of any type; raise Corruption for an unknown one."""
    if record.startswith(_STREAM):
        return StreamMeta.decode(name, record)
    return StringMeta.decode(name, record)


# --- plain strings by the hundred ----------------------------------------------------------------
#
# MGET and MSET read and write the records of plain strings without an object for each. A plain
# string is whole in its record and never expires; any other key is treated on its own.

PLAIN_START = bytes([STRING_KIND, WHOLE_VERSION]) + bytes(U64.size)
"""How the record of a plain string begins; its generation follows."""
PLAIN_HEAD = len(PLAIN_START) + U64.size
"""Bytes before the value."""


def read_records(batch: Batch, names: Sequence[bytes], together: int) -> list[bytes | None]:
    """Return the record of each stored name, None for those without one.

    ``together`` records are read by one call.
    """
    records: list[bytes | None] = []
    for start in range(0, len(names), together):
        rows = [stream_row(name) for name in names[start : start + together]]
        records += batch.get_many(_METADATA, rows)
    return records


def is_plain(record: bytes, unlinked: Set[int]) -> bool:
    """Return whether a record is a plain string's that is not among the ``unlinked`` keys."""
    if not record.startswith(PLAIN_START) or len(record) < PLAIN_HEAD:
        return False
    generation = int.from_bytes(record[len(PLAIN_START) : PLAIN_HEAD])
    return 0 < generation < COUNTED_MAX and generation not in unlinked


def new_plain_rows(
    stored_db: int, values: Mapping[bytes, bytes], numbers: Sequence[int]
) -> dict[bytes, bytes]:
    """Return the rows of new plain strings with the given generations."""
    rows = {}
    for name, number in zip(values, numbers, strict=True):
        rows[stream_row(name)] = PLAIN_START + U64.pack(number) + values[name]
        rows[scan_row(stored_db, number)] = key_of(name)
    return rows


def changed_plain_record(record: bytes, value: bytes) -> bytes:
    """Return the record of a plain string with another value."""
    return record[:PLAIN_HEAD] + value
