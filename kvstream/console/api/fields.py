"""The kinds of fields that the JSON of a page has, and how values become them.

::

    name  := text | {"base64": text}        bytes that are no UTF-8, or have control characters
    value := {"name": name, "value": name, "size": bytes}       a value is cut, ``size`` is whole
    time  := "2026-01-31T12:00:00.123Z"
    data  := any JSON | {"cut": text, "size": characters}       JSON that is too long

A field that may be unknown is null. Values and data are shown by the view, as on the HTML page: it
hides what the user may not see.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from kvstream.console.values import CELL, decoded, raw_of
from kvstream.types.formatting import time_of

if TYPE_CHECKING:
    from kvstream.console.view import View

TEXT_MAX = 300
"""Characters of an error and the like in a list."""
_CONTROLS = re.compile(r"[^\t\n\r -\x7e\x80-\U0010ffff]")

Encode: TypeAlias = "Callable[[View, Any], Any]"


class Kind(NamedTuple):
    """What a field is; ``encode`` makes its JSON of any value but None."""

    title: str
    encode: Encode
    record: Record | None = None
    """What it consists of."""


class Field(NamedTuple):
    """A member of an object."""

    name: str
    kind: Kind
    about: str
    read: Encode
    is_optional: bool

    def json_of(self, view: View, row: Any) -> Any:
        value = self.read(view, row)
        if value is None:
            if not self.is_optional:
                raise TypeError(f"the field {self.name} has no value")
            return None
        return self.kind.encode(view, value)


@dataclass(frozen=True, eq=False)
class Record:
    """An object with these fields, always all of them."""

    title: str
    fields: Sequence[Field]

    def json_of(self, view: View, row: Any) -> dict[str, Any]:
        """Return the object for a row; TypeError if a field has no value and must have one."""
        return {each.name: each.json_of(view, row) for each in self.fields}


class Form(NamedTuple):
    """The JSON of a page."""

    about: str
    fields: Sequence[Field]
    query: Sequence[str] = ()
    """What may be asked for in the query."""

    def json_of(self, view: View, page: Mapping[str, Any]) -> dict[str, Any]:
        """Return the object for the values of a page."""
        return {each.name: each.json_of(view, page) for each in self.fields}


def field(
    name: str, kind: Kind, about: str, read: str | Encode = "", *, optional: bool = False
) -> Field:
    """Return a field; ``read`` is a function, or the path of another name."""
    return Field(name, kind, about, read if callable(read) else reader(read or name), optional)


def reader(path: str) -> Encode:
    """Return a reader of a member of a row, or of a member of that; null if that is null."""
    names = path.split(".")

    def read(_: View, row: Any) -> Any:
        for each in names:
            if row is None:
                return None
            if each.isdigit():
                row = row[int(each)]
            else:
                row = row[each] if isinstance(row, Mapping) else getattr(row, each)
        return row

    return read


# --- kinds ----------------------------------------------------------------------------------------


def name_of_bytes(value: bytes | str, most: int | None = None) -> Any:
    """Return bytes as JSON, cut to ``most`` of them."""
    raw = raw_of(value) if isinstance(value, str) else value
    cut = raw[:most]
    text = decoded(cut, is_cut=len(cut) < len(raw))
    if text is None or _CONTROLS.search(text):
        return {"base64": b64encode(cut).decode("ascii")}
    return text


def value_of(view: View, pair: tuple[bytes, bytes], most: int = CELL) -> dict[str, Any]:
    """Return a field of an entry as the user may see it."""
    name, value = pair
    seen = view.value(name, value)
    size = len(value) if seen == value else len(seen)
    return {"name": name_of_bytes(name, CELL), "value": name_of_bytes(seen, most), "size": size}


def text(most: int = TEXT_MAX) -> Kind:
    """Return the kind of a text, cut to a number of characters."""

    def encode(_: View, value: bytes | str) -> str:
        whole = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
        return str(whole)[:most]

    return Kind("text", encode)


def _time(_: View, moment: Any) -> str | None:
    return time_of(moment).replace(" ", "T") or None


def data_of(view: View, value: Any, most: int) -> Any:
    """Return plain data as JSON, as the user may see it; it is cut to a number of characters."""
    seen = view.data(value)
    try:
        made = json.dumps(seen, default=repr, ensure_ascii=False)
        if len(made) <= most:
            return json.loads(made, parse_constant=str)  # JSON has no NaN
    except (ValueError, RecursionError):
        made = repr(seen)
    return {"cut": made[:most], "size": len(made)}


def data(most: int) -> Kind:
    """Return the kind of plain data with at most so many characters."""
    return Kind("data", lambda view, value: data_of(view, value, most))


def _figures(_: View, found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        str(name): each if isinstance(each, int | float) else str(each)[:TEXT_MAX]
        for name, each in found.items()
    }


INTEGER = Kind("integer", lambda _, value: int(value))
NUMBER = Kind("number", lambda _, value: round(float(value), 6))
BOOLEAN = Kind("boolean", lambda _, value: bool(value))
TEXT = text()
NAME = Kind("name", lambda _, value: name_of_bytes(value))
TIME = Kind("time", _time)
ID = Kind("ID", lambda _, value: str(value))
LINK = Kind("link", lambda _, value: value)
VALUE = Kind("value", value_of)
FIGURES = Kind("object of figures", _figures)


def one(record: Record) -> Kind:
    """Return the kind of an object."""
    return Kind(record.title, record.json_of, record)


def many(of: Record | Kind) -> Kind:
    """Return the kind of a list."""
    kind = one(of) if isinstance(of, Record) else of

    def encode(view: View, rows: Iterable[Any]) -> list[Any]:
        return [None if each is None else kind.encode(view, each) for each in rows]

    return Kind(f"list of {kind.title}", encode, kind.record)
