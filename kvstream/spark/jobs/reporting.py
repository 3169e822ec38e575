"""``report``: what goes on in streams and their groups, as tables for people and as a page.

Throughput by minute and the time between entries come from the entries' IDs; how groups keep up,
what each consumer has before it, and what was delivered again come from the tables.

Plots as SVG, made of text alone: lines over time and bars. It knows numbers and labels.

A report as one page of HTML that needs nothing else: tables and plots.
"""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any
from unicodedata import east_asian_width

from kvstream.spark.jobs.places import Say, chosen, require, shown, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


WIDTH = 720
_LEFT, _RIGHT, _BOTTOM = 64, 36, 34
_TITLE_Y, _HEAD = 16, 38
"""Where the title stands, and where what is below it begins."""
_LINES_HEIGHT = 168
_ROW = 22
"""The height of a bar with its gap."""
_LEGEND_ROW = 16
_MARK = 13
"""What the mark of a colour takes before its name."""
_LABEL_MAX = 300.0
"""The room for a name, in pixels."""
_COLOURS = ("#2563eb", "#db2777", "#059669", "#d97706", "#7c3aed", "#0891b2", "#65a30d", "#dc2626")
_TICKS = 4
_FONT = "font-family='system-ui, sans-serif' font-size='11'"
_NARROW, _BROAD = frozenset("fijlrt.,:;|!'()[]- "), frozenset("mwMW@%")

Points = Sequence[tuple[float, float]]


def lines(
    title: str, series: Sequence[tuple[str, Points]], labels: Sequence[tuple[float, str]] = ()
) -> str:
    """Return a plot of lines; ``labels`` are places on the x axis."""
    points = [point for _, each in series for point in each]
    if not points:
        return _empty(title)
    legend, head = _legend([name for name, _ in series])
    bottom = head + _LINES_HEIGHT
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    top = _nice(max(y for _, y in points))

    def place(x: float, y: float) -> str:
        across = _LEFT + (x - low) / (high - low or 1) * (WIDTH - _LEFT - _RIGHT)
        return f"{across:.1f},{bottom - y / top * _LINES_HEIGHT:.1f}"

    drawn = [legend]
    for value in _ticks(top):
        y = bottom - value / top * _LINES_HEIGHT
        drawn.append(_rule(_LEFT, WIDTH - _RIGHT, y, y))
        drawn.append(_text(_number(value), _LEFT - 6, y + 4, "end"))
    for at, (_, each) in enumerate(series):
        path = " ".join(place(x, y) for x, y in each)
        colour = _COLOURS[at % len(_COLOURS)]
        drawn.append(
            f"<polyline fill='none' stroke='{colour}' stroke-width='1.5' points='{path}'/>"
        )
    for x, label in labels:
        drawn.append(_text(label, float(place(x, 0).partition(",")[0]), bottom + 20, "middle"))
    return _framed(title, drawn, bottom + _BOTTOM)


def bars(title: str, values: Sequence[tuple[str, float]]) -> str:
    """Return a plot of bars, one below the other, each with its name and its value."""
    if not values:
        return _empty(title)
    names = _labels([name for name, _ in values])
    left = max(_LEFT, 8 + max(map(_extent, names)))
    top = _nice(max(value for _, value in values))
    bottom = _HEAD + _ROW * len(values)
    # The value behind the longest bar has room too.
    room = WIDTH - left - 8 - max(_extent(_exact(value)) for _, value in values)
    drawn = []
    for value in _ticks(top):
        x = left + value / top * room
        drawn.append(_rule(x, x, _HEAD, bottom))
        drawn.append(_text(_number(value), x, bottom + 16, "middle"))
    for at, ((name, value), label) in enumerate(zip(values, names, strict=True)):
        y = _HEAD + at * _ROW
        length = value / top * room
        drawn.append(
            f"<rect x='{left:.1f}' y='{y + 4}' width='{length:.1f}' height='{_ROW - 8}' "
            f"fill='{_COLOURS[0]}'><title>{_escaped(name)}: {_exact(value)}</title></rect>"
        )
        drawn.append(_text(label, left - 6, y + 15, "end"))
        drawn.append(_text(_exact(value), left + length + 4, y + 15))
    return _framed(title, drawn, bottom + _BOTTOM)


def _empty(title: str) -> str:
    return _framed(title, [_text("nothing to show", _LEFT, _HEAD + 4)], _HEAD + _ROW)


def _framed(title: str, drawn: Sequence[str], height: float) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' "
        f"width='{WIDTH}' height='{height}' role='img'><title>{_escaped(title)}</title>"
        f"<rect width='100%' height='100%' fill='white'/>"
        f"<text x='{_LEFT}' y='{_TITLE_Y}' {_FONT} font-weight='600' fill='#111'>"
        f"{_escaped(title)}</text>{''.join(drawn)}</svg>"
    )


def _legend(names: Sequence[str]) -> tuple[str, int]:
    """Return the names with their colours, in rows below the title, and where the plot begins."""
    drawn = []
    x, y = float(_LEFT), _HEAD
    for at, name in enumerate(_labels(names)):
        wanted = _MARK + _extent(name)
        if x > _LEFT and x + wanted > WIDTH - _RIGHT:
            x, y = float(_LEFT), y + _LEGEND_ROW
        colour = _COLOURS[at % len(_COLOURS)]
        drawn.append(
            f"<rect x='{x:.1f}' y='{y - 9}' width='9' height='9' fill='{colour}'/>"
            f"{_text(name, x + _MARK, y)}"
        )
        x += wanted + _LEGEND_ROW
    return "".join(drawn), y + _LEGEND_ROW


def _rule(x1: float, x2: float, y1: float, y2: float) -> str:
    return f"<line x1='{x1:.1f}' x2='{x2:.1f}' y1='{y1:.1f}' y2='{y2:.1f}' stroke='#e5e7eb'/>"


def _text(text: str, x: float, y: float, anchor: str = "start") -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' {_FONT} fill='#444'>"
        f"{_escaped(text)}</text>"
    )


def _escaped(text: str) -> str:
    """Return a text for XML, which has no control characters."""
    return escape("".join(char if char.isprintable() else "\ufffd" for char in text))


def _exact(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:,}"


def _ticks(top: float) -> list[float]:
    return [top * tick / _TICKS for tick in range(_TICKS + 1)]


def _extent(text: str) -> float:
    """Return about how many pixels a text takes, rather too many."""
    return sum(map(_extent_of, text))


def _extent_of(char: str) -> float:
    if char in _NARROW:
        return 4.5
    if char in _BROAD or char.isupper():
        return 9.5
    return 11.5 if east_asian_width(char) in "WF" else 7.0


def _labels(names: Sequence[str]) -> list[str]:
    """Return what fits of each name: no two of different names are the same."""
    labels = [_shortened(name) for name in names]
    counts = Counter(labels)
    return [f"{at}: {label}" if counts[label] > 1 else label for at, label in enumerate(labels, 1)]


def _shortened(name: str) -> str:
    """Return a name without its middle where it is too long: both ends tell names apart."""
    if _extent(name) <= _LABEL_MAX:
        return name
    half = len(name) // 2
    while _extent(f"{name[:half]}…{name[-half:]}") > _LABEL_MAX:
        half -= 1
    return f"{name[:half]}…{name[-half:]}"


def _nice(value: float) -> float:
    """Return a round number not below a value, whose quarters are round too."""
    if value <= 0:
        return 1
    unit: float = 10 ** math.floor(math.log10(value))
    return next(unit * step for step in (1, 2, 4, 6, 8, 10) if unit * step >= value)


def _number(value: float) -> str:
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


MINUTE_MS = 60_000
PERCENTILES = (0.5, 0.9, 0.99)
_ID = "stream string, id struct<ms:bigint,seq:bigint>"
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"))


@dataclass(frozen=True, slots=True)
class Minute:
    """Entries of one stream whose IDs lie in one minute."""

    stream: str
    ms: int
    """The Unix time at which the minute begins, in milliseconds."""
    entries: int


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for people."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What a report tells."""

    source: str
    made_ms: int
    entries: int
    """As they were counted; the sum of ``minutes``."""
    minutes: tuple[Minute, ...]
    tables: tuple[Table, ...]
    shares: tuple[tuple[str, int], ...]
    """Consumers, by stream and group, with the entries that they have pending, the most first."""

    def text(self) -> str:
        """Return the tables as text."""
        parts = [f"{self.source}: {self.entries:,} entries"]
        for each in self.tables:
            parts.append(f"\n{each.title}\n{_laid_out(each)}")
        return "\n".join(parts)


def report(
    spark: "SparkSession",
    source: Mapping[str, str],
    *,
    streams: Sequence[str] = (),
    pattern: str | None = None,
    start: str = "-",
    end: str = "+",
    say: Say = print,
) -> Report:
    """Look at streams, by default all; ``start`` and ``end`` bound the entries looked at."""
    options = chosen(source, streams, pattern)
    say(f"report on {shown(source)}")
    require(spark, [source], (), pattern)
    ids = spark.read.format("kvstream").schema(_ID).options(**options, start=start, end=end).load()
    ids = ids.cache()
    try:
        minutes = _minutes(ids)
        streams_table = _streams(ids, minutes)
    finally:
        ids.unpersist()
    consumers = _collected(table(spark, options, "consumers"))
    groups, again = _groups(spark, options)
    shares = sorted(
        (
            (f"{row['stream']}/{row['group']}/{row['consumer']}", row["pending"])
            for row in consumers
        ),
        key=lambda share: -share[1],
    )
    made = Report(
        shown(source),
        int(time.time() * 1000),
        sum(minute.entries for minute in minutes),
        minutes,
        (streams_table, groups, _consumers(consumers), again),
        tuple(shares),
    )
    say(f"{made.entries:,} entries in {len(minutes):,} minutes with entries")
    return made


def _minutes(ids: "DataFrame") -> tuple[Minute, ...]:
    from pyspark.sql import functions as F

    minute = (F.floor(F.col("id.ms") / MINUTE_MS) * MINUTE_MS).alias("ms")
    rows = ids.groupBy("stream", minute).agg(F.count(F.lit(1)).alias("entries"))
    return tuple(
        Minute(row.stream, row.ms, row.entries) for row in rows.orderBy("stream", "ms").collect()
    )


def _streams(ids: "DataFrame", minutes: Sequence[Minute]) -> Table:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    order = Window.partitionBy("stream").orderBy("id")
    gap = (F.col("id.ms") - F.lag("id.ms").over(order)).alias("gap")
    told = (
        ids.select("stream", gap)
        .groupBy("stream")
        .agg(
            F.count(F.lit(1)).alias("entries"),
            F.percentile_approx("gap", list(PERCENTILES)).alias("gaps"),
            F.max("gap").alias("longest"),
        )
    )
    rows = []
    for row in told.orderBy("stream").collect():
        counts = [minute.entries for minute in minutes if minute.stream == row.stream]
        gaps = row.gaps or [None] * len(PERCENTILES)
        rows.append(
            (
                row.stream,
                f"{row.entries:,}",
                f"{sum(counts) / len(counts):,.1f}",
                f"{max(counts):,}",
                *(_duration(each) for each in gaps),
                _duration(row.longest),
            )
        )
    head = ("stream", "entries", "a minute", "peak", "gap p50", "p90", "p99", "longest")
    return Table("Streams: entries a minute, and the time between them", head, tuple(rows))


def _groups(spark: "SparkSession", options: Mapping[str, str]) -> tuple[Table, Table]:
    from pyspark.sql import functions as F

    pending = (
        table(spark, options, "pending")
        .groupBy("stream", "group")
        .agg(
            F.percentile_approx("idle_ms", list(PERCENTILES)).alias("idle"),
            F.max("idle_ms").alias("oldest"),
            F.count_if(F.col("deliveries") > 1).alias("again"),
            F.max("deliveries").alias("most"),
            F.sum("deliveries").alias("deliveries"),
        )
    )
    groups = table(spark, options, "groups").join(pending, ["stream", "group"], "left")
    rows = _collected(groups.orderBy("stream", "group"))
    lags = [row["lag"] for row in rows if row["lag"] is not None]
    title = "Groups: entries not yet delivered, and how long the pending ones wait"
    if lags:
        title += f" (lag over all groups: {_percentiles(lags)})"
    head = ("stream", "group", "consumers", "lag", "pending", "idle p50", "p90", "p99", "oldest")
    told = tuple(
        (
            row["stream"],
            row["group"],
            f"{row['consumers']:,}",
            "?" if row["lag"] is None else f"{row['lag']:,}",
            f"{row['pending']:,}",
            *(_duration(each) for each in row["idle"] or [None] * len(PERCENTILES)),
            _duration(row["oldest"]),
        )
        for row in rows
    )
    again = tuple(
        (
            row["stream"],
            row["group"],
            f"{row['again']:,}",
            f"{row['most']:,}",
            f"{row['deliveries']:,}",
        )
        for row in rows
        if row["deliveries"]
    )
    words = ("stream", "group", "entries", "most often", "deliveries in all")
    return Table(title, head, told), Table("Redeliveries among what is pending", words, again)


def _consumers(consumers: Sequence[Mapping[str, Any]]) -> Table:
    totals: dict[tuple[str, str], int] = {}
    for row in consumers:
        at = row["stream"], row["group"]
        totals[at] = totals.get(at, 0) + row["pending"]
    rows = tuple(
        (
            row["stream"],
            row["group"],
            row["consumer"],
            f"{row['pending']:,}",
            f"{100 * row['pending'] / (totals[row['stream'], row['group']] or 1):.1f} %",
            _duration(row["idle_ms"]),
            _duration(row["inactive_ms"]),
        )
        for row in sorted(consumers, key=lambda row: (row["stream"], row["group"], -row["pending"]))
    )
    head = ("stream", "group", "consumer", "pending", "share", "seen", "active")
    return Table("Consumers: their share of what is pending, and when they last came", head, rows)


def _collected(frame: "DataFrame") -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def _percentiles(values: Sequence[int]) -> str:
    ordered = sorted(values)
    told = []
    for share in PERCENTILES:
        told.append(
            f"p{share * 100:g} {ordered[min(len(ordered) - 1, int(share * len(ordered)))]:,}"
        )
    return ", ".join(told)


def _duration(ms: float | None) -> str:
    if ms is None:
        return "-"
    for size, unit in _UNITS:
        if ms >= size:
            return f"{ms / size:.3g} {unit}"
    return f"{ms:g} ms"


def _laid_out(told: Table) -> str:
    if not told.rows:
        return "  none"
    rows = [told.head, *told.rows]
    widths = [max(len(row[at]) for row in rows) for at in range(len(told.head))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


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
    return lines("Entries a minute", series, _page_labels(low, high))


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


def _page_labels(low: int, high: int) -> list[tuple[float, str]]:
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
