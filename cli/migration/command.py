"""``migrate plan``, ``run``, ``verify`` and ``status``: move streams from any place to any place.

A password comes from a file, the environment or a prompt. A password in a URL works too, but other
users of the machine can see it: the command warns. The migration is imported by the functions that
need it, not for a help text.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from kvstream.cli.exit_codes import ExitCode
from kvstream.cli.importing.command import quiet_option
from kvstream.cli.migration import output as texts
from kvstream.cli.output import Output, output_only_options, progress_bar
from kvstream.cli.parameters import Duration, F, Name, PathOnly, example, option_group
from kvstream.errors import AccessDenied
from kvstream.types.clock import monotonic
from kvstream.types.options import CUTOVER_PAUSE_S, DATABASES, DATABASES_MAX, PAUSE_MIN_S

if TYPE_CHECKING:
    from kvstream.migration.copy import Carried
    from kvstream.migration.items import Selection, Source, Watch
    from kvstream.migration.journal import Journal
    from kvstream.migration.places import Place
    from kvstream.migration.replication.cutover import CutOver, Pair

T = TypeVar("T")

SIDES = ("source", "target")


@dataclass(frozen=True, slots=True)
class Ends:
    """The source and target of a migration, and the keys to migrate."""

    source: Place
    target: Place
    selection: Selection


def _password_variable(side: str) -> str:
    return f"KVSTREAM_{side.upper()}_PASSWORD"


def _shown(side: str) -> str:
    """Return a side in a sentence: ``the source``, or ``A`` of ``diff``."""
    return f"the {side}" if side in SIDES else side.upper()


def _login_options(side: str) -> Callable[[F], F]:
    return option_group(
        click.option(
            f"--{side}-user", metavar="USER", help=f"The user at {_shown(side)}, if it is a server."
        ),
        click.option(
            f"--{side}-password",
            envvar=_password_variable(side),
            show_envvar=True,
            hidden=True,
            help="The password; meant for the environment, since other users can see arguments.",
        ),
        click.option(
            f"--{side}-password-file",
            type=PathOnly(dir_okay=False, exists=True),
            metavar="FILE",
            help=f"A file whose first line is the password of {_shown(side)}.",
        ),
    )


def options_of_places(sides: tuple[str, str], match: str = "--match") -> Callable[[F], F]:
    """Return the arguments of two places, the selection of keys, and passwords."""
    return option_group(
        *(click.argument(side, metavar=side.upper()) for side in sides),
        click.option(
            match,
            "match",
            type=Name(),
            multiple=True,
            metavar="PATTERN",
            help="Only keys that match a pattern as in KEYS. Repeatable.",
        ),
        click.option(
            "--db",
            "databases",
            type=click.IntRange(0, DATABASES_MAX - 1),
            multiple=True,
            metavar="N",
            help="Only this database. Repeatable. By default all.",
        ),
        *map(_login_options, sides),
    )


places_options = options_of_places(SIDES)
tolerance_option = click.option(
    "--tolerance",
    type=Duration(),
    default="0",
    metavar="DURATION",
    help="Accept differences in times of delivery and expiry up to this.",
)


def ends_of(options: dict[str, Any], *, create: bool) -> Ends:
    """Remove the options of ``places_options`` from ``options``, and return their meaning."""
    from kvstream.migration.api import check_pair, place_of, selection_of

    source, target = (
        with_login(place_of(options.pop(side), create=create and side == "target"), side, options)
        for side in SIDES
    )
    selection = selection_of(options.pop("match"), options.pop("databases") or None, source)
    check_pair(source, target, selection)
    return Ends(source, target, selection)


def with_login(place: Place, side: str, options: dict[str, Any]) -> Place:
    """Remove the user and password of a side from ``options``; return the place with them."""
    from kvstream.migration.places import PlaceKind

    user, password = options.pop(f"{side}_user"), options.pop(f"{side}_password")
    file = options.pop(f"{side}_password_file")
    if file is not None:
        password = first_line(file)
        if not password:
            raise click.UsageError(
                f"{file}: the first line, the password of {_shown(side)}, is empty"
            )
    if place.kind is not PlaceKind.SERVER and (user or file is not None):
        raise click.UsageError(f"{_shown(side)} is not a server: it needs no user and no password")
    if place.has_password:
        click.echo(
            f"Warning: other users of this machine can see the password in the URL of "
            f"{_shown(side)}; use {_password_variable(side)} or --{side}-password-file",
            err=True,
        )
    return replace(place, user=user, password=password)


def first_line(path: Path) -> str:
    """Return the first line of a file, without its newline."""
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        return file.readline().rstrip("\r\n")


@contextmanager
def open_place(side: str, place: Place, opening: Callable[[Place], T]) -> Iterator[T]:
    """Open a place; prompt for a password if a server wants one and stdin is a terminal."""
    from kvstream.store import Store

    try:
        place_opened = opening(place)
    except AccessDenied:
        if place.password is not None or place.has_password or not _can_prompt():
            raise
        password = click.prompt(f"Password of {_shown(side)}", hide_input=True, err=True)
        place_opened = opening(replace(place, password=password))
    with place_opened if isinstance(place_opened, Store) else closing(place_opened):  # type: ignore[type-var]
        yield place_opened


def _can_prompt() -> bool:
    return sys.stdin.isatty() and os.environ.get("TERM") != "dumb"


TERMINAL_PAUSE_S, LOG_PAUSE_S = 1.0, 30.0
"""Pause between two lines of progress, on a terminal and in a log."""


following_options = option_group(
    click.option(
        "--follow",
        is_flag=True,
        help="Keep TARGET up to date with SOURCE, as its replica, until Ctrl-C.",
    ),
    click.option(
        "--cutover",
        is_flag=True,
        help="Follow SOURCE until TARGET has caught up, then pause SOURCE and switch over. A "
        "--follow that is running for both ends first.",
    ),
    click.option(
        "--pause",
        "pause_s",
        type=Duration(),
        metavar="DURATION",
        help=f"How long SOURCE refuses writes after the cutover, {PAUSE_MIN_S} s at least. By "
        f"default {CUTOVER_PAUSE_S:g} s.",
    ),
)
"""How a live source is followed."""


def follow(
    out: Output,
    ends: Ends,
    folder: Path,
    *,
    cutover: bool,
    pause_s: float,
    quiet: bool,
    allowed: frozenset[str],
    count: int | None,
) -> None:
    """Follow a source, and switch over from it if ``cutover``."""
    from kvstream.migration.api import check_databases
    from kvstream.migration.replication.cutover import (
        Following,
        check_followed,
        open_end,
        open_note,
        open_pair,
    )
    from kvstream.migration.server import Server

    check_followed(ends.source, ends.target)
    check_databases(ends.target, count)
    asking = partial(open_end, databases=count)
    with (
        _follow_progress(quiet) as progress,
        open_place("source", ends.source, Server) as server,
        open_note(
            Following(server, ends.target, ends.selection, allowed, count),
            *(folder, progress.say, progress.warn),
            cuts_over=cutover,
        ) as note,
        open_place("target", ends.target, asking) as end,
        open_pair(server, ends.target, end, ends.selection, note, progress.say, allowed) as pair,
    ):
        progress.pair = pair
        if not cutover:
            pair.follow(progress.is_over)
            if pair.is_taken_over:
                progress.say(f"Ended at offset {pair.offset}: --cutover continues there.")
            return
        done = pair.cut_over(pause_s, progress.is_over)
        progress.end_line()
        _show(out, done, pause_s)


def _show(out: Output, done: CutOver, pause_s: float) -> None:
    texts.show_verification(out, done.verification)
    if not done.is_done:
        click.echo("Not switched over: SOURCE takes writes as before.", err=True)
        raise click.exceptions.Exit(int(ExitCode.FAILED))
    paused = (
        f"stays paused for {max(pause_s, PAUSE_MIN_S):g} s"
        if done.is_paused
        else "could not be paused"
    )
    click.echo(
        f"Done: TARGET has all keys of SOURCE. SOURCE took no writes for {done.stood_s:.1f} s, "
        f"and {paused}.",
        err=True,
    )


class _FollowProgress:
    """Shows the progress of following on stderr."""

    def __init__(self, quiet: bool) -> None:
        self.pair: Pair | None = None
        self._quiet = quiet
        self._shown_s = 0.0
        self._is_terminal = sys.stderr.isatty()
        self._is_open_line = False

    def say(self, text: str) -> None:
        if not self._quiet:
            self.warn(text)

    def warn(self, text: str) -> None:
        """Show a message that ``--quiet`` does not hide."""
        self.end_line()
        click.echo(text, err=True)

    def is_over(self) -> bool:
        """Show the lag from time to time, and return False: only Ctrl-C ends following."""
        now = monotonic()
        pause_s = TERMINAL_PAUSE_S if self._is_terminal else LOG_PAUSE_S
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
def _follow_progress(quiet: bool) -> Iterator[_FollowProgress]:
    progress = _FollowProgress(quiet)
    try:
        yield progress
    except KeyboardInterrupt:
        progress.end_line()
        offset = 0 if progress.pair is None else progress.pair.offset
        click.echo(f"Stopped at offset {offset}: the same command continues there.", err=True)
    finally:
        progress.end_line()


def refuse_one_place(ctx: click.Context, command: str, names: str) -> None:
    """Raise UsageError if the command line names the store of other commands."""
    for name in ("store", "url", "db", "profile"):
        if ctx.find_root().get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"--{name} cannot be used before {command}: name {names} after it"
            )


state_option = click.option(
    "--state",
    type=PathOnly(file_okay=False),
    envvar="KVSTREAM_MIGRATE_STATE",
    metavar="DIR",
    help="The directory for progress. By default ~/.local/state/kvstream/migrate.",
)
version_option = click.option(
    "--target-version",
    metavar="VERSION",
    help="The server that reads the RDB file: valkey, or such as redis:6.2.",
)


databases_option = click.option(
    "--databases",
    "count",
    type=click.IntRange(1, DATABASES_MAX),
    metavar="N",
    help=f"The number of databases of TARGET, if it is a directory. By default {DATABASES}. Give "
    "the same number to kvstream serve.",
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
    """Move streams from any place to any place without loss.

    A place is the directory of a store, an RDB file, an append-only file or its directory, or a
    live server, given by its URL: redis://, rediss:// or unix://, of Redis, Valkey or kvstream.
    Streams keep their groups, consumers, pending entries and counters. Plain strings and libraries
    of functions are migrated too. Whatever cannot be migrated is refused unless it is allowed by
    name.
    """
    refuse_one_place(ctx, "migrate", "SOURCE and TARGET")


@migrate.command(
    epilog=example(
        "kvstream migrate plan redis://127.0.0.1:6379 data",
        "kvstream migrate plan data out.rdb --target-version redis:7.0",
    )
)
@places_options
@version_option
@databases_option
@quiet_option
@output_only_options
def plan(
    out: Output, /, target_version: str | None, count: int | None, quiet: bool, **options: Any
) -> None:
    """Show the keys of SOURCE, and what would be lost.

    Nothing is written, and TARGET need not exist. For each key the output shows the type, entries,
    approximate bytes (as by MEMORY USAGE), groups, pending entries, and what this migration would
    lose and why. Libraries of functions come after the keys.
    """
    from kvstream.migration.api import open_source, planned_target
    from kvstream.migration.runner import plan as plan_items
    from kvstream.migration.server_source import ServerSource

    ends = ends_of(options, create=True)
    asking = partial(planned_target, target_version=target_version, databases=count)
    with (
        open_place("source", ends.source, open_source) as source,
        open_place("target", ends.target, asking) as target,
        watching(f"plan {ends.source}", source, ends, quiet) as watch,
    ):
        planned = list(plan_items(source, target, ends.selection, watch))
        if isinstance(source, ServerSource) and not ends.selection.match:
            source.note_rest()
    texts.show_remarks(source)
    texts.show_remarks(target)
    texts.show_plan(out, planned)


@migrate.command(
    epilog=example(
        "kvstream migrate run redis://127.0.0.1:6379 data",
        "kvstream migrate run dump.rdb data --match 'orders:*'",
        "kvstream migrate run data redis://127.0.0.1:6380",
        "kvstream migrate run data out.rdb --allow-loss active-time",
        "kvstream migrate run redis://127.0.0.1:6379 data --follow",
        "kvstream migrate run redis://127.0.0.1:6379 data --cutover --pause 5m",
    )
)
@places_options
@version_option
@databases_option
@click.option(
    "--replace", is_flag=True, help="Replace keys of TARGET that differ, or the target file."
)
@click.option(
    "--allow-loss",
    "allowed",
    multiple=True,
    metavar="NAME,...",
    help="Losses to accept, by their names in the plan.",
)
@following_options
@state_option
@quiet_option
@output_only_options
def run(out: Output, /, target_version: str | None, **options: Any) -> None:
    """Copy the keys of SOURCE to TARGET.

    Whatever this migration would lose must be allowed by name, or nothing is written. A key appears
    at TARGET when it is complete. After a crash of this program, SOURCE or TARGET, the same command
    continues where it was. Keys that TARGET already has are skipped if they are equal; if they
    differ, they are reported and left alone unless --replace is given, and the exit code is 1.

    With --follow, TARGET is kept up to date as a replica of a live Redis or Valkey until Ctrl-C;
    the same command continues there. With --cutover, which takes over from a running --follow,
    SOURCE is then paused, the last writes are copied, both sides are compared, and TARGET can be
    used. If they differ, SOURCE takes writes again, and the exit code is 1.
    """
    from kvstream.migration.api import fingerprint, open_source, open_target
    from kvstream.migration.copy import CopyOptions, parse_losses
    from kvstream.migration.journal import Journal, default_folder, identity_of
    from kvstream.migration.runner import Progress
    from kvstream.migration.runner import run as run_items

    ends = ends_of(options, create=True)
    follows, cutover, pause_s = (options.pop(name) for name in ("follow", "cutover", "pause_s"))
    if follows and cutover:
        raise click.UsageError("--cutover follows by itself: give it without --follow")
    if pause_s is not None and not cutover:
        raise click.UsageError("--pause can only be used with --cutover")
    folder = options["state"] or default_folder()
    allowed = parse_losses(name for names in options["allowed"] for name in names.split(","))
    if follows or cutover:
        _refuse_unused(target_version, options["replace"])
        follow(
            *(out, ends, folder),
            cutover=cutover,
            pause_s=CUTOVER_PAUSE_S if pause_s is None else pause_s,
            quiet=options["quiet"],
            allowed=allowed,
            count=options["count"],
        )
        return
    shown = str(ends.source), str(ends.target)
    identity, known = identity_of(*shown, ends.selection), fingerprint(ends.source)
    asking = partial(
        open_target,
        target_version=target_version,
        replace=options["replace"],
        databases=options["count"],
    )
    with (
        Journal(folder, identity, *shown, known) as journal,
        open_place("source", ends.source, open_source) as source,
        open_place("target", ends.target, asking) as target,
        watching(f"migrate {ends.source}", source, ends, options["quiet"]) as watch,
    ):
        counter = _JournalCounter(journal, watch)
        manner = CopyOptions(
            replace=options["replace"],
            allowed=allowed,
            identity=identity.encode() + known,
            watch=counter.entries,
        )
        progress = Progress(key=counter.key)
        report = run_items(source, target, ends.selection, manner, journal, progress)
    texts.show_remarks(source)
    texts.show_remarks(target)
    texts.show_report(out, report)
    if not report.complete:
        raise click.exceptions.Exit(int(ExitCode.FAILED))


def _refuse_unused(target_version: str | None, replaces: bool) -> None:
    """Raise UsageError for options that following does not use."""
    given = {"--target-version": target_version, "--replace": replaces}
    for name, value in given.items():
        if value:
            raise click.UsageError(f"{name} cannot be used with --follow or --cutover")


@migrate.command(
    epilog=example(
        "kvstream migrate verify redis://127.0.0.1:6379 data",
        "kvstream migrate verify data out.rdb",
    )
)
@places_options
@tolerance_option
@quiet_option
@output_only_options
def verify(out: Output, /, tolerance: float, quiet: bool, **options: Any) -> None:
    """Compare SOURCE and TARGET, and show every difference.

    For each stream this compares the entries, counters, groups, consumers, pending entries with
    consumer, time and deliveries, idempotent IDs, and the expiry. The times at which consumers were
    last seen and active change while they work: such differences are shown but not counted. The
    exit code is 0 if everything is equal, and 1 otherwise.
    """
    from kvstream.migration.api import open_source
    from kvstream.migration.verification import VerifyOptions
    from kvstream.migration.verification import verify as verify_places

    ends = ends_of(options, create=False)
    with (
        open_place("source", ends.source, open_source) as source,
        open_place("target", ends.target, open_source) as target,
        watching(f"verify {ends.source}", source, ends, quiet) as watch,
    ):
        how = VerifyOptions(
            ends.selection, round(tolerance * 1000), watch, keep_digests=out.for_programs
        )
        differences = verify_places(source, target, how)
    texts.show_remarks(source)
    texts.show_verification(out, differences)
    if not differences.equal:
        raise click.exceptions.Exit(int(ExitCode.FAILED))


@migrate.command(epilog=example("kvstream migrate status"))
@state_option
@output_only_options
def status(out: Output, /, state: Path | None) -> None:
    """Show the progress of this user's migrations, newest first.

    Runs are listed with the keys and entries that are done. Sources that are followed are listed
    separately, with the phase and its start, the lag of TARGET in bytes and time, and the number of
    commands and bytes received. If a follower was interrupted, its values are from the time shown.
    """
    from kvstream.migration.journal import default_folder, followers, statuses

    folder = state or default_folder()
    texts.show_status(out, list(statuses(folder)), list(followers(folder)))


@contextmanager
def watching(title: str, source: Source, ends: Ends, quiet: bool) -> Iterator[Watch]:
    """Show a progress bar while a source is read."""
    total = None if quiet else source.size(ends.selection)
    with progress_bar(title, total, quiet) as advance:
        entries = 0

        def watch(more: int, _: int) -> None:
            nonlocal entries
            entries += more
            position = source.position()
            advance(entries if position is None else position, entries)

        yield watch


class _JournalCounter:
    """Counts the keys and entries of a run, and writes them to the journal."""

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
