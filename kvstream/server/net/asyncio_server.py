"""The network layer: asyncio connections and timers around the executor.

A transport calls its protocol for each socket. With epoll and the compiled modules, plain sockets
are read by the ``EpollReader``: it reads all readable sockets by one call, runs a turn, and reads
again. Transports still write what a socket does not take at once, and close. They also read if the
connection has TLS. Without the epoll reader and the compiled channel ``XADD, -P 1`` takes 1.3 times
the processor time.
"""

import asyncio
import errno
import ipaddress
import os
import select
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

from kvstream.commands.command import Table
from kvstream.engine.engine import Engine
from kvstream.errors import KVStreamError
from kvstream.logs import deferred, emit_deferred
from kvstream.resp import may_poll
from kvstream.resp.requests import RequestReader
from kvstream.server.compiled import twins
from kvstream.server.net.replica_link import SecuredLink, SocketLink
from kvstream.server.options import ServerOptions
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.executor import Executor
from kvstream.server.runtime.loop import ReplicaLink
from kvstream.server.runtime.reply_queue import AHEAD
from kvstream.types.clock import monotonic


class PythonChannel:
    """The part of a connection that every request uses."""

    def __init__(self, executor: Executor, listener: "Listener") -> None:
        self.client: Client | None = None
        """None: not accepted yet, or gone."""
        self.transport: asyncio.Transport | None = None
        self.socket = -1
        """The descriptor of a plain socket: the compiled channel writes to it while the transport
        has nothing to write. uvloop counts written bytes only after the reads of an iteration, so
        until then everything goes to the transport. -1: the transport writes everything."""
        self._executor = executor
        self._statistics, self._limits = executor.statistics, executor.limits
        self._listener = listener

    def data_received(self, data: bytes) -> None:
        if self.client is not None:
            self._executor.receive(self.client, data)
            if not self._listener.scheduled:
                self._listener.schedule()

    def send(self, data: bytes) -> None:
        """Write to the socket; disconnect a client that reads too slowly."""
        transport, client = self.transport, self.client
        if transport is None or client is None or transport.is_closing():
            return
        transport.write(data)
        size = len(data)
        client.bytes_out += size
        self._statistics.bytes_out += size
        is_near = transport.get_write_buffer_size() > self._limits.near or client.output_over_since
        if is_near and not self._limits.admits(client):
            self.abort()

    def abort(self) -> None:
        """Close at once and discard unsent bytes."""
        if self.transport is not None:
            self.transport.abort()


Channel = PythonChannel
if not TYPE_CHECKING and twins is not None:
    Channel = twins.Channel


class EpollReader:
    """The plain sockets of one server."""

    def __init__(self, ready: Callable[[], None]) -> None:
        """The loop calls ``ready`` if a socket is readable."""
        self._epoll = select.epoll()
        self._poller = twins.Poller(self._epoll.fileno(), may_poll())
        self.receive: Callable[[], int] = self._poller.receive
        """Read all readable sockets; return their number. It polls for a while before it returns 0
        if the last waits were short."""
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), ready)

    @classmethod
    def if_possible(cls, ready: Callable[[], None]) -> Self | None:
        """Return None if transports must read."""
        return None if twins is None or not hasattr(select, "epoll") else cls(ready)

    def add(self, descriptor: int, channel: Channel) -> None:
        """Read a socket; its transport must not."""
        self._epoll.register(descriptor, select.EPOLLIN)
        self._poller.add(descriptor, channel)

    def discard(self, descriptor: int) -> None:
        """Stop reading a socket; call it before closing it, since its number is used again."""
        if self._poller.discard(descriptor):
            self._epoll.unregister(descriptor)


class CannotListen(KVStreamError):
    """Another program has the port or the path, or the machine has no such address."""


@contextmanager
def listening(address: str) -> Iterator[None]:
    """Raise CannotListen, with the address and the reason, for an OSError within."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno is not None and not isinstance(error, socket.gaierror):
            reason = os.strerror(error.errno)  # the event loop's text is long
        raise CannotListen(f"cannot listen at {address}: {reason.lower()}") from None


ROUNDS_S = 0.002
"""Time in which turns run one after another before the loop does anything else."""
TICK_S = 1.0
"""How often the executor's periodic work runs."""
BACKLOG = 511
"""Redis's ``tcp-backlog``."""
LINGER_S = 10.0
"""Time that a client has to read the last replies before its connection is closed."""


class Connection(Channel, asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, listener: "Listener") -> None:
        super().__init__(listener.executor, listener)
        self._listener = listener

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has another class
        self.client = self._listener.welcome(self, self.transport)
        if self.client is None:
            self.transport.close()
        elif transport.get_extra_info("ssl_object") is None:
            self.socket = self.client.descriptor
            self._listener.soon(self._join)  # the transport begins to read in the next iteration

    def eof_received(self) -> bool:
        return self.client is not None and self._listener.end_input(self.client)

    def connection_lost(self, error: Exception | None) -> None:
        self._leave()
        if self.client is not None:
            self._listener.executor.forget(self.client)
        self.transport = self.client = None  # leaves no reference cycle

    def end_input(self) -> None:
        """Note the end of input, as a transport does."""
        self._leave(closes=False)
        if not self.eof_received():
            self.close()

    def report(self, error: Exception) -> None:
        """Report an unexpected error of reading, and close."""
        context = {"message": "a client could not be read", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
        self.abort()

    def pending_output(self) -> int:
        """Return the bytes that are written and not yet sent."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def pause(self) -> None:
        """Stop reading."""
        if self.transport is not None and not self.transport.is_closing():
            self._leave(closes=False)
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
            self._join()

    def _join(self) -> None:
        """Hand the reading of the socket from the transport to the epoll reader."""
        reader, transport = self._listener.epoll_reader, self.transport
        if reader is None or transport is None or self.socket < 0:
            return
        if transport.is_reading():
            transport.pause_reading()
            reader.add(self.socket, self)

    def _leave(self, closes: bool = True) -> None:
        """Take the socket from the epoll reader; if it ``closes``, only the transport writes."""
        if self._listener.epoll_reader is not None:
            self._listener.epoll_reader.discard(self.socket)
        if closes:
            self.socket = -1

    def abort(self) -> None:
        self._leave()
        super().abort()

    def resume_writing(self) -> None:
        """Continue a streamed reply: the pages so far are sent."""
        self._listener.write_pages()

    def close(self) -> None:
        """Close after the written bytes are sent, or after LINGER_S."""
        self._leave()
        if self.transport is not None:
            if self.pending_output():
                asyncio.get_running_loop().call_later(LINGER_S, self.abort)
            self.transport.close()


class Listener:
    """All connections of one server in one event loop."""

    suspends_turns = True

    def __init__(
        self,
        engine: Engine,
        commands: Table,
        options: ServerOptions,
        tls: ssl.SSLContext | None = None,
        stop: Callable[[], None] = lambda: None,
        set_level: Callable[[str], None] = lambda name: None,
    ) -> None:
        """``stop`` and ``set_level`` are those of ``Loop``."""
        self.stop, self.set_level = stop, set_level
        self.stopping = False
        """The server accepts no connections any more."""
        self.tls = tls
        """The TLS context of new connections."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self.soon, self.clock = self._loop.call_soon, self._loop.time
        self.call_later = self._loop.call_later
        self.epoll_reader = EpollReader.if_possible(self._receive)
        self._thread = threading.get_ident()
        self.scheduled = self._has_pages = False
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0  # uvloop's handle of a time that has passed does not tell it
        self._next_id = 1
        self.executor = executor = Executor(engine, commands, options, self)
        self.run_turn: Callable[[], bool] = executor.run
        self._waits, self._pause = executor.blocking.deadlines, executor.pause
        executor.limits.fit_open_files()
        executor.limits.bound_replies()
        self._tick()

    def _tick(self) -> None:
        self.executor.tick()
        self.schedule()
        self._loop.call_later(TICK_S, self._tick)

    def welcome(self, connection: Connection, transport: asyncio.Transport) -> Client | None:
        """Make a client of a new connection, or refuse it with an error."""
        here, peer = map(transport.get_extra_info, ("sockname", "peername"))
        local, address = is_local(peer), address_of(peer or here)  # a Unix client has only ours
        refusal = self.executor.limits.refusal(local, address)
        if refusal is not None:
            transport.write(refusal)
            return None
        reader = RequestReader()
        client = Client(self.executor, self._next_id, reader, connection, self._loop.time())
        self._next_id += 1
        client.pages = True
        transport.set_write_buffer_limits(high=AHEAD)  # for resume_writing
        client.is_local = local
        client.has_tls = transport.get_extra_info("ssl_object") is not None
        plain = transport.get_extra_info("socket")
        if plain is not None:
            client.descriptor = plain.fileno()
            _keep_alive(plain, self.executor.options.tcp_keepalive)
        client.address, client.local_address = address, address_of(here)
        client.is_unix = not isinstance(here, tuple)
        self.executor.add(client)
        return client

    def begin(self, work: Coroutine[None, None, None]) -> None:
        """Run a task, and keep it from the garbage collector."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end_input(self, client: Client) -> bool:
        """Note the end of a client's input; return whether replies are still due."""
        answers = self.executor.end_input(client)
        self.schedule()
        return answers

    def run_turns_by(self, run: Callable[[], bool]) -> None:
        """Run turns by another function than the executor's ``run``, which it calls."""
        self.run_turn = run

    def stop_accepting(self) -> None:
        """Take no new connections: the server stops."""
        self.stopping = True

    def use_certificates(self, tls: ssl.SSLContext) -> None:
        """Serve new connections with other certificates."""
        self.tls = tls

    def post(self, function: Callable[[], None]) -> None:
        """Call a function in the loop's thread: at once if this is that thread."""
        if threading.get_ident() == self._thread:
            function()
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._call_and_write, function)

    def _call_and_write(self, function: Callable[[], None]) -> None:
        """Call a function that may send replies, and write the first pages of streamed ones."""
        function()
        self.write_pages()

    def link_to(self, client: Client) -> ReplicaLink:
        """Return a link that writes to the socket of a client."""
        return SecuredLink(client) if client.has_tls else SocketLink(client.descriptor)

    def after_reads(self, function: Callable[[], None]) -> None:
        self._loop.call_soon(self._call_and_write, function)

    def schedule(self) -> None:
        """Run a turn after all reads of this iteration of the loop, if there is work for it."""
        if not self.scheduled and (self._has_pages or self.executor.pending):
            self._schedule()

    def _schedule(self) -> None:
        self.scheduled = True
        self._loop.call_soon(self.turn)

    def write_pages(self) -> None:
        """Schedule the next pages of streamed replies."""
        self._has_pages = bool(self.executor.streaming.under_way)
        self.schedule()

    def _receive(self) -> None:
        """Read all readable sockets and run their requests, until there are none or ROUNDS_S."""
        assert self.epoll_reader is not None
        until = monotonic() + ROUNDS_S
        while self.epoll_reader.receive() and not self.scheduled:
            self.turn()
            if self.scheduled or self.executor.reply_queue.is_waiting() or monotonic() >= until:
                return  # replies that wait for an fsync ask for it in the next iteration

    def turn(self) -> None:
        """Run the requests that have arrived, and write the next pages of streamed replies."""
        self.scheduled = False
        more, streaming = self.run_turn(), self.executor.streaming
        if streaming.under_way:
            self._has_pages = streaming.write()
            more = self._has_pages or self.executor.pending  # of clients whose replies are complete
        else:
            self._has_pages = False
        if more and not self.scheduled:
            self._schedule()
        if self._timer is not None or self._waits.heap or self._pause.until is not None:
            self._set_timer()
        if deferred and self._thread not in self.executor.engine.entered:
            emit_deferred()

    def _set_timer(self) -> None:
        due = self.executor.due()
        if due is None and self._timer is None:
            return
        if self._timer is not None:
            if due is not None and self._timer_at <= due:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer, self._timer_at = self._loop.call_at(due, self._on_timer), due

    def _on_timer(self) -> None:
        self._timer = None
        self._call_and_write(self.executor.expire)
        self._set_timer()


def is_local(peer: object) -> bool:
    """Return whether a peer is on this machine; Unix sockets have no address tuple."""
    return _is_loopback(peer[0]) if isinstance(peer, tuple) else True


@lru_cache(maxsize=1024)  # to parse an address takes as long as to run a request
def _is_loopback(address: str) -> bool:
    host = ipaddress.ip_address(address.partition("%")[0])
    return (getattr(host, "ipv4_mapped", None) or host).is_loopback


def _keep_alive(connection: socket.socket, seconds: int) -> None:
    """Set TCP keepalive; 0 seconds: none."""
    if seconds and connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", seconds),
            ("TCP_KEEPINTVL", max(seconds // 3, 1)),
            ("TCP_KEEPCNT", 3),
        ):
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def address_of(name: object) -> str:
    """Return an address as CLIENT LIST shows it."""
    if isinstance(name, tuple):
        host = f"[{name[0]}]" if ":" in name[0] else name[0]
        return f"{host}:{name[1]}"
    return f"{name or ''}:0"


async def listen(listener: Listener, host: str, port: int) -> asyncio.Server:
    """Accept connections on a port."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(partial(Connection, listener), host, port, backlog=BACKLOG)


async def listen_unix(listener: Listener, path: Path, mode: int) -> asyncio.Server:
    """Accept connections on a Unix socket, in place of one that a killed server has left.

    ``mode``: the permissions of the socket; 0: as the umask has them.
    """
    door = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket() and not _is_served(path):
            path.unlink()
        door.bind(str(path))
        if mode:
            path.chmod(mode)  # nobody can connect before it listens
    except BaseException:
        door.close()
        raise
    loop = asyncio.get_running_loop()
    protocol = partial(Connection, listener)
    return await loop.create_unix_server(protocol, sock=door, backlog=BACKLOG)


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as end:
        end.setblocking(False)
        return end.connect_ex(str(path)) in (0, errno.EAGAIN)  # EAGAIN: its backlog is full
