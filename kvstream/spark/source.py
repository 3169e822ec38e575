"""The data source ``kvstream``: what Spark asks of a format, handed on to reading and writing.

Spark imports this module wherever it looks for data sources, so it imports what is light.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from kvstream.spark.options import places

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )

FORMAT = "kvstream"


class KVStreamSource(DataSource):
    """Streams as DataFrames, of stores in directories and behind servers."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of a read that names none."""
        from kvstream.spark.read import metadata
        from kvstream.spark.read.partitions import Wanted
        from kvstream.spark.schema import default_schema

        if "table" in self.options:
            return metadata.schema_of(self.options)
        wanted = Wanted.of(self.options)
        return default_schema(self.options, wanted.several, len(places(self.options)))

    def reader(self, schema: StructType) -> "DataSourceReader":
        from kvstream.spark.read import metadata
        from kvstream.spark.read.batch import BatchReader

        if "table" in self.options:
            return metadata.TableReader(self.options, schema)
        return BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> "DataSourceStreamReader":
        from kvstream.spark.read.streaming import FollowingReader

        return FollowingReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> "DataSourceWriter":
        from kvstream.spark.write.writers import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "DataSourceStreamWriter":
        from kvstream.spark.write.writers import stream_writer

        return stream_writer(self.options, schema, overwrite)


class PushingSource(KVStreamSource):
    """The same for sessions in which Spark pushes filters down; in others each read would fail."""

    def reader(self, schema: StructType) -> "DataSourceReader":
        from kvstream.spark.read.batch import PushingReader

        if "table" in self.options:
            return super().reader(schema)
        return PushingReader(self.options, schema)
