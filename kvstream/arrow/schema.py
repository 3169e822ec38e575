"""The columns of Arrow batches: what each holds, and the schemas of the library's own reads.

``id``, ``timestamp``, ``stream`` and ``fields`` (in Spark also ``store``) are reserved names, each
behind a prefix. Any other column is the entry's field of that name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from kvstream.errors import InvalidArgument, shown

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS_MAX = 1000
"""Columns of a read without a schema: more field names are data, such as IDs."""


class Mode(StrEnum):
    """What happens to an entry with a value that does not fit its column's type."""

    PERMISSIVE = "PERMISSIVE"
    """The value is null, and the corrupt-record column holds the entry."""
    DROPMALFORMED = "DROPMALFORMED"
    """The entry is left out."""
    FAILFAST = "FAILFAST"
    """The read fails."""


class Role(StrEnum):
    """The content of a column."""

    ID = "id"
    TIMESTAMP = "timestamp"
    STREAM = "stream"
    STORE = "store"
    FIELDS = "fields"
    FIELD = "a field"
    CORRUPT = "corrupt record"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a read."""

    role: Role
    name: str
    kind: str
    """Its type, for messages."""


_RESERVED = (Role.ID, Role.TIMESTAMP, Role.STREAM, Role.FIELDS)


def given_columns(schema: "pa.Schema", prefix: str) -> list[Column]:
    """Return the columns of a schema; raise InvalidArgument for a type that one cannot have."""
    roles = {prefix + role: role for role in _RESERVED}
    columns = []
    for field in schema:
        role = roles.get(field.name, Role.FIELD)
        fits, types = _FITS[role]
        if not fits(field.type):
            raise InvalidArgument(f"the column {field.name} cannot be {field.type}; use {types}")
        columns.append(Column(role, field.name, str(field.type)))
    repeated = {name for name in schema.names if schema.names.count(name) > 1}
    if repeated:
        raise InvalidArgument(f"the schema has {shown(min(repeated))} twice")
    return columns


def schema_of(schema: Any) -> "pa.Schema":
    """Return a schema of Arrow: itself, or of a mapping of names to types; both may be text."""
    import pyarrow as pa

    if isinstance(schema, pa.Schema):
        return schema
    try:
        pairs = schema.items() if isinstance(schema, Mapping) else schema
        return pa.schema([pa.field(str(name), kind) for name, kind in pairs])
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise InvalidArgument(
            f"schema is a pyarrow.Schema, or maps names to types as in {{'qty': 'int64'}}: {error}"
        ) from None


def found_columns(
    names: Iterable[bytes], binary: set[bytes], prefix: str
) -> tuple["pa.Schema", list[Column]]:
    """Return ID, time, and a column for each field name; text, unless ``binary`` has the name."""
    import pyarrow as pa

    columns = [Column(role, prefix + role, "") for role in (Role.ID, Role.TIMESTAMP)]
    kinds: list[Any] = [pa.string(), pa.timestamp("ms", "UTC")]
    taken = {column.name for column in columns}
    for name in names:
        try:
            text = name.decode()
        except UnicodeDecodeError:
            raise InvalidArgument(
                f"the field name {shown(name)} is not UTF-8, so it cannot name a column: {_MAP}"
            ) from None
        if text in taken:
            raise InvalidArgument(
                f"the entries have a field {text!r}, which is also the column of each entry's "
                f"{text}: give meta_prefix, such as '_', which makes the latter '_{text}'"
            )
        kinds.append(pa.binary() if name in binary else pa.string())
        columns.append(Column(Role.FIELD, text, str(kinds[-1])))
    schema = pa.schema(
        [pa.field(column.name, kind) for column, kind in zip(columns, kinds, strict=True)]
    )
    return schema, columns


_MAP = "give schema={'fields': pyarrow.map_(pyarrow.binary(), pyarrow.binary())}"


def too_many_names() -> InvalidArgument:
    """Return the error of entries with more field names than a table has columns."""
    return InvalidArgument(
        f"the entries have more than {COLUMNS_MAX} different field names: name the columns in "
        f"schema, or {_MAP}"
    )


# --- the types that a column may have -------------------------------------------------------------


def _is_text(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_id(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    if not pa.types.is_struct(kind):
        return _is_text(kind)
    return [field.name for field in kind] == ["ms", "seq"] and all(
        field.type in (pa.int64(), pa.uint64()) for field in kind
    )


def _is_time(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return bool(pa.types.is_timestamp(kind) or pa.types.is_int64(kind))


def _is_fields(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    if pa.types.is_map(kind):
        return _is_text(kind.key_type) and _is_text(kind.item_type)
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    parts = list(kind.value_type)
    return len(parts) == 2 and all(_is_text(part.type) for part in parts)


def _is_plain(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    tests = ("boolean", "integer", "floating", "decimal", "date", "time", "timestamp")
    return _is_text(kind) or any(getattr(pa.types, f"is_{test}")(kind) for test in tests)


_FITS: dict[Role, tuple[Any, str]] = {
    Role.ID: (_is_id, "string, binary, or struct<ms: int64, seq: int64> (or of uint64)"),
    Role.TIMESTAMP: (_is_time, "timestamp, or int64 for milliseconds"),
    Role.STREAM: (_is_text, "string or binary"),
    Role.FIELDS: (_is_fields, "map or list<struct<name, value>>, of string or binary"),
    Role.FIELD: (_is_plain, "string, binary, bool, a number, a date or a time"),
}
"""Whether a type fits, and those that do."""
