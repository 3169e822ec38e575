"""What the columns of a DataFrame are to a write: the stream, the ID, the fields.

The rule is that of reading (kvstream.spark.schema)::

    stream     string or binary: the key; without the column, the option ``stream`` names it
    id         struct of two numbers, string or binary as reading gives them: the whole ID;
               string also ``ms-*`` and ``*``; bigint or timestamp: ``ms-*``; null: ``*``
    timestamp  the millisecond of the ID, ``ms-*``, where there is no column ``id``; else unused
    store      unused: the key tells the store
    fields     map, or array of structs of two: the fields, where a null value leaves its field out
    any other  a field of that name, where there is no column ``fields``; null leaves it out

``metaprefix`` goes before these five names. What a value of each type becomes is in ``texts``.
This module knows types of Spark, no data.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

from pyspark.sql import types

from kvstream.engine.coerce import name_bytes
from kvstream.errors import InvalidArgument

UNUSED = ("timestamp", "store")
_TEXT = (types.StringType, types.BinaryType)
_PLAIN = (
    *_TEXT,
    types.BooleanType,
    types.ByteType,
    types.ShortType,
    types.IntegerType,
    types.LongType,
    types.FloatType,
    types.DoubleType,
    types.DecimalType,
    types.DateType,
    types.TimestampType,
    types.TimestampNTZType,
)
"""Types whose values are fields' values; NullType too, which has none."""
_NUMBERS = (types.LongType, types.DecimalType)


class IDKind(Enum):
    """What a column of IDs holds."""

    TEXT = auto()
    PACKED = auto()
    NUMBERS = auto()
    MILLISECONDS = auto()
    TIMES = auto()


class FieldsKind(Enum):
    """How the fields stand in a row."""

    COLUMNS = auto()
    MAP = auto()
    PAIRS = auto()


class Columns(NamedTuple):
    """Where what stands in a row of the DataFrame: positions of columns."""

    key: bytes | None
    """The one stream of all rows."""
    stream: int | None
    id: int | None
    id_kind: IDKind | None
    fields: tuple[int, ...]
    names: tuple[bytes, ...]
    """The names of ``fields``, where each is a column of its own."""
    fields_kind: FieldsKind


def columns_of(schema: types.StructType, options: Mapping[str, str]) -> Columns:
    """Return what the columns of a DataFrame are; InvalidArgument where they make no entries."""
    prefix = options.get("metaprefix", "")
    positions = _positions(schema)
    reserved = {name: positions.get(prefix + name) for name in ("stream", "id", *UNUSED, "fields")}
    key, stream = _stream(schema, reserved["stream"], options.get("stream"), prefix)
    id_at, id_kind = _id(schema, reserved, prefix)
    fields = reserved["fields"]
    others = [at for at in range(len(schema)) if at not in reserved.values()]
    if fields is not None:
        return Columns(
            key, stream, id_at, id_kind, (fields,), (), _fields_kind(schema, fields, others)
        )
    names = tuple(_field_name(schema[at], prefix) for at in others)
    if not names:
        raise InvalidArgument(
            f"an entry needs a field: give a map column {prefix}fields, or columns beside "
            f"{prefix}stream and {prefix}id"
        )
    return Columns(key, stream, id_at, id_kind, tuple(others), names, FieldsKind.COLUMNS)


def _positions(schema: types.StructType) -> dict[str, int]:
    positions: dict[str, int] = {}
    for at, field in enumerate(schema):
        if field.name in positions:
            raise InvalidArgument(f"two columns bear the name {field.name!r}")
        positions[field.name] = at
    return positions


def _stream(
    schema: types.StructType, at: int | None, named: str | None, prefix: str
) -> tuple[bytes | None, int | None]:
    if at is not None and named is not None:
        raise InvalidArgument(
            f"the option stream and the column {prefix}stream both name the stream: give one, or "
            "set metaprefix where the column is a field"
        )
    if at is None and not named:
        raise InvalidArgument(
            f"which stream? Give .option('stream', NAME), or a column {prefix}stream"
        )
    if at is not None:
        _expect(schema[at], _TEXT, "string or binary")
        return None, at
    return name_bytes(named or ""), None


def _id(
    schema: types.StructType, reserved: Mapping[str, int | None], prefix: str
) -> tuple[int | None, IDKind | None]:
    at = reserved["id"]
    if at is not None:
        return at, _id_kind(schema[at])
    at = reserved["timestamp"]
    if at is None:
        return None, None
    _expect(
        schema[at],
        (types.TimestampType,),
        f"timestamp: it is the time of the entry's ID (set metaprefix, or rename it, where "
        f"{prefix}timestamp is a field)",
    )
    return at, IDKind.TIMES


def _id_kind(field: types.StructField) -> IDKind:
    kind = field.dataType
    if isinstance(kind, types.StructType) and _is_id(kind):
        return IDKind.NUMBERS
    for known, id_kind in _ID_KINDS:
        if isinstance(kind, known):
            return id_kind
    raise InvalidArgument(
        f"the column {field.name} is {kind.simpleString()}: an ID is a string 'ms-seq', a struct "
        "of ms and seq (bigint or decimal(20,0)), 16 bytes of binary, or a bigint or timestamp "
        "for its millisecond"
    )


def _is_id(kind: types.StructType) -> bool:
    return [part.name for part in kind] == ["ms", "seq"] and all(
        isinstance(part.dataType, _NUMBERS) for part in kind
    )


_ID_KINDS: tuple[tuple[type[types.DataType], IDKind], ...] = (
    (types.StringType, IDKind.TEXT),
    (types.BinaryType, IDKind.PACKED),
    (types.LongType, IDKind.MILLISECONDS),
    (types.TimestampType, IDKind.TIMES),
)


def _fields_kind(schema: types.StructType, at: int, others: list[int]) -> FieldsKind:
    if others:
        names = ", ".join(schema[each].name for each in others)
        raise InvalidArgument(
            f"beside the column {schema[at].name}, which holds all fields, stand {names}: put them "
            "into it, drop them, or set metaprefix"
        )
    kind = schema[at].dataType
    parts: tuple[types.DataType, ...] = ()
    found = FieldsKind.MAP
    if isinstance(kind, types.MapType):
        parts = kind.keyType, kind.valueType
    elif isinstance(kind, types.ArrayType) and isinstance(kind.elementType, types.StructType):
        found, parts = FieldsKind.PAIRS, tuple(part.dataType for part in kind.elementType)
    if len(parts) != 2 or not isinstance(parts[0], _TEXT) or not isinstance(parts[1], _PLAIN):
        raise InvalidArgument(
            f"the column {schema[at].name} is {kind.simpleString()}: fields are a map of string or "
            "binary to plain values, or an array of structs of such two"
        )
    return found


def _field_name(field: types.StructField, prefix: str) -> bytes:
    hint = (
        " (a map would be the column fields)" if isinstance(field.dataType, types.MapType) else ""
    )
    _expect(
        field,
        (*_PLAIN, types.NullType),
        f"a plain type{hint}: turn it into text before, as with to_json({field.name})",
    )
    if not field.name:
        raise InvalidArgument("a column has no name")
    return name_bytes(field.name)


def _expect(field: types.StructField, kinds: tuple[type[types.DataType], ...], wanted: str) -> None:
    if not isinstance(field.dataType, kinds):
        raise InvalidArgument(
            f"the column {field.name} is {field.dataType.simpleString()}, and must be {wanted}"
        )
