"""Field values as typed Arrow columns: the reverse of ``kvstream.arrow.text``.

A value is the text that XADD stores. ``cast_values`` parses a whole column at once::

    text, binary    unchanged; text must be UTF-8, and a fixed size must match
    whole numbers   decimal digits
    bool            true, false, 1, 0
    date, time      ISO 8601; a time of the day has no zone
    timestamp       ISO 8601; without a zone it is UTC, if the column has a zone
    duration        a whole number of the column's units
    dictionary      as the type of its values
    null            no value at all
    arrow.uuid      32 hexadecimal digits, usually with hyphens
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Bad = np.ndarray[tuple[int], np.dtype[np.bool_]]
Cast = Callable[[pa.Array], pa.Array]

_ZONE = r"(Z|[+-]\d\d:?\d\d)$"


def cast_values(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Bad | None]:
    """Cast binary values to a column of ``kind``; return it with the mask of malformed values.

    The mask is None if all values are well formed. Nulls stay null; malformed values become null.
    """
    cast = _cast_to(kind)
    try:
        return cast(values), None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    bad = np.zeros(len(values), np.bool_)
    parts = _by_halves(values, kind, cast, bad, 0)
    return pa.concat_arrays(parts), bad


def as_dictionary(values: pa.Array, kind: pa.DictionaryType) -> pa.Array:
    """Encode values; raise ArrowInvalid if there are too many different ones for the indices."""
    return values.dictionary_encode().cast(kind)


def _by_halves(
    values: pa.Array, kind: pa.DataType, cast: Cast, bad: Bad, offset: int
) -> list[pa.Array]:
    """Cast values, halving those that fail until single malformed ones are left."""
    try:
        return [cast(values)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if len(values) == 1:
            bad[offset] = True
            return [pa.nulls(1, kind)]
    middle = len(values) // 2
    return [
        *_by_halves(values[:middle], kind, cast, bad, offset),
        *_by_halves(values[middle:], kind, cast, bad, offset + middle),
    ]


def _cast_to(kind: pa.DataType) -> Cast:
    if is_bytes(kind):
        return lambda values: pc.cast(values, kind)
    if isinstance(kind, pa.BaseExtensionType):
        return partial(_EXTENSIONS[kind.extension_name], kind=kind)
    for applies, cast in _CASTS:
        if applies(kind):
            return partial(cast, kind=kind)
    return lambda values: pc.cast(pc.cast(values, pa.string()), kind)


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column's values are text."""
    of = pa.types
    return bool(of.is_string(kind) or of.is_large_string(kind) or of.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether a column's values are bytes."""
    of = pa.types
    return bool(
        of.is_binary(kind)
        or of.is_large_binary(kind)
        or of.is_binary_view(kind)
        or of.is_fixed_size_binary(kind)
    )


def _to_integer(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast decimal digits only: Arrow also takes 0x1F, which Spark's sources refuse."""
    for letter in (b"x", b"X"):
        if pc.any(pc.match_substring(values, letter)).as_py():
            raise pa.ArrowInvalid("a number in hexadecimal digits")
    return pc.cast(pc.cast(values, pa.string()), kind)


def _to_duration(values: pa.Array, kind: pa.DurationType) -> pa.Array:
    return _to_integer(values, pa.int64()).cast(kind)


def _to_null(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if values.null_count < len(values):
        raise pa.ArrowInvalid("a value in a column of nulls")
    return pa.nulls(len(values), kind)


def _to_time(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast times of a day, as those of one day: Arrow has no cast from text."""
    text = pc.binary_join_element_wise("1970-01-01T", pc.cast(values, pa.string()), "")
    return pc.cast(_without_zone(text), kind)


def _without_zone(text: pa.Array) -> pa.Array:
    """Return times without a zone; those of nanoseconds end in 2262, others later."""
    with suppress(pa.ArrowInvalid):
        return pc.cast(text, pa.timestamp("us"))
    return pc.cast(text, pa.timestamp("ns"))


def _to_timestamp(values: pa.Array, kind: pa.TimestampType) -> pa.Array:
    """Cast ISO 8601 times; a time without a zone is UTC, or stays without if ``kind`` has none."""
    text = pc.cast(values, pa.string())
    if kind.tz is not None:
        with suppress(pa.ArrowInvalid):
            return pc.cast(text, kind)  # all have a zone
    with suppress(pa.ArrowInvalid):
        return _without_zone(text).cast(kind)  # none has a zone
    if kind.tz is None:
        raise pa.ArrowInvalid("a time with a zone")
    zoned = pc.match_substring_regex(text, _ZONE)
    return pc.cast(pc.if_else(zoned, text, pc.binary_join_element_wise(text, "Z", "")), kind)


_CASTS: tuple[tuple[Callable[[pa.DataType], bool], Callable[..., pa.Array]], ...] = (
    (pa.types.is_timestamp, _to_timestamp),
    (pa.types.is_integer, _to_integer),
    (pa.types.is_time, _to_time),
    (pa.types.is_duration, _to_duration),
    (pa.types.is_null, _to_null),
)


def _to_json(values: pa.Array, kind: pa.BaseExtensionType) -> pa.Array:
    return kind.wrap_array(pc.cast(pc.cast(values, pa.string()), kind.storage_type))


def _to_bool8(values: pa.Array, kind: pa.BaseExtensionType) -> pa.Array:
    return kind.wrap_array(pc.cast(pc.cast(values, pa.string()), pa.bool_()).cast(pa.int8()))


def _to_uuid(values: pa.Array, kind: pa.BaseExtensionType) -> pa.Array:
    try:
        parts = [None if each is None else UUID(each.decode()).bytes for each in values.to_pylist()]
    except ValueError as error:
        raise pa.ArrowInvalid(str(error)) from None
    return kind.wrap_array(pa.array(parts, kind.storage_type))


_EXTENSIONS: dict[str, Callable[..., pa.Array]] = {
    "arrow.json": _to_json,
    "arrow.bool8": _to_bool8,
    "arrow.uuid": _to_uuid,
}


def is_plain(kind: pa.DataType) -> bool:
    """Return whether field values can be cast to a type."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.extension_name in _EXTENSIONS
    if pa.types.is_dictionary(kind):
        return is_plain(kind.value_type) and not pa.types.is_dictionary(kind.value_type)
    return is_text(kind) or is_bytes(kind) or any(is_one(kind) for is_one in _PLAIN)


_PLAIN: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
    pa.types.is_duration,
    pa.types.is_null,
)
