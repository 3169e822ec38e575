"""The pieces that all of Redis's files and payloads are made of.

::

    LEN      := 00vvvvvv | 01vvvvvv u8 | 0x80 u32 | 0x81 u64            big-endian
    STRING   := LEN byte*
              | 0xC0 i8 | 0xC1 i16 | 0xC2 i32                           little-endian; a decimal
              | 0xC3 LEN(compressed) LEN(original) byte*                LZF
    LEN-ID   := LEN(ms) LEN(seq)
    RAW-ID   := ms(u64) seq(u64)                                        big-endian
    MS-TIME  := i64                                                     little-endian; Unix ms

Every length is held against a bound before anything is taken or made, and nothing is made larger
than the bytes that have really come allow.

The checksum at the end of Redis's files and payloads: CRC-64 of the polynomial of Jones.

It starts from 0 and is not inverted at the end, so that sums of parts can be joined.
"""

import re
from collections.abc import Callable
from struct import Struct

from kvstream.errors import BadPayload
from kvstream.rdb import lzf
from kvstream.rdb.compiled import twins
from kvstream.types.ids import PACKED, U64_MAX, StreamID
from kvstream.types.options import MEGABYTE

POLYNOMIAL = 0x95AC9329AC4BC9B5
"""With its bits in reverse order: the highest one stands for x to the power of 0."""

_ONE = 1 << 63
_BYTE = _ONE >> 8
_U64_MAX = (1 << 64) - 1


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
    """Return the sum of ``data``, which goes on from ``crc``, the sum of what came before it."""
    return crc64_in_python(data, crc) if twins is None else twins.crc64(data, crc)


def _product(left: int, right: int) -> int:
    """Multiply two polynomials over GF(2), modulo the CRC's own."""
    product = 0
    while left:
        if left & _ONE:
            product ^= right
        left = left << 1 & _U64_MAX
        right = right >> 1 ^ (POLYNOMIAL if right & 1 else 0)
    return product


def joined(first: int, second: int, second_size: int) -> int:
    """Return the sum of two parts, of their sums and of the bytes of the second.

    So a part that is known last, as a count at the front, costs no second reading of the rest.
    """
    power = _BYTE
    while second_size:
        if second_size & 1:
            first = _product(power, first)
        power = _product(power, power)
        second_size >>= 1
    return first ^ second


Source = bytes | Callable[[int], bytes]
"""All bytes; or what gives at most so many more of them, none at the end, like ``file.read``."""

STRING_BYTES_MAX = 512 * MEGABYTE
"""Longest key or name: Redis's ``proto-max-bulk-len``."""

CHUNK_BYTES = 1 << 18
"""Bytes asked for at a time: few calls, and all of it stays in the processor's cache."""

ID_BYTES = 16
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
    """Takes the pieces off the front of a source, and keeps their count and checksum."""

    def __init__(self, source: Source, *, start: int = 0, stop: int | None = None) -> None:
        """``start`` and ``stop`` cut a part out of a source of bytes."""
        given = isinstance(source, bytes)
        self._buffer: bytes = source if isinstance(source, bytes) else b""
        self._source = None if isinstance(source, bytes) else source
        self._end = (len(self._buffer) if stop is None else stop) if given else 0
        self._at = self._summed = start if given else 0
        self._before = 0  # bytes that came before the buffer
        self.key: bytes | None = None
        """The key that is being read, where there are several: errors name it."""
        self._crc = 0

    # --- where it is ----------------------------------------------------------------------------

    @property
    def offset(self) -> int:
        """Bytes of the source before the next piece."""
        return self._before + self._at

    @property
    def crc(self) -> int:
        """The CRC-64 of all that was taken."""
        taken = memoryview(self._buffer)[self._summed : self._at]
        self._crc = crc64(taken, self._crc)
        self._summed = self._at
        return self._crc

    def ended(self) -> bool:
        """Tell whether nothing is left, which may wait for more to come."""
        return self._at == self._end and not self._fetch(1)

    def rest(self) -> bytes:
        """Return the bytes that were fetched and not taken."""
        return self._buffer[self._at : self._end]

    def window(self, size: int) -> tuple[bytes, int, int]:
        """Return bytes, and from where to where in them is what comes next.

        At least ``size`` bytes where so many are left; they are still to be taken, or skipped.
        """
        if self._end - self._at < size:
            self._fetch(size)
        return self._buffer, self._at, self._end

    def bad(self, reason: str, at: int | None = None) -> BadPayload:
        """Return the error of damage at ``at``, or here."""
        error = BadPayload(reason, self.offset if at is None else at)
        error.key = self.key
        return error

    def _fetch(self, size: int) -> bool:
        """Have ``size`` bytes in the buffer; False where there are not so many."""
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
        """Take ``size`` bytes, which the caller has bounded."""
        at = self._at
        if size > self._end - at:
            self._need(size)
            at = self._at
        self._at = at + size
        return self._buffer[at : at + size]

    def _need(self, size: int) -> None:
        if not self._fetch(size):
            raise self.bad(f"{size} bytes are announced, {self._end - self._at} are left")

    def byte(self) -> int:
        """Take a byte."""
        at = self._at
        if at == self._end:
            self._need(1)
            at = self._at
        self._at = at + 1
        return self._buffer[at]

    def skip(self, size: int) -> None:
        """Pass over ``size`` bytes, of which few are in memory at a time."""
        while size > (left := self._end - self._at):
            self._at = self._end
            size -= left
            self._need(1)
        self._at += size

    def little(self, size: int, *, signed: bool = False) -> int:
        """Take a little-endian number of ``size`` bytes."""
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
        raise self.bad(f"no length begins with byte {head:#04x}", at)

    def signed_length(self) -> int:
        """Take a LEN that holds a number of either sign."""
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
            return self._decompressed(most, at)
        if (width := _INTEGER_BYTES.get(head)) is None:
            raise self.bad(f"no string begins with byte {head:#04x}", at)
        return b"%d" % self.little(width, signed=True)

    def _decompressed(self, most: int, at: int) -> bytes:
        compressed, size = self.length(most), self.length(most)
        if size > compressed * lzf.RATIO_MAX:
            raise self.bad(f"{compressed} compressed bytes cannot hold {size}", at)
        try:
            return lzf.decompress(self.take(compressed), size)
        except lzf.BadCompression as error:
            raise self.bad(str(error), at) from None

    def skip_string(self) -> None:
        """Pass over a STRING, of any length."""
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
            raise self.bad(f"no string begins with byte {head:#04x}", at)

    def length_id(self) -> StreamID:
        """Take a LEN-ID."""
        return StreamID(self.length(), self.length())

    def raw_id(self) -> bytes:
        """Take a RAW-ID, as the 16 bytes that it is."""
        return self.take(ID_BYTES)

    def time(self) -> int:
        """Take a MS-TIME."""
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
    """Return a LEN of FIXED_LENGTH_BYTES, to be written over once the number is known."""
    return _U64.pack(_LEN64, number)


def encode_string(data: bytes, *, compress: bool = False) -> bytes:
    """Return a STRING as Redis writes it: short decimals as integers, long ones as LZF if asked."""
    if len(data) <= _INTEGER_TEXT_MAX and _CANONICAL.fullmatch(data):
        number = int(data)
        for head, width in _INTEGER_BYTES.items():
            if -1 << 8 * width - 1 <= number < 1 << 8 * width - 1:
                return bytes((head,)) + number.to_bytes(width, "little", signed=True)
    if compress and len(data) >= _COMPRESSED_MIN:
        made = lzf.compress(data)
        if len(made) < len(data) - 4:
            head_bytes = encode_length(len(made)) + encode_length(len(data))
            return bytes((_LZF,)) + head_bytes + made
    return encode_length(len(data)) + data


def encode_id(eid: StreamID) -> bytes:
    """Return a LEN-ID."""
    return encode_length(eid.ms) + encode_length(eid.seq)


def encode_raw_id(eid: StreamID) -> bytes:
    """Return a RAW-ID."""
    return PACKED(*eid)


encode_time = _TIME.pack
"""Return a MS-TIME."""
