"""``verify``: are the entries of two places the same? By digests of ranges, made in tasks.

Each range of IDs of each stream is reduced to a number of entries and two sums of hashes of their
IDs and fields; those of both places are laid side by side. So no entry leaves its task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvstream.spark.jobs.places import ENTRIES, Say, chosen, entries, require, shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RANGE_MS = 24 * 3600 * 1000
"""Milliseconds of IDs in a range: a day."""
SHOWN_MAX = 20
_ENTRIES = ENTRIES.replace("name:string", "name:binary")
"""Names of fields may be no UTF-8: nobody reads them here."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A range of a stream that is not the same in both places."""

    stream: str
    first_ms: int
    """IDs from this millisecond on, for ``RANGE_MS``."""
    source: int
    """Entries there."""
    target: int


@dataclass(frozen=True, slots=True)
class Verified:
    """What ``verify`` has found."""

    ranges: int
    equal: int
    source: int
    """Entries of the source."""
    target: int
    differences: tuple[Difference, ...]
    """The first of them; ``ranges - equal`` is their number."""

    @property
    def is_equal(self) -> bool:
        return self.ranges == self.equal


def verify(
    spark: "SparkSession",
    source: Mapping[str, str],
    target: Mapping[str, str],
    *,
    streams: Sequence[str] = (),
    pattern: str | None = None,
    start: str = "-",
    end: str = "+",
    say: Say = print,
) -> Verified:
    """Compare the entries of two places, each of which may be several stores.

    A stream that one of them has not is a difference. Raises NoSuchKey for a name that neither has,
    and for a pattern that fits nothing.
    """
    from pyspark.sql import functions as F

    say(f"comparing {shown(source)} with {shown(target)}")
    manner = {"start": start, "end": end, "ignoreMissing": "true"}
    mine, theirs = (
        _digests(entries(spark, chosen(place, streams, pattern) | manner, _ENTRIES))
        for place in (source, target)
    )
    same = F.col("mine").eqNullSafe(F.col("theirs"))
    joined = mine.withColumnRenamed("digest", "mine").join(
        theirs.withColumnRenamed("digest", "theirs"), ["stream", "range"], "full"
    )
    told = joined.select(
        "stream",
        (F.col("range") * RANGE_MS).alias("first_ms"),
        F.coalesce("mine.entries", F.lit(0)).alias("source"),
        F.coalesce("theirs.entries", F.lit(0)).alias("target"),
        same.alias("same"),
    ).cache()
    try:
        found = _summed(told, say)
    finally:
        told.unpersist()
    if not found.ranges or len(streams) > 1:
        require(spark, [source, target], streams, pattern)
    return found


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


def _summed(told: "DataFrame", say: Say) -> Verified:
    from pyspark.sql import functions as F

    total = told.agg(
        F.count(F.lit(1)).alias("ranges"),
        F.count_if("same").alias("equal"),
        F.coalesce(F.sum("source"), F.lit(0)).alias("source"),
        F.coalesce(F.sum("target"), F.lit(0)).alias("target"),
    ).first()
    assert total is not None
    rows = told.where("not same").orderBy("stream", "first_ms").limit(SHOWN_MAX).collect()
    found = tuple(Difference(row.stream, row.first_ms, row.source, row.target) for row in rows)
    for each in found:
        counts = f"{each.source:,} here, {each.target:,} there"
        say(f"differs: {each.stream} from {each.first_ms}: {counts}")
    say(
        f"{total.equal:,} of {total.ranges:,} ranges are equal; "
        f"{total.source:,} entries here, {total.target:,} there"
    )
    return Verified(total.ranges, total.equal, total.source, total.target, found)
