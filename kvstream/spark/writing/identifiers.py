"""The IDs of a page, from the columns that give them. It knows Arrow and IDs."""

from collections.abc import Callable

import pyarrow as pa

from kvstream.errors import InvalidID
from kvstream.ids import PACKED, U64_MAX, StreamID, parse_add_id
from kvstream.layout.keys import ID_BYTES, U64
from kvstream.spark.writing.pages import ALLOTTED, StagedID
from kvstream.spark.writing.schema import IDKind


def staged_ids(column: pa.Array, kind: IDKind) -> list[StagedID]:
    """Return the ID of each row; [] where none has one. InvalidID where one is none."""
    if column.null_count == len(column):
        return []
    return _MAKERS[kind](column)


def _of_text(column: pa.Array) -> list[StagedID]:
    return [ALLOTTED if text is None else _of_one(text) for text in column.to_pylist()]


def _of_one(text: str) -> StagedID:
    eid = parse_add_id(text)
    if eid is None:
        return ALLOTTED
    return eid.packed if isinstance(eid, StreamID) else U64.pack(eid)


def _of_packed(column: pa.Array) -> list[StagedID]:
    ids: list[bytes | None] = column.to_pylist()
    for packed in ids:
        if packed is not None and len(packed) != ID_BYTES:
            raise InvalidID(value=packed)
    return [ALLOTTED if packed is None else packed for packed in ids]


def _of_numbers(column: pa.Array) -> list[StagedID]:
    ms, seq = (column.field(part).to_pylist() for part in ("ms", "seq"))
    present = column.is_valid().to_pylist()
    return [
        _packed(*numbers) if there else ALLOTTED
        for there, numbers in zip(present, zip(ms, seq, strict=True), strict=True)
    ]


def _packed(ms: object, seq: object) -> StagedID:
    if ms is None or seq is None:
        raise InvalidID(value=(ms, seq))
    numbers = int(ms), int(seq)  # type: ignore[call-overload]  # int or Decimal
    if not all(0 <= number <= U64_MAX for number in numbers):
        raise InvalidID(value=numbers)
    return PACKED(*numbers)


def _of_milliseconds(column: pa.Array) -> list[StagedID]:
    return [_of_number(ms) for ms in column.to_pylist()]


def _of_times(column: pa.Array) -> list[StagedID]:
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    return [_of_number(None if time is None else time // 1000) for time in micros]


def _of_number(ms: int | None) -> StagedID:
    if ms is None:
        return ALLOTTED
    if ms < 0:
        raise InvalidID(value=ms)
    return U64.pack(ms)


_MAKERS: dict[IDKind, Callable[[pa.Array], list[StagedID]]] = {
    IDKind.TEXT: _of_text,
    IDKind.PACKED: _of_packed,
    IDKind.NUMBERS: _of_numbers,
    IDKind.MILLISECONDS: _of_milliseconds,
    IDKind.TIMES: _of_times,
}
