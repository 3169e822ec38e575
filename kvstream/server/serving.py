"""Serve a store on its ports until the process is stopped, and stop in good order.

An orderly stop reads no more input, runs the requests that have arrived, lets jobs end, and makes
everything durable. Blocked clients get no reply but the end of the connection, as with Redis: they
connect again and ask again. Clients get time to read their replies, then they are disconnected.

systemd is notified of the state by the protocol of ``sd_notify`` if NOTIFY_SOCKET is set.
"""

import asyncio
import faulthandler
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from ctypes import PyDLL, c_int, c_void_p
from functools import partial
from pathlib import Path
from ssl import SSLContext
from threading import Thread
from types import FrameType
from typing import Any, NamedTuple

from kvstream.engine import server_address
from kvstream.engine.engine import Engine
from kvstream.engine.following import Source
from kvstream.errors import InvalidArgument, StoreError
from kvstream.logs import NOTICE, logging_to
from kvstream.server import startup
from kvstream.server.commands import TABLE
from kvstream.server.commands.info import run_id
from kvstream.server.metrics.endpoint import serve_metrics
from kvstream.server.net import tls as certificates
from kvstream.server.net.asyncio_server import Listener, listen, listen_unix, listening
from kvstream.server.net.tls import SecuredServer, listen_secured
from kvstream.server.options import ServerOptions
from kvstream.server.runtime.executor import Executor
from kvstream.server.runtime.limits import require_open_files
from kvstream.server.settings import change_of
from kvstream.types.options import StoreOptions
from kvstream.version import VERSION

READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(*states: str) -> None:
    """Send a state to systemd; ignore an error."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # Linux's abstract socket names
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as messenger, suppress(OSError):
        messenger.sendto("\n".join(states).encode(), address)


PAUSE_S = 0.005
"""Seconds between two checks whether a condition holds."""
SYNC_S = 5.0
"""Seconds for the last fsync, even after the deadline: it was promised."""
LOG_S = 1.0
"""Seconds for the last line of the log."""
FREE_S = 0.001
"""Seconds for which the thread that reads signals releases the interpreter."""
LAST_S = 1.0
"""Seconds to close the connections after the deadline: one iteration of the loop is enough."""


class Ending(NamedTuple):
    """The result of stopping a server."""

    undurable: str
    """The reason why some writes may not be durable; empty if all are."""
    idle: bool
    """No save, compaction or bulk load is running."""


async def drain(executor: Executor, seconds: float) -> Ending:
    """Disconnect all clients within a time."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    executor.busy.stop()
    executor.limits.paused.clear()  # nothing more is read from them
    for client in executor.clients.values():
        client.pause()
    await _until(lambda: not _has_work(executor), until)
    checkpoints = executor.checkpoints
    idle = await _until(lambda: not (checkpoints.is_busy or executor.uploads.is_busy), until)
    sync = checkpoints.start_sync()
    await _until(
        lambda: not (sync.is_alive or executor.reply_queue.is_waiting() or executor.pending),
        max(until, loop.time() + SYNC_S),
    )
    await asyncio.sleep(0)  # callbacks of threads run first
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


async def hand_over(executor: Executor, seconds: float) -> None:
    """Run what the clients of Unix sockets have sent, and disconnect them, within a time.

    A client that sends later gets an error of writing, so it knows that nothing was done: its next
    connection may repeat the request.
    """
    for client in list(executor.clients.values()):
        if client.descriptor >= 0:
            with suppress(OSError), socket.socket(fileno=os.dup(client.descriptor)) as end:
                end.shutdown(socket.SHUT_RD)
    await _until(lambda: not executor.clients, asyncio.get_running_loop().time() + seconds)
    await drain(executor, seconds)


def _has_work(executor: Executor) -> bool:
    """Run a turn and write pages; return whether work is left."""
    streaming = executor.streaming
    return executor.run() or streaming.write() or executor.pending or bool(streaming.under_way)


async def _until(holds: Callable[[], bool], until: float) -> bool:
    """Wait until a condition holds or the time has passed; return whether it holds."""
    loop = asyncio.get_running_loop()
    while not holds():
        if loop.time() >= until:
            return False
        await asyncio.sleep(PAUSE_S)
    return True


GARBAGE = (20_000, 2, 100)
"""Thresholds of the garbage collector: after so many new objects the youngest are searched for
cycles; objects of a turn are no garbage, and searching them more often took an eighth of the time.
The second number starts a search of older objects, which stops all clients: 70 ms for 500,000
objects. The third starts a search of all."""
_ENDING = (signal.SIGTERM, signal.SIGINT)
_HANDLED = (*_ENDING, signal.SIGHUP)
HARD_END = 1
"""The exit code of a server that could not stop in good order."""


class Places(NamedTuple):
    """The addresses of a server."""

    host: str
    port: int
    """0: TLS only."""
    tls_port: int
    """0: no TLS."""
    unixsocket: Path | None
    """The path of its Unix socket."""
    metrics_url: str | None
    """None: no metrics are served."""

    def __str__(self) -> str:
        ports = [str(self.port)] if self.port else []
        ports += [f"{self.tls_port} (TLS)"] if self.tls_port else []
        places = [f"{self.host}, port {' and '.join(ports)}"] if ports else []
        places += [f"socket {self.unixsocket}"] if self.unixsocket is not None else []
        places += [f"metrics at {self.metrics_url}"] if self.metrics_url is not None else []
        return ", ".join(places)


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

    A second signal ends the process at once. SIGHUP reloads the certificates.
    ``set_level`` sets the log level of the process.
    """
    stop = asyncio.Event()
    listener = Listener(engine, TABLE, options, tls, stop.set, set_level)
    executor = listener.executor
    _apply_settings(executor, options)
    asyncio.get_running_loop().set_exception_handler(_log_error)
    with _handle_signals(listener, stop), serve_metrics(listener) as metrics_url:
        servers = await _listen(listener)
        socket_status = None if options.unixsocket is None else options.unixsocket.stat()
        name = servers[0].sockets[0].getsockname()
        host = name[0] if isinstance(name, tuple) else options.host
        _write_address(executor, host)
        ports = executor.options.port, executor.options.tls_port
        executor.replication.start()
        places = Places(host, *ports, options.unixsocket, metrics_url)
        startup.warn_of_access(executor, _hosts(servers))
        _log.log(NOTICE, "ready for clients at %s", places)
        started(places)
        notify(READY)
        await stop.wait()
        await _send_the_rest(executor)
        _log.log(NOTICE, "stops; clients to be answered and let go: %d", len(executor.clients))
        server_address.remove(engine.database.own_path)
        notify(STOPPING)
        listener.stop_accepting()
        for server in servers:
            server.close()
        if options.unixsocket is not None and socket_status is not None:
            _remove_socket(options.unixsocket, socket_status)
        executor.replication.stop()
        ending = await drain(executor, executor.options.shutdown_timeout)
        if not ending.undurable:
            executor.replication.note_end()
        return ending


async def _send_the_rest(executor: Executor) -> None:
    """Refuse writes, and wait until the replicas have all, for as long as a stop may take.

    Redis does the same: a replica that is promoted then lacks nothing.
    """
    seconds = executor.options.shutdown_timeout
    if len(executor.replication.replicas) and executor.replication.is_waited_for:
        executor.pause.begin(seconds, every=False)
        with suppress(StoreError):  # a failed disk is reported by the end
            executor.engine.following.rest()
        until = asyncio.get_running_loop().time() + seconds
        await _until(executor.replication.replicas.is_caught_up, until)


def run(
    directory: Path,
    store: StoreOptions,
    options: ServerOptions,
    started: Started,
    opened: Callable[[Callable[[], Engine]], Engine] = lambda attempt: attempt(),
) -> None:
    """Open a store, serve it until the process is stopped, and close it.

    ``opened`` returns the engine of the attempt that it is given, and may repeat it.
    """
    if store.take_over and options.replicaof:
        raise InvalidArgument(
            "a replica takes the archive over when it is promoted: leave take-over or replicaof out"
        )
    tls = startup.check(options)
    require_open_files(options.maxclients)  # the store takes a part of what is allowed
    gc.freeze()  # what is loaded now stays loaded
    gc.set_threshold(*GARBAGE)
    with logging_to(options.logfile, options.log_format, options.loglevel) as set_level:
        _log.log(
            NOTICE,
            "kvstream %s, process %d, opens %s with durability %s",
            *(VERSION, os.getpid(), directory, store.durability),
        )
        if store.take_over:
            _log.log(
                NOTICE,
                "if %s has no store, the archive %s is restored into it: that may take long",
                *(directory, store.archive),
            )
        source = options.replicaof and Source(*options.replicaof)
        engine = opened(partial(Engine, directory, store, keep_logs=True, replicaof=source))
        try:
            _log_archive(engine)
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
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


def _log_archive(engine: Engine) -> None:
    """Log what the archive of the store holds, if there is one, and what was restored from it."""
    status, plan = engine.archiving.status(), engine.archiving.taken_over
    if status is None:
        return
    if plan is not None:
        _log.log(
            NOTICE,
            "took over the archive %s, and restored it up to commit %d: %d bytes of tables",
            *(status.url, plan.sequence, plan.table_bytes),
        )
    _log.log(
        NOTICE,
        "the archive %s has commits up to %d, the store up to %d",
        *(status.url, status.reached, engine.database.sequence),
    )


def _apply_settings(executor: Executor, options: ServerOptions) -> None:
    """Apply the settings of the configuration file that are no options."""
    if options.config_file is None:
        return
    for name, raw in options.config_file.settings.items():
        change_of(executor, name, raw)()
    if executor.acl.all_channels and options.aclfile is not None:
        executor.acl.load(options.aclfile)


def _hosts(servers: Iterable[asyncio.Server | SecuredServer]) -> list[str]:
    """Return the addresses on which servers listen; a Unix socket has none."""
    names = [each.getsockname() for server in servers for each in server.sockets]
    return [name[0] for name in names if isinstance(name, tuple)]


def _remove_socket(path: Path, own: os.stat_result) -> None:
    """Remove the server's own Unix socket; it may be gone, and another server's may be there."""
    with suppress(OSError):
        if os.path.samestat(own, path.stat()):
            path.unlink()


def _write_address(executor: Executor, host: str) -> None:
    """Write the server's address beside the store, for programs that have only its directory."""
    options = executor.options
    if options.unixsocket is not None and not (options.port or options.tls_port):
        url = server_address.url_of_socket(options.unixsocket)
    else:
        url = server_address.url_of(host, options.port or options.tls_port, not options.port)
    try:
        server_address.write(
            executor.engine.database.own_path, server_address.Address(url, run_id())
        )
    except OSError as error:
        _log.warning("nothing beside the store says that it is served: %s", error)


async def _listen(listener: Listener) -> list[asyncio.Server | SecuredServer]:
    """Accept connections on every configured port, and on the Unix socket."""
    options = listener.executor.options
    servers: list[asyncio.Server | SecuredServer] = []
    if options.port or not (options.tls_port or options.unixsocket):
        with listening(f"{options.host}:{options.port}"):
            servers.append(await listen(listener, options.host, options.port))
        options.port = servers[0].sockets[0].getsockname()[1]
    if options.tls_port:
        with listening(f"{options.host}:{options.tls_port}"):
            servers.append(await listen_secured(listener, options.host, options.tls_port))
    if options.unixsocket is not None:
        with listening(str(options.unixsocket)):
            servers.append(await listen_unix(listener, options.unixsocket, options.unixsocketperm))
    return servers


@contextmanager
def _handle_signals(listener: Listener, stop: asyncio.Event) -> Iterator[None]:
    """Handle signals within the block, in a thread of their own.

    A script may hold the event loop for long: one call of ``string.find`` may take hours.
    Python runs its handlers only after that. But its handler in C writes the signal into a pipe at
    once, and Lua releases the interpreter, so that the thread runs.
    """
    loop = asyncio.get_running_loop()
    asked = False

    def end(number: signal.Signals) -> None:
        _log.log(NOTICE, "%s has come", number.name)
        stop.set()

    def handle(number: signal.Signals) -> None:
        nonlocal asked
        if number == signal.SIGHUP:
            loop.call_soon_threadsafe(_read_certificates, listener)
        elif asked or stop.is_set():
            _end_hard("asked a second time")
        else:
            asked = True
            loop.call_soon_threadsafe(end, number)

    with _read_signals(handle):
        yield


@contextmanager
def _read_signals(handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call a function in a thread for each signal; restore the caller's handlers at the end.

    Only the system can end a process while a call holds the interpreter, as calls of the store do
    while the disk hangs. So after a SIGTERM or SIGINT the next one has its default action, unless
    the thread has found the interpreter free.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    again: dict[int, Callable[[], object]] = {}

    def read() -> None:
        while numbers := os.read(reader, 1):
            if numbers[0] in _HANDLED:
                time.sleep(FREE_S)  # it returns once the interpreter is free
                again.get(numbers[0], bool)()
                handle(signal.Signals(numbers[0]))

    thread = Thread(target=read, name="kvstream-signals", daemon=True)
    before = {number: signal.getsignal(number) for number in _HANDLED}
    former = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        for number in _HANDLED:
            signal.signal(number, _ignore)  # with a handler, Python writes to the pipe
        again = {number: _handle_once(number) for number in _ENDING}
        thread.start()
        yield
    finally:
        signal.set_wakeup_fd(former)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writer)
        thread.join()
        os.close(reader)


def _handle_once(number: signal.Signals) -> Callable[[], object]:
    """Handle the next signal of a number, and take the default action for those after it.

    Returns a function that repeats this.
    """
    libc = PyDLL(None)  # its calls keep the interpreter
    handle_once = getattr(libc, "sysv_signal", None)
    if handle_once is None:  # not glibc
        return bool
    for function in (libc.signal, handle_once):
        function.restype, function.argtypes = c_void_p, (c_int, c_void_p)
    repeat = partial(handle_once, number, libc.signal(number, None))
    repeat()
    return repeat


def _ignore(number: int, frame: FrameType | None) -> None:
    """Handle a signal that the thread reads."""


def _end_hard(reason: str, code: int = HARD_END) -> None:
    """End this process as a kill would: acknowledged writes survive.

    Another thread may hold the log's lock for ever, or the interpreter, which logging releases. The
    watchdog of ``faulthandler`` needs neither and ends the process after LOG_S.
    """
    with open(os.devnull, "wb") as nowhere:
        faulthandler.dump_traceback_later(LOG_S, exit=True, file=nowhere)
        _log.warning("ends at once: %s", reason)
        os._exit(code)


def _log_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the event loop; asyncio would show the task, and with it values."""
    _log.error("the event loop: %s", context["message"], exc_info=context.get("exception"))


def _read_certificates(listener: Listener) -> None:
    """Reload the certificates for new connections; keep the former ones if a file is wrong."""
    if listener.tls is None:
        return
    try:
        listener.use_certificates(certificates.load(listener.executor.options))
        _log.log(NOTICE, "the certificates were read anew")
    except certificates.BadCertificate as error:
        _log.warning("goes on with the certificates that it has: %s", error)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
