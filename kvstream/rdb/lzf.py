"""LZF, the compression of strings above 20 bytes in Redis's files and payloads.

::

    data    := (literal | copy)*
    literal := 000lllll byte*(l + 1)
    copy    := lllooooo o(u8)               l + 2 bytes, 1 <= l <= 6
             | 111ooooo l(u8) o(u8)         l + 9 bytes

A copy repeats the output from o + 1 bytes before its end; it may overlap itself.
"""

from kvstream.rdb import twins

RATIO_MAX = 88
"""Most growth: three bytes copy 264."""

_LITERAL_MAX = 32
_COPY_MIN = 3
_COPY_MAX = 264
_LONG = 7
_DISTANCE_MAX = 1 << 13
_TABLE_BITS = 14
_MULTIPLIER = 2654435761
"""Of Knuth's multiplicative hash, for 32 bits."""
_U32_MAX = (1 << 32) - 1


class BadCompression(ValueError):
    """The bytes are not LZF, or not of the given size."""


def decompress(data: bytes, size: int) -> bytes:
    """Return the ``size`` bytes that ``data`` holds; raise BadCompression for damage.

    ``size`` is allocated at once: the caller has checked it against RATIO_MAX.
    """
    if twins is not None:
        whole = twins.decompress(data, size)
        if whole is not None:
            return whole
    return decompress_in_python(data, size)


def decompress_in_python(data: bytes, size: int) -> bytes:
    """Do ``decompress`` in Python."""
    whole = bytearray()
    at = 0
    try:
        while at < len(data):
            control = data[at]
            at += 1
            if control < _LITERAL_MAX:
                whole += data[at : at + control + 1]
                at += control + 1
            else:
                length = control >> 5
                if length == _LONG:
                    length += data[at]
                    at += 1
                distance = ((control & 31) << 8 | data[at]) + 1
                at += 1
                _copy(whole, distance, length + 2)
            if len(whole) > size:
                break
    except IndexError:
        raise BadCompression("compressed bytes end within a copy") from None
    if at != len(data) or len(whole) != size:
        raise BadCompression(f"compressed bytes do not hold {size} bytes")
    return bytes(whole)


def _copy(output: bytearray, distance: int, length: int) -> None:
    if distance > len(output):
        raise BadCompression("compressed bytes copy from before their beginning")
    start = len(output) - distance
    piece = output[start : start + length]
    output += (piece * (length // distance + 1))[:length]


def compress(data: bytes) -> bytes:
    """Return ``data`` as LZF, which may be longer than ``data``."""
    return compress_in_python(data) if twins is None else twins.compress(data)


def compress_in_python(data: bytes) -> bytes:
    """Do ``compress`` in Python."""
    seen = [-1] * (1 << _TABLE_BITS)
    packed = bytearray()
    at = literal = 0
    while at + _COPY_MIN <= len(data):
        three = int.from_bytes(data[at : at + _COPY_MIN], "big")
        slot = (three * _MULTIPLIER & _U32_MAX) >> 32 - _TABLE_BITS
        before, seen[slot] = seen[slot], at
        if (
            before < 0
            or at - before > _DISTANCE_MAX
            or data[before : before + _COPY_MIN] != data[at : at + _COPY_MIN]
        ):
            at += 1
            continue
        length = _common(data, before, at)
        _put_literals(packed, data, literal, at)
        _put_copy(packed, at - before - 1, length - 2)
        at += length
        literal = at
    _put_literals(packed, data, literal, len(data))
    return bytes(packed)


def _common(data: bytes, before: int, at: int) -> int:
    most = min(_COPY_MAX, len(data) - at)
    length = _COPY_MIN
    while length < most and data[before + length] == data[at + length]:
        length += 1
    return length


def _put_literals(output: bytearray, data: bytes, start: int, stop: int) -> None:
    for at in range(start, stop, _LITERAL_MAX):
        run = data[at : min(at + _LITERAL_MAX, stop)]
        output.append(len(run) - 1)
        output += run


def _put_copy(output: bytearray, offset: int, length: int) -> None:
    if length < _LONG:
        output.append(length << 5 | offset >> 8)
    else:
        output.append(_LONG << 5 | offset >> 8)
        output.append(length - _LONG)
    output.append(offset & 0xFF)
