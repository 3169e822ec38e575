"""The columns of a DataFrame that is written: the stream, the ID, and the fields.

Columns have the same meaning as in reads (kvstream.spark.schema)::

    stream     string or binary: the key; without the column, the option ``stream`` names it
    id         struct of two numbers, string or binary, as in reads: the whole ID;
               string also ``ms-*`` and ``*``; bigint or timestamp: ``ms-*``; null: ``*``
    timestamp  the millisecond of the ID, ``ms-*``, if there is no column ``id``; else unused
    store      unused: the key determines the store
    fields     map, or array of structs of two: the fields; a null value leaves its field out
    any other  the field of that name, if there is no column ``fields``; null leaves it out

``metaprefix`` precedes these five names. ``kvstream.arrow.text`` defines how values become bytes.
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
"""The types of field values; a column of NullType is allowed and has none."""
_NUMBERS = (types.LongType, types.DecimalType)


class IDKind(Enum):
    """The form of the IDs in a column."""

    TEXT = auto()
    PACKED = auto()
    NUMBERS = auto()
    MILLISECONDS = auto()
    TIMES = auto()


class FieldsKind(Enum):
    """The form of the fields in a row."""

    COLUMNS = auto()
    MAP = auto()
    PAIRS = auto()


class Columns(NamedTuple):
    """The positions of the columns in a row of the DataFrame."""

    key: bytes | None
    """The stream of all rows, unless a column names it."""
    stream: int | None
    id: int | None
    id_kind: IDKind | None
    fields: tuple[int, ...]
    names: tuple[bytes, ...]
    """The names of ``fields``, if each field is a column."""
    fields_kind: FieldsKind


def columns_of(schema: types.StructType, options: Mapping[str, str]) -> Columns:
    """Return the columns of a DataFrame. Raises InvalidArgument if they do not form entries."""
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
    names = tuple(_field_name(schema[at]) for at in others)
    if not names:
        raise InvalidArgument(
            f"entries need a field: add a map column {prefix}fields, or columns beside "
            f"{prefix}stream and {prefix}id"
        )
    return Columns(key, stream, id_at, id_kind, tuple(others), names, FieldsKind.COLUMNS)


def _positions(schema: types.StructType) -> dict[str, int]:
    positions: dict[str, int] = {}
    for at, field in enumerate(schema):
        if field.name in positions:
            raise InvalidArgument(f"two columns have the name {field.name!r}")
        positions[field.name] = at
    return positions


def _stream(
    schema: types.StructType, at: int | None, named: str | None, prefix: str
) -> tuple[bytes | None, int | None]:
    if at is not None and named is not None:
        raise InvalidArgument(
            f"the option stream and the column {prefix}stream both name the stream: drop one, or "
            "set metaPrefix if the column is a field"
        )
    if at is None and not named:
        raise InvalidArgument(
            f"no stream is named: add .option('stream', NAME), or a column {prefix}stream"
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
        f"timestamp: it is the time of the entry's ID (if {prefix}timestamp is a field, set "
        "metaPrefix or rename it)",
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
            f"the column {schema[at].name} holds all fields, but there are also {names}: put them "
            "into it, drop them, or set metaPrefix"
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
            f"the column {schema[at].name} is {kind.simpleString()}: fields must be a map of "
            "string or binary to plain values, or an array of structs of two such members"
        )
    return found


def _field_name(field: types.StructField) -> bytes:
    nested = (types.StructType, types.MapType, types.ArrayType, types.VariantType)
    is_nested = isinstance(field.dataType, nested)
    conversion = f"to_json({field.name})" if is_nested else f"cast({field.name} as string)"
    hint = (
        " (a map would be the column fields)" if isinstance(field.dataType, types.MapType) else ""
    )
    _expect(
        field,
        (*_PLAIN, types.NullType),
        f"a plain type{hint}: convert it to text first, as with {conversion}",
    )
    if not field.name:
        raise InvalidArgument("a column has no name")
    return name_bytes(field.name)


def _expect(field: types.StructField, kinds: tuple[type[types.DataType], ...], wanted: str) -> None:
    if not isinstance(field.dataType, kinds):
        raise InvalidArgument(
            f"the column {field.name} is {field.dataType.simpleString()}, but must be {wanted}"
        )
