"""Parquet and Arrow files as lines of JSON, one for each row, which an import reads.

::

    a text column `id`, as an export writes it    the ID; then `timestamp`, the time of the ID,
                                                  is left out
    any other column                              the field of that name; null leaves it out

``kvstream.arrow.text`` defines how values become bytes. A row is a line in messages, and an import
resumes after the last line, so the lines of a file are the same in each run.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow.parquet import ParquetFile

from kvstream.arrow.casts import is_text
from kvstream.arrow.text import as_binary
from kvstream.cli.file_formats import CHUNK
from kvstream.cli.json_values import bytes_json, dumps
from kvstream.errors import RequestError, quote

ROWS = 1000
"""Rows that become lines at once."""


def table_lines(file: BinaryIO, kind: str, label: str, prefix: str) -> BinaryIO:
    """Return the rows of a file as JSON Lines.

    ``kind`` is parquet or arrow, and ``prefix`` precedes the names id and timestamp. Opening and
    reading raise RequestError for a damaged file, and for a column that has no text.
    """
    with _report_damage(label, kind):
        schema, batches = _parquet(file) if kind == "parquet" else _arrow(file)
    pages = _pages(_Columns(schema, label, prefix), batches, label, kind)
    return io.BufferedReader(_Pages(pages), CHUNK)


@contextmanager
def _report_damage(label: str, kind: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        name = "Parquet" if kind == "parquet" else "Arrow"
        raise RequestError(f"{label} is no {name} file, or is damaged: {error}") from None


def _parquet(file: BinaryIO) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    table = ParquetFile(file)
    return table.schema_arrow, table.iter_batches(ROWS)


def _arrow(file: BinaryIO) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Open Arrow's file format, or its stream format, which has no index at its end."""
    try:
        table = pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        file.seek(0)
        reader = pa.ipc.open_stream(file)
        return reader.schema, iter(reader)
    return table.schema, map(table.get_batch, range(table.num_record_batches))


def _pages(
    columns: "_Columns", batches: Iterator[pa.RecordBatch], label: str, kind: str
) -> Iterator[bytes]:
    with _report_damage(label, kind):
        for batch in batches:
            for at in range(0, len(batch), ROWS):
                yield columns.lines(batch.slice(at, ROWS))


class _Columns:
    """The columns of a table: the one of IDs, if there is one, and those that are fields."""

    def __init__(self, schema: pa.Schema, label: str, prefix: str) -> None:
        names = schema.names
        if twice := sorted(name for name in {*names} if names.count(name) > 1):
            raise RequestError(f"{label}: two columns have the name {quote(twice[0].encode())}")
        self._id_at = _id_at(schema, prefix)
        left_out = set() if self._id_at is None else {f"{prefix}id", f"{prefix}timestamp"}
        self._fields = [
            (at, field.name) for at, field in enumerate(schema) if field.name not in left_out
        ]
        if not self._fields:
            raise RequestError(f"{label}: an entry needs a field, and no column is one")
        for at, name in self._fields:
            _refuse_without_text(schema.field(at).type, f"{label}: the column {name}")

    def lines(self, batch: pa.RecordBatch) -> bytes:
        """Return the rows of a batch as lines."""
        ids = [None] * len(batch) if self._id_at is None else batch.column(self._id_at).to_pylist()
        names = [name for _, name in self._fields]
        values = [_values(batch.column(at)) for at, _ in self._fields]
        return "".join(
            dumps({"id": eid, "fields": dict(zip(names, row, strict=True))}) + "\n"
            for eid, row in zip(ids, zip(*values, strict=True), strict=True)
        ).encode()


def _id_at(schema: pa.Schema, prefix: str) -> int | None:
    at: int = schema.get_field_index(f"{prefix}id")
    if at < 0:
        return None
    kind = schema.field(at).type
    return at if is_text(kind.value_type if pa.types.is_dictionary(kind) else kind) else None


def _refuse_without_text(kind: pa.DataType, column: str) -> None:
    try:
        as_binary(pa.nulls(1, kind))
    except pa.ArrowException:
        raise RequestError(f"{column} is {kind}: convert it to text first, or drop it") from None


def _values(column: pa.Array) -> list[Any]:
    """Return the values of a column as values of JSON."""
    texts = as_binary(column)
    try:
        values: list[Any] = texts.cast(pa.string()).to_pylist()
    except pa.ArrowInvalid:  # not UTF-8
        values = [None if part is None else bytes_json(part) for part in texts.to_pylist()]
    return values


class _Pages(io.RawIOBase):
    """Pages of bytes, as one stream of bytes."""

    def __init__(self, pages: Iterator[bytes]) -> None:
        self._pages = pages
        self._page = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes of a page; return their number, 0 at the end."""
        if not self._page:
            self._page = memoryview(next(self._pages, b""))
        part = self._page[: len(buffer)]
        buffer[: len(part)] = part
        self._page = self._page[len(part) :]
        return len(part)
