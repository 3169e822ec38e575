"""``check``, ``checkpoint`` and ``compact``: care of a sound store.

``recover``: opening a store that was refused, by giving up what it has lost.
"""

from pathlib import Path

import click

from kvstream.cli.contracts import Session
from kvstream.cli.exits import ExitCode
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import PathOnly, example
from kvstream.cli.session import patiently
from kvstream.cli.tables import Column, plural, size
from kvstream.storage.recovery import RecoveryReport
from kvstream.storage.recovery import recover as recover_store

_FAULTS = (
    Column("place", "place", wraps=True),
    Column("fault", "message", wraps=True),
    Column("repaired", "repaired"),
)


@click.command(epilog=example("kvstream check", "kvstream check --repair"))
@click.option("--repair", is_flag=True, help="Set wrong counters right.")
@output_options
@click.pass_obj
def check(session: Session, out: Output, /, repair: bool) -> None:
    """Read every row and recount everything, in all databases.

    Ends with 4 when it has found a fault that is not repaired. Without --repair it changes nothing.
    """
    with session.writing() if repair else session.reading() as store:
        faults = store.check(repair=repair)
    out.table(
        _FAULTS,
        (
            {"place": fault.place, "message": fault.message, "repaired": fault.repaired}
            for fault in faults
        ),
    )
    left = sum(not fault.repaired for fault in faults)
    if not out.json:
        click.echo(
            f"{plural(len(faults), 'fault')}, {len(faults) - left} repaired" if faults else "sound"
        )
    if left:
        raise click.exceptions.Exit(int(ExitCode.DAMAGED))


@click.command(epilog=example("kvstream checkpoint backup-monday"))
@click.argument("target", type=PathOnly(), metavar="[NEW_DIRECTORY]", required=False)
@output_options
@click.pass_obj
def checkpoint(session: Session, out: Output, /, target: Path | None) -> None:
    """Write a backup: a consistent copy in a new directory.

    It is a store of its own, and opens as it is. On the same file system it takes next to no time
    and space: the tables are shared until they change. A server (--url) saves where it was told to,
    as BGSAVE does: NEW_DIRECTORY is left out.
    """
    with session.writing() as store:
        place = store.back_up(target)
    done = "saved by the server in" if store.shared else "checkpoint in"
    out.result(f"{done} {place}", path=place)


@click.command(epilog=example("kvstream compact"))
@output_options
@click.pass_obj
def compact(session: Session, out: Output) -> None:
    """Return the space of what was deleted to the disk.

    Takes minutes for many gigabytes. A server (--url) does what BGREWRITEAOF does.
    """
    with session.writing() as store:
        before = store.size_on_disk()
        store.compact()
        after = store.size_on_disk()
    out.result(f"{size(before)} before, {size(after)} now", before_bytes=before, after_bytes=after)


@click.command(epilog=example("kvstream recover", "kvstream recover --accept-loss"))
@click.option("--accept-loss", is_flag=True, help="Give up what is lost, for good.")
@output_options
@click.pass_obj
def recover(session: Session, out: Output, /, accept_loss: bool) -> None:
    """Open a store that was refused for lost writes.

    All of it is read. Without --accept-loss it changes nothing, and says what is lost: the exit
    code is 4 where something is. With it the loss is final; the damaged logs are kept beside the
    store. Damaged tables are never given up: restore a checkpoint.
    """
    path = session.path
    report = patiently(path, session.wait_s, lambda: recover_store(path, accept_loss=accept_loss))
    if out.json:
        out.result("", **_values(report))
        return
    click.echo(_told(report))


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


def _told(report: RecoveryReport) -> str:
    rows = f"{plural(report.rows, 'row')} read, all sound"
    if report.damage is None:
        return f"nothing is lost: {rows}"
    lines = [f"recovered: {rows}", f"it was refused because: {report.damage}"]
    if report.lost:
        lines.append(
            f"given up: writes {report.lost[0]:,} to {report.lost[-1]:,} ({len(report.lost):,})"
        )
    elif report.promised is None:
        lines.append("given up: nobody knows what")
    if report.skipped_records:
        lines.append("records in the middle are lost: run kvstream check --repair")
    if report.kept_logs is not None:
        lines.append(f"the logs as they were are in {report.kept_logs}")
    return "\n".join(lines)
