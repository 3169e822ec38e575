"""``verify``: compare the entries of two places by digests of ranges, computed in tasks.

The digest of a range of IDs is its number of entries and two combinations of the hashes of their
IDs and fields. Only digests are compared, so no entry leaves its task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvstream.spark.jobs.places import (
    ENTRIES,
    Say,
    accepts_pattern,
    choose_streams,
    entries,
    require,
    show_places,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RANGE_MS = 24 * 3600 * 1000
"""The length of a range of IDs in milliseconds: a day."""
SHOWN_MAX = 20
_ENTRIES = ENTRIES.replace("name:string", "name:binary")
"""Field names are only hashed, so they need not be UTF-8."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A range of a stream that differs between the places."""

    stream: str
    """The name of the stream."""
    first_ms: int
    """The first millisecond of the range, which is ``RANGE_MS`` long."""
    source: int
    """The number of entries in the source."""
    target: int
    """The number of entries in the target."""


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of ``verify``."""

    ranges: int
    """Ranges that were compared."""
    equal: int
    """Ranges that are equal."""
    source: int
    """The number of entries in the source."""
    target: int
    """The number of entries in the target."""
    differences: tuple[Difference, ...]
    """The first differences; their total number is ``ranges - equal``."""

    @property
    def is_equal(self) -> bool:
        """Whether all ranges are equal."""
        return self.ranges == self.equal


@accepts_pattern
def verify(
    spark: "SparkSession",
    source: Mapping[str, str],
    target: Mapping[str, str],
    *,
    streams: Sequence[str] = (),
    match: str | None = None,
    start: str = "-",
    end: str = "+",
    say: Say = print,
) -> Verified:
    """Compare the entries of two places, each of which may be several stores.

    A stream that only one of them has is a difference. Raises NoSuchKey for a name that neither
    has, and for a pattern that matches nothing.
    """
    from pyspark.sql import functions as F

    say(f"comparing {show_places(source)} with {show_places(target)}")
    bounds = {"start": start, "end": end, "ignoreMissing": "true"}
    ours, theirs = (
        _digests(entries(spark, choose_streams(place, streams, match) | bounds, _ENTRIES))
        for place in (source, target)
    )
    joined = ours.withColumnRenamed("digest", "source_digest").join(
        theirs.withColumnRenamed("digest", "target_digest"), ["stream", "range"], "full"
    )
    ranges = joined.select(
        "stream",
        (F.col("range") * RANGE_MS).alias("first_ms"),
        F.coalesce("source_digest.entries", F.lit(0)).alias("source"),
        F.coalesce("target_digest.entries", F.lit(0)).alias("target"),
        F.col("source_digest").eqNullSafe(F.col("target_digest")).alias("same"),
    ).cache()
    try:
        result = _sum_up(ranges, say)
    finally:
        ranges.unpersist()
    if not result.ranges or len(streams) > 1:
        require(spark, [source, target], streams, match)
    return result


def _digests(found: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F

    hashed = found.select(
        "stream",
        F.floor(F.col("id.ms") / RANGE_MS).alias("range"),
        F.xxhash64("id", "fields").alias("hash"),
    )
    digest = F.struct(
        F.count(F.lit(1)).alias("entries"),
        F.sum(F.col("hash").cast("decimal(38,0)")).alias("sum"),
        F.bit_xor("hash").alias("xor"),
    )
    return hashed.groupBy("stream", "range").agg(digest.alias("digest"))


def _sum_up(ranges: "DataFrame", say: Say) -> Verified:
    from pyspark.sql import functions as F

    total = ranges.agg(
        F.count(F.lit(1)).alias("ranges"),
        F.count_if("same").alias("equal"),
        F.coalesce(F.sum("source"), F.lit(0)).alias("source"),
        F.coalesce(F.sum("target"), F.lit(0)).alias("target"),
    ).first()
    assert total is not None
    rows = ranges.where("not same").orderBy("stream", "first_ms").limit(SHOWN_MAX).collect()
    differences = tuple(
        Difference(row.stream, row.first_ms, row.source, row.target) for row in rows
    )
    for each in differences:
        counts = f"{each.source:,} entries in the source, {each.target:,} in the target"
        say(f"differs: {each.stream} from {each.first_ms}: {counts}")
    say(
        f"{total.equal:,} of {total.ranges:,} ranges are equal; "
        f"{total.source:,} entries in the source, {total.target:,} in the target"
    )
    return Verified(total.ranges, total.equal, total.source, total.target, differences)
