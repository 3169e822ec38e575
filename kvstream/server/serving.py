"""Serving a store on its ports until told to stop."""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from ssl import SSLContext
from typing import NamedTuple

from kvstream import served
from kvstream.engine import Engine
from kvstream.logs import NOTICE, logging_to
from kvstream.options import StoreOptions
from kvstream.server import certificates
from kvstream.server.commands.info import RUN_ID
from kvstream.server.commands.table import TABLE
from kvstream.server.draining import Ending, drain
from kvstream.server.executor import Executor
from kvstream.server.listening import listening
from kvstream.server.metrics.service import metered
from kvstream.server.net import Listener, listen
from kvstream.server.notification import READY, STOPPING, notify
from kvstream.server.options import OUTPUT_MAX, ServerOptions
from kvstream.server.settings import change_of
from kvstream.server.tls import SecuredServer, listen_secured
from kvstream.version import VERSION

__all__ = ["OUTPUT_MAX", "ServerOptions", "run", "serve"]

GARBAGE = (20_000, 2, 100)
"""New objects that set off a search for cycles: those of a turn are no garbage, and going over them
again and again took an eighth of the time. Then after how many such searches those that outlived
them are gone over too, which holds all clients: ten times 50,000 of them took 70 ms. And after how
many of these everything is."""
_ENDING = (signal.SIGTERM, signal.SIGINT)
_HEEDED = (*_ENDING, signal.SIGHUP)
HARD_END = 1
"""The exit code of a server that was not let come to its end."""


class Places(NamedTuple):
    """Where a server is reached."""

    host: str
    port: int
    """0: by TLS alone."""
    tls_port: int
    """0: not by TLS."""
    metrics_url: str | None
    """None: metrics are not served."""

    def __str__(self) -> str:
        ports = [str(self.port)] if self.port else []
        ports += [f"{self.tls_port} (TLS)"] if self.tls_port else []
        metrics = "" if self.metrics_url is None else f", metrics at {self.metrics_url}"
        return f"{self.host}, port {' and '.join(ports)}{metrics}"


Started = Callable[[Places], None]

_log = logging.getLogger(__name__)


async def serve(
    engine: Engine,
    options: ServerOptions,
    started: Started,
    tls: SSLContext | None = None,
    set_level: Callable[[str], None] = lambda name: None,
) -> Ending:
    """Serve an open store until SIGTERM or SIGINT.

    A second signal ends the process at once. SIGHUP has the certificates read anew. ``set_level``
    has the process log by another level.
    """
    executor = Executor(engine, TABLE, options=options)
    executor.set_level = set_level
    listener = Listener(executor, tls)
    stop = asyncio.Event()
    executor.stop = stop.set
    if options.config_file is not None:
        for name, raw in options.config_file.settings.items():
            change_of(executor, name, raw)()
    _heed_signals(listener, stop)
    with metered(listener) as metrics_url:
        servers = await _listen(listener)
        host = servers[0].sockets[0].getsockname()[0]
        _note(executor, host)
        places = Places(host, executor.options.port, executor.options.tls_port, metrics_url)
        _log.log(NOTICE, "ready for clients at %s", places)
        started(places)
        notify(READY)
        await stop.wait()
        _log.log(NOTICE, "stops; clients to be answered and let go: %d", len(executor.clients))
        served.forget(engine.database.directory)
        notify(STOPPING)
        listener.stopping = True
        for server in servers:
            server.close()
        return await drain(executor, executor.options.shutdown_timeout)


def run(directory: Path, store: StoreOptions, options: ServerOptions, started: Started) -> None:
    """Open a store, serve it until told to stop, and close it."""
    tls = certificates.load(options) if options.tls_port else None
    gc.freeze()  # what is loaded by now stays
    gc.set_threshold(*GARBAGE)
    with logging_to(options.logfile, options.log_format, options.loglevel) as set_level:
        _log.log(
            NOTICE,
            "kvstream %s, process %d, opens %s with durability %s",
            *(VERSION, os.getpid(), directory, store.durability),
        )
        engine = Engine(directory, store)
        try:
            with _signals_kept(), asyncio.Runner(loop_factory=_loop_factory()) as runner:
                ending = runner.run(serve(engine, options, started, tls, set_level))
            if ending.undurable:
                _end_hard(ending.undurable)
            if not ending.idle:  # closing the store would wait for it
                _end_hard("a save or a compaction is broken off; all is durable", 0)
        except BaseException:
            engine.close(discard=True)
            raise
        finally:
            engine.close()
        _log.log(NOTICE, "the store is closed, everything is durable")


def _note(executor: Executor, host: str) -> None:
    """Leave word beside the store where it is served; without it only its URL leads here."""
    options = executor.options
    url = served.url_of(host, options.port or options.tls_port, not options.port)
    try:
        served.note(executor.engine.database.directory, served.Address(url, RUN_ID))
    except OSError as error:
        _log.warning("nothing beside the store says that it is served: %s", error)


async def _listen(listener: Listener) -> list[asyncio.Server | SecuredServer]:
    """Accept connections on every port that is wanted."""
    options = listener.executor.options
    servers: list[asyncio.Server | SecuredServer] = []
    if options.port or not options.tls_port:
        with listening(options.host, options.port):
            servers.append(await listen(listener, options.host, options.port))
        options.port = servers[0].sockets[0].getsockname()[1]
    if options.tls_port:
        with listening(options.host, options.tls_port):
            servers.append(await listen_secured(listener, options.host, options.tls_port))
    return servers


def _heed_signals(listener: Listener, stop: asyncio.Event) -> None:
    def end(number: signal.Signals) -> None:
        if stop.is_set():
            _end_hard("told a second time")
        _log.log(NOTICE, "%s has come", number.name)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in _ENDING:
        loop.add_signal_handler(number, end, number)
    loop.add_signal_handler(signal.SIGHUP, _read_certificates, listener)


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Give the caller's handlers of signals back: a loop that is closed would swallow Ctrl-C."""
    before = {number: signal.getsignal(number) for number in _HEEDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_hard(reason: str, code: int = HARD_END) -> None:
    """End this process as a kill would: what was answered survives that."""
    _log.warning("ends at once: %s", reason)
    os._exit(code)


def _read_certificates(listener: Listener) -> None:
    """Secure connections from now on by what is in the files now; as before where it is wrong."""
    if listener.tls is None:
        return
    try:
        listener.tls = certificates.load(listener.executor.options)
        _log.log(NOTICE, "the certificates were read anew")
    except certificates.BadCertificate as error:
        _log.warning("goes on with the certificates that it has: %s", error)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
