"""redis-py's connection and pool for asyncio, connected to a host instead of a socket.

Nothing here waits for a lock or a disk. Requests are passed to the host's thread, which runs those
of all tasks in one turn. Replies come back into the event loop.
"""

import asyncio
import errno
import weakref
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import redis.asyncio
import redis.asyncio.connection

from kvstream.errors import KVStreamError
from kvstream.inprocess.connection import closes_all
from kvstream.inprocess.host import Host
from kvstream.inprocess.shared_store import Handle
from kvstream.server.runtime.client import Client

_Base: Any = redis.asyncio.connection.UnixDomainSocketConnection
"""Any, since its type differs between releases of redis-py."""


_FOREVER_S = 10 * 365 * 86_400


class Reader(asyncio.StreamReader):
    """The stream reader on which the replies of a connection arrive.

    The event loop references it until the connection ends, and through it the task that waits for
    replies, as with a socket.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._kept = loop.call_later(_FOREVER_S, self.at_eof)

    def end(self) -> None:
        """End the stream."""
        self._kept.cancel()
        self.feed_eof()


class Writer:
    """The host's endpoint of a connection, with the methods of a StreamWriter that redis-py calls.

    It has weak references to loop and reader: the host keeps it while the store is open, and a loop
    that was stopped with open clients must be garbage collected, so that they release the store.
    Then, and when a reply finds the loop closed, it disconnects from the host.
    """

    def __init__(self, host: Host, reader: Reader) -> None:
        """Connect to the host; replies go to ``reader``."""
        loop = asyncio.get_running_loop()
        self._host = host
        self._loop = weakref.ref(loop)
        self._reader = weakref.ref(reader, lambda _: self._disconnect())
        self._client: Client | None = None
        self._open = True
        host.submit(self._enter)

    def _enter(self) -> None:
        self._client = self._host.connect(self)

    # --- what redis-py calls --------------------------------------------------------------------

    def writelines(self, chunks: Iterable[bytes]) -> None:
        """Send requests; they run in the host's thread."""
        data = b"".join(chunks)
        loop = self._loop()
        if loop is None or loop.is_closed():
            raise RuntimeError("Event loop is closed")
        if not self._open:
            raise ConnectionResetError(errno.ECONNRESET, self._host.ended or "connection closed")
        self._host.submit(lambda: self._receive(data))

    async def drain(self) -> None:
        """Return at once: the host has all data already."""

    def close(self) -> None:
        """Disconnect from the host. The host calls this, too."""
        if self._open:
            self._disconnect()
            self._tell(Reader.end)

    def _disconnect(self) -> None:
        if self._open:
            self._open = False
            if not self._host.ended:
                self._host.enqueue(self._leave)

    async def wait_closed(self) -> None:
        """Return at once: no data is under way."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return ``default``, as there is no socket."""
        return default

    # --- called by the host ---------------------------------------------------------------------

    def _receive(self, data: bytes) -> None:
        if self._client is not None:
            self._host.executor.receive(self._client, data)

    def _leave(self) -> None:
        if self._client is not None:
            self._host.disconnect(self._client)

    def send(self, data: bytes) -> None:
        if self._open:
            self._tell(Reader.feed_data, data)

    def fail(self, reason: str) -> None:
        if self._open:
            self._open = False
            error = ConnectionResetError(errno.ECONNRESET, reason)
            self._tell(Reader.set_exception, error)
            self._tell(Reader.end)

    def pending(self) -> int:
        reader = self._reader()
        if reader is None:
            return 0
        buffer: bytearray = reader._buffer  # type: ignore[attr-defined]
        return len(buffer)

    def _tell(self, function: Callable[..., object], *args: Any) -> None:
        """Call into the loop, unless it is closed or gone."""
        loop, reader = self._loop(), self._reader()
        if loop is None or reader is None:
            self._disconnect()
            return
        try:
            loop.call_soon_threadsafe(function, reader, *args)
        except RuntimeError:
            self._disconnect()


class Connection(_Base):  # type: ignore[misc]
    """A connection of redis-py to the command table."""

    def __init__(
        self, *, handle: Handle, socket_timeout: float | None = None, **options: Any
    ) -> None:
        super().__init__(path=handle.name, socket_timeout=socket_timeout, **options)
        self._handle = handle

    async def _connect(self) -> None:
        handle: Handle = self._handle
        try:
            host = handle.host
            if host is None:
                host = await asyncio.to_thread(handle.acquire)
        except KVStreamError as error:
            raise redis.ConnectionError(f"{type(error).__name__}: {error}") from error
        reader = Reader(asyncio.get_running_loop())
        self._writer = Writer(host, reader)
        self._reader = reader

    async def activate_maint_notifications_handling_if_enabled(
        self, check_health: bool = True
    ) -> None:
        """Do nothing: a store in this process never moves to another host."""


class ReleasingPool:
    """Mixin of connection pools: release the store when the pool is closed."""

    connection_kwargs: dict[str, Any]

    async def disconnect(self, *args: Any, **kwargs: Any) -> None:
        await super().disconnect(*args, **kwargs)  # type: ignore[misc]
        if closes_all(*args, **kwargs):
            handle: Handle = self.connection_kwargs["handle"]
            await asyncio.to_thread(handle.release)


@cache
def pool_class(base: type[redis.asyncio.ConnectionPool]) -> type[redis.asyncio.ConnectionPool]:
    """Return a subclass of ``base`` that releases the store when it is closed."""
    return type(base.__name__, (ReleasingPool, base), {"__module__": __name__})


def client(
    handle: Handle,
    pool: type[redis.asyncio.ConnectionPool] = redis.asyncio.ConnectionPool,
    single_connection_client: bool = False,
    **options: Any,
) -> redis.asyncio.Redis:
    """Return a client with a pool of its own; raise TypeError for an unknown option."""
    connections = pool_class(pool)(connection_class=Connection, handle=handle, **options)
    Connection(**connections.connection_kwargs)
    weakref.finalize(connections, handle.abandon).atexit = False
    result = redis.asyncio.Redis(
        connection_pool=connections, single_connection_client=single_connection_client
    )
    result.auto_close_connection_pool = True
    return result
