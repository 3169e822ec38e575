"""The two ways in which a command answers: tables for people, JSON Lines for programs.

``output_options`` gives a command ``--json`` and ``--max-width``, and an ``Output`` that knows what
was chosen. With ``--json`` every answer is one JSON object a line, whatever the command. Where
stdout is no terminal, tables have neither frames nor colours, and one line a row.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import islice
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from kvstream.cli.json_values import dumps, jsonable
from kvstream.cli.text import duration, number, printable, shortened, time_of
from kvstream.records import Entry

P = ParamSpec("P")
T = TypeVar("T")

PAGE = 1000
"""Rows that are laid out together: enough for even columns, few enough to begin at once."""
TERMINAL_WIDTH_MAX = 60
"""Characters of one value that a terminal is shown by default."""
ID_WIDTH, TIME_WIDTH = 18, 24
"""Usual widths, held so that the pages of a long table line up."""


def plain(value: Any) -> str:
    """Return a value as people see it where its column says nothing else."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(value) if isinstance(value, bytes) else printable(str(value))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, the member of a row that it shows, and how."""

    title: str
    key: str
    show: Callable[[Any], str] = plain
    right: bool = False
    width: int = 0
    """The least width in characters."""
    wraps: bool = False


def count_column(title: str, key: str | None = None) -> Column:
    """Return a column of numbers."""
    return Column(title, key or title, number, right=True)


def age_column(title: str, key: str) -> Column:
    """Return a column of durations in milliseconds."""
    return Column(title, key, duration, right=True)


def id_columns(title: str = "id", key: str = "id") -> tuple[Column, Column]:
    """Return a column of IDs and one of their times."""
    return (
        Column(title, key, plain, width=ID_WIDTH),
        Column("time", key, time_of, width=TIME_WIDTH),
    )


@dataclass(frozen=True, slots=True)
class Output:
    """How the answers of one command are written to stdout."""

    json: bool
    max_width: int | None
    """Characters of a value that people are shown; None: all."""

    def table(
        self, columns: Sequence[Column], rows: Iterable[Mapping[str, Any]], title: bool = True
    ) -> int:
        """Write rows as they come, and return how many; ``title`` puts the titles above."""
        count = 0
        for page in pages(rows):
            if self.json:
                self._lines(page)
            else:
                _write_table(columns, [self._cells(columns, row) for row in page], title)
            title = False
            count += len(page)
        sys.stdout.flush()
        return count

    def entries(self, entries: Iterable[Entry], title: bool = True, stream: bytes = b"") -> int:
        """Write entries, and return how many; ``stream`` says which one they are of."""
        count = 0
        for page in pages(entries):
            rows = [self._entry_row(entry, stream) for entry in page]
            columns = [*id_columns()]
            if stream:
                columns.insert(0, Column("stream", "stream"))
            if page[0].deliveries is not None:
                columns += [age_column("idle", "idle_ms"), count_column("deliveries")]
            columns.append(Column("fields", "fields", str, wraps=True))
            self.table(columns, rows, title)
            title = False
            count += len(page)
        return count

    def record(self, values: Mapping[str, Any], shows: Mapping[str, Callable[[Any], str]]) -> None:
        """Write one object: a line for each of its values."""
        if self.json:
            self._lines([values])
            return
        rows = [[key.replace("_", " "), shows.get(key, plain)(values[key])] for key in values]
        _write_table((Column("", ""), Column("", "", wraps=True)), rows, title=False)

    def result(self, text: str, **values: Any) -> None:
        """Write what was done: a sentence for people, ``values`` for programs."""
        if self.json:
            self._lines([values])
        else:
            click.echo(text)

    def heading(self, text: str) -> None:
        """Write a line over a table, for people."""
        if not self.json:
            click.secho(f"\n{text}" if text else "", bold=True)

    def _lines(self, rows: Iterable[Mapping[str, Any]]) -> None:
        ascii_only = "utf" not in (sys.stdout.encoding or "").lower()
        sys.stdout.write("".join(dumps(jsonable(row), ascii_only) + "\n" for row in rows))
        sys.stdout.flush()

    def _cells(self, columns: Sequence[Column], row: Mapping[str, Any]) -> list[str]:
        return [
            text if column.wraps else shortened(text, self.max_width)
            for column in columns
            for text in [column.show(row[column.key])]
        ]

    def _entry_row(self, entry: Entry, stream: bytes) -> Mapping[str, Any]:
        if self.json:
            shown: dict[str, Any] = jsonable(entry)
            return {"stream": stream, **shown} if stream else shown
        return {
            "stream": stream,
            "id": entry.id,
            "fields": self._fields_text(entry),
            "idle_ms": entry.idle_ms,
            "deliveries": entry.deliveries,
        }

    def _fields_text(self, entry: Entry) -> str:
        if entry.fields is None:
            return "(deleted)"
        return "  ".join(
            f"{printable(name)}={shortened(printable(value), self.max_width)}"
            for name, value in entry.pairs
        )


def pages(rows: Iterable[T], size: int = PAGE) -> Iterator[list[T]]:
    """Yield rows in lists of ``size``; the last may be shorter."""
    remaining = iter(rows)
    while page := list(islice(remaining, size)):
        yield page


def _write_table(columns: Sequence[Column], rows: list[list[str]], title: bool) -> None:
    if sys.stdout.isatty():
        _write_framed(columns, rows, title)
    else:
        _write_aligned(columns, rows, title)


def _write_aligned(columns: Sequence[Column], rows: list[list[str]], title: bool) -> None:
    lines = [[column.title for column in columns], *rows] if title else rows
    widths = [
        max(column.width, *(len(line[at]) for line in lines)) if lines else 0
        for at, column in enumerate(columns)
    ]
    for line in lines:
        cells = (
            cell.rjust(width) if column.right else cell.ljust(width)
            for column, cell, width in zip(columns, line, widths, strict=True)
        )
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def _write_framed(columns: Sequence[Column], rows: list[list[str]], title: bool) -> None:
    from rich.box import SIMPLE_HEAD  # here, since most commands of a script need no rich
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=SIMPLE_HEAD if title else None, show_header=title, pad_edge=False, show_edge=False
    )
    if not title:
        table.padding = (0, 2, 0, 0)
    for column in columns:
        table.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            min_width=column.width,
            no_wrap=not column.wraps,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(Text, row))
    Console(file=sys.stdout, highlight=False).print(table)


def output_options(
    command: Callable[Concatenate[Output, P], T],
) -> Callable[P, T]:
    """Give a command ``--json`` and ``--max-width``; it is called with an Output first."""

    @click.option(
        "--max-width",
        type=click.IntRange(0),
        metavar="N",
        help=f"Cut values, by default to {TERMINAL_WIDTH_MAX} characters on a terminal; 0: never.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Answer in JSON, one object a line.")
    @wraps(command)
    def with_output(*args: P.args, **kwargs: P.kwargs) -> T:
        as_json = bool(kwargs.pop("as_json"))
        width = kwargs.pop("max_width")
        if width is None and sys.stdout.isatty():
            width = TERMINAL_WIDTH_MAX
        out = Output(as_json, width if isinstance(width, int) and width else None)
        return command(out, *args, **kwargs)

    return with_output
