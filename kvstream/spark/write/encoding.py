"""Encode Arrow batches, which Spark gives to a task, as the rows of streams.

``kvstream.arrow.text`` defines how field values become bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat

import numpy as np
import pyarrow as pa

from kvstream.arrow.text import as_binary
from kvstream.engine.coerce import name_bytes
from kvstream.errors import InvalidArgument, InvalidID
from kvstream.layout.columns import Column, pack_columns, pack_lists
from kvstream.layout.keys import ID_BYTES, U64
from kvstream.layout.values import encode_flat
from kvstream.spark.write.schema import Columns, FieldsKind, IDKind
from kvstream.spark.write.stage import ALLOTTED, Packed, StagedID, StagedRows
from kvstream.types.ids import PACKED, U64_MAX, StreamID, parse_add_id


def staged_ids(column: pa.Array, kind: IDKind) -> list[StagedID]:
    """Return the ID of each row; [] if no row has one. Raises InvalidID for a malformed ID."""
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
        _pack_id(*numbers) if there else ALLOTTED
        for there, numbers in zip(present, zip(ms, seq, strict=True), strict=True)
    ]


def _pack_id(ms: object, seq: object) -> StagedID:
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


_NO_FIELD = "an entry needs a field: in a row all fields are null"


def encode_batch(batch: pa.RecordBatch, columns: Columns) -> Iterator[StagedRows]:
    """Yield the rows of a batch by stream, in order."""
    if not batch.num_rows:
        return
    if columns.stream is None:
        assert columns.key is not None
        yield _one_stream(batch, columns, columns.key)
        return
    for key, part in _by_stream(batch, columns.stream):
        yield _one_stream(part, columns, key)


def _by_stream(batch: pa.RecordBatch, at: int) -> Iterator[tuple[bytes, pa.RecordBatch]]:
    column = batch.column(at)
    if column.null_count:
        raise InvalidArgument(f"a row has no stream: its column {batch.schema[at].name} is null")
    groups = as_binary(column).dictionary_encode()
    keys = [name_bytes(key) for key in groups.dictionary.to_pylist()]
    if len(keys) == 1:
        yield keys[0], batch
        return
    numbers = groups.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(numbers, kind="stable")
    sorted_ = batch.take(pa.array(order))
    bounds = np.searchsorted(numbers[order], np.arange(len(keys) + 1))
    for key, start, stop in zip(keys, bounds[:-1], bounds[1:], strict=True):
        yield key, sorted_.slice(int(start), int(stop - start))


def _one_stream(batch: pa.RecordBatch, columns: Columns, key: bytes) -> StagedRows:
    ids: list[StagedID] = []
    if columns.id is not None and columns.id_kind is not None:
        ids = staged_ids(batch.column(columns.id), columns.id_kind)
    return StagedRows(key, _rows(batch, columns), ids)


def _rows(batch: pa.RecordBatch, columns: Columns) -> list[Packed]:
    if columns.fields_kind is FieldsKind.COLUMNS:
        return _of_columns([batch.column(at) for at in columns.fields], columns.names)
    column = batch.column(columns.fields[0])
    if columns.fields_kind is FieldsKind.MAP:
        return _of_lists(column, column.keys, column.items)
    names = column.values.field(0)
    if names.null_count:
        raise InvalidArgument("a field has no name: it is null")
    return _of_lists(column, names, column.values.field(1))


def _of_columns(given: list[pa.Array], names: tuple[bytes, ...]) -> list[Packed]:
    """Encode rows whose fields are columns."""
    texts = [as_binary(column) for column in given]
    packed = pack_columns(names, list(map(_buffers, texts)), len(texts[0]))
    if packed is not None:
        if None in packed:
            raise InvalidArgument(_NO_FIELD)
        return packed  # type: ignore[return-value]
    values = [text.to_pylist() for text in texts]
    flats = zip(*chain.from_iterable(zip(map(repeat, names), values, strict=True)), strict=False)
    return [_encode_fields(_without_nulls(flat)) for flat in flats]


def _buffers(column: pa.Array) -> Column:
    """Return the buffers of a binary column: its ends, its data, and its validity as bytes."""
    _, ends, data = column.buffers()
    numbers = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1]
    valid = None
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False).view(np.uint8)
    return numbers, b"" if data is None else data, valid


def _without_nulls(flat: Sequence[bytes | None]) -> list[bytes]:
    if None not in flat:
        return list(flat)  # type: ignore[arg-type]
    return [
        part
        for pair in zip(flat[::2], flat[1::2], strict=True)
        if pair[1] is not None
        for part in pair
        if part is not None
    ]


def _of_lists(column: pa.Array, names: pa.Array, values: pa.Array) -> list[Packed]:
    """Encode rows whose fields are lists of names and values."""
    texts = as_binary(names), as_binary(values)
    ends = column.offsets.to_numpy()
    packed: Sequence[Packed | None] | None = None
    if not column.null_count:
        packed = pack_lists(ends, _buffers(texts[0]), _buffers(texts[1]), len(column))
    if packed is None:
        packed = [None] * len(column)
    elif None not in packed:
        return packed  # type: ignore[return-value]
    flat: list[bytes | None] = [b""] * (2 * len(names))
    flat[::2], flat[1::2] = (text.to_pylist() for text in texts)
    bounds = (ends * 2).tolist()
    present = column.is_valid().to_pylist()
    return [
        done or _encode_fields(_without_nulls(flat[start:stop] if there else []))
        for done, start, stop, there in zip(packed, bounds, bounds[1:], present, strict=False)
    ]


def _encode_fields(flat: list[bytes]) -> Packed:
    if not flat:
        raise InvalidArgument(_NO_FIELD)
    return encode_flat(flat)
