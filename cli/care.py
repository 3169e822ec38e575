"""``check``, ``checkpoint`` and ``compact``: care of a sound store."""

from pathlib import Path

import click

from kvstream.cli.contracts import Session
from kvstream.cli.examples import example
from kvstream.cli.exits import ExitCode
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import PathOnly
from kvstream.cli.tables import Column
from kvstream.cli.text import plural, size

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
