"""Lengths, strings, IDs and times: exact bytes, read and written, whole and in pieces."""

import io
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream.errors import BadPayload
from kvstream.rdb.primitives import (
    FIXED_LENGTH_BYTES,
    Reader,
    crc64,
    encode_fixed_length,
    encode_id,
    encode_length,
    encode_string,
    encode_time,
)
from kvstream.types.ids import U64_MAX, StreamID

LENGTHS = [
    (0, "00"),
    (63, "3f"),
    (64, "4040"),
    (16383, "7fff"),
    (16384, "8000004000"),
    ((1 << 32) - 1, "80ffffffff"),
    (1 << 32, "810000000100000000"),
    (U64_MAX, "81ffffffffffffffff"),
]
STRINGS = [
    (b"", "00"),
    (b"0", "c000"),
    (b"7", "c007"),
    (b"-12", "c0f4"),
    (b"127", "c07f"),
    (b"-128", "c080"),
    (b"128", "c18000"),
    (b"-32768", "c10080"),
    (b"32768", "c200800000"),
    (b"-2147483648", "c200000080"),
    (b"2147483647", "c2ffffff7f"),
    (b"2147483648", "0a32313437343833363438"),
    (b"007", "03303037"),
    (b"-0", "022d30"),
    (b"+1", "022b31"),
    (b"1 ", "023120"),
]


def one_by_one(data: bytes) -> Callable[[int], bytes]:
    """A source that returns a byte at a time."""
    file = io.BytesIO(data)
    return lambda size: file.read(1)


@pytest.mark.parametrize(("number", "made"), LENGTHS)
def test_a_length_is_written_in_its_shortest_form(number: int, made: str) -> None:
    data = bytes.fromhex(made)
    assert encode_length(number) == data
    for source in (data, one_by_one(data), io.BytesIO(data).read):
        reader = Reader(source)
        assert reader.length() == number
        assert reader.is_at_end()
        assert reader.offset == len(data)


def test_a_length_may_hold_a_negative_number() -> None:
    assert encode_length(-1) == bytes.fromhex("81ffffffffffffffff")
    assert Reader(encode_length(-1)).signed_length() == -1
    assert Reader(encode_length(5)).signed_length() == 5


def test_a_length_of_fixed_size_can_be_written_over() -> None:
    for number in (0, 63, 1 << 40, U64_MAX):
        data = encode_fixed_length(number)
        assert len(data) == FIXED_LENGTH_BYTES
        assert Reader(data).length() == number


@pytest.mark.parametrize(("text", "made"), STRINGS)
def test_a_string_is_written_as_redis_writes_it(text: bytes, made: str) -> None:
    assert encode_string(text).hex() == made
    assert Reader(encode_string(text)).string() == text


@given(st.binary(max_size=200) | st.integers().map(lambda n: b"%d" % n), st.booleans())
def test_strings_survive_a_round_trip(text: bytes, compress: bool) -> None:
    data = encode_string(text, compress=compress) + b"!"
    for source in (data, one_by_one(data)):
        reader = Reader(source)
        assert reader.string() == text
        assert reader.offset == len(data) - 1
    reader = Reader(data)
    reader.skip_string()
    assert reader.rest() == b"!"


def test_long_strings_are_compressed_if_asked_and_if_they_shrink() -> None:
    assert encode_string(b"x" * 21, compress=True)[0] == 0xC3
    assert encode_string(b"x" * 20, compress=True) == b"\x14" + b"x" * 20
    noise = bytes(range(100))
    assert encode_string(noise, compress=True) == encode_length(100) + noise


def test_ids_and_times_survive_a_round_trip() -> None:
    eid = StreamID(1700000000000, U64_MAX)
    reader = Reader(encode_id(eid) + eid.packed + encode_time(-1) + encode_time(1 << 40))
    assert (reader.length_id(), reader.raw_id()) == (eid, eid.packed)
    assert (reader.time(), reader.time()) == (-1, 1 << 40)
    assert reader.is_at_end()


@given(st.binary(min_size=1, max_size=100), st.lists(st.integers(0, 30), max_size=8))
def test_the_checksum_covers_the_bytes_read_so_far(data: bytes, sizes: list[int]) -> None:
    for source in (data, one_by_one(data)):
        reader = Reader(source)
        for number, size in enumerate(sizes):
            if reader.offset + size > len(data):
                break
            if number % 2:
                reader.skip(size)
            else:
                assert reader.take(size) == data[reader.offset - size : reader.offset]
            assert reader.crc == crc64(data[: reader.offset])


def test_a_part_can_be_read_by_itself() -> None:
    reader = Reader(b"abcdef", stop=4)
    assert (reader.byte(), reader.take(3)) == (ord("a"), b"bcd")
    assert reader.is_at_end()
    assert reader.crc == crc64(b"abcd")
    with pytest.raises(BadPayload, match="1 bytes are needed, 0 are left, at byte 4"):
        reader.byte()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("c0", "byte 0xc0 begins no length, at byte 1"),
        ("82", "byte 0x82 begins no length, at byte 1"),
        ("8000", "4 bytes are needed, 1 are left, at byte 2"),
        ("40", "1 bytes are needed, 0 are left"),
        ("", "1 bytes are needed, 0 are left"),
        ("4100", "a length of 256 is above 255, at byte 1"),
    ],
)
def test_a_malformed_length_is_refused(data: str, reason: str) -> None:
    for source in (whole := b"!" + bytes.fromhex(data), one_by_one(whole)):
        reader = Reader(source)
        reader.skip(1)
        with pytest.raises(BadPayload, match=reason):
            reader.length(255)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("c4", "byte 0xc4 begins no string"),
        ("83", "byte 0x83 begins no length"),
        ("81ffffffffffffffff", "a string of 18446744073709551615 bytes is above 1000"),
        ("05ffff", "5 bytes are needed, 2 are left"),
        ("c3020300", "2 bytes are needed, 1 are left"),
        ("c302810000000100000000ffff", "a length of 4294967296 is above 1000"),
        ("c30140ffff", "1 compressed bytes cannot hold 255"),
        ("c3020300ff", "compressed bytes do not hold 3 bytes"),
        ("c301c0", "byte 0xc0 begins no length"),
    ],
)
def test_a_malformed_string_is_refused(data: str, reason: str) -> None:
    for source in (whole := bytes.fromhex(data), one_by_one(whole)):
        with pytest.raises(BadPayload, match=reason) as caught:
            Reader(source).string(1000)
        assert caught.value.reply == "ERR Bad data format"
        assert caught.value.offset is not None


def test_a_malformed_string_is_not_skipped() -> None:
    for data in (b"\xc4", b"\x83", b"\x05ab", b"\xc3\x05\x05ab", b"\xc1\x00"):
        with pytest.raises(BadPayload):
            Reader(data).skip_string()


def test_an_error_names_the_key_once_it_is_known() -> None:
    error = Reader(b"").bad("something is wrong")
    assert str(error) == "Bad data format: something is wrong, at byte 0"
    error.key = b"orders"
    assert str(error) == "Bad data format: something is wrong, at byte 0, in b'orders'"


def test_announced_lengths_are_not_allocated_before_their_bytes_come() -> None:
    asked: list[int] = []

    def source(size: int) -> bytes:
        asked.append(size)
        return b"\x81" + (1 << 29).to_bytes(8, "big") if len(asked) == 1 else b""

    with pytest.raises(BadPayload, match="536870912 bytes are needed, 0 are left"):
        Reader(source).string()
    assert max(asked) <= 1 << 20
