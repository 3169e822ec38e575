"""Rows of JSON Lines and CSV: what an import reads and an export writes.

::

    JSON Lines   a line an entry, as json_values has it; or a flat object
    CSV          a header of field names; an empty cell: the entry lacks the field
                 kvstream:id       the column of IDs in what export writes
                 kvstream:fields   the fields as JSON, where the cells cannot hold them exactly

A row keeps its raw bytes, since positions in a source are counted in them. Nothing here knows a
store.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvstream.cli.json_values import (
    Pairs,
    Unreadable,
    dumps,
    entry_json,
    fields_json,
    loads_entry,
    loads_fields,
)
from kvstream.cli.sources import Source
from kvstream.options import ENTRY_BYTES_MAX
from kvstream.records import Entry

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
