"""The columns of a read: which are ours, which are fields, and the types that they may have.

Ours are ``id``, ``timestamp``, ``stream``, ``store`` and ``fields``, each behind the option
``metaPrefix``; any other column is the field of that name. Knows Spark's types and no rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    BinaryType,
    DataType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kvstream.errors import InvalidArgument
from kvstream.spark.options import Options, choice

if TYPE_CHECKING:
    import pyarrow as pa

CORRUPT_RECORD = "_corrupt_record"
"""The column that holds what could not be read, as in Spark's own sources."""


class Mode(StrEnum):
    """What becomes of an entry with a value that is none of its column's type."""

    PERMISSIVE = "PERMISSIVE"
    """The value is null; the column of corrupt records has the entry."""
    DROPMALFORMED = "DROPMALFORMED"
    """The entry is left out."""
    FAILFAST = "FAILFAST"
    """The job fails."""


class Role(StrEnum):
    """What a column holds."""

    ID = "id"
    TIMESTAMP = "timestamp"
    STREAM = "stream"
    STORE = "store"
    FIELDS = "fields"
    FIELD = "a field"
    CORRUPT = "corrupt record"


RESERVED = (Role.ID, Role.TIMESTAMP, Role.STREAM, Role.STORE, Role.FIELDS)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a read."""

    role: Role
    name: str
    type: DataType


@dataclass(frozen=True, slots=True)
class Shape:
    """What a read gives: its columns, and what becomes of bad values."""

    schema: StructType
    columns: tuple[Column, ...]
    mode: Mode

    def arrow(self) -> "pa.Schema":
        """Return the schema that Spark expects of the batches."""
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self.schema, timezone="UTC")


def default_schema(options: Options, several: bool, stores: int = 1) -> StructType:
    """Return the schema of a read for which none is given; ``several``: of more than one stream."""
    prefix = options.get("metaprefix", "")
    part = StructType([StructField("ms", LongType(), False), StructField("seq", LongType(), False)])
    columns: list[tuple[Role, DataType, bool]] = [
        (Role.ID, part, False),
        (Role.TIMESTAMP, TimestampType(), True),
        (Role.FIELDS, MapType(StringType(), BinaryType(), False), False),
    ]
    if several:
        columns.insert(0, (Role.STREAM, StringType(), False))
    if stores > 1:
        columns.insert(0, (Role.STORE, StringType(), False))
    return StructType([StructField(prefix + role, kind, null) for role, kind, null in columns])


def shape_of(options: Options, schema: StructType) -> Shape:
    """Return how a schema is filled; InvalidArgument where a column is of no type for it."""
    prefix = options.get("metaprefix", "")
    corrupt = options.get("columnnameofcorruptrecord", CORRUPT_RECORD)
    roles = {prefix + role: role for role in RESERVED} | {corrupt: Role.CORRUPT}
    columns = tuple(
        Column(roles.get(field.name, Role.FIELD), field.name, field.dataType)
        for field in schema.fields
    )
    for column in columns:
        if not _FITS[column.role](column.type):
            raise InvalidArgument(
                f"the column {column.name} cannot be {column.type.simpleString()}: "
                f"it is {_TYPES[column.role]}"
            )
    return Shape(schema, columns, Mode(choice(options, "mode", tuple(Mode))))


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType | BinaryType)


def _is_id(kind: DataType) -> bool:
    if not isinstance(kind, StructType):
        return _is_text(kind)
    return kind.names == ["ms", "seq"] and all(
        isinstance(part.dataType, LongType) or part.dataType == DecimalType(20, 0)
        for part in kind.fields
    )


def _is_time(kind: DataType) -> bool:
    return isinstance(kind, TimestampType | TimestampNTZType | LongType)


def _is_fields(kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return _is_text(kind.keyType) and _is_text(kind.valueType)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    parts = kind.elementType.fields
    return len(parts) == 2 and all(_is_text(part.dataType) for part in parts)


_FITS: dict[Role, Callable[[DataType], bool]] = {
    Role.ID: _is_id,
    Role.TIMESTAMP: _is_time,
    Role.STREAM: _is_text,
    Role.STORE: lambda kind: isinstance(kind, StringType),
    Role.FIELDS: _is_fields,
    Role.FIELD: lambda kind: isinstance(kind, AtomicType),
    Role.CORRUPT: lambda kind: isinstance(kind, StringType),
}
_TYPES = {
    Role.ID: "struct<ms:bigint,seq:bigint>, the same of decimal(20,0), string or binary",
    Role.TIMESTAMP: "timestamp, timestamp_ntz or bigint (milliseconds)",
    Role.STREAM: "string or binary",
    Role.STORE: "string",
    Role.FIELDS: "map or array<struct<name,value>>, of string or binary",
    Role.FIELD: "a field, of one value; read structures as string, and use from_json",
    Role.CORRUPT: "string",
}
