"""Listpacks: exact bytes in both directions, a second encoder, and every kind of damage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream.errors import BadPayload
from kvstream.layout.listpack import element_size
from kvstream.rdb.nodes import decode, encode, encode_element, text_of
from tests.layout import listpack_bytes
from tests.rdb.generated import TEXTS

ELEMENTS = [
    ("00 01", 0),
    ("7f 01", 127),
    ("c0 80 02", 128),
    ("df ff 02", -1),
    ("cf ff 02", 4095),
    ("d0 00 02", -4096),
    ("f1 00 10 03", 4096),
    ("f2 90 ee fe 04", -70000),
    ("f3 00 00 80 00 05", 1 << 23),
    ("f4 00 00 00 00 00 00 00 80 09", -(1 << 63)),
    ("80 01", b""),
    ("83 30 30 37 04", b"007"),
    ("85 68 65 6c 6c 6f 06", b"hello"),
]


def framed(elements: bytes, count: int = 65535) -> bytes:
    return (
        (len(elements) + 7).to_bytes(4, "little")
        + count.to_bytes(2, "little")
        + (elements + b"\xff")
    )


@pytest.mark.parametrize(("made", "element"), ELEMENTS)
def test_an_element_has_exactly_these_bytes(made: str, element: int | bytes) -> None:
    data = bytes.fromhex(made)
    assert encode_element(element) == encode_element(text_of(element)) == data
    assert decode(framed(data)) == [element]


@given(TEXTS)
def test_a_text_is_encoded_as_by_another_encoder_and_decoded_again(text: bytes) -> None:
    made = encode_element(text)
    assert made[:1] == listpack_bytes.encode(text)[:1]
    assert len(made) == element_size(text)
    assert [text_of(each) for each in decode(framed(made * 3))] == [text] * 3


@pytest.mark.parametrize("size", [63, 64, 126, 127, 4095, 4096, 16378, 16379, 2097146, 2097147])
def test_lengths_around_every_border_survive_a_round_trip(size: int) -> None:
    text = b"v" * size
    made = encode_element(text)
    assert len(made) == element_size(text)
    assert decode(encode([text, 5, text])) == [text, 5, text]


@pytest.mark.parametrize("count", [0, 1, 65534, 65535, 65536])
def test_a_header_counts_up_to_65534_elements(count: int) -> None:
    data = encode([7] * count)
    assert int.from_bytes(data[4:6], "little") == min(count, 65535)
    assert decode(data) == [7] * count


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "a listpack of 0 bytes claims another size"),
        (b"\x07\0\0\0\0\0", "claims another size"),
        (b"\x08\0\0\0\0\0\xff", "claims another size"),
        (b"\x07\0\0\0\0\0\xfe", "does not end with its terminator"),
        (framed(b"\x01\x01", 2), "a listpack of 1 elements claims 2"),
        (framed(b"\xf5\x01"), "byte 0xf5 begins no listpack element"),
        (framed(b"\xff\x01"), "byte 0xff begins no listpack element"),
        (framed(b"\x01\x02"), "lengths at both ends"),
        (framed(b"\x01"), "lengths at both ends"),
        (framed(b"\x85hello"), "lengths at both ends"),
        (framed(b"\x85hello\x05"), "lengths at both ends"),
        (framed(b"\xbfhello\x06"), "lengths at both ends"),
        (framed(b"\xe4\x00hello\x06"), "lengths at both ends"),
        (framed(b"\xf0\xff\xff\xff\xffhello\x06"), "lengths at both ends"),
        (framed(b"\xf0"), "lengths at both ends"),
        (framed(b"\xf4\0\0\x01"), "lengths at both ends"),
        (framed(b"\xc1\x02"), "lengths at both ends"),
    ],
)
def test_damage_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(BadPayload, match=reason):
        decode(data)


@given(st.lists(st.integers(-300, 300) | TEXTS, max_size=20), st.data())
def test_damaged_listpacks_are_refused_or_read_within_their_bounds(
    elements: list[int | bytes], data: st.DataObject
) -> None:
    sound = bytearray(encode(elements))
    at = data.draw(st.integers(0, len(sound) - 1))
    sound[at] = data.draw(st.integers(0, 255))
    try:
        found = decode(bytes(sound))
    except BadPayload:
        return
    assert sum(len(each) for each in found if isinstance(each, bytes)) < len(sound)
