"""The view of ``top``: shows a sample live on a terminal, as a table, or as JSON."""

import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.json_values import jsonable
from kvstream.cli.output import Output
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
from kvstream.cli.top.samples import Line, Sample, lines_of

if TYPE_CHECKING:
    from rich.text import Text


_FOOT_LINES = 3
"""Lines below the table: an empty one, and the footer, which may be wrapped."""


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


def head(sample: Sample, place_width: int | None = None) -> list[str]:
    """Return the lines above the table: the server, its load, and the lag."""
    server, place = sample.server, printable(sample.place)
    if place_width is not None:
        place = clipped(place, place_width)
    if server is None:
        lines = [f"{place}   {plural(sample.keys, 'key')}"]
    else:
        lines = [
            f"{server.version} at {place}   up {duration(server.uptime_s * 1000)}",
            f"{plural(server.clients, 'client')}, {number(server.blocked)} blocked   "
            f"{_rate(server.command_rate)} commands/s   "
            f"in {size(round(server.in_rate))}/s, out {size(round(server.out_rate))}/s   "
            f"memory {size(server.memory)}   {plural(sample.keys, 'key')}",
        ]
    groups = [group for stream in sample.streams for group in stream.groups]
    oldest = max((group.oldest_ms or 0 for group in groups), default=0)
    lines.append(
        f"{plural(len(sample.streams), 'stream')}, {plural(len(groups), 'group')}   "
        f"lag {number(sum(group.lag or 0 for group in groups))}   "
        f"{number(sum(group.pending for group in groups))} pending"
        + (f", the oldest for {duration(oldest)}" if oldest else "")
    )
    return lines + _missing(sample)


def _missing(sample: Sample) -> list[str]:
    """Return a line about what the sample does not show, if anything."""
    parts = []
    if sample.left_out:
        parts.append(f"{plural(sample.left_out, 'more stream')} (see --streams)")
    groups = sum(stream.groups_left_out for stream in sample.streams)
    if groups:
        parts.append(plural(groups, "more group"))
    if not sample.whole:
        parts.append("keys are still being scanned for streams")
    return [f"not shown: {'; '.join(parts)}"] if parts else []


def live(sample: Sample, sort: str, width: int, height: int, problem: str = "") -> "Text":
    """Return a sample for a terminal of this size; ``problem``: why there is no newer one."""
    from rich.text import Text  # imported here: JSON does not need it

    def styled(lines: Iterable[str], style: str = "") -> list[Text]:
        return [Text(line, style) for line in lines]

    lines = lines_of(sample, sort)
    table = sheet(COLUMNS, [_cells(line) for line in lines[:height]], width)
    above = styled(part for line in head(sample, width // 2) for part in folded(line, width))
    above += styled(folded(problem, width) if problem else [], "bold red")
    above += styled(table.head, "bold") + styled(["─" * table.width] if table.head else [])
    shown = _fitting(table.rows, height - len(above) - _FOOT_LINES)
    left = len(lines) - len(shown)
    rest = f"{plural(left, 'more line')}   " if left else ""
    foot = f"{rest}{time.strftime('%H:%M:%S')}   by {sort}   Ctrl-C to quit"
    below = styled(["", *folded(foot, width)], "dim")
    return Text("\n").join(above + [each for row in shown for each in styled(row)] + below)


def _fitting(rows: Sequence[list[str]], room: int) -> list[list[str]]:
    """Return the first rows that fit into ``room`` lines, at least one."""
    taken = list(accumulate(len(row) for row in rows))
    return list(rows[: max(1, bisect_right(taken, room))])


def write(sample: Sample, sort: str, out: Output) -> None:
    """Write a sample as text, or as one JSON object."""
    if out.json:
        out.result("", **_object(sample))
        return
    for text in head(sample):
        click.echo(text)
    lines = lines_of(sample, sort)
    if lines:
        out.table(_TEXT_COLUMNS, [dict(zip(_KEYS, _cells(line), strict=True)) for line in lines])


_TEXT_COLUMNS: Sequence[Column] = [replace(column, show=plain) for column in COLUMNS]
_KEYS = [column.key for column in COLUMNS]


def _object(sample: Sample) -> dict[str, Any]:
    values: dict[str, Any] = jsonable(sample)
    del values["taken"]
    return {"time_ms": time.time_ns() // 1_000_000, **values}
