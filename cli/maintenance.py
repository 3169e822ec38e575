"""``check``, ``recover``, ``checkpoint`` and ``compact``: maintenance of a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvstream.cli.exit_codes import ExitCode
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import PathOnly, example
from kvstream.cli.session import ServerSession, Session, wait_for_store
from kvstream.cli.tables import Column, plural, size

if TYPE_CHECKING:
    from kvstream.storage.database import RecoveryReport

_FAULTS = (
    Column("place", "place", wraps=True),
    Column("fault", "message", wraps=True),
    Column("repaired", "repaired"),
)


@click.command(epilog=example("kvstream check", "kvstream check --repair"))
@click.option("--repair", is_flag=True, help="Correct wrong counters.")
@output_options
@click.pass_obj
def check(session: Session, out: Output, /, repair: bool) -> None:
    """Verify every row and counter, in all databases.

    The exit code is 4 if a fault was found and not repaired. Without --repair nothing is changed.
    """
    _ = session.path  # a server has none, and says so
    with session.writing() if repair else session.reading() as store:
        faults = store.check(repair=repair)
    out.table(
        _FAULTS,
        (
            {"place": fault.place, "message": fault.message, "repaired": fault.repaired}
            for fault in faults
        ),
    )
    unrepaired = sum(not fault.repaired for fault in faults)
    if not out.json:
        click.echo(
            f"{plural(len(faults), 'fault')}, {len(faults) - unrepaired} repaired"
            if faults
            else "sound"
        )
    if unrepaired:
        raise click.exceptions.Exit(int(ExitCode.DAMAGED))


@click.command(epilog=example("kvstream checkpoint backup-monday"))
@click.argument("target", type=PathOnly(), metavar="[NEW_DIRECTORY]", required=False)
@output_options
@click.pass_obj
def checkpoint(session: Session, out: Output, /, target: Path | None) -> None:
    """Write a consistent copy of the store to a new directory.

    The copy is a store that can be opened. On the same file system it takes almost no time and
    space, since the two stores share their tables. For a server (--url), leave NEW_DIRECTORY out:
    the server saves to its own directory, as by BGSAVE.
    """
    if isinstance(session, ServerSession):
        if target is not None:
            raise click.UsageError("a server has its own directory: leave NEW_DIRECTORY out")
        text, path = "saved by the server in", session.save()
    else:
        if target is None:
            raise click.UsageError("name the NEW_DIRECTORY of the checkpoint")
        with session.writing() as store:
            store.checkpoint(target)
        text, path = "checkpoint in", str(target)
    out.result(f"{text} {path}", path=path)


@click.command(epilog=example("kvstream compact"))
@output_options
@click.pass_obj
def compact(session: Session, out: Output) -> None:
    """Free the disk space of deleted entries.

    This takes minutes for many gigabytes. A server (--url) runs BGREWRITEAOF.
    """
    with session.writing() as store:
        before = session.size_on_disk(store)
        store.compact()
        after = session.size_on_disk(store)
    out.result(f"{size(before)} before, {size(after)} now", before_bytes=before, after_bytes=after)


@click.command(epilog=example("kvstream recover", "kvstream recover --accept-loss"))
@click.option("--accept-loss", is_flag=True, help="Open the store without the lost writes.")
@output_options
@click.pass_obj
def recover(session: Session, out: Output, /, accept_loss: bool) -> None:
    """Repair a store that does not open because of lost writes.

    The whole store is read. Without --accept-loss nothing is changed: the lost writes are reported,
    and the exit code is 4 if there are any. With --accept-loss they are lost for good; the damaged
    logs are kept beside the store. A store with damaged tables must be restored from a checkpoint.
    """
    from kvstream.storage.database import recover as recover_store  # not for a help text

    path = session.path
    report = wait_for_store(
        path, session.wait_s, lambda: recover_store(path, accept_loss=accept_loss)
    )
    if out.json:
        out.result("", **_values(report))
        return
    click.echo(_report_text(report))


def _values(report: RecoveryReport) -> dict[str, object]:
    return {
        "rows": report.rows,
        "sequence": report.sequence,
        "damage": report.damage,
        "promised": report.promised,
        "lost": len(report.lost),
        "skipped_records": report.skipped_records,
        "kept_logs": None if report.kept_logs is None else str(report.kept_logs),
    }


def _report_text(report: RecoveryReport) -> str:
    rows = f"{plural(report.rows, 'row')} read, all sound"
    if report.damage is None:
        return f"nothing is lost: {rows}"
    lines = [f"recovered: {rows}", f"the store did not open because: {report.damage}"]
    if report.lost:
        lines.append(
            f"lost: writes {report.lost[0]:,} to {report.lost[-1]:,} ({len(report.lost):,})"
        )
    elif report.promised is None:
        lines.append("lost: an unknown number of writes")
    if report.skipped_records:
        lines.append("records inside the log are lost: run kvstream check --repair")
    if report.kept_logs is not None:
        lines.append(f"the damaged logs are kept in {report.kept_logs}")
    return "\n".join(lines)
