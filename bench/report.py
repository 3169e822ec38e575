"""Show the figures: tables on the terminal, and Markdown, JSON and a plot for the docs."""

import json
import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from importlib.metadata import version
from math import nan
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.machine.counters import EVENTS, countable
from bench.results import Comparison, Limit, Scaling
from bench.targets import LEAST, REDIS
from kvstream.layout import twins
from kvstream.version import VERSION

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "benchmarks.md"
FIGURES = DOCS / "benchmarks.json"
PLOT = DOCS / "benchmarks.svg"

_BLOCK = r"(<!-- results of {} -->\n).*?(<!-- end of results -->)"
"""The results of a part of the rows in the page, between comments."""
_SCALING_HEAD = ("Spark, kvstream alone", "1 core, rows/s", "2 cores, rows/s", "times")
_PROMISED_HEAD = ("measured", "target", "of its target", "CPU us: kvstream, least, Redis")
WORST = 10
"""Rows of each table of the worst rows."""
_LIMIT_HEAD = ("claim", "measured", "bound", "result", "note")

_OF = {LEAST: "", REDIS: " Redis"}
"""What stands behind a multiple of a server's processor time."""

Figures = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""The names of the columns, and the rows."""
Cell = Callable[[Comparison], str | None]
"""Returns a cell of a row; None if the row has no such figure."""
Column = tuple[str, Cell]
"""The name of a column, and its cells."""


@dataclass(frozen=True, slots=True)
class Report:
    """The results of one run."""

    load: float
    """The machine's load average before the run."""
    peer_version: str
    """The version of redis-server."""
    library: list[Comparison] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)
    server: list[Comparison] = field(default_factory=list)
    """In requests, not entries."""
    commands: list[Comparison] = field(default_factory=list)
    """Each command, the cycle of a queue, and reads beside other work; in requests or entries."""
    rivals: list[Comparison] = field(default_factory=list)
    """kvstream as an embedded queue, beside SQLite by hand and packages."""
    jobs: list[Comparison] = field(default_factory=list)
    """Jobs from enqueue to done, beside huey on SQLite and packages on redis-server."""
    workflows: list[Comparison] = field(default_factory=list)
    """Workflows of five calls, beside dramatiq and Celery on redis-server, and DBOS on SQLite."""
    nats: list[Comparison] = field(default_factory=list)
    """kvstream's server beside nats-server with JetStream; in entries."""
    migration: list[Comparison] = field(default_factory=list)
    """An RDB file into a store, beside redis-server and a copy loop."""
    spark: list[Comparison] = field(default_factory=list)
    """Spark jobs, beside redis-py in their tasks."""
    scaling: list[Scaling] = field(default_factory=list)
    """The same jobs on one core and on two."""
    neighbour: int = 0
    """The bytes through which a neighbour streamed; 0: there was none."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A table of comparisons."""

    key: str
    """Its name in the JSON."""
    title: str
    peer: str
    rows: Sequence[Comparison]


def compared(report: Report) -> tuple[Compared, ...]:
    """Return the tables of comparisons."""
    return (
        Compared("contests", "work", "Redis", report.library),
        Compared("served", "server", "Redis", report.server),
        Compared("commands", "command", "Redis", report.commands),
        Compared("nats", "beside NATS", "NATS", report.nats),
        Compared("rivals", "embedded queue", "SQLite", report.rivals),
        Compared("jobs", "jobs", "huey", report.jobs),
        Compared("workflows", "workflows of five calls", "dramatiq", report.workflows),
        Compared("moved", "migration", "other", report.migration),
        Compared("sparked", "Spark", "redis-py", report.spark),
    )


def setting(report: Report) -> dict[str, str]:
    """Return the conditions of the run: the machine, its load, and versions."""
    return {
        "cores": str(os.cpu_count()),
        "load before the run": f"{report.load:.1f}",
        "system": platform.system(),
        "Python": platform.python_version(),
        "compiled twins": "no" if twins is None else "yes",
        "redis-server": report.peer_version,
        "instructions and cache misses": "counted" if countable() else "perf stat counts none here",
        **({"neighbour": f"{report.neighbour >> 20:,} MB"} if report.neighbour else {}),
        "redis-py": version("redis"),
        "kvstream": VERSION,
        **{name: version(name) for name in ("hiredis", "rocksdict")},
    }


def _mark(met: bool) -> str:
    return "met" if met else "missed"


def _columns(table: Compared) -> list[Column]:
    """Return the columns of a table of comparisons: processor time leads, then rates."""
    peer = table.peer
    columns: list[Column] = [
        (table.title, lambda row: row.title),
        ("CPU over least", _processor_times),
        ("beside a neighbour", _beside(_processor_times)),
        ("target", _processor_target),
        ("result", _processor_result),
        (f"CPU us: kvstream, least, {peer}", _processor_us),
        ("beside a neighbour", _beside(_processor_us)),
        *((f"{event}: kvstream, least, {peer}", partial(_counts, event)) for event in EVENTS),
        ("kvstream/s", lambda row: f"{row.rate:,.0f}"),
        (f"{peer}/s", lambda row: f"{row.peer_rate:,.0f}"),
        ("ratio", lambda row: _ratio(row.ratio)),
        ("beside a neighbour", _beside(lambda row: _ratio(row.ratio))),
        ("rounds", _rounds),
        ("target", lambda row: f"{row.target:g}x" if row.target else "none"),
        ("result", lambda row: _mark(row.met) if row.target else ""),
    ]
    for name in dict.fromkeys(name for row in table.rows for name in row.further_rates):
        columns.append((f"{name}/s", partial(_further_rate, name)))
    return columns


def _figures(table: Compared) -> Figures:
    """Return a table of comparisons, without the columns of which no row has the figure."""
    found = [(head, [cell(row) for row in table.rows]) for head, cell in _columns(table)]
    shown = [
        (head, [cell or "" for cell in cells])
        for head, cells in found
        if any(cell is not None for cell in cells)
    ]
    return tuple(head for head, _ in shown), [*zip(*(cells for _, cells in shown), strict=True)]


def _beside(cell: Cell) -> Cell:
    """Return the same cell of the row beside a neighbour."""
    return lambda row: cell(row.beside[0]) if row.beside else None


def _counts(event: str, row: Comparison) -> str | None:
    return ", ".join(_three_digits(number) for number in row.per_entry(event)) or None


def _processor_times(row: Comparison) -> str | None:
    target = row.processor_target
    return None if target is None else f"{row.processor_times:.2f}x{_OF[target.of]}"


def _processor_target(row: Comparison) -> str | None:
    target = row.processor_target
    if target is None:
        return None
    return f"{target.times:g}x{_OF[target.of]}" if target.times else "none"


def _processor_result(row: Comparison) -> str | None:
    target = row.processor_target
    if target is None:
        return None
    return _mark(row.worst_times <= target.times) if target.times else ""


def _processor_us(row: Comparison) -> str | None:
    return ", ".join(f"{us:.1f}" for us in row.processor_us) if row.processor else None


def _rounds(row: Comparison) -> str:
    low, high = row.ratio_range
    return f"{low:.1f} to {high:.1f}"


def _further_rate(name: str, row: Comparison) -> str | None:
    return f"{row.further_rates[name]:,.0f}" if name in row.further_rates else None


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 1 else f"{ratio:.1f}x"


def _scaling_row(row: Scaling) -> tuple[str, ...]:
    one, two = row.rates
    return row.title, f"{one:,.0f}", f"{two:,.0f}", f"{row.times:.1f}x"


def _three_digits(value: float) -> str:
    decimals = 3 if value < 1 else 2 if value < 10 else 0
    return f"{value:,.{decimals}f}"


def _limit_row(row: Limit) -> tuple[str, ...]:
    measured = f"{_three_digits(row.value)} {row.unit}"
    if not row.limit:
        return row.title, measured, "none", "", row.note
    return row.title, measured, f"{row.limit:g} {row.unit}", _mark(row.met), row.note


class Promised(NamedTuple):
    """A figure with a target."""

    share: float
    """Below 1 if the target is missed."""
    title: str
    measured: str
    target: str
    processor: str
    """The processor time of each server."""


def processor_promises(report: Report) -> list[Promised]:
    """Return the processor times that have a target, those that are furthest from it first."""
    rows = (row for table in compared(report) for row in table.rows)
    return sorted(_promised_processor(rows))


def _promised_processor(rows: Iterable[Comparison]) -> Iterator[Promised]:
    for row in rows:
        target = row.processor_target
        if target is not None and target.times:
            share = target.times / row.worst_times
            measured = ", ".join(f"{each.processor_times:.2f}x" for each in (row, *row.beside))
            shown = (measured + _OF[target.of], _processor_target(row), _processor_us(row))
            yield Promised(share, row.title, *(cell or "" for cell in shown))


def promises(report: Report) -> list[Promised]:
    """Return the rates and bounds that have a target, those that are furthest from it first."""
    found = []
    for row in (row for table in compared(report) for row in table.rows if row.target):
        shown = _ratio(row.ratio), f"{row.target:g}x", _processor_us(row) or ""
        found.append(Promised(row.share, row.title, *shown))
    for limit in report.limits:
        if limit.limit:
            title, measured, target, *_ = _limit_row(limit)
            found.append(Promised(limit.share, title, measured, target, ""))
    return sorted(found)


def _worst(title: str, found: Sequence[Promised]) -> Figures:
    head = (title, *_PROMISED_HEAD)
    return head, [
        (each.title, each.measured, each.target, f"{each.share:.2f}", each.processor)
        for each in found[:WORST]
    ]


def _tables(report: Report) -> list[Figures]:
    """Return the worst rows, and the tables of comparisons, those that have rows."""
    comparisons: tuple[Figures, ...] = (
        _worst("worst processor times", processor_promises(report)),
        _worst("worst rates and bounds", promises(report)),
        *map(_figures, compared(report)),
        (_SCALING_HEAD, [_scaling_row(row) for row in report.scaling]),
    )
    return [(head, rows) for head, rows in comparisons if rows]


def _limits(report: Report) -> list[Figures]:
    """Return the table of limits, if it has rows."""
    return [(_LIMIT_HEAD, [_limit_row(row) for row in report.limits])] if report.limits else []


def print_report(report: Report, console: Console) -> None:
    """Print the conditions and the tables."""
    if report.server or report.commands:
        console.print(", ".join(f"{name}: {value}" for name, value in setting(report).items()))
    for head, rows in (*_tables(report), *_limits(report)):
        table = Table(*head)
        for row in rows:
            table.add_row(*row, style="bold red" if "missed" in row else None)
        console.print(table)


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def markdown(report: Report, plotted: bool, day: str = "") -> str:
    """Return the results of a part of the rows for docs/benchmarks.md."""
    where = ", ".join(f"{name} {value}" for name, value in setting(report).items())
    parts = [f"Measured{f' on {day}' if day else ''} with: {where}.\n"]
    parts += [_markdown_table(*table) for table in _tables(report)]
    if plotted:
        parts.append(f"![Ratio to Redis, and the target of each row]({PLOT.name})\n")
    parts += [_markdown_table(*table) for table in _limits(report)]
    return "\n".join(parts)


def figures_of(report: Report) -> dict[str, object]:
    """Return all figures and their conditions, by the key of their table."""
    return {
        "setting": setting(report),
        **{table.key: [row.as_json() for row in table.rows] for table in compared(report)},
        "scaled": [row.as_json() for row in report.scaling],
        "claims": [row.as_json() for row in report.limits],
    }


def as_json(report: Report) -> str:
    """Return all figures as JSON."""
    return json.dumps(figures_of(report), indent=2) + "\n"


def plot(rows: Sequence[Comparison], path: Path) -> None:
    """Draw each row's ratio to Redis as a bar, its range as a line, its target as a mark."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "kvstream"  # so that the file depends on the figures only
    from matplotlib import pyplot

    rows = list(reversed(rows))
    places = range(len(rows))
    ratios = [row.ratio for row in rows]
    ranges = [row.ratio_range for row in rows]
    spread = [
        [ratio - low for ratio, (low, _) in zip(ratios, ranges, strict=True)],
        [high - ratio for ratio, (_, high) in zip(ratios, ranges, strict=True)],
    ]
    figure, axes = pyplot.subplots(figsize=(9, 0.55 * len(rows) + 1.2), layout="constrained")
    axes.barh(places, ratios, xerr=spread, color="#3b7dd8", ecolor="#1d3f6e", capsize=3)
    axes.plot([row.target or nan for row in rows], places, "D", color="#e08a1e", label="target")
    axes.axvline(1, color="#888888", linewidth=1, linestyle="--", label="Redis")
    axes.set_yticks(places, [row.title.replace("`", "") for row in rows])
    axes.set_xlabel("times as fast as Redis")
    axes.legend(loc="lower right")
    figure.savefig(path, metadata={"Date": None})


def write_docs(part: str, report: Report) -> None:
    """Write the tables of a part of the rows in docs/benchmarks.md, its figures, and its plot."""
    if report.library:
        plot([*report.library, *report.server], PLOT)
    day = date.today().isoformat()
    figures = {**json.loads(FIGURES.read_text()), part: {"day": day, **figures_of(report)}}
    FIGURES.write_text(json.dumps(figures, indent=2) + "\n")
    block = markdown(report, bool(report.library), day)
    found = re.compile(_BLOCK.format(part), re.DOTALL)
    PAGE.write_text(found.sub(lambda old: f"{old[1]}{block}{old[2]}", PAGE.read_text()))
