"""Serving a store on a port until told to stop."""

import asyncio
import gc
import signal
from collections.abc import Callable
from pathlib import Path

from kvstream.engine import Engine
from kvstream.options import StoreOptions
from kvstream.server.commands.table import TABLE
from kvstream.server.executor import Executor
from kvstream.server.metrics.service import metered
from kvstream.server.net import Listener, listen
from kvstream.server.options import OUTPUT_MAX, ServerOptions

__all__ = ["OUTPUT_MAX", "ServerOptions", "run", "serve"]

GARBAGE = 50_000
"""New objects that set off a search for cycles: those of a turn are no garbage, and going over them
again and again took an eighth of the time."""


Started = Callable[[str, int, str | None], None]
"""Is told the address, the port, and the URL of the metrics where there are some."""


async def serve(engine: Engine, options: ServerOptions, started: Started) -> None:
    """Serve an open store until SIGTERM or SIGINT; ``started`` is told where."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    executor = Executor(engine, TABLE, options=options)
    executor.stop = stop.set
    listener = Listener(executor)
    with metered(listener) as metrics_url:
        server = await listen(listener, options.host, options.port)
        host, port = server.sockets[0].getsockname()[:2]
        executor.options.port = port
        started(host, port, metrics_url)
        await stop.wait()
        server.close()
        for client in list(executor.clients.values()):
            client.close()
        await loop.run_in_executor(None, executor.saving.join)


def run(
    directory: Path,
    store: StoreOptions,
    options: ServerOptions,
    started: Started,
) -> None:
    """Open a store, serve it until told to stop, and close it."""
    gc.freeze()  # what is loaded by now stays
    gc.set_threshold(GARBAGE)
    engine = Engine(directory, store)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(serve(engine, options, started))
    finally:
        engine.close()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
