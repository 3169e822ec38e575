"""``migrate``: streams from any place to any place, planned, watched and verified.

The places of a migration on the command line, and the passwords that open them.

A password comes from a file, the environment or a prompt. One that stands in an argument works too,
but others on the machine see arguments: whoever does so is told.

``migrate run --follow`` and ``--cutover``: a live server as a source that goes on being used.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from kvstream.cli import migrate_output as tables
from kvstream.cli.exits import ExitCode
from kvstream.cli.importing.command import quiet_option
from kvstream.cli.output import Output, meter, output_options
from kvstream.cli.parameters import Duration, Name, PathOnly, example
from kvstream.migration.api import (
    PAUSE_S,
    check_pair,
    fingerprint,
    open_source,
    open_target,
    place_of,
    planned_target,
    selection_of,
)
from kvstream.migration.copy import Carried, CopyOptions, allowed_of
from kvstream.migration.items import Selection, Source, Watch
from kvstream.migration.journal import Journal, default_folder, followers, identity_of, statuses
from kvstream.migration.places import Place, PlaceKind
from kvstream.migration.replication.cutover import CutOver
from kvstream.migration.replication.pair import Pair, check_followed, open_end, open_pair
from kvstream.migration.runner import Told
from kvstream.migration.runner import plan as plan_items
from kvstream.migration.runner import run as run_items
from kvstream.migration.server import Server
from kvstream.migration.verification import Verification, VerifyOptions
from kvstream.migration.verification import verify as verify_places
from kvstream.remote.connection import AccessDenied
from kvstream.store import Store
from kvstream.types.options import DATABASES_MAX

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


state_option = click.option(
    "--state",
    type=PathOnly(file_okay=False),
    envvar="KVSTREAM_MIGRATE_STATE",
    metavar="DIR",
    help="Where is kept how far it is; by default ~/.local/state/kvstream/migrate.",
)
version_option = click.option(
    "--target-version",
    metavar="VERSION",
    help="Which server an RDB file is for: redis:6.2, 7.0, 7.2, 8.6, 8.8 or valkey.",
)


@click.group(
    epilog=example(
        "kvstream migrate plan redis://127.0.0.1:6379 data",
        "kvstream migrate run redis://127.0.0.1:6379 data",
        "kvstream migrate verify redis://127.0.0.1:6379 data",
    )
)
@click.pass_context
def migrate(ctx: click.Context) -> None:
    """Move streams from any place to any place, losing nothing.

    A place is the directory of a store, an RDB file, an append-only file or its directory, or a
    live server: redis://, rediss:// or unix://, of Redis, Valkey or kvstream. Streams arrive with
    their groups, consumers, pending entries and counters, plain strings as they are; keys of other
    types are named and skipped.
    """
    for name in ("store", "url", "db"):
        if ctx.find_root().get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"--{name} before the command is for the others: migrate takes a SOURCE and a "
                "TARGET, and has a --db of its own"
            )


@migrate.command(
    epilog=example(
        "kvstream migrate plan redis://127.0.0.1:6379 data",
        "kvstream migrate plan data orders.rdb --target-version redis:7.0",
    )
)
@places_options
@version_option
@quiet_option
@output_options
def plan(out: Output, /, target_version: str | None, quiet: bool, **options: Any) -> None:
    """Show each key of SOURCE, and what would be lost of it on the way to TARGET.

    Nothing is written, and TARGET need not be there. A key is shown with its type, entries, bytes
    (about, as MEMORY USAGE tells them of a stream in a store or at a server), groups and pending
    entries, and with what this route does not carry and why.
    """
    ends = ends_of(options, create=True)
    asking = partial(planned_target, target_version=target_version)
    with (
        opened("source", ends.source, open_source) as source,
        opened("target", ends.target, asking) as target,
        _watched(f"plan {ends.source}", source, ends, quiet) as watch,
    ):
        planned = list(plan_items(source, target, ends.selection, watch))
    tables.show_remarks(source)
    tables.show_plan(out, planned)


@migrate.command(
    epilog=example(
        "kvstream migrate run redis://127.0.0.1:6379 data",
        "kvstream migrate run dump.rdb data --match 'orders:*'",
        "kvstream migrate run data redis://127.0.0.1:6380",
        "kvstream migrate run data orders.rdb --target-version redis:6.2 --allow-loss active-time",
        "kvstream migrate run redis://127.0.0.1:6379 data --follow",
        "kvstream migrate run redis://127.0.0.1:6379 data --cutover --pause 5m",
    )
)
@places_options
@version_option
@click.option("--replace", is_flag=True, help="Replace keys of TARGET that differ, or the file.")
@click.option(
    "--allow-loss",
    "allowed",
    multiple=True,
    metavar="NAME,...",
    help="Losses that may happen, by the names that plan shows.",
)
@following_options
@state_option
@quiet_option
@output_options
def run(out: Output, /, target_version: str | None, **options: Any) -> None:
    """Bring the keys of SOURCE to TARGET.

    Nothing is lost in silence: what a route does not carry must be allowed by name, or nothing is
    written. A key is seen at TARGET once it is whole. After a kill of this program, of SOURCE or of
    TARGET the same command goes on where it was; when all is done it changes nothing. Keys that
    are at TARGET already and equal are passed over; those that differ are reported and stay as
    they are, unless --replace is given. The exit code is 1 where some differ.

    With --follow TARGET stays in step with a live Redis or Valkey, as one of its replicas, until
    Ctrl-C; the same command goes on from there. With --cutover it is then made final: SOURCE takes
    no writes any more, the last of it arrives, both are compared, and TARGET may be used. The exit
    code is 1, and SOURCE goes on as before, where they differ.
    """
    ends = ends_of(options, create=True)
    follows, cutover, pause_s = (options.pop(name) for name in ("follow", "cutover", "pause_s"))
    folder = options["state"] or default_folder()
    if follows or cutover:
        _refuse_unused(target_version, **options)
        follow(out, ends, folder, cutover=cutover, pause_s=pause_s, quiet=options["quiet"])
        return
    allowed = allowed_of(name for names in options["allowed"] for name in names.split(","))
    shown = str(ends.source), str(ends.target)
    identity, known = identity_of(*shown, ends.selection), fingerprint(ends.source)
    asking = partial(open_target, target_version=target_version, replace=options["replace"])
    with (
        Journal(folder, identity, *shown, known) as journal,
        opened("source", ends.source, open_source) as source,
        opened("target", ends.target, asking) as target,
        _watched(f"migrate {ends.source}", source, ends, options["quiet"]) as watch,
    ):
        counting = _Counting(journal, watch)
        manner = CopyOptions(
            replace=options["replace"],
            allowed=allowed,
            identity=identity.encode() + known,
            watch=counting.entries,
        )
        told = Told(key=counting.key)
        report = run_items(source, target, ends.selection, manner, journal, told)
    tables.show_remarks(source)
    tables.show_report(out, report)
    if not report.complete:
        raise click.exceptions.Exit(int(ExitCode.FAILED))


def _refuse_unused(target_version: str | None, **options: Any) -> None:
    """Refuse options that say nothing of a source that is followed."""
    given = {
        "--target-version": target_version,
        "--replace": options["replace"],
        "--allow-loss": options["allowed"],
    }
    for name, value in given.items():
        if value:
            raise click.UsageError(f"{name} is of no use with --follow and --cutover")


@migrate.command(
    epilog=example(
        "kvstream migrate verify redis://127.0.0.1:6379 data",
        "kvstream migrate verify data orders.rdb",
    )
)
@places_options
@click.option(
    "--tolerance",
    type=Duration(),
    default="0",
    metavar="DURATION",
    help="By how much times of delivery and expiry may differ.",
)
@quiet_option
@output_options
def verify(out: Output, /, tolerance: float, quiet: bool, **options: Any) -> None:
    """Compare SOURCE and TARGET, and show every difference.

    Of each stream: the entries, all counters, groups, consumers, pending entries with owner, time
    and deliveries, idempotent IDs, expiry. The times at which consumers were seen and active move
    while they are at work: where they differ it is shown, and counts as equal. The exit code is 0
    where all is equal, and 1 otherwise.
    """
    ends = ends_of(options, create=False)
    with (
        opened("source", ends.source, open_source) as source,
        opened("target", ends.target, open_source) as target,
        _watched(f"verify {ends.source}", source, ends, quiet) as watch,
    ):
        how = VerifyOptions(ends.selection, round(tolerance * 1000), watch, keep_digests=out.json)
        found: Verification = verify_places(source, target, how)
    tables.show_verification(out, found)
    if not found.equal:
        raise click.exceptions.Exit(int(ExitCode.FAILED))


@migrate.command(epilog=example("kvstream migrate status"))
@state_option
@output_options
def status(out: Output, /, state: Path | None) -> None:
    """Show how far the migrations of this user are, the latest first.

    Runs come with the keys and entries that are done; sources that are followed come apart, with
    what their follower is at and since when, how far TARGET is behind, in bytes and in time, and
    how many commands and bytes it has taken. What a follower that was interrupted tells is as it
    was at the time that is shown.
    """
    folder = state or default_folder()
    tables.show_status(out, list(statuses(folder)), list(followers(folder)))


@contextmanager
def _watched(title: str, source: Source, ends: Ends, quiet: bool) -> Iterator[Watch]:
    """Show a bar while a source is read."""
    total = None if quiet else source.size(ends.selection)
    with meter(title, total, quiet) as show:
        entries = 0

        def watch(more: int, _: int) -> None:
            nonlocal entries
            entries += more
            position = source.position()
            show(entries if position is None else position, entries)

        yield watch


class _Counting:
    """Notes in the journal, now and then, how far a run is."""

    def __init__(self, journal: Journal, watch: Watch) -> None:
        self._journal = journal
        self._watch = watch
        self._keys = self._entries = 0
        self._name = 0, b""

    def entries(self, more: int, size: int) -> None:
        self._entries += more
        self._journal.progress(self._keys, self._entries, *self._name)
        self._watch(more, size)

    def key(self, carried: Carried) -> None:
        self._keys += 1
        self._name = carried.db, carried.key
        self._journal.progress(self._keys, self._entries, *self._name)
