"""The options that say what to trim, shared by ``add`` and ``trim``."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kvstream.cli.parameters import OldestID
from kvstream.operations.references import RefPolicy

Command = TypeVar("Command", bound=Callable[..., Any])

_POLICIES = [policy.value for policy in RefPolicy]

ref_policy_option = click.option(
    "--ref-policy",
    type=click.Choice(_POLICIES, case_sensitive=False),
    metavar="|".join(_POLICIES),
    help="What of entries that groups refer to: by default KEEPREF leaves the references; DELREF "
    "drops them; ACKED spares the entries.",
)

_OPTIONS = (
    click.option("--maxlen", type=click.IntRange(0), metavar="N", help="Keep the last N entries."),
    click.option(
        "--minid",
        type=OldestID(),
        help="Keep what is not below this ID, or not older than this time (now-7d).",
    ),
    click.option("--approximate", "-a", is_flag=True, help="Trim whole nodes only: faster."),
    click.option(
        "--limit", type=click.IntRange(0), metavar="N", help="With -a: at most so many; 0: all."
    ),
    ref_policy_option,
)


def trim_options(command: Command) -> Command:
    """Give a command the options of a trim, under the names of the library."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
