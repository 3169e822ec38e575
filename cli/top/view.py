"""How ``top`` shows a frame: live on a terminal, as a table, or in JSON. It asks nobody."""

import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.output import Output
from kvstream.cli.rows import jsonable
from kvstream.cli.tables import (
    Column,
    clipped,
    duration,
    folded,
    name_column,
    number,
    plain,
    plural,
    printable,
    sheet,
    size,
)
from kvstream.cli.top.frames import Frame, Line, lines_of

if TYPE_CHECKING:
    from rich.text import Text


_FOOT_LINES = 3
"""What stands below the table: an empty line, and the foot, which a narrow terminal folds."""


def _count(value: int | None) -> str:
    return "-" if value is None else number(value)


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _size(value: int | None) -> str:
    return "-" if value is None else size(value)


def _age(value: int | None) -> str:
    return "-" if value is None else duration(value)


COLUMNS = (
    name_column("stream"),
    Column("length", "length", number, right=True),
    Column("added/s", "rate", _rate, right=True, spare=True),
    Column("memory", "memory", _size, right=True, spare=True),
    name_column("group"),
    Column("consumers", "consumers", _count, right=True, spare=True),
    Column("lag", "lag", lambda value: "unknown" if value is None else _count(value), right=True),
    Column("pending", "pending", _count, right=True),
    Column("oldest", "oldest_ms", _age, right=True),
)
_OF_GROUP = ("consumers", "lag", "pending", "oldest_ms")
_NO_GROUP = dict.fromkeys(("group", *_OF_GROUP), "")


def _row(line: Line) -> dict[str, Any]:
    stream, group = line.stream, line.group
    row = {
        "stream": stream.name,
        "length": stream.length,
        "rate": stream.rate,
        "memory": stream.memory,
        **_NO_GROUP,
    }
    if group is not None:
        row |= {"group": group.name} | {key: getattr(group, key) for key in _OF_GROUP}
    return row


def _cells(line: Line) -> list[str]:
    row = _row(line)
    return [
        "-" if row[column.key] == "" and column.key in _NO_GROUP else column.show(row[column.key])
        for column in COLUMNS
    ]


def head(frame: Frame, place_width: int | None = None) -> list[str]:
    """Return the lines above the table: where, how busy, how far behind."""
    server, place = frame.server, printable(frame.place)
    if place_width is not None:
        place = clipped(place, place_width)
    if server is None:
        lines = [f"{place}   {plural(frame.keys, 'key')}"]
    else:
        lines = [
            f"{server.version} at {place}   up {duration(server.uptime_s * 1000)}",
            f"{plural(server.clients, 'client')}, {number(server.blocked)} blocked   "
            f"{_rate(server.command_rate)} commands/s   "
            f"in {size(round(server.in_rate))}/s, out {size(round(server.out_rate))}/s   "
            f"memory {size(server.memory)}   {plural(frame.keys, 'key')}",
        ]
    groups = [group for stream in frame.streams for group in stream.groups]
    oldest = max((group.oldest_ms or 0 for group in groups), default=0)
    lines.append(
        f"{plural(len(frame.streams), 'stream')}, {plural(len(groups), 'group')}   "
        f"lag {number(sum(group.lag or 0 for group in groups))}   "
        f"{number(sum(group.pending for group in groups))} pending"
        + (f", the oldest for {duration(oldest)}" if oldest else "")
    )
    return lines + _missing(frame)


def _missing(frame: Frame) -> list[str]:
    """Return what the frame does not show, where that is so."""
    told = []
    if frame.left_out:
        told.append(f"{plural(frame.left_out, 'more stream')} (see --streams)")
    groups = sum(stream.groups_left_out for stream in frame.streams)
    if groups:
        told.append(plural(groups, "more group"))
    if not frame.whole:
        told.append("the keys are still being searched for streams")
    return [f"not shown: {'; '.join(told)}"] if told else []


def live(frame: Frame, sort: str, width: int, height: int, trouble: str = "") -> "Text":
    """Return a frame for a terminal of that size; ``trouble``: why there is no newer one."""
    from rich.text import Text  # here, since whoever wants JSON needs no rich

    def styled(lines: Iterable[str], style: str = "") -> list[Text]:
        return [Text(line, style) for line in lines]

    lines = lines_of(frame, sort)
    table = sheet(COLUMNS, [_cells(line) for line in lines[:height]], width)
    above = styled(part for line in head(frame, width // 2) for part in folded(line, width))
    above += styled(folded(trouble, width) if trouble else [], "bold red")
    above += styled(table.head, "bold") + styled(["─" * table.width] if table.head else [])
    shown = _fitting(table.rows, height - len(above) - _FOOT_LINES)
    left = len(lines) - len(shown)
    rest = f"{plural(left, 'more line')}   " if left else ""
    foot = f"{rest}{time.strftime('%H:%M:%S')}   by {sort}   Ctrl-C to leave"
    below = styled(["", *folded(foot, width)], "dim")
    return Text("\n").join(above + [each for row in shown for each in styled(row)] + below)


def _fitting(rows: Sequence[list[str]], room: int) -> list[list[str]]:
    """Return the first rows that have room in so many lines, one at least."""
    taken = list(accumulate(len(row) for row in rows))
    return list(rows[: max(1, bisect_right(taken, room))])


def write(frame: Frame, sort: str, out: Output) -> None:
    """Write a frame as text, or as one JSON object."""
    if out.json:
        out.result("", **_object(frame))
        return
    for text in head(frame):
        click.echo(text)
    lines = lines_of(frame, sort)
    if lines:
        out.table(_TEXT_COLUMNS, [dict(zip(_KEYS, _cells(line), strict=True)) for line in lines])


_TEXT_COLUMNS: Sequence[Column] = [replace(column, show=plain) for column in COLUMNS]
_KEYS = [column.key for column in COLUMNS]


def _object(frame: Frame) -> dict[str, Any]:
    told: dict[str, Any] = jsonable(frame)
    del told["taken"]
    return {"time_ms": time.time_ns() // 1_000_000, **told}
