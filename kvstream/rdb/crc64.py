"""The checksum at the end of Redis's files and payloads: CRC-64 of the polynomial of Jones.

It starts from 0 and is not inverted at the end, so that sums of parts can be joined.
"""

from kvstream.rdb.compiled import twins

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
