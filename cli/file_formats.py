"""The files of ``import`` and ``export``: JSON Lines and CSV, read as rows and written as pages.

::

    JSON Lines   one entry per line, as json_values encodes it, or a flat object of fields
    CSV          a header with the field names; an empty cell means that the entry lacks the field
                 kvstream:id       the column of IDs that an export writes
                 kvstream:fields   all fields as JSON, if the cells cannot hold them exactly
    guarded CSV  a cell that a spreadsheet would take as a formula has one more ' before it

A row keeps its raw bytes, because an import measures its progress in bytes. A ``Source`` never
reads ahead of the lines that it has returned, so a position in it is exact.
"""

import codecs
import csv
import io
import os
import re
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


BYTES = "bytes"
"""Stands for no encoding: text is kept byte by byte."""

_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
"""Encodings by the byte order mark that a file begins with."""

_BINARY = {
    b"\x1f\x8b": "compressed by gzip: give what gunzip -c writes",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: give what zstd -dc writes",
    b"\xfd7zXZ\0": "compressed by xz: give what xz -dc writes",
    b"BZh91AY&SY": "compressed by bzip2: give what bunzip2 -c writes",
    b"PK\x03\x04": "a ZIP archive or a workbook (xlsx): unpack it, or save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "a workbook (xls): save the sheet as CSV",
    b"PAR1\x15": "a Parquet file: give --format parquet",
    b"ARROW1\0\0": "an Arrow file: give --format arrow",
}
"""Files that are not text, by their first bytes: what they are, and what to do."""
_BEGINNINGS = (*_MARKS, *_BINARY)


def is_utf8(encoding: str) -> bool:
    """Return whether an encoding, which must be known, is UTF-8."""
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


class Source:
    """A file or a pipe, line by line, in UTF-8.

    Another encoding is decoded while it is read: positions count bytes of the text in UTF-8. If
    ``encoding`` is empty, a byte order mark chooses it; the mark of another encoding is refused,
    unless ``encoding`` is BYTES. A file that is not text, such as a compressed one, is refused.
    """

    def __init__(
        self, stream: BinaryIO, label: str, identity: bytes | None = None, encoding: str = ""
    ) -> None:
        self.label = label
        """Its name in messages."""
        self.identity = identity
        """Identifies it in a later run; None if that is not possible."""
        self.size: int | None = None
        """Its size in bytes; None for a pipe, and if it is decoded."""
        self.ended = False
        """Whether ``spool`` has found the end of the pipe."""
        self._read: Callable[[int], bytes] = stream.read
        self._pipe: int | None = None
        """The descriptor of a pipe; None for a file."""
        self._encoding = encoding
        self.is_guided = bool(encoding) and encoding != BYTES and not is_utf8(encoding)
        """Whether it is decoded from an encoding that its user has named."""
        self._decoder: codecs.IncrementalDecoder | None = None
        self._decoded = 0
        """Bytes that were decoded so far."""
        self._is_new = True
        """Whether nothing was read yet."""
        self._chunk = io.BytesIO()
        """The bytes that were read last, with the position in them."""
        self._complete = 0
        """The end of the last complete line in it."""
        descriptor = _descriptor_of(stream)
        if descriptor is not None:
            # The stream's own read waits for all bytes that it is asked for; this one does not.
            self._read = partial(os.read, descriptor)
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode):
                self.size = status.st_size
                self._next_chunk()  # a byte order mark changes the size
            else:
                self._pipe = descriptor

    def readline(self) -> bytes:
        """Return the next line with its newline, which the last may lack; empty at the end."""
        line = self._chunk.readline()
        if line[-1:] == b"\n":
            return line
        parts = [line]
        length = len(line)
        while self._next_chunk():
            parts.append(line := self._chunk.readline())
            length += len(line)
            if line[-1:] == b"\n":
                break
            if length > LINE_BYTES_MAX:
                raise RequestError(f"{self.label}: a line is longer than {LINE_BYTES_MAX:,} bytes")
        return b"".join(parts)

    def _next_chunk(self) -> bool:
        """Read on after the end of a chunk; return False at the end of the source."""
        chunk = self._first_bytes() if self._is_new else self._read(CHUNK)
        if self._decoder is not None:
            chunk = self._utf8(self._decoder, chunk)
        self._chunk = io.BytesIO(chunk)
        self._complete = chunk.rfind(b"\n") + 1
        return bool(chunk)

    def _first_bytes(self) -> bytes:
        """Read the first bytes, and choose the decoder."""
        self._is_new = False
        chunk = self._read(CHUNK)
        # Most input does not begin as these do, so a short line of a pipe is not waited for.
        while any(len(chunk) < len(each) and each.startswith(chunk) for each in _BEGINNINGS):
            if not (more := self._read(CHUNK)):
                break
            chunk += more
        for beginning, what in _BINARY.items():
            if chunk.startswith(beginning):
                raise RequestError(f"{self.label} is {what}")
        if self._encoding == BYTES:
            return chunk
        marked = next((name for mark, name in _MARKS.items() if chunk.startswith(mark)), "")
        if self._encoding and marked and not _agree(marked, self._encoding):
            raise RequestError(
                f"{self.label} begins with the byte order mark of {marked}, so it is not "
                f"{self._encoding}: leave --encoding out, or give --encoding {marked}"
            )
        self._encoding = self._encoding or marked or "utf-8"
        if not is_utf8(self._encoding):
            self._decoder = codecs.getincrementaldecoder(self._encoding)()
            self.size = None
        return chunk

    def _utf8(self, decoder: codecs.IncrementalDecoder, chunk: bytes) -> bytes:
        """Decode bytes, and more of them until there is text or the source ends."""
        while True:
            waiting = len(decoder.getstate()[0])
            try:
                text = decoder.decode(chunk, final=not chunk).encode()
            except UnicodeError as error:
                at = self._decoded - waiting + getattr(error, "start", 0) + 1
                raise RequestError(
                    f"{self.label}: not {self._encoding} at byte {at:,}: give its --encoding"
                ) from None
            self._decoded += len(chunk)
            if text or not chunk:
                return text
            chunk = self._read(CHUNK)

    def read(self, length: int) -> bytes:
        """Return at most ``length`` bytes; empty at the end."""
        part = self._chunk.read(length)
        if not part and self._next_chunk():
            part = self._chunk.read(length)
        return part

    @property
    def is_pipe(self) -> bool:
        """Whether it is a pipe, whose next line may have to be waited for."""
        return self._pipe is not None

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
        if self._pipe is None or self._chunk.tell() < self._complete:
            return False
        readable, _, _ = select.select([self._pipe], [], [], 0)
        return not readable


def _agree(marked: str, encoding: str) -> bool:
    """Return whether text with the byte order mark of one encoding may have another encoding."""
    name = codecs.lookup(encoding).name
    return name in (marked, f"{marked}-sig") or marked in (f"{name}-le", f"{name}-be")


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

    def __init__(self) -> None:
        self.kept: list[bytes] = []
        """Lines since the last row."""
        self.taken = 0
        """Lines of the rows so far."""

    def row(self) -> Row:
        """Return the lines since the last row as a new row."""
        kept = self.kept
        row = Row(self.taken + 1, b"".join(kept), len(kept))
        self.taken += len(kept)
        kept.clear()
        return row


_NUL = "a NUL byte: if the file is UTF-16, give --encoding utf-16-le or utf-16-be"
_ENCODING_ADVICE = "give the --encoding of the file, such as cp1252"
_RETURNS = r"the lines end with \r alone: convert them, as with: tr '\r' '\n'"


def _has_bare_returns(line: bytes) -> bool:
    return b"\r" in line.rstrip(b"\r\n")


class JsonRows:
    """Rows of JSON Lines."""

    def __init__(self, source: Source) -> None:
        self.header = Row(1, b"", 0)
        self._source = source
        self._lines = _Lines()

    def resume(self, line: int) -> None:
        self._lines.taken = line

    def __iter__(self) -> Iterator[Row]:
        lines, readline = self._lines, self._source.readline
        while line := readline():
            lines.kept.append(line)
            if line[:3] == _BOM and lines.taken == 0 and len(lines.kept) == 1:
                line = line[3:]
            if not line or line.isspace():
                continue
            row = lines.row()
            row.line = lines.taken
            try:
                row.eid, row.pairs = loads_entry(line)
            except Unreadable as error:
                row.error = _unreadable(line, str(error))
            yield row
        if (rest := lines.row()).raw:
            rest.pairs = []
            yield rest


def _unreadable(line: bytes, problem: str) -> str:
    """Return what is wrong with a line of JSON, and what to do about it if that is known."""
    if b"\0" in line:
        return _NUL
    if problem.startswith("not UTF-8"):
        return f"{problem}; {_ENCODING_ADVICE}"
    return _RETURNS if _has_bare_returns(line) else problem


class CsvRows:
    """Rows of CSV, whose header names the fields.

    A row is bad if its bytes are not UTF-8, unless ``as_bytes`` keeps them as they are. So is one
    with a NUL byte, which no text has.
    """

    def __init__(
        self,
        source: Source,
        delimiter: str = ",",
        keep_empty: bool = False,
        as_bytes: bool = False,
        guarded: bool = False,
    ) -> None:
        csv.field_size_limit(ENTRY_BYTES_MAX)
        self._source = source
        self._lines = _Lines()
        self._error = ""
        """Why a line of the next row is not text."""
        self._keep_empty = keep_empty
        self._guarded = guarded
        self._as_bytes = as_bytes
        self._reader = csv.reader(self._texts(), delimiter=delimiter, strict=True)
        try:
            names = next(self._reader, [])
        except csv.Error as problem:
            self._error = self._error or self._reason(problem)
        if self._error:
            raise RequestError(f"{source.label}: line 1: {self._error}")
        self.header = self._lines.row()
        if source.is_guided and self.header.raw and not self.header.raw.endswith(b"\n"):
            raise RequestError(
                f"{source.label}: all of it is one header without a line end: is this its encoding?"
            )
        self.names = names = list(map(without_guard, names)) if guarded else names
        self._fields = [name.encode(**_TEXT) for name in names]
        self._id_at = names.index(ID_COLUMN) if ID_COLUMN in names else None
        self._json_at = names.index(FIELDS_COLUMN) if FIELDS_COLUMN in names else None

    def resume(self, line: int) -> None:
        self._lines.taken = line

    def _texts(self) -> Iterator[str]:
        kept, readline = self._lines.kept, self._source.readline
        while line := readline():
            kept.append(line)
            if line[:3] == _BOM and self._lines.taken == 0 and len(kept) == 1:
                line = line[3:]
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                text = line.decode(**_TEXT)
                if not self._as_bytes:
                    at = error.start + 1
                    advice = f"{_ENCODING_ADVICE}, or --encoding {BYTES}"
                    self._error = self._error or f"not UTF-8 at byte {at}; {advice}"
            if "\0" in text:
                self._error = _NUL
            yield text

    def _reason(self, problem: csv.Error) -> str:
        """Return what is wrong with the lines since the last row."""
        if "new-line character" in str(problem) and any(map(_has_bare_returns, self._lines.kept)):
            return _RETURNS
        return f"not CSV: {problem}"

    def __iter__(self) -> Iterator[Row]:
        lines, reader = self._lines, self._reader
        while True:
            cells: list[str] | None = None
            try:
                cells = next(reader, None)
            except csv.Error as problem:
                self._error = self._error or self._reason(problem)
            row = lines.row()
            if not row.raw:
                return
            if self._error:
                row.error, self._error = self._error, ""
            else:
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
        if self._guarded:
            cells = list(map(without_guard, cells))
        keep_empty, left_out = self._keep_empty, (self._id_at, self._json_at)
        if left_out == (None, None) and not keep_empty:  # most files: a fifth of an import's time
            try:
                return [
                    (name, cell.encode())
                    for name, cell in zip(self._fields, cells, strict=False)
                    if cell
                ]
            except UnicodeEncodeError:  # bytes that are not UTF-8
                pass
        return [
            (name, cell.encode(**_TEXT))
            for at, (name, cell) in enumerate(zip(self._fields, cells, strict=False))
            if (cell or keep_empty) and at not in left_out
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
    """Encodes entries as CSV with the columns ``names``; ``guards`` cells against formulas."""

    def __init__(self, names: Sequence[str], delimiter: str = ",", guards: bool = False) -> None:
        self.names = list(names)
        self._guards = guards
        self._order = {name.encode(**_TEXT): at for at, name in enumerate(self.names)}
        self._delimiter = delimiter
        titles = map(with_guard, self.names) if guards else self.names
        self.header = self._encode([[ID_COLUMN, *titles, FIELDS_COLUMN]])

    def page(self, entries: Sequence[AnyEntry]) -> bytes:
        return self._encode([self._row(entry) for entry in entries])

    def _row(self, entry: AnyEntry) -> list[str]:
        cells = [str(entry.id), *[""] * len(self.names), ""]
        before = -1
        for name, value in entry.pairs:
            at = self._order.get(name, -1)
            text = cell_text(value)
            if at <= before or not text:  # repeated, out of order, unknown, or not exact in a cell
                shown = dumps(fields_json(entry.pairs))
                return [str(entry.id), *[""] * len(self.names), shown]
            cells[at + 1] = with_guard(text) if self._guards else text
            before = at
        return cells

    def _encode(self, rows: Sequence[Sequence[str]]) -> bytes:
        text = io.StringIO(newline="")
        csv.writer(text, delimiter=self._delimiter, lineterminator="\n").writerows(rows)
        return text.getvalue().encode()


_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
"""What a spreadsheet takes as a formula, and the same after signs that mark it as text."""


def with_guard(text: str) -> str:
    """Return the text of a cell that a spreadsheet does not run; ``without_guard`` undoes it."""
    return f"'{text}" if _FORMULA.match(text) else text


def without_guard(text: str) -> str:
    """Return what ``with_guard`` was given."""
    return text[1:] if text[:1] == "'" and _FORMULA.match(text) else text


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
