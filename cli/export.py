"""``export``: entries as JSON Lines or CSV, into a file that can be gone on with.

Files that an export has written in part: where they end, and how they are gone on with.

An export may have been killed in the middle of a line. What is whole ends with a newline; the rest
is dropped.
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

from kvstream.cli.contracts import AnyStream, Session
from kvstream.cli.entries import count_option
from kvstream.cli.importing.command import delimiter_option, format_of, format_option, quiet_option
from kvstream.cli.output import Meter, meter, pages
from kvstream.cli.parameters import ID, PathOnly, RangeBound, example, stream_argument
from kvstream.cli.rows import (
    FIELDS_COLUMN,
    ID_COLUMN,
    CsvRows,
    CsvWriter,
    JsonWriter,
    Position,
    Source,
    Unreadable,
    Writer,
    column_names,
    loads_entry,
)
from kvstream.cli.session import existing_stream
from kvstream.cli.tables import plural
from kvstream.errors import InvalidArgument, RequestError
from kvstream.types.ids import StreamID, range_end, range_start
from kvstream.types.records import Entry

_BLOCK = 64 * 1024


@dataclass(frozen=True, slots=True)
class Ending:
    """Where a file ends that was exported in part."""

    size: int = 0
    """Its bytes up to the last whole line."""
    last_id: StreamID | None = None
    """The ID of the last entry; None where there is none yet."""
    names: list[str] | None = None
    """The columns of CSV; None where there is no header yet."""


@contextmanager
def opened_export(
    path: Path, kind: str, delimiter: str, *, resume: bool, overwrite: bool
) -> Iterator[tuple[BinaryIO, Ending]]:
    """Open a file to export into, and say where it goes on; ``-`` is stdout.

    It is on disk when all went well. RequestError where the file exists and may be neither gone on
    with nor replaced, or is no export.
    """
    if str(path) == "-":
        yield sys.stdout.buffer, Ending()
        sys.stdout.buffer.flush()
        return
    with _open(path, resume, overwrite) as file:
        ending = _csv_ending(file, delimiter) if kind == "csv" else _json_ending(file)
        file.seek(ending.size)
        file.truncate()
        yield file, ending
        file.flush()
        os.fsync(file.fileno())


def _open(path: Path, resume: bool, overwrite: bool) -> BinaryIO:
    if not path.exists():
        return path.open("x+b")
    if not resume and not overwrite:
        raise RequestError(f"{path} exists: --resume goes on with it, --overwrite replaces it")
    return path.open("r+b" if resume else "w+b")


def _json_ending(file: BinaryIO) -> Ending:
    end = _after_last_newline(file, file.seek(0, os.SEEK_END))
    if end == 0:
        return Ending()
    start = _after_last_newline(file, end - 1)
    file.seek(start)
    try:
        eid, _ = loads_entry(file.read(end - start))
    except Unreadable as error:
        raise _no_export(file, str(error)) from None
    return Ending(end, _id(file, eid))


def _after_last_newline(file: BinaryIO, end: int) -> int:
    """Return the offset after the last newline before ``end``, 0 where there is none."""
    while end > 0:
        start = max(0, end - _BLOCK)
        file.seek(start)
        at = file.read(end - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


def _csv_ending(file: BinaryIO, delimiter: str) -> Ending:
    """Read the file from its start, since a cell may hold newlines."""
    file.seek(0)
    rows = CsvRows(Source(file, file.name), delimiter)
    if not rows.header.raw.endswith(b"\n"):
        return Ending()
    if [*rows.names[:1], *rows.names[1:][-1:]] != [ID_COLUMN, FIELDS_COLUMN]:
        raise _no_export(file, f"its columns are not {ID_COLUMN} to {FIELDS_COLUMN}")
    position = Position()
    position.advance(rows.header.raw, rows.header.lines)
    eid = None
    torn = False
    for row in rows:
        if torn:
            raise _no_export(file, f"line {row.line} follows a broken one")
        torn = bool(row.error) or not row.raw.endswith(b"\n")
        if not torn:
            eid = row.eid or eid
            position.advance(row.raw, row.lines)
    return Ending(position.offset, None if eid is None else _id(file, eid), rows.names[1:-1])


def _id(file: BinaryIO, eid: str | None) -> StreamID:
    try:
        return StreamID.parse(eid or "")
    except InvalidArgument:
        raise _no_export(file, "its last line has no ID") from None


def _no_export(file: BinaryIO, reason: str) -> RequestError:
    return RequestError(f"{click.format_filename(file.name)} is no export to go on with: {reason}")


PAGE = 1000
"""Entries that are written together."""


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
@click.option("--start", type=RangeBound(), default="-", help="From this ID or time on.")
@click.option("--end", type=RangeBound(), default="+", help="Up to this ID or time.")
@click.option("--after", type=ID(), help="Only what lies after this ID.")
@count_option
@click.option("--resume", is_flag=True, help="Go on with a FILE that was exported in part.")
@click.option("--overwrite", is_flag=True, help="Replace a FILE that exists.")
@quiet_option
@click.pass_obj
def export(session: Session, /, stream: bytes, file: Path, **options: Any) -> None:
    """Write the entries of a stream to a FILE or stdout.

    `import` reads them back exactly. In CSV the column kvstream:fields holds, as JSON, the fields
    of those entries that cells cannot hold exactly: binary values, repeated fields, fields in
    another order than the header's, empty values. --resume drops a last line that was cut off, and
    goes on after the last whole one.
    """
    kind, delimiter = format_of(file.name, options["kind"], options["delimiter"])
    may = {"resume": options["resume"], "overwrite": options["overwrite"]}
    with session.reading() as store:
        found = existing_stream(store, stream)
        with opened_export(file, kind, delimiter, **may) as (target, ending):
            entries = _Selection(found, options, ending)
            writer = _writer(kind, delimiter, ending, options["fields"], entries)
            with meter(f"export {file.name}", entries.total, options["quiet"]) as watch:
                written = _write(entries, writer, target, ending, watch)
    click.echo(f"{plural(written, 'entry', 'entries')} written", err=True)


def _write(
    entries: "_Selection", writer: Writer, target: BinaryIO, ending: Ending, watch: Meter
) -> int:
    """Write what is selected, page by page, and return how many entries it was."""
    written = 0
    if not ending.size:
        target.write(writer.header)
    for page in pages(entries, PAGE):
        target.write(writer.page(page))
        written += len(page)
        watch(written, written)
    return written


def _writer(
    kind: str, delimiter: str, ending: Ending, fields: str | None, entries: "_Selection"
) -> Writer:
    if kind == "jsonl":
        return JsonWriter()
    if ending.names is not None:
        return CsvWriter(ending.names, delimiter)
    names = column_names(iter(entries)) if fields is None else fields.split(",")
    return CsvWriter(names, delimiter)


class _Selection:
    """The entries that are to be exported."""

    def __init__(self, stream: AnyStream, options: dict[str, Any], ending: Ending) -> None:
        self._stream = stream
        self._start = range_start(options["start"])
        self._end = range_end(options["end"])
        self._count: int | None = options["count"]
        for before in (options["after"], ending.last_id):
            if before is not None:
                self._start = max(self._start, before.next())
        whole = options["start"] == "-" and options["end"] == "+" and options["after"] is None
        self.total = len(stream) if whole and ending.last_id is None else None
        """How many there are, where that is known beforehand."""

    def __iter__(self) -> Iterator[Entry]:
        entries = self._stream.scan(self._start, self._end)
        return islice(entries, self._count)
