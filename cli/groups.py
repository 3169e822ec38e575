"""``group create|destroy|setid|ls|reset``: consumer groups of a stream."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from kvstream.cli.contracts import AnyGroup, AnyStore, AnyStream, Changes, Session
from kvstream.cli.exits import nothing_unless
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import Position, example, group_argument, stream_argument
from kvstream.cli.session import existing_group, existing_stream
from kvstream.cli.tables import (
    Column,
    count_column,
    id_columns,
    name_column,
    number,
    plural,
    printable,
    time_of,
)
from kvstream.types.ids import MIN_ID, StreamID

_PENDING_PAGE = 10_000

GROUP_COLUMNS = (
    name_column("group", "name"),
    count_column("consumers"),
    count_column("pending"),
    Column("delivered up to", "last_delivered_id", width=18),
    id_columns(key="last_delivered_id")[1],
    count_column("read", "entries_read"),
    count_column("lag"),
    count_column("backlog"),
)

start_option = click.option(
    "--start",
    type=Position(),
    default="$",
    help="Give out what comes after this ID, from this time on, or after $, the end.",
)
entries_read_option = click.option(
    "--entries-read", type=click.IntRange(0), metavar="N", help="How many it has read, where known."
)


@click.group(epilog=example("kvstream group ls orders"))
def group() -> None:
    """Make, move, list and remove consumer groups."""


@group.command(
    epilog=example(
        "kvstream group create orders shipping --start 0",
        "kvstream group create orders audit --start now-1h",
    )
)
@stream_argument
@group_argument
@start_option
@click.option("--no-mkstream", is_flag=True, help="Fail where there is no such stream.")
@entries_read_option
@output_options
@click.pass_obj
def create(
    session: Session,
    out: Output,
    /,
    stream: bytes,
    group: bytes,
    start: StreamID | str,
    no_mkstream: bool,
    entries_read: int | None,
) -> None:
    """Make a consumer group; the store and the stream are made where missing."""
    with session.writing(create=not no_mkstream) as store:
        if no_mkstream:
            existing_stream(store, stream)
        made = store.stream(stream).create_group(group, start, entries_read=entries_read)
        at = made.info().last_delivered_id
    out.result(f"group {printable(group)} starts after {at}", group=group, last_delivered_id=at)


@group.command(epilog=example("kvstream group destroy orders billing"))
@stream_argument
@group_argument
@output_options
@click.pass_obj
def destroy(session: Session, out: Output, /, stream: bytes, group: bytes) -> None:
    """Remove a group, with its consumers and pending entries. The entries stay."""
    with session.writing() as store:
        found = existing_group(store, stream, group)
        pending = found.info().pending
        destroyed = found.destroy()
    text = f"group {printable(group)} removed, with {_pending(pending)}"
    out.result(text, destroyed=destroyed, pending=pending)
    nothing_unless(destroyed)


@group.command(epilog=example("kvstream group setid orders billing 1700000000000-0"))
@stream_argument
@group_argument
@click.argument("position", type=Position(("$", "-", "+")), metavar="ID|TIME|$")
@entries_read_option
@output_options
@click.pass_obj
def setid(
    session: Session,
    out: Output,
    /,
    stream: bytes,
    group: bytes,
    position: StreamID | str,
    entries_read: int | None,
) -> None:
    """Move what a group counts as delivered; pending entries stay as they are.

    `group reset` does it with an explicit choice for what is pending.
    """
    with session.writing() as store:
        found = existing_group(store, stream, group)
        found.set_id(position, entries_read=entries_read)
        at = found.info().last_delivered_id
    text = f"group {printable(group)} goes on after {at}"
    out.result(text, group=group, last_delivered_id=at)


@group.command("ls", epilog=example("kvstream group ls orders"))
@stream_argument
@output_options
@click.pass_obj
def list_groups(session: Session, out: Output, /, stream: bytes) -> None:
    """List the groups of a stream.

    The lag is Redis's: unknown where its rules cannot tell. The backlog is counted, and exact; on a
    server (--url) it is the lag, or counted up to some thousands.
    """
    with session.reading() as store:
        out.table(GROUP_COLUMNS, group_rows(existing_stream(store, stream)))


def group_rows(stream: AnyStream) -> Iterator[dict[str, Any]]:
    """Yield the groups of a stream as rows of ``GROUP_COLUMNS``."""
    for info in stream.groups():
        yield {
            "name": info.name,
            "consumers": info.consumers,
            "pending": info.pending,
            "last_delivered_id": info.last_delivered_id,
            "entries_read": info.entries_read,
            "lag": info.lag,
            "backlog": stream.group(info.name).backlog(),
        }


@dataclass(frozen=True, slots=True)
class _Reset:
    """What a reset does, or would do."""

    before: StreamID
    after: StreamID
    backlog_before: int | None
    backlog_after: int | None
    pending: int
    dropped: int


@group.command(
    epilog=example(
        "kvstream group reset orders billing --to 0 --drop-pending --dry-run",
        "kvstream group reset orders billing --to 2023-11-14T12:00 --keep-pending",
    )
)
@stream_argument
@group_argument
@click.option(
    "--to",
    "position",
    type=Position(("$", "-", "+")),
    required=True,
    help="Give out again what comes after this ID, from this time on, or only after $.",
)
@click.option(
    "--keep-pending/--drop-pending",
    "keep",
    default=None,
    help="Whether what is pending stays with its consumers. One of the two must be given.",
)
@click.option("--dry-run", is_flag=True, help="Show what would happen, and change nothing.")
@output_options
@click.pass_obj
def reset(
    session: Session,
    out: Output,
    /,
    stream: bytes,
    group: bytes,
    position: StreamID | str,
    keep: bool | None,
    dry_run: bool,
) -> None:
    """Rewind or forward a group to an ID or a time, in one commit.

    With --keep-pending its consumers keep what they have not acknowledged; what is delivered again
    then changes hands. With --drop-pending nothing stays pending; on a server (--url) that is what
    was pending when the command began.
    """
    if keep is None:
        raise click.UsageError(
            "say what becomes of pending entries: --keep-pending, --drop-pending"
        )
    with session.writing() as store:
        existing_group(store, stream, group)

        def work(changes: Changes) -> _Reset:
            planned, dropped = _reset(store, stream, group, position, drop=not keep)
            if not dry_run:
                if dropped:
                    changes.ack(stream, group, dropped)
                changes.set_group_id(stream, group, planned.after)
            return planned

        done = store.atomically([stream], work)
    verb = "would go" if dry_run else "goes"
    text = (
        f"group {printable(group)} {verb} from {_place(done.before)} to {_place(done.after)}: "
        f"{_backlog(done.backlog_after)} to deliver "
        f"(before: {number(done.backlog_before)}), {_pending(done.pending)}, "
        f"{plural(done.dropped, 'pending entry', 'pending entries')} dropped"
    )
    out.result(text, dry_run=dry_run, **_members(done))


def _reset(
    store: AnyStore, key: bytes, name: bytes, position: StreamID | str, drop: bool
) -> tuple[_Reset, list[StreamID]]:
    """Return what a reset does, and what is then no longer pending."""
    stream = store.stream(key)
    group = stream.group(name)
    before = group.info()
    after = _resolved(stream, position)
    dropped = list(_pending_ids(group)) if drop else []
    done = _Reset(
        before.last_delivered_id,
        after,
        group.backlog(),
        stream.count_after(after),
        before.pending - len(dropped),
        len(dropped),
    )
    return done, dropped


def _resolved(stream: AnyStream, position: StreamID | str) -> StreamID:
    """Return the ID that a position stands for."""
    if position == "-":
        return MIN_ID
    if isinstance(position, str):
        return stream.info().last_generated_id
    return position


def _pending_ids(group: AnyGroup) -> Iterator[StreamID]:
    start = "-"
    while rows := group.pending_range(start, "+", _PENDING_PAGE):
        yield from (row.id for row in rows)
        start = f"({rows[-1].id}"


def _members(done: _Reset) -> dict[str, Any]:
    return {name: getattr(done, name) for name in _Reset.__slots__}


def _place(eid: StreamID) -> str:
    time = time_of(eid)
    return f"{eid} ({time})" if time else str(eid)


def _backlog(count: int | None) -> str:
    return "unknown entries" if count is None else plural(count, "entry", "entries")


def _pending(count: int) -> str:
    return f"{plural(count, 'entry', 'entries')} pending"
