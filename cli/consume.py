"""``read``, ``ack``, ``nack``, ``pending``, ``claim``, ``autoclaim``: reading as a consumer."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.entries import POLL_S_MIN, Query, ref_policy_option, show_outcomes
from kvstream.cli.exit_codes import fail_unless
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import (
    ID,
    ConsumerName,
    ConsumerOfFirst,
    Count,
    Duration,
    GroupOfFirst,
    Moment,
    Position,
    RangeBound,
    StreamName,
    consumer_argument,
    example,
    group_argument,
    ids_argument,
    parse_ids,
    stream_argument,
)
from kvstream.cli.session import Session, existing_group, last_id
from kvstream.cli.standard_streams import refuse_closed_stdout
from kvstream.cli.tables import (
    Column,
    count_column,
    duration,
    id_columns,
    name_column,
    or_dash,
    plural,
    printable,
)
from kvstream.types.clock import monotonic
from kvstream.types.ids import MIN_ID, IDLike, StreamID
from kvstream.types.options import NackMode, RefPolicy
from kvstream.types.records import AnyEntry, Claimed, ClaimedIDs, HistoryEntry

if TYPE_CHECKING:
    from kvstream.group import Group
    from kvstream.store import Store

_WAIT_S_MAX = 3600
BLOCK_PAUSE_S = 0.25
"""Pause of a blocked ``read`` between two queries, in which other processes may write."""

_MODES = [mode.value for mode in NackMode]

Reply = Mapping[bytes, Sequence[HistoryEntry]]


@click.command(
    epilog=example(
        "kvstream read orders --after 0 --count 10",
        "kvstream read orders --group billing --consumer worker-1 --count 10",
        "kvstream read orders --group billing --consumer worker-1 --history",
    )
)
@click.argument("streams", type=StreamName(), metavar="STREAM...", nargs=-1, required=True)
@click.option(
    "--after", type=Position(("$", "+")), help="Read the entries after this ID, or since this time."
)
@click.option(
    "--count", "-n", type=Count(1), metavar="N", help="Read at most N entries per stream."
)
@click.option("--block", type=Duration(), metavar="DURATION", help="Wait for entries.")
@click.option("--group", type=GroupOfFirst(), help="Read new entries as a consumer of this group.")
@click.option("--consumer", type=ConsumerOfFirst(), help="Read as this consumer.")
@click.option("--noack", is_flag=True, help="Do not make the entries pending.")
@click.option(
    "--claim", type=Duration(), metavar="DURATION", help="First claim entries idle that long."
)
@click.option("--history", is_flag=True, help="Show the pending entries of the consumer.")
@output_options
def read(session: Session, out: Output, /, streams: tuple[bytes, ...], **options: Any) -> None:
    """Read entries, on their own or as a consumer of a group.

    Without a group, the entries after --after (by default 0) are shown, and nothing changes. With
    --group and --consumer, entries that the group has not delivered yet are delivered to the
    consumer; they stay pending until `ack`. With --block the store is polled, and other processes
    can write between two polls; a server (--url) answers as soon as an entry arrives. The exit code
    is 1 if there was no entry.
    """
    _check_usage(options)
    if options["noack"]:
        refuse_closed_stdout()  # the entries would be lost
    writes = options["group"] is not None
    query = _group_query(streams, options) if writes else _plain_query(streams, options)
    reply = _wait_for_reply(session, query, options["block"], writes)
    for at, (key, entries) in enumerate(reply.items()):
        out.entries(entries, title=at == 0, stream=key if len(streams) > 1 else b"")
    fail_unless(reply)


def _check_usage(options: Mapping[str, Any]) -> None:
    if (options["group"] is None) != (options["consumer"] is None):
        raise click.UsageError("--group and --consumer go together")
    if options["group"] is None:
        for name in ("noack", "history", "claim"):
            if options[name]:
                raise click.UsageError(f"--{name} needs --group and --consumer")
    elif options["after"] in ("$", "+") or (options["after"] and not options["history"]):
        raise click.UsageError("with --group, --after is an ID and needs --history")


def _plain_query(streams: tuple[bytes, ...], options: Mapping[str, Any]) -> Query[Reply]:
    after: dict[bytes | str, IDLike] = dict.fromkeys(streams, options["after"] or "0")

    def query(store: "Store", wait_s: float | None) -> Reply:
        for key in streams:
            if after[key] == "$":  # the end of the stream at the first query
                after[key] = last_id(store, key)
        return store.read(after, options["count"], wait_s)

    return query


def _group_query(streams: tuple[bytes, ...], options: Mapping[str, Any]) -> Query[Reply]:
    after: IDLike = (options["after"] or "0") if options["history"] else ">"
    wanted: dict[bytes | str, IDLike] = dict.fromkeys(streams, after)

    def query(store: "Store", wait_s: float | None) -> Reply:
        for stream in streams:
            existing_group(store, stream, options["group"])
        reply = store.read_group(
            options["group"],
            options["consumer"],
            wanted,
            options["count"],
            wait_s,
            noack=options["noack"],
            claim_min_idle=options["claim"],
        )
        return {key: entries for key, entries in reply.items() if entries}

    return query


def _wait_for_reply(
    session: Session, query: Query[Reply], block_s: float | None, writes: bool
) -> Reply:
    """Run a query until it finds entries; return an empty reply after ``block_s``."""
    deadline = monotonic() + (block_s or 0)
    while True:
        with session.writing() if writes else session.reading() as store:
            start = monotonic()
            wait_s = min(deadline - start, _WAIT_S_MAX)
            reply = query(store, wait_s if session.shared and wait_s > 0 else None)
        now = monotonic()
        if reply or now >= deadline:
            return reply
        # A server does not block on a read of the history.
        if not session.shared or now - start < POLL_S_MIN:
            time.sleep(min(BLOCK_PAUSE_S, max(deadline - now, POLL_S_MIN)))


@click.command(
    epilog=example(
        "kvstream ack orders billing 1700000000000-0",
        "kvstream ack orders billing 1700000000000-0 --delete --ref-policy acked",
    )
)
@stream_argument
@group_argument
@ids_argument
@click.option("--delete", is_flag=True, help="Delete the entries too, in the same commit.")
@ref_policy_option
@output_options
def ack(
    session: Session,
    out: Output,
    /,
    stream: bytes,
    group: bytes,
    ids: tuple[str, ...],
    delete: bool,
    ref_policy: str | None,
) -> None:
    """Acknowledge entries, which are then no longer pending.

    An ID of - reads IDs from stdin, one per line. The exit code is 1 if none of them was pending.
    """
    if ref_policy is not None and not delete:
        raise click.UsageError("--ref-policy needs --delete")
    wanted = parse_ids(ids)
    with session.writing() as store:
        stored = existing_group(store, stream, group)
        if delete:
            policy = RefPolicy(ref_policy or RefPolicy.KEEPREF)
            show_outcomes(out, wanted, stored.ack_delete(wanted, ref_policy=policy))
            return
        acknowledged = stored.ack(wanted)
    text = f"{plural(acknowledged, 'entry')} acknowledged"
    out.result(text, acknowledged=acknowledged)
    fail_unless(acknowledged)


retrycount_option = click.option(
    "--retrycount", type=click.IntRange(0), metavar="N", help="Set the delivery count."
)
force_option = click.option("--force", is_flag=True, help="Include entries that are not pending.")


@click.command(epilog=example("kvstream nack orders billing 1700000000000-0 --mode silent"))
@stream_argument
@group_argument
@ids_argument
@click.option(
    "--mode",
    type=click.Choice(_MODES, case_sensitive=False),
    metavar="|".join(_MODES),
    default=NackMode.FAIL.value,
    help="SILENT: not tried; FAIL: tried and failed; FATAL: do not try again.",
)
@retrycount_option
@force_option
@output_options
def nack(
    session: Session,
    out: Output,
    /,
    stream: bytes,
    group: bytes,
    ids: tuple[str, ...],
    **options: Any,
) -> None:
    """Return pending entries to the group.

    The next `read --group` delivers them first. An ID of - reads IDs from stdin, one per line. The
    exit code is 1 if none of them was pending.
    """
    wanted = parse_ids(ids)
    with session.writing() as store:
        released = existing_group(store, stream, group).nack(wanted, **options)
    out.result(f"{plural(released, 'entry')} returned to the group", released=released)
    fail_unless(released)


_PENDING = (
    *id_columns(),
    name_column("consumer", show=lambda name: printable(name) or "(none)"),
    Column("idle", "idle_ms", or_dash(duration), right=True),
    count_column("deliveries"),
)
_OWNERS = (name_column("consumer"), count_column("pending"))

min_idle_option = click.option(
    "--min-idle",
    type=Duration(),
    default="0",
    metavar="DURATION",
    help="Only entries idle for at least this time.",
)
justid_option = click.option(
    "--justid", is_flag=True, help="Show IDs only, and do not count a delivery."
)


@click.command(
    epilog=example(
        "kvstream pending orders billing",
        "kvstream pending orders billing --list --min-idle 5m --consumer worker-1",
    )
)
@stream_argument
@group_argument
@click.option("--list", "listed", is_flag=True, help="List the entries one by one.")
@click.option("--start", type=RangeBound(), help="List from this ID or time.")
@click.option("--end", type=RangeBound(), help="List up to this ID or time.")
@click.option("--count", "-n", type=Count(1), metavar="N", help="List at most N, by default 100.")
@click.option("--consumer", type=ConsumerName(), help="List the entries of one consumer.")
@click.option(
    "--min-idle", type=Duration(), metavar="DURATION", help="List entries idle that long."
)
@output_options
def pending(
    session: Session, out: Output, /, stream: bytes, group: bytes, listed: bool, **options: Any
) -> None:
    """Show the pending entries of a group.

    They are counted by consumer, or listed with --list; an option that selects entries implies
    --list. An entry that `nack` returned has no consumer until it is read again.
    """
    with session.reading() as store:
        found = existing_group(store, stream, group)
        if listed or any(value is not None for value in options.values()):
            out.table(_PENDING, _rows(found, options), nothing="no pending entries")
        else:
            _summary(out, found)


def _rows(group: "Group", options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    rows = group.pending_range(
        options["start"] or "-",
        options["end"] or "+",
        options["count"] or 100,
        consumer=options["consumer"],
        min_idle=options["min_idle"] or 0,
    )
    return (row._asdict() for row in rows)


def _summary(out: Output, group: "Group") -> None:
    summary = group.pending()
    owners = [{"consumer": name, "pending": n} for name, n in summary.consumers.items()]
    if out.for_programs:
        out.object(
            pending=summary.count,
            min_id=summary.min_id,
            max_id=summary.max_id,
            consumers=owners,
        )
        return
    text = f"{plural(summary.count, 'entry')} pending"
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
@click.option("--idle", type=Duration(), metavar="DURATION", help="Set the idle time.")
@click.option("--time", type=Moment(), help="Set the time of delivery.")
@retrycount_option
@force_option
@click.option("--last-id", type=ID(), help="Advance the last delivered ID of the group.")
@justid_option
@output_options
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
    """Assign pending entries to a consumer, and show them.

    An ID of - reads IDs from stdin, one per line. The exit code is 1 if none could be claimed.
    """
    wanted = parse_ids(ids)
    with session.writing() as store:
        entries = existing_group(store, stream, group).claim(consumer, wanted, **options)
    _show(out, entries, options["justid"])
    fail_unless(entries)


@click.command(epilog=example("kvstream autoclaim orders billing worker-2 --min-idle 10m --all"))
@stream_argument
@group_argument
@consumer_argument
@min_idle_option
@click.option("--start", type=ID(), default="0-0", help="Start at this ID.")
@click.option("--count", "-n", type=Count(1), metavar="N", default=100, help="Scan N per step.")
@click.option("--all", "everything", is_flag=True, help="Repeat the step to the end.")
@justid_option
@output_options
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
    """Assign entries that were idle for too long to a consumer.

    One step scans a part of the pending entries and shows the ID to continue from; --all continues
    to the end. Pending entries that were deleted from the stream are dropped.
    """
    with session.writing() as store:
        found = existing_group(store, stream, group)
        claimed = _claim_in_steps(found, consumer, everything, options)
    if out.for_programs:
        out.object(cursor=claimed.cursor, entries=claimed.entries, deleted=claimed.deleted)
        return
    _show(out, claimed.entries, options["justid"])
    click.echo(f"{plural(len(claimed.entries), 'entry')} claimed")
    if claimed.deleted:
        click.echo(f"{plural(len(claimed.deleted), 'deleted entry')} dropped")
    if claimed.cursor != MIN_ID:
        click.echo(f"continue with --start {claimed.cursor}")


def _claim_in_steps(
    group: "Group", consumer: bytes, everything: bool, options: dict[str, Any]
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
            claimed: Claimed | ClaimedIDs = type(step)(start, entries, deleted)
            return claimed


def _show(out: Output, entries: Sequence[AnyEntry], justid: bool) -> None:
    if justid:
        out.table(id_columns(), ({"id": entry.id} for entry in entries))
    else:
        out.entries(entries)
