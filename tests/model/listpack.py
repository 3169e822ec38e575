"""The bytes that Redis's listpack takes: what decides where a node ends.

Validated against a real redis-server by tests/differential/test_nodes.py.
"""

import re

CANONICAL = re.compile(rb"0|-?[1-9][0-9]*")
INT64 = range(-(1 << 63), 1 << 63)
ONE_GIGABYTE = 1 << 30
FRAME = 6 + 1  # total bytes and element count; the end mark


def element(data: bytes) -> int:
    """Return the bytes of one element: its encoding, its data and the length to walk back."""
    number = int(data) if len(data) <= 20 and CANONICAL.fullmatch(data) else None
    if number is not None and number in INT64:
        return integer(number)
    body = len(data) + (1 if len(data) <= 63 else 2 if len(data) <= 4095 else 5)
    back = (127, 16382, 2097150, 268435454)
    return body + 1 + sum(body > limit for limit in back)


def integer(number: int) -> int:
    """Return the bytes of an integer element."""
    number = (number + (1 << 63)) % (1 << 64) - (1 << 63)  # differences of IDs wrap
    if 0 <= number <= 127:
        return 2
    for bits, size in ((13, 3), (16, 4), (24, 5), (32, 6)):
        if -(1 << (bits - 1)) <= number < 1 << (bits - 1):
            return size
    return 10
