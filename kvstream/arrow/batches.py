"""Pages of entries as Arrow batches, for the library and for Spark.

Each column is converted for a whole page at once. Single entries are looked at only if a value is
malformed or a field name repeats. ``kvstream.arrow.casts`` parses field values.

``StreamRead`` reads one stream: pages of bounded size, batches, and whole tables. A read ends at
the last ID that the stream had when it began. Each page is consistent; entries that are deleted
between two pages are missing.
"""

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstream.arrow.casts import Bad, as_dictionary, cast_values, is_bytes, is_text
from kvstream.arrow.roles import Column, Mode, Role
from kvstream.arrow.schema import (
    COLUMNS_MAX,
    columns_of_names,
    columns_of_schema,
    schema_of,
    too_many_names,
)
from kvstream.engine.interface import AnyEngine
from kvstream.errors import DataError, InvalidArgument, quote
from kvstream.layout.columns import Columns
from kvstream.layout.keys import key_of
from kvstream.operations.reads.range import Range, scan
from kvstream.types.ids import StreamID

_SIGNED = 1 << 63
_PER_MS = {"s": 1, "ms": 1, "us": 1000, "ns": 1_000_000}
"""By how much the units of Arrow's times multiply milliseconds, at most."""


class MalformedEntry(DataError):
    """An entry has a value that does not fit its column's type, and the mode is FAILFAST."""


class Page:
    """A page of entries of one stream, as Arrow arrays."""

    def __init__(self, columns: Columns, stream: bytes, store: str) -> None:
        self.stream = stream
        self.store = store
        self.repeated = columns.repeated
        self.ids = columns.ids
        self.ends = np.frombuffer(columns.ends, np.int32)
        fields = int(self.ends[-1])
        self.names = _binary(fields, columns.name_ends, columns.names)
        self.values = _binary(fields, columns.value_ends, columns.values)

    def __len__(self) -> int:
        return len(self.ends) - 1

    @cached_property
    def _parts(self) -> "np.ndarray[Any, np.dtype[np.uint64]]":
        """The milliseconds of the IDs, and their sequences."""
        both = np.frombuffer(self.ids, ">u8").reshape(-1, 2).T
        return both.astype(np.uint64, order="C")

    @cached_property
    def _rows(self) -> "np.ndarray[Any, np.dtype[np.int32]]":
        """The entry that each field belongs to."""
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.ends))

    def part(self, which: int) -> "np.ndarray[Any, np.dtype[np.uint64]]":
        """Return the milliseconds (0) or the sequences (1) of the IDs."""
        part: np.ndarray[Any, np.dtype[np.uint64]] = self._parts[which]
        return part

    def id(self, at: int) -> StreamID:
        return StreamID(*map(int, self._parts[:, at]))

    def field(self, name: bytes) -> pa.Array:
        """Return each entry's value of a field: the last one if it repeats, null without one."""
        at = np.flatnonzero(pc.equal(self.names, pa.scalar(name, pa.binary())))
        places = np.full(len(self), -1, np.int64)
        places[self._rows[at]] = at
        return self.values.take(pa.array(places, mask=places < 0))

    def text_of(self, at: int) -> str:
        """Return an entry as JSON, for the column of corrupt records."""
        where = slice(int(self.ends[at]), int(self.ends[at + 1]))
        names, values = self.names[where].to_pylist(), self.values[where].to_pylist()
        fields = dict(zip(map(_readable, names), map(_readable, values), strict=True))
        return json.dumps({"id": str(self.id(at)), "fields": fields}, ensure_ascii=False)


def _readable(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()


def _binary(count: int, ends: bytes, data: bytes) -> pa.Array:
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


class Batches:
    """Converts pages into the batches of one read, in one thread."""

    def __init__(
        self, schema: pa.Schema, columns: Sequence[Column], mode: Mode = Mode.FAILFAST
    ) -> None:
        """``columns`` says what each column of the schema holds."""
        self.schema = schema
        self._mode = mode
        self._columns = columns
        self._bad: list[tuple[Column, Bad]] = []

    def batch(self, columns: Columns, stream: bytes, store: str = "") -> pa.RecordBatch:
        """Return a page as a batch.

        Raises MalformedEntry for a malformed value in FAILFAST mode or a null in a column that is
        not nullable, and InvalidArgument for an ID or a name that the column's type cannot hold.
        """
        page = Page(columns, stream, store)
        self._bad = []
        arrays = [self._column(column, page) for column in self._columns]
        if self._bad and self._mode is Mode.FAILFAST:
            raise self._malformed_entry(page)
        arrays = [self._corrupt(page) if array is None else array for array in arrays]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if self._bad and self._mode is Mode.DROPMALFORMED:
            batch = batch.filter(pa.array(~self._any_bad(page)))
        for field, array in zip(self.schema, batch.columns, strict=True):
            if array.null_count and not field.nullable:
                raise MalformedEntry(
                    f"the column {field.name} of the schema is not nullable, but an entry of "
                    f"stream {quote(page.stream)} has no value for it: make the column nullable"
                )
        return batch

    def _column(self, column: Column, page: Page) -> pa.Array | None:
        if column.role is Role.CORRUPT:
            return None
        kind = self.schema.field(column.name).type
        if not pa.types.is_dictionary(kind):
            return self._values(column, kind, page)
        values = self._values(column, kind.value_type, page)
        try:
            return as_dictionary(values, kind)
        except pa.ArrowInvalid:
            raise InvalidArgument(
                f"the column {column.name} has {len(values.unique())} different values in one "
                f"batch, too many for {kind.index_type} indices: use int32 indices"
            ) from None

    def _values(self, column: Column, kind: pa.DataType, page: Page) -> pa.Array:
        if column.role is not Role.FIELD:
            return _RESERVED_COLUMNS[column.role](page, kind)
        array, bad = cast_values(page.field(column.name.encode()), kind)
        if bad is not None:
            self._bad.append((column, bad))
        return array

    def _any_bad(self, page: Page) -> Bad:
        any_bad = np.zeros(len(page), np.bool_)
        for _, bad in self._bad:
            any_bad |= bad
        return any_bad

    def _malformed_entry(self, page: Page) -> MalformedEntry:
        column, bad = self._bad[0]
        at = int(np.flatnonzero(bad)[0])
        value = page.field(column.name.encode())[at].as_py()
        return MalformedEntry(
            f"entry {page.id(at)} of stream {quote(page.stream)}: the field {column.name} is not "
            f"a valid {column.kind}: {quote(value)}"
        )

    def _corrupt(self, page: Page) -> pa.Array:
        texts: list[str | None] = [None] * len(page)
        if self._bad:
            for at in np.flatnonzero(self._any_bad(page)):
                texts[at] = page.text_of(int(at))
        return pa.array(texts, pa.string())


# --- reserved columns -----------------------------------------------------------------------------


def _ids(page: Page, kind: pa.DataType) -> pa.Array:
    if is_bytes(kind):
        packed = pa.Array.from_buffers(pa.binary(16), len(page), [None, pa.py_buffer(page.ids)])
        return packed.cast(pa.binary()).cast(kind)
    if is_text(kind):
        ms, seq = (pa.array(page.part(which)).cast(pa.string()) for which in (0, 1))
        return pc.binary_join_element_wise(ms, seq, "-").cast(kind)
    parts = [_part(page, which, kind.field(which).type) for which in (0, 1)]
    return pa.StructArray.from_arrays(parts, fields=list(kind))


def _part(page: Page, which: int, kind: pa.DataType) -> pa.Array:
    numbers = page.part(which)
    if not pa.types.is_int64(kind):
        return pa.array(numbers).cast(kind)
    if len(numbers) and numbers.max() >= _SIGNED:
        raise InvalidArgument(
            f"the ID {page.id(int(numbers.argmax()))} of stream {quote(page.stream)} does not fit "
            "bigint: read the column as string, binary or struct<ms:decimal(20,0),"
            "seq:decimal(20,0)>"
        )
    return pa.array(numbers.view(np.int64))


def _timestamps(page: Page, kind: pa.DataType) -> pa.Array:
    """Return the milliseconds as times; null beyond the range of the column's type."""
    ms = page.part(0)
    if pa.types.is_uint64(kind):
        return pa.array(ms)
    integer = pa.types.is_int64(kind)
    most = (_SIGNED - 1) // (1 if integer else _PER_MS[kind.unit])
    beyond = ms > most if len(ms) and ms.max() > most else None
    numbers = (ms if beyond is None else np.where(beyond, 0, ms)).view(np.int64)
    column = pa.array(numbers, pa.int64(), mask=beyond)
    if integer:
        return column
    return column.cast(pa.timestamp("ms", kind.tz)).cast(kind, safe=False)


def _streams(page: Page, kind: pa.DataType) -> pa.Array:
    try:
        key = page.stream if is_bytes(kind) else page.stream.decode()
    except UnicodeDecodeError:
        raise _not_text(f"the key {quote(page.stream)}") from None
    return pa.repeat(key, len(page)).cast(kind)


def _stores(page: Page, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(page.store, kind), len(page))


def _not_text(what: str) -> InvalidArgument:
    return InvalidArgument(f"{what} is not UTF-8: read the column as binary")


def _fields(page: Page, kind: pa.DataType) -> pa.Array:
    if pa.types.is_map(kind):
        parts = [kind.key_field, kind.item_field]
        names, values, ends = _once_each(page)
    else:
        parts = list(kind.value_type)
        names, values, ends = page.names, page.values, page.ends
    children = [
        _text_or_binary(names, parts[0].type, "name", page),
        _text_or_binary(values, parts[1].type, "value", page),
    ]
    struct = pa.StructArray.from_arrays(children, fields=parts)
    buffers = [None, pa.py_buffer(ends.astype(np.int64) if pa.types.is_large_list(kind) else ends)]
    return pa.Array.from_buffers(kind, len(page), buffers, children=[struct])


def _text_or_binary(array: pa.Array, kind: pa.DataType, what: str, page: Page) -> pa.Array:
    """Cast field names or values to the column's type. Raises InvalidArgument if not UTF-8."""
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        raise _not_text(f"a field's {what} in stream {quote(page.stream)}") from None


def _once_each(page: Page) -> tuple[pa.Array, pa.Array, "np.ndarray[Any, np.dtype[np.int32]]"]:
    """Return names, values and ends with only the last field of each repeated name."""
    if not page.repeated:
        return page.names, page.values, page.ends
    kept = np.ones(len(page.names), np.bool_)
    for at in page.repeated:
        first, end = int(page.ends[at]), int(page.ends[at + 1])
        names = page.names[first:end].to_pylist()
        last = {name: place for place, name in enumerate(names)}
        kept[first:end] = False
        kept[[first + place for place in last.values()]] = True
    ends = np.concatenate(([0], np.cumsum(kept)))[page.ends].astype(np.int32)
    mask = pa.array(kept)
    return page.names.filter(mask), page.values.filter(mask), ends


_RESERVED_COLUMNS: dict[Role, Callable[[Page, pa.DataType], pa.Array]] = {
    Role.ID: _ids,
    Role.TIMESTAMP: _timestamps,
    Role.STREAM: _streams,
    Role.STORE: _stores,
    Role.FIELDS: _fields,
}


PAGE_MIN, PAGE_MAX = 64, 8192
"""Entries of the first page of a read, and of the largest page."""
PAGE_BYTES = 4 << 20
"""The approximate size limit of a page, which bounds memory if entries are large."""
PAGE_GROWTH = 8
"""The largest ratio of one page's length to the last: large entries may follow small ones."""


def next_page(entries: int, size: int) -> int:
    """Return the length of the next page, after one of ``entries`` with ``size`` bytes in all."""
    fitting = PAGE_BYTES * entries // max(size, 1)
    return max(1, min(PAGE_MAX, PAGE_GROWTH * entries, fitting))


def stream_pages(
    engine: AnyEngine, name: bytes, start: StreamID, end: StreamID
) -> Iterator[Columns]:
    """Yield the entries of a range by pages."""
    following, count = start, PAGE_MIN
    while following <= end:
        rows = engine.run(scan, Range(name, following, end, count))
        if not rows:
            return
        page = rows.columns()
        yield page
        if len(page) < count or page.last >= end:
            return
        following, count = page.last.next(), next_page(len(page), page.size)


class StreamRead:
    """A read of a range of one stream."""

    def __init__(
        self,
        engine: AnyEngine,
        name: bytes,
        bounds: tuple[StreamID, StreamID],
        schema: Any,
        prefix: str,
        last: Callable[[], StreamID],
    ) -> None:
        """``schema`` None: a column for each field name; else see ``schema_of``.

        ``last`` returns the stream's last ID, where the read ends.
        """
        self._engine = engine
        self._name = name
        self._prefix = prefix
        self._given = None if schema is None else schema_of(schema)
        if self._given is not None:
            columns_of_schema(self._given, prefix)  # raises its errors before anything is read
        self._start, self._end = bounds[0], min(bounds[1], last())

    def table(self) -> pa.Table:
        """Return all entries; without a schema they are read once and held as they are stored."""
        pages: Iterable[Columns] = self._pages()
        if self._given is None:
            pages = list(pages)
        batches = self._batches_of(pages)
        return pa.Table.from_batches(list(self._convert(batches, pages)), batches.schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches; without a schema the range is read twice."""
        batches = self._batches_of(() if self._given is not None else self._pages())
        yield from self._convert(batches, self._pages())

    def _batches_of(self, pages: Iterable[Columns]) -> Batches:
        """Return a Batches; without a schema its columns are the fields of ``pages``."""
        if self._given is not None:
            return Batches(self._given, columns_of_schema(self._given, self._prefix))
        return Batches(*columns_of_names(*_names(pages), self._prefix))

    def _pages(self) -> Iterator[Columns]:
        return stream_pages(self._engine, self._name, self._start, self._end)

    def _convert(self, batches: Batches, pages: Iterable[Columns]) -> Iterator[pa.RecordBatch]:
        key = key_of(self._name)
        return (batches.batch(page, key) for page in pages)


def _names(pages: Iterable[Columns]) -> tuple[list[bytes], set[bytes]]:
    """Return the field names of pages as they first occur, and those with values not UTF-8."""
    names: dict[bytes, None] = {}
    binary: set[bytes] = set()
    for columns in pages:
        page = Page(columns, b"", "")
        own = pc.unique(page.names).to_pylist()
        names |= dict.fromkeys(own)
        if len(names) > COLUMNS_MAX:
            raise too_many_names()
        if not _is_utf8(page.values):
            binary |= {name for name in own if not _is_utf8(page.field(name))}
    return list(names), binary


def _is_utf8(values: pa.Array) -> bool:
    try:
        pc.cast(values, pa.string())
    except pa.ArrowInvalid:
        return False
    return True
