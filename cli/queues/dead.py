"""``dead``: the messages that a queue has given up, and their way back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.exit_codes import fail_for_missing, fail_unless
from kvstream.cli.json_values import fields_json, jsonable
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import (
    ID,
    Count,
    Field,
    Name,
    example,
    ids_argument,
    parse_ids,
    stream_argument,
)
from kvstream.cli.queues.delayed import fields_text
from kvstream.cli.queues.policy import Rate, choose_group, group_option
from kvstream.cli.queues.queue import is_of_dead_letters, is_queue, queue_of
from kvstream.cli.session import Session
from kvstream.cli.tables import (
    TIME_WIDTH,
    Column,
    count_column,
    id_columns,
    number,
    plain,
    plural,
    printable,
    quote,
    time_of,
)
from kvstream.errors import NoSuchKey, RequestError
from kvstream.types.records import Entry, RedriveInfo

if TYPE_CHECKING:
    from kvstream.queue import Queue
    from kvstream.store import Store

_POLL_S = 0.05
"""Pause between two looks at a redrive that runs."""
_ERROR_LENGTH = 200
"""Characters of an error in a list; `dead show` has all of it."""


@click.group(epilog=example("kvstream dead ls emails"))
def dead() -> None:
    """Show dead letters, and redrive them.

    A message that failed too often, or for good, moves to the dead-letter stream with all its
    fields, its error and its origin. A redrive moves it back. STREAM is the queue, or its
    dead-letter stream.
    """


def _dead_key(store: Store, stream: bytes, group: bytes | None) -> bytes:
    """Return the key of the dead letters of a queue; NoSuchKey if there is none."""
    key = _key_of(store, stream, group)
    if not store.exists(key):
        raise NoSuchKey(
            f"queue {quote(stream)} has no dead letters: there is no stream {quote(key)}"
        )
    return key


def _key_of(store: Store, stream: bytes, group: bytes | None) -> bytes:
    """Return the key of the dead letters of a queue, which may have none yet."""
    from kvstream.meta.policy import DEAD_SUFFIX  # not for a help text

    there = store.exists(stream)
    if there and (stream.endswith(DEAD_SUFFIX) or _has_letters(store, stream)):
        return stream
    key = stream + DEAD_SUFFIX
    if there and (group is not None or store.stream(stream).info().groups):
        rules = choose_group(store, stream, group).policy()
        key = key if rules is None else rules.dead_key(stream)
    return key


def _key_for_list(store: Store, stream: bytes, group: bytes | None) -> bytes:
    """Return the key of the dead letters to list; it may not exist yet if there is a queue.

    A priority has the dead letters of its queue, even before a message has this priority.
    """
    from kvstream.jobs.application import PRIORITIES

    queue, _, last = stream.rpartition(b":")
    if is_queue(store, stream):
        return _key_of(store, stream, group)
    if is_of_dead_letters(store, stream):
        return stream
    if not store.exists(stream) and last.decode("utf-8", "replace") in PRIORITIES:
        return _key_for_list(store, queue, group)
    return _dead_key(store, stream, group)


def _has_letters(store: Store, stream: bytes) -> bool:
    from kvstream.operations.delivery.dead import is_letter

    first = next(iter(store.stream(stream).range(count=1)), None)
    return first is not None and is_letter(first.flat)


# --- letters --------------------------------------------------------------------------------------


def _row(entry: Entry) -> dict[str, Any] | None:
    """Return a dead letter by the names of its parts; None for another entry."""
    from kvstream.engine.decoding import dead_letter_of
    from kvstream.operations.delivery.dead import BLOCK

    letter = dead_letter_of(entry)
    if letter is None:
        return None
    return {**letter._asdict(), "fields": entry.pairs[: -len(BLOCK)]}


def _json(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "fields": fields_json(row["fields"])}


def _first_line(error: bytes) -> str:
    lines = error.decode("utf-8", "backslashreplace").strip().splitlines() or [""]
    return printable(lines[0][:_ERROR_LENGTH]) or "-"


_LS = (
    *id_columns(),
    Column("reason", "reason", plain),
    count_column("deliveries"),
    Column("error", "error", _first_line, wraps=True),
    Column("consumer", "consumer", lambda name: plain(name) or "-", shrinks=True, spare=True),
)


def _matches(row: Mapping[str, Any], where: tuple[bytes, bytes] | None) -> bool:
    """Return whether a letter has a field with a value, as for ``redrive --where``."""
    if where is None:
        return True
    name, value = where
    part = _PARTS.get(name)
    if part is None:
        return where in row["fields"]
    found = row[part]
    return value == (found if isinstance(found, bytes) else str(found).encode())


_PARTS = {
    **{f"dead:{name}".encode(): name for name in ("group", "consumer", "deliveries", "reason")},
    b"dead:stream": "origin",
    b"dead:id": "origin_id",
}
"""The names of the parts of a letter, by their fields in the stream."""


where_option = click.option(
    "--where", type=Field(), help="Only those with this field, also dead:reason and the like."
)


@dead.command(
    "ls",
    epilog=example(
        "kvstream dead ls emails",
        "kvstream dead ls emails --where dead:reason=fatal",
        "kvstream dead ls emails --by-error",
    ),
)
@stream_argument
@group_option
@where_option
@click.option("--count", "-n", type=Count(1), metavar="N", help="Show, or group, at most N.")
@click.option("--by-error", is_flag=True, help="Group the newest 20,000 by their errors.")
@click.option("--after", type=ID(), metavar="ID", help="With --by-error: only older ones.")
@output_options
def list_dead(
    session: Session,
    out: Output,
    /,
    stream: bytes,
    group: bytes | None,
    where: tuple[bytes, bytes] | None,
    count: int | None,
    by_error: bool,
    after: str | None,
) -> None:
    """List dead letters, oldest first, with their errors.

    With --by-error each error is shown once, with its number, the most frequent first; quoted text
    and numbers in it do not count. If there are older dead letters, stderr has the ID for --after.
    The exit code is 1 if --where selects none.
    """
    if by_error:
        if where is not None:
            raise click.UsageError("--by-error groups all: it goes with no --where")
        _list_errors(session, out, stream, group, count, after)
        return
    if after is not None:
        raise click.UsageError("--after is for --by-error")
    with session.reading() as store:
        key = _key_for_list(store, stream, group)
        letters = map(_row, store.stream(key).scan())
        chosen = islice((row for row in letters if row and _matches(row, where)), count)
        rows = map(_json, chosen) if out.for_programs else chosen
        shown = out.table(_LS, rows, nothing="no dead letters")
    fail_unless(shown or where is None)


_ERRORS = (
    count_column("count"),
    Column("error", "error", lambda error: printable(error) or "-", wraps=True),
    Column("first", "first_ms", time_of, width=TIME_WIDTH, spare=True),
    Column("last", "last_ms", time_of, width=TIME_WIDTH, spare=True),
    Column("example", "example", str),
)


def _list_errors(
    session: Session,
    out: Output,
    stream: bytes,
    group: bytes | None,
    count: int | None,
    after: str | None,
) -> None:
    """Show the errors of dead letters, each with its number."""
    with session.reading() as store:
        queue = queue_of(store, stream, dead_letter=_key_for_list(store, stream, group))
        options = {"count": count} if count is not None else {}
        found = queue.dead_by_error(after=after, **options)
    rows = (
        {
            "count": each.number,
            "error": each.error,
            "first_ms": round(each.first.timestamp() * 1000),
            "last_ms": round(each.last.timestamp() * 1000),
            "example": str(each.example),
        }
        for each in found.groups
    )
    out.table(_ERRORS, rows, nothing="no dead letters")
    if found.after is not None:
        looked = plural(found.looked, "dead letter")
        click.echo(f"looked at the newest {looked}; go on with --after {found.after}", err=True)


@dead.command(epilog=example("kvstream dead show emails 1700000006000-0"))
@stream_argument
@ids_argument
@group_option
@output_options
def show(
    session: Session, out: Output, /, stream: bytes, ids: tuple[str, ...], group: bytes | None
) -> None:
    """Show dead letters in full: fields, origin, error and traceback.

    An ID is one that `dead ls` shows; - reads IDs from stdin, one per line. The exit code is 1 if
    one of them does not exist.
    """
    missing, is_first = [], True
    with session.reading() as store:
        letters = store.stream(_dead_key(store, stream, group))
        for eid in parse_ids(ids):
            entry = letters.get(eid)
            row = None if entry is None else _row(entry)
            if row is None:
                missing.append(eid)
                continue
            _show_letter(out, row, is_first)
            is_first = False
    fail_for_missing(missing)


def _show_letter(out: Output, row: Mapping[str, Any], first: bool) -> None:
    if out.for_programs:
        out.object(**_json(row))
        return
    if not first:
        click.echo()
    facts = {name: row[name] for name in row if name not in ("fields", "traceback")}
    out.record(
        {**facts, "fields": row["fields"]},
        {"at": time_of, "deliveries": number, "fields": fields_text},
    )
    for line in row["traceback"].decode("utf-8", "backslashreplace").splitlines():
        click.echo(f"  {printable(line)}")


# --- redrive --------------------------------------------------------------------------------------


@dead.command(
    epilog=example(
        "kvstream dead redrive emails",
        "kvstream dead redrive emails --where dead:reason=fatal --dry-run",
        "kvstream dead redrive emails --all --rate 100/1s",
    )
)
@stream_argument
@click.argument("ids", metavar="[ID]...", nargs=-1)
@group_option
@click.option("--all", "everything", is_flag=True, help="Move all that are there now.")
@where_option
@click.option("--to", type=Name(), metavar="KEY", help="Move them to this stream instead.")
@click.option("--count", "-n", type=Count(1), metavar="N", help="Move at most N.")
@click.option("--rate", type=Rate(), metavar="N/DURATION", help="Move at most N in this time.")
@click.option("--no-wait", is_flag=True, help="On a store: return before all are moved.")
@click.option("--dry-run", is_flag=True, help="Show what would move without moving it.")
@output_options
def redrive(
    session: Session,
    out: Output,
    /,
    stream: bytes,
    ids: tuple[str, ...],
    group: bytes | None,
    everything: bool,
    no_wait: bool,
    dry_run: bool,
    **options: Any,
) -> None:
    """Move dead letters back to the streams that they come from.

    Name what to move: IDs, --where or --all. With none of them this is a dry run, which shows what
    --all would move. A message gets a new ID and starts with no deliveries; each step is one
    commit, so none is lost or doubled.

    On a store this command stays until all are moved; with --no-wait, and after Ctrl-C, the next
    process that opens the store for writing goes on. On a server (--url) a redrive with a --rate,
    or of many, goes on by itself. `dead status` shows how far it is, `dead cancel` stops it.
    """
    if everything and (ids or options["where"]):
        raise click.UsageError("--all moves all: it goes with no ID and no --where")
    unnamed = not (ids or options["where"] or everything)
    given = {name: value for name, value in options.items() if value is not None}
    wanted = parse_ids(ids)
    dry_run = dry_run or unnamed
    with session.reading() if dry_run else session.writing() as store:
        queue = _queue_of(store, stream, group)
        done = queue.redrive(*wanted, dry_run=dry_run, **given)
        while done.state == "running" and not (session.shared or no_wait):
            time.sleep(_POLL_S)  # the timers of the store go on meanwhile
            done = queue.redrive_status() or done
    advice = "; to move them, name IDs, --where or --all" if unnamed and done.moved else ""
    _show_redrive(out, queue, done, advice)
    fail_unless(done.state != "failed" and (done.moved or done.state == "running"))


def _queue_of(store: Store, stream: bytes, group: bytes | None) -> Queue:
    return queue_of(store, stream, dead_letter=_dead_key(store, stream, group))


_WORDS = {
    "running": "moved so far; the redrive goes on (see: dead status)",
    "done": "moved",
    "cancelled": "moved before the redrive was cancelled",
    "failed": "moved before the redrive failed",
    "dry-run": "would move",
}


def _show_redrive(out: Output, queue: Queue, done: RedriveInfo, advice: str = "") -> None:
    if out.for_programs:
        out.object(dead=queue.dead_stream().key, **jsonable(done))
        return
    to = ", ".join(f"{printable(name)} {count:,}" for name, count in done.streams.items())
    text = f"{plural(done.moved, 'dead letter')} {_WORDS[done.state]}"
    text += f" (to {to})" if to else ""
    if done.skipped:
        text += f", {done.skipped:,} skipped: they tell no other stream, give --to"
    if done.error:
        text += f": {printable(done.error)}"
    click.echo(text + advice)


@dead.command(epilog=example("kvstream dead status emails"))
@stream_argument
@group_option
@output_options
def status(session: Session, out: Output, /, stream: bytes, group: bytes | None) -> None:
    """Show how far the redrive is, or how the last one ended."""
    with session.reading() as store:
        queue = _queue_of(store, stream, group)
        run = queue.redrive_status()
        if run is None:
            raise RequestError(
                f"the dead letters {quote(queue.dead_stream().key)} were never redriven"
            )
        _show_redrive(out, queue, run)


@dead.command(epilog=example("kvstream dead cancel emails"))
@stream_argument
@group_option
@output_options
def cancel(session: Session, out: Output, /, stream: bytes, group: bytes | None) -> None:
    """Stop the redrive of a queue; what was moved stays moved."""
    with session.writing() as store:
        done = _queue_of(store, stream, group).cancel_redrive()
    out.result("the redrive is cancelled" if done else "no redrive runs", cancelled=done)
    fail_unless(done)
