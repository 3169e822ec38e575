"""``restore`` brings a range of an archive back; ``asof`` reads archive and live as one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvstream.errors import InvalidArgument, NoSuchKey, RequestError
from kvstream.ids import MAX_ID, MIN_ID, StreamID
from kvstream.spark.jobs.folders import Folder
from kvstream.spark.jobs.manifest import Archive
from kvstream.spark.jobs.places import TIMED, Say, chosen, entries, lengths, require, shown
from kvstream.spark.options import first_id, last_id

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Restored:
    """What ``restore`` has done, in entries."""

    found: int
    """In the archive, in the range."""
    written: int
    present: int
    """Left out, as the stream has come as far already; with ``written`` they are those found."""


def restore(
    spark: "SparkSession",
    folder: str,
    target: Mapping[str, str],
    *,
    streams: Sequence[str] = (),
    start: str = "-",
    end: str = "+",
    into: str | None = None,
    say: Say = print,
) -> Restored:
    """Append a range of archived entries, under their IDs, to the streams that they come from.

    ``into`` names another stream, for those of one. A stream only grows upwards: what is not above
    its last ID is left out and counted, so a second run changes nothing.
    """
    from pyspark.sql import functions as F

    if into is not None and len(streams) != 1:
        raise InvalidArgument("one stream is restored into another: name the one to be restored")
    archive = Archive(Folder(spark, folder))
    if not archive.runs():
        raise RequestError(f"there is no archive in {folder}")
    for name in set(streams) - archive.last_ids().keys():
        raise NoSuchKey(f"there is no stream {name!r} in the archive {folder}")
    found = archived(spark, folder, streams=streams, start=start, end=end).select(
        "stream", "id", "fields"
    )
    if into is not None:
        found = found.withColumn("stream", F.lit(into))
    count = found.count()
    say(f"{count:,} entries in the archive; writing them to {shown(target)}")
    before = sum(lengths(spark, chosen(target, (), None)).values()) if _is_there(target) else 0
    if count:
        write = found.write.format("kvstream").mode("append").options(**target)
        write.option("skipExisting", "true").save()
    after = sum(lengths(spark, chosen(target, (), None)).values()) if count else before
    written = after - before
    say(f"{count:,} found = {written:,} written + {count - written:,} that were there")
    return Restored(count, written, count - written)


def _is_there(target: Mapping[str, str]) -> bool:
    from pathlib import Path

    return "path" not in target or (Path(target["path"]) / "CURRENT").exists()


def archived(
    spark: "SparkSession",
    folder: str,
    *,
    streams: Sequence[str] = (),
    start: str = "-",
    end: str = "+",
) -> "DataFrame":
    """Return the archived entries of a range: stream, id, fields, timestamp, day."""
    archive = Archive(Folder(spark, folder))
    files = archive.files()
    reader = spark.read.schema(TIMED + ", day date").option("basePath", folder)
    if not files:
        return spark.createDataFrame([], TIMED + ", day date")
    found = reader.parquet(*files)
    if streams:
        found = found.where(found.stream.isin(list(streams)))
    return _within(found, first_id({"start": start}), last_id({"end": end}))


def _within(found: "DataFrame", first: StreamID, last: StreamID) -> "DataFrame":
    from pyspark.sql import functions as F

    if first > MIN_ID:
        found = found.where(F.col("id") >= _literal(first))
    if last < MAX_ID:
        found = found.where(F.col("id") <= _literal(last))
    return found


def _literal(eid: StreamID) -> "Column":
    from pyspark.sql import functions as F

    most = (1 << 63) - 1
    ms, seq = min(eid.ms, most), min(eid.seq, most)
    return F.struct(F.lit(ms).cast("bigint").alias("ms"), F.lit(seq).cast("bigint").alias("seq"))


def asof(
    spark: "SparkSession",
    folder: str,
    source: Mapping[str, str],
    *,
    streams: Sequence[str] = (),
    pattern: str | None = None,
    start: str = "-",
    end: str = "+",
) -> "DataFrame":
    """Return a range of streams whether archived or live: stream, id, fields, timestamp.

    Each entry once: what the archive has comes from there, what lies above its last ID is live.
    ``fields`` is an array, which keeps fields that repeat; ``map_from_entries`` makes a map of it.
    """
    from pyspark.sql import functions as F

    archive = Archive(Folder(spark, folder))
    last = archive.last_ids()
    require(spark, [source], [name for name in streams if name not in last], None)
    manner = {"start": start, "end": end, "ignoreMissing": "true"}
    live = entries(spark, chosen(source, streams, pattern) | manner, TIMED)
    if last:
        rows = [(name, (eid.ms, eid.seq)) for name, eid in last.items()]
        known = spark.createDataFrame(rows, "stream string, archived struct<ms:bigint,seq:bigint>")
        live = live.join(F.broadcast(known), "stream", "left")
        live = live.where("archived is null or id > archived").drop("archived")
    old = archived(spark, folder, streams=streams, start=start, end=end).drop("day")
    if pattern is not None:
        old = _fitting(old, pattern, sorted(last))
    return old.select(live.columns).unionByName(live)


def _fitting(found: "DataFrame", pattern: str, names: Sequence[str]) -> "DataFrame":
    from kvstream.glob import matcher

    fits = matcher(pattern.encode())
    return found.where(found.stream.isin([name for name in names if fits(name.encode())]))
