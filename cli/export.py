"""``export``: write entries as JSON Lines or CSV, and resume a file that is incomplete.

A killed export may have written part of a line. A complete line ends with a newline; a resumed
export drops what follows the last one. Parquet and Arrow files take their name once they are whole.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from kvstream.cli.entries import count_option
from kvstream.cli.file_formats import (
    FIELDS_COLUMN,
    ID_COLUMN,
    CsvRows,
    CsvWriter,
    JsonWriter,
    Position,
    Source,
    Writer,
    column_names,
    without_guard,
)
from kvstream.cli.importing.command import (
    TABLES,
    delimiter_option,
    format_of,
    format_option,
    meta_prefix_option,
    quiet_option,
)
from kvstream.cli.json_values import Unreadable, loads_entry
from kvstream.cli.output import Progress, pages, progress_bar
from kvstream.cli.parameters import ID, PathOnly, RangeBound, Type, example, stream_argument
from kvstream.cli.session import Session, existing_stream
from kvstream.cli.standard_streams import refuse_closed_stdout
from kvstream.cli.tables import plural
from kvstream.errors import InvalidArgument, RequestError, nearest, optional_package
from kvstream.types.ids import StreamID, range_end, range_start
from kvstream.types.records import Entry

if TYPE_CHECKING:
    import pyarrow as pa

    from kvstream.stream import Stream

_BLOCK = 64 * 1024
_MODE = 0o666


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where an export continues a file."""

    size: int = 0
    """Bytes up to the end of the last complete line."""
    last_id: StreamID | None = None
    """The ID of the last entry; None if there is none yet."""
    names: list[str] | None = None
    """The columns of CSV; None if there is no header yet."""


@contextmanager
def open_export(
    path: Path, kind: str, delimiter: str, *, resume: bool, overwrite: bool
) -> Iterator[tuple[BinaryIO, ResumePoint]]:
    """Open a file to export into, with the point to continue at; ``-`` is stdout.

    The file is synced to disk at the end. Raises RequestError if the file exists and neither
    ``resume`` nor ``overwrite`` is given, or if it cannot be resumed.
    """
    if str(path) == "-":
        refuse_closed_stdout()
        yield sys.stdout.buffer, ResumePoint()
        sys.stdout.buffer.flush()
        return
    from kvstream.storage.files import naming, sync

    with _open(path, resume, overwrite) as file:
        point = _csv_resume_point(file, delimiter) if kind == "csv" else _json_resume_point(file)
        with naming(path):
            file.truncate(file.seek(point.size))
        yield file, point
        file.flush()
        with naming(path):
            sync(file.fileno())


def _open(path: Path, resume: bool, overwrite: bool) -> BinaryIO:
    from kvstream.storage.files import open_named

    if not path.exists():
        how = os.O_CREAT | os.O_EXCL
    elif resume or overwrite:
        how = 0 if resume else os.O_TRUNC
    else:
        raise RequestError(
            f"{path} exists: continue it with --resume, or replace it with --overwrite"
        )
    return open_named(os.open(path, os.O_RDWR | how, _MODE), path)


def _json_resume_point(file: BinaryIO) -> ResumePoint:
    end = _after_last_newline(file, file.seek(0, os.SEEK_END))
    if end == 0:
        return ResumePoint()
    start = _after_last_newline(file, end - 1)
    file.seek(start)
    try:
        eid, _ = loads_entry(file.read(end - start))
    except Unreadable as error:
        raise _not_resumable(file, str(error)) from None
    return ResumePoint(end, _id(file, eid))


def _after_last_newline(file: BinaryIO, end: int) -> int:
    """Return the offset after the last newline before ``end``; 0 if there is none."""
    while end > 0:
        start = max(0, end - _BLOCK)
        file.seek(start)
        at = file.read(end - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


def _csv_resume_point(file: BinaryIO, delimiter: str) -> ResumePoint:
    """Read the whole file, since a cell may contain newlines."""
    file.seek(0)
    rows = CsvRows(Source(file, file.name), delimiter)
    if not rows.header.raw.endswith(b"\n"):
        return ResumePoint()
    if [*rows.names[:1], *rows.names[1:][-1:]] != [ID_COLUMN, FIELDS_COLUMN]:
        raise _not_resumable(file, f"its columns do not go from {ID_COLUMN} to {FIELDS_COLUMN}")
    position = Position()
    position.advance(rows.header.raw, rows.header.lines)
    eid = None
    torn = False
    for row in rows:
        if torn:
            raise _not_resumable(file, f"line {row.line} follows an incomplete one")
        torn = bool(row.error) or not row.raw.endswith(b"\n")
        if not torn:
            eid = row.eid or eid
            position.advance(row.raw, row.lines)
    return ResumePoint(position.offset, None if eid is None else _id(file, eid), rows.names[1:-1])


def _id(file: BinaryIO, eid: str | None) -> StreamID:
    try:
        return StreamID.parse(eid or "")
    except InvalidArgument:
        raise _not_resumable(file, "its last line has no ID") from None


def _not_resumable(file: BinaryIO, reason: str) -> RequestError:
    name = click.format_filename(file.name)
    return RequestError(f"{name} is not an export that can be resumed: {reason}")


_BESIDE_BRACKETS = re.compile(r",(?![^\[(]*[\])])")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns),\s*(?:tz=)?([^\]\s]+)\]")
_DECIMAL = re.compile(r"decimal(?:128)?\((\d+),\s*(-?\d+)\)")


class Schema(Type):
    """Columns and their types: ``sku:string,qty:int64``, as a mapping of texts."""

    name = "schema"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, str]:
        if not isinstance(value, str):
            return dict(value)
        types: dict[str, str] = {}
        for column in _BESIDE_BRACKETS.split(value):
            name, sign, kind = column.rpartition(":")
            name, kind = name.strip(), kind.strip()
            if not (sign and name and kind):
                self.fail(f"{column!r} is not NAME:TYPE, such as qty:int64.", param, ctx)
            if name in types:
                self.fail(f"{name!r} is there twice.", param, ctx)
            types[name] = kind
        return types


def column_types(columns: Mapping[str, str]) -> "dict[str, pa.DataType]":
    """Return the types of pyarrow; UsageError for an unknown one."""
    import pyarrow as pa

    types = {}
    for name, kind in columns.items():
        try:
            if found := _TIMESTAMP.fullmatch(kind):
                types[name] = pa.timestamp(found[1], found[2])
            elif found := _DECIMAL.fullmatch(kind):
                types[name] = pa.decimal128(int(found[1]), int(found[2]))
            else:
                types[name] = pa.type_for_alias(kind)
        except (ValueError, pa.ArrowException) as error:
            hint = nearest(kind, _TYPES) or f": use a name of pyarrow, such as {', '.join(_TYPES)}"
            if kind.startswith("decimal"):
                hint = f": {error}"
            text = f"--schema: {kind!r} of column {name!r} is no type{hint}"
            raise click.UsageError(text) from None
    return types


_TYPES = ("string", "int64", "double", "bool", "date32", "timestamp[ms]", "binary")
"""Names of types that are suggested."""

GROUP_ROWS, GROUP_BYTES = 1 << 17, 64 << 20
"""A row group of a table ends at one of these, which bounds memory."""


@click.command(
    epilog=example(
        "kvstream export orders backup.jsonl",
        "kvstream export orders backup.jsonl --resume",
        "kvstream export orders --format csv --start now-1d | gzip > orders.csv.gz",
        "kvstream export orders orders.parquet --schema sku:string,qty:int64",
    )
)
@stream_argument
@click.argument(
    "file",
    type=PathOnly(dir_okay=False, allow_dash=True),
    default="-",
    metavar="[FILE]",
)
@format_option
@delimiter_option
@click.option("--fields", metavar="A,B,...", help="The columns of a table. By default all fields.")
@click.option(
    "--schema",
    type=Schema(),
    metavar="A:TYPE,B:TYPE,...",
    help="The columns of parquet or arrow with their types, as in sku:string,qty:int64.",
)
@meta_prefix_option
@click.option(
    "--guard-formulas",
    is_flag=True,
    help="Put a ' before cells of csv that begin with =, +, -, @, tab or line end.",
)
@click.option("--start", type=RangeBound(), default="-", help="Start at this ID or time.")
@click.option("--end", type=RangeBound(), default="+", help="End at this ID or time.")
@click.option("--after", type=ID(), help="Start after this ID.")
@count_option
@click.option("--resume", is_flag=True, help="Continue a FILE that is incomplete.")
@click.option("--overwrite", is_flag=True, help="Replace a FILE that exists.")
@quiet_option
@click.pass_obj
def export(session: Session, /, stream: bytes, file: Path, **options: Any) -> None:
    """Write the entries of a stream to a FILE or stdout.

    `import` reads the entries back exactly from jsonl and csv. In CSV, the column kvstream:fields
    has the fields of an entry as JSON if cells cannot hold them exactly: binary or empty values,
    repeated fields, or fields in another order than in the header. --resume continues after the
    last complete line.

    A spreadsheet runs a cell such as =1+1 as a formula. Give --guard-formulas if the values come
    from strangers and a spreadsheet opens the file: numbers below zero are text there then. The
    same option of `import` reads the file back exactly. Give it again with --resume.

    Tables for other programs are parquet and arrow (Arrow's file format, also known as Feather):
    the columns id and timestamp, and one of text for each field. They need pyarrow. `import` reads
    them too, but only jsonl and csv keep repeated fields and the order of fields. A TYPE of
    --schema is a name of pyarrow, such as string, int64, double, bool, date32, timestamp[ms],
    timestamp[us,UTC] or decimal128(10,2). A value that its type does not take ends the export.
    """
    kind, delimiter = format_of(file.name, options)
    if options["schema"] is not None and (kind not in TABLES or options["fields"] is not None):
        raise click.UsageError("--schema is for parquet and arrow, and names all fields itself")
    if kind in TABLES:
        _export_table(session, stream, file, kind, options)
        return
    mode = {"resume": options["resume"], "overwrite": options["overwrite"]}
    with session.reading() as store:
        found = existing_stream(store, stream)
        with open_export(file, kind, delimiter, **mode) as (target, point):
            entries = _Selection(found, options, point)
            writer = _writer(kind, delimiter, point, options, entries)
            with progress_bar(f"export {file.name}", entries.total, options["quiet"]) as advance:
                written = _write(entries, writer, target, point, advance)
    click.echo(f"{plural(written, 'entry')} written", err=True)


def _write(
    entries: "_Selection", writer: Writer, target: BinaryIO, point: ResumePoint, advance: Progress
) -> int:
    """Write the selected entries page by page, and return their number."""
    written = 0
    if not point.size:
        target.write(writer.header)
    for page in pages(entries):
        target.write(writer.page(page))
        written += len(page)
        advance(written, written)
    return written


def _export_table(
    session: Session, stream: bytes, file: Path, kind: str, options: dict[str, Any]
) -> None:
    """Write a table, and say how many rows it has."""
    from kvstream.storage.files import replacing

    if str(file) == "-":
        raise click.UsageError(f"{kind} needs a FILE: it is not written to stdout")
    optional_package("pyarrow", extra="arrow")
    if file.exists() and not options["overwrite"]:
        raise RequestError(f"{file} exists: replace it with --overwrite")
    with session.reading() as store:
        found = existing_stream(store, stream)
        selection = _Selection(found, options, ResumePoint())
        batches = selection.batches(_columns(options), options["meta_prefix"])
        with (
            progress_bar(f"export {file.name}", selection.total, options["quiet"]) as advance,
            replacing(file, _MODE) as target,
        ):
            written = _write_table(batches, target, kind, advance)
    click.echo(f"{plural(written, 'entry')} written", err=True)


def _write_table(
    batches: Iterator["pa.RecordBatch"], target: BinaryIO, kind: str, advance: Progress
) -> int:
    """Write batches in large row groups, and return the number of rows."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    batches = _refuse_misfits(batches)
    first = next(batches)
    new = ParquetWriter if kind == "parquet" else pa.ipc.new_file
    written = 0
    with new(target, first.schema) as writer:
        for group in _row_groups(chain([first], batches)):
            writer.write_table(pa.Table.from_batches(group).combine_chunks())
            written += sum(map(len, group))
            advance(written, written)
    return written


def _refuse_misfits(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
    """Yield the batches; RequestError for a value that does not fit a type of --schema.

    The library raises a DataError, but here the user chose the types: nothing is damaged.
    """
    from kvstream.arrow.batches import MalformedEntry

    try:
        yield from batches
    except MalformedEntry as error:
        raise RequestError(f"{error}: give its column another type, such as string") from None


def _columns(options: Mapping[str, Any]) -> "Mapping[str, pa.DataType] | None":
    """Return the types of the columns that are asked for; None: all fields as text."""
    if options["schema"] is not None:
        return column_types(options["schema"])
    if options["fields"] is None:
        return None
    import pyarrow as pa

    own = {f"{options['meta_prefix']}{name}" for name in ("id", "timestamp")}
    return {name: pa.string() for name in options["fields"].split(",") if name not in own}


def _row_groups(batches: Iterable["pa.RecordBatch"]) -> Iterator[list["pa.RecordBatch"]]:
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        group.append(batch)
        rows, size = rows + len(batch), size + batch.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


def _writer(
    kind: str,
    delimiter: str,
    point: ResumePoint,
    options: Mapping[str, Any],
    entries: "_Selection",
) -> Writer:
    if kind == "jsonl":
        return JsonWriter()
    guards: bool = options["guard_formulas"]
    if point.names is not None:
        names = list(map(without_guard, point.names)) if guards else point.names
    elif options["fields"] is not None:
        names = options["fields"].split(",")
    else:
        names = column_names(iter(entries))
    return CsvWriter(names, delimiter, guards)


class _Selection:
    """The entries to export."""

    def __init__(self, stream: "Stream", options: dict[str, Any], point: ResumePoint) -> None:
        self._stream = stream
        self._start = range_start(options["start"])
        self._end = range_end(options["end"])
        self._count: int | None = options["count"]
        for before in (options["after"], point.last_id):
            if before is not None:
                self._start = max(self._start, before.next())
        whole = options["start"] == "-" and options["end"] == "+" and options["after"] is None
        self.total = len(stream) if whole and point.last_id is None else None
        """Their number, if it is known beforehand."""

    def batches(
        self, fields: "Mapping[str, pa.DataType] | None", prefix: str
    ) -> Iterator["pa.RecordBatch"]:
        """Yield the batches of a table; one without rows if there are no entries."""
        import pyarrow as pa

        columns: dict[str, pa.DataType] | None = None
        if fields is not None:
            columns = {f"{prefix}id": pa.string(), f"{prefix}timestamp": pa.timestamp("ms", "UTC")}
            columns |= fields
        span: dict[str, Any] = {"start": self._start, "end": self._end}
        span |= {"schema": columns, "meta_prefix": prefix}
        left, some = self._count, False
        for batch in self._stream.iter_batches(**span):
            some = True
            yield batch if left is None else batch.slice(0, left)
            if left is not None and (left := left - len(batch)) <= 0:
                return
        if not some:
            schema = self._stream.to_arrow(**span).schema
            yield pa.RecordBatch.from_pylist([], schema=schema)

    def __iter__(self) -> Iterator[Entry]:
        entries = self._stream.scan(self._start, self._end)
        return islice(entries, self._count)
