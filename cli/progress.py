"""A bar on stderr for what takes long; nothing where stderr is no terminal, or ``--quiet``."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from kvstream.cli.tables import NAME_WIDTH_MIN, clipped
from kvstream.cli.text import number

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
