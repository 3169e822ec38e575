"""The output of commands: tables for people, or JSON Lines for programs.

``output_options`` adds ``--json`` and ``--max-width`` to a command and passes it an ``Output``. If
stdout is not a terminal, tables have no colours and one line per row. A progress bar is shown on
stderr if that is a terminal.
"""

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import islice
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import click

from kvstream.cli.json_values import dumps, jsonable
from kvstream.cli.tables import (
    NAME_WIDTH_MIN,
    Column,
    age_column,
    block,
    clipped,
    count_column,
    id_columns,
    name_column,
    number,
    plain,
    printable,
    sheet,
    shortened,
)
from kvstream.types.records import AnyEntry

_FIGURES_WIDTH = 45
"""Width of the numbers after the title of a progress bar."""


class Progress(Protocol):
    """Sets how far the work is, in units of the total and in rows."""

    def __call__(self, done: int, rows: int) -> None: ...


@contextmanager
def progress_bar(title: str, total: int | None, quiet: bool) -> Iterator[Progress]:
    """Show a progress bar on stderr; ``total`` is None if it is unknown."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, rows: None
        return
    from rich import progress  # imported here: most runs show no bar
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TextColumn("{task.fields[rows]} rows, {task.fields[rate]}/s"),
        progress.TimeElapsedColumn() if total is None else progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        room = shutil.get_terminal_size().columns - _FIGURES_WIDTH
        title = clipped(title, max(NAME_WIDTH_MIN, room))
        task = bar.add_task(title, total=total, rows="0", rate="0")

        def show(done: int, rows: int) -> None:
            elapsed = bar.tasks[0].elapsed or 0
            rate = round(rows / elapsed) if elapsed > 0 else 0
            bar.update(task, completed=done, rows=number(rows), rate=number(rate))

        yield show


P = ParamSpec("P")
T = TypeVar("T")

PAGE = 1000
"""Rows that share their column widths; few enough that output starts at once."""
TERMINAL_WIDTH_MAX = 60
"""Default limit of a value on a terminal, in characters."""


@dataclass(frozen=True, slots=True)
class Output:
    """Writes the results of one command to stdout."""

    json: bool
    max_width: int | None
    """Characters of a value in a table; None: all."""

    def table(
        self, columns: Sequence[Column], rows: Iterable[Mapping[str, Any]], title: bool = True
    ) -> int:
        """Write rows as they come, below their titles, and return the number of rows."""
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

    def entries(self, entries: Iterable[AnyEntry], title: bool = True, stream: bytes = b"") -> int:
        """Write entries, with a column for ``stream`` unless empty; return their number."""
        count = 0
        for page in pages(entries):
            rows = [self._entry_row(entry, stream) for entry in page]
            columns = [*id_columns()]
            if stream:
                columns.insert(0, name_column("stream"))
            if page[0].deliveries is not None:
                columns += [age_column("idle", "idle_ms"), count_column("deliveries")]
            columns.append(Column("fields", "fields", str, wraps=True))
            self.table(columns, rows, title)
            title = False
            count += len(page)
        return count

    def record(
        self, values: Mapping[str, Any], formats: Mapping[str, Callable[[Any], str]]
    ) -> None:
        """Write one object, with a line for each value."""
        if self.json:
            self._lines([values])
            return
        titles = [key.replace("_", " ") for key in values]
        texts = [formats.get(key, plain)(values[key]) for key in values]
        _write(block(titles, texts, _terminal_width()))

    def result(self, text: str, **values: Any) -> None:
        """Write a result: ``text`` for people, ``values`` as JSON."""
        if self.json:
            self._lines([values])
        else:
            click.echo(text)

    def heading(self, text: str) -> None:
        """Write the heading of a table, unless the output is JSON."""
        if not self.json:
            click.secho(f"\n{text}" if text else "", bold=True)

    def _lines(self, rows: Iterable[Mapping[str, Any]]) -> None:
        ascii_only = "utf" not in (sys.stdout.encoding or "").lower()
        sys.stdout.write("".join(dumps(jsonable(row), ascii_only) + "\n" for row in rows))
        sys.stdout.flush()

    def _cells(self, columns: Sequence[Column], row: Mapping[str, Any]) -> list[str]:
        return [
            shortened(text, self.max_width) if column.shrinks else text
            for column in columns
            for text in [column.show(row[column.key])]
        ]

    def _entry_row(self, entry: AnyEntry, stream: bytes) -> Mapping[str, Any]:
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

    def _fields_text(self, entry: AnyEntry) -> str:
        if entry.fields is None:
            return "(deleted)"
        return "  ".join(
            f"{printable(name)}={shortened(printable(value), self.max_width)}"
            for name, value in entry.pairs
        )


def pages(rows: Iterable[T], size: int = PAGE) -> Iterator[list[T]]:
    """Yield lists of ``size`` rows; the last list may be shorter."""
    remaining = iter(rows)
    while page := list(islice(remaining, size)):
        yield page


def _write_table(columns: Sequence[Column], rows: list[list[str]], title: bool) -> None:
    width = _terminal_width()
    laid = sheet(columns, rows, width)
    if title and laid.head:
        _write(laid.head if width is None else [*_bold(laid.head), _rule(laid.width)])
    for lines in laid.rows:
        _write(lines)


def _write(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _bold(lines: Iterable[str]) -> list[str]:
    return [click.style(line, bold=True) for line in lines]


def _terminal_width() -> int | None:
    """Return the width of the terminal; None if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _rule(width: int) -> str:
    is_unicode = "utf" in (sys.stdout.encoding or "").lower()
    return ("─" if is_unicode else "-") * width


def output_options(
    command: Callable[Concatenate[Output, P], T],
) -> Callable[P, T]:
    """Add ``--json`` and ``--max-width`` to a command, which gets an Output first."""

    @click.option(
        "--max-width",
        type=click.IntRange(0),
        metavar="N",
        help=f"Shorten values to N characters, on a terminal by default to {TERMINAL_WIDTH_MAX}; "
        "0: never.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Write JSON, one object per line.")
    @wraps(command)
    def with_output(*args: P.args, **kwargs: P.kwargs) -> T:
        as_json = bool(kwargs.pop("as_json"))
        width = kwargs.pop("max_width")
        if width is None and sys.stdout.isatty():
            width = TERMINAL_WIDTH_MAX
        out = Output(as_json, width if isinstance(width, int) and width else None)
        return command(out, *args, **kwargs)

    return with_output
