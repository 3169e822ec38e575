"""Pages of entries by column: what both twins make of rows, replies and damage."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream.errors import Corruption
from kvstream.layout import columns
from kvstream.layout.values import encode_flat
from kvstream.types.ids import U64_MAX, StreamID

PREFIX = b"prefix"

ids = st.builds(StreamID, st.integers(0, U64_MAX), st.integers(0, U64_MAX))
parts = st.binary(max_size=40)
fields = st.lists(st.tuples(parts, parts), min_size=1, max_size=40)
entries = st.lists(st.tuples(ids, fields), max_size=12)


def flat(pairs: list[tuple[bytes, bytes]]) -> list[bytes]:
    return [part for pair in pairs for part in pair]


def rows_of(page: list[tuple[StreamID, list[tuple[bytes, bytes]]]]) -> list[tuple[bytes, bytes]]:
    return [(PREFIX + eid.packed, encode_flat(flat(pairs))[0]) for eid, pairs in page]


def reply_of(page: list[tuple[StreamID, list[tuple[bytes, bytes]]]]) -> list[Any]:
    return [[bytes(eid), flat(pairs)] for eid, pairs in page]


def read_back(found: columns.Columns) -> list[tuple[StreamID, list[tuple[bytes, bytes]]]]:
    """Parse the buffers, by the grammar at the head of the module."""

    def numbers(buffer: bytes) -> list[int]:
        return list(memoryview(buffer).cast("i"))

    def strings(ends: bytes, data: bytes) -> list[bytes]:
        bounds = numbers(ends)
        return [data[a:b] for a, b in pairwise(bounds)]

    pairs = list(
        zip(
            strings(found.name_ends, found.names),
            strings(found.value_ends, found.values),
            strict=True,
        )
    )
    ends = numbers(found.ends)
    eids = [StreamID.unpack(found.ids[at : at + 16]) for at in range(0, len(found.ids), 16)]
    return [(eid, pairs[a:b]) for eid, a, b in zip(eids, ends[:-1], ends[1:], strict=True)]


@given(entries)
def test_rows_are_restored_from_their_buffers(
    page: list[tuple[StreamID, list[tuple[bytes, bytes]]]],
) -> None:
    found = columns.of_rows(rows_of(page), len(PREFIX))
    assert read_back(found) == page
    assert found == columns.rows_in_python(rows_of(page), len(PREFIX))
    assert found.repeated == [
        at for at, (_, pairs) in enumerate(page) if len(dict(pairs)) < len(pairs)
    ]


@given(entries)
def test_replies_give_the_same_buffers_as_rows(
    page: list[tuple[StreamID, list[tuple[bytes, bytes]]]],
) -> None:
    found = columns.of_replies(reply_of(page))
    assert found == columns.replies_in_python(reply_of(page))
    assert found == columns.of_rows(rows_of(page), len(PREFIX))


def test_a_page_has_its_length_its_last_id_and_its_bytes() -> None:
    page = [(StreamID(1, 0), [(b"ab", b"c")]), (StreamID(2, 7), [(b"ab", b"def"), (b"", b"")])]
    found = columns.of_rows(rows_of(page), len(PREFIX))
    assert len(found) == len(found.ids) // 16 == 2
    assert found.last == StreamID(2, 7)
    assert found.size == 8


@pytest.mark.parametrize(
    "row",
    [
        (PREFIX + b"short", b"\x01\x81\xa1a\xa1b"),
        (PREFIX + bytes(16), b""),
        (PREFIX + bytes(16), b"\x01\x81\xa1a"),
        (PREFIX + bytes(16), b"\x01\x81\xa1a\xa1bx"),
        (PREFIX + bytes(16), b"\x01\x80"),
        (PREFIX + bytes(16), b"\x03\x81\xa1a\xa1b"),
        (PREFIX + bytes(16), b"\x01\x81\xa1a\x07"),
    ],
    ids=["key", "empty", "cut", "longer", "no fields", "format", "a number"],
)
def test_a_damaged_row_raises_and_is_never_skipped(row: tuple[bytes, bytes]) -> None:
    sound = rows_of([(StreamID(1, 0), [(b"a", b"b")])])
    with pytest.raises(Corruption):
        columns.of_rows([*sound, row], len(PREFIX))
