"""Serving a store on its ports until told to stop.

The orderly end of a server: what has come is answered, what was answered is durable.

Nothing more is read. Requests that have come are run; jobs come to their end; everything is made
durable. Who waits for a key waits no more, and hears it from the end of the connection as with
Redis: clients connect anew then, and ask again. Replies go out; whoever does not read them in time
is cut off.

Telling systemd how the server is, by the protocol of ``sd_notify``.

Where nobody has asked to be told (no NOTIFY_SOCKET in the environment) nothing happens.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from ssl import SSLContext
from typing import NamedTuple

from kvstream.engine import server_address
from kvstream.engine.engine import Engine
from kvstream.logs import NOTICE, logging_to
from kvstream.server.commands import TABLE
from kvstream.server.commands.info import RUN_ID
from kvstream.server.metrics.endpoint import metered
from kvstream.server.net import tls as certificates
from kvstream.server.net.asyncio_server import Listener, listen, listening
from kvstream.server.net.tls import SecuredServer, listen_secured
from kvstream.server.options import OUTPUT_MAX, ServerOptions
from kvstream.server.runtime.executor import Executor
from kvstream.server.settings import change_of
from kvstream.types.options import StoreOptions
from kvstream.version import VERSION

READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(*states: str) -> None:
    """Tell how the server is; whoever asked may be gone by now."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # of no file: Linux's abstract names
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as messenger, suppress(OSError):
        messenger.sendto("\n".join(states).encode(), address)


PAUSE_S = 0.005
"""Between two looks at whether something has come to its end."""
SYNC_S = 5.0
"""Time that the disk gets, however late it is: it is what was promised."""
LAST_S = 1.0
"""Time in which connections that were cut off are forgotten: one round of the loop will do."""


class Ending(NamedTuple):
    """What a server has come to."""

    undurable: str
    """Why not all that was written is known to be on disk; empty: it is."""
    idle: bool
    """No save, no compaction and no bulk load is left at work."""


async def drain(executor: Executor, seconds: float) -> Ending:
    """End all clients within a time."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    executor.limits.held.clear()  # nobody is to be read again
    for client in executor.clients.values():
        client.pause()
    await _until(lambda: not _has_work(executor), until)
    saving = executor.saving
    idle = await _until(lambda: not (saving.is_busy or executor.loads.is_busy), until)
    sync = saving.start_sync()
    await _until(
        lambda: not (sync.is_alive or executor.is_answering), max(until, loop.time() + SYNC_S)
    )
    await asyncio.sleep(0)  # what the threads have posted comes first
    for client in list(executor.blocked):
        executor.drop(client)
    for client in list(executor.clients.values()):
        client.close()
    await _until(lambda: not executor.clients, until)
    for client in list(executor.clients.values()):
        client.abort()
    await _until(lambda: not executor.clients, until + LAST_S)
    undurable = str(sync.error or "") if sync.done else "the disk did not take all in time"
    return Ending(undurable, idle)


def _has_work(executor: Executor) -> bool:
    """Run and write what can be now, and return whether there is more."""
    paging = executor.paging
    return executor.run() or paging.write() or executor.pending or bool(paging.under_way)


async def _until(holds: Callable[[], bool], until: float) -> bool:
    """Wait until something holds, or for so long; return whether it does."""
    loop = asyncio.get_running_loop()
    while not holds():
        if loop.time() >= until:
            return False
        await asyncio.sleep(PAUSE_S)
    return True


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
        server_address.remove(engine.database.directory)
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
    url = server_address.url_of(host, options.port or options.tls_port, not options.port)
    try:
        server_address.write(
            executor.engine.database.directory, server_address.Address(url, RUN_ID)
        )
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
