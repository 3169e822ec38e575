"""``group`` and ``consumer``: the consumer groups of a stream, and their consumers."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kvstream.cli.exit_codes import fail_unless
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import (
    Position,
    confirm,
    consumer_argument,
    destroying_options,
    example,
    group_argument,
    must_ask,
    stream_argument,
)
from kvstream.cli.session import Session, atomically, existing_group, existing_stream
from kvstream.cli.tables import (
    ID_WIDTH,
    Column,
    age_column,
    count_column,
    duration,
    id_columns,
    name_column,
    number,
    plural,
    printable,
    quote,
    time_of,
)
from kvstream.errors import BusyGroup, RequestError
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.records import GroupInfo

if TYPE_CHECKING:
    from kvstream.group import Group
    from kvstream.store import Store
    from kvstream.stream import Stream

_PENDING_PAGE = 10_000

GROUP_COLUMNS = (
    name_column("group", "name"),
    count_column("consumers"),
    count_column("pending"),
    count_column("lag"),
    count_column("backlog"),
    count_column("read", "entries_read"),
    Column("delivered up to", "last_delivered_id", width=ID_WIDTH, spare=True),
    id_columns(key="last_delivered_id")[1],
)

start_option = click.option(
    "--start",
    type=Position(),
    default="$",
    help="Deliver the entries after this ID, since this time, or after $, the end.",
)
entries_read_option = click.option(
    "--entries-read",
    type=click.IntRange(0),
    metavar="N",
    help="How many entries it has read, if known.",
)


@click.group(epilog=example("kvstream group ls orders"))
def group() -> None:
    """Create, move, list and delete consumer groups."""


@group.command(
    epilog=example(
        "kvstream group create orders shipping --start 0",
        "kvstream group create orders audit --start now-1h",
    )
)
@stream_argument
@group_argument
@start_option
@click.option("--no-mkstream", is_flag=True, help="Fail if the stream does not exist.")
@entries_read_option
@output_options
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
    """Create a consumer group.

    The store and the stream are created if they do not exist.
    """
    with session.writing(create=not no_mkstream) as store:
        if no_mkstream:
            existing_stream(store, stream)
        try:
            created = store.stream(stream).create_group(group, start, entries_read=entries_read)
        except BusyGroup as error:  # without the library's advice
            raise BusyGroup(detail=error.detail.partition(";")[0]) from None
        at = created.info().last_delivered_id
    out.result(f"group {printable(group)} starts after {at}", group=group, last_delivered_id=at)


@group.command(epilog=example("kvstream group destroy orders billing"))
@stream_argument
@group_argument
@destroying_options
@output_options
def destroy(
    session: Session, out: Output, /, stream: bytes, group: bytes, dry_run: bool, yes: bool
) -> None:
    """Delete a group with its consumers.

    Its pending entries are no longer pending; they stay in the stream. On a terminal you are asked
    first, unless --yes is given.
    """
    if dry_run or must_ask(yes):
        with session.reading() as store:
            pending = existing_group(store, stream, group).info().pending
        if dry_run:
            text = f"group {printable(group)} would be deleted, with {_pending(pending)}"
            out.result(text, destroyed=False, pending=pending, dry_run=True)
            return
        confirm(f"Delete group {quote(group)} of {quote(stream)}, with {_pending(pending)}?")
    with session.writing() as store:
        found = existing_group(store, stream, group)
        pending = found.info().pending
        destroyed = found.destroy()
    text = f"group {printable(group)} deleted, with {_pending(pending)}"
    out.result(text, destroyed=destroyed, pending=pending)
    fail_unless(destroyed)


@group.command(epilog=example("kvstream group setid orders billing 1700000000000-0"))
@stream_argument
@group_argument
@click.argument("position", type=Position(("$", "-", "+")), metavar="ID|TIME|$")
@entries_read_option
@output_options
def setid(
    session: Session,
    out: Output,
    /,
    stream: bytes,
    group: bytes,
    position: StreamID | str,
    entries_read: int | None,
) -> None:
    """Set the last delivered ID of a group.

    Pending entries stay pending. `group reset` lets you choose what happens to them.
    """
    with session.writing() as store:
        found = existing_group(store, stream, group)
        found.set_id(position, entries_read=entries_read)
        at = found.info().last_delivered_id
    text = f"group {printable(group)} continues after {at}"
    out.result(text, group=group, last_delivered_id=at)


@group.command("ls", epilog=example("kvstream group ls orders"))
@stream_argument
@output_options
def list_groups(session: Session, out: Output, /, stream: bytes) -> None:
    """List the groups of a stream.

    The lag follows Redis's rules, by which it may be unknown. The backlog is exact, since the
    entries are counted; on a server (--url) it is the lag, or counted up to 10,000 entries.
    """
    with session.reading() as store:
        rows = group_rows(session, existing_stream(store, stream))
        out.table(GROUP_COLUMNS, rows, nothing="no groups")


def group_rows(session: Session, stream: "Stream") -> Iterator[dict[str, Any]]:
    """Yield the groups of a stream as rows of ``GROUP_COLUMNS``."""
    for info in stream.groups():
        yield {**asdict(info), "backlog": _backlog_of(session, stream, info)}


def _backlog_of(session: Session, stream: "Stream", info: GroupInfo) -> int | None:
    """Return the number of entries that a group has yet to deliver, if it can be found out."""
    if session.shared and info.lag is not None:
        return info.lag
    return session.count_after(stream, info.last_delivered_id)


class _Reset(NamedTuple):
    """The effect of a reset."""

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
    help="Deliver the entries after this ID, since this time, or after $, the end.",
)
@click.option(
    "--keep-pending/--drop-pending",
    "keep",
    default=None,
    help="Keep pending entries with their consumers, or drop them. One of the two is required.",
)
@click.option("--dry-run", is_flag=True, help="Show the effect without changing anything.")
@output_options
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
    """Move a group to an ID or a time, in one commit.

    With --keep-pending, consumers keep their pending entries, except those that are delivered again
    to another consumer. With --drop-pending, nothing stays pending; on a server (--url) this means
    the entries that were pending when the command began.
    """
    if keep is None:
        raise click.UsageError(
            "choose what happens to pending entries: --keep-pending or --drop-pending"
        )
    with session.writing() as store:
        existing_group(store, stream, group)

        def work() -> _Reset:
            found = store.stream(stream)
            planned, dropped = _reset(session, found, group, position, drop=not keep)
            if not dry_run:
                found.group(group).ack(dropped)
                found.group(group).set_id(planned.after)
            return planned

        done = atomically(store, work)
    verb = "would move" if dry_run else "moves"
    text = (
        f"group {printable(group)} {verb} from {_place(done.before)} to {_place(done.after)}: "
        f"{_backlog(done.backlog_after)} to deliver "
        f"(before: {number(done.backlog_before)}), {_pending(done.pending)}, "
        f"{plural(done.dropped, 'pending entry')} dropped"
    )
    out.result(text, dry_run=dry_run, **done._asdict())


def _reset(
    session: Session, stream: "Stream", name: bytes, position: StreamID | str, drop: bool
) -> tuple[_Reset, list[StreamID]]:
    """Return the effect of a reset, and the entries that it drops from pending."""
    group = stream.group(name)
    before = group.info()
    after = _resolve(stream, position)
    dropped = list(_pending_ids(group)) if drop else []
    done = _Reset(
        before.last_delivered_id,
        after,
        _backlog_of(session, stream, before),
        session.count_after(stream, after),
        before.pending - len(dropped),
        len(dropped),
    )
    return done, dropped


def _resolve(stream: "Stream", position: StreamID | str) -> StreamID:
    """Return the ID of a position."""
    if position == "-":
        return MIN_ID
    if isinstance(position, str):
        return stream.info().last_generated_id
    return position


def _pending_ids(group: "Group") -> Iterator[StreamID]:
    start = "-"
    while rows := group.pending_range(start, "+", _PENDING_PAGE):
        yield from (row.id for row in rows)
        start = f"({rows[-1].id}"


def _place(eid: StreamID) -> str:
    time = time_of(eid)
    return f"{eid} ({time})" if time else str(eid)


def _backlog(count: int | None) -> str:
    return "unknown entries" if count is None else plural(count, "entry")


def _pending(count: int) -> str:
    return f"{plural(count, 'entry')} pending"


def _inactive(ms: int | None) -> str:
    return "unknown" if ms is None else duration(ms)


_CONSUMERS = (
    name_column("consumer", "name"),
    count_column("pending"),
    age_column("idle", "idle"),
    Column("inactive", "inactive", _inactive, right=True),
)


@click.group(epilog=example("kvstream consumer ls orders billing"))
def consumer() -> None:
    """List, create and delete the consumers of a group."""


@consumer.command("ls", epilog=example("kvstream consumer ls orders billing --json"))
@stream_argument
@group_argument
@output_options
def list_consumers(session: Session, out: Output, /, stream: bytes, group: bytes) -> None:
    """List the consumers of a group with their pending entries.

    Idle is the time since a consumer last read or claimed, inactive the time since it last got an
    entry. In JSON both are milliseconds, -1 for never. A Redis before 7.2 does not report inactive.
    """
    with session.reading() as store:
        consumers = existing_group(store, stream, group).consumers()
    out.table(_CONSUMERS, map(asdict, consumers), nothing="no consumers")


@consumer.command("create", epilog=example("kvstream consumer create orders billing worker-2"))
@stream_argument
@group_argument
@consumer_argument
@output_options
def create_consumer(
    session: Session, out: Output, /, stream: bytes, group: bytes, consumer: bytes
) -> None:
    """Create a consumer; otherwise its first read does."""
    with session.writing() as store:
        is_new = existing_group(store, stream, group).create_consumer(consumer)
    text = "created" if is_new else "exists already"
    out.result(f"consumer {printable(consumer)} {text}", created=is_new)
    fail_unless(is_new)


@consumer.command(
    "del",
    epilog=example(
        "kvstream consumer del orders billing idle-worker",
        "kvstream consumer del orders billing worker-1 --drop-pending",
    ),
)
@stream_argument
@group_argument
@consumer_argument
@click.option(
    "--drop-pending", is_flag=True, help="Drop its pending entries, which stay in the stream."
)
@output_options
def delete_consumer(
    session: Session,
    out: Output,
    /,
    stream: bytes,
    group: bytes,
    consumer: bytes,
    drop_pending: bool,
) -> None:
    """Delete a consumer from its group.

    The pending entries of a deleted consumer are never delivered again. So a consumer with pending
    entries is deleted only with --drop-pending; `claim` and `autoclaim` give them to another one.
    On a server (--url) stop the consumer first: it may read more entries while this command runs.
    """
    with session.writing() as store:

        def work() -> int:
            pending = _pending_with(store, stream, group, consumer)
            if pending and not drop_pending:
                entries = plural(pending, "entry")
                raise RequestError(
                    f"consumer {quote(consumer)} has {entries} pending: give them to another one "
                    "with claim or autoclaim, or drop them with --drop-pending"
                )
            store.stream(stream).group(group).delete_consumer(consumer)
            return pending

        lost = atomically(store, work)
    lost_text = plural(lost, "pending entry")
    text = f"consumer {printable(consumer)} deleted, {lost_text} dropped"
    out.result(text, deleted=True, pending=lost)


def _pending_with(store: "Store", stream: bytes, group: bytes, consumer: bytes) -> int:
    """Return the number of pending entries of a consumer; RequestError if there is none."""
    known = {each.name: each.pending for each in existing_group(store, stream, group).consumers()}
    if consumer not in known:
        raise RequestError(f"group {quote(group)} has no consumer {quote(consumer)}")
    return known[consumer]
