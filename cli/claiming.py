"""``pending``, ``claim`` and ``autoclaim``: what consumers have not acknowledged."""

from collections.abc import Iterator, Sequence
from typing import Any

import click

from kvstream.cli.contracts import AnyGroup, Session
from kvstream.cli.examples import example
from kvstream.cli.exits import nothing_unless
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import (
    ID,
    Duration,
    Moment,
    Name,
    RangeBound,
    consumer_argument,
    group_argument,
    ids_argument,
    ids_given,
    stream_argument,
)
from kvstream.cli.session import existing_group
from kvstream.cli.tables import Column, count_column, id_columns, name_column
from kvstream.cli.text import duration, plural, printable
from kvstream.ids import MIN_ID, StreamID
from kvstream.records import AnyEntry, Claimed, ClaimedIDs

_MS = 1000
_PENDING = (
    *id_columns(),
    name_column("consumer", show=lambda name: printable(name) or "(nobody)"),
    Column("idle", "idle_ms", lambda ms: "-" if ms < 0 else duration(ms), right=True),
    count_column("deliveries"),
)
_OWNERS = (name_column("consumer"), count_column("pending"))

min_idle_option = click.option(
    "--min-idle",
    type=Duration(),
    default="0",
    metavar="DURATION",
    help="Only what is idle so long.",
)
justid_option = click.option("--justid", is_flag=True, help="Show IDs only; count no delivery.")


@click.command(
    epilog=example(
        "kvstream pending orders billing",
        "kvstream pending orders billing --list --min-idle 5m --consumer worker-1",
    )
)
@stream_argument
@group_argument
@click.option("--list", "listed", is_flag=True, help="Show the entries one by one.")
@click.option("--start", type=RangeBound(), help="List from this ID or time on.")
@click.option("--end", type=RangeBound(), help="List up to this ID or time.")
@click.option("--count", "-n", type=click.IntRange(1), help="List at most so many, by default 100.")
@click.option("--consumer", type=Name(), help="List those of one consumer.")
@click.option("--min-idle", type=Duration(), metavar="DURATION", help="List those idle so long.")
@output_options
@click.pass_obj
def pending(
    session: Session, out: Output, /, stream: bytes, group: bytes, listed: bool, **options: Any
) -> None:
    """Show what is pending in a group.

    By consumer, or with --list one by one. Any option that says what to list implies --list. An
    entry given back by `nack` belongs to nobody until it is claimed.
    """
    with session.reading() as store:
        found = existing_group(store, stream, group)
        if listed or any(value is not None for value in options.values()):
            out.table(_PENDING, _rows(found, options))
        else:
            _summary(out, found)


def _rows(group: AnyGroup, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    rows = group.pending_range(
        options["start"] or "-",
        options["end"] or "+",
        options["count"] or 100,
        consumer=options["consumer"],
        min_idle=options["min_idle"] or 0,
    )
    return (row._asdict() for row in rows)


def _summary(out: Output, group: AnyGroup) -> None:
    summary = group.pending()
    owners = [{"consumer": name, "pending": n} for name, n in summary.consumers.items()]
    if out.json:
        out.result(
            "",
            pending=summary.count,
            min_id=summary.min_id,
            max_id=summary.max_id,
            consumers=owners,
        )
        return
    text = f"{plural(summary.count, 'entry', 'entries')} pending"
    click.echo(f"{text}, {summary.min_id} to {summary.max_id}" if summary.count else text)
    if owners:
        out.table(_OWNERS, owners)


@click.command(
    epilog=example("kvstream claim orders billing worker-2 1700000000000-0 --min-idle 0s")
)
@stream_argument
@group_argument
@consumer_argument
@ids_argument
@min_idle_option
@click.option("--idle", type=Duration(), metavar="DURATION", help="Count it as idle for so long.")
@click.option("--time", type=Moment(), help="Count it as delivered at this time.")
@click.option("--retrycount", type=click.IntRange(0), metavar="N", help="Set its delivery count.")
@click.option("--force", is_flag=True, help="Also entries that are not pending.")
@click.option("--last-id", type=ID(), help="Move the group on to this ID.")
@justid_option
@output_options
@click.pass_obj
def claim(
    session: Session,
    out: Output,
    /,
    stream: bytes,
    group: bytes,
    consumer: bytes,
    ids: tuple[str, ...],
    **options: Any,
) -> None:
    """Give pending entries to a consumer, and show them.

    - takes the IDs from stdin, one a line. Ends with 1 when none could be claimed.
    """
    if options["time"] is not None:
        options["time"] /= _MS
    wanted = ids_given(ids)
    with session.writing() as store:
        entries = existing_group(store, stream, group).claim(consumer, wanted, **options)
    _show(out, entries, options["justid"])
    nothing_unless(entries)


@click.command(epilog=example("kvstream autoclaim orders billing worker-2 --min-idle 10m --all"))
@stream_argument
@group_argument
@consumer_argument
@min_idle_option
@click.option("--start", type=ID(), default="0-0", help="Look from this ID on.")
@click.option("--count", "-n", type=click.IntRange(1), default=100, help="So many a step.")
@click.option("--all", "everything", is_flag=True, help="Step through all that is pending.")
@justid_option
@output_options
@click.pass_obj
def autoclaim(
    session: Session,
    out: Output,
    /,
    stream: bytes,
    group: bytes,
    consumer: bytes,
    everything: bool,
    **options: Any,
) -> None:
    """Give a consumer what was idle with others for too long.

    One step looks at a part of what is pending, and says from which ID to go on; --all goes on to
    the end. Pending entries whose message has been deleted are dropped on the way.
    """
    with session.writing() as store:
        found = existing_group(store, stream, group)
        done = _steps(found, consumer, everything, options)
    if out.json:
        out.result("", cursor=done.cursor, entries=done.entries, deleted=done.deleted)
        return
    _show(out, done.entries, options["justid"])
    click.echo(f"{plural(len(done.entries), 'entry', 'entries')} claimed")
    if done.deleted:
        click.echo(f"{plural(len(done.deleted), 'deleted entry', 'deleted entries')} dropped")
    if done.cursor != MIN_ID:
        click.echo(f"go on with --start {done.cursor}")


def _steps(
    group: AnyGroup, consumer: bytes, everything: bool, options: dict[str, Any]
) -> Claimed | ClaimedIDs:
    entries: list[Any] = []
    deleted: list[StreamID] = []
    start = options["start"]
    while True:
        step = group.autoclaim(
            consumer,
            options["min_idle"],
            start,
            count=options["count"],
            justid=options["justid"],
        )
        entries += step.entries
        deleted += step.deleted
        start = step.cursor
        if not everything or start == MIN_ID:
            return type(step)(start, entries, deleted)


def _show(out: Output, entries: Sequence[AnyEntry], justid: bool) -> None:
    if justid:
        out.table(id_columns(), ({"id": entry.id} for entry in entries))
    else:
        out.entries(entries)
