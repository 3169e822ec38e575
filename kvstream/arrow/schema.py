"""The columns of Arrow batches: what each holds, and the schemas of the library's own reads.

``id``, ``timestamp``, ``stream`` and ``fields`` (in Spark also ``store``) are reserved names, each
behind a prefix. Any other column is the entry's field of that name.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from kvstream.arrow.casts import is_bytes, is_plain, is_text
from kvstream.arrow.roles import Column, Role
from kvstream.errors import InvalidArgument, show
from kvstream.layout.keys import ID_BYTES

COLUMNS_MAX = 1000
"""Most columns of a read without a schema: more field names are likely data, such as IDs."""


_RESERVED = (Role.ID, Role.TIMESTAMP, Role.STREAM, Role.FIELDS)


def columns_of_schema(schema: pa.Schema, prefix: str) -> list[Column]:
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
        raise InvalidArgument(f"the schema has {show(min(repeated))} twice")
    return columns


def schema_of(schema: Any) -> pa.Schema:
    """Return a schema of Arrow: itself, or of a mapping of names to types; both may be text.

    A schema of another library that has Arrow's C interface, such as a polars.Schema, is converted.
    """
    try:
        if hasattr(schema, "__arrow_c_schema__"):
            return _without_categories(pa.schema(schema))
        pairs = schema.items() if isinstance(schema, Mapping) else schema
        return pa.schema([pa.field(str(name), kind) for name, kind in pairs])
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise InvalidArgument(
            f"schema is a pyarrow.Schema, or maps names to types as in {{'qty': 'int64'}}: {error}"
        ) from None


def _without_categories(schema: pa.Schema) -> pa.Schema:
    """Drop the metadata of dictionary columns: polars keeps an Enum's categories there.

    It would read any other value as null.
    """
    return pa.schema(
        [
            field.remove_metadata() if pa.types.is_dictionary(field.type) else field
            for field in schema
        ],
        schema.metadata,
    )


def columns_of_names(
    names: Iterable[bytes], binary: set[bytes], prefix: str
) -> tuple[pa.Schema, list[Column]]:
    """Return columns for ID, time and each field name: text, or binary if it is in ``binary``."""
    columns = [Column(role, prefix + role, "") for role in (Role.ID, Role.TIMESTAMP)]
    kinds: list[Any] = [pa.string(), pa.timestamp("ms", "UTC")]
    taken = {column.name for column in columns}
    for name in names:
        try:
            text = name.decode()
        except UnicodeDecodeError:
            raise InvalidArgument(
                f"the field name {show(name)} is not UTF-8, so it cannot name a column: {_MAP}"
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


def _is_name(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return is_text(kind) or (is_bytes(kind) and not pa.types.is_fixed_size_binary(kind))


def _is_id(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind):
        return _is_name(kind) or kind == pa.binary(ID_BYTES)
    return [field.name for field in kind] == ["ms", "seq"] and all(
        field.type in (pa.int64(), pa.uint64(), pa.decimal128(20, 0)) for field in kind
    )


def _is_time(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) or kind in (pa.int64(), pa.uint64())


def _is_fields(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return _is_part(kind.key_type) and _is_part(kind.item_type)
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    if not pa.types.is_struct(kind.value_type):
        return False
    parts = list(kind.value_type)
    return len(parts) == 2 and all(_is_part(part.type) for part in parts)


def _is_part(kind: pa.DataType) -> bool:
    return _is_name(kind) and not pa.types.is_dictionary(kind)


_FITS: dict[Role, tuple[Any, str]] = {
    Role.ID: (_is_id, "string, binary, or struct<ms: int64, seq: int64> (or of uint64)"),
    Role.TIMESTAMP: (_is_time, "timestamp, or int64 for milliseconds"),
    Role.STREAM: (_is_name, "string or binary"),
    Role.FIELDS: (_is_fields, "map or list<struct<name, value>>, of string or binary"),
    Role.FIELD: (
        is_plain,
        "string, binary, bool, a number, a date, a time or a duration (read lists and structures "
        "as string: it is the text that was stored)",
    ),
}
"""Whether a type fits, and those that do."""
