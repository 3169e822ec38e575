"""The computed sizes of listpacks, compared with an encoder that makes the bytes."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvstream.layout.listpack import (
    element_size,
    elements_size,
    entry_size,
    foreign_entry_size,
    integer_size,
    node_size,
    string_size,
)
from tests.layout.listpack_bytes import (
    INT64,
    encode,
    encode_integer,
    encode_string,
    listpack,
    signed,
)

BORDERS = [
    number
    for bits in (7, 8, 12, 13, 15, 16, 23, 24, 31, 32, 62, 63)
    for around in (1 << bits, -(1 << bits))
    for number in (around - 1, around, around + 1)
    if number in INT64
]
LENGTHS = [
    *(0, 1, 62, 63, 64, 65),
    *(124, 125, 126, 127, 128),  # 2 of encoding: the backlen grows when the body exceeds 127
    *(4094, 4095, 4096, 4097),
    *(16377, 16378, 16379),  # 5 of encoding: and when the body reaches 16383
    *(2097145, 2097146, 2097147),
]


@pytest.mark.parametrize("number", [0, 1, -1, *BORDERS])
def test_an_integer_has_the_size_of_its_width(number: int) -> None:
    assert integer_size(number) == len(encode_integer(number))
    assert element_size(b"%d" % number) == len(encode_integer(number))


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_any_integer_of_64_bits_has_the_size_of_its_width(number: int) -> None:
    assert integer_size(number) == len(encode_integer(number))


@given(st.integers(-(1 << 66), 1 << 66))
def test_a_difference_of_ids_wraps_into_64_bits(difference: int) -> None:
    assert integer_size(difference) == len(encode_integer(signed(difference)))


@pytest.mark.parametrize("length", LENGTHS)
def test_a_string_has_the_size_of_its_bytes_its_header_and_its_backlen(length: int) -> None:
    assert string_size(length) == len(encode_string(b"x" * length))
    assert element_size(b"x" * length) == len(encode_string(b"x" * length))


@pytest.mark.parametrize(("length", "size"), [(268435449, 4), (268435450, 5)])
def test_the_backlen_of_a_huge_string_has_this_many_bytes(length: int, size: int) -> None:
    assert string_size(length) == 5 + length + size


@pytest.mark.parametrize(
    "text",
    [
        b"-0", b"00", b"01", b"+1", b" 1", b"1 ", b"-", b"--1", b"-01", b"1.0", b"1e3", b"", b"1_0",
        b"9223372036854775808", b"-9223372036854775809", b"18446744073709551615", b"1" * 21,
        "\u0661".encode(), b"\xff\xff",
    ],
)  # fmt: skip
def test_what_only_looks_like_an_integer_is_a_string(text: bytes) -> None:
    assert element_size(text) == string_size(len(text)) == len(encode_string(text))


TEXTS = (
    st.binary(max_size=80)
    | st.integers(-(1 << 64), 1 << 64).map(lambda number: b"%d" % number)
    | st.integers(1, 130).map(lambda length: b"7" * length)
    | st.integers(1, 130).map(lambda length: b"-" + b"7" * length)
)


@given(st.lists(TEXTS, max_size=8))
@example([b"1" * 64])
@example([b"-" + b"1" * 63, b"x"])
def test_the_size_of_many_elements_is_their_sum(values: list[bytes]) -> None:
    expected = sum(len(encode(value)) for value in values)
    assert elements_size(values) == (expected, sum(map(len, values)))


DELTAS = st.integers(0, (1 << 64) - 1) | st.integers(-5, 5)


@given(st.lists(TEXTS, min_size=1, max_size=20), DELTAS, DELTAS)
def test_an_entry_with_the_node_s_fields_has_the_size_of_its_elements(
    values: list[bytes], ms: int, seq: int
) -> None:
    count = len(values)
    head = [encode_integer(number) for number in (2, signed(ms), signed(seq))]
    elements = [*head, *map(encode, values), encode_integer(count + 3)]
    size = entry_size(count) + elements_size(values)[0] + integer_size(ms) + integer_size(seq)
    assert size == len(b"".join(elements))


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=70), DELTAS, DELTAS)
def test_an_entry_with_fields_of_its_own_has_the_size_of_its_elements(
    pairs: list[tuple[bytes, bytes]], ms: int, seq: int
) -> None:
    count, flat = len(pairs), [part for pair in pairs for part in pair]
    head = [encode_integer(number) for number in (0, signed(ms), signed(seq), count)]
    elements = [*head, *map(encode, flat), encode_integer(2 * count + 4)]
    deltas = integer_size(ms) + integer_size(seq)
    size = foreign_entry_size(count) + elements_size(flat)[0] + deltas
    assert size == len(b"".join(elements))


@given(st.lists(TEXTS, min_size=1, max_size=20), st.integers(0, 9000), st.integers(0, 9000))
def test_an_empty_node_has_the_size_of_its_frame_its_counters_and_its_names(
    names: list[bytes], live: int, dead: int
) -> None:
    counters = [encode_integer(live), encode_integer(dead)]
    ends = encode_integer(len(names)), encode_integer(0)
    whole = listpack([*counters, ends[0], *map(encode, names), ends[1]])
    size = node_size(elements_size(names)[0], len(names))
    assert size + integer_size(live) + integer_size(dead) == len(whole)
