"""``report``: what goes on in streams and their groups, as tables for people and as a page.

Throughput by minute and the time between entries come from the entries' IDs; how groups keep up,
what each consumer has before it, and what was delivered again come from the tables.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvstream.spark.jobs.places import Say, chosen, require, shown, table

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
