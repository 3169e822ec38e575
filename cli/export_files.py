"""Files that an export has written in part: where they end, and how they are gone on with.

An export may have been killed in the middle of a line. What is whole ends with a newline; the rest
is dropped.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import click

from kvstream.cli.json_values import Unreadable, loads_entry
from kvstream.cli.rows import FIELDS_COLUMN, ID_COLUMN, CsvRows
from kvstream.cli.sources import Position, Source
from kvstream.errors import InvalidArgument, RequestError
from kvstream.ids import StreamID

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
