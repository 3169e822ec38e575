"""A report as one page of HTML that needs nothing else: tables and plots."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape

from kvstream.spark.jobs.plots import bars, lines
from kvstream.spark.jobs.reporting import MINUTE_MS, Minute, Report, Table

POINTS_MAX = 400
"""Points of a line: minutes are put together where there are more."""
LINES_MAX = 8
DAY_MS = 24 * 3600 * 1000
_FORMS = ((1, "%H:%M"), (10, "%m-%d %H:%M"), (120, "%m-%d"), (math.inf, "%Y-%m"))
"""How times are told on an axis of less than so many days."""
BARS_MAX = 24
_STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;margin:2rem auto;padding:0 1rem;max-width:60rem;"
    "color:#111}"
    "table{border-collapse:collapse;margin:.5rem 0 1.5rem}th,td{padding:.2rem .8rem .2rem 0;"
    "text-align:left}th{border-bottom:1px solid #999}td{border-bottom:1px solid #eee}"
    "svg{max-width:100%;height:auto}"
)


def page(report: Report) -> str:
    """Return the page."""
    made = datetime.fromtimestamp(report.made_ms / 1000, UTC)
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>kvstream: {escape(report.source)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(report.source)}</h1>",
        f"<p>{report.entries:,} entries; {made:%Y-%m-%d %H:%M:%S} UTC</p>",
        throughput(report.minutes),
        bars("Pending entries by consumer", report.shares[:BARS_MAX]),
        *map(_table, report.tables),
        "</body></html>",
    ]
    return "\n".join(parts)


def throughput(minutes: Sequence[Minute]) -> str:
    """Return the plot of entries a minute, a line for each of the largest streams."""
    if not minutes:
        return lines("Entries a minute", ())
    low, high = min(each.ms for each in minutes), max(each.ms for each in minutes)
    step = MINUTE_MS * max(1, -(-(high - low + MINUTE_MS) // (MINUTE_MS * POINTS_MAX)))
    totals: dict[str, int] = {}
    for each in minutes:
        totals[each.stream] = totals.get(each.stream, 0) + each.entries
    largest = sorted(totals, key=lambda stream: -totals[stream])[:LINES_MAX]
    series = [(stream, _line(minutes, stream, low, high, step)) for stream in largest]
    return lines("Entries a minute", series, _labels(low, high))


def _line(
    minutes: Sequence[Minute], stream: str, low: int, high: int, step: int
) -> list[tuple[float, float]]:
    counts: dict[int, int] = {}
    for each in minutes:
        if each.stream == stream:
            at = (each.ms - low) // step
            counts[at] = counts.get(at, 0) + each.entries
    rates: Mapping[int, float] = {at: count * MINUTE_MS / step for at, count in counts.items()}
    return [(low + at * step, rates.get(at, 0.0)) for at in range((high - low) // step + 1)]


def _labels(low: int, high: int) -> list[tuple[float, str]]:
    form = next(form for most, form in _FORMS if high - low < most * DAY_MS)
    places = [low + (high - low) * at // 4 for at in range(5)]
    return [(at, _time(at, form)) for at in places]


def _time(ms: int, form: str) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime(form)
    except (ValueError, OverflowError):  # whoever gave these IDs did not mean times
        return f"{ms:.3g}"


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    return f"<h2>{escape(table.title)}</h2><table><tr>{head}</tr>{rows}</table>"
