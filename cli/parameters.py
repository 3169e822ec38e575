"""The types of arguments and options, the arguments that commands share, and their examples.

A name is the bytes that the shell passed. A time may stand for an ID: an ISO 8601 date or date and
time, UTC by default, or ``now-15m``.
"""

import os
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvstream.errors import InvalidArgument
from kvstream.types.clock import SystemClock
from kvstream.types.ids import StreamID, parse_add_id

_MARK = "\b\nExample:\n"
_PROMPT = "  $ "


def example(*lines: str) -> str:
    """Return the epilog of a command, with these command lines as its example."""
    return _MARK + "\n".join(_PROMPT + line for line in lines)


def examples_of(command: click.Command) -> list[str]:
    """Return the command lines of a command's example."""
    epilog = command.epilog or ""
    return [
        line.removeprefix(_PROMPT)
        for line in epilog.removeprefix(_MARK).splitlines()
        if line.startswith(_PROMPT)
    ]


if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # cannot be subscripted before click 8.4

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_NOW = re.compile(r"now(?:-(.+))?")

TIME_HELP = "a time such as 2026-01-31T12:00 (UTC) or now-15m"


def duration_ms(text: str) -> int | None:
    """Return the milliseconds of ``500ms``, ``10s``, ``1.5h``, or ``7``, which is in seconds."""
    match = _DURATION.fullmatch(text)
    return None if match is None else round(float(match[1]) * _UNIT_MS[match[2] or "s"])


def time_ms(text: str) -> int | None:
    """Return a time in Unix milliseconds; None if ``text`` is not a time."""
    relative = _NOW.fullmatch(text)
    if relative is not None:
        back = 0 if relative[1] is None else duration_ms(relative[1])
        return None if back is None else SystemClock().now_ms() - back
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    ms = round(moment.timestamp() * 1000)
    return ms if ms >= 0 else None


class Name(_Type):
    """The name of a stream, group or consumer, as bytes."""

    name = "name"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        return value if isinstance(value, bytes) else os.fsencode(value)


class StreamName(Name):
    """The name of a stream; the shell completes it."""

    name = "stream"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        from kvstream.cli.session import complete_names

        names = complete_names(ctx.find_root().params)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class ID(_Type):
    """An ID, with or without its sequence."""

    name = "id"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> StreamID:
        if isinstance(value, StreamID):
            return value
        try:
            return StreamID.parse(value)
        except InvalidArgument:
            self.fail(f"{value!r} is not an ID (ms-seq, such as 1700000000000-0).", param, ctx)


class OldestID(_Type):
    """The smallest ID to keep: an ID, or the first ID of a time."""

    name = "id|time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> StreamID:
        if isinstance(value, StreamID):
            return value
        try:
            return StreamID.parse(value)
        except InvalidArgument:
            ms = time_ms(value)
        if ms is None:
            self.fail(f"{value!r} is not an ID or {TIME_HELP}.", param, ctx)
        return StreamID(ms, 0)


class AddID(_Type):
    """The ID of a new entry: ``*``, ``ms-*`` or ``ms-seq``."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            parse_add_id(value)
        except InvalidArgument:
            self.fail(f"{value!r} is not an ID (ms-seq), ms-* or *.", param, ctx)
        return str(value)


class RangeBound(_Type):
    """A bound of a range: ``-``, ``+``, an ID or a time; ``(`` excludes it."""

    name = "id|time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in ("-", "+"):
            return str(value)
        opening = "(" if value.startswith("(") else ""
        bound = value.removeprefix("(")
        try:
            StreamID.parse(bound)
        except InvalidArgument:
            ms = time_ms(bound)
        else:
            return str(value)
        if ms is None:
            self.fail(f"{value!r} is not an ID, -, + or {TIME_HELP}.", param, ctx)
        return f"{opening}{ms}"


class Position(_Type):
    """Where reading starts: after an ID, at a time, or at one of ``symbols``."""

    name = "id|time"

    def __init__(self, symbols: Iterable[str] = ("$",)) -> None:
        self.symbols = tuple(symbols)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> StreamID | str:
        if isinstance(value, StreamID) or value in self.symbols:
            return value  # type: ignore[no-any-return]
        try:
            return StreamID.parse(value)
        except InvalidArgument:
            ms = time_ms(value)
        if ms is None:
            known = "".join(f", {symbol}" for symbol in self.symbols)
            self.fail(f"{value!r} is not an ID{known} or {TIME_HELP}.", param, ctx)
        first = StreamID(ms, 0)
        return first.previous() if ms else first


class Duration(_Type):
    """A duration, in seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        ms = duration_ms(str(value))
        if ms is None:
            self.fail(f"{value!r} is not a duration (500ms, 10s, 15m, 2h, 7d).", param, ctx)
        return ms / 1000


class Moment(_Type):
    """A time, in Unix milliseconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        ms = value if isinstance(value, int) else time_ms(value)
        if ms is None:
            self.fail(f"{value!r} is not {TIME_HELP}.", param, ctx)
        return ms


class Field(_Type):
    """A field and its value: ``name=value``."""

    name = "field=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[bytes, bytes]:
        name, sign, content = os.fsencode(value).partition(b"=")
        if not sign:
            self.fail(f"{value!r} is not FIELD=VALUE.", param, ctx)
        return name, content


class PathOnly(click.Path):
    """A path as for ``click.Path``; a URL is a usage error that names the right option."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if not isinstance(value, str | os.PathLike):
            self.fail(f"{value!r} is not a path.", param, ctx)  # a number, in a TOML file
        from kvstream.engine.coerce import refuse_url  # imported here: --help does not need it

        try:
            refuse_url(value)
        except InvalidArgument as error:
            self.fail(f"{error}.", param, ctx)
        return Path(os.fsdecode(super().convert(value, param, ctx)))


ids_argument = click.argument("ids", metavar="ID...", nargs=-1, required=True)
stream_argument = click.argument("stream", type=StreamName())
group_argument = click.argument("group", type=Name())
consumer_argument = click.argument("consumer", type=Name())


def ids_given(texts: Iterable[str]) -> list[StreamID]:
    """Return the IDs of the command line; ``-`` reads IDs from stdin, one per line."""
    convert = ID().convert
    ids: list[StreamID] = []
    for text in texts:
        if text == "-":
            ids += [convert(line.strip(), None, None) for line in sys.stdin if line.strip()]
        else:
            ids.append(convert(text, None, None))
    return ids
