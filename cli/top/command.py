"""The command ``top``: take a sample at every interval, show it, and read keys meanwhile."""

import os
import re
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext

import click

from kvstream.cli.exit_codes import explain
from kvstream.cli.output import Output, output_only_options
from kvstream.cli.parameters import Duration, Name, example
from kvstream.cli.session import DirectorySession
from kvstream.cli.top import view
from kvstream.cli.top.samples import SORTS, Sample, Sampler, with_rates
from kvstream.cli.top.screen import Screen
from kvstream.errors import ServerUnavailable, StoreLocked
from kvstream.types.clock import monotonic

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
@output_only_options
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
    oldest pending entry, among the twenty with the lowest IDs. If a stream is used as a queue, its
    ready, leased, waiting, dead and delayed messages are shown; next is the time until the first
    waiting one is ready, and oldest is the age of the oldest one that is not done. --sort lag sorts
    queues by what is ready. If stdout is not a terminal, or with --json, samples are written one
    after another.

    Keys: up and down scroll, s sorts, / filters by name, ? shows all keys, q quits. `kvstream
    pending` and `kvstream consumer ls` show more of one group.

    A sample costs the server a few commands per stream. To watch a store that a server has open,
    give the --url of the server; any other store can be watched with --store, also one that other
    processes share.
    """
    with _sampler(ctx, url, match, streams) as sampler:
        if once:
            view.write(sampler.sample(), sort, out)
            return
        pause_s = max(interval, INTERVAL_S_MIN)
        if sys.stdout.isatty() and not out.for_programs:
            _watch(sampler, sort, pause_s)
        else:
            _write_all(sampler, sort, pause_s, out)


@contextmanager
def _sampler(ctx: click.Context, url: str | None, match: bytes, most: int) -> Iterator[Sampler]:
    session = ctx.obj
    if url is None and isinstance(session, DirectorySession) and session.directory is not None:
        engine = session.shared_engine()
        if engine is None:
            yield Sampler(session.reading, str(session.path), match, most)
            return
        place = str(session.path)
    else:
        from kvstream.remote.connection import CONNECT_S  # not for a help text
        from kvstream.remote.engine import RemoteEngine

        url = url or ctx.find_root().params.get("url")
        if url is None:
            raise click.UsageError("name the server: --url redis://HOST[:PORT]")
        engine = RemoteEngine(url, ctx.find_root().params.get("db"), CONNECT_S, REPLY_S)
        place = engine.place
    from kvstream.store import Store

    with closing(engine):
        store = Store(engine, engine.db)
        yield Sampler(lambda: nullcontext(store), f"{place}, database {engine.db}", match, most)


def _samples(sampler: Sampler) -> Iterator[Sample]:
    sample = None
    while True:
        sample = with_rates(sampler.sample(), sample)
        yield sample


def _write_all(sampler: Sampler, sort: str, pause_s: float, out: Output) -> None:
    for number, sample in enumerate(_samples(sampler)):
        if number and not out.for_programs:
            click.echo()
        view.write(sample, sort, out)
        sys.stdout.flush()
        time.sleep(pause_s)


def _watch(sampler: Sampler, sort: str, pause_s: float) -> None:
    """Show samples on the terminal, which is restored at the end."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    screen, problem = Screen(sort), ""
    sample = sampler.sample()  # an error here leaves the screen as it is
    with (
        _sigterm_as_exit(),
        _keyboard() as key_within,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        until = monotonic() + pause_s
        while not screen.ended:
            size = console.size
            live.update(view.live(sample, screen, size.width, size.height, problem), refresh=True)
            key = key_within(max(0.0, until - monotonic()))
            if key is not None:
                screen.press(key)
            if screen.wants_sample or monotonic() >= until:
                try:
                    sample, problem = with_rates(sampler.sample(), sample), ""
                except _TRANSIENT as error:
                    problem = f"no answer: {explain(error)}"
                screen.wants_sample = False
                until = monotonic() + pause_s


_KEYS = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x1b[5~": "pgup",
    "\x1b[6~": "pgdn",
    "\x1b": "esc",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
}
"""Names of keys by what a terminal sends; ``O`` stands for ``[`` in some modes."""
_SEQUENCE = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)


@contextmanager
def _keyboard() -> Iterator[Callable[[float], str | None]]:
    """Read single keys, not echoed; yield a function that waits some seconds for the next one.

    If stdin is not a terminal there are no keys.
    """
    if not sys.stdin.isatty():
        yield time.sleep
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    keys: deque[str] = deque()
    before = termios.tcgetattr(descriptor)

    def key_within(seconds: float) -> str | None:
        if not keys and select.select([descriptor], [], [], seconds)[0]:
            data = os.read(descriptor, 1024)
            if not data:
                return "q"  # the terminal is gone
            typed = _SEQUENCE.findall(data.decode("utf-8", "ignore"))
            keys.extend(_KEYS.get(each.replace("\x1bO", "\x1b["), each) for each in typed)
        return keys.popleft() if keys else None

    try:
        tty.setcbreak(descriptor)
        yield key_within
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """Raise SystemExit on SIGTERM inside the block."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
