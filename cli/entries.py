"""``tail``: the end of a stream, and what comes after it.

A store in a directory is embedded, so nobody writes while this process has it open. Following is
therefore done by looking: open read-only, read, close, pause; in the pauses others write. A look at
a server waits there instead: what comes is shown at once.

``add``, ``range``, ``revrange`` and ``len``: the entries of a stream.

``del`` and ``trim``: entries that go.

The options that say what to trim, shared by ``add`` and ``trim``.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from time import monotonic, sleep
from typing import Any, TypeVar

import click

from kvstream.cli.contracts import AnyStore, AnyStream, Session
from kvstream.cli.exits import nothing_unless
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import (
    AddID,
    Duration,
    Field,
    Name,
    OldestID,
    Position,
    RangeBound,
    example,
    ids_argument,
    ids_given,
    stream_argument,
)
from kvstream.cli.rows import Pairs, Unreadable, loads_fields
from kvstream.cli.session import existing_stream, last_id
from kvstream.cli.tables import Column, id_columns, plural
from kvstream.errors import StoreLocked
from kvstream.operations.delete import Outcome
from kvstream.operations.trim import RefPolicy
from kvstream.remote.connection import ServerUnavailable
from kvstream.types.ids import MIN_ID, StreamID, range_start
from kvstream.types.records import Entry, HistoryEntry

Command = TypeVar("Command", bound=Callable[..., Any])

_POLICIES = [policy.value for policy in RefPolicy]

ref_policy_option = click.option(
    "--ref-policy",
    type=click.Choice(_POLICIES, case_sensitive=False),
    metavar="|".join(_POLICIES),
    help="What of entries that groups refer to: by default KEEPREF leaves the references; DELREF "
    "drops them; ACKED spares the entries.",
)

_OPTIONS = (
    click.option("--maxlen", type=click.IntRange(0), metavar="N", help="Keep the last N entries."),
    click.option(
        "--minid",
        type=OldestID(),
        help="Keep what is not below this ID, or not older than this time (now-7d).",
    ),
    click.option("--approximate", "-a", is_flag=True, help="Trim whole nodes only: faster."),
    click.option(
        "--limit", type=click.IntRange(0), metavar="N", help="With -a: at most so many; 0: all."
    ),
    ref_policy_option,
)


def trim_options(command: Command) -> Command:
    """Give a command the options of a trim, under the names of the library."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


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


_MEANINGS = {
    Outcome.MISSING: "not there",
    Outcome.DELETED: "deleted",
    Outcome.KEPT: "kept: a group refers to it",
}
_OUTCOMES = (*id_columns(), Column("outcome", "outcome", _MEANINGS.__getitem__))


def show_outcomes(out: Output, ids: Sequence[StreamID], outcomes: Sequence[Outcome]) -> None:
    """Show what became of each ID; exit code 1 where none was deleted."""
    rows = [{"id": eid, "outcome": each} for eid, each in zip(ids, outcomes, strict=True)]
    out.table(_OUTCOMES, rows)
    nothing_unless(Outcome.DELETED in outcomes)


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
@click.pass_obj
def del_(
    session: Session, out: Output, /, stream: bytes, ids: tuple[str, ...], ref_policy: str | None
) -> None:
    """Delete entries by ID.

    - takes the IDs from stdin, one a line. With --ref-policy it shows what became of each. Ends
    with 1 when none was there.
    """
    wanted = ids_given(ids)
    with session.writing() as store:
        found = existing_stream(store, stream)
        if ref_policy is None:
            deleted = found.delete(wanted)
            out.result(f"{plural(deleted, 'entry', 'entries')} deleted", deleted=deleted)
            nothing_unless(deleted)
        else:
            outcomes = found.delete_entries(wanted, ref_policy=RefPolicy(ref_policy))
            show_outcomes(out, wanted, outcomes)


@click.command(
    epilog=example(
        "kvstream trim orders --maxlen 1000000 --approximate",
        "kvstream trim orders --minid now-30d",
    )
)
@stream_argument
@trim_options
@output_options
@click.pass_obj
def trim(session: Session, out: Output, /, stream: bytes, **options: Any) -> None:
    """Remove the oldest entries.

    All but the last N go, or what lies before an ID or a time.
    """
    if options["maxlen"] is None and options["minid"] is None:
        raise click.UsageError("give --maxlen N or --minid ID|TIME")
    with session.writing() as store:
        trimmed = existing_stream(store, stream).trim(**options)
    out.result(f"{plural(trimmed, 'entry', 'entries')} removed", trimmed=trimmed)


T = TypeVar("T")

_TAIL_PAGE, _PAGE_SHARED = 10_000, 1000
"""Entries that one look takes at most; of a server fewer, as it makes one reply of them."""
LATEST = 10
"""Entries that ``tail`` begins with, as the tail of files does."""
POLL_S_MIN = 0.01

poll_option = click.option(
    "--poll",
    type=Duration(),
    default="1s",
    metavar="DURATION",
    help="Pause between two looks; on a server, the longest wait of one.",
)


Look = Callable[[AnyStore, float | None], T]
"""Looks at a store, where it may wait for some seconds for what is new; None: not at all."""


def looks(session: Session, look: Look[T], pause_s: float) -> Iterator[T]:
    """Yield what each look at the store gives; while it cannot be had, say so and wait.

    A store that another process holds is waited for; so is a server that has answered before.
    """
    passing: tuple[type[Exception], ...] = (StoreLocked,)
    told = False
    pause_s = max(pause_s, POLL_S_MIN)
    while True:
        start = monotonic()
        rest_s: float | None = pause_s
        try:
            with session.reading() as store:
                seen = look(store, pause_s if store.shared else None)
            # At least as long as others had to wait; where nobody had to, not at all.
            rest_s = None if store.shared else max(pause_s, monotonic() - start)
            passing = (StoreLocked, ServerUnavailable)
            told = False
            yield seen
        except passing as error:
            if not told:
                click.echo(f"waiting: {error}", err=True)
            told = True
        if rest_s is not None:
            sleep(rest_s)


@click.command(
    epilog=example("kvstream tail orders -n 20", "kvstream tail orders --after '$' -n 0 --json")
)
@stream_argument
@click.option(
    "--count", "-n", type=click.IntRange(0), help="Last entries to begin with, by default 10."
)
@click.option("--after", type=Position(), help="Begin after this ID, at this time, or at $.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@poll_option
@output_options
@click.pass_obj
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

    A store is held by one process at a time: -f looks at it every --poll, and lets others write in
    between. While a process keeps the store open, as a long-running writer does, nothing can be
    seen from outside: -f says so, and goes on when it is closed. From a server (--url) everything
    is shown as it comes; when the server goes away -f says so, and goes on when it is back.
    """
    if after == "$":
        after, count = None, 0
    position = None if after is None else StreamID.parse(after)
    if not follow:
        with session.reading() as store:
            out.entries(_at_once(existing_stream(store, stream), position, count))
        return
    title = True
    for page in looks(session, _Follower(stream, position, count), poll):
        if page:
            out.entries(page, title)
            title = False


def _at_once(stream: AnyStream, after: StreamID | None, count: int | None) -> Iterable[Entry]:
    if after is None:
        return _latest(stream, count)
    return islice(stream.scan(f"({after}"), count)


def _latest(stream: AnyStream, count: int | None) -> list[Entry]:
    return stream.revrange(count=LATEST if count is None else count)[::-1]


class _Follower:
    """What a stream has had since the look before."""

    def __init__(self, key: bytes, position: StreamID | None, count: int | None) -> None:
        """``position`` None: begin with the last ``count`` entries."""
        self._key = key
        self._position = position
        self._count = count

    def __call__(self, store: AnyStore, wait_s: float | None) -> Sequence[HistoryEntry]:
        stream = store.stream(self._key)
        last = last_id(store, self._key)
        if self._position is None:
            self._position = last
            return _latest(stream, self._count)
        if last < self._position:  # another stream of the same name: it is read whole
            self._position = MIN_ID
        most = min(_TAIL_PAGE, _PAGE_SHARED) if store.shared else _TAIL_PAGE
        page = stream.read(self._position, most, wait_s)
        self._position = page[-1].id if page else last
        return page
