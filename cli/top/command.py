"""``top``: what a server is doing, again and again."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

import click

from kvstream.cli.exits import explain
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import Duration, Name, example
from kvstream.cli.top import view as top_view
from kvstream.cli.top.frames import SORTS, Frame, with_rates
from kvstream.cli.top.sources import ServerSource, Source, StoreSource
from kvstream.errors import StoreLocked
from kvstream.remote.connection import Connection, ServerUnavailable, connect

STREAMS = 100
"""Streams that are shown by default: more than a terminal has lines."""
INTERVAL_S_MIN = 0.1
REPLY_S = 10.0
"""A server that takes longer for a reply is shown as one that does not answer."""
TERMINATED = 128 + signal.SIGTERM
_ABSENT = (ServerUnavailable, StoreLocked)
"""What may pass: a view that has begun goes on with what it has."""


@click.command(
    short_help="Watch streams, groups and clients live.",
    epilog=example(
        "kvstream top --url redis://localhost:6390",
        "kvstream top --url redis://localhost:6390 --once --json",
    ),
)
@click.option(
    "--url",
    metavar="URL",
    help="The server, kvstream's or Redis's, here or before the command: redis://HOST[:PORT][/DB].",
)
@click.option(
    "--interval",
    "-i",
    type=Duration(),
    default="2s",
    metavar="DURATION",
    help="Pause between two looks.",
)
@click.option(
    "--sort", type=click.Choice(SORTS), default=SORTS[0], help="The greatest first, or by name."
)
@click.option("--match", type=Name(), default="*", help="Streams whose names match the pattern.")
@click.option(
    "--streams", type=click.IntRange(1), default=STREAMS, metavar="N", help="Show so many at most."
)
@click.option("--once", is_flag=True, help="One look, then end.")
@output_options
@click.pass_context
def top(
    ctx: click.Context,
    out: Output,
    /,
    url: str | None,
    interval: float,
    sort: str,
    match: bytes,
    streams: int,
    once: bool,
) -> None:
    """Watch streams, groups, what is pending, clients and rates.

    Where stdout is no terminal, or with --json, one look is written after another. What is behind
    comes first: lag is what a group has yet to be given, oldest how long an entry has waited for
    its acknowledgement, as far as the first twenty pending ones by ID tell.

    Each look costs the server a few commands for each stream that is shown. A store that no server
    holds can be looked into with --store; one that a server holds is seen by its --url.
    """
    with _source(ctx, url, match, streams) as source, _held_stores_explained():
        if once:
            top_view.write(source.frame(), sort, out)
            return
        pause_s = max(interval, INTERVAL_S_MIN)
        if sys.stdout.isatty() and not out.json:
            _watch(source, sort, pause_s)
        else:
            _write_on(source, sort, pause_s, out)


@contextmanager
def _held_stores_explained() -> Iterator[None]:
    """Say how the store of a server is watched."""
    try:
        yield
    except StoreLocked as error:
        raise StoreLocked(f"{error}; where that is a server, watch it by --url") from None


@contextmanager
def _source(ctx: click.Context, url: str | None, match: bytes, most: int) -> Iterator[Source]:
    session = ctx.obj
    if url is None and getattr(session, "directory", None) is None:
        url = ctx.find_root().params.get("url")
        if url is None:
            raise click.UsageError("name the server: --url redis://HOST[:PORT]")
    if url is None:
        yield StoreSource(session, match, most)
        return
    client = connect(url, reply_s=REPLY_S)
    connection = Connection(client, ctx.find_root().params.get("db"))
    try:
        settings = client.connection_pool.connection_kwargs
        host, port = settings.get("host", "localhost"), settings.get("port", 6379)
        place = settings.get("path") or f"{host}:{port}"
        yield ServerSource(connection, f"{place}, database {connection.db}", match, most)
    finally:
        connection.close()


def _frames(source: Source) -> Iterator[Frame]:
    before = None
    while True:
        before = with_rates(source.frame(), before)
        yield before


def _write_on(source: Source, sort: str, pause_s: float, out: Output) -> None:
    for number, frame in enumerate(_frames(source)):
        if number and not out.json:
            click.echo()
        top_view.write(frame, sort, out)
        sys.stdout.flush()
        time.sleep(pause_s)


def _watch(source: Source, sort: str, pause_s: float) -> None:
    """Draw frame over frame; however it ends, the terminal is as it was."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    frame, trouble = source.frame(), ""  # fails before the screen is taken
    with _heeding_sigterm(), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            view = top_view.live(frame, sort, console.width, console.height, trouble)
            live.update(view, refresh=True)
            time.sleep(pause_s)
            try:
                frame, trouble = with_rates(source.frame(), frame), ""
            except _ABSENT as error:
                trouble = f"no answer for a while: {explain(error)}"


@contextmanager
def _heeding_sigterm() -> Iterator[None]:
    """Have SIGTERM end the block as an exception does."""

    def leave(code: int, number: int, frame: FrameType | None) -> None:
        sys.exit(code)

    before = signal.signal(signal.SIGTERM, partial(leave, TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
