"""Columns of a page, without a session: fields in any order, and text converted to values."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from pyspark.sql.types import (  # noqa: E402
    DataType,
    DayTimeIntervalType,
    LongType,
    MapType,
    StringType,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from kvstream.arrow.batches import Page  # noqa: E402
from kvstream.arrow.casts import cast_values  # noqa: E402
from kvstream.errors import DataError, InvalidArgument  # noqa: E402
from kvstream.layout.columns import Columns, of_replies  # noqa: E402
from kvstream.spark.schema import read_schema  # noqa: E402

names = st.sampled_from([b"a", b"b", b"ab", b"", b"ba"])
fields = st.lists(st.tuples(names, st.binary(max_size=3)), min_size=1, max_size=4)


def columns_of(entries: list[list[tuple[bytes, bytes]]]) -> Columns:
    reply = [
        [b"%d-1" % (number + 1), [part for pair in pairs for part in pair]]
        for number, pairs in enumerate(entries)
    ]
    return of_replies(reply)


@given(st.lists(fields, min_size=1, max_size=6), names)
def test_a_field_is_found_at_any_position(
    entries: list[list[tuple[bytes, bytes]]], name: bytes
) -> None:
    found = Page(columns_of(entries), b"key", "store").field(name).to_pylist()
    assert found == [dict(pairs).get(name) for pairs in entries]


TEXTS = read_schema({}, StructType().add("fields", MapType(StringType(), StringType(), False)))


@given(
    st.lists(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=9)), min_size=1), max_size=4)
)
def test_fields_are_text_of_any_letters(entries: list[list[tuple[str, str]]]) -> None:
    pairs = [[(name.encode(), value.encode()) for name, value in each] for each in entries]
    columns = columns_of(pairs)
    found = TEXTS.batches().batch(columns, b"key", "store")
    found.validate(full=True)
    assert [dict(each) for each in found["fields"].to_pylist()] == [dict(each) for each in entries]


@pytest.mark.parametrize("pair", [(b"\xff", b"ascii"), (b"ascii", b"\xff")])
def test_binary_fields_are_reported(pair: tuple[bytes, bytes]) -> None:
    columns = columns_of([[(b"a", b"b")], [pair]])
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        TEXTS.batches().batch(columns, b"key", "store")


@pytest.mark.parametrize("most", [1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_times_are_those_of_the_ids_or_null(most: int) -> None:
    columns = of_replies([[b"0-5", [b"a", b"b"]], [b"%d-7" % most, [b"a", b"b"]]])
    page = Page(columns, b"", "")
    shape = read_schema({}, StructType().add("timestamp", LongType()))
    found = shape.batches().batch(columns, b"key", "store")
    assert found["timestamp"].to_pylist() == [0, most if most < 1 << 63 else None]
    assert [page.id(at) for at in (0, 1)] == [(0, 5), (most, 7)]


UTC_TIME = pa.timestamp("us", "UTC")
NOON = datetime(2024, 5, 17, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "texts", "values"),
    [
        (pa.int32(), [b"12", b"-7", None, b"0x1F", b"1.5", b"", b"99999999999", b" 1"], [12, -7]),
        (pa.int64(), [b"99999999999", b"1"], [99999999999, 1]),
        (pa.float64(), [b"1.5", b"-2e3", None, b"one"], [1.5, -2000.0]),
        (pa.bool_(), [b"true", b"FALSE", None, b"maybe"], [True, False]),
        (pa.decimal128(10, 2), [b"1.25", b"3", None, b"1.234", b"x"], [Decimal("1.25"), 3]),
        (
            pa.date32(),
            [b"2024-05-17", b"1969-01-01", None, b"17.5.24"],
            [NOON.date(), date(1969, 1, 1)],
        ),
        (pa.string(), ["\u00fc".encode(), b"", None, b"\xff"], ["\u00fc", ""]),
        (pa.binary(), [b"\xff", b""], [b"\xff", b""]),
        (UTC_TIME, [b"2024-05-17 12:00:00", b"2024-05-17T12:00:00"], [NOON, NOON]),
        (UTC_TIME, [b"2024-05-17T12:00:00Z", b"2024-05-17 14:00:00.0+02:00"], [NOON, NOON]),
        (UTC_TIME, [b"2024-05-17T12:00:00Z", b"2024-05-17T12:00:00", None, b"noon"], [NOON, NOON]),
        (pa.time64("ns"), [b"12:00:00", b"12:00", None, b"12:00Z", b"noon"], [NOON.time()] * 2),
        (pa.timestamp("us"), [b"2024-05-17T12:00:00", None], [NOON.replace(tzinfo=None)]),
    ],
)
def test_text_is_converted_to_values_and_invalid_text_is_named(
    kind: Any, texts: list[bytes | None], values: list[Any]
) -> None:
    """The first texts have these values; null stays null, and the rest is invalid."""
    column, bad = cast_values(pa.array(texts, pa.binary()), kind)
    assert column.type == kind
    assert column.to_pylist() == values + [None] * (len(texts) - len(values))
    wrong = [place >= len(values) and text is not None for place, text in enumerate(texts)]
    assert (list(bad) if bad is not None else [False] * len(texts)) == wrong


@pytest.mark.parametrize("mode", ["PERMISSIVE", "FAILFAST"])
def test_a_null_in_a_column_that_is_not_nullable_is_named(mode: str) -> None:
    shape = read_schema({"mode": mode}, StructType().add("n", LongType(), nullable=False))
    batches = shape.batches()
    assert batches.batch(columns_of([[(b"n", b"5")]]), b"s").to_pydict() == {"n": [5]}
    with pytest.raises(DataError, match="the column n of the schema is not nullable"):
        batches.batch(columns_of([[(b"n", b"5")], [(b"other", b"5")]]), b"s")


def test_malformed_entries_are_dropped_from_a_column_that_is_not_nullable() -> None:
    shape = read_schema({"mode": "DROPMALFORMED"}, StructType().add("n", LongType(), False))
    found = shape.batches().batch(columns_of([[(b"n", b"5")], [(b"n", b"five")]]), b"s")
    assert found.to_pydict() == {"n": [5]}


@pytest.mark.parametrize(
    "kind", [VariantType(), DayTimeIntervalType(), YearMonthIntervalType(), StructType()]
)
def test_a_field_of_a_type_without_text_is_refused(kind: DataType) -> None:
    with pytest.raises(InvalidArgument, match="use string, binary, boolean, a number"):
        read_schema({}, StructType().add("n", kind))


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="the schema has 'n' twice"):
        read_schema({}, StructType().add("n", LongType()).add("n", StringType()))
