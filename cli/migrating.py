"""``migrate``: streams from any place to any place, planned, watched and verified."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from kvstream.cli import migrate_tables as tables
from kvstream.cli.examples import example
from kvstream.cli.exits import ExitCode
from kvstream.cli.importing import quiet_option
from kvstream.cli.migrate_following import follow, following_options
from kvstream.cli.migrate_places import Ends, ends_of, opened, places_options
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import Duration, PathOnly
from kvstream.cli.progress import meter
from kvstream.migration.carrying import Carried, Manner, allowed_of
from kvstream.migration.followers import followers
from kvstream.migration.items import Source, Watch
from kvstream.migration.journal import Journal, default_folder, identity_of, statuses
from kvstream.migration.opening import fingerprint, open_source, open_target, planned_target
from kvstream.migration.running import Told
from kvstream.migration.running import plan as plan_items
from kvstream.migration.running import run as run_items
from kvstream.migration.verifying import Comparing, Verification
from kvstream.migration.verifying import verify as verify_places

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
        manner = Manner(
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
        how = Comparing(ends.selection, round(tolerance * 1000), watch, keep_digests=out.json)
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
