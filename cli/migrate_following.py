"""``migrate run --follow`` and ``--cutover``: a live server as a source that goes on being used."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from kvstream.cli import migrate_tables as tables
from kvstream.cli.exits import ExitCode
from kvstream.cli.migrate_places import Ends, opened
from kvstream.cli.output import Output
from kvstream.cli.parameters import Duration
from kvstream.migration.following import PAUSE_S
from kvstream.migration.replication.cutover import CutOver
from kvstream.migration.replication.pair import Pair, check_followed, open_end, open_pair
from kvstream.migration.server import Server

F = TypeVar("F", bound=Callable[..., Any])

SHOWN_S = 1.0
TOLD_S = 30.0
"""Between two lines of progress, on a terminal and in a log."""


def following_options(command: F) -> F:
    """Give a command the options of a source that is followed."""
    for option in (
        click.option(
            "--pause",
            "pause_s",
            type=Duration(),
            default=f"{PAUSE_S:g}s",
            show_default=True,
            metavar="DURATION",
            help="How long SOURCE takes no writes after the cut-over.",
        ),
        click.option(
            "--cutover",
            is_flag=True,
            help="Follow SOURCE until TARGET is level with it, then pause it and lead over.",
        ),
        click.option(
            "--follow",
            is_flag=True,
            help="Keep TARGET in step with SOURCE, as a replica, until Ctrl-C.",
        ),
    ):
        command = option(command)
    return command


def follow(
    out: Output, ends: Ends, folder: Path, *, cutover: bool, pause_s: float, quiet: bool
) -> None:
    """Follow a source, and lead over from it where that is asked for."""
    check_followed(ends.source, ends.target)
    with (
        opened("source", ends.source, Server) as server,
        opened("target", ends.target, open_end) as end,
        _telling(quiet) as telling,
        open_pair(server, ends.target, end, ends.selection, folder, telling.say) as pair,
    ):
        telling.pair = pair
        if not cutover:
            pair.follow(telling.is_over)
            return
        done = pair.cut_over(pause_s, telling.is_over)
        telling.end_line()
        _show(out, done, pause_s)


def _show(out: Output, done: CutOver, pause_s: float) -> None:
    tables.show_verification(out, done.verification)
    if not done.is_done:
        click.echo("Not led over: SOURCE goes on as before.", err=True)
        raise click.exceptions.Exit(int(ExitCode.FAILED))
    paused = f"it is paused for {pause_s:g} s more" if done.is_paused else "it could not be paused"
    click.echo(
        f"Done: TARGET has all that SOURCE had. Nothing was written to SOURCE for "
        f"{done.stood_s:.1f} s; {paused}.",
        err=True,
    )


class _Telling:
    """Tells on stderr how following goes on."""

    def __init__(self, quiet: bool) -> None:
        self.pair: Pair | None = None
        self._quiet = quiet
        self._shown_s = 0.0
        self._is_terminal = sys.stderr.isatty()
        self._is_open_line = False

    def say(self, text: str) -> None:
        if not self._quiet:
            self.end_line()
            click.echo(text, err=True)

    def is_over(self) -> bool:
        """Show the lag now and then; the user ends it with Ctrl-C."""
        now = time.monotonic()
        pause_s = SHOWN_S if self._is_terminal else TOLD_S
        if self.pair is not None and not self._quiet and now - self._shown_s >= pause_s:
            self._shown_s = now
            self._show(self.pair)
        return False

    def _show(self, pair: Pair) -> None:
        lag = pair.lag()
        if lag is None:
            return
        behind, seconds = lag
        text = f"{pair.commands} commands applied, {behind} bytes and {seconds:.1f} s behind"
        click.echo(
            f"\r\x1b[K{text}" if self._is_terminal else text, nl=not self._is_terminal, err=True
        )
        self._is_open_line = self._is_terminal

    def end_line(self) -> None:
        if self._is_open_line:
            click.echo(err=True)
            self._is_open_line = False


@contextmanager
def _telling(quiet: bool) -> Iterator[_Telling]:
    telling = _Telling(quiet)
    try:
        yield telling
    except KeyboardInterrupt:
        telling.end_line()
        offset = 0 if telling.pair is None else telling.pair.offset
        click.echo(f"Stopped at offset {offset}: the same command goes on from there.", err=True)
    finally:
        telling.end_line()
