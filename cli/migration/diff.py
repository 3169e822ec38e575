"""``diff``: what differs between two stores, servers, archives or files of Redis.

The comparison is that of ``migrate verify`` (kvstream/migration/verification.py). Differences are
written as they are found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.exit_codes import ExitCode, Failure
from kvstream.cli.importing.command import quiet_option
from kvstream.cli.json_values import entry_json
from kvstream.cli.migration import output as texts
from kvstream.cli.migration.command import (
    Ends,
    open_place,
    options_of_places,
    refuse_one_place,
    tolerance_option,
    watching,
    with_login,
)
from kvstream.cli.output import Output, output_only_options
from kvstream.cli.parameters import Moment, example
from kvstream.cli.tables import Column, name_column, plural
from kvstream.errors import KVStreamError

if TYPE_CHECKING:
    from kvstream.migration.differences import Difference
    from kvstream.migration.items import Source
    from kvstream.migration.places import Place
    from kvstream.migration.verification import Verification

SIDES = ("a", "b")
TROUBLE = 2
ENTRIES_TOLD = 100
KEYS_KEPT = 200_000
"""Names of keys in memory: 20 MB. ``verify`` keeps all, since a cutover waits for it."""
_ALL = 1 << 62
_SIGNS = {"missing": "-", "added": "+", "changed": "~"}
_COLUMNS = (
    Column("", "change", _SIGNS.__getitem__),
    Column("db", "db", str, right=True),
    name_column("key"),
    Column("what", "what", wraps=True),
    Column("a", "a", wraps=True),
    Column("b", "b", wraps=True),
)


@click.command(
    short_help="Show what differs between two stores, servers or archives.",
    epilog=example(
        "kvstream diff data redis://127.0.0.1:6379",
        "kvstream diff s3://backups/orders data --at '1h ago'",
        "kvstream diff s3://backups/orders data --at '1h ago' --stream 'mail:*'",
    ),
)
@options_of_places(SIDES, "--stream")
@click.option(
    "--at",
    "moments",
    type=Moment(),
    multiple=True,
    metavar="TIME",
    help="The moment of an archive, by default its end. If A and B are archives, the first is that "
    "of A, a second one that of B.",
)
@tolerance_option
@click.option(
    "--entries",
    "most",
    type=click.IntRange(0),
    metavar="N",
    help=f"Most differing entries that are shown of a stream; 0: all. By default {ENTRIES_TOLD}, "
    "and all for programs.",
)
@quiet_option
@output_only_options
def diff(
    out: Output,
    /,
    moments: tuple[float, ...],
    tolerance: float,
    most: int | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Show what differs between A and B.

    A and B are directories of stores, URLs of servers, URLs of archives, or files of Redis. Of a
    stream the entries, counters, groups, consumers, pending entries, idempotent IDs, expiry, and
    what it has as a queue are compared; then strings and function libraries. A line begins with -
    if only A has something, + if only B has it, and ~ if it differs. Of an archive, only what the
    chosen streams need is fetched, without --stream all of it, into the folder of temporary files.

    The times at which consumers were last seen and active are not compared. Neither are keys whose
    time to live is over by now. In JSON, an entry that differs stands in "entry" as A has it, or as
    B has it if A does not: `import` reads it.

    The exit code is 0 if nothing differs, 1 if something does, and 2 for trouble.
    """
    from kvstream.migration.api import open_source
    from kvstream.migration.verification import Verification, VerifyOptions, compare

    refuse_one_place(click.get_current_context(), "diff", "A and B")
    if most is None:
        most = 0 if out.for_programs else ENTRIES_TOLD
    with _in_trouble():
        ends = _ends_of(options, moments)
        opening = partial(open_source, selection=ends.selection)
        with (
            open_place("a", ends.source, opening) as a,
            open_place("b", ends.target, opening) as b,
            watching(f"diff {ends.source}", a, ends, quiet) as watch,
        ):
            _show_moments((ends.source, a), (ends.target, b))
            how = VerifyOptions(
                ends.selection,
                round(tolerance * 1000),
                watch,
                entries_told=most or _ALL,
                keys_kept=KEYS_KEPT,
            )
            result = Verification()
            found = (each for each in compare(a, b, how, result) if not each.may_move)
            count = out.table(_COLUMNS, _rows(found, out.for_programs))
    _show_result(out, result, count)
    if count:
        raise click.exceptions.Exit(int(ExitCode.FAILED))


def _show_moments(*places: tuple[Place, Source]) -> None:
    """Say what is read of archives: their last commits by the moments that were asked for."""
    from kvstream.migration.archive_place import ArchiveSource

    for place, source in places:
        if isinstance(source, ArchiveSource):
            click.echo(f"{place.address}: {source.reached}", err=True)


@contextmanager
def _in_trouble() -> Iterator[None]:
    """Give every error the exit code 2."""
    try:
        yield
    except (KVStreamError, OSError) as error:
        failure = Failure(error)
        failure.exit_code = TROUBLE  # type: ignore[misc]  # a ClassVar in click
        raise failure from None


def _ends_of(options: dict[str, Any], moments: tuple[float, ...]) -> Ends:
    """Return both places and the keys to compare."""
    from kvstream.migration.api import check_pair, selection_of
    from kvstream.migration.places import PlaceKind, parse_place

    places = []
    left = [round(each * 1000) for each in moments]
    for side in SIDES:
        place = with_login(parse_place(options.pop(side), archives=True), side, options)
        if place.kind is PlaceKind.ARCHIVE and left:
            place = replace(place, at_ms=left.pop(0))
        places.append(place)
    if left:
        raise click.UsageError("--at is for archives: give it once for each")
    a, b = places
    named = a if a.database is not None else b
    selection = selection_of(options.pop("match"), options.pop("databases") or None, named)
    check_pair(a, b, selection)
    return Ends(a, b, selection)


def _rows(found: Iterable[Difference], as_json: bool) -> Iterator[Mapping[str, Any]]:
    for each in found:
        row: dict[str, Any] = {
            "change": each.change,
            "db": each.db,
            "key": each.key,
            "what": each.what,
            "a": each.source,
            "b": each.target,
        }
        if as_json:
            row["entry"] = None if each.entry is None else entry_json(each.entry)
        yield row


def _show_result(out: Output, result: Verification, count: int) -> None:
    if out.csv:
        return
    if not out.for_programs:
        click.echo(texts.verdict(result, f"{plural(count, 'difference')}" * bool(count)))
        return
    out.object(
        differences=count,
        keys=result.keys,
        entries=result.entries,
        functions=result.functions,
        skipped_types=result.skipped,
        uncompared=dict(result.uncompared),
    )
