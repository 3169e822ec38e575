"""``report``: the throughput of streams and the state of their groups, as text or an HTML page.

Throughput by minute and the time between entries come from the entries' IDs. Lag, pending entries
and redeliveries come from the metadata tables. The page is the template ``report.html``, with plots
as SVG inside it.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kvstream.spark.jobs.places import (
    Say,
    accepts_pattern,
    choose_streams,
    require,
    show_places,
    table,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    """A titled table of text cells: columns of names, then columns of numbers."""

    title: str
    names: int
    """How many columns are names; the others are aligned to the right."""
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """The result of ``report``."""

    source: str
    """The place that was read."""
    made_ms: int
    """When it was made, in Unix milliseconds."""
    entries: int
    """The sum of ``minutes``."""
    minutes: tuple[Minute, ...]
    """Entries of each minute, stream by stream."""
    tables: tuple[Table, ...]
    """The tables of the page, with their rows."""
    shares: tuple[tuple[str, int], ...]
    """``stream/group/consumer`` with its number of pending entries, the largest first."""

    def text(self) -> str:
        """Return the tables as text."""
        parts = [f"{self.source}: {self.entries:,} entries"]
        for each in self.tables:
            parts.append(f"\n{each.title}\n{_align(each)}")
        return "\n".join(parts)


@accepts_pattern
def report(
    spark: "SparkSession",
    source: Mapping[str, str],
    *,
    streams: Sequence[str] = (),
    match: str | None = None,
    start: str = "-",
    end: str = "+",
    say: Say = print,
) -> Report:
    """Report on streams, by default all; ``start`` and ``end`` bound the entries counted."""
    options = choose_streams(source, streams, match)
    say(f"report on {show_places(source)}")
    require(spark, [source], (), match)
    ids = spark.read.format("kvstream").schema(_ID).options(**options, start=start, end=end).load()
    ids = ids.cache()
    try:
        minutes = _minutes(ids)
        streams_table = _streams(ids, minutes)
    finally:
        ids.unpersist()
    consumers = _collect(table(spark, options, "consumers"))
    groups, redeliveries = _groups(spark, options)
    shares = sorted(
        (
            (f"{row['stream']}/{row['group']}/{row['consumer']}", row["pending"])
            for row in consumers
        ),
        key=lambda share: -share[1],
    )
    result = Report(
        show_places(source),
        int(time.time() * 1000),
        sum(minute.entries for minute in minutes),
        minutes,
        (streams_table, groups, _consumers(consumers), redeliveries),
        tuple(shares),
    )
    say(f"{result.entries:,} entries in {len(minutes):,} minutes")
    return result


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
    totals = (
        ids.select("stream", gap)
        .groupBy("stream")
        .agg(
            F.count(F.lit(1)).alias("entries"),
            F.percentile_approx("gap", list(PERCENTILES)).alias("gaps"),
            F.max("gap").alias("longest"),
        )
    )
    rows = []
    for row in totals.orderBy("stream").collect():
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
    return Table("Streams: entries a minute, and the time between them", 1, head, tuple(rows))


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
    rows = _collect(groups.orderBy("stream", "group"))
    lags = [row["lag"] for row in rows if row["lag"] is not None]
    title = "Groups: entries not delivered yet, and idle times of pending ones"
    if lags:
        title += f" (lag over all groups: {_percentiles(lags)})"
    head = ("stream", "group", "consumers", "lag", "pending", "idle p50", "p90", "p99", "oldest")
    groups_rows = tuple(
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
    redelivered = tuple(
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
    columns = ("stream", "group", "entries", "most deliveries", "all deliveries")
    return Table(title, 2, head, groups_rows), Table(
        "Redeliveries of pending entries", 2, columns, redelivered
    )


def _consumers(consumers: Sequence[Mapping[str, Any]]) -> Table:
    totals: Counter[tuple[str, str]] = Counter()
    for row in consumers:
        totals[row["stream"], row["group"]] += row["pending"]
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
    return Table("Consumers: pending entries, and time since last seen and active", 3, head, rows)


def _collect(frame: "DataFrame") -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def _percentiles(values: Sequence[int]) -> str:
    ordered, last = sorted(values), len(values) - 1
    return ", ".join(
        f"p{part * 100:g} {ordered[min(last, int(part * len(ordered)))]:,}" for part in PERCENTILES
    )


def _duration(ms: float | None) -> str:
    if ms is None:
        return "-"
    for size, unit in _UNITS:
        if ms >= size:
            return f"{ms / size:.3g} {unit}"
    return f"{ms:g} ms"


def _align(table: Table) -> str:
    if not table.rows:
        return "  none"
    rows = [table.head, *table.rows]
    widths = [max(len(row[at]) for row in rows) for at in range(len(table.head))]
    lines = []
    for row in rows:
        names = map(str.ljust, row[: table.names], widths)
        numbers = map(str.rjust, row[table.names :], widths[table.names :])
        lines.append("  " + "  ".join((*names, *numbers)).rstrip())
    return "\n".join(lines)


POINTS_MAX = 400
"""Points of a line at most: more minutes are combined."""
LINES_MAX = 8
BARS_MAX = 24
_TIMES_END = datetime(5000, 1, 1, tzinfo=UTC).timestamp() * 1000
"""IDs from here on, in milliseconds, are no times: the margin of an axis must end in 9999."""


def page(report: Report) -> str:
    """Return a report as one self-contained HTML page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(
        loader=PackageLoader("kvstream.spark.jobs", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    made = datetime.fromtimestamp(report.made_ms / 1000, UTC)
    plots = [throughput(report.minutes), _pending(report.shares)]
    return pages.get_template("report.html").render(
        report=report, made=made, plots=[plot for plot in plots if plot]
    )


def throughput(minutes: Sequence[Minute]) -> str:
    """Return a plot of entries a minute, with a line for each of the largest streams, as SVG.

    Empty if there is no minute.
    """
    from kvstream.spark.jobs.plots import lines

    if not minutes:
        return ""
    low, high = min(each.ms for each in minutes), max(each.ms for each in minutes)
    step = MINUTE_MS * max(1, -(-(high - low + MINUTE_MS) // (MINUTE_MS * POINTS_MAX)))
    totals: Counter[str] = Counter()
    for each in minutes:
        totals[each.stream] += each.entries
    largest = [stream for stream, _ in totals.most_common(LINES_MAX)]
    title = "Entries a minute by stream" + _largest(len(largest), len(totals))
    series = [(stream, _line(minutes, stream, low, high, step)) for stream in largest]
    return lines(title, series, x=_span(low, high), y="entries a minute", legend="stream")


def _line(
    minutes: Sequence[Minute], stream: str, low: int, high: int, step: int
) -> list[tuple[datetime | float, float]]:
    """Return the points of a stream; with a single one, also those around it."""
    counts: Counter[int] = Counter()
    for each in minutes:
        if each.stream == stream:
            counts[(each.ms - low) // step] += each.entries
    last = (high - low) // step
    places = range(-1, 2) if last == 0 else range(last + 1)
    return [(_time(low + at * step, high), counts[at] * MINUTE_MS / step) for at in places]


def _time(ms: int, high: int) -> datetime | float:
    """Return a time of an axis that ends at ``high``; a number if the axis has no times."""
    return datetime.fromtimestamp(ms / 1000, UTC) if high < _TIMES_END else ms


def _span(low: int, high: int) -> str:
    """Return the label of an axis of times: its zone, and its first and last minute."""
    if high >= _TIMES_END:
        return "first part of the ID: not a time"
    first, last = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (low, high))
    return f"time in the entries' IDs (UTC), {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M}"


def _pending(shares: Sequence[tuple[str, int]]) -> str:
    """Return a plot of the consumers with the most pending entries, as SVG; empty if none has."""
    from kvstream.spark.jobs.plots import bars

    largest = [share for share in shares[:BARS_MAX] if share[1]]
    if not largest:
        return ""
    title = "Pending entries by stream/group/consumer" + _largest(len(largest), len(shares))
    return bars(title, largest, x="pending entries")


def _largest(count: int, total: int) -> str:
    return f": the {count} largest of {total:,}" if count < total else ""
