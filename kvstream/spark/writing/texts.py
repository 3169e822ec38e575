"""The bytes that values of Arrow columns become as values of fields.

::

    binary          as it is
    string          UTF-8
    whole numbers   decimal digits
    float, double   the shortest decimal that reads back as the same number; inf, -inf, nan
    decimal         its digits, with all of its scale
    boolean         true, false
    date            2026-11-21
    timestamp       2026-11-21T20:51:00.123456Z, in UTC; without zone, the same without Z
    null            none: the field is left out

This module knows Arrow, nothing of Spark's sources or of stores.
"""

import pyarrow as pa
import pyarrow.compute as pc


def as_binary(column: pa.Array) -> pa.Array:
    """Return a column as an array of binary, nulls where the column has them."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_binary(kind):
        return column
    if pa.types.is_large_binary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.cast(pa.binary())
    if pa.types.is_decimal(kind):
        return pa.array(map(_decimal, column.to_pylist()), pa.binary())
    if pa.types.is_timestamp(kind):
        return _timestamps(column)
    return column.cast(pa.string()).cast(pa.binary())


def _decimal(number: object) -> bytes | None:
    return None if number is None else format(number, "f").encode()


def _timestamps(column: pa.Array) -> pa.Array:
    """Return ISO 8601; Arrow itself puts a blank between day and hour."""
    plain = column.cast(pa.timestamp("us"))
    text = pc.replace_substring(plain.cast(pa.string()), " ", "T", max_replacements=1)
    if column.type.tz is not None:
        text = pc.binary_join_element_wise(text, pa.scalar("Z"), "")
    return text.cast(pa.binary())


def parts_of(column: pa.Array) -> list[bytes | None]:
    """Return the bytes of a column's values."""
    parts: list[bytes | None] = as_binary(column).to_pylist()
    return parts
