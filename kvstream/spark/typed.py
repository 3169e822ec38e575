"""Values of fields as columns of a type: all of a page at once, and one by one where some are bad.

Values are text as XADD is given it. Owns what text each type takes; knows Arrow and no entries.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Bad = np.ndarray[tuple[int], np.dtype[np.bool_]]
Cast = Callable[[pa.Array], pa.Array]

_ZONE = r"(Z|[+-]\d\d:?\d\d)$"


def typed(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Bad | None]:
    """Return binary values as a column of ``kind``, and which were none; None: all were sound.

    What is null stays null and is sound; a bad value is null in the column.
    """
    cast = _cast_to(kind)
    try:
        return cast(values), None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    bad = np.zeros(len(values), np.bool_)
    parts = _by_halves(values, kind, cast, bad, 0)
    return pa.concat_arrays(parts), bad


def _by_halves(
    values: pa.Array, kind: pa.DataType, cast: Cast, bad: Bad, offset: int
) -> list[pa.Array]:
    """Cast what can be, halving what cannot until single bad values are left."""
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
    if pa.types.is_binary(kind):
        return lambda values: values
    if pa.types.is_timestamp(kind):
        return partial(_to_timestamp, kind=kind)
    if pa.types.is_integer(kind):
        return partial(_to_integer, kind=kind)
    return lambda values: pc.cast(pc.cast(values, pa.string()), kind)


def _to_integer(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast decimal digits alone: Arrow would take 0x1F too, which Spark's sources do not."""
    for letter in (b"x", b"X"):
        if pc.any(pc.match_substring(values, letter)).as_py():
            raise pa.ArrowInvalid("a number in hexadecimal digits")
    return pc.cast(pc.cast(values, pa.string()), kind)


def _to_timestamp(values: pa.Array, kind: pa.TimestampType) -> pa.Array:
    """Cast times of ISO 8601; those without a zone are of UTC, or stay so where none is wanted."""
    text = pc.cast(values, pa.string())
    if kind.tz is not None:
        with suppress(pa.ArrowInvalid):
            return pc.cast(text, kind)  # all have a zone
    with suppress(pa.ArrowInvalid):
        return pc.cast(text, pa.timestamp("us")).cast(kind)  # none has
    if kind.tz is None:
        raise pa.ArrowInvalid("a time with a zone")
    zoned = pc.match_substring_regex(text, _ZONE)
    return pc.cast(pc.if_else(zoned, text, pc.binary_join_element_wise(text, "Z", "")), kind)
