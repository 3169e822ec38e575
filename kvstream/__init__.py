"""kvstream: durable message streams in your own process, with the semantics of Redis Streams.

::

    import kvstream

    with kvstream.open("data") as store:
        jobs = store.stream("jobs")
        jobs.add({"task": "mail", "to": "ann"})
        workers = jobs.create_group("workers", start="0", exist_ok=True)
        for job in workers.consumer("worker-1").read(count=10):
            workers.ack(job)

``open("redis://...")`` gives the same classes on a server. A ``Store`` has ``Stream``s, a stream
has ``Group``s, a group has ``Consumer``s. Every error is a ``KVStreamError``. ``aio.open`` is for
asyncio. ``connect`` and ``connect_async`` return redis-py clients on a store.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvstream.errors import (
    AccessDenied,
    BadPayload,
    BusyGroup,
    ClientMissing,
    Conflict,
    Corruption,
    DataError,
    IDsExhausted,
    IDTooSmall,
    InvalidArgument,
    InvalidID,
    KeyExists,
    KVStreamError,
    LostWrites,
    NoGroup,
    NoSuchKey,
    NoSuchLoad,
    NoSuchStore,
    ProtocolError,
    ReplicationRefused,
    ReplyTooLarge,
    RequestError,
    ServerLoading,
    ServerTooOld,
    ServerUnavailable,
    SourceNotReady,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    Unblocked,
    UnknownLayout,
    UnknownOutcome,
    UnsafeDirectory,
    WriteStalled,
    WrongType,
)
from kvstream.version import VERSION as __version__

if TYPE_CHECKING:
    from kvstream import aio as aio
    from kvstream.engine.coerce import AnyPath, Level
    from kvstream.engine.listening import stop_on_signals
    from kvstream.group import Consumer, Group
    from kvstream.inprocess import connect, connect_async
    from kvstream.operations.ack import NackMode
    from kvstream.operations.delete import Outcome
    from kvstream.operations.trim import RefPolicy
    from kvstream.store import Store
    from kvstream.stream import Stream
    from kvstream.types.clock import Clock, ManualClock, SystemClock
    from kvstream.types.ids import StreamID
    from kvstream.types.options import Durability, StoreOptions
    from kvstream.types.records import (
        BareEntry,
        Claimed,
        ClaimedIDs,
        ConsumerDetail,
        ConsumerInfo,
        DeletedEntry,
        Entry,
        Fault,
        GroupDetail,
        GroupInfo,
        KeyInfo,
        PendingDetail,
        PendingEntry,
        PendingSummary,
        StreamDetail,
        StreamInfo,
    )

__all__ = [
    "AccessDenied",
    "BadPayload",
    "BareEntry",
    "BusyGroup",
    "Claimed",
    "ClaimedIDs",
    "ClientMissing",
    "Clock",
    "Conflict",
    "Consumer",
    "ConsumerDetail",
    "ConsumerInfo",
    "Corruption",
    "DataError",
    "DeletedEntry",
    "Durability",
    "Entry",
    "Fault",
    "Group",
    "GroupDetail",
    "GroupInfo",
    "IDTooSmall",
    "IDsExhausted",
    "InvalidArgument",
    "InvalidID",
    "KVStreamError",
    "KeyExists",
    "KeyInfo",
    "LostWrites",
    "ManualClock",
    "NackMode",
    "NoGroup",
    "NoSuchKey",
    "NoSuchLoad",
    "NoSuchStore",
    "Outcome",
    "PendingDetail",
    "PendingEntry",
    "PendingSummary",
    "ProtocolError",
    "RefPolicy",
    "ReplicationRefused",
    "ReplyTooLarge",
    "RequestError",
    "ServerLoading",
    "ServerTooOld",
    "ServerUnavailable",
    "SourceNotReady",
    "Store",
    "StoreClosed",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "StoreOptions",
    "StoreReadOnly",
    "Stream",
    "StreamDetail",
    "StreamID",
    "StreamInfo",
    "SystemClock",
    "Unblocked",
    "UnknownLayout",
    "UnknownOutcome",
    "UnsafeDirectory",
    "WriteStalled",
    "WrongType",
    "__version__",
    "connect",
    "connect_async",
    "open",
    "stop_on_signals",
]

_LAZY = {
    "engine.listening": ("stop_on_signals",),
    "group": ("Consumer", "Group"),
    "inprocess": ("connect", "connect_async"),
    "operations.ack": ("NackMode",),
    "operations.delete": ("Outcome",),
    "operations.trim": ("RefPolicy",),
    "store": ("Store",),
    "stream": ("Stream",),
    "types.clock": ("Clock", "ManualClock", "SystemClock"),
    "types.ids": ("StreamID",),
    "types.options": ("Durability", "StoreOptions"),
    "types.records": (
        "BareEntry",
        "Claimed",
        "ClaimedIDs",
        "ConsumerDetail",
        "ConsumerInfo",
        "DeletedEntry",
        "Entry",
        "Fault",
        "GroupDetail",
        "GroupInfo",
        "KeyInfo",
        "PendingDetail",
        "PendingEntry",
        "PendingSummary",
        "StreamDetail",
        "StreamInfo",
    ),
}
"""The names that are imported when they are first used, by module: see TYPE_CHECKING above."""
_MODULES = {name: module for module, names in _LAZY.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that a small program starts fast."""
    module = _MODULES.get(name)
    if name == "aio":
        return import_module(f"{__name__}.aio")
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def open(
    place: AnyPath,
    *,
    db: int | None = None,
    durability: Level | None = None,
    read_only: bool = False,
    create: bool = True,
    clock: Clock | None = None,
    shared: bool = False,
    wait_s: float | None = None,
    **options: Any,
) -> Store:
    """Open the store at ``place``: in a directory, or on a server.

    A path opens the directory, as ``Store.open`` does with the same arguments. With ``shared``
    many processes may open it so: one owns the store and serves the others, and when it ends,
    another one takes over. ``wait_s`` is how long a call waits for an owner, 15 seconds if None.

    The URL of a server (``redis://``, ``rediss://`` or ``unix://``), kvstream's or a Redis from 7.0
    on, gives the same classes over the network. There ``db`` None is the database that the URL
    names, and durability is the server's. Raises ServerUnavailable, AccessDenied, or ClientMissing
    without redis-py; a call that the server is too old for raises ServerTooOld. ::

        with kvstream.open("redis://localhost:6379") as store:
            store.stream("orders").add({"sku": "a1"})
    """
    from kvstream.engine.coerce import server_url
    from kvstream.store import Store
    from kvstream.types.options import Durability

    url = server_url(place)
    if url is None:
        level = Durability.EVERYSEC if durability is None else durability
        if shared:
            from kvstream.shared.engine import open_shared  # with redis-py, too

            settings = {"durability": level, "read_only": read_only, "create": create, **options}
            return Store(open_shared(place, settings, clock, wait_s), db or 0)
        if wait_s is not None:
            raise InvalidArgument("wait_s is for shared=True: the seconds to wait for an owner")
        return Store.open(
            place,
            durability=level,
            db=db or 0,
            read_only=read_only,
            create=create,
            clock=clock,
            **options,
        )
    given = {
        "durability": durability,
        "read_only": read_only or None,
        "clock": clock,
        "shared": shared or None,
        "wait_s": wait_s,
        **options,
    }
    for name, value in given.items():
        if value is not None:
            raise InvalidArgument(f"{name} is for a store in a directory: a server has its own")
    from kvstream.remote.engine import open_server  # with redis-py, which is optional

    engine = open_server(url, db)
    return Store(engine, engine.db)
