"""Put a message again with other values, a dead letter to where it comes from; add an entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvstream.console.actions.plan import Input, Plan, name_in
from kvstream.console.values import raw_of
from kvstream.errors import InvalidArgument, NoSuchKey
from kvstream.operations.delivery.dead import origin, strip, target_of
from kvstream.types.formatting import plural, printable, size
from kvstream.types.glob import is_own_key
from kvstream.types.ids import StreamID

if TYPE_CHECKING:
    from kvstream.console.view import View

FIELDS_MAX = 40
"""Fields that the form has; the others stay as they are."""
VALUE_MAX, FORM_MAX = 8000, 24_000
"""Bytes of a value, and of all values, that are edited: a form is at most 64,000 bytes, in which
a character may take nine."""
COMMAND_MAX = 2000
"""Bytes of the values of a command."""
NEW, FIELDS_NEW = 2, 6
"""Fields that may be added to a message, and fields of a new entry."""


class _Field(NamedTuple):
    name: bytes
    value: bytes
    text: str | None
    """The value as it is edited; None for one that stays as it is."""


def put(view: View) -> Plan:
    """Plan to put a message again, with the values of the form."""
    stream, eid = name_in(view, "stream"), StreamID.parse(view.asked("id"))
    entry = view.store.stream(stream).get(eid)
    if entry is None:
        raise NoSuchKey(f"the stream has no entry {eid}: it was deleted, trimmed or moved")
    block = origin(entry.flat)
    target = target_of(entry.flat) if block else stream
    if not target:
        raise InvalidArgument("the dead letter names no stream that it may go back to")
    fields = _fields(view, list(strip(entry.flat)))
    kept = sum(each.text is None for each in fields)

    def run(_: View) -> None:
        view.store.stream(target).add(_pairs(view, fields))
        if block:
            view.store.stream(stream).delete(eid)

    moves = "and removes the dead letter" if block else "and leaves this entry as it is"
    stays = f" {plural(kept, 'value')} cannot be edited here, and are copied." if kept else ""
    return Plan(
        action="put",
        title="Put again" if block else "Put as a new message",
        text=f"This adds a new message with these values to {printable(target)} {moves}.{stays}",
        target=target,
        command=_command(view, target, stream if block else b"", eid, fields),
        run=run,
        back=view.url("dead" if block else "streams", stream),
        inputs=[
            *(_input(at, each) for at, each in enumerate(fields) if each.text is not None),
            *_inputs(NEW),
        ],
        has_values=True,
        facts={
            "from": printable(stream),
            "id": str(eid),
            "changed": [printable(each) for each in _changed(view, fields)[:20]],
        },
    )


def add(view: View) -> Plan:
    """Plan to add an entry with the fields of the form; a stream is made if there is none."""
    stream = raw_of(view.asked("new").strip()) or name_in(view, "stream")
    if is_own_key(stream):
        raise InvalidArgument("kvstream keeps keys kvstream:... for itself")
    is_there = view.store.exists(stream)

    def run(_: View) -> None:
        pairs = _added(view, FIELDS_NEW)
        if not pairs:
            raise InvalidArgument("an entry needs a field")
        view.store.stream(stream).add(pairs)

    end = "the stream" if is_there else "a new stream"
    return Plan(
        action="add",
        title="Add an entry",
        text=f"This adds an entry with these fields to {end}: {printable(stream)}",
        target=stream,
        command=view.command("add", stream, b"field=value"),
        run=run,
        back=view.url("streams", stream),
        inputs=_inputs(FIELDS_NEW),
        has_values=True,
        facts={"is_new": not is_there},
    )


def _inputs(fields: int) -> list[Input]:
    """Return the inputs of fields that may be added."""
    return [
        Input(f"{kind}{at}", title, is_required=False)
        for at in range(fields)
        for kind, title in (("name", "Another field"), ("value", "Its value"))
    ]


def _added(view: View, fields: int) -> list[tuple[bytes, bytes]]:
    """Return the fields that were added."""
    return [
        (raw_of(name), raw_of(_unix(view.given(f"value{at}"))))
        for at in range(fields)
        if (name := view.given(f"name{at}"))
    ]


def _command(view: View, target: bytes, letters: bytes, eid: StreamID, fields: list[_Field]) -> str:
    """Return the commands for the values as they are; empty if some are hidden or long."""
    length = sum(len(each.value) for each in fields)
    if length > COMMAND_MAX or any(each.text is None or b"=" in each.name for each in fields):
        return ""
    put = view.command("queue put", target, *(each.name + b"=" + each.value for each in fields))
    return put + (f" && {view.command('del', letters, eid)}" if letters else "")


def _input(at: int, field: _Field) -> Input:
    return Input(
        f"v{at}",
        f"{printable(field.name[:60])} ({size(len(field.value))})",
        value=field.text or "",
        is_required=False,
        is_long=len(field.value) > 60 or b"\n" in field.value,
    )


def _fields(view: View, flat: list[bytes]) -> list[_Field]:
    """Return the fields of a message; long, binary and hidden values are not edited."""
    fields, left = list[_Field](), FORM_MAX
    for name, value in zip(flat[::2], flat[1::2], strict=True):
        text = _text(value) if view.value(name, value) == value else None
        if text is not None and (len(value) > min(VALUE_MAX, left) or len(fields) >= FIELDS_MAX):
            text = None
        left -= 0 if text is None else len(value)
        fields.append(_Field(name, value, text))
    return fields


def _text(value: bytes) -> str | None:
    """Return a value as text that a form brings back as it is; None for another one."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if all(each.isprintable() or each in "\n\t" for each in text) else None


def _pairs(view: View, fields: list[_Field]) -> list[tuple[bytes, bytes]]:
    """Return the fields with the values of the form, and those that were added."""
    pairs = [(each.name, _given(view, at, each)) for at, each in enumerate(fields)]
    return pairs + _added(view, NEW)


def _given(view: View, at: int, field: _Field) -> bytes:
    if field.text is None:
        return field.value
    return raw_of(_unix(view.given(f"v{at}", field.text)))


def _unix(text: str) -> str:
    """Return a text with its former line ends: forms send carriage returns."""
    return text.replace("\r\n", "\n")


def _changed(view: View, fields: list[_Field]) -> list[bytes]:
    pairs = _pairs(view, fields)
    same = [(each.name, each.value) for each in fields]
    return [name for at, (name, value) in enumerate(pairs) if same[at : at + 1] != [(name, value)]]
