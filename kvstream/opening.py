"""Open a store at a place: a directory, a directory of many processes, or a server."""

from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from kvstream.engine.coerce import PlaceSettings, opening_of
from kvstream.engine.decoding import decoder_of
from kvstream.store import Store
from kvstream.types.urls import AnyPath, sentinels_of

if TYPE_CHECKING:
    from kvstream.remote.engine import RemoteEngine
    from kvstream.remote.failover import FailoverEngine


def connect_engine(
    url: str,
    db: int | None,
    wait_s: float | None = None,
    connect_s: float | None = None,
    replicas: int = 0,
) -> "FailoverEngine | RemoteEngine":
    """Return the engine of a server; redis-py, which is optional, is imported here.

    ``wait_s`` is for Sentinels, ``connect_s`` for the first reply of a server. ``replicas``: how
    many must have a write before its call returns.
    """
    if sentinels_of(url) is not None:
        from kvstream.remote.failover import FailoverEngine

        return FailoverEngine.open(url, db, wait_s, replicas)
    from kvstream.remote.connection import CONNECT_S
    from kvstream.remote.engine import RemoteEngine

    return RemoteEngine.open(url, db, connect_s or CONNECT_S, replicas=replicas)


@overload
def open(
    place: AnyPath, *, decode: Literal[False] = ..., **options: Unpack[PlaceSettings]
) -> Store[bytes]: ...
@overload
def open(
    place: AnyPath, *, decode: Literal[True], errors: str = ..., **options: Unpack[PlaceSettings]
) -> Store[str]: ...
@overload
def open(
    place: AnyPath, *, decode: bool, errors: str = ..., **options: Unpack[PlaceSettings]
) -> Store[bytes] | Store[str]: ...
def open(
    place: AnyPath, *, decode: bool = False, errors: str = "strict", **options: Any
) -> Store[Any]:
    """Open the store at ``place``: in a directory, or on a server.

    A path opens the directory, as ``Store.open`` does with the same ``options``. With ``shared``
    many processes may open it so: one owns the store and serves the others, and when it ends,
    another one takes over. ``wait_s`` is how long a call waits for an owner, 15 seconds if None.

    The URL of a server (``redis://``, ``rediss://`` or ``unix://``), kvstream's or a Redis from 7.0
    on, gives the same classes over the network. There ``db`` None is the database that the URL
    names, and durability is the server's. Raises ServerUnavailable, AccessDenied, or ClientMissing
    without redis-py; a call that the server is too old for raises ServerTooOld.

    The URL of Sentinels, ``redis+sentinel://h1:26379,h2:26379/mymaster``, opens the primary that
    they name, and follows a failover: a call goes on with the new primary within ``wait_s``
    seconds (30 if None), or raises ServerUnavailable, or UnknownOutcome for a write that may be
    done and cannot be repeated.

    With ``durability="replica"`` a write to a server returns once ``replicas`` of its replicas
    have it (1 if None); if they do not confirm it in two seconds it raises UnknownOutcome, and the
    write stays. With Sentinels it is confirmed or repeated until ``wait_s`` is over.

    With ``decode``, names and fields are returned as text; ``errors`` is that of ``bytes.decode``.
    Bytes that are no text raise NotText. ::

        with kvstream.open("redis://localhost:6379", decode=True) as store:
            store.stream("orders").add({"sku": "a1"})
            print([order.fields["sku"] for order in store.stream("orders")])
    """
    asked, decoder = opening_of(place, **options), decoder_of(decode, errors)
    if asked.url is not None:
        engine = connect_engine(asked.url, asked.db, asked.wait_s, replicas=asked.replicas)
        return Store(engine, engine.db, decoder)
    if asked.shared:
        from kvstream.shared.engine import SharedEngine  # with redis-py, too

        shared = SharedEngine.open(place, asked.settings, asked.clock, asked.wait_s)
        return Store(shared, asked.db or 0, decoder)
    settings = {"db": asked.db or 0, "clock": asked.clock, **asked.settings}
    return Store.open(place, decode=decode, errors=errors, **settings)
