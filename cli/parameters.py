"""The types of arguments and options, those that commands share, and the examples of commands.

A name is the bytes that the shell passed. A time may stand for an ID: an ISO 8601 date or date and
time, UTC by default, or words such as ``now-15m``.

A command that destroys something has ``--dry-run``, and asks before. Only people are asked:
programs have no terminal. The store is closed while the question waits.
"""

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvstream.cli.exit_codes import ExitCode
from kvstream.errors import InvalidArgument
from kvstream.types.ids import (
    StreamID,
    duration_ms,
    id_or_time,
    parse_add_id,
    position,
    seconds_hint,
    time_ms,
)

F = TypeVar("F", bound=Callable[..., Any])

COMPLETION_VARIABLE = "_KVSTREAM_COMPLETE"
"""The environment variable by which a shell asks for completions."""


def example(*lines: str) -> str:
    """Return the epilog of a command, with these command lines as its example."""
    return "\n".join(["\b\nExample:", *(f"  $ {line}" for line in lines)])


def option_group(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds several arguments and options to a command, in this order."""

    def add(command: F) -> F:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return add


if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from kvstream.store import Store

    Type = click.ParamType[Any]
else:
    Type = click.ParamType  # cannot be subscripted before click 8.4

TIME_HELP = "a time such as 2026-01-31T12:00 (UTC), now-15m, '1h ago' or yesterday"


_COUNT_MAX = sys.maxsize // 16
"""The greatest COUNT of XAUTOCLAIM."""


class Count(click.IntRange):
    """The greatest number of rows; a larger one than any list has is lowered to the limit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return min(int(super().convert(value, param, ctx)), _COUNT_MAX)


class Name(Type):
    """The name of a stream, group or consumer, as bytes."""

    name = "name"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        return value if isinstance(value, bytes) else os.fsencode(value)


class StreamName(Name):
    """The name of a stream; the shell completes it."""

    name = "stream"
    inside: tuple[str, ...] = ()
    """The arguments that name the place of the names, such as the stream of a group."""

    def names(self, store: "Store", *inside: bytes) -> Iterator[bytes]:
        """Yield the names that ``store`` has, given the values of the arguments ``inside``."""
        from kvstream.types.glob import is_listed

        return filter(is_listed, store.scan_keys())

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        from kvstream.cli.session import names_in

        # Arguments before an option whose value is completed are not parsed yet.
        unparsed = dict(zip(self.inside, map(os.fsencode, ctx.args), strict=False))
        given: list[Any] = [ctx.params.get(name) or unparsed.get(name) for name in self.inside]
        given = [name[0] if isinstance(name, tuple) else name for name in given]
        if None in given:
            return []
        names = names_in(ctx.find_root(), lambda store: self.names(store, *given))
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class GroupName(StreamName):
    """The name of a group of the stream that is named before it."""

    name = "group"
    inside: tuple[str, ...] = ("stream",)

    def names(self, store: "Store", *inside: bytes) -> Iterator[bytes]:
        (stream,) = inside
        return (each.name for each in store.stream(stream).groups())


class GroupOfFirst(GroupName):
    """The name of a group of the first of the streams that are named before it."""

    inside = ("streams",)


class ConsumerName(StreamName):
    """The name of a consumer of the group that is named before it."""

    name = "consumer"
    inside: tuple[str, ...] = ("stream", "group")

    def names(self, store: "Store", *inside: bytes) -> Iterator[bytes]:
        stream, group = inside
        return (each.name for each in store.stream(stream).group(group).consumers())


class ConsumerOfFirst(ConsumerName):
    """The name of a consumer of a group of the first of the streams that are named before it."""

    inside = ("streams", "group")


class ProfileName(Type):
    """The name of a profile; the shell completes it."""

    name = "profile"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        from kvstream.cli.profiles import profile_names

        names = [name for name in profile_names() if name.startswith(incomplete)]
        return [CompletionItem(name) for name in names]


class Parsed(Type):
    """A text that a function of the library parses; its InvalidArgument is wrong usage."""

    wanted: str
    """The form of the text, for the error."""

    def parse(self, text: Any) -> Any:
        """Return the value of a text; a default may be such a value already."""
        raise NotImplementedError

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.parse(value)
        except InvalidArgument:
            self.fail(f"{value!r} is not {self.wanted}.", param, ctx)


class ID(Parsed):
    """An ID, with or without its sequence."""

    name = "id"
    wanted = "an ID (ms-seq, such as 1700000000000-0)"

    def parse(self, text: Any) -> StreamID:
        return StreamID.parse(text)


class OldestID(Parsed):
    """The smallest ID to keep: an ID, or the first ID of a time."""

    name = "id|time"
    wanted = f"an ID or {TIME_HELP}"

    def parse(self, text: Any) -> StreamID:
        _hint(text)
        return id_or_time(text)


class AddID(Parsed):
    """The ID of a new entry: ``*``, ``ms-*`` or ``ms-seq``."""

    name = "id"
    wanted = "an ID (ms-seq), ms-* or *"

    def parse(self, text: Any) -> str:
        parse_add_id(text)
        return str(text)


def _hint(bound: str) -> None:
    """Warn of a bound that can only be seconds, in place of the library."""
    if hint := seconds_hint(bound):
        click.echo(f"Warning: {hint}.", err=True)
        warnings.filterwarnings("ignore", re.escape(hint), UserWarning)


class RangeBound(Type):
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
            pass
        else:
            _hint(bound)
            return str(value)
        try:
            return f"{opening}{id_or_time(bound).ms}"
        except InvalidArgument:
            self.fail(f"{value!r} is not an ID, -, + or {TIME_HELP}.", param, ctx)


class Position(Parsed):
    """Where reading starts: after an ID, at a time, or at one of ``symbols``."""

    name = "id|time"

    def __init__(self, symbols: Sequence[str] = ("$",)) -> None:
        self.symbols = symbols
        self.wanted = f"{', '.join(['an ID', *symbols])} or {TIME_HELP}"

    def parse(self, text: Any) -> StreamID | str:
        return str(text) if text in self.symbols else position(text)


class Duration(Type):
    """A duration, in seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        ms = duration_ms(str(value))
        if ms is None:
            self.fail(f"{value!r} is not a duration (500ms, 10s, 15m, 2h, 7d).", param, ctx)
        return ms / 1000


class Size(Parsed):
    """A number of bytes, such as ``512MB``."""

    name = "size"
    wanted = "a size (65536, 100kb, 512mb, 2gb)"

    def parse(self, text: Any) -> int:
        from kvstream.server.setting_values import memory

        return memory(1)(os.fsencode(str(text)))


class Moment(Type):
    """A time, in Unix seconds."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        ms = time_ms(value)
        if ms is None or ms < 0:
            self.fail(f"{value!r} is not {TIME_HELP}.", param, ctx)
        return ms / 1000


class Field(Type):
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
        if not os.fspath(value):  # an unset variable of a shell; the current folder is "."
            self.fail("the path is empty.", param, ctx)
        from kvstream.types.urls import refuse_url  # imported here: --help does not need it

        try:
            refuse_url(value)
        except InvalidArgument as error:
            self.fail(f"{error}.", param, ctx)
        return Path(os.fsdecode(super().convert(value, param, ctx)))


ids_argument = click.argument("ids", metavar="ID...", nargs=-1, required=True)
stream_argument = click.argument("stream", type=StreamName())
group_argument = click.argument("group", type=GroupName())
consumer_argument = click.argument("consumer", type=ConsumerName())
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask first, on a terminal.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be deleted, and change nothing."
)
destroying_options = option_group(dry_run_option, yes_option)


def parse_ids(texts: Iterable[str]) -> list[StreamID]:
    """Return the IDs of the command line; ``-`` reads IDs from stdin, one per line."""
    convert = ID().convert
    ids: list[StreamID] = []
    for text in texts:
        if text == "-":
            ids += [convert(line.strip(), None, None) for line in sys.stdin if line.strip()]
        else:
            ids.append(convert(text, None, None))
    return ids


def must_ask(yes: bool) -> bool:
    """Return whether to ask first: at a terminal, without the option ``--yes``."""
    return not yes and sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str) -> None:
    """Ask a question, and exit with 1 unless the answer is yes."""
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:  # Ctrl-C or Ctrl-D
        click.echo(err=True)
        agreed = False
    if not agreed:
        click.echo("nothing was changed", err=True)
        raise click.exceptions.Exit(int(ExitCode.FAILED))
