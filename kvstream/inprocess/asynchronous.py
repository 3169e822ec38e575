"""redis-py's connection and pool for asyncio, on a host instead of a socket.

Nothing here waits for a lock or a disk: requests are handed to the host's thread, which runs those
of all tasks in one turn, and replies come back into the loop.
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
from kvstream.inprocess.homes import Door
from kvstream.inprocess.host import Host
from kvstream.server.runtime.client import Client

_Base: Any = redis.asyncio.connection.UnixDomainSocketConnection
"""Any, since each release of redis-py has other types for it."""


_FOREVER_S = 10 * 365 * 86_400


class Reader(asyncio.StreamReader):
    """Where the replies of a connection arrive.

    Its loop keeps it until the end of the connection, and through it the task that waits for
    replies: as a loop keeps what waits at a socket.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._kept = loop.call_later(_FOREVER_S, self.at_eof)

    def end(self) -> None:
        """Take no more."""
        self._kept.cancel()
        self.feed_eof()


class Writer:
    """A task's end of its connection to a host: what redis-py needs of a StreamWriter.

    It keeps neither loop nor reader: the host keeps it for as long as the store is open, and a loop
    that was stopped with clients open must be collected, so that they let go of the store.
    """

    def __init__(self, host: Host, reader: Reader) -> None:
        """Enter; ``reader`` will have the replies."""
        loop = asyncio.get_running_loop()
        self._host = host
        self._loop, self._reader = weakref.ref(loop), weakref.ref(reader)
        self._client: Client | None = None
        self._open = True
        host.submit(self._enter)

    def _enter(self) -> None:
        self._client = self._host.welcome(self)

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
        """Return: what was sent is with the host already."""

    def close(self) -> None:
        """Leave the host, or take no more: also what the host calls."""
        if self._open:
            self._open = False
            self._tell(Reader.end)
            if not self._host.ended:
                self._host.hand_over(self._leave)

    async def wait_closed(self) -> None:
        """Return: nothing is on the way."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return ``default``: there is no socket to be told of."""
        return default

    # --- in the host ----------------------------------------------------------------------------

    def _receive(self, data: bytes) -> None:
        if self._client is not None:
            self._host.executor.received(self._client, data)

    def _leave(self) -> None:
        if self._client is not None:
            self._host.leave(self._client)

    def send(self, data: bytes) -> None:
        if self._open:
            self._tell(Reader.feed_data, data)

    def break_off(self, reason: str) -> None:
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
        """Call into the loop; one that is closed or gone has nobody who would hear it."""
        loop, reader = self._loop(), self._reader()
        if loop is None or reader is None:
            self._open = False
            return
        try:
            loop.call_soon_threadsafe(function, reader, *args)
        except RuntimeError:
            self._open = False


class Connection(_Base):  # type: ignore[misc]
    """A connection of redis-py that leads to the table of commands."""

    def __init__(self, *, door: Door, socket_timeout: float | None = None, **options: Any) -> None:
        super().__init__(path=door.name, socket_timeout=socket_timeout, **options)
        self._door = door

    async def _connect(self) -> None:
        door: Door = self._door
        try:
            host = door.host
            if host is None:
                host = await asyncio.to_thread(door.enter)
        except KVStreamError as error:
            raise redis.ConnectionError(f"{type(error).__name__}: {error}") from error
        reader = Reader(asyncio.get_running_loop())
        self._writer = Writer(host, reader)
        self._reader = reader

    async def activate_maint_notifications_handling_if_enabled(
        self, check_health: bool = True
    ) -> None:
        """Do nothing: no store in this process moves to another host."""


class Leaving:
    """What pools of in-process connections do besides: let go of the store when they are closed."""

    connection_kwargs: dict[str, Any]

    async def disconnect(self, *args: Any, **kwargs: Any) -> None:
        await super().disconnect(*args, **kwargs)  # type: ignore[misc]
        if closes_all(*args, **kwargs):
            door: Door = self.connection_kwargs["door"]
            await asyncio.to_thread(door.leave)


@cache
def pool_class(base: type[redis.asyncio.ConnectionPool]) -> type[redis.asyncio.ConnectionPool]:
    """Return a pool as ``base`` is one, which lets go of the store."""
    return type(base.__name__, (Leaving, base), {"__module__": __name__})


def client(
    door: Door,
    pool: type[redis.asyncio.ConnectionPool] = redis.asyncio.ConnectionPool,
    single_connection_client: bool = False,
    **options: Any,
) -> redis.asyncio.Redis:
    """Return a client that owns its pool; TypeError for an option that redis-py has not."""
    connections = pool_class(pool)(connection_class=Connection, door=door, **options)
    Connection(**connections.connection_kwargs)
    weakref.finalize(connections, door.abandon).atexit = False
    made = redis.asyncio.Redis(
        connection_pool=connections, single_connection_client=single_connection_client
    )
    made.auto_close_connection_pool = True
    return made
