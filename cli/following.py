"""``tail``: the end of a stream, and what comes after it.

A store in a directory is embedded, so nobody writes while this process has it open. Following is
therefore done by looking: open read-only, read, close, pause; in the pauses others write. A look at
a server waits there instead: what comes is shown at once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from time import monotonic, sleep
from typing import TypeVar

import click

from kvstream.cli.contracts import AnyStore, AnyStream, Session
from kvstream.cli.examples import example
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import Duration, Position, stream_argument
from kvstream.cli.session import existing_stream, last_id
from kvstream.errors import StoreLocked
from kvstream.ids import MIN_ID, StreamID
from kvstream.records import Entry, HistoryEntry
from kvstream.remote.errors import ServerUnavailable

T = TypeVar("T")

_PAGE, _PAGE_SHARED = 10_000, 1000
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
        most = min(_PAGE, _PAGE_SHARED) if store.shared else _PAGE
        page = stream.read(self._position, most, wait_s)
        self._position = page[-1].id if page else last
        return page
