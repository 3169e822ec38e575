"""redis-py's connection and pool for threads, connected to a host instead of a socket.

``Pipe`` is the object that redis-py uses as a socket: writing runs requests, reading gives replies.
It belongs to one thread at a time, as a connection of redis-py does. Other threads may close it.
"""

import errno
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from functools import cache
from typing import Any

import redis
import redis.connection
from redis.utils import HIREDIS_AVAILABLE

from kvstream.engine.waiters import Signal
from kvstream.errors import KVStreamError, ReentrantCall
from kvstream.inprocess.host import Host
from kvstream.inprocess.shared_store import Handle
from kvstream.server.runtime.client import Client

Buffer = bytearray | memoryview


class Pipe:
    """The host's endpoint of a connection, with the methods of a socket."""

    def __init__(self, host: Host, timeout: float | None) -> None:
        """Connect to the host; ConnectionResetError if it has ended."""
        self._host = host
        self._timeout = timeout
        self._chunks: deque[bytes] = deque()
        self._at = 0
        """Bytes of the first chunk that were read."""
        self._sent = self._read = 0
        self._arrived = Signal()
        self._open = True
        self._broken = ""
        self._client: Client | None = None
        host.refuse_within()
        self._client = host.connect(self)

    # --- what redis-py calls --------------------------------------------------------------------

    def sendall(self, data: bytes) -> None:
        """Send requests, and run them in this thread."""
        self._refuse_broken()
        if self._client is not None:
            self._host.receive(self._client, data)

    def recv_into(self, buffer: Buffer) -> int:
        """Read replies into a buffer; return 0 at the end. A timeout raises a socket's errors."""
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def recv(self, size: int) -> bytes:
        """Read at most ``size`` bytes of replies; empty at the end."""
        if not self._chunks and not self.wait(self._timeout):
            if self._timeout == 0:
                raise BlockingIOError(errno.EAGAIN, "nothing has come")
            raise TimeoutError("timed out")
        if not self._chunks:
            self._refuse_broken()
            return b""
        data = self._chunks[0]
        if self._at or len(data) > size:
            data = data[self._at : self._at + size]
        self._at += len(data)
        if self._at == len(self._chunks[0]):
            self._chunks.popleft()
            self._at = 0
        self._read += len(data)
        return data

    def settimeout(self, seconds: float | None) -> None:
        """Set the seconds to wait for replies; None: without end, 0: do not wait."""
        self._timeout = seconds

    def shutdown(self, how: int) -> None:
        """Do nothing: ``close`` ends the connection."""

    def close(self) -> None:
        """Disconnect from the host. The host calls this, too."""
        if not self._open:
            return
        self._open = False
        if not self._host.ended:  # a forked child may not even touch the event
            self._arrived.set()
            if self._client is not None:
                self._host.disconnect(self._client)

    # --- called by the host ---------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        if self._open:
            self._chunks.append(data)
            self._sent += len(data)
            self._arrived.set()

    def fail(self, reason: str) -> None:
        self._broken = reason
        self._open = False
        self._arrived.set()

    def pending(self) -> int:
        return self._sent - self._read

    # --- waiting --------------------------------------------------------------------------------

    def wait(self, seconds: float | None) -> bool:
        """Wait until there are bytes or the end; return False on a timeout."""
        while not self._chunks and self._open:
            if not self._arrived.wait(seconds):
                return False
        return True

    def is_over(self) -> bool:
        """Return whether the connection has ended and everything was read."""
        return not self._open and not self._chunks

    def _refuse_broken(self) -> None:
        if self._broken:
            raise ConnectionResetError(errno.ECONNRESET, self._broken)


CLOSED = "Connection closed by server."
"""redis-py's text."""

_Base: Any = redis.connection.UnixDomainSocketConnection
"""Any, since its type differs between releases of redis-py."""


_Serializer: Any = redis.connection.HiredisRespSerializer


class Packer(_Serializer):  # type: ignore[misc]
    """Pack commands by hiredis, with all numbers as text.

    hiredis asks Python for the text of a number, and ends the process if a signal handler raises
    meanwhile.
    """

    def pack(self, *args: Any) -> list[bytes]:
        """Return a command as bytes to send."""
        packed: list[bytes] = super().pack(*map(_without_number, args))
        return packed


def _without_number(arg: Any) -> Any:
    return str(arg) if isinstance(arg, (int, float)) and not isinstance(arg, bool) else arg


class Connection(_Base):  # type: ignore[misc]
    """A connection of redis-py to the command table.

    It connects to a host, and sends all commands of a pipeline at once, so that they are one turn.
    """

    def __init__(self, handle: Handle, socket_timeout: float | None = None, **options: Any) -> None:
        if HIREDIS_AVAILABLE and options.get("command_packer") is None:
            options["command_packer"] = Packer()
        super().__init__(path=handle.name, socket_timeout=socket_timeout, **options)
        self._handle = handle

    def _connect(self) -> Pipe:
        try:
            return Pipe(self._handle.acquire(), self.socket_timeout)
        except ReentrantCall:
            raise
        except KVStreamError as error:
            raise redis.ConnectionError(f"{type(error).__name__}: {error}") from error

    def send_packed_command(
        self, command: "str | Iterable[bytes]", check_health: bool = True
    ) -> None:
        whole = command if isinstance(command, str) else [b"".join(command)]
        super().send_packed_command(whole, check_health=check_health)

    def activate_maint_notifications_handling_if_enabled(self, check_health: bool = True) -> None:
        """Do nothing: a store in this process never moves to another host."""

    def can_read(self, timeout: float | None = 0) -> bool:
        """Return whether an unread reply is there; raise redis.ConnectionError at the end."""
        if self._sock is None:
            self.connect()
        pipe: Pipe = self._sock
        if _holds_replies(self._parser):
            return True
        readable = pipe.wait(timeout)
        if pipe.is_over():
            self.disconnect()
            raise redis.ConnectionError(CLOSED)
        return readable


def _holds_replies(parser: Any) -> bool:
    """Return whether a parser of redis-py has unread bytes."""
    reader = getattr(parser, "_reader", None)
    if reader is not None:  # hiredis
        return bool(reader.has_data())
    unread = getattr(parser._buffer, "unread_bytes", None)
    if unread is None:  # its ``connect`` was interrupted
        raise redis.ConnectionError(CLOSED)
    return bool(unread())


class ReleasingPool:
    """Mixin of connection pools: release the store when the pool is closed."""

    connection_kwargs: dict[str, Any]

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        super().disconnect(*args, **kwargs)  # type: ignore[misc]
        if closes_all(*args, **kwargs):
            handle: Handle = self.connection_kwargs["handle"]
            handle.release()


def closes_all(inuse_connections: bool = True) -> bool:
    """Return whether a pool's ``disconnect`` with these arguments closes all connections."""
    return inuse_connections


@cache
def pool_class(base: type[redis.ConnectionPool]) -> type[redis.ConnectionPool]:
    """Return a subclass of ``base`` that releases the store when it is closed."""
    return type(base.__name__, (ReleasingPool, base), {"__module__": __name__})


def client(
    handle: Handle,
    pool: type[redis.ConnectionPool] = redis.ConnectionPool,
    single_connection_client: bool = False,
    **options: Any,
) -> redis.Redis:
    """Return a client with a pool of its own; raise TypeError for an unknown option."""
    connections = pool_class(pool)(connection_class=Connection, handle=handle, **options)
    Connection(**connections.connection_kwargs)
    weakref.finalize(connections, handle.abandon).atexit = False
    handle.acquire()
    result = redis.Redis(
        connection_pool=connections, single_connection_client=single_connection_client
    )
    result.auto_close_connection_pool = True
    _lock_holders.update((result, connections))
    return result


# --- forks --------------------------------------------------------------------------------------

LOCKS = ("_lock", "_fork_lock", "single_connection_lock")
"""Names of the locks of redis-py 8.1's clients, pools and event dispatchers. A forked child
inherits them."""

_lock_holders: "weakref.WeakSet[Any]" = weakref.WeakSet()


def _renew_locks() -> None:
    """Replace, in a forked child, the locks that a thread of the parent may hold."""
    for made in list(_lock_holders):
        for holder in (made, getattr(made, "_event_dispatcher", None)):
            for name in LOCKS:
                if hasattr(holder, name):
                    setattr(holder, name, threading.RLock())


os.register_at_fork(after_in_child=_renew_locks)
