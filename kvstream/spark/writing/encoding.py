"""Batches of Arrow, as Spark hands them to a task, turned into the rows of streams.

It knows what columns mean (``schema``) and how entries are stored (kvstream.layout); where rows go
it does not know.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, repeat

import numpy as np
import pyarrow as pa

from kvstream.arguments import name_bytes
from kvstream.errors import InvalidArgument
from kvstream.layout.packing import Column, pack_columns, pack_lists
from kvstream.layout.values import encode_flat
from kvstream.spark.writing.identifiers import staged_ids
from kvstream.spark.writing.pages import Packed, StagedID, StagedRows
from kvstream.spark.writing.schema import Columns, FieldsKind
from kvstream.spark.writing.texts import as_binary

_NO_FIELD = "an entry needs a field: a row has none that is not null"


def encoded(batch: pa.RecordBatch, columns: Columns) -> Iterator[StagedRows]:
    """Yield the rows of a batch by stream, those of each in their order."""
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
    """Return the rows of columns that are a field each."""
    texts = [as_binary(column) for column in given]
    packed = pack_columns(names, list(map(_buffers, texts)), len(texts[0]))
    if packed is not None:
        if None in packed:
            raise InvalidArgument(_NO_FIELD)
        return packed  # type: ignore[return-value]
    values = [text.to_pylist() for text in texts]
    flats = zip(*chain.from_iterable(zip(map(repeat, names), values, strict=True)), strict=False)
    return [_encoded(_without_nulls(flat)) for flat in flats]


def _buffers(column: pa.Array) -> Column:
    """Return a column of binary as its ends, its data and which of its rows have a value."""
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
    """Return the rows of a column of lists of names and values."""
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
        done or _encoded(_without_nulls(flat[start:stop] if there else []))
        for done, start, stop, there in zip(packed, bounds, bounds[1:], present, strict=False)
    ]


def _encoded(flat: list[bytes]) -> Packed:
    if not flat:
        raise InvalidArgument(_NO_FIELD)
    return encode_flat(flat)
