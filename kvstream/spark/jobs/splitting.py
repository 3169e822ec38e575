"""Long streams of a server, brought by ranges of their IDs: a task for each.

The entries are a bulk load (``joining``): tasks make tables, and one commit takes them in. Then
come what was added meanwhile, groups, counters and expiry, and the name: so a stream is seen whole
or not at all. It knows one stream at a time.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvstream.ids import StreamID
from kvstream.migration import Selection, differences, paging, parse_place
from kvstream.migration.places import Place as MigrationPlace
from kvstream.migration.places import PlaceKind
from kvstream.migration.server import Server
from kvstream.migration.server_source import ServerSource
from kvstream.migration.store_place import StoreSource
from kvstream.parts import Part
from kvstream.spark.jobs.joining import Long, Making, joining, takes_tables
from kvstream.spark.jobs.places import Say
from kvstream.spark.options import Place
from kvstream.spark.reading.pieces import Wanted
from kvstream.spark.reading.servers import ServerReading, client_of
from kvstream.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPLIT_ENTRIES = 1_000_000
"""A stream with more entries than these is brought by several tasks."""
_TELLS_COUNTERS = (7, 0)
"""The first version of Redis that tells how much groups have read."""


@dataclass(frozen=True, slots=True)
class Range:
    """What one task brings."""

    stream: Long
    first: StreamID
    last: StreamID
    partition: int
    making: Making


def long_streams(
    source: str, target: str, match: tuple[str, ...], allowed: frozenset[str], least: int
) -> list[Long]:
    """Return the streams of a server that are worth more than one task, and lose nothing by it.

    Commands tell less than DUMP does of the newest servers: such a stream is brought in one piece.
    """
    here, there = parse_place(source), parse_place(target, create=True)
    if not least or here.kind is not PlaceKind.SERVER or not _takes_parts(there, target):
        return []
    chosen = None if here.database is None else frozenset([here.database])
    selection = Selection(tuple(name.encode() for name in match), chosen)
    found: list[Long] = []
    into = target if there.kind is PlaceKind.SERVER else str(there.path)
    server = Server(here)
    with closing(ServerSource(server)):
        if server.about.version < _TELLS_COUNTERS:
            return []
        for db in filter(selection.has_database, server.databases()):
            reading = ServerReading(client_of(Place("url", source, db)))
            keys = [key for key in reading.streams(Wanted((), (b"*",))) if selection.has(db, key)]
            for key, ends in zip(keys, reading.ends(keys), strict=True):
                stream = Long(source, into, db, key)
                if ends is None or ends.length < least or not _is_text(key):
                    continue
                notes = paging.outline(server.connection(db), key).notes
                if all(note.name in allowed for note in notes):
                    found.append(stream)
            reading.close()
    return found


def _takes_parts(there: MigrationPlace, target: str) -> bool:
    """Tell whether a target takes tables: a store, or a kvstream server without a database."""
    if there.kind is PlaceKind.SERVER:
        return there.database is None and takes_tables(target)
    return there.kind is PlaceKind.STORE


def _is_text(key: bytes) -> bool:
    """Tell whether Spark can name a stream, to compare it."""
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def bring(spark: "SparkSession", stream: Long, say: Say) -> int:
    """Bring a stream that is not at the target yet; return its entries, 0 where it is there."""
    into = joining(stream)
    try:
        making = into.begin()
        if making is None:
            return 0
        ranges = _ranges(stream, making, spark.sparkContext.defaultParallelism)
        say(f"{stream.key.decode()}: {len(ranges):,} ranges of IDs")
        parts = spark.sparkContext.parallelize(ranges, len(ranges) or 1).flatMap(parts_of).collect()
        return into.complete(parts, ranges[-1].last if ranges else None)
    finally:
        into.end()


def _ranges(stream: Long, making: Making, parts: int) -> list[Range]:
    reading = ServerReading(client_of(Place("url", stream.source, stream.db)))
    try:
        pieces = reading.pieces([stream.key], Wanted((stream.key,), ()), parts)
    finally:
        reading.close()
    return [Range(stream, piece.start, piece.end, at, making) for at, piece in enumerate(pieces)]


def parts_of(wanted: Range) -> Iterator[Part]:
    """Run in a task: make the entries of a range into parts."""
    stream, bounds = wanted.stream, (wanted.first.packed, wanted.last.packed)
    with closing(stream.connection()) as connection:
        pages = paging.between(connection, stream.key, *bounds)
        yield from wanted.making.make(stream, wanted.partition, pages)


def differing(stream: Long) -> int:
    """Return how many differences there are in what a stream has besides entries."""
    with (
        closing(ServerSource(Server(parse_place(stream.source)))) as source,
        closing(_target_of(stream)) as target,
    ):
        mine, theirs = (each.item(stream.db, stream.key) for each in (source, target))
        if mine is None or theirs is None or mine.outline is None or theirs.outline is None:
            return 1
        told = differences.states(mine.outline().state, theirs.outline().state)
        return sum(not each.may_move for each in told)


def _target_of(stream: Long) -> ServerSource | StoreSource:
    if stream.is_served:
        return ServerSource(Server(parse_place(stream.target)))
    return StoreSource(Store.open(stream.target, read_only=True))
