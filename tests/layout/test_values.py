"""The value of a message row: its exact bytes, the accepted fields, and the decoded ones."""

import re
from collections import OrderedDict
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream import Entry, InvalidArgument, StreamID
from kvstream.layout import values
from kvstream.layout.values import (
    FieldPart,
    FieldsLike,
    decode_fields,
    decode_page,
    encode_fields,
    encode_flat,
    encode_many,
    flat_bytes,
    to_bytes,
)

EID = StreamID(1, 0)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
BINARY = st.binary(max_size=20)
PARTS: st.SearchStrategy[FieldPart] = st.one_of(
    TEXT,
    BINARY,
    st.integers(),
    st.floats(allow_nan=False),
    st.builds(bytearray, BINARY),
    st.builds(lambda data: memoryview(data), BINARY),
)
PAIRS = st.lists(st.tuples(PARTS, PARTS), min_size=1, max_size=8)


def expected(part: FieldPart) -> bytes:
    """Return what redis-py would send for ``part``."""
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, bytes | bytearray | memoryview):
        return bytes(part)
    return repr(part).encode()


def pairs_of(value: bytes) -> list[tuple[bytes, bytes]]:
    return list(Entry(EID, decode_fields(value)).pairs)


@pytest.mark.parametrize(
    ("fields", "row"),
    [
        ({"a": "1"}, "01 81 a161 a131"),
        ({b"a": b"1"}, "01 81 a161 a131"),
        ({"a": 1}, "01 81 a161 a131"),
        ({"b": "", "a": 2.5}, "01 82 a162 a0 a161 a3322e35"),
        ([("a", "1"), ("b", "2")], "01 82 a161 a131 a162 a132"),
        ([("a", "1"), ("a", "2")], "02 94 a161 a131 a161 a132"),
        ({"é": b"\xff\x00"}, "01 81 a2c3a9 a2ff00"),
        ({"": ""}, "01 81 a0 a0"),
        ({"a": "x" * 32}, "01 81 a161 da0020" + "78" * 32),
    ],
)
def test_an_entry_is_stored_as_exactly_these_bytes(fields: FieldsLike, row: str) -> None:
    assert encode_fields(fields)[0] == bytes.fromhex(row)


@given(PAIRS)
def test_values_are_returned_as_bytes_in_order(
    pairs: list[tuple[FieldPart, FieldPart]],
) -> None:
    value, names = encode_fields(pairs)
    wanted = [(expected(field), expected(of_it)) for field, of_it in pairs]
    assert pairs_of(value) == wanted
    assert list(names) == [field for field, _ in wanted]
    assert decode_fields(value) == dict(wanted)


@given(st.dictionaries(TEXT, TEXT, min_size=1), st.dictionaries(BINARY, BINARY, min_size=1))
def test_mappings_of_text_and_of_bytes_are_encoded_alike(
    text: dict[str, str], binary: dict[bytes, bytes]
) -> None:
    encoded = {field.encode(): value.encode() for field, value in text.items()}
    assert encode_fields(text)[0] == encode_fields(encoded)[0]
    assert decode_fields(encode_fields(text)[0]) == encoded
    assert decode_fields(encode_fields(binary)[0]) == binary
    assert list(decode_fields(encode_fields(binary)[0])) == list(binary)


@pytest.mark.parametrize(
    "fields",
    [
        OrderedDict(a="1", b="2"),
        MappingProxyType({"a": "1", "b": "2"}),
        (pair for pair in [("a", "1"), ("b", "2")]),
        zip("ab", "12", strict=True),
        [["a", "1"], ["b", "2"]],
        {"a": "1", b"b": 2},
        {"a": bytearray(b"1"), "b": memoryview(b"2")},
    ],
    ids=lambda fields: type(fields).__name__,
)
def test_any_mapping_and_any_pairs_are_accepted(fields: FieldsLike) -> None:
    assert pairs_of(encode_fields(fields)[0]) == [(b"a", b"1"), (b"b", b"2")]


class Status(IntEnum):
    DONE = 3


class Price(float):
    """A float whose repr is no number, as that of numpy's float64."""

    def __repr__(self) -> str:
        return f"Price({float(self)})"


def test_a_number_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="too long a number"):
        encode_fields({"n": 10**5000})


@pytest.mark.parametrize(
    ("part", "stored"),
    [
        (b"\x00\xff", b"\x00\xff"),
        ("é", b"\xc3\xa9"),
        (-5, b"-5"),
        (1 << 70, b"1180591620717411303424"),
        (0.1, b"0.1"),
        (1.0, b"1.0"),
        (1e100, b"1e+100"),
        (float("inf"), b"inf"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"abcd")[::2], b"ac"),
        (Status.DONE, b"3"),
        (Price(1.5), b"1.5"),
    ],
)
def test_a_part_is_stored_as_redis_py_would_send_it(part: FieldPart, stored: bytes) -> None:
    assert to_bytes(part) == stored


@pytest.mark.parametrize("part", [None, True, False, [], (), {}, object(), 1j, b"x".__class__])
@pytest.mark.parametrize("as_field", [True, False])
def test_another_type_is_refused_by_its_name(part: object, as_field: bool) -> None:
    pair = (part, "1") if as_field else ("a", part)
    kind = "None" if part is None else f"{re.escape(repr(part))}, a {type(part).__name__}"
    where = "a field name" if as_field else "the value of field 'a'"
    message = f"^{where} cannot be {kind}: "
    with pytest.raises(InvalidArgument, match=message):
        encode_fields([pair])  # type: ignore[list-item]
    if not as_field:
        with pytest.raises(InvalidArgument, match=message):
            encode_fields({"a": part})  # type: ignore[dict-item]


@pytest.mark.parametrize("fields", [{}, [], (), iter([])])
def test_an_entry_without_fields_is_refused_with_the_message_of_the_library(
    fields: FieldsLike,
) -> None:
    with pytest.raises(InvalidArgument, match=r"^an entry needs .*: fields must not be empty$"):
        encode_fields(fields)


@pytest.mark.parametrize("flat", [[], [b"a", b"1", b"b"]], ids=repr)
def test_an_empty_or_odd_flat_list_is_refused_with_the_message_of_redis(flat: list[bytes]) -> None:
    with pytest.raises(InvalidArgument, match=r"^wrong number of arguments for 'xadd' command$"):
        encode_flat(flat)


@pytest.mark.parametrize("fields", [5, None, "ab", b"ab", [1, 2], [("a",)], [("a", "b", "c")]])
def test_fields_that_are_neither_a_mapping_nor_pairs_are_refused(fields: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^fields are a mapping or \(field, value\) pairs, "):
        flat_bytes(fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [{"a": "\ud800"}, {"\ud800": "a"}, [("a", "\ud800")]])
def test_invalid_unicode_is_refused_without_side_effects(fields: FieldsLike) -> None:
    with pytest.raises(InvalidArgument, match="not valid Unicode"):
        encode_fields(fields)
    assert encode_fields({"a": "1"})[0] == bytes.fromhex("01 81 a161 a131")


@pytest.fixture
def small_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit entries to 60 bytes, in place of 512 MB."""
    monkeypatch.setattr(values, "ENTRY_BYTES_MAX", 60)


@pytest.mark.parametrize("fields", [{"a": "x" * 60}, {b"a": b"x" * 60}, [("a", "x" * 60)]])
@pytest.mark.usefixtures("small_entries")
def test_a_too_large_entry_is_refused_with_the_message_of_redis(fields: Mapping[str, str]) -> None:
    with pytest.raises(InvalidArgument, match=r"^Elements are too large to be stored$"):
        encode_fields(fields)


@pytest.mark.parametrize("fields", [{"a": "x" * 59}, {b"a": b"x" * 59}, [("a", "x" * 59)]])
@pytest.mark.usefixtures("small_entries")
def test_an_entry_of_the_greatest_size_is_accepted(fields: Mapping[str, str]) -> None:
    assert pairs_of(encode_fields(fields)[0]) == [(b"a", b"x" * 59)]


ENTRIES: st.SearchStrategy[list[FieldsLike]] = st.lists(
    st.one_of(
        st.dictionaries(TEXT, TEXT, min_size=1, max_size=3),
        st.dictionaries(BINARY, BINARY, min_size=1, max_size=3),
        PAIRS,
    ),
    max_size=4,
)


@given(ENTRIES | st.lists(st.dictionaries(TEXT, TEXT, min_size=1, max_size=3), max_size=4))
def test_many_entries_are_encoded_as_each_would_be(entries: list[FieldsLike]) -> None:
    expected = [encode_fields(fields) for fields in entries]
    assert encode_many(iter(entries)) == expected


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"a": None}, "^entry 1: the value of field 'a' cannot be None: leave it out"),
        ({}, "fields must not be empty"),
        ({"a": "\ud800"}, "not valid Unicode"),
        ({"a": "x" * 60}, "Elements are too large"),
        (5, "fields are a mapping"),
    ],
)
@pytest.mark.usefixtures("small_entries")
def test_one_wrong_entry_among_many_is_refused(wrong: FieldsLike, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        encode_many([{"a": "1"}, wrong, {"a": "2"}])
    assert encode_many([{"a": "1"}]) == [encode_fields({"a": "1"})]


@given(st.lists(PAIRS, max_size=6))
def test_a_page_is_decoded_as_its_rows_are(
    entries: list[list[tuple[FieldPart, FieldPart]]],
) -> None:
    rows = [encode_fields(pairs)[0] for pairs in entries]
    page = decode_page(rows)
    assert page == [decode_fields(row) for row in rows]
    assert [Entry(EID, fields).pairs for fields in page] == [
        tuple((expected(field), expected(value)) for field, value in pairs) for pairs in entries
    ]


@given(PAIRS)
def test_a_row_is_a_tag_and_plain_msgpack(pairs: list[tuple[FieldPart, FieldPart]]) -> None:
    row = encode_fields(pairs)[0]
    content = msgpack.unpackb(row[1:], raw=True)
    if row[:1] == b"\x01":
        assert content == decode_fields(row)
    else:
        assert content == list(Entry(EID, decode_fields(row)).flat)
