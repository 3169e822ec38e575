"""Serving a store on a port until told to stop."""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvstream.engine import Engine
from kvstream.options import StoreOptions
from kvstream.server.commands.table import TABLE
from kvstream.server.executor import Executor
from kvstream.server.net import Listener, listen

OUTPUT_MAX = 256 << 20
"""Bytes of replies that wait for a client to read them; beyond that it is cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How a store is served."""

    host: str = "127.0.0.1"
    port: int = 6379
    """0: any that is free."""
    output_max: int = OUTPUT_MAX


async def serve(
    engine: Engine, options: ServerOptions, started: Callable[[str, int], None]
) -> None:
    """Serve an open store until SIGTERM or SIGINT; ``started`` is told where."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    executor = Executor(engine, TABLE)
    server = await listen(Listener(executor, options.output_max), options.host, options.port)
    host, port = server.sockets[0].getsockname()[:2]
    started(host, port)
    await stop.wait()
    server.close()
    for client in list(executor.clients.values()):
        client.close()


def run(
    directory: Path,
    store: StoreOptions,
    options: ServerOptions,
    started: Callable[[str, int], None],
) -> None:
    """Open a store, serve it until told to stop, and close it."""
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
