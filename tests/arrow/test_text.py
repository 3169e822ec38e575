"""Values of Arrow columns become the bytes of fields by type."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from kvstream.arrow.text import as_binary

UTC = dt.UTC


def texts_of(column: pa.Array) -> list[bytes | None]:
    found: list[bytes | None] = as_binary(column).to_pylist()
    return found


@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        (pa.binary(), [b"\x00\xff", b""], [b"\x00\xff", b""]),
        (pa.string(), ["é", ""], ["é".encode(), b""]),
        (pa.large_string(), ["a"], [b"a"]),
        (pa.int8(), [-128, 7], [b"-128", b"7"]),
        (pa.int64(), [-(1 << 63), 0], [b"-9223372036854775808", b"0"]),
        (pa.float64(), [0.1, -2.5e-7, float("inf")], [b"0.1", b"-2.5e-7", b"inf"]),
        (pa.float32(), [0.1], [b"0.1"]),
        (pa.bool_(), [True, False], [b"true", b"false"]),
        (
            pa.decimal128(20, 9),
            [Decimal("0.000000001"), Decimal(-5)],
            [b"0.000000001", b"-5.000000000"],
        ),
        (pa.date32(), [dt.date(2026, 11, 21)], [b"2026-11-21"]),
        (
            pa.timestamp("us", "UTC"),
            [
                dt.datetime(2026, 11, 21, 20, 51, 0, 123456, UTC),
                dt.datetime(1969, 1, 1, tzinfo=UTC),
            ],
            [b"2026-11-21T20:51:00.123456Z", b"1969-01-01T00:00:00.000000Z"],
        ),
        (pa.timestamp("us"), [dt.datetime(2026, 11, 21, 20, 51)], [b"2026-11-21T20:51:00.000000"]),
        (
            pa.timestamp("ns", "UTC"),
            [dt.datetime(2026, 11, 21, 20, 51, tzinfo=UTC)],
            [b"2026-11-21T20:51:00.000000Z"],
        ),
        (
            pa.timestamp("ns"),
            [1, 2_000_000_000],
            [b"1970-01-01T00:00:00.000000001", b"1970-01-01T00:00:02.000000000"],
        ),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a"], [b"a", b"b", b"a"]),
        (pa.null(), [None], [None]),
    ],
    ids=str,
)
def test_a_value_is_encoded_by_the_rule(
    kind: pa.DataType, values: list[object], texts: list[bytes | None]
) -> None:
    assert texts_of(pa.array([*values, None], kind)) == [*texts, None]
    assert texts_of(pa.array([None, *values], kind).slice(1)) == texts


def test_a_double_reads_back_as_itself() -> None:
    numbers = [1 / 3, 1e300, 5e-324, 123456789.123456789, 1e16, -0.0, 2.0**53 + 1]
    parts = texts_of(pa.array(numbers))
    assert [float(part or b"") for part in parts] == numbers


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.struct({"a": pa.int64()}), pa.map_(pa.string(), pa.string())]
)
def test_a_type_without_text_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(pa.ArrowNotImplementedError):
        as_binary(pa.array([], kind))
