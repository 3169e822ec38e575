"""Tables as lines of text: how wide each column is, and what gives way where there is no room.

Numbers, IDs and times are never cut. Where a terminal is too narrow, columns that others tell as
well are left out first, then names are cut with an ellipsis and long texts are wrapped; where that
is not enough, each row becomes a block with a line for each column. It writes nothing.

What people see: bytes, times, durations and sizes as text that any terminal can show.

Nothing here can be read back: ``json_values`` is for programs.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kvstream.types.ids import StreamID

TIME_MS_MIN = 100_000_000_000
"""IDs below (March 1973) are counters given by hand, not times."""
TIME_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999."""

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))
_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")


def printable(value: bytes | str) -> str:
    """Return one line of text in which whatever is not printable stands escaped.

    Bytes are taken as UTF-8; text may hold surrogate escapes. Control codes are escaped too: what
    lies in a store must not drive the terminal.
    """
    raw = value if isinstance(value, bytes) else _encoded(value)
    text = raw.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def quoted(value: bytes | str) -> str:
    """Return a printable name in quotes."""
    return f"'{printable(value)}'"


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a surrogate pair that escapes no byte
        return text.encode("utf-8", "backslashreplace")


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def shortened(text: str, width: int | None) -> str:
    """Return ``text`` in ``width`` characters at most; None: whole."""
    if width is None or len(text) <= width:
        return text
    return text[: max(width - 1, 0)] + "…"


def time_of(moment: StreamID | int | None) -> str:
    """Return the UTC time of an ID or of Unix milliseconds; empty where it is no time."""
    if moment is None:
        return ""
    ms = moment.ms if isinstance(moment, StreamID) else moment
    if not TIME_MS_MIN <= ms <= TIME_MS_MAX:
        return ""
    stamp = datetime.fromtimestamp(ms // 1000, UTC)
    return f"{stamp:%Y-%m-%d %H:%M:%S}.{ms % 1000:03d}Z"


def duration(ms: int | None) -> str:
    """Return a number of milliseconds as people say it: ``850 ms``, ``4.2 s``, ``3h 20m``."""
    if ms is None or ms < 0:
        return "never"
    if ms < 1000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    parts = []
    for unit, length in _UNITS:
        count, ms = divmod(ms, length)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def size(count: int) -> str:
    """Return a number of bytes in decimal units."""
    number = float(count)
    for unit in _SIZES:
        if number < 1000 or unit == _SIZES[-1]:
            break
        number /= 1000
    return f"{count} B" if unit == "B" else f"{number:.1f} {unit}"


def number(count: int | None) -> str:
    """Return a count with its thousands apart; ``unknown`` for None."""
    return "unknown" if count is None else f"{count:,}"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Return ``1 entry``, ``2 entries``."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


NAME_WIDTH_MIN = 8
"""A shorter part of a name tells nothing."""
WRAP_WIDTH_MIN = 24
"""A word of a wrapped text is broken where it is longer: no number of 64 bits is."""
ID_WIDTH, TIME_WIDTH = 18, 24
"""Usual widths, held so that the pages of a long table line up."""
_GAP = "  "
_WORD = re.compile(r"\s*\S+")


def plain(value: Any) -> str:
    """Return a value as people see it where its column says nothing else."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(value) if isinstance(value, bytes) else printable(str(value))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, the member of a row that it shows, and how."""

    title: str
    key: str
    show: Callable[[Any], str] = plain
    right: bool = False
    width: int = 0
    """The least width in characters."""
    wraps: bool = False
    """Its texts may take several lines."""
    shrinks: bool = False
    """Its texts may be cut: they are names."""
    spare: bool = False
    """It may be left out: another column tells the same."""


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
    """Return how many cells of a terminal a text takes: two for a wide character."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # here, since most tables are ASCII

    return cell_len(text)


def clipped(text: str, width: int) -> str:
    """Return a text in ``width`` cells at most; an ellipsis says that it was longer."""
    if cells(text) <= width:
        return text
    return next(_pieces(text, width - 1), "") + "…"


def folded(text: str, width: int) -> list[str]:
    """Return a text in lines of ``width`` cells, broken at spaces, and within longer words."""
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


def _padded(text: str, width: int, right: bool) -> str:
    room = " " * (width - cells(text))
    return room + text if right else text + room


# --- layout ---------------------------------------------------------------------------------------


class Sheet(NamedTuple):
    """A table as lines."""

    head: list[str]
    """The titles; none where each row is a block."""
    rows: list[list[str]]
    """The lines of each row."""

    @property
    def width(self) -> int:
        return max((cells(line) for lines in (self.head, *self.rows) for line in lines), default=0)


def sheet(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None = None
) -> Sheet:
    """Lay out the texts of a table for a terminal of ``width`` cells; None: without any bound."""
    widths = _widths(columns, rows)
    shown = list(range(len(columns)))
    while (fitted := _fitted([widths[at] for at in shown], width)) is None:
        spare = next((at for at in shown if columns[at].spare), None)
        if spare is None:
            return _blocks(columns, rows, width or 0)
        shown.remove(spare)
    kept = [columns[at] for at in shown]
    head = _lines(kept, fitted, [column.title for column in kept])
    return Sheet(head, [_lines(kept, fitted, [row[at] for at in shown]) for row in rows])


class _Width(NamedTuple):
    """How wide a column must be, and how wide it would be with room enough."""

    least: int
    natural: int


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[_Width]:
    found = []
    for at, column in enumerate(columns):
        title = cells(column.title)
        natural = max([title, column.width, *(cells(row[at]) for row in rows)])
        least = natural
        if column.shrinks:
            least = NAME_WIDTH_MIN
        elif column.wraps:
            words = (cells(word) for row in rows for word in row[at].split())
            least = min(WRAP_WIDTH_MIN, max(words, default=0))
        found.append(_Width(min(natural, max(title, least)), natural))
    return found


def _fitted(widths: Sequence[_Width], room: int | None) -> list[int] | None:
    """Return the width of each column in a room, None where they do not fit.

    What can give way shares what the others leave: the narrowest grows first.
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
        folded(text, width) if column.wraps and cells(text) > width else [clipped(text, width)]
        for column, width, text in zip(columns, widths, texts, strict=True)
    ]
    return [
        _GAP.join(
            _padded(lines[at] if at < len(lines) else "", width, column.right)
            for column, width, lines in zip(columns, widths, parts, strict=True)
        ).rstrip()
        for at in range(max(map(len, parts)))
    ]


def block(titles: Sequence[str], texts: Sequence[str], width: int | None) -> list[str]:
    """Return a line for each text, its title before it; a long text takes more of them."""
    indent = _indent(titles)
    room = None if width is None else width - indent
    lines = []
    for title, text in zip(titles, texts, strict=True):
        start = _padded(title, indent, right=False)
        if room is None or width is None or cells(text) <= room:
            lines.append((start + text).rstrip())
        elif room >= WRAP_WIDTH_MIN:
            first, *rest = folded(text, room)
            lines += [start + first, *(" " * indent + line for line in rest)]
        else:  # below its title, where there is more room
            lines.append(title)
            lines += [_GAP + line for line in folded(text, max(width - len(_GAP), WRAP_WIDTH_MIN))]
    return lines


def _indent(titles: Sequence[str]) -> int:
    return max(map(cells, titles), default=0) + len(_GAP)


def _blocks(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Sheet:
    """Return a block for each row, with an empty line behind all but the last; names are cut."""
    titles = [column.title for column in columns]
    room = max(width - _indent(titles), NAME_WIDTH_MIN)
    blocks = []
    for row in rows:
        pairs = zip(columns, row, strict=True)
        texts = [clipped(text, room) if column.shrinks else text for column, text in pairs]
        blocks.append([*block(titles, texts, width), ""])
    if blocks:
        blocks[-1].pop()
    return Sheet([], blocks)
