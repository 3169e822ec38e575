"""``consumer ls``, ``create`` and ``del``: the consumers of a group."""

import click

from kvstream.cli.exit_codes import fail_unless
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import consumer_argument, example, group_argument, stream_argument
from kvstream.cli.session import Session, atomically, existing_group
from kvstream.cli.tables import (
    Column,
    age_column,
    count_column,
    duration,
    name_column,
    plural,
    printable,
    quoted,
)
from kvstream.errors import RequestError
from kvstream.store import Store


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
@click.pass_obj
def list_consumers(session: Session, out: Output, /, stream: bytes, group: bytes) -> None:
    """List the consumers of a group with their pending entries.

    Idle is the time since a consumer last read or claimed, inactive the time since it last got an
    entry. In JSON both are milliseconds, -1 for never. A Redis before 7.2 does not report inactive.
    """
    with session.reading() as store:
        found = existing_group(store, stream, group).consumers()
    out.table(
        _CONSUMERS,
        (
            {
                "name": each.name,
                "pending": each.pending,
                "idle": each.idle,
                "inactive": each.inactive,
            }
            for each in found
        ),
    )


@consumer.command(epilog=example("kvstream consumer create orders billing worker-2"))
@stream_argument
@group_argument
@consumer_argument
@output_options
@click.pass_obj
def create(session: Session, out: Output, /, stream: bytes, group: bytes, consumer: bytes) -> None:
    """Create a consumer; otherwise its first read does."""
    with session.writing() as store:
        made = existing_group(store, stream, group).create_consumer(consumer)
    text = "created" if made else "exists already"
    out.result(f"consumer {printable(consumer)} {text}", created=made)
    fail_unless(made)


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
@click.pass_obj
def delete(
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
                entries = plural(pending, "entry", "entries")
                raise RequestError(
                    f"consumer {quoted(consumer)} has {entries} pending: give them to another one "
                    "with claim or autoclaim, or drop them with --drop-pending"
                )
            store.stream(stream).group(group).delete_consumer(consumer)
            return pending

        lost = atomically(store, work)
    lost_text = plural(lost, "pending entry", "pending entries")
    text = f"consumer {printable(consumer)} deleted, {lost_text} dropped"
    out.result(text, deleted=True, pending=lost)


def _pending_with(store: Store, stream: bytes, group: bytes, consumer: bytes) -> int:
    """Return the number of pending entries of a consumer; RequestError if there is none."""
    known = {each.name: each.pending for each in existing_group(store, stream, group).consumers()}
    if consumer not in known:
        raise RequestError(f"group {quoted(group)} has no consumer {quoted(consumer)}")
    return known[consumer]
