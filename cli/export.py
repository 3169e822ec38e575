"""``export``: write entries as JSON Lines or CSV, and resume a file that is incomplete.

A killed export may have written part of a line. A complete line ends with a newline; a resumed
export drops what follows the last one.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

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
)
from kvstream.cli.importing.command import delimiter_option, format_of, format_option, quiet_option
from kvstream.cli.json_values import Unreadable, loads_entry
from kvstream.cli.output import Progress, pages, progress_bar
from kvstream.cli.parameters import ID, PathOnly, RangeBound, example, stream_argument
from kvstream.cli.session import Session, existing_stream
from kvstream.cli.tables import plural
from kvstream.errors import InvalidArgument, RequestError
from kvstream.stream import Stream
from kvstream.types.ids import StreamID, range_end, range_start
from kvstream.types.records import Entry

_BLOCK = 64 * 1024


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
        yield sys.stdout.buffer, ResumePoint()
        sys.stdout.buffer.flush()
        return
    with _open(path, resume, overwrite) as file:
        point = _csv_resume_point(file, delimiter) if kind == "csv" else _json_resume_point(file)
        file.seek(point.size)
        file.truncate()
        yield file, point
        file.flush()
        os.fsync(file.fileno())


def _open(path: Path, resume: bool, overwrite: bool) -> BinaryIO:
    if not path.exists():
        return path.open("x+b")
    if not resume and not overwrite:
        raise RequestError(
            f"{path} exists: continue it with --resume, or replace it with --overwrite"
        )
    return path.open("r+b" if resume else "w+b")


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


PAGE = 1000
"""Entries that are written at once."""


@click.command(
    epilog=example(
        "kvstream export orders backup.jsonl",
        "kvstream export orders backup.jsonl --resume",
        "kvstream export orders --format csv --start now-1d | gzip > orders.csv.gz",
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
@click.option("--fields", metavar="A,B,...", help="The columns of CSV. By default all fields.")
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

    `import` reads the entries back exactly. In CSV, the column kvstream:fields has the fields of an
    entry as JSON if cells cannot hold them exactly: binary or empty values, repeated fields, or
    fields in another order than in the header. --resume continues after the last complete line.
    """
    kind, delimiter = format_of(file.name, options["kind"], options["delimiter"])
    mode = {"resume": options["resume"], "overwrite": options["overwrite"]}
    with session.reading() as store:
        found = existing_stream(store, stream)
        with open_export(file, kind, delimiter, **mode) as (target, point):
            entries = _Selection(found, options, point)
            writer = _writer(kind, delimiter, point, options["fields"], entries)
            with progress_bar(f"export {file.name}", entries.total, options["quiet"]) as advance:
                written = _write(entries, writer, target, point, advance)
    click.echo(f"{plural(written, 'entry', 'entries')} written", err=True)


def _write(
    entries: "_Selection", writer: Writer, target: BinaryIO, point: ResumePoint, advance: Progress
) -> int:
    """Write the selected entries page by page, and return their number."""
    written = 0
    if not point.size:
        target.write(writer.header)
    for page in pages(entries, PAGE):
        target.write(writer.page(page))
        written += len(page)
        advance(written, written)
    return written


def _writer(
    kind: str, delimiter: str, point: ResumePoint, fields: str | None, entries: "_Selection"
) -> Writer:
    if kind == "jsonl":
        return JsonWriter()
    if point.names is not None:
        return CsvWriter(point.names, delimiter)
    names = column_names(iter(entries)) if fields is None else fields.split(",")
    return CsvWriter(names, delimiter)


class _Selection:
    """The entries to export."""

    def __init__(self, stream: Stream, options: dict[str, Any], point: ResumePoint) -> None:
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

    def __iter__(self) -> Iterator[Entry]:
        entries = self._stream.scan(self._start, self._end)
        return islice(entries, self._count)
