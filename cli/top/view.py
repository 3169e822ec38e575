"""The view of ``top``: shows a sample live on a terminal, as a table, or as JSON."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.json_values import jsonable
from kvstream.cli.output import Output
from kvstream.cli.tables import (
    Column,
    block,
    count_column,
    duration,
    fold,
    left_out_lines,
    name_column,
    number,
    or_dash,
    plain,
    plural,
    printable,
    sheet,
    size,
)
from kvstream.cli.top.samples import Line, ReplicationSample, Sample, WorkersSample, lines_of
from kvstream.cli.top.screen import HELP, Screen
from kvstream.types.clock import now_ms

if TYPE_CHECKING:
    from rich.text import Text


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


_AGE = or_dash(duration)
_LENGTH = count_column("length")
_ADDED = Column("added/s", "rate", _rate, right=True, spare=True)
_MEMORY = Column("memory", "memory", or_dash(size), right=True, spare=True)
_MEMBERS = Column("consumers", "consumers", or_dash(number), right=True, spare=True)
_OLDEST = Column("oldest", "oldest_ms", _AGE, right=True)
COLUMNS = (
    *(name_column("stream"), _LENGTH, _ADDED, _MEMORY, name_column("group"), _MEMBERS),
    count_column("lag"),
    Column("pending", "pending", or_dash(number), right=True),
    _OLDEST,
)
QUEUE_COLUMNS = (
    name_column("stream"),
    name_column("group"),
    *map(count_column, ("ready", "leased", "waiting", "dead")),
    _OLDEST,
    Column("delayed", "delayed", number, right=True, spare=True),
    Column("next", "next_ms", _AGE, right=True, spare=True),
    Column("held", "held", number, right=True, spare=True),
    Column("done/s", "done_rate", _rate, right=True, spare=True),
    *(_ADDED, replace(_LENGTH, spare=True), _MEMORY, _MEMBERS),
)
"""The columns if any stream is used as a queue; the spare ones are last, and go first."""
_OF_GROUP = ("consumers", "lag", "ready", "pending", "oldest_ms")
_OF_QUEUE = ("leased", "waiting", "next_ms", "held", "dead", "done_rate")
_NO_GROUP = dict.fromkeys(("group", *_OF_GROUP, *_OF_QUEUE), "")


def columns_of(sample: Sample) -> Sequence[Column]:
    """Return the columns of the table of a sample."""
    return QUEUE_COLUMNS if sample.has_queues else COLUMNS


def _row(line: Line) -> dict[str, Any]:
    stream, group = line.stream, line.group
    row = {
        "stream": stream.name,
        "length": stream.length,
        "rate": stream.rate,
        "memory": stream.memory,
        "delayed": stream.delayed,
        **_NO_GROUP,
    }
    if group is not None:
        row |= {"group": group.name} | {key: getattr(group, key) for key in _OF_GROUP}
        row["leased"] = group.pending
        if group.queue is not None:
            row |= {key: getattr(group.queue, key) for key in _OF_QUEUE}
            row["oldest_ms"] = group.queue.oldest_age_ms
    return row


def _cells(line: Line, columns: Sequence[Column]) -> list[str]:
    row = _row(line)
    return [
        "-" if row[column.key] == "" and column.key in _NO_GROUP else column.show(row[column.key])
        for column in columns
    ]


def head(sample: Sample, width: int | None = None) -> list[str]:
    """Return the lines above the table: the server, its load, and the lag."""
    server, keys = sample.server, plural(sample.keys, "key")
    if server is None:
        lines = [f"{printable(sample.place)}   {keys}"]
    else:
        uptime = f"up {duration(server.uptime_s * 1000)}"
        lines = [
            f"{server.version} at {printable(sample.place)}   {uptime}",
            f"{plural(server.clients, 'client')}, {number(server.blocked)} blocked   "
            f"{_rate(server.command_rate)} commands/s   "
            f"in {size(round(server.in_rate))}/s, out {size(round(server.out_rate))}/s   "
            f"memory {size(server.memory)}   {keys}",
            *_replication_lines(server.replication),
        ]
    groups = [group for stream in sample.streams for group in stream.groups]
    oldest = max((group.oldest_ms or 0 for group in groups), default=0)
    behind = number(sum(group.ready or 0 for group in groups))
    lines.append(
        f"{plural(len(sample.streams), 'stream')}, {plural(len(groups), 'group')}   "
        f"{f'{behind} ready' if sample.has_queues else f'lag {behind}'}   "
        f"{number(sum(group.pending for group in groups))} pending"
        + (f", the oldest for {duration(oldest)}" if oldest else "")
        + _queues_text(sample)
    )
    lines += [_workers_text(each) for each in sample.workers]
    lines += _missing(sample)
    return lines if width is None else [part for line in lines for part in fold(line, width)]


def _replication_lines(replication: ReplicationSample | None) -> list[str]:
    """Return a line about the role of a server that has replicas, or is one."""
    if replication is None:
        return []
    who = f"{replication.role}, {plural(replication.replicas, 'replica')}"
    if replication.replicaof:
        who = f"replica of {replication.replicaof}, link {replication.link}"
    if replication.state not in ("", replication.role):
        who += f", {replication.state}"
    if replication.state:  # a Redis does not say it
        lag = duration(round(replication.lag_s * 1000))
        who += f"   {plural(replication.lag_rows, 'row')} behind, heard {lag} ago"
    return [who]


def _workers_text(workers: WorkersSample) -> str:
    """Return a line about the workers of an application."""
    states = ", ".join(f"{n} {state}" for state, n in workers.states.items())
    text = f"workers of {printable(workers.jobs)}: {states}   {number(workers.running)} running"
    if workers.running:
        text += f", the oldest for {duration(workers.oldest_ms)}"
    return f"{text}, {number(workers.late)} late" if workers.late else text


def _queues_text(sample: Sample) -> str:
    """Return the sums of the queues, if any stream is used as one."""
    if not sample.has_queues:
        return ""
    from kvstream.meta.policy import DEAD_SUFFIX  # not for a help text

    waiting, dead = 0, {}
    for stream in sample.streams:
        for queue in [group.queue for group in stream.groups if group.queue is not None]:
            waiting += queue.waiting
            dead[queue.dead_letter or stream.name + DEAD_SUFFIX] = queue.dead  # may be shared
    delayed = sum(stream.delayed for stream in sample.streams)
    buried = sum(dead.values())
    return f"   {number(delayed)} delayed, {number(waiting)} waiting, {number(buried)} dead"


def _missing(sample: Sample) -> list[str]:
    """Return a line about what the sample leaves out, if it leaves out anything."""
    parts = []
    if sample.left_out:
        parts.append(f"{plural(sample.left_out, 'more stream')} (see --streams)")
    groups = sum(stream.groups_left_out for stream in sample.streams)
    if groups:
        parts.append(plural(groups, "more group"))
    if not sample.whole:
        parts.append("keys are still being scanned for streams")
    return [f"not shown: {'; '.join(parts)}"] if parts else []


def live(sample: Sample, screen: Screen, width: int, height: int, problem: str = "") -> "Text":
    """Return a frame for a terminal of this size; ``problem``: why there is no newer sample."""
    from rich.text import Text  # imported here: JSON does not need it

    def style_lines(lines: Iterable[str], style: str = "") -> list[Text]:
        return [Text(line, style) for line in lines]

    above = style_lines(fold(problem, width) if problem else [], "bold red")
    if screen.help:
        keys, meanings = zip(*HELP, strict=True)
        return Text("\n").join([*above, *style_lines(block(keys, meanings, width)[:height])])
    lines, columns = screen.lines(sample), columns_of(sample)
    table = sheet(columns, [_cells(line, columns) for line in lines], width)
    above = style_lines(head(sample, width)) + above + style_lines(table.head, "bold")
    above += style_lines(["─" * table.width] if table.head else [])
    foot = [*left_out_lines(table.left_out, width), "", *fold(_foot(screen), width)]
    below = style_lines(foot, "dim")
    rows = [line for row in table.rows for line in row]
    shown = screen.scroll(len(rows), height - len(above) - len(below) - 1)
    left = len(rows) - len(rows[shown])
    if left:
        below.insert(0, Text(plural(left, "more line"), "dim"))
    return Text("\n").join([*above, *style_lines(rows[shown]), *below])


def _foot(screen: Screen) -> str:
    if screen.typing:
        return f"filter: {screen.filter}_   Enter keeps it, Esc drops it"
    kept = f"   filter: {screen.filter}" if screen.filter else ""
    return f"{time.strftime('%H:%M:%S')}   by {screen.sort}{kept}   ?: help   q: quit"


def write(sample: Sample, sort: str, out: Output) -> None:
    """Write a sample as text, or as one JSON object."""
    if out.for_programs:
        out.object(**_object(sample))
        return
    for text in head(sample):
        click.echo(text)
    lines = lines_of(sample, sort)
    if lines:
        shown = columns_of(sample)
        columns = [replace(column, show=plain) for column in shown]
        keys = [column.key for column in columns]
        rows = (_cells(line, shown) for line in lines)
        out.table(columns, [dict(zip(keys, row, strict=True)) for row in rows])


def _object(sample: Sample) -> dict[str, Any]:
    values: dict[str, Any] = jsonable(sample)
    del values["taken"]
    if not sample.workers:
        del values["workers"]
    if not sample.has_queues:
        for stream in values["streams"]:
            del stream["delayed"]
            for group in stream["groups"]:
                del group["queue"]
    return {"time_ms": now_ms(), **values}
