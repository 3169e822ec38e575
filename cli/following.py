"""``tail``: the end of a stream, and what comes after it.

The store is embedded, so nobody writes while this process has it open. Following is therefore done
by looking: open read-only, read, close, pause; in the pauses others write.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

import click

from kvstream.cli.examples import example
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import Duration, Position, stream_argument
from kvstream.cli.session import Session, existing_stream
from kvstream.errors import StoreLocked
from kvstream.ids import MIN_ID, StreamID
from kvstream.records import Entry
from kvstream.store import Store
from kvstream.stream import Stream

T = TypeVar("T")

_PAGE = 10_000
"""Entries that one look takes at most."""
LATEST = 10
"""Entries that ``tail`` begins with, as the tail of files does."""
POLL_S_MIN = 0.01

poll_option = click.option(
    "--poll",
    type=Duration(),
    default="1s",
    metavar="DURATION",
    help="Pause between two looks.",
)


def looks(session: Session, look: Callable[[Store], T], pause_s: float) -> Iterator[T]:
    """Yield what each look at the store gives; while another process holds it, say so and wait."""
    told = False
    while True:
        start = time.monotonic()
        held_s = 0.0
        try:
            with session.reading() as store:
                seen = look(store)
            held_s = time.monotonic() - start
            told = False
            yield seen
        except StoreLocked as error:
            if not told:
                click.echo(f"waiting: {error}", err=True)
            told = True
        time.sleep(max(pause_s, held_s, POLL_S_MIN))  # at least as long as others had to wait


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
    seen from outside: -f says so, and goes on when it is closed.
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


def _at_once(stream: Stream, after: StreamID | None, count: int | None) -> Iterable[Entry]:
    if after is None:
        return _latest(stream, count)
    return islice(stream.scan(f"({after}"), count)


def _latest(stream: Stream, count: int | None) -> list[Entry]:
    return stream.revrange(count=LATEST if count is None else count)[::-1]


class _Follower:
    """What a stream has had since the look before."""

    def __init__(self, key: bytes, position: StreamID | None, count: int | None) -> None:
        """``position`` None: begin with the last ``count`` entries."""
        self._key = key
        self._position = position
        self._count = count

    def __call__(self, store: Store) -> list[Entry]:
        if not store.exists(self._key):
            self._position = MIN_ID
            return []
        stream = store.stream(self._key)
        last = stream.info().last_generated_id
        if self._position is None:
            self._position = last
            return _latest(stream, self._count)
        if last < self._position:  # another stream of the same name: it is read whole
            self._position = MIN_ID
        page = stream.read(self._position, _PAGE)
        self._position = page[-1].id if len(page) == _PAGE else last
        return page
