"""The places of a migration on the command line, and the passwords that open them.

A password comes from a file, the environment or a prompt. One that stands in an argument works too,
but others on the machine see arguments: whoever does so is told.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from kvstream.cli.parameters import Name, PathOnly
from kvstream.migration.face import check_pair, place_of, selection_of
from kvstream.migration.items import Selection
from kvstream.migration.places import Place, PlaceKind
from kvstream.options import DATABASES_MAX
from kvstream.remote.errors import AccessDenied
from kvstream.store import Store

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

SIDES = ("source", "target")


@dataclass(frozen=True, slots=True)
class Ends:
    """Where a migration begins and ends, and which keys it is about."""

    source: Place
    target: Place
    selection: Selection


def places_options(command: F) -> F:
    """Give a command SOURCE and TARGET, which keys are meant, and passwords."""
    for side in reversed(SIDES):
        command = click.option(
            f"--{side}-password-file",
            type=PathOnly(dir_okay=False, exists=True),
            metavar="FILE",
            help=f"The password of a {side} that is a server: the first line of FILE.",
        )(command)
        command = click.option(
            f"--{side}-password",
            envvar=_variable(side),
            show_envvar=True,
            hidden=True,
            help="The password, where the environment has it: others see arguments.",
        )(command)
        command = click.option(
            f"--{side}-user", metavar="USER", help=f"The user to log in as at the {side}."
        )(command)
    command = click.option(
        "--db",
        "databases",
        type=click.IntRange(0, DATABASES_MAX - 1),
        multiple=True,
        metavar="N",
        help="Only this database; may be repeated. By default all.",
    )(command)
    command = click.option(
        "--match",
        type=Name(),
        multiple=True,
        metavar="PATTERN",
        help="Only keys that match a pattern, as of KEYS; may be repeated.",
    )(command)
    command = click.argument("target", metavar="TARGET")(command)
    return click.argument("source", metavar="SOURCE")(command)


def _variable(side: str) -> str:
    return f"KVSTREAM_{side.upper()}_PASSWORD"


def ends_of(options: dict[str, Any], *, create: bool) -> Ends:
    """Take the options of ``places_options`` out of those given, and return what they say."""
    places = []
    for side in SIDES:
        place = place_of(options.pop(side), create=create and side == "target")
        user, password = options.pop(f"{side}_user"), options.pop(f"{side}_password")
        file = options.pop(f"{side}_password_file")
        if file is not None:
            password = first_line(file)
        if place.kind is not PlaceKind.SERVER and (user or file is not None):
            raise click.UsageError(f"the {side} is no server: it takes no user and no password")
        if place.has_password:
            click.echo(
                f"Warning: others on this machine see the password in the {side}'s URL; put it "
                f"into {_variable(side)} or --{side}-password-file",
                err=True,
            )
        places.append(replace(place, user=user, password=password))
    databases = options.pop("databases") or None
    selection = selection_of(options.pop("match"), databases, places[0])
    source, target = places
    check_pair(source, target, selection)
    return Ends(source, target, selection)


def first_line(path: Path) -> str:
    """Return the first line of a file, without its end."""
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        return file.readline().rstrip("\r\n")


@contextmanager
def opened(side: str, place: Place, opening: Callable[[Place], T]) -> Iterator[T]:
    """Open a place, and ask for a password where a server wants one and somebody is there."""
    try:
        found = opening(place)
    except AccessDenied:
        if place.password is not None or place.has_password or not _somebody_is_there():
            raise
        password = click.prompt(f"Password of the {side}", hide_input=True, err=True)
        found = opening(replace(place, password=password))
    with found if isinstance(found, Store) else closing(found):  # type: ignore[type-var]
        yield found


def _somebody_is_there() -> bool:
    return sys.stdin.isatty() and os.environ.get("TERM") != "dumb"
