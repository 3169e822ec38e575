"""Batch reads: planned once for each ``load()``, then read by tasks as Arrow batches."""

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kvstream.spark.gc_settings import freeze_modules, without_gc
from kvstream.spark.options import Options, Place, flag, moment_ms, number, places
from kvstream.spark.read import archives
from kvstream.spark.read.partitions import (
    Piece,
    ReadSpec,
    Source,
    TaskPartition,
    bounds,
    task_partitions,
)
from kvstream.spark.read.servers import Server, ServerReader, node_of
from kvstream.spark.read.stores import make_copy, pieces_of, require, streams_of
from kvstream.spark.schema import ReadSchema, read_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter


TASK_ENTRIES = 500_000
"""Entries of one task, unless the option ``partitions`` sets the number of tasks."""
TASK_ENTRIES_MIN = 20_000
"""A read below twice this size gets one task."""


class BatchReader(DataSourceReader):
    """Reads streams as they were when the query was planned."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._places = places(options, with_archives=True)
        self._at_ms = moment_ms(options)
        self._staging = options.get("stagingpath")
        self._partitions = number(options, "partitions", None, least=1)
        self._missing_is_empty = flag(options, "ignoremissing", False)
        self._fail_on_loss = flag(options, "failondataloss", True)
        self._from_replica = flag(options, "preferreplica", True)
        self._schema: ReadSchema = read_schema(options, schema)
        self._spec = ReadSpec.of(options)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read: copy the stores, and split the streams among tasks."""
        freeze_modules()
        parts = [self._plan(place) for place in self._places]
        total = sum(piece.entries for _, pieces in parts for piece in pieces)
        count = self._partitions or tasks_for(total)
        return task_partitions(parts, count) or [TaskPartition()]

    def _plan(self, place: Place) -> tuple[Source, list[Piece]]:
        tasks = self._partitions or os.cpu_count() or 1
        if place.kind == "path":
            copy = make_copy(place)
            with copy.store() as store:
                keys = streams_of(store, self._spec)
                self._require(keys, place)
                return copy, pieces_of(store, keys, self._spec, tasks)
        if place.kind == "archive":
            source = archives.find(place, self._at_ms, self._staging)
            require = partial(self._require, place=place)
            return source, archives.plan(source, self._spec, tasks, require)
        server = Server(place, self._fail_on_loss, node_of(place) if self._from_replica else None)
        reader = ServerReader(server.client())
        try:
            keys = reader.streams(self._spec)
            self._require(keys, place)
            return server, reader.pieces(keys, self._spec, tasks)
        finally:
            reader.close()

    def _require(self, keys: list[bytes], place: Place) -> None:
        if not self._missing_is_empty:
            require(self._spec, keys, place.shown)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the entries of one task; raise if one cannot be read."""
        return read_task(partition, self._schema)


class PushdownReader(BatchReader):
    """A batch read that filters on IDs and times narrow, for sessions that push filters down."""

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":
        """Narrow the read by the filters; return them all, so that Spark applies them too."""
        start, end = bounds(filters, self._schema)
        self._spec = self._spec.within(start, end)
        return filters


def tasks_for(entries: int) -> int:
    """Return the number of tasks for a number of entries."""
    cores = os.cpu_count() or 1
    return max(-(-entries // TASK_ENTRIES), min(cores, entries // TASK_ENTRIES_MIN), 1)


def read_task(partition: InputPartition, schema: ReadSchema) -> Iterator["pa.RecordBatch"]:
    """Yield the entries of one task."""
    if not isinstance(partition, TaskPartition):
        return
    freeze_modules()
    batches = schema.batches()
    for source, pieces in partition.parts:
        reader = source.open(pieces)
        try:
            for piece in pieces:
                with without_gc():
                    for page in reader.pages(piece):
                        yield batches.batch(page, piece.key, source.shown)
        finally:
            reader.close()
