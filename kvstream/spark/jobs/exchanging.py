"""``import`` and ``export``: files that Spark knows, to streams and from them.

Formats are Spark's: parquet, orc, json, csv, and avro where its package is on the class path.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvstream.errors import InvalidArgument, KVStreamError
from kvstream.spark.jobs.places import Say, chosen, shown
from kvstream.spark.writing.marks import Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("parquet", "json", "csv", "avro", "orc")
AVRO_PACKAGE = "org.apache.spark:spark-avro_2.13"
_JARS = {"spark.jars", "spark.jars.packages"}
_NO_AVRO = (
    "Failed to find data source: avro",
    "JAVA_GATEWAY_EXITED",
    "Java gateway process exited",
)
"""What Spark says: in a session without the package, or of one that could not be fetched."""
_FLAT = ("csv",)
"""Formats that hold no maps: all fields go into one column of JSON, unless they are named."""
_HEADED = {"csv": {"header": "true"}}


class AvroMissing(KVStreamError):
    """Spark has not the package that reads and writes Avro."""


@contextmanager
def avro_told(kind: str | None) -> Iterator[None]:
    """Raise AvroMissing, which says what to do, where Spark cannot come by its package for Avro."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        if kind != "avro" or not any(said in str(error) for said in _NO_AVRO):
            raise
        from pyspark import __version__

        raise AvroMissing(
            f"Avro needs {AVRO_PACKAGE}:{__version__}, a jar that Spark fetches from Maven and "
            "that no Python package brings: where Maven is out of reach, give a file of it as "
            "--conf spark.jars=FILE, or choose another format"
        ) from None


@dataclass(frozen=True, slots=True)
class Imported:
    """What ``import`` has done, in rows."""

    read: int
    written: int
    """0 where these files had been imported under this name before."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What ``export`` has done, in entries."""

    read: int
    written: int
    """Counted in the files after they were written."""


def import_files(
    spark: "SparkSession",
    files: str,
    target: Mapping[str, str],
    *,
    kind: str,
    stream: str | None = None,
    options: Mapping[str, str] | None = None,
    columns: Sequence[str] = (),
    name: str | None = None,
    say: Say = print,
) -> Imported:
    """Append the rows of files to streams: columns as ``format("kvstream")`` takes them.

    All rows appear at once. ``columns`` chooses some, as expressions of SQL (``"at as id"``).
    ``name`` is what the import is known by, by default the files and their sizes: it happens once
    under it, so that a job that failed may be run again.
    """
    with avro_told(kind):
        rows = _read(spark, files, kind, options or {})
    if columns:
        rows = rows.selectExpr(*columns)
    count = rows.count()
    known = Transaction(f"import:{name or _fingerprint(rows, stream)}", 1)
    say(f"{count:,} rows of {files} to {shown(target)}")
    if _is_done(spark, target, known):
        say("imported before under this name: nothing is to be done")
        return Imported(count, 0)
    write = rows.write.format("kvstream").mode("append").options(**target)
    if stream is not None:
        write = write.option("stream", stream)
    write.option("txnAppId", known.writer).option("txnVersion", known.number).save()
    say(f"{count:,} read = {count:,} written")
    return Imported(count, count)


def packages_of(kind: str | None, given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a session that a format needs: Avro is a package of its own.

    None where jars or packages are given: that of Avro is believed to be among them.
    """
    if kind != "avro" or not _JARS.isdisjoint(given):
        return {}
    from pyspark import __version__

    return {"spark.jars.packages": f"{AVRO_PACKAGE}:{__version__}"}


def _read(spark: "SparkSession", files: str, kind: str, options: Mapping[str, str]) -> "DataFrame":
    if kind not in FORMATS:
        raise InvalidArgument(f"files are of one of {', '.join(FORMATS)}")
    given = {**_HEADED.get(kind, {}), **options}
    schema = given.pop("schema", None)
    reader = spark.read.format(kind).options(**given)
    return (reader.schema(schema) if schema else reader).load(files)


def _fingerprint(rows: "DataFrame", stream: str | None) -> str:
    """Return what tells these files from others."""
    digest = hashlib.sha256((stream or "").encode())
    for file in sorted(rows.inputFiles()):
        digest.update(file.encode() + b"\0")
    return digest.hexdigest()[:32]


def _is_done(spark: "SparkSession", target: Mapping[str, str], known: Transaction) -> bool:
    """Tell whether every place has the mark."""
    from kvstream.spark.options import places
    from kvstream.spark.writing.targets import mark_in

    return all(known.is_done(mark_in(place, known)) for place in places(target))


def export_files(
    spark: "SparkSession",
    source: Mapping[str, str],
    folder: str,
    *,
    kind: str,
    streams: Sequence[str] = (),
    pattern: str | None = None,
    start: str = "-",
    end: str = "+",
    fields: Sequence[str] = (),
    overwrite: bool = False,
    options: Mapping[str, str] | None = None,
    say: Say = print,
) -> Exported:
    """Write entries to files: stream, id as text, timestamp, and the fields.

    ``fields`` are columns each, as text; without them all stand in one column ``fields``: a map, or
    JSON where the format has no maps. Files that are there are kept, and refused, unless
    ``overwrite`` replaces them.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    if kind not in FORMATS:
        raise InvalidArgument(f"files are of one of {', '.join(FORMATS)}")
    columns = [f"`{name}` string" for name in fields] or ["fields map<string,string>"]
    schema = ", ".join(["stream string", "id string", "timestamp timestamp", *columns])
    wanted = chosen(source, streams, pattern) | {"start": start, "end": end}
    found = spark.read.format("kvstream").schema(schema).options(**wanted).load()
    if not fields and kind in _FLAT:
        found = found.withColumn("fields", F.to_json("fields"))
    seen = Observation("read")
    counted = found.observe(seen, F.count(F.lit(1)).alias("entries"))
    given = {**_HEADED.get(kind, {}), **(options or {})}
    mode = "overwrite" if overwrite else "errorifexists"
    with avro_told(kind):
        counted.write.format(kind).mode(mode).options(**given).save(folder)
    read = int(seen.get["entries"])
    written = spark.read.format(kind).schema(found.schema).options(**given).load(folder).count()
    say(f"{read:,} read = {written:,} written to {folder}")
    return Exported(read, written)
