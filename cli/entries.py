"""``add``, ``range``, ``revrange`` and ``len``: the entries of a stream."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import click

from kvstream.cli.contracts import AnyStream, Session
from kvstream.cli.examples import example
from kvstream.cli.exits import nothing_unless
from kvstream.cli.json_values import Pairs, Unreadable, loads_fields
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import AddID, Field, Name, RangeBound, stream_argument
from kvstream.cli.session import existing_stream
from kvstream.cli.trimming import trim_options
from kvstream.ids import StreamID, range_start
from kvstream.records import Entry

_PAGE = 1000

count_option = click.option(
    "--count", "-n", type=click.IntRange(1), help="At most so many entries."
)


@click.command(
    epilog=example(
        "kvstream add orders sku=a1 qty=2",
        'kvstream add orders --fields \'{"sku": "a1"}\' --maxlen 1000000 --approximate',
    )
)
@stream_argument
@click.argument("pairs", type=Field(), metavar="[FIELD=VALUE]...", nargs=-1)
@click.option("--fields", metavar="JSON", help="The fields as JSON, as export writes them.")
@click.option("--id", "eid", type=AddID(), default="*", help="ms-seq, or ms-* for the next of ms.")
@click.option("--nomkstream", is_flag=True, help="Do nothing where there is no stream.")
@click.option("--idmp", type=(Name(), Name()), metavar="PRODUCER ID", help="Add it but once.")
@click.option("--idmpauto", type=Name(), metavar="PRODUCER", help="The same, by its fields.")
@trim_options
@output_options
@click.pass_obj
def add(
    session: Session,
    out: Output,
    /,
    stream: bytes,
    pairs: tuple[tuple[bytes, bytes], ...],
    fields: str | None,
    eid: str,
    **options: Any,
) -> None:
    """Append one entry, and show its ID.

    The store and the stream are made where missing. With --idmp or --idmpauto an entry that the
    producer has added before is not added again: the ID of the first is shown.
    """
    given = [*pairs, *_decoded(fields)]
    if not given:
        raise click.UsageError("an entry needs at least one FIELD=VALUE")
    with session.writing(create=True) as store:
        made = store.stream(stream).add(given, eid, **options)
    if made is not None:
        out.result(str(made), id=made)
    nothing_unless(made)


def _decoded(fields: str | None) -> Pairs:
    try:
        return [] if fields is None else loads_fields(fields)
    except Unreadable as error:
        raise click.BadParameter(str(error), param_hint="--fields") from None


@click.command(
    "range",
    epilog=example(
        "kvstream range orders --count 10",
        "kvstream range orders 2023-11-14 now --json",
        "kvstream range orders '(1700000000000-0' +",
    ),
)
@stream_argument
@click.argument("start", type=RangeBound(), default="-")
@click.argument("end", type=RangeBound(), default="+")
@count_option
@output_options
@click.pass_obj
def range_(
    session: Session, out: Output, /, stream: bytes, start: str, end: str, count: int | None
) -> None:
    """Show the entries from START to END, oldest first.

    A bound is an ID, - (the first), + (the last) or a time; ( before it excludes it. END as a time
    or as milliseconds alone takes in the whole millisecond.
    """
    with session.reading() as store:
        found = existing_stream(store, stream).scan(start, end)
        out.entries(islice(found, count))


@click.command(epilog=example("kvstream revrange orders --count 1"))
@stream_argument
@click.argument("end", type=RangeBound(), default="+")
@click.argument("start", type=RangeBound(), default="-")
@count_option
@output_options
@click.pass_obj
def revrange(
    session: Session, out: Output, /, stream: bytes, end: str, start: str, count: int | None
) -> None:
    """Show the entries from END back to START, newest first."""
    with session.reading() as store:
        found = backwards(existing_stream(store, stream), end, start)
        out.entries(islice(found, count))


def backwards(stream: AnyStream, end: str, start: str) -> Iterator[Entry]:
    """Yield the entries from ``end`` back to ``start``."""
    first = range_start(start)
    bound: str | StreamID = end
    while page := stream.revrange(bound, start, _PAGE):
        yield from page
        if len(page) < _PAGE or page[-1].id <= first:
            return
        bound = page[-1].id.previous()


@click.command("len", epilog=example("kvstream len orders"))
@stream_argument
@output_options
@click.pass_obj
def len_(session: Session, out: Output, /, stream: bytes) -> None:
    """Show the number of entries in a stream."""
    with session.reading() as store:
        length = len(existing_stream(store, stream))
    out.result(str(length), length=length)
