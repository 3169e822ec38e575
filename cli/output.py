"""The two ways in which a command answers: tables for people, JSON Lines for programs.

``output_options`` gives a command ``--json`` and ``--max-width``, and an ``Output`` that knows what
was chosen. With ``--json`` every answer is one JSON object a line, whatever the command. Where
stdout is no terminal, tables have neither frames nor colours, and one line a row.

A bar on stderr for what takes long; nothing where stderr is no terminal, or ``--quiet``.
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

from kvstream.cli.rows import dumps, jsonable
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
"""What numbers take behind the title; the bar has what is left."""


class Meter(Protocol):
    """Told how far the work has come: units of ``total``, and rows."""

    def __call__(self, done: int, rows: int) -> None: ...


@contextmanager
def meter(title: str, total: int | None, quiet: bool) -> Iterator[Meter]:
    """Show a bar while the work goes on; ``total`` None: nobody knows how much there is."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, rows: None
        return
    from rich.console import Console  # here, since most runs show no bar
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]} rows, {task.fields[rate]}/s"),
        TimeElapsedColumn() if total is None else TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        room = shutil.get_terminal_size().columns - _FIGURES_WIDTH
        title = clipped(title, max(NAME_WIDTH_MIN, room))
        task = progress.add_task(title, total=total, rows="0", rate="0")

        def show(done: int, rows: int) -> None:
            elapsed = progress.tasks[0].elapsed or 0
            rate = round(rows / elapsed) if elapsed > 0 else 0
            progress.update(task, completed=done, rows=number(rows), rate=number(rate))

        yield show


P = ParamSpec("P")
T = TypeVar("T")

PAGE = 1000
"""Rows that are laid out together: enough for even columns, few enough to begin at once."""
TERMINAL_WIDTH_MAX = 60
"""Characters of one value that a terminal is shown by default."""


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

    def entries(self, entries: Iterable[AnyEntry], title: bool = True, stream: bytes = b"") -> int:
        """Write entries, and return how many; ``stream`` says which one they are of."""
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

    def record(self, values: Mapping[str, Any], shows: Mapping[str, Callable[[Any], str]]) -> None:
        """Write one object: a line for each of its values."""
        if self.json:
            self._lines([values])
            return
        titles = [key.replace("_", " ") for key in values]
        texts = [shows.get(key, plain)(values[key]) for key in values]
        _write(block(titles, texts, _terminal_width()))

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
    """Yield rows in lists of ``size``; the last may be shorter."""
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
    """Return the width of the terminal; None where stdout is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _rule(width: int) -> str:
    is_unicode = "utf" in (sys.stdout.encoding or "").lower()
    return ("─" if is_unicode else "-") * width


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
