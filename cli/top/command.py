"""The command ``top``: takes a sample at every interval, and shows it."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

import click

from kvstream.cli.exit_codes import explain
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import Duration, Name, example
from kvstream.cli.session import DirectorySession
from kvstream.cli.top import view
from kvstream.cli.top.samples import SORTS, Sample, Sampler, ServerSampler, StoreSampler, with_rates
from kvstream.errors import ServerUnavailable, StoreLocked
from kvstream.remote.connection import Connection, connect

STREAMS = 100
"""Default number of streams: more than a terminal has lines."""
INTERVAL_S_MIN = 0.1
REPLY_S = 10.0
"""A server that takes longer for a reply counts as unavailable."""
TERMINATED = 128 + signal.SIGTERM
_TRANSIENT = (ServerUnavailable, StoreLocked)
"""Errors during which the view shows its last sample."""


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
    help="The server, also allowed before the command: redis://HOST[:PORT][/DB].",
)
@click.option(
    "--interval",
    "-i",
    type=Duration(),
    default="2s",
    metavar="DURATION",
    help="Pause between two samples.",
)
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    default=SORTS[0],
    help="Sort by this, greatest first, or by name.",
)
@click.option(
    "--match", type=Name(), default="*", metavar="PATTERN", help="Only streams that match."
)
@click.option(
    "--streams",
    type=click.IntRange(1),
    default=STREAMS,
    metavar="N",
    help="Show at most N streams.",
)
@click.option("--once", is_flag=True, help="Show one sample, then exit.")
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
    """Watch streams, groups, pending entries, clients and rates live.

    The lag of a group is the number of entries that it has yet to deliver; oldest is the age of its
    oldest pending entry, among the twenty with the lowest IDs. If stdout is not a terminal, or with
    --json, samples are written one after another.

    A sample costs the server a few commands per stream. To watch a store that a server has open,
    give the --url of the server; any other store can be watched with --store.
    """
    with _sampler(ctx, url, match, streams) as sampler, _server_advised():
        if once:
            view.write(sampler.sample(), sort, out)
            return
        pause_s = max(interval, INTERVAL_S_MIN)
        if sys.stdout.isatty() and not out.json:
            _watch(sampler, sort, pause_s)
        else:
            _write_all(sampler, sort, pause_s, out)


@contextmanager
def _server_advised() -> Iterator[None]:
    """Add to StoreLocked how the store of a server is watched."""
    try:
        yield
    except StoreLocked as error:
        raise StoreLocked(f"{error}; if that is a server, watch it with --url") from None


@contextmanager
def _sampler(ctx: click.Context, url: str | None, match: bytes, most: int) -> Iterator[Sampler]:
    session = ctx.obj
    if url is None and isinstance(session, DirectorySession) and session.directory is not None:
        yield StoreSampler(session, match, most)
        return
    url = url or ctx.find_root().params.get("url")
    if url is None:
        raise click.UsageError("name the server: --url redis://HOST[:PORT]")
    client = connect(url, reply_s=REPLY_S)
    connection = Connection(client, ctx.find_root().params.get("db"))
    try:
        settings = client.connection_pool.connection_kwargs
        host, port = settings.get("host", "localhost"), settings.get("port", 6379)
        place = settings.get("path") or f"{host}:{port}"
        yield ServerSampler(connection, f"{place}, database {connection.db}", match, most)
    finally:
        connection.close()


def _samples(sampler: Sampler) -> Iterator[Sample]:
    sample = None
    while True:
        sample = with_rates(sampler.sample(), sample)
        yield sample


def _write_all(sampler: Sampler, sort: str, pause_s: float, out: Output) -> None:
    for number, sample in enumerate(_samples(sampler)):
        if number and not out.json:
            click.echo()
        view.write(sample, sort, out)
        sys.stdout.flush()
        time.sleep(pause_s)


def _watch(sampler: Sampler, sort: str, pause_s: float) -> None:
    """Show samples on the terminal, which is restored at the end."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    sample, problem = sampler.sample(), ""  # an error here leaves the screen as it is
    with _sigterm_as_exit(), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            text = view.live(sample, sort, console.width, console.height, problem)
            live.update(text, refresh=True)
            time.sleep(pause_s)
            try:
                sample, problem = with_rates(sampler.sample(), sample), ""
            except _TRANSIENT as error:
                problem = f"no answer: {explain(error)}"


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """Raise SystemExit on SIGTERM inside the block."""

    def leave(code: int, number: int, frame: FrameType | None) -> None:
        sys.exit(code)

    before = signal.signal(signal.SIGTERM, partial(leave, TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
