"""``archive``: append the new entries of streams to Parquet files, then trim the streams.

::

    <folder>/stream=orders/day=2026-11-21/000003-part-...parquet     the entries
    <folder>/_kvstream/000003.json                                   the record of a completed run
    <folder>/_kvstream/staged-<uuid>/                                the files of an unfinished run

A run archives the entries above the last archived ID. Its files are staged, read back and counted,
and moved into place; the record completes it. The next run removes files of a run without a record,
so the archive has no gap and no repeat whenever a run is killed. Then the stream is trimmed of
archived entries that every group has acknowledged (``XTRIM ... MINID = id ACKED``).

``restore`` writes a range of an archive back to streams; ``asof`` reads archive and streams as one.
"""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstream.errors import Corruption, InvalidArgument, NoSuchKey, RequestError
from kvstream.remote.replies import members
from kvstream.spark.jobs.places import (
    TIMED,
    Say,
    accepts_pattern,
    choose_streams,
    entries,
    lengths,
    require,
    show_places,
)
from kvstream.spark.options import Place, first_id, last_id, places
from kvstream.spark.read.servers import client_of
from kvstream.spark.write.stores import retry_while_locked
from kvstream.store import Store
from kvstream.types.glob import matcher
from kvstream.types.ids import MAX_ID, MIN_ID, StreamID
from kvstream.types.options import RefPolicy

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


class Folder:
    """A folder on any file system that Spark reads, through Hadoop's FileSystem in the JVM."""

    def __init__(self, spark: "SparkSession", uri: str) -> None:
        self.uri = uri.rstrip("/")
        context: Any = spark.sparkContext
        self._path = context._jvm.org.apache.hadoop.fs.Path
        configuration = context._jsc.hadoopConfiguration()
        self._files: Any = self._path(self.uri).getFileSystem(configuration)

    def at(self, *parts: str) -> str:
        """Return the URI of a file in the folder."""
        return "/".join((self.uri, *parts))

    def _of(self, relative: str) -> Any:
        # This constructor leaves %-escapes alone, which names of partitions have.
        return self._path(self._path(self.uri), relative) if relative else self._path(self.uri)

    def exists(self, relative: str) -> bool:
        return bool(self._files.exists(self._of(relative)))

    def names(self, relative: str) -> list[str]:
        """Return the names in a folder, sorted; [] if it does not exist."""
        if not self.exists(relative):
            return []
        return sorted(
            each.getPath().getName() for each in self._files.listStatus(self._of(relative))
        )

    def files(self, relative: str) -> list[str]:
        """Return the files below a folder, relative to it, without hidden ones."""
        if not self.exists(relative):
            return []
        files = []
        top = self._files.getFileStatus(self._of(relative)).getPath().toString()
        listed = self._files.listFiles(self._of(relative), True)
        while listed.hasNext():
            name = listed.next().getPath().toString().removeprefix(top).lstrip("/")
            if not any(part.startswith(("_", ".")) for part in name.split("/")):
                files.append(name)
        return sorted(files)

    def read(self, relative: str) -> str:
        """Return the text of a file."""
        stream = self._files.open(self._of(relative))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write(self, relative: str, text: str) -> None:
        """Write a text file, atomically; the name must be new."""
        partial = f"{relative}.{uuid.uuid4().hex}.partial"
        stream = self._files.create(self._of(partial))
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self.move(partial, relative)

    def move(self, source: str, target: str) -> None:
        """Rename a file, creating the folders of its new name."""
        self._files.mkdirs(self._of(target).getParent())
        if not self._files.rename(self._of(source), self._of(target)):
            raise OSError(f"{self.at(source)} could not be moved to {self.at(target)}")

    def remove(self, relative: str) -> None:
        """Remove a file, or a folder with its content."""
        self._files.delete(self._of(relative), True)


OWN = "_kvstream"
STAGED = "staged-"
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Portion:
    """The entries of one stream in a run."""

    entries: int
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class Run:
    """One completed run."""

    number: int
    source: str
    streams: dict[str, Portion] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    """Relative to the archive."""

    @property
    def entries(self) -> int:
        return sum(portion.entries for portion in self.streams.values())

    def text(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def parse(cls, text: str) -> "Run":
        record = json.loads(text)
        streams = {name: Portion(**portion) for name, portion in record["streams"].items()}
        return cls(record["number"], record["source"], streams, tuple(record["files"]))


class Archive:
    """A folder of archived streams."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def runs(self) -> list[Run]:
        """Return the completed runs, in order."""
        names = [name for name in self.folder.names(OWN) if name.endswith(".json")]
        return [Run.parse(self.folder.read(f"{OWN}/{name}")) for name in names]

    def last_ids(self) -> dict[str, StreamID]:
        """Return the last archived ID of each stream."""
        last: dict[str, StreamID] = {}
        for run in self.runs():
            for name, portion in run.streams.items():
                last[name] = max(last.get(name, MIN_ID), StreamID.parse(portion.last))
        return last

    def files(self) -> list[str]:
        """Return the URIs of all archived files."""
        return [self.folder.at(name) for run in self.runs() for name in run.files]

    def sweep(self) -> None:
        """Remove the files of unfinished runs."""
        counted = {file for run in self.runs() for file in run.files}
        for name in self.folder.names(OWN):
            if name.startswith(STAGED) or name.endswith(".partial"):
                self.folder.remove(f"{OWN}/{name}")
        for file in self.folder.files(""):
            if file not in counted and _is_run_file(file):
                self.folder.remove(file)

    def take(self, staged: str, number: int) -> tuple[str, ...]:
        """Move the staged files of a run into place; return their names."""
        moved = []
        for file in self.folder.files(f"{OWN}/{staged}"):
            place, _, name = file.rpartition("/")
            target = f"{place}/{number:0{_DIGITS}}-{name}"
            self.folder.move(f"{OWN}/{staged}/{file}", target)
            moved.append(target)
        return tuple(moved)

    def complete(self, run: Run) -> None:
        """Write the record of a run."""
        self.folder.write(f"{OWN}/{run.number:0{_DIGITS}}.json", run.text())


def _is_run_file(file: str) -> bool:
    parts = file.split("/")
    return (
        len(parts) == 3
        and parts[0].startswith("stream=")
        and parts[1].startswith("day=")
        and parts[2][:_DIGITS].isdigit()
    )


Trim = Callable[[bytes, StreamID], int]
"""Removes the entries of a stream below an ID that no group needs; returns how many."""


@contextmanager
def trimmer(options: Mapping[str, str]) -> Iterator[Trim]:
    """Open a place for trimming."""
    place: Place = places(options)[0]
    if place.kind == "url":
        with client_of(place) as client:
            yield partial(_trim_on_server, client)
        return
    with retry_while_locked(
        lambda: Store.open(place.address, db=place.db or 0, create=False), WAIT_S
    ) as store:
        yield lambda key, minid: store.stream(key).trim(minid=minid, ref_policy=RefPolicy.ACKED)


def _trim_on_server(client: Any, key: bytes, minid: StreamID) -> int:
    import redis

    try:
        return int(client.execute_command("XTRIM", key, "MINID", "=", str(minid), "ACKED"))
    except redis.ResponseError as error:
        if "syntax" not in str(error).lower():
            raise
    # Redis before 8.2 has no ACKED: trim up to the first ID that a group needs.
    groups = map(members, client.execute_command("XINFO", "GROUPS", key))
    bound = min([minid, *(_first_needed(client, key, group) for group in groups)])
    return int(client.execute_command("XTRIM", key, "MINID", "=", str(bound)))


def _first_needed(client: Any, key: bytes, group: Mapping[str, Any]) -> StreamID:
    """Return the lowest ID that a group may still need."""
    pending, first, *_ = client.execute_command("XPENDING", key, group["name"])
    if pending:
        return StreamID.parse(first)
    delivered = StreamID.parse(group["last-delivered-id"])
    return delivered if delivered == MAX_ID else delivered.next()


WAIT_S = 30.0
DAY_MS = 24 * 3600 * 1000
"""Days are UTC days in every time zone of the session."""


@dataclass(frozen=True, slots=True)
class Archived:
    """The result of ``archive``, in entries."""

    run: int
    """The number of the run; 0 if nothing was new."""
    read: int
    """Entries that were read from the store."""
    written: int
    """Counted by reading the files back; equal to ``read``."""
    trimmed: int
    """Entries that were removed from the store, since the archive has them."""
    streams: int
    """The number of streams that had something new."""


@accepts_pattern
def archive(
    spark: "SparkSession",
    source: Mapping[str, str],
    folder: str,
    *,
    streams: Sequence[str] = (),
    match: str | None = None,
    trim: bool = True,
    before: str | None = None,
    say: Say = print,
) -> Archived:
    """Archive the new entries of streams, by default all, and trim those that no group needs.

    ``source`` are the options of one place. ``before`` is an ID or a time: later entries are left
    for another run. Entries that a group has not acknowledged are archived but not trimmed. May be
    run again after any failure. Raises Corruption if the files do not hold the entries read.
    """
    if len(places(source)) != 1:
        raise InvalidArgument("archive takes one place")
    archive = Archive(Folder(spark, folder))
    archive.sweep()
    options = choose_streams(source, streams, match) | ({"end": f"({before}"} if before else {})
    last = archive.last_ids()
    say(f"archive of {show_places(source)} in {folder}: {len(archive.runs())} earlier runs")
    run, read = _add(spark, archive, options, last, show_places(source))
    if run is None:
        require(spark, [source], (), match)
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
    """Write and count one run; return it with the entries read, None if nothing is new."""
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
    total = sum(portion.entries for portion in portions.values())
    if total != read:
        raise Corruption(f"{read} entries were read, {total} are in the files of the archive")
    run = Run(number, source, portions, archive.take(staged, number))
    archive.complete(run)
    archive.folder.remove(f"{OWN}/{staged}")
    return run, read


def _after(spark: "SparkSession", found: "DataFrame", last: Mapping[str, StreamID]) -> "DataFrame":
    """Return the entries above the last archived IDs."""
    from pyspark.sql import functions as F

    if not last:
        return found
    rows = [(name, (eid.ms, eid.seq)) for name, eid in last.items()]
    known = spark.createDataFrame(rows, "stream string, archived struct<ms:bigint,seq:bigint>")
    joined = found.join(F.broadcast(known), "stream", "left")
    return joined.where("archived is null or id > archived").drop("archived")


def _portions(spark: "SparkSession", folder: str) -> dict[str, Portion]:
    """Count the entries in files, by reading them."""
    from pyspark.sql import functions as F

    kept = spark.read.schema(TIMED + ", day date").parquet(folder)
    rows = kept.groupBy("stream").agg(
        F.count(F.lit(1)).alias("entries"),
        F.min("id").alias("first"),
        F.max("id").alias("last"),
        F.sum(F.size("fields")).alias("fields"),  # makes Spark read every column
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
    """Trim the archived streams that the job selects."""
    matches = matcher(options["match"].encode()) if "match" in options else None
    named = json.loads(options.get("stream", "[]"))
    total = 0
    with trimmer(source) as trim:
        for name, eid in last.items():
            if matches(name.encode()) if matches else name in named:
                total += trim(name.encode(), eid.next())
    say(f"trimmed {total:,} archived entries that no group needs")
    return total


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of ``restore``, in entries."""

    found: int
    """Entries of the range in the archive: ``written + present``."""
    written: int
    """Entries that were added to the target."""
    present: int
    """Entries left out because the stream's last ID is not below theirs."""


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
    """Append a range of archived entries, with their IDs, to the streams that they came from.

    ``into`` names another target for the entries of one stream. Entries whose IDs are not above the
    stream's last ID are left out and counted, so a second run changes nothing.
    """
    from pyspark.sql import functions as F

    if into is not None and len(streams) != 1:
        raise InvalidArgument("with a target stream, name exactly one stream to restore")
    archive = Archive(Folder(spark, folder))
    if not archive.runs():
        raise RequestError(f"there is no archive in {folder}")
    for name in set(streams) - archive.last_ids().keys():
        raise NoSuchKey(f"there is no stream {name!r} in the archive {folder}")
    rows = archived(spark, folder, streams=streams, start=start, end=end).select(
        "stream", "id", "fields"
    )
    if into is not None:
        rows = rows.withColumn("stream", F.lit(into))
    count = rows.count()
    say(f"{count:,} entries in the archive; writing them to {show_places(target)}")
    before = (
        sum(lengths(spark, choose_streams(target, (), None)).values()) if _exists(target) else 0
    )
    if count:
        write = rows.write.format("kvstream").mode("append").options(**target)
        write.option("skipExisting", "true").save()
    after = sum(lengths(spark, choose_streams(target, (), None)).values()) if count else before
    written = after - before
    say(f"{count:,} found = {written:,} written + {count - written:,} already present")
    return Restored(count, written, count - written)


def _exists(target: Mapping[str, str]) -> bool:
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
    frame = reader.parquet(*files)
    if streams:
        frame = frame.where(frame.stream.isin(list(streams)))
    return _within(frame, first_id({"start": start}), last_id({"end": end}))


def _within(frame: "DataFrame", first: StreamID, last: StreamID) -> "DataFrame":
    from pyspark.sql import functions as F

    if first > MIN_ID:
        frame = frame.where(F.col("id") >= _literal(first))
    if last < MAX_ID:
        frame = frame.where(F.col("id") <= _literal(last))
    return frame


def _literal(eid: StreamID) -> "Column":
    from pyspark.sql import functions as F

    most = (1 << 63) - 1
    ms, seq = min(eid.ms, most), min(eid.seq, most)
    return F.struct(F.lit(ms).cast("bigint").alias("ms"), F.lit(seq).cast("bigint").alias("seq"))


@accepts_pattern
def asof(
    spark: "SparkSession",
    folder: str,
    source: Mapping[str, str],
    *,
    streams: Sequence[str] = (),
    match: str | None = None,
    start: str = "-",
    end: str = "+",
) -> "DataFrame":
    """Return a range of archived and live entries: stream, id, fields, timestamp.

    Each entry comes once: from the archive, or from the stream if its ID is above the last archived
    one. ``fields`` is an array, which keeps fields that repeat; ``map_from_entries`` makes a map.
    """
    last = Archive(Folder(spark, folder)).last_ids()
    require(spark, [source], [name for name in streams if name not in last], None)
    bounds = {"start": start, "end": end, "ignoreMissing": "true"}
    live = _after(
        spark, entries(spark, choose_streams(source, streams, match) | bounds, TIMED), last
    )
    old = archived(spark, folder, streams=streams, start=start, end=end).drop("day")
    if match is not None:
        matches = matcher(match.encode())
        old = old.where(old.stream.isin([name for name in last if matches(name.encode())]))
    return old.select(live.columns).unionByName(live)
