"""``restore`` and ``archive``: a store made of its archive, and a look at what is in one.

They work on the URL of an archive, and need neither its store nor the owner of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvstream.cli.exit_codes import ExitCode
from kvstream.cli.maintenance import progress_option
from kvstream.cli.output import Output, output_only_options, polled_progress, progress_bar
from kvstream.cli.parameters import (
    Duration,
    Moment,
    PathOnly,
    confirm,
    destroying_options,
    example,
    must_ask,
)
from kvstream.cli.tables import (
    TIME_WIDTH,
    Column,
    count_column,
    name_column,
    number,
    or_dash,
    plural,
    size,
    time_of,
)
from kvstream.errors import RequestError

if TYPE_CHECKING:
    from kvstream.archive.history import History
    from kvstream.archive.objects import Objects
    from kvstream.archive.restore import Plan, Progress

F = TypeVar("F", bound=Callable[..., Any])

_NAMED_MAX = 3
"""The most damaged objects that a message names."""
VARIABLE = "KVSTREAM_ARCHIVE"
"""The variable of the environment with the URL of the archive."""
_FAULTS = (
    Column("object", "object", wraps=True),
    Column("fault", "message", wraps=True),
)
_MOMENTS = (
    Column("moment", "kind"),
    Column("time", "time", time_of, width=TIME_WIDTH),
    count_column("lsn"),
    Column("tables", "tables_bytes", or_dash(size), right=True),
    Column("log", "log_bytes", size, right=True),
    Column("gap", "gap", lambda gap: "before" if gap else ""),
    name_column("owner"),
)
_STATUS_FORMATS: dict[str, Callable[[Any], str]] = {
    "last_put": time_of,
    "lsn": number,
    "first_moment": or_dash(time_of),
    "last_moment": or_dash(time_of),
    "bytes": size,
}


def _url_argument(command: F) -> F:
    """Add the argument URL, by default that of the environment."""
    return click.argument(
        "url", metavar="[URL]", envvar=VARIABLE, required=False, callback=_require_url
    )(command)


def _require_url(ctx: click.Context, param: click.Parameter, url: str | None) -> str:
    if not url:
        raise click.UsageError(f"name the archive by its URL, or in {VARIABLE}", ctx)
    return url


def _key_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for the key of an encrypted archive; the command gets it as ``key``."""

    @click.option(
        "--archive-key",
        default="",
        show_default=False,
        metavar="KEY",
        help="The key of an encrypted archive. Prefer KVSTREAM_ARCHIVE_KEY: all users of the "
        "machine can see arguments.",
    )
    @click.option(
        "--archive-key-command",
        default="",
        show_default=False,
        metavar="COMMAND",
        help="A command that writes the key to its standard output; by default that of "
        "KVSTREAM_ARCHIVE_KEY_COMMAND.",
    )
    @wraps(command)
    def run(*args: Any, archive_key: str, archive_key_command: str, **kwargs: Any) -> None:
        from kvstream.archive.keys import find_keys  # not for a help text

        command(*args, key=find_keys(archive_key, archive_key_command), **kwargs)

    return run


def _open(url: str, key: str) -> Objects:
    """Return the objects of an archive; RequestError if there is none."""
    from kvstream.archive.format import SNAPSHOTS, piece_key  # not for a help text
    from kvstream.archive.objects import open_objects

    objects = open_objects(url, key)
    if not any(objects.list(SNAPSHOTS)) and objects.get(piece_key(0)) is None:
        raise RequestError(f"there is no archive at {url}: look whether bucket and path are right")
    return objects


# --- restore --------------------------------------------------------------------------------------


@click.command(
    short_help="Make a store of an archive, as it was at any moment.",
    epilog=example(
        "kvstream restore s3://backups/orders orders-now",
        "kvstream restore s3://backups/orders then --at '2026-11-29 12:00:03.5'",
        "kvstream restore s3://backups/orders then --at '1h ago' --dry-run",
    ),
)
@click.argument("url", metavar="URL")
@click.argument("directory", type=PathOnly(), metavar="NEW_DIRECTORY")
@click.option(
    "--at",
    type=Moment(),
    metavar="TIME",
    help="The moment, to 0.1 s, by the clock of the owner. By default the end of the archive.",
)
@click.option(
    "--lsn",
    type=click.IntRange(0),
    metavar="N",
    help="Up to the commit of this number, as `archive ls` shows them, instead of a time.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be restored, and fetch no tables.")
@_key_options
@progress_option
@output_only_options
def restore(
    out: Output,
    /,
    url: str,
    directory: Path,
    at: float | None,
    lsn: int | None,
    dry_run: bool,
    progress: bool | None,
    key: str,
) -> None:
    """Make a store of an archive, as it was at any moment.

    The directory must not exist, or be empty. Nothing is written into the archive: its owner may
    go on meanwhile. The restored store has no archive, until it is opened with another URL. To go
    on with the archive itself, on a new machine, use kvstream serve --archive URL --take-over.
    """
    if at is not None and lsn is not None:
        raise click.UsageError("give either --at or --lsn")
    from kvstream.archive import restore as restoring  # not for a help text
    from kvstream.archive.history import read_history

    objects, at_ms = _open(url, key), None if at is None else round(at * 1000)
    with _restoring(progress) as show:
        if dry_run:
            plan = restoring.plan_restore(objects, read_history(objects), at_ms, lsn, show)
        else:
            plan = restoring.restore(url, directory, at_ms, lsn, show, key=key)
    done = "would restore" if dry_run else "restored"
    out.result(
        f"{done} {directory} as of {time_of(plan.moment_ms)}, commit {number(plan.sequence)}: "
        f"tables {size(plan.table_bytes)}, log {size(plan.log_bytes)}",
        **_values(plan),
        directory=str(directory),
        dry_run=dry_run,
    )


def _values(plan: Plan) -> dict[str, object]:
    return {
        "lsn": plan.sequence,
        "time": plan.moment_ms,
        "snapshot_time": plan.snapshot.written_ms,
        "tables_bytes": plan.table_bytes,
        "log_bytes": plan.log_bytes,
        "pieces": plan.pieces,
    }


@contextmanager
def _restoring(wanted: bool | None) -> Iterator[Progress]:
    """Show the bytes that are read to find the moment, then those that are fetched."""
    with ExitStack() as stack:
        bars: dict[str, Any] = {}

        def show(done: int, total: int) -> None:
            title = "restore" if total else "read the log"
            if title not in bars:
                stack.close()  # the bar before
                bar = progress_bar(title, total or None, wanted is False, size, "")
                bars[title] = stack.enter_context(bar)
            bars[title](done, done)

        yield show


# --- archive --------------------------------------------------------------------------------------


@click.group(epilog=example("kvstream archive ls s3://backups/orders"))
def archive() -> None:
    """Look at archives, verify, prune and mend them.

    An archive is what `serve --archive URL` and `kvstream.open(..., archive=URL)` keep of a store:
    s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH or file:///PATH. KVSTREAM_ARCHIVE may
    have the URL. docs/archive.md says which variables have the credentials.
    """


@archive.command(epilog=example("kvstream archive status s3://backups/orders"))
@_url_argument
@_key_options
@output_only_options
def status(out: Output, /, url: str, key: str) -> None:
    """Show who owns an archive, and how far it reaches.

    The owner is the process that has put the last piece; whether it still runs, the archive does
    not know. INFO of a server shows how far its archive is behind.
    """
    from kvstream.archive.pieces import list_merged  # not for a help text
    from kvstream.archive.retention import count_readers

    objects, history = _history(url, key)
    head, snapshots = history.head, history.snapshots
    tables = {digest: size for snapshot in snapshots for digest, size in snapshot.tables.values()}
    first = snapshots[0] if snapshots else None
    out.record(
        {
            "url": url,
            "archive": head.archive if head else None,
            "owner": head.owner if head else None,
            "last_put": head.written_ms if head else None,
            "lsn": head.last if head else 0,
            "first_moment": first.written_ms if first else None,
            "last_moment": _end_ms(history) if first else None,
            "reaches_the_end": history.is_based,
            "snapshots": len(snapshots),
            "pieces": history.next - (first.first_piece if first else 0),
            "merged_objects": len(list_merged(objects)),
            "tables": len(tables),
            "bytes": sum(tables.values()) + history.bytes - (first.bytes_before if first else 0),
            "restores_under_way": count_readers(objects),
        },
        _STATUS_FORMATS,
    )


def _history(url: str, key: str) -> tuple[Objects, History]:
    from kvstream.archive.history import read_history  # not for a help text

    objects = _open(url, key)
    return objects, read_history(objects)


def _end_ms(history: History) -> int:
    """Return the time of the last moment that can be restored."""
    newest = history.snapshots[-1].written_ms
    return max(newest, history.head.written_ms) if history.is_based and history.head else newest


@archive.command(epilog=example("kvstream archive ls s3://backups/orders"))
@_url_argument
@_key_options
@output_only_options
def ls(out: Output, /, url: str, key: str) -> None:
    """List the moments that can be restored.

    They are the snapshots, the end, and every moment between them, to 0.1 s. A gap before a
    snapshot says that the history begins anew with it: the moments just before it are not there,
    since commits were made without the archive.
    """
    _, history = _history(url, key)
    nothing = "nothing can be restored yet: the first snapshot is being made"
    out.table(_MOMENTS, _moments(history), nothing=nothing)


def _moments(history: History) -> Iterator[dict[str, Any]]:
    """Yield a row for each snapshot, and one for the end."""
    base = None
    ends = [*(each.bytes_before for each in history.snapshots[1:]), history.bytes]
    for snapshot, end in zip(history.snapshots, ends, strict=False):
        yield {
            "kind": "snapshot",
            "time": snapshot.written_ms,
            "lsn": snapshot.sequence,
            "tables_bytes": sum(size for _, size in snapshot.tables.values()),
            "log_bytes": end - snapshot.bytes_before,
            "gap": base not in (None, snapshot.base),
            "owner": snapshot.owner,
        }
        base = snapshot.base
    if history.head is not None and history.is_based:
        yield {
            "kind": "end",
            "time": _end_ms(history),
            "lsn": history.head.last,
            "tables_bytes": None,
            "log_bytes": 0,
            "gap": False,
            "owner": history.head.owner,
        }


@archive.command(epilog=example("kvstream archive verify s3://backups/orders"))
@_url_argument
@_key_options
@progress_option
@output_only_options
def verify(out: Output, /, url: str, progress: bool | None, key: str) -> None:
    """Read every object of an archive, and verify it.

    Hashes, the order of the pieces, the commits in them, and the tables of every snapshot are
    checked. The exit code is 4 if an object is missing or damaged. Its owner may go on meanwhile.
    Of an encrypted archive the IDs of all keys are shown that it needs.
    """
    from kvstream.archive import verify as verifying  # not for a help text

    objects, found = _open(url, key), verifying.Verified()
    total = verifying.total_bytes(objects)
    with polled_progress("verify", total, progress, lambda: found.bytes, size, ""):
        verifying.verify(objects, found)
    out.table(_FAULTS, ({"object": key, "message": text} for key, text in found.faults))
    if not out.for_programs:
        what = plural(len(found.faults), "fault") if found.faults else "sound"
        click.echo(
            f"{what}: {plural(found.snapshots, 'snapshot')}, {plural(found.pieces, 'piece')}, "
            f"{plural(found.tables, 'table')}, {size(found.bytes)}"
        )
        for key_id, count in found.keys.items():
            click.echo(f"key {key_id}: {plural(count, 'object')}")
    if found.faults:
        raise click.exceptions.Exit(int(ExitCode.DAMAGED))


@archive.command(epilog=example("kvstream archive prune s3://backups/orders --keep 7d"))
@_url_argument
@click.option(
    "--keep",
    type=Duration(),
    required=True,
    metavar="DURATION",
    help="How far back the archive can still be restored.",
)
@_key_options
@destroying_options
@output_only_options
def prune(out: Output, /, url: str, keep: float, dry_run: bool, yes: bool, key: str) -> None:
    """Delete what no moment of the last DURATION needs.

    Its owner does this after each snapshot, with its --archive-keep; it may go on meanwhile. The
    newest snapshot, and what leads from it to the end, always stay. So does everything while
    somebody restores from the archive or verifies it. Tables that no snapshot names, as a snapshot
    leaves them that was killed, are deleted too once they are a day old.
    """
    from kvstream.archive import retention  # not for a help text

    objects, history = _history(url, key)
    snapshots = history.snapshots
    count = retention.count_old(snapshots, keep)
    first_ms = snapshots[count].written_ms if snapshots else None
    first = time_of(first_ms) or "none"
    if count and not dry_run and must_ask(yes):
        confirm(f"Delete {plural(count, 'snapshot')}, all that is older than {first}?")
    if not dry_run and retention.prune(objects, snapshots, keep) is None:
        raise RequestError(
            f"somebody restores from the archive {url} or verifies it, or its owner makes a "
            "snapshot: try again later (who was killed meanwhile counts for a day)"
        )
    out.result(
        f"{plural(count, 'snapshot')} {'would be deleted' if dry_run else 'deleted'}; "
        f"the first moment that can be restored: {first}",
        snapshots=count,
        first_moment=first_ms,
        dry_run=dry_run,
    )


@archive.command(epilog=example("kvstream archive restart s3://backups/orders data"))
@click.argument("url", metavar="URL")
@click.argument("directory", type=PathOnly(exists=True), metavar="DIRECTORY")
@_key_options
@destroying_options
@output_only_options
def restart(out: Output, /, url: str, directory: Path, dry_run: bool, yes: bool, key: str) -> None:
    """Continue an archive whose end is damaged.

    A store does not open with an archive whose last piece or newest snapshot is damaged or missing.
    After this it does, begins the history anew, and makes a snapshot. Nothing in DIRECTORY is
    changed or lost. Moments from the damage up to that snapshot cannot be restored; those before
    can. DIRECTORY is that of the owner, which must not run. The exit code is 1 if the end of the
    archive is sound.
    """
    from kvstream.archive import restart as restarting  # not for a help text
    from kvstream.store import Store

    objects = _open(url, key)
    with Store.open(directory, read_only=True) as store:
        end = restarting.find_end(objects)
        head = end.head
        if not end.damaged:
            raise RequestError(f"the end of the archive {url} is sound: a store can go on with it")
        what = ", ".join(end.damaged[:_NAMED_MAX]) + (", ..." if end.damaged[_NAMED_MAX:] else "")
        if not dry_run and must_ask(yes):
            owner = f"by {head.owner}, at {time_of(head.written_ms)}" if head else "by nobody"
            confirm(f"Damaged: {what}. The last piece before was put {owner}. Go on from there?")
        if not dry_run:
            restarting.restart(objects, end, directory, store.engine.database.sequence)
    out.result(
        f"{'would begin' if dry_run else 'begun'} anew behind {what}; the next opening of "
        f"{directory} with the archive makes a snapshot",
        damaged=end.damaged,
        lsn=head.last if head else None,
        dry_run=dry_run,
    )
