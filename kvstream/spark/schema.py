"""The columns of a read: which are reserved, which are fields, and their allowed types.

``id``, ``timestamp``, ``stream``, ``store`` and ``fields`` are reserved, each prefixed by the
option ``metaPrefix``. Any other column is the entry's field of that name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DatetimeType,
    DecimalType,
    LongType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kvstream.arrow.roles import Column, Mode, Role
from kvstream.errors import InvalidArgument, show
from kvstream.spark.options import Options, choice

if TYPE_CHECKING:
    import pyarrow as pa

    from kvstream.arrow.batches import Batches

CORRUPT_RECORD = "_corrupt_record"
"""The column for entries that could not be decoded, named as in Spark's own sources."""


RESERVED = (Role.ID, Role.TIMESTAMP, Role.STREAM, Role.STORE, Role.FIELDS)


@dataclass(frozen=True, slots=True)
class ReadSchema:
    """The columns of a read, and its mode for malformed values."""

    schema: StructType
    columns: tuple[Column, ...]
    mode: Mode

    def arrow(self) -> "pa.Schema":
        """Return the Arrow schema that Spark expects."""
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self.schema, timezone="UTC")

    def batches(self) -> "Batches":
        """Return what makes the batches of one task."""
        from kvstream.arrow.batches import Batches

        return Batches(self.arrow(), self.columns, self.mode)


def default_schema(options: Options, several: bool, stores: int = 1) -> StructType:
    """Return the default schema; ``several``: the read may have more than one stream."""
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


def read_schema(options: Options, schema: StructType) -> ReadSchema:
    """Return the roles of a schema's columns. Raises InvalidArgument for a type that cannot be."""
    prefix = options.get("metaprefix", "")
    corrupt = options.get("columnnameofcorruptrecord", CORRUPT_RECORD)
    roles = {prefix + role: role for role in RESERVED} | {corrupt: Role.CORRUPT}
    columns = tuple(
        Column(roles.get(field.name, Role.FIELD), field.name, field.dataType.simpleString())
        for field in schema.fields
    )
    for column, field in zip(columns, schema.fields, strict=True):
        fits, types = _FITS[column.role]
        if not fits(field.dataType):
            raise InvalidArgument(f"the column {column.name} cannot be {column.kind}; use {types}")
    repeated = {name for name in schema.names if schema.names.count(name) > 1}
    if repeated:
        raise InvalidArgument(f"the schema has {show(min(repeated))} twice")
    return ReadSchema(schema, columns, Mode(choice(options, "mode", tuple(Mode))))


def _is_string(kind: DataType) -> bool:
    return isinstance(kind, StringType)


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


_FITS: dict[Role, tuple[Callable[[DataType], bool], str]] = {
    Role.ID: (
        _is_id,
        "struct<ms:bigint,seq:bigint>, the same of decimal(20,0), string or binary",
    ),
    Role.TIMESTAMP: (_is_time, "timestamp, timestamp_ntz or bigint (milliseconds)"),
    Role.STREAM: (_is_text, "string or binary"),
    Role.STORE: (_is_string, "string"),
    Role.FIELDS: (_is_fields, "map or array<struct<name,value>>, of string or binary"),
    Role.FIELD: (
        lambda kind: _is_text(kind) or isinstance(kind, BooleanType | NumericType | DatetimeType),
        "string, binary, boolean, a number, a date or a time (read structures as string and apply "
        "from_json)",
    ),
    Role.CORRUPT: (_is_string, "string"),
}
"""Whether a type fits, and those that do."""
