"""``delayed``: messages that are not due yet, by their tickets."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.exit_codes import fail_unless
from kvstream.cli.json_values import fields_json
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import Count, Duration, Moment, Type, example, stream_argument
from kvstream.cli.session import Session, existing_stream
from kvstream.cli.tables import TIME_WIDTH, Column, duration, plural, printable, quote, time_of
from kvstream.errors import InvalidArgument, RequestError
from kvstream.types.clock import now_ms
from kvstream.types.ids import MIN_ID, Ticket
from kvstream.types.records import DelayedMessage, Entry, Fields

if TYPE_CHECKING:
    from kvstream.stream import Stream

_PAGE = 1000


class TicketText(Type):
    """The ticket of a delayed message: ``@ms-number``."""

    name = "ticket"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Ticket:
        try:
            return Ticket.parse(value)
        except InvalidArgument:
            hint = (
                " An entry with an ID is in its stream already: use del."
                if "@" not in value
                else ""
            )
            self.fail(f"{value!r} is no ticket (@ms-number, see delayed ls).{hint}", param, ctx)


def _in(ticket: Ticket) -> str:
    left = ticket.at_ms - now_ms()
    return duration(left) if left > 0 else "now"


def pairs_of(fields: Fields) -> Sequence[tuple[bytes, bytes]]:
    """Return the (field, value) pairs in order, repeated fields included."""
    return Entry(MIN_ID, fields).pairs


def fields_text(pairs: Iterable[tuple[bytes, bytes]]) -> str:
    """Return fields on one line."""
    return "  ".join(f"{printable(name)}={printable(value)}" for name, value in pairs)


_LS = (
    Column("ticket", "ticket", width=18),
    Column("due in", "ticket", _in, right=True),
    Column("due", "ticket", lambda ticket: time_of(ticket.at_ms), width=TIME_WIDTH, spare=True),
    Column("fields", "fields", lambda fields: fields_text(pairs_of(fields)), wraps=True),
)


@click.group(epilog=example("kvstream delayed ls emails"))
def delayed() -> None:
    """List, cancel and move messages that are not due yet.

    A delayed message is kept outside its stream, so no reader sees it early. It has a ticket,
    @ms-number, until it is due and gets its ID.
    """


@delayed.command("ls", epilog=example("kvstream delayed ls emails --count 20"))
@stream_argument
@click.option("--count", "-n", type=Count(1), metavar="N", help="Show at most N.")
@output_options
def list_delayed(session: Session, out: Output, /, stream: bytes, count: int | None) -> None:
    """List the delayed messages of a stream, the next one first."""
    with session.reading() as store:
        messages = islice(read_delayed(existing_stream(store, stream)), count)
        rows = (_json(each) if out.for_programs else each._asdict() for each in messages)
        out.table(_LS, rows, nothing="no delayed messages")


def read_delayed(stream: "Stream") -> Iterator[DelayedMessage]:
    """Yield the delayed messages of a stream, read in pages."""
    start = None
    while page := stream.delayed(start, _PAGE):
        yield from page
        start = Ticket(page[-1].ticket.at_ms, page[-1].ticket.number + 1)


def _json(each: DelayedMessage) -> dict[str, Any]:
    ticket = {"ticket": str(each.ticket), "due_ms": each.ticket.at_ms}
    return {**each._asdict(), **ticket, "fields": fields_json(pairs_of(each.fields))}


tickets_argument = click.argument(
    "tickets", type=TicketText(), metavar="TICKET...", nargs=-1, required=True
)


@delayed.command(epilog=example("kvstream delayed cancel emails @4000000000000-7"))
@stream_argument
@tickets_argument
@output_options
def cancel(session: Session, out: Output, /, stream: bytes, tickets: tuple[Ticket, ...]) -> None:
    """Delete delayed messages by ticket.

    The exit code is 1 if one of them was not there: it was due already, was cancelled, or was
    moved, which gives it a new ticket.
    """
    with session.writing() as store:
        done = existing_stream(store, stream).cancel(*tickets)
    missing = len(set(tickets)) - done
    text = f"{plural(done, 'delayed message')} cancelled"
    if missing:
        text += f"; {missing:,} not found: due already, cancelled, or moved to a new ticket"
    out.result(text, cancelled=done)
    fail_unless(not missing)


@delayed.command(
    epilog=example(
        "kvstream delayed move emails @4000000000000-7 --delay 10m",
        "kvstream delayed move emails @4000000000000-7 --at 2090-01-31T12:00",
    )
)
@stream_argument
@click.argument("ticket", type=TicketText())
@click.option("--delay", type=Duration(), metavar="DURATION", help="Due after this time; 0: now.")
@click.option("--at", type=Moment(), help="Due at this time.")
@output_options
def move(
    session: Session,
    out: Output,
    /,
    stream: bytes,
    ticket: Ticket,
    delay: float | None,
    at: float | None,
) -> None:
    """Change when a message is due, and show its new ticket."""
    if (delay is None) == (at is None):
        raise click.UsageError("give either --delay DURATION or --at TIME")
    with session.writing() as store:
        moved = existing_stream(store, stream).move(ticket, delay=delay, at=at)
    if moved is None:
        raise RequestError(
            f"stream {quote(stream)} has no delayed message {ticket}: it was due already, was "
            "cancelled, or was moved, which gives it a new ticket"
        )
    out.result(str(moved), ticket=str(moved), due_ms=moved.at_ms)
