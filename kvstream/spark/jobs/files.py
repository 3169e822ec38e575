"""``import`` and ``export``: files of Spark's own formats into streams, and out of them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvstream.errors import InvalidArgument, RequestError
from kvstream.spark.jobs.archives import Folder
from kvstream.spark.jobs.places import Say, accepts_pattern, choose_streams, require, show_places
from kvstream.spark.write.stage import Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SOURCES = {
    "parquet": "parquet",
    "json": "json",
    "csv": "csv",
    # Part of Spark, but the short name works only with the package spark-avro.
    "avro": "org.apache.spark.sql.avro.AvroFileFormat",
    "orc": "orc",
}
FORMATS = tuple(_SOURCES)
_FLAT = ("csv",)
"""Formats without maps: the column ``fields`` is JSON, unless fields are chosen by name."""
_MAP = "map<string,string>"
_FIELDS = {"avro": "array<struct<name:string,value:string>>"}
"""The type of ``fields`` in formats whose maps have no order."""
_STAGED = "_temporary"
"""The folder in which Spark keeps files until a job commits."""
_HEADED = {"csv": {"header": "true"}}


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of ``import``, in rows."""

    read: int
    """Rows of the files."""
    written: int
    """0 if these files were imported under this name before."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of ``export``, in entries."""

    read: int
    """Entries that were read from the store."""
    written: int
    """Counted by reading the files back."""


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
    """Append the rows of files to streams, atomically; columns are those of ``format("kvstream")``.

    ``columns`` selects columns as SQL expressions (``"at as id"``). An import happens once for each
    ``name``, so a failed job may be run again; the default name is a hash of the files' names and
    sizes.
    """
    rows = _read(spark, files, kind, options or {}, bool(columns))
    known = Transaction(f"import:{name or _fingerprint(rows, stream)}", 1)
    if columns:
        rows = rows.selectExpr(*columns)
    count = rows.count()
    say(f"{count:,} rows of {files} to {show_places(target)}")
    if _is_done(target, known):
        say("already imported under this name: nothing to do")
        return Imported(count, 0)
    write = rows.write.format("kvstream").mode("append").options(**target)
    if stream is not None:
        write = write.option("stream", stream)
    write.option("txnAppId", known.writer).option("txnVersion", known.number).save()
    say(f"{count:,} read = {count:,} written")
    return Imported(count, count)


def _read(
    spark: "SparkSession", files: str, kind: str, options: Mapping[str, str], chosen: bool
) -> "DataFrame":
    """Read files; unless columns are chosen, parse a JSON column ``fields`` into a map."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import MapType, StringType, StructField, StructType

    given = {**_HEADED.get(kind, {}), **options}
    schema = given.pop("schema", None)
    reader = spark.read.format(_source(kind)).options(**given)
    rows = (reader.schema(schema) if schema else reader).load(files)
    types = {} if chosen else {each.name: each.dataType for each in rows.schema}
    if kind == "json" and isinstance(types.get("fields"), StructType):
        types["fields"] = MapType(StringType(), StringType())  # a struct sorts the names
        wanted = [StructField(name, each) for name, each in types.items()]
        return reader.schema(StructType(wanted)).load(files)
    if kind in _FLAT and isinstance(types.get("fields"), StringType):
        return rows.withColumn("fields", F.from_json("fields", _MAP, {"mode": "FAILFAST"}))
    return rows


def _source(kind: str) -> str:
    """Return Spark's name of a format. Raises InvalidArgument for an unknown one."""
    if kind not in _SOURCES:
        raise InvalidArgument(f"the format {kind!r} is not one of {', '.join(FORMATS)}")
    return _SOURCES[kind]


def _fingerprint(rows: "DataFrame", stream: str | None) -> str:
    """Return a hash of the files' names and sizes."""
    digest = hashlib.sha256((stream or "").encode())
    files = rows.select("_metadata.file_path", "_metadata.file_size").distinct()
    for name, size in sorted(map(tuple, files.collect())):
        digest.update(f"{name} {size}\0".encode())
    return digest.hexdigest()[:32]


def _is_done(target: Mapping[str, str], known: Transaction) -> bool:
    """Return whether every place has the mark of the import."""
    from kvstream.spark.options import places
    from kvstream.spark.write.writers import mark_in

    return all(known.is_done(mark_in(place, known)) for place in places(target))


@accepts_pattern
def export_files(
    spark: "SparkSession",
    source: Mapping[str, str],
    folder: str,
    *,
    kind: str,
    streams: Sequence[str] = (),
    match: str | None = None,
    start: str = "-",
    end: str = "+",
    fields: Sequence[str] = (),
    overwrite: bool = False,
    options: Mapping[str, str] | None = None,
    say: Say = print,
) -> Exported:
    """Write entries to files, with the columns stream, id (as text), timestamp, and the fields.

    Each name in ``fields`` becomes a text column. By default one column ``fields`` has them all: a
    map, in Avro an array of names and values (its maps have no order), in CSV JSON. Raises
    RequestError if the folder has files, unless ``overwrite`` replaces them; what Spark leaves of a
    failed job does not count.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    form = _source(kind)
    there = Folder(spark, folder)
    if not overwrite and not {_STAGED}.issuperset(there.names("")):
        raise RequestError(f"{folder} has files already: overwrite (--overwrite) replaces them")
    require(spark, [source], streams, match)
    columns = [f"`{name.replace('`', '``')}` string" for name in fields] or [
        f"fields {_FIELDS.get(kind, _MAP)}"
    ]
    schema = ", ".join(["stream string", "id string", "timestamp timestamp", *columns])
    wanted = choose_streams(source, streams, match) | {"start": start, "end": end}
    frame = spark.read.format("kvstream").schema(schema).options(**wanted).load()
    if not fields and kind in _FLAT:
        frame = frame.withColumn("fields", F.to_json("fields"))
    seen = Observation("read")
    counted = frame.observe(seen, F.count(F.lit(1)).alias("entries"))
    given = {**_HEADED.get(kind, {}), **(options or {})}
    mode = "overwrite" if there.exists("") else "errorifexists"
    counted.write.format(form).mode(mode).options(**given).save(folder)
    read = int(seen.get["entries"])
    written = spark.read.format(form).schema(frame.schema).options(**given).load(folder).count()
    say(f"{read:,} read = {written:,} written to {folder}")
    return Exported(read, written)
