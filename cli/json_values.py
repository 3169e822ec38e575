"""Bytes, entries and records as JSON, and back without loss.

::

    bytes  := "text"                    valid UTF-8
            | {"base64": "..."}         anything else
    fields := {"field": bytes, ...}     if all names are text and none repeats
            | [[bytes, bytes], ...]     otherwise
    entry  := {"id": "ms-seq", "fields": fields}        fields are null if the entry was deleted

Decoding accepts more than encoding writes: numbers keep their spelling, true, false and nested
values become JSON text, and a field that is null is left out.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any, NoReturn

from kvstream.cli.tables import unix_ms
from kvstream.types.ids import StreamID
from kvstream.types.records import AnyEntry, RepeatedFields

BASE64 = "base64"

Pairs = list[tuple[bytes, bytes]]

_PLAIN = frozenset({str, int, float, bool, type(None)})
"""Types of values that are JSON as they are."""
_MEMBERS = {"stream", "id", "fields", "idle_ms", "deliveries"}
"""An object with ``fields`` and no other members than these is an entry, not a flat object."""


class Unreadable(ValueError):
    """A text is not JSON, or not an entry."""


class _Object(tuple[tuple[str, Any], ...]):
    """A decoded object: its pairs in order, including repeated names."""


class _Number(str):
    """A decoded number, with its spelling."""

    __slots__ = ()


_TEXTS = frozenset({str, _Number})
"""Types of decoded values that are text as they are."""


# --- encoding -----------------------------------------------------------------------------------


def bytes_json(value: bytes) -> str | dict[str, str]:
    """Encode bytes."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {BASE64: base64.b64encode(value).decode("ascii")}


def fields_json(pairs: Sequence[tuple[bytes, bytes]]) -> Any:
    """Encode the fields of an entry."""
    return _pairs_json([(bytes_json(name), bytes_json(value)) for name, value in pairs])


def _pairs_json(pairs: Sequence[tuple[Any, Any]]) -> Any:
    """Return encoded pairs as an object, or as a list if a name is no text or repeats."""
    if all(isinstance(name, str) for name, _ in pairs) and len(dict(pairs)) == len(pairs):
        return dict(pairs)
    return [list(pair) for pair in pairs]


def entry_json(entry: AnyEntry) -> dict[str, Any]:
    """Encode an entry."""
    shown: dict[str, Any] = {"id": str(entry.id), "fields": _fields_of(entry)}
    if entry.deliveries is not None:
        shown |= {"idle_ms": entry.idle_ms, "deliveries": entry.deliveries}
    return shown


def _fields_of(entry: AnyEntry) -> Any:
    if entry.fields is None:
        return None
    if not isinstance(entry.fields, RepeatedFields):
        try:  # nearly all entries: three times as fast
            return {name.decode(): value.decode() for name, value in entry.fields.items()}
        except UnicodeDecodeError:
            pass
    return fields_json(entry.pairs)


def jsonable(value: Any) -> Any:
    """Encode any value of the public API; times are Unix milliseconds."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, AnyEntry):
        return entry_json(value)
    if isinstance(value, StreamID):
        return str(value)
    if isinstance(value, bytes):
        return bytes_json(value)
    if isinstance(value, datetime):
        return unix_ms(value)
    if isinstance(value, Enum):
        return value.name.lower()
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: jsonable(getattr(value, field.name)) for field in dataclass_fields(value)
        }
    if isinstance(value, Mapping):
        return _pairs_json([(jsonable(name), jsonable(item)) for name, item in value.items()])
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return jsonable(value._asdict())
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return value


def dumps(value: Any, ascii_only: bool = False) -> str:
    """Return an encoded value as one line of JSON."""
    return (_ASCII_ENCODER if ascii_only else _ENCODER).encode(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False)
_ASCII_ENCODER = json.JSONEncoder()


# --- decoding -----------------------------------------------------------------------------------


def loads_entry(line: bytes) -> tuple[str | None, Pairs]:
    """Decode one line: return the ID, or None, and the fields. Raises Unreadable.

    The line is ``{"id": ..., "fields": ...}``, where the ID is optional, or a flat object.
    """
    value = _loads(line)
    if not isinstance(value, _Object):
        raise Unreadable("a line must be a JSON object")
    if len(value) <= len(_MEMBERS):  # an object with a repeated member may be flat
        members = dict(value)
        if "fields" in members and members.keys() <= _MEMBERS:
            fields = members["fields"]
            if isinstance(fields, _Object | list):
                return _id_text(members.get("id")), _pairs(fields)
    return None, _pairs(value)


def _id_text(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise Unreadable("the id must be a string")
    return str(value)


def loads_fields(text: str) -> Pairs:
    """Decode fields. Raises Unreadable."""
    return _pairs(_loads(text.encode("utf-8", "surrogateescape")))


def _loads(text: bytes) -> Any:
    try:
        return _DECODER.decode(text.decode())
    except UnicodeDecodeError as error:
        raise Unreadable(f"not UTF-8 at byte {error.start + 1}") from None
    except RecursionError:
        raise Unreadable("nested too deeply") from None
    except json.JSONDecodeError as error:
        raise Unreadable(f"not JSON at character {error.pos + 1}: {error.msg}") from None
    except ValueError as error:
        raise Unreadable(str(error)) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_Object,
    parse_int=_Number,
    parse_float=_Number,
    parse_constant=_refuse_constant,
)


def _pairs(fields: Any) -> Pairs:
    """Return the fields of an object or of a list of pairs; leave out those that are null."""
    if isinstance(fields, list):
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in fields):
            raise Unreadable("a list of fields must contain [field, value] pairs")
    elif not isinstance(fields, _Object):
        raise Unreadable("fields must be an object or a list of [field, value] pairs")
    try:  # nearly all entries: twice as fast
        pairs = [
            (name.encode(), value.encode() if type(value) in _TEXTS else _bytes(value))
            for name, value in fields
            if value is not None
        ]
    except (AttributeError, UnicodeEncodeError):
        pairs = [(_bytes(name), _bytes(value)) for name, value in fields if value is not None]
    if not pairs:
        raise Unreadable("there are no fields")
    return pairs


def _bytes(value: Any) -> bytes:
    if not isinstance(value, str):
        if isinstance(value, _Object) and len(value) == 1 and value[0][0] == BASE64:
            return _unbase64(value[0][1])
        value = _compact(value)
    text: str = value
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Unreadable("the text has half a surrogate pair") from None


def _unbase64(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise Unreadable('the value of {"base64": ...} is not base64') from None


def _compact(value: Any) -> str:
    """Return a decoded value as JSON text, with the original spelling of numbers."""
    try:
        return _json_text(value)
    except RecursionError:  # reading it took fewer levels
        raise Unreadable("nested too deeply") from None


def _json_text(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, _Object):
        pairs = [(json.dumps(name, ensure_ascii=False), _json_text(item)) for name, item in value]
        return "{" + ",".join([f"{name}:{text}" for name, text in pairs]) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
