"""The question before a command destroys something, and ``--dry-run``.

Only people are asked: programs have no terminal. The store is closed while the question waits.
"""

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import click

from kvstream.cli.exit_codes import ExitCode
from kvstream.cli.parameters import option_group

P = ParamSpec("P")
T = TypeVar("T")

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask first, on a terminal.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be deleted, and change nothing."
)
destroying_options: Callable[[Callable[P, T]], Callable[P, T]] = option_group(
    dry_run_option, yes_option
)


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
