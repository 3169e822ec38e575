"""``add``, ``get``, ``range``, ``find``, ``tail``, ``len``, ``del``, ``trim``: entries of a stream.

``tail --follow`` polls a store in a directory, since no other process can write while this one has
it open: it opens the store read-only, reads, closes it, and pauses. A server is asked with a
blocking read instead, so new entries are shown at once.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from time import sleep
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvstream.cli.exit_codes import fail_for_missing, fail_unless
from kvstream.cli.json_values import Pairs, Unreadable, loads_fields
from kvstream.cli.output import Output, output_options, pages
from kvstream.cli.parameters import (
    AddID,
    Count,
    Duration,
    Field,
    Name,
    OldestID,
    Position,
    RangeBound,
    Type,
    confirm,
    destroying_options,
    example,
    ids_argument,
    must_ask,
    option_group,
    parse_ids,
    stream_argument,
)
from kvstream.cli.session import Session, existing_stream, last_id
from kvstream.cli.tables import Column, id_columns, plural, quote
from kvstream.errors import ServerUnavailable, StoreLocked
from kvstream.types.clock import monotonic
from kvstream.types.glob import matcher
from kvstream.types.ids import MIN_ID, StreamID, range_start
from kvstream.types.options import RefPolicy
from kvstream.types.records import Entry, Outcome

if TYPE_CHECKING:
    from kvstream.store import Store
    from kvstream.stream import Stream

_POLICIES = [policy.value for policy in RefPolicy]

ref_policy_option = click.option(
    "--ref-policy",
    type=click.Choice(_POLICIES, case_sensitive=False),
    metavar="|".join(_POLICIES),
    help="KEEPREF (default): references in groups stay; DELREF: they go too; ACKED: delete only "
    "entries that all groups have acknowledged.",
)

trim_options = option_group(
    click.option(
        "--maxlen", type=click.IntRange(0), metavar="N", help="Keep the newest N entries."
    ),
    click.option(
        "--minid",
        type=OldestID(),
        help="Keep the entries from this ID or time (such as now-7d).",
    ),
    click.option(
        "--approximate", "-a", is_flag=True, help="Remove whole nodes only, which is faster."
    ),
    click.option(
        "--limit",
        type=click.IntRange(0),
        metavar="N",
        help="With -a, remove at most N; 0: no limit.",
    ),
    ref_policy_option,
)
"""The options of a trim, named as in the library."""

_PAGE = 1000

span_options = option_group(
    click.option("--start", type=RangeBound(), help="Start at this ID or time."),
    click.option("--end", type=RangeBound(), help="End at this ID or time."),
)


def _span(
    start: str | None, end: str | None, first: str | None = None, last: str | None = None
) -> tuple[str, str]:
    """Return the bounds of a range, from options or arguments; by default those of the stream."""
    for option, argument, name in ((start, first, "start"), (end, last, "end")):
        if option is not None and argument is not None:
            raise click.UsageError(f"give either {name.upper()} or --{name}, not both")
    return start or first or "-", end or last or "+"


count_option = click.option(
    "--count", "-n", type=Count(1), metavar="N", help="Show at most N entries."
)


@click.command(
    epilog=example(
        "kvstream add orders sku=a1 qty=2",
        'kvstream add orders --fields \'{"sku": "a1"}\' --maxlen 1000 --approximate',
    )
)
@stream_argument
@click.argument("pairs", type=Field(), metavar="[FIELD=VALUE]...", nargs=-1)
@click.option(
    "--fields", metavar="JSON", help="The fields as JSON, in the form that export writes."
)
@click.option(
    "--id", "eid", type=AddID(), default="*", help="The ID: ms-seq, or ms-* for the next free one."
)
@click.option("--nomkstream", is_flag=True, help="Do not create the stream.")
@click.option(
    "--idmp", type=(Name(), Name()), metavar="PRODUCER ID", help="Add it only once for this ID."
)
@click.option(
    "--idmpauto", type=Name(), metavar="PRODUCER", help="Add it only once for these fields."
)
@trim_options
@output_options
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

    The store and the stream are created if they do not exist. With --idmp or --idmpauto, an entry
    that this producer has already added is not added again: its ID is shown.
    """
    given = [*pairs, *_decode_fields(fields)]
    if not given:
        raise click.UsageError("an entry needs at least one FIELD=VALUE")
    with session.writing(create=True) as store:
        eid_or_ticket = store.stream(stream).add(given, eid, **options)
    if eid_or_ticket is not None:
        out.result(str(eid_or_ticket), id=eid_or_ticket)
    fail_unless(eid_or_ticket)


def _decode_fields(fields: str | None) -> Pairs:
    try:
        return [] if fields is None else loads_fields(fields)
    except Unreadable as error:
        raise click.BadParameter(str(error), param_hint="--fields") from None


@click.command(epilog=example("kvstream get orders 1700000000000-0"))
@stream_argument
@ids_argument
@output_options
def get(session: Session, out: Output, /, stream: bytes, ids: tuple[str, ...]) -> None:
    """Show entries by ID.

    An ID of - reads IDs from stdin, one per line. The exit code is 1 if one of them does not exist.
    """
    missing = []
    with session.reading() as store:
        found = existing_stream(store, stream)

        def entries() -> Iterator[Entry]:
            for eid in parse_ids(ids):
                if (entry := found.get(eid)) is None:
                    missing.append(eid)
                else:
                    yield entry

        out.entries(entries())
    fail_for_missing(missing)


@click.command(
    "range",
    epilog=example(
        "kvstream range orders --count 10",
        "kvstream range orders 2023-11-14 now --json",
        "kvstream range orders '(1700000000000-0' +",
        "kvstream range orders --start 2023-11-14 --end yesterday",
    ),
)
@stream_argument
@click.argument("first", type=RangeBound(), required=False, metavar="[START]")
@click.argument("last", type=RangeBound(), required=False, metavar="[END]")
@span_options
@count_option
@output_options
def range_(
    session: Session, out: Output, /, stream: bytes, count: int | None, **bounds: str | None
) -> None:
    """Show the entries from START to END, oldest first.

    A bound is an ID, a time, - (the first entry) or + (the last entry); a ( before it excludes it.
    If END is a time or lacks its sequence, its whole millisecond is included. --start and --end are
    the same bounds.
    """
    start, end = _span(**bounds)
    with session.reading() as store:
        found = existing_stream(store, stream).scan(start, end)
        out.entries(islice(found, count))


@click.command(epilog=example("kvstream revrange orders --count 1"))
@stream_argument
@click.argument("last", type=RangeBound(), required=False, metavar="[END]")
@click.argument("first", type=RangeBound(), required=False, metavar="[START]")
@span_options
@count_option
@output_options
def revrange(
    session: Session, out: Output, /, stream: bytes, count: int | None, **bounds: str | None
) -> None:
    """Show the entries from END back to START, newest first."""
    start, end = _span(**bounds)
    with session.reading() as store:
        found = backwards(existing_stream(store, stream), end, start)
        out.entries(islice(found, count))


def backwards(stream: "Stream", end: str, start: str) -> Iterator[Entry]:
    """Yield the entries from ``end`` back to ``start``."""
    first = range_start(start)
    bound: str | StreamID = end
    while page := stream.revrange(bound, start, _PAGE):
        yield from page
        if len(page) < _PAGE or page[-1].id <= first:
            return
        bound = page[-1].id.previous()


Test = Callable[[Entry], bool]


class Condition(Type):
    """A condition on the fields of an entry: ``NAME=PATTERN``, ``NAME!=PATTERN`` or ``NAME``."""

    name = "condition"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Test:
        if callable(value):
            test: Test = value
            return test
        name, sign, pattern = os.fsencode(value).partition(b"=")
        negated = bool(sign) and name.endswith(b"!")
        name = name.removesuffix(b"!") if negated else name
        if not name:
            self.fail(f"{value!r} is not FIELD=PATTERN, FIELD!=PATTERN or FIELD.", param, ctx)
        matches = matcher(pattern if sign else b"*")

        def holds(entry: Entry) -> bool:
            return negated != any(each == name and matches(value) for each, value in entry.pairs)

        return holds


@click.command(
    epilog=example(
        "kvstream find orders sku=a1",
        "kvstream find orders 'sku=a*' 'qty!=0' --start 2023-11-14 --end now",
        "kvstream find orders sku --reverse --count 1",
    )
)
@stream_argument
@click.argument("conditions", type=Condition(), metavar="[CONDITION]...", nargs=-1)
@span_options
@click.option("--reverse", is_flag=True, help="Show the newest first.")
@count_option
@output_options
def find(
    session: Session,
    out: Output,
    /,
    stream: bytes,
    conditions: tuple[Test, ...],
    reverse: bool,
    count: int | None,
    **bounds: str | None,
) -> None:
    """Show the entries with certain fields, in a time range.

    An entry must meet all conditions. A condition is FIELD=PATTERN, FIELD!=PATTERN, or FIELD,
    which an entry must have. A PATTERN is as in KEYS: * is any text, ? any character, [ab] one of
    these; a \\ makes the next sign literal. An entry without the field meets FIELD!=PATTERN.

    All entries between --start and --end are read, and a server sends them all. The exit code is 1
    if none was found.
    """
    shown = 0
    start, end = _span(**bounds)
    with session.reading() as store:
        found = existing_stream(store, stream)
        entries = backwards(found, end, start) if reverse else found.scan(start, end)
        for page in pages(entries):  # show what is found while the others are read
            matching = (entry for entry in page if all(holds(entry) for holds in conditions))
            rest = None if count is None else count - shown
            shown += out.entries(islice(matching, rest), title=not shown)
            if shown == count:
                break
    fail_unless(shown)


@click.command("len", epilog=example("kvstream len orders"))
@stream_argument
@span_options
@output_options
def len_(session: Session, out: Output, /, stream: bytes, **bounds: str | None) -> None:
    """Show the number of entries in a stream.

    With --start or --end, it is that of this range, as by `count`.
    """
    length = _count(session, stream, **bounds)
    out.result(str(length), length=length)


@click.command(
    epilog=example(
        "kvstream count orders --start 2023-11-14",
        "kvstream count orders --start 'last hour' --json",
    )
)
@stream_argument
@span_options
@output_options
def count(session: Session, out: Output, /, stream: bytes, **bounds: str | None) -> None:
    """Show the number of entries in a time range.

    Without --start and --end all entries are counted. A Redis server cannot count a range, so it
    sends its entries.
    """
    counted = _count(session, stream, **bounds)
    out.result(str(counted), count=counted)


def _count(session: Session, stream: bytes, **bounds: str | None) -> int:
    start, end = _span(**bounds)
    with session.reading() as store:
        return existing_stream(store, stream).count(start, end)


_MEANINGS = {
    Outcome.MISSING: "not found",
    Outcome.DELETED: "deleted",
    Outcome.KEPT: "kept: not acknowledged by all groups",
}
_OUTCOMES = (*id_columns(), Column("outcome", "outcome", _MEANINGS.__getitem__))


def show_outcomes(out: Output, ids: Sequence[StreamID], outcomes: Sequence[Outcome]) -> None:
    """Show the outcome for each ID; exit with 1 if none was deleted."""
    rows = [{"id": eid, "outcome": each} for eid, each in zip(ids, outcomes, strict=True)]
    out.table(_OUTCOMES, rows)
    fail_unless(Outcome.DELETED in outcomes)


@click.command(
    "del",
    epilog=example(
        "kvstream del orders 1700000000000-0",
        "kvstream del orders 1700000000000-0 --ref-policy delref",
    ),
)
@stream_argument
@ids_argument
@ref_policy_option
@output_options
def del_(
    session: Session, out: Output, /, stream: bytes, ids: tuple[str, ...], ref_policy: str | None
) -> None:
    """Delete entries by ID.

    An ID of - reads IDs from stdin, one per line. With --ref-policy the outcome is shown for each
    ID. The exit code is 1 if none was deleted.
    """
    wanted = parse_ids(ids)
    with session.writing() as store:
        found = existing_stream(store, stream)
        if ref_policy is None:
            deleted = found.delete(wanted)
            out.result(f"{plural(deleted, 'entry')} deleted", deleted=deleted)
            fail_unless(deleted)
        else:
            outcomes = found.delete_entries(wanted, ref_policy=RefPolicy(ref_policy))
            show_outcomes(out, wanted, outcomes)


@click.command(
    epilog=example(
        "kvstream trim orders --maxlen 1000000 --approximate",
        "kvstream trim orders --minid now-30d --dry-run",
    )
)
@stream_argument
@trim_options
@destroying_options
@output_options
def trim(
    session: Session, out: Output, /, stream: bytes, dry_run: bool, yes: bool, **options: Any
) -> None:
    """Remove the oldest entries of a stream.

    Give --maxlen to keep the newest N, or --minid to remove those before an ID or a time. On a
    terminal you are asked first, unless --yes is given. --dry-run and the question count the
    entries out of these bounds: -a, --limit or acked may keep some of them.
    """
    if options["maxlen"] is None and options["minid"] is None:
        raise click.UsageError("give --maxlen N or --minid ID|TIME")
    if dry_run or must_ask(yes):
        with session.reading() as store:
            found = _out_of_bounds(existing_stream(store, stream), **options)
        if dry_run:
            out.result(f"{plural(found, 'entry')} would be removed", trimmed=found, dry_run=True)
            return
        if found:
            confirm(f"Remove {plural(found, 'entry')} of {quote(stream)}?")
    with session.writing() as store:
        trimmed = existing_stream(store, stream).trim(**options)
    out.result(f"{plural(trimmed, 'entry')} removed", trimmed=trimmed)


def _out_of_bounds(stream: "Stream", maxlen: int | None, minid: StreamID | None, **_: Any) -> int:
    """Return the number of entries that a trim removes, at most."""
    if maxlen is not None:
        return max(0, len(stream) - maxlen)
    return 0 if minid is None or minid == MIN_ID else stream.count("-", minid.previous())


T = TypeVar("T")

_TAIL_PAGE, _PAGE_SHARED = 10_000, 1000
"""Entries per query; fewer from a server, which sends them in one reply."""
LATEST = 10
"""Entries that ``tail`` shows first, as for files."""
POLL_S_MIN = 0.01

poll_option = click.option(
    "--poll",
    type=Duration(),
    default="1s",
    metavar="DURATION",
    help="Pause between two queries; on a server, the longest wait of one.",
)


Query = Callable[["Store", float | None], T]
"""Reads a store. It waits at most so many seconds for new entries; None: it does not wait."""


def poll_store(session: Session, query: Query[T], pause_s: float) -> Iterator[T]:
    """Run a query again and again, and yield its results.

    While another process has the store open, or a server that has answered before is away, say so
    and wait.
    """
    transient: tuple[type[Exception], ...] = (StoreLocked,)
    reported = False
    pause_s = max(pause_s, POLL_S_MIN)
    while True:
        start = monotonic()
        rest_s: float | None = pause_s
        try:
            with session.reading() as store:
                result = query(store, pause_s if session.shared else None)
            # Leave the store to others for at least as long as it was open.
            rest_s = None if session.shared else max(pause_s, monotonic() - start)
            transient = (StoreLocked, ServerUnavailable)
            reported = False
            yield result
        except transient as error:
            if not reported:
                click.echo(f"waiting: {error}", err=True)
            reported = True
        if rest_s is not None:
            sleep(rest_s)


@click.command(
    epilog=example("kvstream tail orders -n 20", "kvstream tail orders --after '$' -n 0 --json")
)
@stream_argument
@click.option(
    "--count", "-n", type=Count(0), metavar="N", help="Start with the last N, default 10."
)
@click.option(
    "--after", type=Position(), help="Start after this ID, at this time, or at $, the end."
)
@click.option("--follow", "-f", is_flag=True, help="Show new entries as they come, until Ctrl-C.")
@poll_option
@output_options
def tail(
    session: Session,
    out: Output,
    /,
    stream: bytes,
    count: int | None,
    after: StreamID | str | None,
    follow: bool,
    poll: float,
) -> None:
    """Show the last entries of a stream, and follow it.

    With -f, the store is polled every --poll, and other processes can write between two polls.
    While another process has the store open, tail says so and waits until it is closed. A server
    (--url) sends new entries at once; while it is down, tail says so and waits.
    """
    if after == "$":
        after, count = None, 0
    position = None if after is None else StreamID.parse(after)
    if not follow:
        with session.reading() as store:
            out.entries(_current(existing_stream(store, stream), position, count))
        return
    title = True
    for page in poll_store(session, _Follower(stream, position, count), poll):
        if page:
            out.entries(page, title)
            title = False


def _current(stream: "Stream", after: StreamID | None, count: int | None) -> Iterable[Entry]:
    if after is None:
        return _latest(stream, count)
    return islice(stream.scan(f"({after}"), count)


def _latest(stream: "Stream", count: int | None) -> list[Entry]:
    return stream.revrange(count=LATEST if count is None else count)[::-1]


class _Follower:
    """A query for the entries that are new since the last one."""

    def __init__(self, key: bytes, position: StreamID | None, count: int | None) -> None:
        """``position`` None: start with the last ``count`` entries."""
        self._key = key
        self._position = position
        self._count = count

    def __call__(self, store: "Store", wait_s: float | None) -> Sequence[Entry]:
        stream = store.stream(self._key)
        last = last_id(store, self._key)
        if self._position is None:
            self._position = last
            return _latest(stream, self._count)
        if last < self._position:  # the stream was deleted and made anew
            self._position = MIN_ID
        limit = _TAIL_PAGE if wait_s is None else _PAGE_SHARED
        page = stream.read(self._position, limit, wait_s)
        self._position = page[-1].id if page else last
        return page
