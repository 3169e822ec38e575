"""A simple encoder of listpacks, which makes the bytes."""

INT64 = range(-(1 << 63), 1 << 63)


def backlen(length: int) -> bytes:
    """Encode an element's length so that it can be read backwards, seven bits a byte."""
    for size, end in ((1, 128), (2, 16383), (3, 2097151), (4, 268435455)):
        if length < end:
            return bytes(size)
    return bytes(5)


def encode_integer(number: int) -> bytes:
    """Encode an integer in the shortest of the six forms."""
    if 0 <= number < 1 << 7:
        body = bytes([number])
    elif -(1 << 12) <= number < 1 << 12:
        body = (0b110 << 13 | number & 0x1FFF).to_bytes(2, "big")
    elif -(1 << 15) <= number < 1 << 15:
        body = b"\xf1" + number.to_bytes(2, "little", signed=True)
    elif -(1 << 23) <= number < 1 << 23:
        body = b"\xf2" + number.to_bytes(3, "little", signed=True)
    elif -(1 << 31) <= number < 1 << 31:
        body = b"\xf3" + number.to_bytes(4, "little", signed=True)
    else:
        body = b"\xf4" + number.to_bytes(8, "little", signed=True)
    return body + backlen(len(body))


def encode_string(data: bytes) -> bytes:
    """Encode a string with its length in 6, 12 or 32 bits."""
    length = len(data)
    if length < 1 << 6:
        head = bytes([0b10 << 6 | length])
    elif length < 1 << 12:
        head = (0b1110 << 12 | length).to_bytes(2, "big")
    else:
        head = b"\xf0" + length.to_bytes(4, "little")
    return head + data + backlen(len(head) + length)


def encode(data: bytes) -> bytes:
    """Encode an element: as an integer if its text is the canonical form of one."""
    try:
        number = int(data) if len(data) <= 20 else None
    except ValueError:
        number = None
    if number is not None and number in INT64 and b"%d" % number == data:
        return encode_integer(number)
    return encode_string(data)


def listpack(elements: list[bytes]) -> bytes:
    return bytes(6) + b"".join(elements) + b"\xff"


def signed(number: int) -> int:
    """Return ``number`` modulo 2^64, as a signed one."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
