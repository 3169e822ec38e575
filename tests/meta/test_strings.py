"""Records of plain strings: round trips, and what damage does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream import Corruption
from kvstream.layout.keys import COUNTED_MAX, stream_row
from kvstream.meta.records import StreamMeta
from kvstream.meta.strings import StringMeta, decode_key

NAME = b"\x00\x03lock"
RECORD = StringMeta(NAME, stream_row(NAME), 7, b"mine", 9).encode()
HEAD = 18
"""Bytes before the value."""


@given(st.integers(1, COUNTED_MAX - 1), st.binary(max_size=40), st.integers(0, (1 << 64) - 1))
def test_a_string_is_read_back_as_it_was(generation: int, value: bytes, expire_at: int) -> None:
    string = StringMeta(NAME, stream_row(NAME), generation, value, expire_at)
    assert decode_key(NAME, string.encode()) == string
    assert len(string.encode()) == HEAD + len(value)


@pytest.mark.parametrize("length", range(HEAD))
def test_a_record_cut_in_its_head_is_corruption(length: int) -> None:
    with pytest.raises(Corruption, match="the record of key b'lock' is damaged: it is too short"):
        decode_key(NAME, RECORD[:length])


@pytest.mark.parametrize(
    ("at", "put", "why"),
    [
        (0, b"\x00", "unknown kind 0"),
        (0, b"\x03", "unknown kind 3"),
        (1, b"\x00", "unknown version 0"),
        (1, b"\x04", "unknown version 4"),
        (HEAD - 1, b"\x00", "impossible number 0"),
        (HEAD - 8, b"\xff\xff\xff\xff", "impossible number"),
    ],
)
def test_a_record_of_no_known_kind_version_or_number_is_corruption(
    at: int, put: bytes, why: str
) -> None:
    record = RECORD[:at] + put + RECORD[at + len(put) :]
    with pytest.raises(Corruption, match=why):
        decode_key(NAME, record)


def test_a_record_is_of_the_kind_that_it_opens_with() -> None:
    stream = StreamMeta(NAME, 7)
    stream.nodes_tree = 8
    assert isinstance(decode_key(NAME, stream.encode()), StreamMeta)
    assert isinstance(decode_key(NAME, RECORD), StringMeta)
