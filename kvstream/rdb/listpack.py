"""Listpacks: the rows of texts and integers in which Redis keeps the entries of a node.

::

    listpack := size(u32) count(u16) element* 0xFF          little-endian; count 65535: not counted
    element  := body backlen
    body     := 0vvvvvvv                                    0 to 127
              | 10llllll byte*
              | 110vvvvv v(u8)                              13 bits, signed, big-endian
              | 1110llll l(u8) byte*                        12 bits, big-endian
              | 0xF0 l(u32) byte*                           little-endian
              | 0xF1 i16 | 0xF2 i24 | 0xF3 i32 | 0xF4 i64   little-endian
    backlen  := 0lllllll (1lllllll)*                        bytes of the body, big-endian

A text that is the canonical decimal of 64 bits is held as integer, so an integer *is* that text.
"""

from collections.abc import Iterable

from kvstream.errors import BadPayload
from kvstream.layout.listpack import FRAME_BYTES, backlen_size, canonical_integer, integer_size

Element = int | bytes

HEADER_BYTES = 6
UNCOUNTED = 65535
_TERMINATOR = 0xFF
_INTEGER_BYTES = {0xF1: 2, 0xF2: 3, 0xF3: 4, 0xF4: 8}
_INTEGER_HEADS = {width: head for head, width in _INTEGER_BYTES.items()}


def text_of(element: Element) -> bytes:
    """Return the text that an element stands for."""
    return element if isinstance(element, bytes) else b"%d" % element


def decode(listpack: bytes) -> list[Element]:
    """Return the elements, or raise BadPayload with the offset in the listpack."""
    size = len(listpack)
    if size < FRAME_BYTES or int.from_bytes(listpack[:4], "little") != size:
        raise BadPayload(f"a listpack of {size} bytes tells another size")
    if listpack[-1] != _TERMINATOR:
        raise BadPayload("a listpack does not end with its terminator", size - 1)
    elements: list[Element] = []
    at = HEADER_BYTES
    while at < size - 1:
        element, at = _take(listpack, at)
        elements.append(element)
    told = int.from_bytes(listpack[4:HEADER_BYTES], "little")
    if told not in (len(elements), UNCOUNTED):
        raise BadPayload(f"a listpack of {len(elements)} elements tells of {told}", 4)
    return elements


def _take(data: bytes, at: int) -> tuple[Element, int]:
    """Return the element at ``at``, and where the next one is."""
    start, size = _body(data, at)
    end = start + size
    length = backlen(end - at)
    if data[end : end + len(length)] != length or end + len(length) >= len(data):
        raise BadPayload("an element of a listpack does not end as it begins", at)
    return _element(data, at, start, end), end + len(length)


def _body(data: bytes, at: int) -> tuple[int, int]:
    """Return where the data of an element starts, and its bytes."""
    head = data[at]
    if head < 0x80:
        return at, 1
    if head < 0xC0:
        return at + 1, head & 0x3F
    if head < 0xE0:
        return at, 2
    if head < 0xF0:
        return at + 2, (head & 0x0F) << 8 | data[at + 1]
    if head == 0xF0:
        return at + 5, int.from_bytes(data[at + 1 : at + 5], "little")
    if head in _INTEGER_BYTES:
        return at + 1, _INTEGER_BYTES[head]
    raise BadPayload(f"no element of a listpack begins with byte {head:#04x}", at)


def _element(data: bytes, at: int, start: int, end: int) -> Element:
    head = data[at]
    if head < 0x80:
        return head
    if 0xC0 <= head < 0xE0:
        number = int.from_bytes(data[at:end], "big") & 0x1FFF
        return number if number < 1 << 12 else number - (1 << 13)
    if head in _INTEGER_BYTES:
        return int.from_bytes(data[start:end], "little", signed=True)
    return data[start:end]


def encode(elements: Iterable[Element]) -> bytes:
    """Return the listpack of the elements."""
    parts = list(map(encode_element, elements))
    body = b"".join(parts)
    size = (FRAME_BYTES + len(body)).to_bytes(4, "little")
    count = min(len(parts), UNCOUNTED).to_bytes(2, "little")
    return size + count + body + bytes((_TERMINATOR,))


def encode_element(element: Element) -> bytes:
    """Return an element, a text as what it is best held as."""
    if isinstance(element, bytes) and (number := canonical_integer(element)) is not None:
        element = number
    body = _integer(element) if isinstance(element, int) else _text(element)
    return body + backlen(len(body))


def _integer(number: int) -> bytes:
    width = integer_size(number) - 2
    if width == 0:
        return bytes((number,))
    if width == 1:
        return (0b110 << 13 | number & 0x1FFF).to_bytes(2, "big")
    return bytes((_INTEGER_HEADS[width],)) + number.to_bytes(width, "little", signed=True)


def _text(text: bytes) -> bytes:
    size = len(text)
    if size < 1 << 6:
        return bytes((0x80 | size,)) + text
    if size < 1 << 12:
        return (0xE000 | size).to_bytes(2, "big") + text
    return b"\xf0" + size.to_bytes(4, "little") + text


def backlen(body: int) -> bytes:
    """Return the length of a body of so many bytes, for reading backwards."""
    size = backlen_size(body)
    groups = (body >> 7 * (size - 1 - at) & 127 for at in range(size))
    return bytes(group | 128 if at else group for at, group in enumerate(groups))
