"""The keys of every kind of row: their exact bytes, their order, and disjoint prefixes."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvstream import StreamID
from kvstream.layout import keys

DATABASES = st.integers(0, 65535)
KEYS = st.binary(max_size=12)
NUMBERS = st.integers(0, (1 << 64) - 1)
STREAMS = st.tuples(DATABASES, KEYS, NUMBERS)


def prefix_of(stream: tuple[int, bytes, int]) -> bytes:
    db, key, generation = stream
    return keys.message_prefix(keys.qualified(db, key), generation)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (keys.qualified(258, b"key"), "0102 6b6579"),
        (
            keys.message_prefix(keys.qualified(1, b"key"), 258) + StreamID(772, 5).packed,
            "0001 00000003 6b6579 0000000000000102 0000000000000304 0000000000000005",
        ),
        (keys.message_prefix(keys.qualified(0, b""), 1), "0000 00000000 0000000000000001"),
        (keys.ALLOCATOR_KEY, "41"),
        (keys.key_count_row(15), "43 000f"),
        (keys.scan_row(15, 772), "4e 000f 0000000000000304"),
        (keys.stream_row(keys.qualified(2, b"s")), "53 0002 73"),
        (keys.expiry_row(1, keys.qualified(2, b"s")), "58 0000000000000001 0002 73"),
        (keys.tree_prefix(258) + b"group", "0000000000000102 67726f7570"),
    ],
)
def test_a_row_has_exactly_these_bytes(row: bytes, expected: str) -> None:
    assert row == bytes.fromhex(expected)


@given(DATABASES, KEYS)
def test_a_name_is_split_into_its_database_and_key(db: int, key: bytes) -> None:
    name = keys.qualified(db, key)
    assert keys.database_of(name) == db
    assert keys.key_of(name) == key


@given(STREAMS, STREAMS)
def test_no_prefix_of_a_stream_starts_another(
    one: tuple[int, bytes, int], two: tuple[int, bytes, int]
) -> None:
    assume(one != two)
    assert not prefix_of(one).startswith(prefix_of(two))
    assert not prefix_of(two).startswith(prefix_of(one))


def test_a_key_that_looks_like_the_rows_of_another_stays_apart() -> None:
    short = prefix_of((0, b"k", 1))
    rows = prefix_of((0, short + StreamID(1, 1).packed, 1))
    assert not rows.startswith(short)


@given(STREAMS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_the_messages_of_a_stream_sort_by_id(
    stream: tuple[int, bytes, int], ms: int, seq: int, other_ms: int, other_seq: int
) -> None:
    prefix = prefix_of(stream)
    one, two = StreamID(ms, seq), StreamID(other_ms, other_seq)
    assert (prefix + one.packed < prefix + two.packed) == (one < two)


@given(DATABASES, NUMBERS, NUMBERS)
def test_the_rows_of_scan_sort_by_generation_within_their_database(
    db: int, one: int, two: int
) -> None:
    assert (keys.scan_row(db, one) < keys.scan_row(db, two)) == (one < two)
    if db < 65535:
        assert keys.scan_row(db, one) < keys.scan_row(db + 1, 0)


@given(NUMBERS, NUMBERS, KEYS, KEYS)
def test_the_rows_of_expiry_sort_by_time(one: int, two: int, key: bytes, other: bytes) -> None:
    assume(one != two)
    rows = keys.expiry_row(one, b"\0\0" + key), keys.expiry_row(two, b"\0\0" + other)
    assert (rows[0] < rows[1]) == (one < two)


def test_no_kind_of_metadata_row_is_a_prefix_of_another() -> None:
    tags = [tag for name, tag in vars(keys).items() if name.endswith(("_TAG", "_KEY"))]
    assert len({tag for tag in tags if len(tag) == 1}) == len(tags) > 9


@given(st.binary(max_size=6), st.binary(max_size=6))
def test_the_successor_of_a_prefix_is_the_bound_of_its_keys(prefix: bytes, other: bytes) -> None:
    assume(prefix.strip(b"\xff"))
    upper = keys.successor(prefix)
    assert prefix + other < upper
    if other >= prefix and not other.startswith(prefix):
        assert other >= upper


@pytest.mark.parametrize("prefix", [b"", b"\xff", b"\xff\xff"])
def test_a_prefix_of_the_highest_bytes_has_no_upper_bound(prefix: bytes) -> None:
    with pytest.raises(ValueError, match="no key lies above"):
        keys.successor(prefix)
