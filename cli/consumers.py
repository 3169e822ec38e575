"""``consumer ls|create|del``: the consumers of a group."""

import click

from kvstream.cli.contracts import AnyStore, Changes, Session
from kvstream.cli.exits import nothing_unless
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import consumer_argument, example, group_argument, stream_argument
from kvstream.cli.session import existing_group
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
    """List, make and remove the consumers of a group."""


@consumer.command("ls", epilog=example("kvstream consumer ls orders billing --json"))
@stream_argument
@group_argument
@output_options
@click.pass_obj
def list_consumers(session: Session, out: Output, /, stream: bytes, group: bytes) -> None:
    """List the consumers of a group, and what is pending with each.

    Idle is how long ago it last asked, inactive how long ago it was last given anything. In JSON
    both are milliseconds; -1 is never. A Redis before 7.2 does not tell the second.
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
    """Make a consumer before its first read would make it."""
    with session.writing() as store:
        made = existing_group(store, stream, group).create_consumer(consumer)
    text = "made" if made else "is there already"
    out.result(f"consumer {printable(consumer)} {text}", created=made)
    nothing_unless(made)


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
@click.option("--drop-pending", is_flag=True, help="Also where it has entries pending: they go.")
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
    """Remove a consumer from its group.

    What is pending with it would be delivered to nobody any more, so a consumer that has something
    pending is removed only with --drop-pending; `claim` and `autoclaim` give it to others. A server
    (--url) may give it more between the look and the removal: stop its program before.
    """
    with session.writing() as store:

        def work(changes: Changes) -> int:
            pending = _pending_with(store, stream, group, consumer)
            if pending and not drop_pending:
                entries = plural(pending, "entry", "entries")
                raise RequestError(
                    f"{printable(consumer)} has {entries} pending: give them to another consumer "
                    "with claim or autoclaim, or lose them with --drop-pending"
                )
            changes.delete_consumer(stream, group, consumer)
            return pending

        lost = store.atomically([stream], work)
    lost_text = plural(lost, "pending entry", "pending entries")
    text = f"consumer {printable(consumer)} removed, {lost_text} lost"
    out.result(text, deleted=True, pending=lost)


def _pending_with(store: AnyStore, stream: bytes, group: bytes, consumer: bytes) -> int:
    """Return how much is pending with a consumer that must be there."""
    known = {each.name: each.pending for each in existing_group(store, stream, group).consumers()}
    if consumer not in known:
        raise RequestError(f"group {quoted(group)} has no consumer {quoted(consumer)}")
    return known[consumer]
