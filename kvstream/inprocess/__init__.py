"""redis-py on a store in the program's own process: ``connect`` and ``connect_async``.

The connections call the command table, without a socket. redis-py and the server are imported by
the first call.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from kvstream.errors import InvalidArgument, install_command, nearest
from kvstream.store import Store
from kvstream.types.options import StoreOptions
from kvstream.types.urls import AnyPath

if TYPE_CHECKING:
    import redis
    import redis.asyncio


T = TypeVar("T")

_OF_STORES = {field.name for field in fields(StoreOptions)} | {"clock"}
_OF_SOCKETS = {
    "host",
    "port",
    "unix_socket_path",
    "socket_connect_timeout",
    "socket_keepalive",
    "socket_keepalive_options",
    "socket_type",
    "socket_read_size",
}
"""Options without effect here; those of TLS have none either."""
_MADE_HERE = "a pool and its connections are made here: pool=... is the class of the pool"
_NO_TRACKING = "a cache in the client needs CLIENT TRACKING, which there is not"
_REFUSED = {
    "connection_class": _MADE_HERE,
    "connection_pool": _MADE_HERE,
    "cache": _NO_TRACKING,
    "cache_config": _NO_TRACKING,
}


def connect(store: Store | AnyPath, **options: Any) -> "redis.Redis":
    """Return a client of redis-py on a store in this process: a directory, or an open Store.

    Everything of redis-py works, from any thread: pipelines, transactions, blocking reads, pools,
    RESP2 and RESP3. The options are those of ``redis.Redis`` and, for a directory, of
    ``Store.open``. Options that address a server have no effect. ``pool`` is the class of the pool,
    such as ``redis.BlockingConnectionPool``. There are no timeouts and no retries by default.

    Clients of one directory share its store. It is closed with the last of them, or at the end of
    the program. Raises what ``Store.open`` raises, and ImportError if redis-py is not installed.
    """
    _check_installed()
    from kvstream.inprocess import connection

    return _client(connection.client, store, options)


def connect_async(store: Store | AnyPath, **options: Any) -> "redis.asyncio.Redis":
    """Return a client of redis.asyncio on a store in this process, as ``connect`` does.

    The event loop never waits for the disk. The first command opens the store, and raises
    ``redis.ConnectionError`` if that fails.
    """
    _check_installed()
    from kvstream.inprocess import asynchronous

    return _client(asynchronous.client, store, options)


def _check_installed() -> None:
    try:
        import redis  # noqa: F401
    except ImportError:
        raise ImportError(f"redis-py is needed here: {install_command('server')}") from None


def _client(make: Callable[..., T], store: Store | AnyPath, options: dict[str, Any]) -> T:
    from kvstream.inprocess.shared_store import Handle, shared_store_of

    of_store, of_client = _split(options)
    if isinstance(store, Store):
        of_client.setdefault("db", store.db)
    try:
        return make(Handle(shared_store_of(store, of_store)), **of_client)
    except TypeError as error:
        unknown = re.search("unexpected keyword argument '([^']*)'", str(error))
        if unknown is None:
            raise
        known = [*_OF_STORES, *inspect.signature(import_module("redis").Redis).parameters]
        raise TypeError(f"no such option: {unknown[1]}{nearest(unknown[1], known)}") from None


def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the store and those of the client, without those of sockets."""
    of_store: dict[str, Any] = {}
    of_client: dict[str, Any] = {}
    for name, value in options.items():
        if name == "decode":
            raise TypeError("no such option: decode: did you mean 'decode_responses'?")
        if name in _REFUSED:
            raise InvalidArgument(f"{name}: {_REFUSED[name]}")
        if name in _OF_STORES:
            of_store[name] = value
        elif name not in _OF_SOCKETS and name.partition("_")[0] != "ssl":
            of_client[name] = value
    return of_store, of_client
