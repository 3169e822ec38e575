"""``recover``: opening a store that was refused, by giving up what it has lost."""

import click

from kvstream.cli.contracts import Session
from kvstream.cli.examples import example
from kvstream.cli.output import Output, output_options
from kvstream.cli.session import patiently
from kvstream.cli.text import plural
from kvstream.storage.recovery import RecoveryReport
from kvstream.storage.recovery import recover as recover_store


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
