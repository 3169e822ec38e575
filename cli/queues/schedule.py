"""``schedule``: messages that a stream gets again and again, at the times of a cron expression."""

from collections.abc import Iterator
from dataclasses import fields as dataclass_fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.exit_codes import fail_unless
from kvstream.cli.json_values import fields_json
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import Field, StreamName, example, stream_argument
from kvstream.cli.queues.delayed import fields_text, pairs_of
from kvstream.cli.session import Session, existing_stream, stream_or_free
from kvstream.cli.tables import TIME_WIDTH, Column, name_column, printable, quote, time_of
from kvstream.errors import RequestError
from kvstream.types.cron import parse
from kvstream.types.glob import is_listed
from kvstream.types.options import MISFIRES, Misfire
from kvstream.types.records import Schedule

if TYPE_CHECKING:
    from kvstream.store import Store
    from kvstream.stream import Stream

SKEW = timedelta(minutes=1)
"""How far the clocks of this machine and of a server may be apart."""
MOST = 100
"""Messages that --misfire all adds at once unless --most says otherwise."""


class ScheduleName(StreamName):
    """The name of a schedule of the stream that is named before it."""

    name = "name"
    inside = ("stream",)

    def names(self, store: "Store", *inside: bytes) -> Iterator[bytes]:
        (stream,) = inside
        return (each.name for each in store.stream(stream).schedules())


name_argument = click.argument("name", type=ScheduleName())


_LS = (
    name_column("stream"),
    name_column("name"),
    Column("cron", "cron"),
    Column("next", "next", lambda at: time_of(at) or "stopped", width=TIME_WIDTH),
    Column("last", "last", lambda at: time_of(at) or "-", width=TIME_WIDTH, spare=True),
    Column("misfire", "misfire", spare=True),
    Column("zone", "zone", spare=True),
    Column("fields", "fields", lambda fields: fields_text(pairs_of(fields)), wraps=True),
)


@click.group(epilog=example("kvstream schedule ls"))
def schedule() -> None:
    """Add messages at the times of a cron expression.

    Schedules are kept in the store, which adds the message of each time exactly once, whatever the
    number of processes, while one of them has it open for writing.
    """


@schedule.command(
    "ls", epilog=example("kvstream schedule ls", "kvstream schedule ls emails --json")
)
@click.argument("stream", type=StreamName(), required=False)
@output_options
def list_schedules(session: Session, out: Output, /, stream: bytes | None) -> None:
    """List the schedules of a stream, or of all streams.

    Times are in UTC. A schedule stops if its next time cannot be computed; then --json shows why.
    A schedule that fired while the clock was ahead does not fire until that time; a line on stderr
    says so.
    """
    silent: list[tuple[bytes, Schedule]] = []
    with session.reading() as store:
        keys = [existing_stream(store, stream).key] if stream is not None else _streams(store)
        rows = ((key, each) for key in keys for each in store.stream(key).schedules())
        shown = (
            _json(*row) if out.for_programs else _row(*row) for row in _note_silent(rows, silent)
        )
        out.table(_LS, shown, nothing="no schedules")
    for key, each in silent:
        click.echo(
            f"{quote(each.name)} of {quote(key)} fired at {time_of(each.last)}, ahead of the "
            "clock, and is silent until then: delete it and set it anew",
            err=True,
        )


def _note_silent(
    rows: Iterator[tuple[bytes, Schedule]], silent: list[tuple[bytes, Schedule]]
) -> Iterator[tuple[bytes, Schedule]]:
    """Yield rows, and add those that fired at a time in the future to ``silent``."""
    ahead = datetime.now(UTC) + SKEW
    for key, each in rows:
        if each.last is not None and each.last > ahead:
            silent.append((key, each))
        yield key, each


def _streams(store: "Store") -> Iterator[bytes]:
    for key in store.scan_keys():
        if is_listed(key) and store.type(key) == "stream":
            yield key


def _row(key: bytes, each: Schedule) -> dict[str, Any]:
    values = {field.name: getattr(each, field.name) for field in dataclass_fields(each)}
    return {"stream": key, **values, "zone": values.pop("tz") or "UTC"}


def _json(key: bytes, each: Schedule) -> dict[str, Any]:
    row = _row(key, each)
    times = {name: row.pop(name) for name in ("next", "last")}  # the last members
    return {**row, **times, "fields": fields_json(pairs_of(each.fields))}


@schedule.command(
    "set",
    epilog=example(
        'kvstream schedule set emails m "0 8 * * 1-5" kind=mail --tz Europe/Berlin',
        "kvstream schedule set emails beat '@every 30s' kind=beat --misfire skip",
    ),
)
@stream_argument
@name_argument
@click.argument("cron")
@click.argument("pairs", type=Field(), metavar="FIELD=VALUE...", nargs=-1, required=True)
@click.option("--tz", metavar="ZONE", default="UTC", help="The time zone, such as Europe/Berlin.")
@click.option(
    "--misfire",
    type=click.Choice(MISFIRES),
    default="once",
    help="What becomes of times that passed while nobody had the store open: skip them, add one "
    "message for all, or one for each.",
)
@click.option(
    "--most", type=click.IntRange(1), metavar="N", help=f"With all: at most N, by default {MOST}."
)
@output_options
def set_schedule(
    session: Session,
    out: Output,
    /,
    stream: bytes,
    name: bytes,
    cron: str,
    pairs: tuple[tuple[bytes, bytes], ...],
    tz: str,
    misfire: Misfire,
    most: int | None,
) -> None:
    """Create or change a schedule, and show its next time.

    CRON has five fields, or six with seconds first; or it is @every 10s, @hourly, @daily, @weekly,
    @monthly or @yearly. A message has the given fields, then cron:name and cron:at, the planned
    time in Unix milliseconds. Where clocks are changed, a time that is left out comes right after
    the gap, and one that occurs twice counts once.
    """
    if most is not None and misfire != "all":
        raise click.UsageError("--most goes with --misfire all")
    tz = "" if tz == "UTC" else tz
    parse(cron, tz)  # a wrong one is wrong usage, on a server too
    with session.writing(create=True) as store:
        stored = stream_or_free(store, stream)
        most = most or (MOST if misfire == "all" else 1)
        stored.schedule(name, cron, pairs, tz=tz, misfire=misfire, most=most)
        made = _existing(stored, name)
    text = f"{printable(name)} is next due {time_of(made.next)}"
    out.result(text, **_json(stream, made))


def _existing(stream: "Stream", name: bytes) -> Schedule:
    """Return a schedule; if there is none, RequestError names the others."""
    schedules = {each.name: each for each in stream.schedules()}
    if name not in schedules:
        known = ", ".join(map(printable, schedules)) or "none"
        raise RequestError(
            f"stream {quote(stream.key)} has no schedule {quote(name)}: it has {known}"
        )
    return schedules[name]


@schedule.command("rm", epilog=example("kvstream schedule rm emails nightly"))
@stream_argument
@name_argument
@output_options
def remove(session: Session, out: Output, /, stream: bytes, name: bytes) -> None:
    """Delete a schedule; messages that it has added stay."""
    with session.writing() as store:
        stored = existing_stream(store, stream)
        _existing(stored, name)
        done = stored.delete_schedule(name)
    out.result(f"{printable(name)} deleted", deleted=done)
    fail_unless(done)


@schedule.command(epilog=example("kvstream schedule run emails nightly"))
@stream_argument
@name_argument
@output_options
def run(session: Session, out: Output, /, stream: bytes, name: bytes) -> None:
    """Add a message of a schedule now, and show its ID.

    The next time of the schedule stays.
    """
    with session.writing() as store:
        stored = existing_stream(store, stream)
        _existing(stored, name)
        eid = stored.run_schedule(name)
    out.result(str(eid), id=eid)
