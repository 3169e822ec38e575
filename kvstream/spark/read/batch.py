"""A batch read: planned once for each action, then read by tasks as Arrow batches."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kvstream.spark.arrow import Batches, pass_over_modules, without_collector
from kvstream.spark.options import Options, Place, flag, number, places
from kvstream.spark.read import partitions as filters
from kvstream.spark.read.partitions import Piece, Share, Source, Wanted, shares
from kvstream.spark.read.servers import Server, ServerReading, client_of
from kvstream.spark.read.stores import copied, pieces_of, require, streams_of
from kvstream.spark.schema import Shape, shape_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter


SHARE_ENTRIES = 500_000
"""Entries that one task is given where the option ``partitions`` does not say how many tasks."""
SHARE_LEAST = 20_000
"""Entries that are not worth a second task."""


class BatchReader(DataSourceReader):
    """Reads streams as they are when the query is planned."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = dict(options)
        self._places = places(options)
        self._partitions = number(options, "partitions", None, least=1)
        self._missing_is_empty = flag(options, "ignoremissing", False)
        self._fail_on_loss = flag(options, "failondataloss", True)
        self._shape: Shape = shape_of(options, schema)
        self._wanted = Wanted.of(options)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read: have copies made, and cut the streams."""
        pass_over_modules()
        parts = [self._planned(place) for place in self._places]
        total = sum(piece.entries for _, pieces in parts for piece in pieces)
        count = self._partitions or tasks_for(total)
        return shares(parts, count) or [Share()]

    def _planned(self, place: Place) -> tuple[Source, list[Piece]]:
        cut = self._partitions or os.cpu_count() or 1
        if place.kind == "path":
            copy = copied(place)
            with copy.store() as store:
                keys = streams_of(store, self._wanted)
                self._require(keys, place)
                return copy, pieces_of(store, keys, self._wanted, cut)
        reading = ServerReading(client_of(place))
        try:
            keys = reading.streams(self._wanted)
            self._require(keys, place)
            return Server(place, self._fail_on_loss), reading.pieces(keys, self._wanted, cut)
        finally:
            reading.close()

    def _require(self, keys: list[bytes], place: Place) -> None:
        if not self._missing_is_empty:
            require(self._wanted, keys, place.shown)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the entries of one share; raises where one cannot be read."""
        return read_share(partition, self._shape)


class PushingReader(BatchReader):
    """The same, told of the filters on IDs and times: for sessions that push them down."""

    def pushFilters(self, filters_: "list[Filter]") -> "Iterable[Filter]":
        """Narrow the read down by the filters; all come back, since Spark may apply them again."""
        start, end = filters.bounds(filters_, self._shape)
        self._wanted = self._wanted.within(start, end)
        return filters_


def tasks_for(entries: int) -> int:
    """Return how many tasks read so many entries."""
    cores = os.cpu_count() or 1
    return max(-(-entries // SHARE_ENTRIES), min(cores, entries // SHARE_LEAST), 1)


def read_share(partition: InputPartition, shape: Shape) -> Iterator["pa.RecordBatch"]:
    """Yield the entries of one task's share."""
    if not isinstance(partition, Share):
        return
    pass_over_modules()
    batches = Batches(shape)
    for source, pieces in partition.parts:
        reading = source.open()
        try:
            for piece in pieces:
                with without_collector():
                    for page in reading.pages(piece):
                        yield batches.batch(page, piece.key, source.shown)
        finally:
            reading.close()
