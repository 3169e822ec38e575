"""RocksDB's write-ahead log as the change log of a store: bytes in, records out.

One commit is one record, in the order of the commits (docs/internals.md, "The change log"). The
file can be read while RocksDB writes it. This module opens no file, and has a compiled twin.

::

    file     := block*                     of 32768 bytes; the last one may be shorter
    block    := fragment* zero*            zeros where a fragment's head has no room any more
    fragment := sum(u32) length(u16) type(u8) part
      sum       CRC-32C of type and part, rotated by 15 bits, plus 0xa282ead8
      type      1: part is a payload; 2, 3, 4: it is the first, a middle, the last part of one
    payload  := sequence(u64) count(u32) row*         of a log; MANIFEST has others (manifest.py)
    row      := tag(u8) [family(varint)] key [value]
      tag       0 delete, 1 put, 15 delete the range of key <= k < value: in the family 0
                4, 5, 14: the same with the number of a family
    key, value := length(varint) byte*
    integers are little-endian; a varint has 7 bits a byte, the lowest first

``sequence`` is the number of the first row, the next ones follow; an empty commit has the number
that the next row will have. A payload may be divided at any byte, also within its first twelve.
"""

from collections.abc import Iterable
from struct import Struct
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from kvstream.errors import Corruption
from kvstream.layout import import_compiled

if TYPE_CHECKING:
    from kvstream.storage import _log as twin
else:
    twin = import_compiled("kvstream.storage._log")

BLOCK = 32 << 10
DELETE, PUT, DELETE_RANGE = 0, 1, 15
"""What a row does: the tags of the family 0."""

Row = tuple[int, int, bytes, bytes | None]
"""A family's number, DELETE, PUT or DELETE_RANGE, a key, and its value.

The value of a DELETE_RANGE is the first key behind the range, that of a DELETE is None.
"""

_FRAGMENT = Struct("<IHB")
_BATCH = Struct("<QI")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_KINDS = {DELETE: DELETE, PUT: PUT, DELETE_RANGE: DELETE_RANGE, 4: DELETE, 5: PUT, 14: DELETE_RANGE}
"""What a row does, by its tag."""
_WITH_FAMILY = frozenset({4, 5, 14})
_KINDS_OF_PARTS = {
    (True, True): _WHOLE,
    (True, False): _FIRST,
    (False, False): _MIDDLE,
    (False, True): _LAST,
}
"""The type of a fragment, by whether its part is the first, and the last, of a payload."""
_VARINT_BYTES = 5
_U32_MAX = (1 << 32) - 1
_SEQUENCE_MAX = 1 << 62
MORE, OVER, UNSOUND = 0, 1, 2
"""Why ``find_end`` went no further."""

T = TypeVar("T")

__all__ = [
    "DELETE",
    "DELETE_RANGE",
    "MORE",
    "OVER",
    "PUT",
    "UNSOUND",
    "FragmentReader",
    "LogReader",
    "Record",
    "Row",
    "crc32c",
    "find_end",
    "join",
    "put_varint",
    "twin",
]


class Record(NamedTuple):
    """One commit."""

    sequence: int
    """The number of its first row."""
    row_count: int
    """How many rows it has; 0 after an empty commit."""
    data: bytes
    """The payload, as RocksDB wrote it."""
    end: int
    """The offset of the first byte behind it in the file: a position to read on from."""

    @property
    def last(self) -> int:
        """The number of its last row; of an empty record, of the row before it."""
        return self.sequence + self.row_count - 1

    def rows(self) -> list[Row]:
        """Return the rows in their order; raise Corruption for rows of an unknown form."""
        found = None if twin is None else twin.rows(self.data)
        return _rows_in_python(self) if found is None else found


class FragmentReader(Generic[T]):
    """Join the fragments of a file of RocksDB to payloads; a subclass says what becomes of each."""

    def __init__(self, position: int = 0) -> None:
        """Begin at a position, an end of a payload; 0 is the beginning of the file."""
        self.position = position
        """The end of the last whole payload."""
        self._at = position  # of the first byte of _rest
        self._rest = b""
        self._parts: list[bytes] = []
        self._damage: str | None = None

    @property
    def unread(self) -> int:
        """The bytes behind ``position``: the beginning of a payload whose end has not been fed.

        RocksDB will write the rest, unless there is a newer log. Then a write failed or the machine
        lost its power: that end is torn, and was never a commit.
        """
        return self._at + len(self._rest) - self.position

    def feed(self, data: bytes) -> list[T]:
        """Take the next bytes of the file, and return what is whole by now.

        Raises Corruption, with the offset, for bytes that RocksDB does not write, now and at each
        further call. What is whole before them ends at ``position``.
        """
        if self._damage is not None:
            raise Corruption(self._damage)
        buffer, start, end = self._rest + data, -1, 0
        taken: list[T] = []
        try:
            while end > start:
                start = self._take_plain(buffer, end, taken)
                end = self._take_fragment(buffer, start, taken)
        except Corruption as error:
            self._damage = str(error)
            raise
        self._at += start
        self._rest = buffer[start:]
        return taken

    def _payload(self, payload: bytes, end: int) -> T:
        """Return what becomes of a payload that ends at an offset."""
        raise NotImplementedError

    def _take_plain(self, buffer: bytes, start: int, taken: list[T]) -> int:
        """Take undivided payloads by the compiled twin; return where something else begins."""
        return start

    def _take_fragment(self, buffer: bytes, start: int, taken: list[T]) -> int:
        """Take a fragment, or zeros; return where it ends, ``start`` if it is not whole."""
        at = self._at + start
        left = BLOCK - at % BLOCK
        if left < _FRAGMENT.size:
            padding = buffer[start : start + left]
            if any(padding):
                raise _damaged(at, "the end of the block is not zero")
            return start + left if len(padding) == left else start
        if len(buffer) - start < _FRAGMENT.size:
            return start
        checksum, length, kind = _FRAGMENT.unpack_from(buffer, start)
        end: int = start + _FRAGMENT.size + length
        if not _WHOLE <= kind <= _LAST:
            raise _damaged(at, f"{kind} is not a known type of a fragment")
        if length > left - _FRAGMENT.size:
            raise _damaged(at, f"a fragment of {length} bytes exceeds its block")
        if end > len(buffer):
            return start
        if _masked(crc32c(buffer[start + _FRAGMENT.size - 1 : end])) != checksum:
            raise _damaged(at, "the checksum does not match")
        self._join(kind, buffer[start + _FRAGMENT.size : end], at, taken)
        return end

    def _join(self, kind: int, part: bytes, at: int, taken: list[T]) -> None:
        """Add a part that begins at an offset, and take the payload if it is the last one."""
        if (kind in (_WHOLE, _FIRST)) == bool(self._parts):
            raise _damaged(at, "a payload lacks its first or last part")
        self._parts.append(part)
        if kind in (_WHOLE, _LAST):
            end = at + _FRAGMENT.size + len(part)
            taken.append(self._payload(b"".join(self._parts), end))
            self._parts.clear()
            self.position = end


class LogReader(FragmentReader[Record]):
    """Read the records of one log, from its beginning or from the end of any record.

    >>> reader = LogReader(position)
    >>> for record in reader.feed(os.pread(log, 1 << 20, position)):
    ...     print(record.sequence, record.rows())
    """

    def __init__(self, position: int = 0) -> None:
        """Begin at ``position``: 0, or the ``end`` of a record."""
        super().__init__(position)
        self._next = 0  # the least number that the next record may have

    def _payload(self, payload: bytes, end: int) -> Record:
        if len(payload) < _BATCH.size:
            raise _damaged(end, f"a record of {len(payload)} bytes ends here")
        sequence, count = _BATCH.unpack_from(payload)
        if sequence < self._next:
            raise _damaged(end, f"record {sequence}, which ends here, follows {self._next - 1}")
        self._next = sequence + count
        return Record(sequence, count, payload, end)

    def _take_plain(self, buffer: bytes, start: int, taken: list[Record]) -> int:
        if twin is None or self._parts:
            return start
        before = len(taken)
        start = twin.take_whole(buffer, start, self._at, self._next, Record, taken)
        if len(taken) > before:
            self.position = taken[-1].end
            self._next = taken[-1].last + 1
        return start


def join(payloads: Iterable[bytes]) -> bytes:
    """Return the bytes of a file that holds payloads."""
    file = bytearray()
    for payload in payloads:
        at, is_first = 0, True
        while is_first or at < len(payload):
            left = BLOCK - len(file) % BLOCK
            if left < _FRAGMENT.size:
                file += bytes(left)
                left = BLOCK
            part = payload[at : at + left - _FRAGMENT.size]
            at += len(part)
            is_last = at == len(payload)
            kind = bytes([_KINDS_OF_PARTS[is_first, is_last]])
            file += _FRAGMENT.pack(_masked(crc32c(kind + part)), len(part), kind[0]) + part
            is_first = False
    return bytes(file)


def find_end(data: bytes, start: int, at: int, last: int, until: int) -> tuple[int, int, int]:
    """Find the end of the records of a log up to a row's number, without making them.

    ``data`` has the bytes of the log from offset ``at`` on, and at ``start`` an end of a record
    with the last number ``last`` (-1: unknown). Returns the end of the last whole record that goes
    on from there, all of it up to ``until``; its last number; and why no more follow: ``MORE``
    bytes are needed, the next record is ``OVER`` it, or it is ``UNSOUND``: damaged, or not the
    next one.
    """
    if twin is None:
        return find_end_in_python(data, start, at, last, until)
    return twin.find_end(data, start, at, last, until)


def find_end_in_python(
    data: bytes, start: int, at: int, last: int, until: int
) -> tuple[int, int, int]:
    """Do what ``find_end`` does, without compiled code."""
    finder = _EndFinder(at + start, last, until)
    state = MORE
    try:
        finder.feed(data[start:])
    except _Over:
        state = OVER
    except Corruption:
        state = UNSOUND
    return finder.end - at, finder.last, state


class _Over(Exception):
    """The next record goes beyond what is looked for."""


class _EndFinder(FragmentReader[None]):
    """Passes records that follow each other."""

    def __init__(self, position: int, last: int, until: int) -> None:
        super().__init__(position)
        self.end, self.last, self._until = position, last, until

    def _payload(self, payload: bytes, end: int) -> None:
        if len(payload) < _BATCH.size:
            raise _damaged(end, f"a record of {len(payload)} bytes ends here")
        sequence, count = _BATCH.unpack_from(payload)
        reached = sequence + count - 1
        if sequence > _SEQUENCE_MAX:
            raise _damaged(end, f"{sequence} is no number of a row")
        if reached > self._until:
            raise _Over
        if count and self.last >= 0 and sequence != self.last + 1:
            raise _damaged(end, f"record {sequence}, which ends here, follows {self.last}")
        self.end, self.last = end, reached


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of some bytes."""
    return crc32c_in_python(data) if twin is None else twin.crc32c(data)


def crc32c_in_python(data: bytes) -> int:
    """Do what ``crc32c`` does, without compiled code."""
    crc = _U32_MAX
    for byte in data:
        crc = _SUMS[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ _U32_MAX


def _sum_of(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc


_SUMS = [_sum_of(byte) for byte in range(256)]


def _masked(crc: int) -> int:
    """Return a CRC as it is stored: one of bytes that hold their own CRC would prove nothing."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & _U32_MAX


def _damaged(at: int, reason: str) -> Corruption:
    return Corruption(f"a file of RocksDB's log format is damaged at byte {at}: {reason}")


def _rows_in_python(record: Record) -> list[Row]:
    """Do what ``Record.rows`` does, without compiled code."""
    data, at = record.data, _BATCH.size
    found: list[Row] = []
    try:
        while at < len(data):
            tag, family, value = data[at], 0, None
            kind = _KINDS[tag]
            at += 1
            if tag in _WITH_FAMILY:
                family, at = take_varint(data, at)
            key, at = take_bytes(data, at)
            if kind != DELETE:
                value, at = take_bytes(data, at)
            found.append((family, kind, key, value))
    except KeyError:
        raise _damaged(record.end, f"a record with rows of tag {tag} ends here") from None
    except ValueError as error:
        raise _damaged(record.end, f"a record ends here with {error}") from None
    if len(found) != record.row_count:
        reason = f"a record of {record.row_count} rows that has {len(found)} ends here"
        raise _damaged(record.end, reason)
    return found


def take_varint(data: bytes, at: int, size: int = _VARINT_BYTES) -> tuple[int, int]:
    """Return the varint at an offset, and the offset behind it; ValueError if it is not whole."""
    number = 0
    for shift, byte in enumerate(data[at : at + size]):
        number |= (byte & 127) << 7 * shift
        if byte < 128:
            return number, at + shift + 1
    raise ValueError("an unfinished number")


def put_varint(number: int) -> bytes:
    """Return a number as a varint."""
    put = bytearray()
    while number > 127:
        put.append(number & 127 | 128)
        number >>= 7
    put.append(number)
    return bytes(put)


def take_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes at an offset, behind their length, and the offset behind them."""
    length, at = take_varint(data, at)
    if length > len(data) - at:
        raise ValueError(f"{length} bytes where {len(data) - at} are left")
    return data[at : at + length], at + length
