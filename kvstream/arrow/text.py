"""Values of Arrow columns as the bytes of fields, for Spark's writes and ``kvstream import``.

Field values become bytes by type::

    binary          unchanged
    string          UTF-8
    whole numbers   decimal digits
    float, double   the shortest decimal that reads back as the same number; inf, -inf, nan
    decimal         its digits, with all of its scale
    boolean         true, false
    date            2026-11-21
    timestamp       2026-11-21T20:51:00.123456Z, in UTC; without zone, the same without Z;
                    nine digits in a column that has nanoseconds
    duration        its number of the column's units
    arrow.uuid      32 hexadecimal digits with hyphens; arrow.json and arrow.bool8 as the type
                    that they stand for
    null            the field is left out
"""

from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from kvstream.arrow.casts import is_bytes, is_text


def as_binary(column: pa.Array) -> pa.Array:
    """Convert a column to binary; nulls stay null.

    Raises ArrowNotImplementedError for a type that has no text, such as a list.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return as_binary(column.dictionary).take(column.indices)
    if pa.types.is_run_end_encoded(kind):
        return as_binary(pc.run_end_decode(column))
    if isinstance(kind, pa.BaseExtensionType):
        return _of_extension(column)
    if is_text(kind) or is_bytes(kind):
        return column.cast(pa.binary())
    if pa.types.is_decimal(kind):
        return pa.array(map(_decimal, column.to_pylist()), pa.binary())
    if pa.types.is_timestamp(kind):
        return _timestamps(column)
    return column.cast(pa.string()).cast(pa.binary())


def _of_extension(column: pa.ExtensionArray) -> pa.Array:
    match column.type.extension_name:
        case "arrow.uuid":
            ids = (None if each is None else str(each).encode() for each in column.to_pylist())
            return pa.array(ids, pa.binary())
        case "arrow.bool8":
            return as_binary(column.storage.cast(pa.bool_()))
        case "arrow.json":
            return as_binary(column.storage)
    raise pa.ArrowNotImplementedError(f"{column.type} has no text")


def _decimal(number: object) -> bytes | None:
    return None if number is None else format(number, "f").encode()


def _timestamps(column: pa.Array) -> pa.Array:
    """Convert times to ISO 8601: Arrow's own text has a space instead of the T."""
    plain = column.cast(pa.timestamp(column.type.unit))
    with suppress(pa.ArrowInvalid):  # microseconds do not hold all of them
        plain = plain.cast(pa.timestamp("us"))
    text = pc.replace_substring(plain.cast(pa.string()), " ", "T", max_replacements=1)
    if column.type.tz is not None:
        text = pc.binary_join_element_wise(text, pa.scalar("Z"), "")
    return text.cast(pa.binary())
