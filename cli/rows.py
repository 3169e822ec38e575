"""Rows of JSON Lines and CSV: what an import reads and an export writes.

::

    JSON Lines   a line an entry, as json_values has it; or a flat object
    CSV          a header of field names; an empty cell: the entry lacks the field
                 kvstream:id       the column of IDs in what export writes
                 kvstream:fields   the fields as JSON, where the cells cannot hold them exactly

A row keeps its raw bytes, since positions in a source are counted in them. Nothing here knows a
store.

Bytes and entries as JSON and back, without loss.

::

    bytes  := "text"                    when they are valid UTF-8
            | {"base64": "..."}         otherwise
    fields := {"field": bytes, ...}     when the names are text and none repeats
            | [[bytes, bytes], ...]     otherwise
    entry  := {"id": "ms-seq", "fields": fields}        fields null: the message is gone

Reading takes more than writing gives: numbers as they are spelled, true and false, nested values as
JSON text; null leaves the field out. It knows no file and no store.

Files and pipes as lines of bytes, and how far into them an import has come.

A ``Source`` never reads ahead of the lines that it has given out, so that a position in it is
exact; and it can tell that a pipe has nothing more for now. It knows no format and no store.
"""

import base64
import binascii
import csv
import io
import json
import os
import select
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Protocol

import xxhash

from kvstream.errors import RequestError
from kvstream.types.ids import StreamID
from kvstream.types.options import ENTRY_BYTES_MAX
from kvstream.types.records import AnyEntry, Entry

BASE64 = "base64"

Pairs = list[tuple[bytes, bytes]]

_MEMBERS = {"stream", "id", "fields", "idle_ms", "deliveries"}
"""What an object may hold beside its fields to be taken as an entry, not as a flat object."""


class Unreadable(ValueError):
    """A text that is no JSON, or no entry."""


class _Object(tuple[tuple[str, Any], ...]):
    """A JSON object: its pairs in order, repeated names included."""


class _Number(str):
    """A JSON number as it is spelled."""


# --- writing ------------------------------------------------------------------------------------


def bytes_json(value: bytes) -> str | dict[str, str]:
    """Return what stands for ``value`` in JSON."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {BASE64: base64.b64encode(value).decode("ascii")}


def fields_json(pairs: Sequence[tuple[bytes, bytes]]) -> Any:
    """Return what stands for the fields of an entry in JSON."""
    names = [bytes_json(name) for name, _ in pairs]
    values = [bytes_json(value) for _, value in pairs]
    if all(isinstance(name, str) for name in names) and len({*map(str, names)}) == len(names):
        return dict(zip(map(str, names), values, strict=True))
    return [list(pair) for pair in zip(names, values, strict=True)]


def entry_json(entry: AnyEntry) -> dict[str, Any]:
    """Return what stands for an entry in JSON."""
    shown: dict[str, Any] = {"id": str(entry.id), "fields": _fields_of(entry)}
    if entry.deliveries is not None:
        shown |= {"idle_ms": entry.idle_ms, "deliveries": entry.deliveries}
    return shown


def _fields_of(entry: AnyEntry) -> Any:
    if entry.fields is None:
        return None
    if type(entry.fields) is dict:
        try:  # text alone, as nearly always: a third of the time
            return {name.decode(): value.decode() for name, value in entry.fields.items()}
        except UnicodeDecodeError:
            pass
    return fields_json(entry.pairs)


def jsonable(value: Any) -> Any:
    """Return what stands for any value of the public API in JSON."""
    if isinstance(value, AnyEntry):
        return entry_json(value)
    if isinstance(value, StreamID):
        return str(value)
    if isinstance(value, bytes):
        return bytes_json(value)
    if isinstance(value, Enum):
        return value.name.lower()
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: jsonable(getattr(value, field.name)) for field in dataclass_fields(value)
        }
    if isinstance(value, Mapping):
        return _mapping(value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return jsonable(value._asdict())
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return value


def _mapping(value: Mapping[Any, Any]) -> Any:
    names = [jsonable(name) for name in value]
    values = [jsonable(item) for item in value.values()]
    if all(isinstance(name, str) for name in names):
        return dict(zip(names, values, strict=True))
    return [list(pair) for pair in zip(names, values, strict=True)]


def dumps(value: Any, ascii_only: bool = False) -> str:
    """Return a value that ``jsonable`` made as one line."""
    return (_ASCII_ENCODER if ascii_only else _ENCODER).encode(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False)
_ASCII_ENCODER = json.JSONEncoder()


# --- reading ------------------------------------------------------------------------------------


def loads_entry(line: bytes) -> tuple[str | None, Pairs]:
    """Return the ID, None where there is none, and the fields of one line of JSON.

    The line is ``{"id": ..., "fields": ...}`` with the ID optional, or else a flat object whose
    names are fields. Raises Unreadable.
    """
    value = _loads(line)
    if not isinstance(value, _Object):
        raise Unreadable("a line must be a JSON object")
    members = dict(value)
    if "fields" in members and members.keys() <= _MEMBERS:
        fields = members["fields"]
        if isinstance(fields, _Object | list):
            return _id_text(members.get("id")), _pairs(fields)
    return None, _pairs(value)


def _id_text(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise Unreadable("the id must be a string")
    return str(value)


def loads_fields(text: str) -> Pairs:
    """Return the fields that a JSON text stands for."""
    return _pairs(_loads(text.encode("utf-8", "surrogateescape")))


def _loads(text: bytes) -> Any:
    try:
        return _DECODER.decode(text.decode())
    except UnicodeDecodeError as error:
        raise Unreadable(f"not UTF-8 at byte {error.start + 1}") from None
    except RecursionError:
        raise Unreadable("nested too deeply") from None
    except json.JSONDecodeError as error:
        raise Unreadable(f"not JSON at character {error.pos + 1}: {error.msg}") from None
    except ValueError as error:
        raise Unreadable(str(error)) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_Object,
    parse_int=_Number,
    parse_float=_Number,
    parse_constant=_refuse_constant,
)


def _pairs(fields: Any) -> Pairs:
    """Return the fields of a decoded object, or of a list of pairs; those of null are left out."""
    if isinstance(fields, list):
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in fields):
            raise Unreadable("a list of fields must be made of [field, value] pairs")
    elif not isinstance(fields, _Object):
        raise Unreadable("fields must be an object or a list of [field, value] pairs")
    pairs = [(_bytes(name), _bytes(value)) for name, value in fields if value is not None]
    if not pairs:
        raise Unreadable("no fields")
    return pairs


def _bytes(value: Any) -> bytes:
    if not isinstance(value, str):
        if isinstance(value, _Object) and len(value) == 1 and value[0][0] == BASE64:
            return _unbase64(value[0][1])
        value = _compact(value)
    text: str = value
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Unreadable("text with half a surrogate pair") from None


def _unbase64(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise Unreadable('{"base64": ...} does not hold base64') from None


def _compact(value: Any) -> str:
    """Return a decoded value as JSON text, its numbers spelled as they were."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, _Object):
        inner = (f"{json.dumps(name, ensure_ascii=False)}:{_compact(item)}" for name, item in value)
        return "{" + ",".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_compact, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


CHUNK = 256 * 1024
LINE_BYTES_MAX = 1 << 30
"""Longest line: an entry of the greatest size, with room for its escapes."""


class Source:
    """A file or a pipe, line by line."""

    def __init__(self, stream: BinaryIO, label: str, identity: bytes | None = None) -> None:
        self.label = label
        """What messages call it."""
        self.identity = identity
        """What a later run knows it by; None: it cannot be known again."""
        self.size: int | None = None
        """Its bytes, where they can be known."""
        self._read = _reader(stream)
        self._descriptor = _pollable(stream)
        self._buffer = b""
        self._at = 0
        if self._descriptor is None:
            self.size = _size(stream)

    def readline(self) -> bytes:
        """Return the next line with its newline; the last may lack it; empty at the end."""
        parts: list[bytes] = []
        length = 0
        while (end := self._buffer.find(b"\n", self._at) + 1) == 0:
            parts.append(self._buffer[self._at :])
            length += len(parts[-1])
            if length > LINE_BYTES_MAX:
                raise RequestError(f"{self.label}: a line of more than {LINE_BYTES_MAX:,} bytes")
            self._buffer, self._at = self._read(CHUNK), 0
            if not self._buffer:
                return b"".join(parts)
        parts.append(self._buffer[self._at : end])
        self._at = end
        return b"".join(parts)

    def read(self, length: int) -> bytes:
        """Return the next bytes, ``length`` of them at most; empty at the end."""
        if self._at == len(self._buffer):
            self._buffer, self._at = self._read(CHUNK), 0
        part = self._buffer[self._at : self._at + length]
        self._at += len(part)
        return part

    def pauses(self) -> bool:
        """Tell whether the next line is yet to come through the pipe."""
        if self._descriptor is None or self._buffer.find(b"\n", self._at) >= 0:
            return False
        readable, _, _ = select.select([self._descriptor], [], [], 0)
        return not readable


def _reader(stream: BinaryIO) -> Callable[[int], bytes]:
    """Return what reads from ``stream`` without waiting for more than there is."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return stream.read
    return lambda length: os.read(descriptor, length)


def _pollable(stream: BinaryIO) -> int | None:
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None
    return None if stat.S_ISREG(os.fstat(descriptor).st_mode) else descriptor


def _size(stream: BinaryIO) -> int | None:
    try:
        return os.fstat(stream.fileno()).st_size
    except (OSError, ValueError, AttributeError):
        return None


def identity_of(path: Path | None, name: bytes | None) -> bytes | None:
    """Return what a source is known by: the name given, or else the path of a regular file."""
    if name is not None:
        return b"name:" + name
    if path is None or not path.is_file():
        return None
    return b"file:" + os.fsencode(path.resolve())


class Position:
    """How far a source has been worked off, and the digest of all bytes up to there."""

    def __init__(self) -> None:
        self.offset = 0
        self.line = 0
        """Lines worked off."""
        self._hash = xxhash.xxh3_128()

    def copy(self) -> "Position":
        """Return the same position, to go on from while this one stays."""
        other = Position()
        other.offset, other.line, other._hash = self.offset, self.line, self._hash.copy()
        return other

    def advance(self, raw: bytes, lines: int) -> None:
        """Count ``raw`` as worked off."""
        self._hash.update(raw)
        self.offset += len(raw)
        self.line += lines

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    def skip(self, source: Source, offset: int, line: int) -> None:
        """Read on to where an earlier run has come to; less where the source ends before."""
        while self.offset < offset and (part := source.read(min(CHUNK, offset - self.offset))):
            self.advance(part, 0)
        self.line = line


ID_COLUMN = "kvstream:id"
FIELDS_COLUMN = "kvstream:fields"
COLUMNS_MAX = 256
"""Columns of a CSV file; fields beyond go into ``kvstream:fields``."""

_BOM = b"\xef\xbb\xbf"
_TEXT = {"encoding": "utf-8", "errors": "surrogateescape"}


@dataclass(slots=True)
class Row:
    """One row of a source: an entry to be, or why it is none."""

    line: int
    """Its first line, from 1."""
    raw: bytes
    """All bytes of it, with blank lines before it."""
    lines: int
    """Lines in ``raw``."""
    eid: str | None = None
    pairs: Pairs | None = None
    """None for a bad row; empty where only blank lines are left."""
    error: str = ""


class Rows(Protocol):
    """Rows of a source in one format."""

    @property
    def header(self) -> Row:
        """What stands before the first row."""
        ...

    def resume(self, line: int) -> None:
        """Count on from ``line`` lines, which an earlier run has worked off."""
        ...

    def __iter__(self) -> Iterator[Row]: ...


class _Lines:
    """Lines of a source, kept until their row is complete."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._kept: list[bytes] = []
        self.taken = 0
        """Lines given out in all."""

    def next(self) -> bytes:
        line = self._source.readline()
        if line:
            self._kept.append(line)
            self.taken += 1
        return line

    def row(self) -> Row:
        """Return a row of the lines kept since the last one."""
        raw, lines = b"".join(self._kept), len(self._kept)
        self._kept.clear()
        return Row(self.taken - lines + 1, raw, lines)


class JsonRows:
    """JSON Lines."""

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
    """CSV, whose first row names the fields."""

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
            row.pairs, row.error = None, "no fields: every cell is empty"

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
    """Entries in one format."""

    @property
    def header(self) -> bytes:
        """What stands before the first entry."""
        ...

    def page(self, entries: Sequence[Entry]) -> bytes:
        """Return the lines of entries."""
        ...


class JsonWriter:
    """Entries as JSON Lines."""

    header = b""

    def page(self, entries: Sequence[Entry]) -> bytes:
        return "".join(dumps(entry_json(entry)) + "\n" for entry in entries).encode()


class CsvWriter:
    """Entries as CSV with the columns ``names``."""

    def __init__(self, names: Sequence[str], delimiter: str = ",") -> None:
        self.names = list(names)
        self._order = {name.encode(**_TEXT): at for at, name in enumerate(self.names)}
        self._delimiter = delimiter
        self.header = self._encoded([[ID_COLUMN, *self.names, FIELDS_COLUMN]])

    def page(self, entries: Sequence[Entry]) -> bytes:
        return self._encoded([self._row(entry) for entry in entries])

    def _row(self, entry: Entry) -> list[str]:
        cells = [str(entry.id), *[""] * len(self.names), ""]
        before = -1
        for name, value in entry.pairs:
            at = self._order.get(name, -1)
            text = cell_text(value)
            if at <= before or not text:  # repeated, out of order, unknown, or not for a cell
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
    """Return ``value`` as a cell holds it; empty where a cell cannot hold it exactly."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return ""
    return "" if "\r" in text or "\0" in text else text


def column_names(entries: Iterator[Entry]) -> list[str]:
    """Return the fields that entries have, in the order they are met."""
    names: dict[str, None] = {}
    for entry in entries:
        for name, _ in entry.pairs:
            text = cell_text(name)
            if text and text not in (ID_COLUMN, FIELDS_COLUMN):
                names[text] = None
        if len(names) >= COLUMNS_MAX:
            break
    return list(names)[:COLUMNS_MAX]
