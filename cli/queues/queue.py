"""``queue``: the queues of a store, the messages in them, and when messages leave a stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.json_values import jsonable
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import (
    Count,
    Duration,
    Field,
    Moment,
    Name,
    confirm,
    example,
    must_ask,
    stream_argument,
    yes_option,
)
from kvstream.cli.queues.policy import (
    choose_group,
    group_option,
    policy,
    policy_rows,
    policy_values,
)
from kvstream.cli.session import Session, existing_stream, stream_or_free
from kvstream.cli.tables import (
    Column,
    count_column,
    duration,
    name_column,
    number,
    or_dash,
    plural,
    printable,
    quote,
    size,
)
from kvstream.errors import ServerTooOld
from kvstream.types.glob import is_listed
from kvstream.types.ids import Ticket
from kvstream.types.options import CONFLICTS

if TYPE_CHECKING:
    from kvstream.engine.decoding import LetterCounts
    from kvstream.group import Group
    from kvstream.meta.policy import Retention
    from kvstream.queue import Queue
    from kvstream.store import Store
    from kvstream.stream import Stream


@click.group(epilog=example("kvstream queue ls"))
def queue() -> None:
    """Show queues, put messages, set the rules.

    A queue is a stream with a consumer group that has rules: leases, retries, dead letters.
    `read --group` leases a message, and `ack`, `nack` and `pending` settle and show it.
    """


queue.add_command(policy)


# --- what is in queues ----------------------------------------------------------------------------


def _age(seconds: float) -> str:
    return duration(round(seconds * 1000))


_LS = (
    name_column("queue"),
    name_column("group"),
    count_column("ready"),
    count_column("leased"),
    count_column("waiting"),
    count_column("dead"),
    Column("oldest", "oldest_age", or_dash(_age), right=True),
    Column("delayed", "delayed", number, right=True, spare=True),
    Column("held", "held", number, right=True, spare=True),
)
_PAUSED = (*_LS[:2], Column("paused", "paused"), *_LS[2:])
"""The columns if any queue is paused."""


@queue.command("ls", epilog=example("kvstream queue ls", "kvstream queue ls 'email*' --json"))
@click.argument("pattern", type=Name(), required=False)
@click.option("--all", "everything", is_flag=True, help="Include groups without rules.")
@output_options
def list_queues(session: Session, out: Output, /, pattern: bytes | None, everything: bool) -> None:
    """List the queues, and how many messages they have.

    A queue is a group that has rules, or a stream of put messages that no worker has read from. A
    message is delayed, until its time comes; ready; leased to a worker; waiting to be repeated;
    held behind another one of its key; or dead. Oldest is the age of the oldest message that is not
    done. If several queues share a dead-letter stream, each counts its own. A PATTERN as in KEYS,
    such as 'orders:*', selects streams by name.
    """
    with session.reading() as store:
        rows = list(_rows(store, pattern, everything))
    columns = _PAUSED if any(row["paused"] for row in rows) else _LS
    out.table(columns, rows, nothing="no queues: a stream becomes one with its first worker")


def _rows(store: Store, pattern: bytes | None, everything: bool) -> Iterator[dict[str, Any]]:
    letters = letters_of(store)
    for info in store.key_infos(pattern):
        if info.type != "stream" or not is_listed(info.key, pattern):
            continue
        stream = store.stream(info.key)
        if not info.groups and _was_put_into(stream):
            counts = jsonable(queue_of(store, info.key).info())
            yield {"queue": info.key, "group": None, **counts}
            continue
        for group in (stream.group(each.name) for each in stream.groups()):
            rules = group.policy()
            if everything or rules is not None:
                found = queue_of(store, info.key, group=group.name)
                counts = jsonable(found._info(letters))
                yield {"queue": info.key, "group": group.name, **counts}


def is_queue(store: Store, stream: bytes) -> bool:
    """Return whether a stream has a group with rules, or was made by a Queue."""
    if not store.exists(stream):
        return False
    stored = store.stream(stream)
    groups = (stored.group(each.name) for each in stored.groups())
    return any(group.policy() is not None for group in groups) or _was_put_into(stored)


def is_of_dead_letters(store: Store, key: bytes) -> bool:
    """Return whether a queue moves its dead letters to ``key``, which may not exist yet."""
    from kvstream.meta.policy import DEAD_SUFFIX  # not for a help text

    for info in store.key_infos():
        if info.type != "stream":
            continue
        stream = store.stream(info.key)
        rules = [stream.group(each.name).policy() for each in stream.groups()]
        if any(each is not None and each.dead_key(info.key) == key for each in rules):
            return True
        if not rules and key == info.key + DEAD_SUFFIX and _was_put_into(stream):
            return True
    return False


def _was_put_into(stream: Stream) -> bool:
    """Return whether a Queue has made a stream, by its rule of retention."""
    try:
        rules = stream.retention()
    except ServerTooOld:
        return False
    return rules is not None and rules.acked


def _choose(store: Store, stream: bytes, name: bytes | None) -> tuple[Queue, Group | None]:
    """Return a queue and its group; None if messages were put and no worker has read from it."""
    stored = existing_stream(store, stream)
    if name is None and not stored.groups() and _was_put_into(stored):
        return queue_of(store, stream), None
    group = choose_group(store, stream, name)
    return queue_of(store, stream, group=group.name), group


def letters_of(store: Store) -> LetterCounts:
    """Return the counts of dead letters for many queues of a store."""
    from kvstream.engine.decoding import LetterCounts  # not for a help text

    return LetterCounts(lambda key: store.stream(key).scan())


def queue_of(store: Store, stream: bytes, **options: Any) -> Queue:
    """Return a queue of a store."""
    from kvstream.queue import Queue  # with the engine: not for a help text

    return Queue(store, stream, **options)


@queue.command(epilog=example("kvstream queue info emails"))
@stream_argument
@group_option
@output_options
def info(session: Session, out: Output, /, stream: bytes, group: bytes | None) -> None:
    """Show the messages of a queue by state, and its rules."""
    with session.reading() as store:
        found, chosen = _choose(store, stream, group)
        rules = None if chosen is None else chosen.policy()
        counts = jsonable(found.info())
    name = None if chosen is None else chosen.name
    if out.for_programs:
        out.object(queue=stream, group=name, **counts, policy=policy_values(rules))
        return
    numbers = ("ready", "leased", "waiting", "held", "delayed", "dead")
    shown: dict[str, Any] = {"group": name or "-", **{each: counts[each] for each in numbers}}
    shown["oldest"] = or_dash(_age)(counts["oldest_age"])
    out.record(shown, dict.fromkeys(numbers, number))
    rows = dict(policy_rows(rules, stream))
    if rows:
        out.heading("rules")
        out.record(rows, {})


# --- messages -------------------------------------------------------------------------------------


@queue.command(
    epilog=example(
        "kvstream queue put emails to=ann",
        "kvstream queue put emails to=bob --delay 10m",
        "kvstream queue put emails to=cyd --unique welcome:7 --window 1d",
    )
)
@stream_argument
@click.argument("pairs", type=Field(), metavar="FIELD=VALUE...", nargs=-1, required=True)
@click.option("--delay", type=Duration(), metavar="DURATION", help="Add it after this time.")
@click.option("--at", type=Moment(), help="Add it at this time.")
@click.option("--ttl", type=Duration(), metavar="DURATION", help="Delete it after this time.")
@click.option("--unique", type=Name(), metavar="ID", help="One message of this ID at a time.")
@click.option(
    "--window",
    type=Duration(),
    metavar="DURATION",
    help="With --unique: one in this time, by default until it is done.",
)
@click.option("--most", type=click.IntRange(1), metavar="N", help="With --window: N in this time.")
@click.option(
    "--max-wait",
    type=Duration(),
    metavar="DURATION",
    help="With debounce: due so long after the first one at the latest.",
)
@click.option(
    "--on-conflict",
    type=click.Choice(CONFLICTS),
    help="With --unique, if there is one: skip the new one; replace the old one unless a worker "
    "has had it; debounce, which replaces a delayed one; add it after one that is in work; or "
    "throttle, which delays it to the next window.",
)
@output_options
def put(
    session: Session,
    out: Output,
    /,
    stream: bytes,
    pairs: tuple[tuple[bytes, bytes], ...],
    **options: Any,
) -> None:
    """Put a message into a queue, and show its ID or ticket.

    The store and the stream are created if they do not exist. A delayed message has a ticket,
    @ms-number, until it is due and gets its ID. If --unique leaves the message out, the ID or
    ticket of the existing one is shown.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if "delay" in given and "at" in given:
        raise click.UsageError("give --delay or --at, not both")
    if "unique" not in given and given.keys() & {"window", "on_conflict", "max_wait"}:
        raise click.UsageError("--window, --max-wait and --on-conflict go with --unique")
    if "most" in given:
        if "window" not in given:
            raise click.UsageError("--most goes with --window")
        given["window"] = given.pop("most"), given["window"]
    with session.writing(create=True) as store:
        stream_or_free(store, stream)  # WrongType names the key
        message = queue_of(store, stream).put(pairs, **given)
    delayed = isinstance(message, Ticket)
    ticket = str(message) if delayed else None
    out.result(str(message), id=None if delayed else message, ticket=ticket)


@queue.command(epilog=example("kvstream queue peek emails --count 3"))
@stream_argument
@group_option
@click.option("--count", "-n", type=Count(1), default=10, metavar="N", help="Show N.")
@output_options
def peek(session: Session, out: Output, /, stream: bytes, group: bytes | None, count: int) -> None:
    """Show the next ready messages of a queue; they stay ready.

    These are the new ones, which no consumer has had. `pending --list` shows those that are leased
    or wait to be repeated, and `delayed ls` those that are not due.
    """
    with session.reading() as store:
        _, chosen = _choose(store, stream, group)
        after = "0-0" if chosen is None else chosen.info().last_delivered_id
        out.entries(islice(store.stream(stream).scan(f"({after}"), count))


@queue.command(epilog=example("kvstream queue pause emails"))
@stream_argument
@group_option
@output_options
def pause(session: Session, out: Output, /, stream: bytes, group: bytes | None) -> None:
    """Deliver nothing from a queue until `resume`.

    Messages are still taken, and those that are leased may be finished.
    """
    with session.writing() as store:
        chosen = choose_group(store, stream, group)
        chosen.pause()
    out.result(f"group {printable(chosen.name)} is paused", group=chosen.name, paused=True)


@queue.command(epilog=example("kvstream queue resume emails"))
@stream_argument
@group_option
@output_options
def resume(session: Session, out: Output, /, stream: bytes, group: bytes | None) -> None:
    """Deliver from a paused queue again."""
    with session.writing() as store:
        chosen = choose_group(store, stream, group)
        chosen.resume()
    out.result(f"group {printable(chosen.name)} delivers", group=chosen.name, paused=False)


@queue.command(
    epilog=example("kvstream queue purge emails --dry-run", "kvstream queue purge emails")
)
@stream_argument
@group_option
@click.option("--dry-run", is_flag=True, help="Show how many there are without deleting any.")
@yes_option
@output_options
def purge(
    session: Session, out: Output, /, stream: bytes, group: bytes | None, dry_run: bool, yes: bool
) -> None:
    """Delete all messages of a queue, delayed ones too.

    Other groups of the stream lose them too. The groups, their rules, the schedules and the dead
    letters stay. Messages in work may be settled, and are not repeated; they are not counted. On a
    terminal you are asked first, unless --yes is given.
    """
    count = 0
    if dry_run or must_ask(yes):
        with session.reading() as store:
            counts = _choose(store, stream, group)[0].info()
        count = counts.ready + counts.waiting + counts.held + counts.delayed
    if not dry_run:
        if must_ask(yes):
            confirm(f"Delete {plural(count, 'message')} of {quote(stream)}?")
        with session.writing() as store:
            count = _choose(store, stream, group)[0].purge()
    verb = "would be deleted" if dry_run else "deleted"
    out.result(f"{plural(count, 'message')} {verb}", deleted=count, dry_run=dry_run)


# --- the rules of retention ----------------------------------------------------------------------

_RULES = ("max_age", "max_length", "max_bytes", "acked", "latest")


def retention_rows(rules: Retention) -> Iterator[tuple[str, str]]:
    """Yield the rules of a stream as titles and texts."""
    if rules.max_age_ms:
        yield "max age", duration(rules.max_age_ms)
    if rules.max_length:
        yield "max length", number(rules.max_length)
    if rules.max_bytes:
        yield "max bytes", size(rules.max_bytes)
    if rules.acked:
        yield "acked", "entries that every group has acknowledged go"
    if rules.latest:
        yield "latest", f"of each value of {printable(rules.latest)}"
    if rules.force:
        yield "force", "also entries that a group needs"


@queue.command(
    epilog=example(
        "kvstream queue retention emails",
        "kvstream queue retention emails --acked --max-age 7d",
        "kvstream queue retention emails --off",
    )
)
@stream_argument
@click.option("--max-age", type=Duration(), metavar="DURATION", help="Older entries go.")
@click.option("--max-length", type=click.IntRange(1), metavar="N", help="All but the last N go.")
@click.option(
    "--max-bytes", type=click.IntRange(1), metavar="N", help="All but the last N bytes go."
)
@click.option("--acked", is_flag=True, help="Entries go that every group has acknowledged.")
@click.option(
    "--latest", type=Name(), metavar="FIELD", help="All but the last entry of each value go."
)
@click.option("--force", is_flag=True, help="Entries go even if a group still needs them.")
@click.option("--off", is_flag=True, help="Remove all rules: every entry stays.")
@output_options
def retention(
    session: Session, out: Output, /, stream: bytes, force: bool, off: bool, **options: Any
) -> None:
    """Show or set which entries leave a stream by themselves.

    The rules given take the place of all former ones. An entry is removed in the background once
    one rule says so, but without --force never while a group has it pending or has not read it.
    """
    rules = {name: options[name] for name in _RULES if options[name]}
    if off and (rules or force):
        raise click.UsageError("--off removes all rules: it goes with no other option")
    if force and not rules:
        raise click.UsageError("--force goes with a rule, such as --max-age 7d")
    if not (rules or off):
        with session.reading() as store:
            _show_rules(out, stream, existing_stream(store, stream).retention())
        return
    with session.writing() as store:
        stored = existing_stream(store, stream)
        if off:
            stored.drop_retention()
        else:
            stored.set_retention(**rules, force=force)
        _show_rules(out, stream, stored.retention())


def _show_rules(out: Output, stream: bytes, rules: Retention | None) -> None:
    if out.for_programs:
        out.object(stream=stream, **({} if rules is None else asdict(rules)))
    elif rules is None:
        out.result(f"stream {printable(stream)} keeps all entries")
    else:
        out.record(dict(retention_rows(rules)), {})
