"""The places of a job's streams, as options of ``format("kvstream")``."""

import json
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from kvstream.errors import InvalidArgument, NoSuchKey
from kvstream.spark.options import MISSING_HINT, PATTERN_RENAMED, Options, flag, places
from kvstream.types.urls import server_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

P = ParamSpec("P")
T = TypeVar("T")
Say = Callable[[str], None]
"""Receives a job's log, line by line."""

ENTRIES = (
    "stream string, id struct<ms:bigint,seq:bigint>, fields array<struct<name:string,value:binary>>"
)
"""The schema in which jobs read entries: an array keeps fields that repeat, and their order."""
TIMED = ENTRIES + ", timestamp timestamp"


def place(address: str, db: int | None = None) -> dict[str, str]:
    """Return the options that name ``address``: a server's URL, or the directory of a store."""
    kind = "path" if server_url(address) is None else "url"
    return {kind: address} | ({} if db is None else {"db": str(db)})


def accepts_pattern(job: Callable[P, T]) -> Callable[P, T]:
    """Accept ``pattern``, the former name of the parameter ``match`` of a job."""

    @wraps(job)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if "pattern" in kwargs:
            warnings.warn(PATTERN_RENAMED, DeprecationWarning, stacklevel=2)
            kwargs["match"] = kwargs.pop("pattern")
        return job(*args, **kwargs)

    return run


def choose_streams(source: Options, streams: Sequence[str], match: str | None) -> dict[str, str]:
    """Return a place's options with those that select streams; by default all streams."""
    if streams and match:
        raise InvalidArgument("give stream names or a pattern (match), not both")
    if streams:
        return {**source, "stream": json.dumps(list(streams))}
    return {**source, "match": match or "*"}


def entries(spark: "SparkSession", options: Options, schema: str = ENTRIES) -> "DataFrame":
    """Return the entries of the selected streams."""
    return spark.read.format("kvstream").schema(schema).options(**options).load()


def table(spark: "SparkSession", options: Options, name: str) -> "DataFrame":
    """Return a metadata table of the selected streams."""
    return spark.read.format("kvstream").options(**options).option("table", name).load()


def lengths(spark: "SparkSession", options: Options) -> dict[str, int]:
    """Return the length of each stream that exists."""
    found = table(spark, {**options, "ignoreMissing": "true"}, "streams")
    rows = found.select("stream", "length").collect()
    return {row.stream: row.length for row in rows}


def require(
    spark: "SparkSession",
    sources: Sequence[Options],
    streams: Sequence[str],
    match: str | None,
) -> None:
    """Raise NoSuchKey for a stream that is in no place, or a pattern that matches none.

    A job of all streams, and a place with the option ``ignoreMissing``, pass.
    """
    if not (streams or match) or any(map(_missing_is_empty, sources)):
        return
    names = {
        name for each in sources for name in lengths(spark, choose_streams(each, streams, match))
    }
    missing = [name for name in streams if name not in names]
    if missing or not names:
        what = f"no stream {missing[0]!r}" if missing else f"no stream that matches {match!r}"
        where = " or ".join(map(show_places, sources))
        raise NoSuchKey(f"there is {what} in {where}: {MISSING_HINT}")


def _missing_is_empty(source: Options) -> bool:
    return flag({name.lower(): value for name, value in source.items()}, "ignoremissing", False)


def show_places(options: Options) -> str:
    """Return the addresses of the places, without passwords."""
    return ", ".join(each.shown for each in places(options))
