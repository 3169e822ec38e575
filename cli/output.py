"""The output of commands: tables for people, or JSON Lines or CSV for programs.

``output_options`` adds ``--format``, ``--json`` and ``--max-width`` to a command and passes it its
session and an ``Output``. If stdout is not a terminal, tables have no colours and one line per row.
A progress bar is shown on stderr if that is a terminal.
"""

import csv
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from itertools import islice
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

import click

from kvstream.cli.json_values import dumps, entry_json, jsonable
from kvstream.cli.tables import (
    NAME_WIDTH_MIN,
    Column,
    block,
    clip,
    duration,
    id_columns,
    left_out_lines,
    name_column,
    number,
    or_dash,
    plain,
    printable,
    sheet,
    shorten,
)
from kvstream.types.records import AnyEntry

if TYPE_CHECKING:
    from kvstream.cli.file_formats import CsvWriter
    from kvstream.cli.session import Session

_FIGURES_WIDTH = 45
"""Width of the numbers after the title of a progress bar."""
_POLL_S, _LINE_S = 0.1, 2.0
"""Seconds between two polls of the work, and between two lines about it."""


class Progress(Protocol):
    """Sets how far the work is, in units of the total and in rows."""

    def __call__(self, done: int, rows: int) -> None: ...


@contextmanager
def progress_bar(
    title: str,
    total: int | None,
    quiet: bool,
    shown: Callable[[int], str] = number,
    unit: str = " rows",
) -> Iterator[Progress]:
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
        progress.TextColumn(f"{{task.fields[rows]}}{unit}, {{task.fields[rate]}}/s"),
        progress.TimeElapsedColumn() if total is None else progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        room = shutil.get_terminal_size().columns - _FIGURES_WIDTH
        title = clip(title, max(NAME_WIDTH_MIN, room))
        task = bar.add_task(title, total=total, rows="0", rate="0")

        def show(done: int, rows: int) -> None:
            elapsed = bar.tasks[0].elapsed or 0
            rate = round(rows / elapsed) if elapsed > 0 else 0
            bar.update(task, completed=done, rows=shown(rows), rate=shown(rate))

        yield show


@contextmanager
def polled_progress(
    title: str,
    total: int,
    wanted: bool | None,
    look: Callable[[], int],
    shown: Callable[[int], str] = number,
    unit: str = " rows",
) -> Iterator[None]:
    """Show on stderr how far the block is; a thread asks ``look`` for the figure.

    ``wanted`` None: only on a terminal, as a bar; True: elsewhere as lines; False: never.
    ``total`` is an estimate.
    """
    is_terminal = sys.stderr.isatty()
    if wanted is False or not (wanted or is_terminal):
        yield
        return
    ended = Event()

    def advance_bar() -> None:
        with progress_bar(title, total, False, shown, unit) as advance:
            while not ended.wait(_POLL_S):
                done = look()
                advance(min(done, total), done)

    def write_lines() -> None:
        while not ended.wait(_LINE_S):
            click.echo(f"{title}: {shown(look())} of about {shown(total)}{unit}", err=True)

    thread = Thread(target=advance_bar if is_terminal else write_lines, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if not is_terminal:
            click.echo(f"{title}: {shown(look())}{unit}", err=True)


P = ParamSpec("P")
T = TypeVar("T")

PAGE = 1000
"""Rows that share their column widths; few enough that output starts at once."""
FORMATS = ("table", "json", "csv")
TERMINAL_WIDTH_MAX = 60
"""Default limit of a value on a terminal, in characters."""


_OF_PENDING = (
    Column("idle", "idle_ms", or_dash(duration), right=True),
    Column("deliveries", "deliveries", or_dash(number), right=True),
)
"""They show - for a new entry, and for one that was given back."""


@dataclass(slots=True)
class Output:
    """Writes the results of one command to stdout."""

    for_programs: bool
    """Whether the output is for programs: JSON, or the same values as CSV."""
    max_width: int | None
    """Characters of a value in a table; None: all."""
    csv: bool = False
    _writer: "CsvWriter | None" = None
    """Writes entries as CSV; the first page chooses its columns."""
    _left_out: list[str] = field(default_factory=list)
    """The titles of columns that were left out; each is named once."""

    def table(
        self,
        columns: Sequence[Column],
        rows: Iterable[Mapping[str, Any]],
        title: bool = True,
        nothing: str = "",
    ) -> int:
        """Write rows as they come, below their titles, and return the number of rows.

        ``nothing`` is said on stderr if there is no row, and the output is for people.
        """
        count = 0
        for page in pages(rows):
            if self.for_programs:
                self._lines([jsonable(row) for row in page], title)
            else:
                self._write_table(columns, [self._cells(columns, row) for row in page], title)
            title = False
            count += len(page)
        if nothing and not count and not self.for_programs:
            click.echo(nothing, err=True)
        sys.stdout.flush()
        return count

    def names(self, title: str, names: Iterable[bytes], nothing: str) -> None:
        """Write names, a line each; for people without a title and whole."""
        if self.for_programs:
            self.table([name_column(title)], ({title: name} for name in names))
            return
        count = 0
        for page in pages(names):
            _write(map(printable, page))
            count += len(page)
        if not count:
            click.echo(nothing, err=True)
        sys.stdout.flush()

    def entries(self, entries: Iterable[AnyEntry], title: bool = True, stream: bytes = b"") -> int:
        """Write entries, with a column for ``stream`` unless empty; return their number."""
        count = 0
        for page in pages(entries):
            if self.csv and not stream and page[0].deliveries is None:
                self._csv_entries(page, title)
            elif self.for_programs:
                self._lines([_entry_object(entry, stream) for entry in page], title)
            else:
                rows = [self._entry_row(entry, stream) for entry in page]
                self.table(_entry_columns(page[0], stream), rows, title)
            title = False
            count += len(page)
        return count

    def record(
        self, values: Mapping[str, Any], formats: Mapping[str, Callable[[Any], str]]
    ) -> None:
        """Write one object, with a line for each value."""
        if self.for_programs:
            self.object(**values)
            return
        titles = [key.replace("_", " ") for key in values]
        texts = [formats.get(key, plain)(values[key]) for key in values]
        _write(block(titles, texts, _terminal_width()))

    def object(self, **values: Any) -> None:
        """Write one object, for programs."""
        self._lines([jsonable(values)])

    def result(self, text: str, **values: Any) -> None:
        """Write a result: ``text`` for people, or ``values`` for programs."""
        if self.for_programs:
            self.object(**values)
        else:
            click.echo(text)

    def heading(self, text: str) -> None:
        """Write the heading of a table, if the output is for people."""
        if not self.for_programs:
            click.secho(f"\n{text}" if text else "", bold=True)

    def _write_table(self, columns: Sequence[Column], rows: list[list[str]], title: bool) -> None:
        """Write rows; first name the columns for which there is no room, each once."""
        width = _terminal_width()
        laid = sheet(columns, rows, width)
        if width is not None:
            new = [name for name in laid.left_out if name not in self._left_out]
            self._left_out += new
            _write(click.style(line, dim=True) for line in left_out_lines(new, width))
        if title and laid.head:
            titles = [click.style(line, bold=True) for line in laid.head]
            _write(laid.head if width is None else [*titles, _rule(laid.width)])
        for lines in laid.rows:
            _write(lines)

    def _csv_entries(self, page: Sequence[AnyEntry], title: bool) -> None:
        """Write entries as ``export --format csv`` does, so that ``import`` reads them."""
        from kvstream.cli.file_formats import CsvWriter, column_names  # tables do not need it

        writer = self._writer = self._writer or CsvWriter(column_names(iter(page)))
        sys.stdout.write(((writer.header if title else b"") + writer.page(page)).decode())
        sys.stdout.flush()

    def _lines(self, objects: list[dict[str, Any]], title: bool = True) -> None:
        if self.csv:
            table = csv.writer(sys.stdout, lineterminator="\n")
            table.writerows([*([objects[0]] if title else []), *map(_csv_row, objects)])
            sys.stdout.flush()
            return
        ascii_only = "utf" not in (sys.stdout.encoding or "").lower()
        sys.stdout.write("".join(dumps(each, ascii_only) + "\n" for each in objects))
        sys.stdout.flush()

    def _cells(self, columns: Sequence[Column], row: Mapping[str, Any]) -> list[str]:
        return [
            shorten(text, self.max_width) if column.shrinks else text
            for column in columns
            for text in [column.show(row[column.key])]
        ]

    def _entry_row(self, entry: AnyEntry, stream: bytes) -> Mapping[str, Any]:
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
            f"{printable(name)}={shorten(printable(value), self.max_width)}"
            for name, value in entry.pairs
        )


def _entry_columns(first: AnyEntry, stream: bytes) -> list[Column]:
    """Return the columns of a table of entries; pending ones have two more."""
    columns = [name_column("stream")] if stream else []
    columns += id_columns()
    if first.deliveries is not None:
        columns += _OF_PENDING
    return [*columns, Column("fields", "fields", str, wraps=True)]


def _entry_object(entry: AnyEntry, stream: bytes) -> dict[str, Any]:
    """Return an entry, and its stream unless empty, as a JSON object."""
    shown = entry_json(entry)
    return {"stream": jsonable(stream), **shown} if stream else shown


def _csv_row(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of a row of JSON values: nested ones are JSON, null is empty."""
    return [
        value if isinstance(value, str) else "" if value is None else dumps(value, False)
        for value in row.values()
    ]


def pages(rows: Iterable[T], size: int = PAGE) -> Iterator[list[T]]:
    """Yield lists of ``size`` rows; the last list may be shorter."""
    remaining = iter(rows)
    while page := list(islice(remaining, size)):
        yield page


def _write(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _terminal_width() -> int | None:
    """Return the width of the terminal; None if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _rule(width: int) -> str:
    is_unicode = "utf" in (sys.stdout.encoding or "").lower()
    return ("─" if is_unicode else "-") * width


def output_options(command: Callable[Concatenate["Session", Output, P], T]) -> Callable[P, T]:
    """Add ``--format``, ``--json`` and ``--max-width``; pass the command its session and Output."""
    return output_only_options(click.pass_obj(command))


def summary_options(command: Callable[Concatenate["Session", Output, P], T]) -> Callable[P, T]:
    """Add the options of ``output_options`` without ``--format``."""
    return _pass_output(click.pass_obj(command))


def output_only_options(command: Callable[Concatenate[Output, P], T]) -> Callable[P, T]:
    """Add the options of ``output_options`` to a command that works on no session."""
    return click.option(
        "--format",
        "output_format",
        type=click.Choice(FORMATS),
        help="Write a table, JSON Lines (as --json) or CSV.",
    )(_pass_output(command))


def _pass_output(command: Callable[Concatenate[Output, P], T]) -> Callable[P, T]:
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
        chosen = kwargs.pop("output_format", None) or ("json" if as_json else "table")
        width = kwargs.pop("max_width")
        if width is None and sys.stdout.isatty():
            width = TERMINAL_WIDTH_MAX
        width = width if isinstance(width, int) and width else None
        out = Output(chosen != "table", width, chosen == "csv")
        return command(out, *args, **kwargs)

    return with_output
