"""Where a job's streams are: the options of ``format("kvstream")`` that name a place.

It knows options and DataFrames, no transport.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from kvstream.errors import InvalidArgument, NoSuchKey
from kvstream.spark.options import MISSING_HINT, flag, places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Options = Mapping[str, str]
Say = Callable[[str], None]
"""Told what a job does, a line at a time."""

ENTRIES = (
    "stream string, id struct<ms:bigint,seq:bigint>, fields array<struct<name:string,value:binary>>"
)
"""Entries as jobs move them: with fields that repeat, in their order."""
TIMED = ENTRIES + ", timestamp timestamp"
SERVERS = ("redis://", "rediss://", "unix://")


def place(address: str, db: int | None = None) -> dict[str, str]:
    """Return the options that name a place: a server's URL, or the directory of a store."""
    kind = "url" if address.startswith(SERVERS) else "path"
    return {kind: address} | ({} if db is None else {"db": str(db)})


def chosen(source: Options, streams: Sequence[str], pattern: str | None) -> dict[str, str]:
    """Return the options that name streams of a place; without any, all of them."""
    import json

    if streams and pattern:
        raise InvalidArgument("name streams, or give a pattern")
    if streams:
        return {**source, "stream": json.dumps(list(streams))}
    return {**source, "pattern": pattern or "*"}


def entries(spark: "SparkSession", options: Options, schema: str = ENTRIES) -> "DataFrame":
    """Return the entries of the streams that the options name."""
    return spark.read.format("kvstream").schema(schema).options(**options).load()


def table(spark: "SparkSession", options: Options, name: str) -> "DataFrame":
    """Return a table about the streams that the options name."""
    return spark.read.format("kvstream").options(**options).option("table", name).load()


def lengths(spark: "SparkSession", options: Options) -> dict[str, int]:
    """Return the number of entries of each stream."""
    rows = table(spark, options, "streams").select("stream", "length").collect()
    return {row.stream: row.length for row in rows}


def require(
    spark: "SparkSession",
    sources: Sequence[Options],
    streams: Sequence[str],
    pattern: str | None,
) -> None:
    """Raise NoSuchKey for a stream that is in none of the places, or a pattern that fits none.

    Not where the option ``ignoreMissing`` of one is true, nor for a job of all streams.
    """
    if not (streams or pattern) or any(map(_missing_is_empty, sources)):
        return
    found = {name for each in sources for name in lengths(spark, chosen(each, streams, pattern))}
    missing = [name for name in streams if name not in found]
    if missing or not found:
        what = f"no stream {missing[0]!r}" if missing else f"no stream that {pattern!r} fits"
        where = " or ".join(map(shown, sources))
        raise NoSuchKey(f"there is {what} in {where}: {MISSING_HINT}")


def _missing_is_empty(source: Options) -> bool:
    return flag({name.lower(): value for name, value in source.items()}, "ignoremissing", False)


def shown(options: Options) -> str:
    """Return how a message names the places, without passwords."""
    return ", ".join(each.shown for each in places(options))
