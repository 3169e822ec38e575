"""How ``top`` shows a frame: live on a terminal, as a table, or in JSON. It asks nobody."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.json_values import jsonable
from kvstream.cli.output import Column, Output, plain
from kvstream.cli.text import duration, number, plural, printable, shortened, size
from kvstream.cli.top_frames import Frame, Line, lines_of

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType

NAME_WIDTH_MAX = 40
"""Characters of a name on a terminal."""
_FRAME_LINES = 2
"""What a table takes beside its rows: titles and a rule."""


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
    Column("stream", "stream"),
    Column("length", "length", number, right=True),
    Column("added/s", "rate", _rate, right=True),
    Column("memory", "memory", _size, right=True),
    Column("group", "group"),
    Column("consumers", "consumers", _count, right=True),
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


def head(frame: Frame) -> list[str]:
    """Return the lines above the table: where, how busy, how far behind."""
    server = frame.server
    if server is None:
        lines = [f"{printable(frame.place)}   {plural(frame.keys, 'key')}"]
    else:
        lines = [
            f"{server.version} at {printable(frame.place)}   up {duration(server.uptime_s * 1000)}",
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


def live(frame: Frame, sort: str, height: int, trouble: str = "") -> "RenderableType":
    """Return a frame for a terminal of so many lines; ``trouble``: why there is no newer one."""
    from rich.box import SIMPLE_HEAD  # here, since whoever wants JSON needs no rich
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    top = [*head(frame), *filter(None, [trouble])]
    lines = lines_of(frame, sort)
    room = max(1, height - len(top) - _FRAME_LINES - 2)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for column in COLUMNS:
        justify: JustifyMethod = "right" if column.right else "left"
        # Where there is too little room names are cut, and numbers stay whole.
        table.add_column(Text(column.title), justify=justify, no_wrap=column.right)
    for line in lines[:room]:
        cells = (shortened(cell, NAME_WIDTH_MAX) for cell in _cells(line))
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells))
    clock = time.strftime("%H:%M:%S")
    rest = f"{plural(len(lines) - room, 'more line')}   " if len(lines) > room else ""
    foot = Text(f"{rest}{clock}   by {sort}   Ctrl-C to leave", style="dim", no_wrap=True)
    heading = [Text(text, no_wrap=True, overflow="ellipsis") for text in top]
    if trouble:
        heading[-1].stylize("bold red")
    return Group(*heading, table, foot)


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


_TEXT_COLUMNS: Sequence[Column] = [
    Column(column.title, column.key, plain, column.right) for column in COLUMNS
]
_KEYS = [column.key for column in COLUMNS]


def _object(frame: Frame) -> dict[str, Any]:
    told: dict[str, Any] = jsonable(frame)
    del told["taken"]
    return {"time_ms": time.time_ns() // 1_000_000, **told}
