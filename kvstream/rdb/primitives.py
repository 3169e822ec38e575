"""The pieces of Redis's files and payloads: lengths, strings, IDs, times, and their checksum.

::

    LEN      := 00vvvvvv | 01vvvvvv u8 | 0x80 u32 | 0x81 u64            big-endian
    STRING   := LEN byte*
              | 0xC0 i8 | 0xC1 i16 | 0xC2 i32                           little-endian; a decimal
              | 0xC3 LEN(compressed) LEN(original) byte*                LZF
    LEN-ID   := LEN(ms) LEN(seq)
    RAW-ID   := ms(u64) seq(u64)                                        big-endian
    MS-TIME  := i64                                                     little-endian; Unix ms

Every length is checked against a bound before memory is allocated for it. The checksum is CRC-64
with the polynomial of Jones. It starts from 0 and is not inverted at the end, so the checksums of
parts can be joined.
"""

import re
from collections.abc import Callable
from struct import Struct

from kvstream.errors import BadPayload
from kvstream.rdb import lzf, twins
from kvstream.types.ids import U64_MAX, StreamID
from kvstream.types.images import ID_BYTES
from kvstream.types.options import MEGABYTE

POLYNOMIAL = 0x95AC9329AC4BC9B5
"""Bits in reverse order: the highest one is the coefficient of x to the power of 0."""

_ONE = 1 << 63
_BYTE = _ONE >> 8


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_entry(byte) for byte in range(256)]


def crc64_in_python(data: bytes | memoryview, crc: int = 0) -> int:
    """Do ``crc64`` in Python."""
    table = _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc


def crc64(data: bytes | memoryview, crc: int = 0) -> int:
    """Return the CRC-64 of ``data``; ``crc`` is that of the bytes before it."""
    return crc64_in_python(data, crc) if twins is None else twins.crc64(data, crc)


def _product(left: int, right: int) -> int:
    """Multiply two polynomials over GF(2), modulo that of the CRC."""
    product = 0
    while left:
        if left & _ONE:
            product ^= right
        left = left << 1 & U64_MAX
        right = right >> 1 ^ (POLYNOMIAL if right & 1 else 0)
    return product


def join_crcs(first: int, second: int, second_size: int) -> int:
    """Return the CRC-64 of two parts, from their CRCs and the size of the second.

    So a count at the front can be written last, without reading the rest again.
    """
    power = _BYTE
    while second_size:
        if second_size & 1:
            first = _product(power, first)
        power = _product(power, power)
        second_size >>= 1
    return first ^ second


Source = bytes | Callable[[int], bytes]
"""All bytes, or a function like ``file.read``, which returns b"" at the end."""

STRING_BYTES_MAX = 512 * MEGABYTE
"""Longest key or name: Redis's ``proto-max-bulk-len``."""

CHUNK_BYTES = 1 << 18
"""Bytes of one read: few calls, and small enough for the processor's cache."""

FIXED_LENGTH_BYTES = 9

_LEN14, _LEN32, _LEN64, _SPECIAL = 0x40, 0x80, 0x81, 0xC0
_LZF = 0xC3
_INTEGER_BYTES = {0xC0: 1, 0xC1: 2, 0xC2: 4}
_INTEGER_TEXT_MAX = 11
_CANONICAL = re.compile(rb"-?[1-9][0-9]{0,9}|0")
_COMPRESSED_MIN = 21
"""Redis compresses strings of more than 20 bytes."""
_TIME = Struct("<q")
_U32 = Struct(">BI")
_U64 = Struct(">BQ")
_U14_MAX = (1 << 14) - 1
_U32_MAX = (1 << 32) - 1
_I63, _I64 = 1 << 63, 1 << 64


class Reader:
    """Takes pieces off the front of a source; keeps the offset and the checksum."""

    def __init__(self, source: Source, *, stop: int | None = None) -> None:
        """``stop`` is the end of the part to read, if the source is bytes."""
        self._buffer: bytes = source if isinstance(source, bytes) else b""
        self._source = None if isinstance(source, bytes) else source
        self._end = len(self._buffer) if stop is None else stop
        self._at = self._summed = 0
        self._before = 0  # bytes that came before the buffer
        self.key: bytes | None = None
        """The key that is being read in a file: errors name it."""
        self._crc = 0

    # --- where it is ----------------------------------------------------------------------------

    @property
    def offset(self) -> int:
        """Offset of the next piece in the source."""
        return self._before + self._at

    @property
    def crc(self) -> int:
        """The CRC-64 of all bytes taken."""
        taken = memoryview(self._buffer)[self._summed : self._at]
        self._crc = crc64(taken, self._crc)
        self._summed = self._at
        return self._crc

    def is_at_end(self) -> bool:
        """Return whether the source is at its end; may wait for more bytes."""
        return self._at == self._end and not self._fetch(1)

    def rest(self) -> bytes:
        """Return the bytes that are buffered and not taken."""
        return self._buffer[self._at : self._end]

    def window(self, size: int) -> tuple[bytes, int, int]:
        """Return the buffer, and the bounds of the next bytes in it, without taking them.

        There are at least ``size`` bytes, unless the source ends before.
        """
        if self._end - self._at < size:
            self._fetch(size)
        return self._buffer, self._at, self._end

    def bad(self, reason: str, at: int | None = None) -> BadPayload:
        """Return the error for damage at ``at``, or at the current offset."""
        error = BadPayload(reason, self.offset if at is None else at)
        error.key = self.key
        return error

    def _fetch(self, size: int) -> bool:
        """Fill the buffer to ``size`` bytes; return False if the source ends before."""
        if self._source is None:
            return size <= self._end - self._at
        _ = self.crc
        parts = [self._buffer[self._at : self._end]]
        have = len(parts[0])
        while have < size and (part := self._source(CHUNK_BYTES)):
            parts.append(part)
            have += len(part)
        self._before += self._at
        self._buffer = b"".join(parts)
        self._at = self._summed = 0
        self._end = have
        return size <= have

    # --- bytes ----------------------------------------------------------------------------------

    def take(self, size: int) -> bytes:
        """Take ``size`` bytes; the caller has checked the bound."""
        at = self._at
        if size > self._end - at:
            self._need(size)
            at = self._at
        self._at = at + size
        return self._buffer[at : at + size]

    def _need(self, size: int) -> None:
        if not self._fetch(size):
            raise self.bad(f"{size} bytes are needed, {self._end - self._at} are left")

    def byte(self) -> int:
        """Take a byte."""
        at = self._at
        if at == self._end:
            self._need(1)
            at = self._at
        self._at = at + 1
        return self._buffer[at]

    def skip(self, size: int) -> None:
        """Skip ``size`` bytes, a chunk at a time."""
        while size > (left := self._end - self._at):
            self._at = self._end
            size -= left
            self._need(1)
        self._at += size

    def little(self, size: int, *, signed: bool = False) -> int:
        """Take a little-endian integer of ``size`` bytes."""
        return int.from_bytes(self.take(size), "little", signed=signed)

    # --- pieces ---------------------------------------------------------------------------------

    def length(self, most: int = U64_MAX) -> int:
        """Take a LEN of at most ``most``."""
        at = self.offset
        number = self._length(self.byte(), at)
        if number > most:
            raise self.bad(f"a length of {number} is above {most}", at)
        return number

    def _length(self, head: int, at: int) -> int:
        if head < _LEN14:
            return head
        if head < _LEN32:
            return (head & 0x3F) << 8 | self.byte()
        if head == _LEN32:
            return int.from_bytes(self.take(4), "big")
        if head == _LEN64:
            return int.from_bytes(self.take(8), "big")
        raise self.bad(f"byte {head:#04x} begins no length", at)

    def signed_length(self) -> int:
        """Take a LEN that holds a signed number."""
        number = self.length()
        return number if number < _I63 else number - _I64

    def string(self, most: int = STRING_BYTES_MAX) -> bytes:
        """Take a STRING of at most ``most`` bytes."""
        at = self.offset
        head = self.byte()
        if head < _SPECIAL:
            size = self._length(head, at)
            if size > most:
                raise self.bad(f"a string of {size} bytes is above {most}", at)
            return self.take(size)
        if head == _LZF:
            return self._decompress(most, at)
        if (width := _INTEGER_BYTES.get(head)) is None:
            raise self.bad(f"byte {head:#04x} begins no string", at)
        return b"%d" % self.little(width, signed=True)

    def _decompress(self, most: int, at: int) -> bytes:
        compressed, size = self.length(most), self.length(most)
        if size > compressed * lzf.RATIO_MAX:
            raise self.bad(f"{compressed} compressed bytes cannot hold {size}", at)
        try:
            return lzf.decompress(self.take(compressed), size)
        except lzf.BadCompression as error:
            raise self.bad(str(error), at) from None

    def skip_string(self) -> None:
        """Skip a STRING of any length."""
        at = self.offset
        head = self.byte()
        if head < _SPECIAL:
            self.skip(self._length(head, at))
        elif head == _LZF:
            compressed = self.length()
            self.length()
            self.skip(compressed)
        elif head in _INTEGER_BYTES:
            self.skip(_INTEGER_BYTES[head])
        else:
            raise self.bad(f"byte {head:#04x} begins no string", at)

    def length_id(self) -> StreamID:
        """Take a LEN-ID."""
        return StreamID(self.length(), self.length())

    def raw_id(self) -> bytes:
        """Take the 16 bytes of a RAW-ID."""
        return self.take(ID_BYTES)

    def time(self) -> int:
        """Take an MS-TIME."""
        return self.little(8, signed=True)


# --- writing --------------------------------------------------------------------------------------


def encode_length(number: int) -> bytes:
    """Return the shortest LEN; a negative number is taken modulo 2^64."""
    if 0 <= number < _LEN14:
        return bytes((number,))
    if number < 0:
        number += _I64
    if number <= _U14_MAX:
        return (_LEN14 << 8 | number).to_bytes(2, "big")
    return _U32.pack(_LEN32, number) if number <= _U32_MAX else _U64.pack(_LEN64, number)


def encode_fixed_length(number: int) -> bytes:
    """Return a LEN of FIXED_LENGTH_BYTES, which can be overwritten when the number is known."""
    return _U64.pack(_LEN64, number)


def encode_string(data: bytes, *, compress: bool = False) -> bytes:
    """Return a STRING as Redis writes it: a short decimal as an integer, else LZF if asked for."""
    if len(data) <= _INTEGER_TEXT_MAX and _CANONICAL.fullmatch(data):
        number = int(data)
        for head, width in _INTEGER_BYTES.items():
            if -1 << 8 * width - 1 <= number < 1 << 8 * width - 1:
                return bytes((head,)) + number.to_bytes(width, "little", signed=True)
    if compress and len(data) >= _COMPRESSED_MIN:
        compressed = lzf.compress(data)
        if len(compressed) < len(data) - 4:
            head_bytes = encode_length(len(compressed)) + encode_length(len(data))
            return bytes((_LZF,)) + head_bytes + compressed
    return encode_length(len(data)) + data


def encode_id(eid: StreamID) -> bytes:
    """Return a LEN-ID."""
    return encode_length(eid.ms) + encode_length(eid.seq)


encode_time = _TIME.pack
"""Return an MS-TIME."""
