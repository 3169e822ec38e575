"""Filters of a query as the range of IDs that can pass; what is not known narrows nothing."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)

from kvstream.errors import InvalidID
from kvstream.ids import MAX_ID, MIN_ID, U64_MAX, StreamID
from kvstream.spark.schema import Role, Shape

_LOW = (EqualTo, GreaterThan, GreaterThanOrEqual)
_HIGH = (EqualTo, LessThan, LessThanOrEqual)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def bounds(filters: Iterable[Filter], shape: Shape) -> tuple[StreamID, StreamID]:
    """Return the first and the last ID that may pass all of the filters."""
    low, high = 0, U64_MAX
    start, end = MIN_ID, MAX_ID
    columns = {column.name: column for column in shape.columns}
    for each in filters:
        if not isinstance(each, (*_LOW, *_HIGH)):
            continue
        column = columns.get(each.attribute[0])
        if column is None:
            continue
        ms = _milliseconds(column.role, each.attribute[1:], each.value)
        if ms is not None:
            low = max(low, ms) if isinstance(each, _LOW) else low
            high = min(high, ms) if isinstance(each, _HIGH) else high
        elif column.role is Role.ID and isinstance(each, EqualTo):
            eid = _id(each.attribute[1:], each.value)
            if eid is not None:
                start, end = max(start, eid), min(end, eid)
    return max(start, _id_at(low, 0)), min(end, _id_at(high, U64_MAX))


def _id_at(ms: int, seq: int) -> StreamID:
    if ms < 0:
        return MIN_ID
    return StreamID(ms, seq) if ms <= U64_MAX else MAX_ID


def _milliseconds(role: Role, path: tuple[str, ...], value: Any) -> int | None:
    """Return the millisecond that a filter on the time, or on ``id.ms``, compares with."""
    if role is Role.ID and path == ("ms",) and isinstance(value, int):
        return value
    if role is not Role.TIMESTAMP or path:
        return None
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        since = moment - _EPOCH
        return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
    return value if isinstance(value, int) else None


def _id(path: tuple[str, ...], value: Any) -> StreamID | None:
    """Return the ID that a column of text is compared with."""
    if path or not isinstance(value, str) or "-" not in value:
        return None
    try:
        return StreamID.parse(value)
    except InvalidID:
        return None
