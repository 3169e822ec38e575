"""kvstream: durable message streams in your own process, with the semantics of Redis Streams.

::

    from kvstream import Store

    with Store.open("data") as store:
        jobs = store.stream("jobs")
        jobs.add({"task": "mail", "to": "ann"})
        workers = jobs.create_group("workers", start="0", exist_ok=True)
        for job in workers.consumer("worker-1").read(count=10):
            workers.ack(job)

A ``Store`` has ``Stream``s, a stream has ``Group``s, a group has ``Consumer``s. Every error is a
``KVStreamError``. ``connect`` and ``connect_async`` return redis-py clients on a store.
"""

from kvstream.errors import (
    BadPayload,
    BusyGroup,
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
    PendingDetail,
    PendingEntry,
    PendingSummary,
    StreamDetail,
    StreamInfo,
)
from kvstream.version import VERSION as __version__

__all__ = [
    "BadPayload",
    "BareEntry",
    "BusyGroup",
    "Claimed",
    "ClaimedIDs",
    "Clock",
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
]
