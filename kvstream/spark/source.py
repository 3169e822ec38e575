"""The data source ``kvstream``: the classes through which Spark calls the readers and writers.

Spark imports this module whenever it lists data sources, so heavy imports are in the methods.
"""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from kvstream.spark.options import check_names, places

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )

FORMAT = "kvstream"


class KVStreamSource(DataSource):
    """Streams as DataFrames, read from stores in directories, from servers, or from archives."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        check_names(options)
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema of a read without ``.schema(...)``."""
        from kvstream.spark.read import metadata
        from kvstream.spark.read.partitions import ReadSpec
        from kvstream.spark.schema import default_schema

        if "table" in self.options:
            return metadata.schema_of(self.options)
        several = ReadSpec.of(self.options).several
        return default_schema(self.options, several, len(places(self.options, with_archives=True)))

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


class PushdownSource(KVStreamSource):
    """The same source for sessions with filter pushdown; without that setting each read fails."""

    def reader(self, schema: StructType) -> "DataSourceReader":
        from kvstream.spark.read.batch import PushdownReader

        if "table" in self.options:
            return super().reader(schema)
        return PushdownReader(self.options, schema)
