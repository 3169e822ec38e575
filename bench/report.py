"""Shows the figures: a table on the terminal, and Markdown, JSON and a plot for the docs."""

import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from math import nan
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.peer import peer_version
from bench.results import Claim, Contest, Scaled
from kvstream.layout.compiled import twins

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "benchmarks.md"
FIGURES = DOCS / "benchmarks.json"
PLOT = DOCS / "benchmarks.svg"

_RESULTS = re.compile(r"(<!-- results -->\n).*?(<!-- end of results -->)", re.DOTALL)
_SERVED_HEAD = ("server", "kvstream/s", "Redis/s", "ratio", "rounds", "target", "result")
_MOVED_HEAD = ("migration", "kvstream/s", "other/s", "ratio", "rounds", "target", "result")
_SPARKED_HEAD = ("Spark", "kvstream/s", "redis-py/s", "ratio", "rounds", "target", "result")
_SCALED_HEAD = ("Spark, kvstream alone", "1 core, rows/s", "2 cores, rows/s", "times")
_CONTEST_HEAD = ("work", "kvstream/s", "Redis/s", "ratio", "rounds", "target", "result")
_CLAIM_HEAD = ("claim", "measured", "bound", "result", "note")

Figures = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""The names of columns, and rows."""


@dataclass(frozen=True, slots=True)
class Report:
    """All that one run found out."""

    load: float
    """The machine's load before the run: above its idle level the figures are of a busy machine."""
    contests: list[Contest] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    served: list[Contest] = field(default_factory=list)
    """What clients of both servers did, in requests."""
    moved: list[Contest] = field(default_factory=list)
    """How an RDB file came into a store, beside two other ways."""
    sparked: list[Contest] = field(default_factory=list)
    """What jobs of Spark did, beside redis-py in their tasks."""
    scaled: list[Scaled] = field(default_factory=list)
    """What a second core brings to these jobs."""


def setting(report: Report) -> dict[str, str]:
    """Return what the figures depend on: the machine, how busy it was, and the versions."""
    return {
        "cores": str(os.cpu_count()),
        "load before the run": f"{report.load:.1f}",
        "system": platform.system(),
        "Python": platform.python_version(),
        "compiled twins": "no" if twins is None else "yes",
        "redis-server": peer_version(),
        "redis-py": version("redis"),
        **{name: version(name) for name in ("hiredis", "kvstream", "rocksdict")},
    }


def _mark(met: bool) -> str:
    return "met" if met else "missed"


def _contests(head: tuple[str, ...], rows: Sequence[Contest]) -> Figures:
    """Return a table of contests, with a column more for each newer server that took part."""
    names = list(dict.fromkeys(name for row in rows for name in row.further_rates))
    further = tuple(f"{name}/s" for name in names)
    return (*head, *further), [_contest_row(row, names) for row in rows]


def _contest_row(row: Contest, further: Sequence[str]) -> tuple[str, ...]:
    low, high = row.ratio_range
    return (
        row.title,
        f"{row.rate:,.0f}",
        f"{row.peer_rate:,.0f}",
        f"{row.ratio:.2f}x" if row.ratio < 1 else f"{row.ratio:.1f}x",
        f"{low:.1f} to {high:.1f}",
        f"{row.target:g}x" if row.target else "none",
        _mark(row.met) if row.target else "",
        *(
            f"{row.further_rates[name]:,.0f}" if name in row.further_rates else ""
            for name in further
        ),
    )


def _scaled_row(row: Scaled) -> tuple[str, ...]:
    one, two = row.rates
    return row.title, f"{one:,.0f}", f"{two:,.0f}", f"{row.times:.1f}x"


def _three_digits(value: float) -> str:
    decimals = 3 if value < 1 else 2 if value < 10 else 0
    return f"{value:,.{decimals}f}"


def _claim_row(row: Claim) -> tuple[str, ...]:
    measured = f"{_three_digits(row.value)} {row.unit}"
    return row.title, measured, f"{row.limit:g} {row.unit}", _mark(row.met), row.note


def print_report(report: Report, console: Console) -> None:
    """Print the tables for people."""
    tables = (
        _contests(_CONTEST_HEAD, report.contests),
        _contests(_SERVED_HEAD, report.served),
        _contests(_MOVED_HEAD, report.moved),
        _contests(_SPARKED_HEAD, report.sparked),
        (_SCALED_HEAD, [_scaled_row(row) for row in report.scaled]),
        (_CLAIM_HEAD, [_claim_row(row) for row in report.claims]),
    )
    for head, rows in tables:
        if not rows:
            continue
        table = Table(*head)
        for row in rows:
            table.add_row(*row, style="bold red" if "missed" in row else None)
        console.print(table)


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def markdown(report: Report, plotted: bool) -> str:
    """Return the part of docs/benchmarks.md that a run writes."""
    where = ", ".join(f"{name} {value}" for name, value in setting(report).items())
    parts = [f"Measured with: {where}.\n"]
    if report.contests:
        parts.append(_markdown_table(*_contests(_CONTEST_HEAD, report.contests)))
    if report.served:
        parts.append(_markdown_table(*_contests(_SERVED_HEAD, report.served)))
    if report.moved:
        parts.append(_markdown_table(*_contests(_MOVED_HEAD, report.moved)))
    if report.sparked:
        parts.append(_markdown_table(*_contests(_SPARKED_HEAD, report.sparked)))
    if report.scaled:
        parts.append(_markdown_table(_SCALED_HEAD, [_scaled_row(row) for row in report.scaled]))
    if plotted:
        parts.append(f"![Ratio to Redis, and the target of each row]({PLOT.name})\n")
    if report.claims:
        parts.append(_markdown_table(_CLAIM_HEAD, [_claim_row(row) for row in report.claims]))
    return "\n".join(parts)


def as_json(report: Report) -> str:
    """Return all figures for programs."""
    figures = {
        "setting": setting(report),
        "contests": [row.as_json() for row in report.contests],
        "served": [row.as_json() for row in report.served],
        "moved": [row.as_json() for row in report.moved],
        "sparked": [row.as_json() for row in report.sparked],
        "scaled": [row.as_json() for row in report.scaled],
        "claims": [row.as_json() for row in report.claims],
    }
    return json.dumps(figures, indent=2) + "\n"


def plot(contests: Sequence[Contest], path: Path) -> None:
    """Draw each contest's ratio to Redis as a bar, its range as a line, its target as a mark."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "kvstream"  # the same figures give the same file
    from matplotlib import pyplot

    rows = list(reversed(contests))
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


def write_docs(report: Report) -> None:
    """Put the figures into docs/: the tables of benchmarks.md, the plot and the JSON."""
    if report.contests:
        plot([*report.contests, *report.served], PLOT)
    FIGURES.write_text(as_json(report))
    block = markdown(report, plotted=bool(report.contests))
    PAGE.write_text(_RESULTS.sub(lambda found: f"{found[1]}{block}{found[2]}", PAGE.read_text()))
