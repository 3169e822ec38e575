"""``archive``: streams to Parquet by stream and day, run after run; then trims what is safe.

A run takes what lies above the last ID that is archived. Its files count only once they have been
read back and counted, so whatever kills it, the next run finds an archive without a gap or a
repeat. Only then is the stream trimmed.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvstream.errors import Corruption, InvalidArgument
from kvstream.ids import StreamID
from kvstream.spark.jobs.folders import Folder
from kvstream.spark.jobs.manifest import OWN, STAGED, Archive, Portion, Run
from kvstream.spark.jobs.places import TIMED, Say, chosen, entries, require, shown
from kvstream.spark.jobs.trimming import trimmer
from kvstream.spark.options import places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAIT_S = 30.0
DAY_MS = 24 * 3600 * 1000
"""Days are those of UTC, whatever zone the session has."""


@dataclass(frozen=True, slots=True)
class Archived:
    """What a run of ``archive`` has done, in entries."""

    run: int
    """Its number; 0 where there was nothing new."""
    read: int
    written: int
    """Counted in the files after they were written; equal to ``read``."""
    trimmed: int
    streams: int


def archive(
    spark: "SparkSession",
    source: Mapping[str, str],
    folder: str,
    *,
    streams: Sequence[str] = (),
    pattern: str | None = None,
    trim: bool = True,
    before: str | None = None,
    say: Say = print,
) -> Archived:
    """Archive what is new in some streams, by default all, and trim what is archived and done with.

    ``source`` are the options of one place; ``before`` an ID or a time: what comes from then on is
    left for later. Entries that a group has not acknowledged are archived, but stay. May be run
    again after any failure. Raises Corruption where the files do not hold what was read.
    """
    if len(places(source)) != 1:
        raise InvalidArgument("an archive is of one place")
    archive = Archive(Folder(spark, folder))
    archive.sweep()
    options = chosen(source, streams, pattern) | ({"end": f"({before}"} if before else {})
    last = archive.last_ids()
    say(f"archive of {shown(source)} in {folder}: {len(archive.runs())} runs before this one")
    run, read = _add(spark, archive, options, last, shown(source))
    if run is None:
        require(spark, [source], (), pattern)
    else:
        say(f"run {run.number}: {run.entries:,} entries of {len(run.streams)} streams, read back")
        for name, portion in run.streams.items():
            last[name] = StreamID.parse(portion.last)
    trimmed = _trim(source, last, options, say) if trim else 0
    written = run.entries if run else 0
    say(f"{read:,} read = {written:,} archived; {trimmed:,} trimmed")
    return Archived(
        run.number if run else 0, read, written, trimmed, len(run.streams) if run else 0
    )


def _add(
    spark: "SparkSession",
    archive: Archive,
    options: Mapping[str, str],
    last: Mapping[str, StreamID],
    source: str,
) -> tuple[Run | None, int]:
    """Write and count one run; None where nothing is new."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    number = max((run.number for run in archive.runs()), default=0) + 1
    staged = f"{STAGED}{uuid.uuid4().hex}"
    seen = Observation("read")
    fresh = _after(spark, entries(spark, options, TIMED), last)
    counted = fresh.observe(seen, F.count(F.lit(1)).alias("entries"))
    days = counted.withColumn(
        "day", F.date_from_unix_date(F.floor(F.col("id.ms") / DAY_MS).cast("int"))
    )
    days.write.partitionBy("stream", "day").parquet(archive.folder.at(OWN, staged))
    read = int(seen.get["entries"])
    if not read:
        archive.folder.remove(f"{OWN}/{staged}")
        return None, 0
    portions = _portions(spark, archive.folder.at(OWN, staged))
    found = sum(portion.entries for portion in portions.values())
    if found != read:
        raise Corruption(f"{read} entries were read, {found} are in the files of the archive")
    run = Run(number, source, portions, archive.take(staged, number))
    archive.complete(run)
    archive.folder.remove(f"{OWN}/{staged}")
    return run, read


def _after(spark: "SparkSession", found: "DataFrame", last: Mapping[str, StreamID]) -> "DataFrame":
    """Leave out what is archived already."""
    from pyspark.sql import functions as F

    if not last:
        return found
    rows = [(name, (eid.ms, eid.seq)) for name, eid in last.items()]
    known = spark.createDataFrame(rows, "stream string, archived struct<ms:bigint,seq:bigint>")
    joined = found.join(F.broadcast(known), "stream", "left")
    return joined.where("archived is null or id > archived").drop("archived")


def _portions(spark: "SparkSession", folder: str) -> dict[str, Portion]:
    """Count what files hold, by reading them."""
    from pyspark.sql import functions as F

    kept = spark.read.schema(TIMED + ", day date").parquet(folder)
    rows = kept.groupBy("stream").agg(
        F.count(F.lit(1)).alias("entries"),
        F.min("id").alias("first"),
        F.max("id").alias("last"),
        F.sum(F.size("fields")).alias("fields"),  # has every column read
    )
    return {
        row.stream: Portion(row.entries, str(StreamID(*row.first)), str(StreamID(*row["last"])))
        for row in rows.orderBy("stream").collect()
    }


def _trim(
    source: Mapping[str, str],
    last: Mapping[str, StreamID],
    options: Mapping[str, str],
    say: Say,
) -> int:
    """Trim the streams of the archive that the job is about."""
    from kvstream.glob import matcher

    fits = matcher(options["pattern"].encode()) if "pattern" in options else None
    named = json.loads(options.get("stream", "[]"))
    total = 0
    with trimmer(source, WAIT_S) as place:
        for name, eid in last.items():
            if fits(name.encode()) if fits else name in named:
                total += place.trim(name.encode(), eid.next())
    say(f"trimmed {total:,} entries that are archived and that no group needs")
    return total
