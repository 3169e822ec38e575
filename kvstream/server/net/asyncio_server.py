"""The shell: sockets and timers of asyncio around the executor. It moves bytes, no more.

Ports to listen at, and what is said where one cannot be had.
"""

import asyncio
import ipaddress
import os
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic
from typing import cast

from kvstream.errors import KVStreamError
from kvstream.resp.requests import RequestReader
from kvstream.server.net.epoll_reader import Link, Sockets
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.executor import Executor
from kvstream.server.runtime.group_fsync import Gathering
from kvstream.server.runtime.reply_streaming import AHEAD


class CannotListen(KVStreamError):
    """Another program has the port, or the machine has no such address."""


@contextmanager
def listening(host: str, port: int) -> Iterator[None]:
    """Begin to listen within; CannotListen, with the place and the reason, where that fails."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno is not None and not isinstance(error, socket.gaierror):
            reason = os.strerror(error.errno)  # loops tell of it at length
        raise CannotListen(f"cannot listen at {host}:{port}: {reason.lower()}") from None


TICK_S = 1.0
"""How often idle clients are looked for, and rates are taken."""
BACKLOG = 511
"""Connections that the system keeps while none is taken: Redis's ``tcp-backlog``."""
ROUNDS_S = 0.002
"""Time in which turns run one after the other before the loop looks after all else."""
LINGER_S = 10.0
"""Time in which a client whose connection is closed must have read what was sent before."""


class Connection(Link, asyncio.Protocol):
    """One socket."""

    def __init__(self, listener: "Listener") -> None:
        super().__init__(listener.executor, listener)
        self._listener = listener

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is of no such class
        self.client = self._listener.welcome(self, self.transport)
        if self.client is None:
            self.transport.close()
        elif transport.get_extra_info("ssl_object") is None:
            self.socket = self.client.descriptor
            self._listener.soon(self._join)  # the transport reads from the next round on

    def eof_received(self) -> bool:
        return self.client is not None and self._listener.ended(self.client)

    def connection_lost(self, error: Exception | None) -> None:
        self._leave()
        if self.client is not None:
            self._listener.executor.gone(self.client)
        self.transport = self.client = None  # no circle is left for the search of garbage

    def ended(self) -> None:
        """Do as a transport does where the other side sends no more."""
        self._leave(for_good=False)
        if not self.eof_received():
            self.close()

    def failed(self, error: Exception) -> None:
        """Tell of what should not have happened, and close."""
        context = {"message": "a client could not be read", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
        self.abort()

    def pending_output(self) -> int:
        """Return the bytes that have been written and not been taken."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def pause(self) -> None:
        """Read no more."""
        if self.transport is not None and not self.transport.is_closing():
            self._leave(for_good=False)
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
            self._join()

    def _join(self) -> None:
        """Have the socket read with all others, where its transport would read it alone."""
        sockets, transport = self._listener.sockets, self.transport
        if sockets is None or transport is None or self.socket < 0:
            return
        if transport.is_reading():
            transport.pause_reading()
            sockets.add(self.socket, self)

    def _leave(self, for_good: bool = True) -> None:
        """Have the socket read no more; ``for_good``: nor written by others than its transport."""
        if self._listener.sockets is not None:
            self._listener.sockets.discard(self.socket)
        if for_good:
            self.socket = -1

    def abort(self) -> None:
        self._leave()
        super().abort()

    def resume_writing(self) -> None:
        """Go on with a long reply: what was made of it has been taken."""
        self._listener.write_pages()

    def close(self) -> None:
        """Close once what was sent has been read, or has not been for too long."""
        self._leave()
        if self.transport is not None:
            if self.pending_output():
                asyncio.get_running_loop().call_later(LINGER_S, self.abort)
            self.transport.close()


class Listener:
    """All connections of one server in one event loop."""

    def __init__(self, executor: Executor, tls: ssl.SSLContext | None = None) -> None:
        self.executor = executor
        self.run_turn: Callable[[], object] = executor.run
        self.stopping = False
        """The server takes no new connections any more."""
        self.tls = tls
        """How connections are secured from now on."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self.soon = self._loop.call_soon
        self.sockets = Sockets.where_possible(self._receive)
        self._thread = threading.get_ident()
        self.scheduled = self._has_pages = False
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0  # uvloop's handle of a time that has passed does not tell it
        self._next_id = 1
        executor.clock = self._loop.time
        executor.post = self.post
        executor.outbox.gatherer = self.gathering = Gathering(executor, self._behind_reads)
        executor.limits.make_room()
        executor.limits.bound_replies()
        self._tick()

    def _tick(self) -> None:
        self.executor.tick()
        self._loop.call_later(TICK_S, self._tick)

    def welcome(self, connection: Connection, transport: asyncio.Transport) -> Client | None:
        """Make a client of a new connection, or tell it why not."""
        peer = transport.get_extra_info("peername")
        local = is_local(peer)
        refusal = self.executor.limits.refusal(local, address_of(peer))
        if refusal is not None:
            transport.write(refusal)
            return None
        reader = RequestReader()
        client = Client(
            self.executor,
            self._next_id,
            reader,
            connection.send,
            connection.close,
            self._loop.time(),
        )
        self._next_id += 1
        client.pending_output, client.abort = connection.pending_output, connection.abort
        client.pause, client.resume = connection.pause, connection.resume
        client.pages = True
        transport.set_write_buffer_limits(high=AHEAD)  # and hear when there is less
        client.is_local = local
        client.descriptor = _descriptor(transport)
        _keep_alive(transport, self.executor.options.tcp_keepalive)
        client.address = address_of(peer)
        client.local_address = address_of(transport.get_extra_info("sockname"))
        self.executor.add(client)
        return client

    def begin(self, work: Coroutine[None, None, None]) -> None:
        """Have something done beside all else; the loop itself would forget it."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def ended(self, client: Client) -> bool:
        """Return whether a client that sends no more has something to be answered."""
        answers = self.executor.ended(client)
        self.schedule()
        return answers

    def post(self, function: Callable[[], None]) -> None:
        """Call a function in the loop's thread: now where this is it."""
        if threading.get_ident() == self._thread:
            function()
        else:
            with suppress(RuntimeError):  # the loop has ended, and all clients with it
                self._loop.call_soon_threadsafe(self._posted, function)

    def _posted(self, function: Callable[[], None]) -> None:
        """Call a function that may have replies written: a long one is only begun by that."""
        function()
        self.write_pages()

    def _behind_reads(self, function: Callable[[], None]) -> None:
        self._loop.call_soon(self._posted, function)

    def schedule(self) -> None:
        """Have a turn run behind all reads of this round of the loop."""
        if not self.scheduled and (self.executor.pending or self._has_pages):
            self.scheduled = True
            self._loop.call_soon(self._run_turn)

    def write_pages(self) -> None:
        """Have the next pages of long replies written, if there are any."""
        self._has_pages = bool(self.executor.paging.under_way)
        self.schedule()

    def _receive(self) -> None:
        """Take what has come to plain sockets, and run it, as long as there is more."""
        assert self.sockets is not None
        until = monotonic() + ROUNDS_S
        more = self.sockets.receive()
        while more and not self.scheduled:
            self.gathering.gather(self.sockets.receive_within)
            self._run_turn()
            if self.scheduled or self.executor.is_answering or monotonic() >= until:
                return  # those who wait for an fsync ask for it in the next round
            more = self.sockets.receive_more()

    def _run_turn(self) -> None:
        self.scheduled = False
        self.run_turn()
        paging = self.executor.paging
        self._has_pages = bool(paging.under_way) and paging.write()
        self.schedule()
        self._set_timer()

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
        self._posted(self.executor.expire)
        self._set_timer()


def is_local(peer: object) -> bool:
    """Tell whether a peer is on this machine; sockets of the file system have no such name."""
    if not isinstance(peer, tuple):
        return True
    host = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    return (getattr(host, "ipv4_mapped", None) or host).is_loopback


def _descriptor(transport: asyncio.Transport) -> int:
    connection = transport.get_extra_info("socket")
    return -1 if connection is None else int(connection.fileno())


def _keep_alive(transport: asyncio.Transport, seconds: int) -> None:
    """Have the system ask now and then whether the other side is still there."""
    connection = transport.get_extra_info("socket")
    if seconds and connection is not None and connection.family != socket.AF_UNIX:
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
