"""The files of ``import`` and ``export``: JSON Lines and CSV, read as rows and written as pages.

::

    JSON Lines   one entry per line, as json_values encodes it, or a flat object of fields
    CSV          a header with the field names; an empty cell means that the entry lacks the field
                 kvstream:id       the column of IDs that an export writes
                 kvstream:fields   all fields as JSON, if the cells cannot hold them exactly

A row keeps its raw bytes, because an import measures its progress in bytes. A ``Source`` never
reads ahead of the lines that it has returned, so a position in it is exact.
"""

import csv
import io
import os
import select
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol

import xxhash

from kvstream.cli.json_values import (
    Pairs,
    Unreadable,
    dumps,
    entry_json,
    fields_json,
    loads_entry,
    loads_fields,
)
from kvstream.errors import RequestError
from kvstream.types.options import ENTRY_BYTES_MAX
from kvstream.types.records import AnyEntry

CHUNK = 256 * 1024
LINE_BYTES_MAX = 1 << 30
"""The longest line: an entry of the maximum size, with room for escapes."""


class Source:
    """A file or a pipe, line by line."""

    def __init__(self, stream: BinaryIO, label: str, identity: bytes | None = None) -> None:
        self.label = label
        """Its name in messages."""
        self.identity = identity
        """Identifies it in a later run; None if that is not possible."""
        self.size: int | None = None
        """Its size in bytes; None for a pipe."""
        self.ended = False
        """Whether ``spool`` has found the end of the pipe."""
        self._read: Callable[[int], bytes] = stream.read
        self._pipe: int | None = None
        """The descriptor of a pipe; None for a file."""
        self._buffer = b""
        self._at = 0
        descriptor = _descriptor_of(stream)
        if descriptor is not None:
            # Unlike the stream's own, this read does not wait for more bytes than there are.
            self._read = partial(os.read, descriptor)
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode):
                self.size = status.st_size
            else:
                self._pipe = descriptor

    def readline(self) -> bytes:
        """Return the next line with its newline, which the last may lack; empty at the end."""
        parts: list[bytes] = []
        length = 0
        while (end := self._buffer.find(b"\n", self._at) + 1) == 0:
            parts.append(self._buffer[self._at :])
            length += len(parts[-1])
            if length > LINE_BYTES_MAX:
                raise RequestError(f"{self.label}: a line is longer than {LINE_BYTES_MAX:,} bytes")
            self._buffer, self._at = self._read(CHUNK), 0
            if not self._buffer:
                return b"".join(parts)
        parts.append(self._buffer[self._at : end])
        self._at = end
        return b"".join(parts)

    def read(self, length: int) -> bytes:
        """Return at most ``length`` bytes; empty at the end."""
        if self._at == len(self._buffer):
            self._buffer, self._at = self._read(CHUNK), 0
        part = self._buffer[self._at : self._at + length]
        self._at += len(part)
        return part

    def wait_for_data(self) -> bool:
        """Wait until a pipe has data or ends; return whether this is a pipe."""
        if self._pipe is None:
            return False
        select.select([self._pipe], [], [])
        return True

    def spool(self, file: BinaryIO, wait_s: float) -> bool:
        """Move what a pipe has to a file; return False if it has nothing for ``wait_s``."""
        assert self._pipe is not None
        readable, _, _ = select.select([self._pipe], [], [], wait_s)
        part = self._read(CHUNK) if readable else b""
        self.ended = bool(readable) and not part
        return file.write(part) > 0

    def continue_with(self, file: BinaryIO) -> None:
        """Read a file from its start, and then the pipe that it was read from."""
        read = self._read
        file.seek(0)
        self._read = lambda length: file.read(length) or read(length)

    def must_wait(self) -> bool:
        """Return whether reading the next line would wait for the pipe."""
        if self._pipe is None or self._buffer.find(b"\n", self._at) >= 0:
            return False
        readable, _, _ = select.select([self._pipe], [], [], 0)
        return not readable


def _descriptor_of(stream: BinaryIO) -> int | None:
    """Return the descriptor of a stream; None for one in memory."""
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def identity_of(path: Path | None, name: bytes | None) -> bytes | None:
    """Return the identity of a source: its name, or else the path of a regular file."""
    if name is not None:
        return b"name:" + name
    if path is None or not path.is_file():
        return None
    return b"file:" + os.fsencode(path.resolve())


class Position:
    """A position in a source, with the digest of all bytes before it."""

    def __init__(self) -> None:
        self.offset = 0
        self.line = 0
        self._hash = xxhash.xxh3_128()

    def copy(self) -> "Position":
        """Return an independent copy."""
        other = Position()
        other.offset, other.line, other._hash = self.offset, self.line, self._hash.copy()
        return other

    def advance(self, raw: bytes, lines: int) -> None:
        """Move on by the bytes of ``raw``."""
        self._hash.update(raw)
        self.offset += len(raw)
        self.line += lines

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    def skip(self, source: Source, offset: int, line: int) -> None:
        """Read the source up to ``offset``, or to its end if it is shorter."""
        while self.offset < offset and (part := source.read(min(CHUNK, offset - self.offset))):
            self.advance(part, 0)
        self.line = line


ID_COLUMN = "kvstream:id"
FIELDS_COLUMN = "kvstream:fields"
COLUMNS_MAX = 256
"""Columns of a CSV file; entries with other fields use ``kvstream:fields``."""

_BOM = b"\xef\xbb\xbf"
_TEXT = {"encoding": "utf-8", "errors": "surrogateescape"}


@dataclass(slots=True)
class Row:
    """One row of a source: an entry, or an error."""

    line: int
    """Number of its first line, from 1."""
    raw: bytes
    """All its bytes, including blank lines before it."""
    lines: int
    """Lines in ``raw``."""
    eid: str | None = None
    pairs: Pairs | None = None
    """None for a bad row; empty for blank lines."""
    error: str = ""


class Rows(Protocol):
    """Rows of a source in one format."""

    @property
    def header(self) -> Row:
        """The lines before the first row."""
        ...

    def resume(self, line: int) -> None:
        """Count lines from ``line``, up to which an earlier run has read."""
        ...

    def __iter__(self) -> Iterator[Row]: ...


class _Lines:
    """Collects the lines of a source until their row is complete."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._kept: list[bytes] = []
        self.taken = 0
        """Lines read so far."""

    def next(self) -> bytes:
        line = self._source.readline()
        if line:
            self._kept.append(line)
            self.taken += 1
        return line

    def row(self) -> Row:
        """Return the lines since the last row as a new row."""
        raw, lines = b"".join(self._kept), len(self._kept)
        self._kept.clear()
        return Row(self.taken - lines + 1, raw, lines)


class JsonRows:
    """Rows of JSON Lines."""

    def __init__(self, source: Source) -> None:
        self.header = Row(1, b"", 0)
        self._lines = _Lines(source)

    def resume(self, line: int) -> None:
        self._lines.taken = line

    def __iter__(self) -> Iterator[Row]:
        while line := self._lines.next():
            content = line.removeprefix(_BOM) if self._lines.taken == 1 else line
            if not content.strip():
                continue
            row = self._lines.row()
            row.line = self._lines.taken
            try:
                row.eid, row.pairs = loads_entry(content)
            except Unreadable as error:
                row.error = str(error)
            yield row
        if (rest := self._lines.row()).raw:
            rest.pairs = []
            yield rest


class CsvRows:
    """Rows of CSV, whose header names the fields."""

    def __init__(self, source: Source, delimiter: str = ",", keep_empty: bool = False) -> None:
        csv.field_size_limit(ENTRY_BYTES_MAX)
        self._lines = _Lines(source)
        self._keep_empty = keep_empty
        self._reader = csv.reader(self._texts(), delimiter=delimiter, strict=True)
        names = next(self._reader, [])
        self.header = self._lines.row()
        self.names = names
        self._fields = [name.encode(**_TEXT) for name in names]
        self._id_at = names.index(ID_COLUMN) if ID_COLUMN in names else None
        self._json_at = names.index(FIELDS_COLUMN) if FIELDS_COLUMN in names else None

    def resume(self, line: int) -> None:
        self._lines.taken = line

    def _texts(self) -> Iterator[str]:
        while line := self._lines.next():
            if self._lines.taken == 1:
                line = line.removeprefix(_BOM)
            yield line.decode(**_TEXT)

    def __iter__(self) -> Iterator[Row]:
        while True:
            cells: list[str] | None = None
            error = ""
            try:
                cells = next(self._reader, None)
            except csv.Error as problem:
                error = f"not CSV: {problem}"
            row = self._lines.row()
            if not row.raw:
                return
            row.error = error
            if not error:
                self._fill(row, cells or [])
            yield row

    def _fill(self, row: Row, cells: Sequence[str]) -> None:
        """Set the ID and the fields of a row."""
        if len(cells) > len(self.names):
            row.error = f"{len(cells)} cells, but the header has {len(self.names)}"
            return
        if not cells:  # a blank line
            row.pairs = []
            return
        row.eid = self._cell(cells, self._id_at) or None
        inside = self._cell(cells, self._json_at)
        try:
            row.pairs = loads_fields(inside) if inside else self._cells(cells)
        except Unreadable as error:
            row.error = f"{FIELDS_COLUMN}: {error}"
            return
        if not row.pairs:
            row.pairs, row.error = None, "all cells are empty"

    def _cells(self, cells: Sequence[str]) -> Pairs:
        return [
            (name, cell.encode(**_TEXT))
            for at, (name, cell) in enumerate(zip(self._fields, cells, strict=False))
            if (cell or self._keep_empty) and at not in (self._id_at, self._json_at)
        ]

    @staticmethod
    def _cell(cells: Sequence[str], at: int | None) -> str:
        return "" if at is None or at >= len(cells) else cells[at]


class Writer(Protocol):
    """Encodes entries in one format."""

    @property
    def header(self) -> bytes:
        """The lines before the first entry."""
        ...

    def page(self, entries: Sequence[AnyEntry]) -> bytes:
        """Return the lines of some entries."""
        ...


class JsonWriter:
    """Encodes entries as JSON Lines."""

    header = b""

    def page(self, entries: Sequence[AnyEntry]) -> bytes:
        return "".join(dumps(entry_json(entry)) + "\n" for entry in entries).encode()


class CsvWriter:
    """Encodes entries as CSV with the columns ``names``."""

    def __init__(self, names: Sequence[str], delimiter: str = ",") -> None:
        self.names = list(names)
        self._order = {name.encode(**_TEXT): at for at, name in enumerate(self.names)}
        self._delimiter = delimiter
        self.header = self._encoded([[ID_COLUMN, *self.names, FIELDS_COLUMN]])

    def page(self, entries: Sequence[AnyEntry]) -> bytes:
        return self._encoded([self._row(entry) for entry in entries])

    def _row(self, entry: AnyEntry) -> list[str]:
        cells = [str(entry.id), *[""] * len(self.names), ""]
        before = -1
        for name, value in entry.pairs:
            at = self._order.get(name, -1)
            text = cell_text(value)
            if at <= before or not text:  # repeated, out of order, unknown, or not exact in a cell
                shown = dumps(fields_json(entry.pairs))
                return [str(entry.id), *[""] * len(self.names), shown]
            cells[at + 1] = text
            before = at
        return cells

    def _encoded(self, rows: Sequence[Sequence[str]]) -> bytes:
        text = io.StringIO(newline="")
        csv.writer(text, delimiter=self._delimiter, lineterminator="\n").writerows(rows)
        return text.getvalue().encode()


def cell_text(value: bytes) -> str:
    """Return ``value`` as the text of a cell; empty if a cell cannot hold it exactly."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return ""
    return "" if "\r" in text or "\0" in text else text


def column_names(entries: Iterator[AnyEntry]) -> list[str]:
    """Return the names of fields, in the order in which entries use them."""
    names: dict[str, None] = {}
    for entry in entries:
        for name, _ in entry.pairs:
            text = cell_text(name)
            if text and text not in (ID_COLUMN, FIELDS_COLUMN):
                names[text] = None
        if len(names) >= COLUMNS_MAX:
            break
    return list(names)[:COLUMNS_MAX]
