"""redis-py's connection and pool for threads, on a host instead of a socket."""

import os
import threading
import weakref
from collections.abc import Iterable
from functools import cache
from typing import Any

import redis
import redis.connection
from redis.utils import HIREDIS_AVAILABLE

from kvstream.errors import KVStreamError
from kvstream.inprocess.homes import Door
from kvstream.inprocess.pipe import Pipe

CLOSED = "Connection closed by server."
"""As redis-py says it."""

_Base: Any = redis.connection.UnixDomainSocketConnection
"""Any, since each release of redis-py has other types for it."""


_Serializer: Any = redis.connection.HiredisRespSerializer


class Packer(_Serializer):  # type: ignore[misc]
    """Packs commands by hiredis, which is given no numbers.

    It asks Python for their text, and ends the process where a signal's handler raises then.
    """

    def pack(self, *args: Any) -> list[bytes]:
        """Return a command as bytes to be sent."""
        packed: list[bytes] = super().pack(*map(_without_number, args))
        return packed


def _without_number(arg: Any) -> Any:
    return str(arg) if isinstance(arg, (int, float)) and not isinstance(arg, bool) else arg


class Connection(_Base):  # type: ignore[misc]
    """A connection of redis-py that leads to the table of commands.

    Of a connection to a socket in the file system it differs in how it connects, and in that all
    commands of a pipeline are sent at once, so that they are one turn.
    """

    def __init__(self, door: Door, socket_timeout: float | None = None, **options: Any) -> None:
        if HIREDIS_AVAILABLE and options.get("command_packer") is None:
            options["command_packer"] = Packer()
        super().__init__(path=door.name, socket_timeout=socket_timeout, **options)
        self._door = door

    def _connect(self) -> Pipe:
        try:
            return Pipe(self._door.enter(), self.socket_timeout)
        except KVStreamError as error:
            raise redis.ConnectionError(f"{type(error).__name__}: {error}") from error

    def send_packed_command(
        self, command: "str | Iterable[bytes]", check_health: bool = True
    ) -> None:
        whole = command if isinstance(command, str) else [b"".join(command)]
        super().send_packed_command(whole, check_health=check_health)

    def activate_maint_notifications_handling_if_enabled(self, check_health: bool = True) -> None:
        """Do nothing: no store in this process moves to another host."""

    def can_read(self, timeout: float | None = 0) -> bool:
        """Tell whether a reply is there that was not read; redis.ConnectionError at the end."""
        if self._sock is None:
            self.connect()
        pipe: Pipe = self._sock
        if _holds_replies(self._parser):
            return True
        found = pipe.wait(timeout)
        if pipe.is_over():
            self.disconnect()
            raise redis.ConnectionError(CLOSED)
        return found


def _holds_replies(parser: Any) -> bool:
    """Tell whether a parser of redis-py has bytes that were not asked for."""
    reader = getattr(parser, "_reader", None)
    if reader is not None:  # hiredis
        return bool(reader.has_data())
    unread = getattr(parser._buffer, "unread_bytes", None)
    if unread is None:  # it was interrupted as it connected
        raise redis.ConnectionError(CLOSED)
    return bool(unread())


class Leaving:
    """What pools of in-process connections do besides: let go of the store when they are closed."""

    connection_kwargs: dict[str, Any]

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        super().disconnect(*args, **kwargs)  # type: ignore[misc]
        if closes_all(*args, **kwargs):
            door: Door = self.connection_kwargs["door"]
            door.leave()


def closes_all(inuse_connections: bool = True) -> bool:
    """Tell whether ``disconnect`` of a pool, called so, closes all of its connections."""
    return inuse_connections


@cache
def pool_class(base: type[redis.ConnectionPool]) -> type[redis.ConnectionPool]:
    """Return a pool as ``base`` is one, which lets go of the store."""
    return type(base.__name__, (Leaving, base), {"__module__": __name__})


def client(
    door: Door,
    pool: type[redis.ConnectionPool] = redis.ConnectionPool,
    single_connection_client: bool = False,
    **options: Any,
) -> redis.Redis:
    """Return a client that owns its pool; TypeError for an option that redis-py has not."""
    connections = pool_class(pool)(connection_class=Connection, door=door, **options)
    Connection(**connections.connection_kwargs)
    weakref.finalize(connections, door.abandon).atexit = False
    door.enter()
    made = redis.Redis(
        connection_pool=connections, single_connection_client=single_connection_client
    )
    made.auto_close_connection_pool = True
    _lock_holders.update((made, connections))
    return made


# --- forks --------------------------------------------------------------------------------------

LOCKS = ("_lock", "_fork_lock", "single_connection_lock")
"""What redis-py 8.1 calls the locks of its clients, their pools and their dispatchers of events;
a forked child goes on with the same ones."""

_lock_holders: "weakref.WeakSet[Any]" = weakref.WeakSet()


def _renew_locks() -> None:
    """Have, in a forked child, no lock that a thread of its parent holds, for ever."""
    for made in list(_lock_holders):
        for holder in (made, getattr(made, "_event_dispatcher", None)):
            for name in LOCKS:
                if hasattr(holder, name):
                    setattr(holder, name, threading.RLock())


os.register_at_fork(after_in_child=_renew_locks)
