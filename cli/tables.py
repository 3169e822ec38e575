"""The layout of tables, for people.

Numbers, IDs and times are never cut. If a terminal is too narrow, spare columns are left out, the
last one first, and a line beside the table names them. Then names are cut with an ellipsis and long
texts are wrapped; if that is not enough, each row becomes a block with a line for each column.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvstream.types.formatting import duration as duration
from kvstream.types.formatting import number as number
from kvstream.types.formatting import plural as plural
from kvstream.types.formatting import printable as printable
from kvstream.types.formatting import quote as quote
from kvstream.types.formatting import shorten as shorten
from kvstream.types.formatting import size as size
from kvstream.types.formatting import time_of as time_of
from kvstream.types.formatting import unix_ms as unix_ms

NAME_WIDTH_MIN = 8
"""Names are not cut shorter than this."""
NAME_WIDTH = 20
"""Names are not cut shorter than this as long as a spare column can be left out."""
WRAP_WIDTH_MIN = 24
"""Wrapping breaks a longer word; every 64-bit number fits."""
ID_WIDTH, TIME_WIDTH = 18, 24
"""Usual widths, kept so that the pages of a long table line up."""
_GAP = "  "
_WORD = re.compile(r"\s*\S+")


def plain(value: Any) -> str:
    """Return any value as text: the default of a column."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(value) if isinstance(value, bytes) else printable(str(value))


def or_dash(show: Callable[[Any], str]) -> Callable[[Any], str]:
    """Return the format that shows None as a dash, and other values as ``show`` does."""
    return lambda value: "-" if value is None else show(value)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, its key in a row, and its format."""

    title: str
    key: str
    show: Callable[[Any], str] = plain
    right: bool = False
    width: int = 0
    """Minimum width in characters."""
    wraps: bool = False
    """Its text may be wrapped."""
    shrinks: bool = False
    """Its text may be cut, as names are."""
    spare: bool = False
    """It may be left out; ``--json`` shows it."""


def name_column(title: str, key: str | None = None, show: Callable[[Any], str] = plain) -> Column:
    """Return a column of names."""
    return Column(title, key or title, show, shrinks=True)


def count_column(title: str, key: str | None = None) -> Column:
    """Return a column of numbers."""
    return Column(title, key or title, number, right=True)


def age_column(title: str, key: str) -> Column:
    """Return a column of durations in milliseconds."""
    return Column(title, key, duration, right=True)


def id_columns(title: str = "id", key: str = "id") -> tuple[Column, Column]:
    """Return a column of IDs and one of their times."""
    return (
        Column(title, key, plain, width=ID_WIDTH),
        Column("time", key, time_of, width=TIME_WIDTH, spare=True),
    )


# --- text in cells of a terminal ------------------------------------------------------------------


def cells(text: str) -> int:
    """Return the width of a text in terminal cells; a wide character takes two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # imported here: most tables are ASCII

    return cell_len(text)


def clip(text: str, width: int) -> str:
    """Return a text, cut to ``width`` cells with an ellipsis."""
    if cells(text) <= width:
        return text
    return next(_pieces(text, width - 1), "") + "…"


def fold(text: str, width: int) -> list[str]:
    """Wrap a text to ``width`` cells, at spaces and within longer words."""
    lines: list[str] = []
    line, taken = "", 0
    for word in _WORD.findall(text):
        wanted = cells(word)
        if taken + wanted > width:
            if line:
                lines.append(line)
            line, taken, word = "", 0, word.lstrip()
            *full, word = _pieces(word, width)
            lines += full
            wanted = cells(word)
        line, taken = line + word, taken + wanted
    return [*lines, line]


def _pieces(text: str, width: int) -> Iterator[str]:
    """Yield a text in pieces of ``width`` cells."""
    start, taken = 0, 0
    for at, char in enumerate(text):
        wanted = cells(char)
        if taken + wanted > width and at > start:
            yield text[start:at]
            start, taken = at, 0
        taken += wanted
    yield text[start:]


def _pad(text: str, width: int, right: bool) -> str:
    if not text.isascii():
        width -= cells(text) - len(text)
    return text.rjust(width) if right else text.ljust(width)


# --- layout ---------------------------------------------------------------------------------------


class Sheet(NamedTuple):
    """A table as lines."""

    head: list[str]
    """The titles; empty if each row is a block."""
    rows: list[list[str]]
    """The lines of each row."""
    left_out: Sequence[str] = ()
    """The titles of columns for which there is no room."""

    @property
    def width(self) -> int:
        return max((cells(line) for lines in (self.head, *self.rows) for line in lines), default=0)


def sheet(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None = None
) -> Sheet:
    """Lay out a table for a terminal of ``width`` cells; None: of any width."""
    shown = list(range(len(columns)))
    widths = _widths(columns, rows, NAME_WIDTH)
    while (fitted := _fit([widths[at] for at in shown], width)) is None:
        spare = next((at for at in reversed(shown) if columns[at].spare), None)
        if spare is None:
            break
        shown.remove(spare)
    if fitted is None:
        widths = _widths(columns, rows, NAME_WIDTH_MIN)
        fitted = _fit([widths[at] for at in shown], width)
    if fitted is None:
        return _blocks(columns, rows, width or 0)
    kept = [columns[at] for at in shown]
    head = _lines(kept, fitted, [column.title for column in kept])
    left_out = [column.title for at, column in enumerate(columns) if at not in shown]
    return Sheet(head, [_lines(kept, fitted, [row[at] for at in shown]) for row in rows], left_out)


def left_out_lines(titles: Sequence[str], width: int) -> list[str]:
    """Return the lines that name columns for which there is no room, if there are any."""
    if not titles:
        return []
    return fold(f"not shown: {', '.join(titles)} (widen the terminal, or use --json)", width)


class _Width(NamedTuple):
    """The minimum width of a column, and the width of its longest text."""

    least: int
    natural: int


def _widths(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], name_width: int
) -> list[_Width]:
    widths = []
    for at, column in enumerate(columns):
        title = cells(column.title)
        natural = max([title, column.width, *(cells(row[at]) for row in rows)])
        least = natural
        if column.shrinks:
            least = name_width
        elif column.wraps:
            words = (cells(word) for row in rows for word in row[at].split())
            least = min(WRAP_WIDTH_MIN, max(words, default=0))
        widths.append(_Width(min(natural, max(title, least)), natural))
    return widths


def _fit(widths: Sequence[_Width], room: int | None) -> list[int] | None:
    """Return the width of each column; None if they do not fit into ``room`` cells.

    Columns that can shrink share the remaining cells: the narrowest grows first.
    """
    if room is None:
        return [width.natural for width in widths]
    fitted = [width.least for width in widths]
    spare = room - sum(fitted) - len(_GAP) * (len(fitted) - 1)
    if spare < 0:
        return None
    growing = [at for at, width in enumerate(widths) if width.natural > width.least]
    while spare and growing:
        at = min(growing, key=fitted.__getitem__)
        fitted[at] += 1
        spare -= 1
        if fitted[at] == widths[at].natural:
            growing.remove(at)
    return fitted


def _lines(columns: Sequence[Column], widths: Sequence[int], texts: Sequence[str]) -> list[str]:
    """Return the lines of a row."""
    parts = [
        fold(text, width) if column.wraps and cells(text) > width else [clip(text, width)]
        for column, width, text in zip(columns, widths, texts, strict=True)
    ]
    return [
        _GAP.join(
            _pad(lines[at] if at < len(lines) else "", width, column.right)
            for column, width, lines in zip(columns, widths, parts, strict=True)
        ).rstrip()
        for at in range(max(map(len, parts)))
    ]


def block(titles: Sequence[str], texts: Sequence[str], width: int | None) -> list[str]:
    """Return a line for each title and text; a long text is wrapped."""
    indent = _indent(titles)
    room = None if width is None else width - indent
    lines = []
    for title, text in zip(titles, texts, strict=True):
        start = _pad(title, indent, right=False)
        if room is None or width is None or cells(text) <= room:
            lines.append((start + text).rstrip())
        elif room >= WRAP_WIDTH_MIN:
            first, *rest = fold(text, room)
            lines += [start + first, *(" " * indent + line for line in rest)]
        else:  # too narrow: put the text below its title
            lines.append(title)
            lines += [_GAP + line for line in fold(text, max(width - len(_GAP), WRAP_WIDTH_MIN))]
    return lines


def _indent(titles: Sequence[str]) -> int:
    return max(map(cells, titles), default=0) + len(_GAP)


def _blocks(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Sheet:
    """Return a block of lines for each row, separated by empty lines; names are cut."""
    titles = [column.title for column in columns]
    room = max(width - _indent(titles), NAME_WIDTH_MIN)
    blocks = []
    for row in rows:
        pairs = zip(columns, row, strict=True)
        texts = [clip(text, room) if column.shrinks else text for column, text in pairs]
        blocks.append([*block(titles, texts, width), ""])
    if blocks:
        blocks[-1].pop()
    return Sheet([], blocks)
